# make run | make test | make lint | make benchmark
# Each creates .venv once, from the Python named by PYTHON, and installs the pinned packages into it.
# TVM=0.27 takes another environment, .venv-0.27, with that release of TVM: make test TVM=0.27

PYTHON ?= python3
TVM ?= 0.26
SUFFIX := $(if $(filter-out 0.26,$(TVM)),-$(TVM))
VENV := .venv$(SUFFIX)
REQUIREMENTS := requirements$(SUFFIX).txt
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint benchmark environment clean

run: $(INSTALLED)
	@$(BIN)/python -m phaseflip run hgemm_v3 512 512 512

test: $(INSTALLED)
	@$(BIN)/python -m pytest -n auto

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

benchmark: $(INSTALLED)
	@$(BIN)/python -m pytest -n 0 --benchmark-only regression/test_performance.py

environment: $(INSTALLED)

clean:
	@rm -rf .venv .venv-0.27 .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(REQUIREMENTS):
	@echo "phaseflip is tested with TVM 0.26 and 0.27, and there is no $@: make TVM=0.26 or TVM=0.27" >&2; exit 1

$(INSTALLED): $(REQUIREMENTS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "No '$(PYTHON)' found; phaseflip needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "phaseflip needs Python 3.10 or newer, and '$(PYTHON)' is older: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing the packages of $(REQUIREMENTS) into $(VENV) (once, some minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@{ $(BIN)/python -m pip install --disable-pip-version-check -r $(REQUIREMENTS) && \
	   $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e . ; \
	 } >$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
	@touch $@
