"""Fixed bugs of the functions of Python, and of what they are given."""

import numpy as np
import pytest
import torch

import phaseflip
from phaseflip import BadInput, Kernel, find_kernel, launch, simulate
from phaseflip.gemm.verify import verify

NAMES = ["hgemm_v1", "hgemm_v2", "hgemm_v3", "hgemm_v4", "hgemm_v7", "hgemm_v8", "hgemm_sm90"]


def operands(name):
    shape = find_kernel(name).shape_rule.nearest(1, 1, 1)
    M, N, K = shape
    arrays = (
        np.ones((M, K), np.float16),
        np.ones((N, K), np.float16),
        np.zeros((M, N), np.float16),
    )
    return find_kernel(name).build(*shape), arrays


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"schedule": None}, "schedule is text such as 'in-order', not None"),
        ({"checks": ["races"]}, "checks is text such as 'races,protocol', not ['races']"),
        ({"profile": 3}, "profile is text such as 'ptx', not 3"),
    ],
)
def test_arguments_that_are_no_text_were_an_attribute_error(arguments, sentence):
    func, arrays = operands("hgemm_v1")
    kernel = find_kernel("hgemm_v1")
    for call in (
        lambda: simulate(func, arrays, **arguments),
        lambda: verify(kernel, 128, 128, 64, **arguments),
    ):
        with pytest.raises(BadInput) as error:
            call()
        assert str(error.value) == sentence
    with pytest.raises(BadInput, match="^inputs is text such as 'normal', not None$"):
        verify(kernel, 128, 128, 64, inputs=None)


def test_a_name_or_a_function_in_place_of_a_kernel():
    sentence = (
        r"^verify takes a phaseflip.Kernel, as find_kernel\('hgemm_v1'\) gives one, not 'hgemm_v1'$"
    )
    with pytest.raises(BadInput, match=sentence):
        verify("hgemm_v1", 128, 128, 64)
    with pytest.raises(BadInput, match=r"gives one, not "):
        verify(operands("hgemm_v1")[0], 128, 128, 64)


def test_a_kernel_in_place_of_its_function():
    sentence = (
        r"^a kernel is a TVM PrimFunc \(T.prim_func\), not Kernel; its build\(M, N, K\) gives one$"
    )
    for call in (simulate, launch):
        with pytest.raises(BadInput, match=sentence):
            call(find_kernel("hgemm_v1"), operands("hgemm_v1")[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_read_only_output_was_refused_after_the_run_and_without_its_name(name, monkeypatch):
    func, (A, B, D) = operands(name)
    D.flags.writeable = False
    monkeypatch.setattr(phaseflip.run.simulator, "simulate", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(BadInput) as error:
        launch(func, A, B, D)
    assert str(error.value) == (
        "the kernel writes to D, which is read-only here; pass a writable array"
    )


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_read_only_input_is_taken_and_a_read_only_output_that_would_not_change_is_not(name):
    func, (A, B, D) = operands(name)
    A.flags.writeable = B.flags.writeable = False
    launch(func, A, B, D)
    assert (D == A.shape[1]).all()
    D.flags.writeable = False
    with pytest.raises(BadInput, match="the kernel writes to D, which is read-only"):
        launch(func, A, B, D)
    writable = torch.zeros(D.shape, dtype=torch.float16)
    launch(func, A, B, writable)
    assert (writable == A.shape[1]).all()


@pytest.mark.parametrize("arrays", [None, 3])
def test_arrays_that_are_no_sequence_were_a_type_error(arrays):
    sentence = rf"^the arrays are given as a tuple \(A, B, D\), not {arrays}$"
    with pytest.raises(BadInput, match=sentence):
        simulate(operands("hgemm_v1")[0], arrays)
    func, given = operands("hgemm_v1")
    assert simulate(func, iter(given)).findings == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"factory": 3}, "the factory of Kernel x is a function, not 3"),
        ({"reference": "A @ B"}, "the reference of Kernel x is a function, not 'A @ B'"),
        ({"name": 3}, "a Kernel's name is text such as 'hgemm_v1', not 3"),
        ({"name": ""}, "a Kernel's name is text such as 'hgemm_v1', not ''"),
        ({"shape_rule": (128, 128, 64)}, "is a ShapeRule or None, not (128, 128, 64)"),
        ({"tolerance": 1e-2}, "the tolerance of Kernel x is a Tolerance, not 0.01"),
    ],
)
def test_a_kernel_took_any_values(settings, sentence):
    with pytest.raises(BadInput) as error:
        Kernel(**({"name": "x", "factory": lambda M, N, K: None} | settings))
    assert sentence in str(error.value)


def test_a_factory_has_a_smallest_shape():
    by_path = find_kernel("kernels/hgemm_v2.py:hgemm_v2")
    assert by_path.shape_rule is None and by_path.smallest_shape == (128, 128, 64)
    assert find_kernel("hgemm_v8").smallest_shape == (256, 256, 64)


@pytest.mark.parametrize("seed", [None, 1.5, "x", -1])
def test_seeds_are_checked(seed):
    with pytest.raises(BadInput, match="seed"):
        verify(find_kernel("hgemm_v1"), 128, 128, 64, seed=seed)
