# make run | make test | make lint | make benchmark
# Each creates .venv once, from the Python named by PYTHON, and installs the pinned packages into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint benchmark clean

run: $(INSTALLED)
	@$(BIN)/python -m phaseflip run hgemm_v3 512 512 512

test: $(INSTALLED)
	@$(BIN)/python -m pytest -n auto

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

benchmark: $(INSTALLED)
	@$(BIN)/python -m pytest -n 0 --benchmark-only regression/test_performance.py

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(INSTALLED): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "No '$(PYTHON)' found; phaseflip needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "phaseflip needs Python 3.10 or newer, and '$(PYTHON)' is older: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing the packages of requirements.txt into $(VENV) (once, some minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@{ $(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt && \
	   $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e . ; \
	 } >$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
	@touch $@
