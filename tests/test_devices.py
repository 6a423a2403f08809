"""Where a kernel runs: which GPU fits which kernel, and what is said where none does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from phaseflip.errors import BadInput
from phaseflip.gpu import devices
from phaseflip.gpu.devices import (
    Device,
    Gpu,
    check_arch,
    choose_device,
    default_arch,
    first_gpu,
    fits,
)

H200, B200, B300 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA B200", (10, 0)), Gpu("B300", (10, 3))
RTX = Gpu("RTX 5090", (12, 0))


def kernel(name: str, *needs: int) -> Any:
    """What the choice looks at."""
    return SimpleNamespace(name=name, needs=needs)


HOPPER, BLACKWELL = kernel("hgemm_sm90", 9, 0), kernel("hgemm_v3", 10, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(found: Gpu | None) -> None:
        monkeypatch.setattr(devices, "first_gpu", lambda: found)

    return put


@pytest.mark.parametrize(
    ("found", "of", "expected"),
    [
        (None, HOPPER, Device("sim")),
        (H200, HOPPER, Device("cuda", "NVIDIA H200, compute capability 9.0", "sm_90a")),
        (B200, BLACKWELL, Device("cuda", "NVIDIA B200, compute capability 10.0", "sm_100a")),
        (B300, BLACKWELL, Device("cuda", "B300, compute capability 10.3", "sm_103a")),
    ],
)
def test_auto_takes_a_gpu_that_fits(gpu: Any, found: Any, of: Any, expected: Device) -> None:
    gpu(found)
    assert choose_device("auto", of) == expected
    assert choose_device("sim", of) == Device("sim")


@pytest.mark.parametrize(
    ("found", "of", "wanted"),
    [
        (H200, BLACKWELL, "hgemm_v3 needs compute capability 10.0"),
        (B200, HOPPER, "hgemm_sm90 needs compute capability 9.0"),
        (RTX, BLACKWELL, "hgemm_v3 needs compute capability 10.0"),
        (RTX, None, "these kernels need compute capability 9.0, 10.0 or 10.3"),
    ],
)
def test_a_gpu_of_another_capability(gpu: Any, found: Gpu, of: Any, wanted: str) -> None:
    gpu(found)
    device = choose_device("auto", of)
    assert device.name == "sim" and wanted in device.note and found.name in device.note
    with pytest.raises(BadInput) as error:
        choose_device("cuda", of)
    assert str(error.value).startswith(wanted) and str(found) in str(error.value)


def test_no_gpu_and_unknown_names(gpu: Any) -> None:
    gpu(None)
    with pytest.raises(
        BadInput, match="needs an NVIDIA GPU, and PyTorch sees none here; use 'sim'"
    ):
        choose_device("cuda")
    with pytest.raises(BadInput, match="auto, sim, cuda"):
        choose_device("tpu")


def test_code_of_one_architecture_runs_on_its_own_minor_version_and_later_kernels_not_on_earlier() -> (
    None
):
    assert fits((10, 0), (10, 3)) and not fits((10, 3), (10, 0))
    assert not fits((9, 0), (10, 0)) and not fits((12, 0), (12, 0))
    assert [default_arch(needs) for needs in devices.ARCHS] == ["sm_90a", "sm_100a", "sm_103a"]
    with pytest.raises(BadInput, match=r"capability 8\.0; known are 9\.0, 10\.0, 10\.3"):
        default_arch((8, 0))
    check_arch(BLACKWELL, "sm_103a")
    with pytest.raises(BadInput, match="cannot be compiled for 'sm_90a'; use sm_100a or sm_103a"):
        check_arch(BLACKWELL, "sm_90a")


@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("count", [0, 2])
def test_the_first_gpu(monkeypatch: pytest.MonkeyPatch, driver: bool, count: int) -> None:
    import torch

    monkeypatch.setattr("os.path.exists", lambda path: driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, i))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"gpu {i}")
    assert first_gpu() == (Gpu("gpu 0", (9, 0)) if driver and count else None)


def test_every_kernel_states_a_capability_that_can_be_compiled_for() -> None:
    from phaseflip.gemm.kernel import list_kernels

    needs = {k.name: k.needs for k in list_kernels()}
    assert needs.pop("hgemm_sm90") == (9, 0)
    assert set(needs.values()) == {(10, 0)}
    assert replace(H200, name="x").capability in devices.ARCHS
