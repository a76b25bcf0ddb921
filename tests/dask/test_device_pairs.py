"""Hazard: partial reductions of pairs that are copied from the device to the host, with stand-ins for the device.

The C++ compiler compiles the kernels, one for each formula.
"""

import host_device
import numpy as np
import pytest
from device_blocks import computed
from helpers import random
from upsweep import Genred, Pm, Vi, Vj

pytest.importorskip("llvmlite")
pytest.importorskip("dask.array")
pytestmark = host_device.needs_compiler

INPUTS = ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)"]
GAUSSIAN = "Exp(-SqDist(x, y)) * b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(autouse=True)
def device(monkeypatch, fake_cupy, folder):
    return host_device.install(monkeypatch, folder)


@pytest.fixture
def points():
    return random((30, 3)), random((40, 3), seed=1), random((40, 2), seed=2)


@pytest.fixture
def lazy(points, cupy_blocks):
    return [cupy_blocks(array, (rows, array.shape[1])) for array, rows in zip(points, (10, 15, 15))]


def same(result, expected):
    pairs = (result, expected) if isinstance(expected, tuple) else ((result,), (expected,))
    for one, exact in zip(*pairs, strict=True):
        np.testing.assert_allclose(computed(one), exact, rtol=1e-6)


@pytest.mark.parametrize("operation", ["Sum", "LogSumExp", "Max", "ArgMin", "Min_ArgMin", "KMin_ArgKMin"])
def test_reductions(operation, points, lazy, crossings):
    k = {"opt_arg": 3} if "KMin" in operation else {}
    for axis in (0, 1):
        formula = GAUSSIAN if operation == "Sum" else "SqDist(x, y)"
        reduce = Genred(formula, INPUTS, reduction_op=operation, axis=axis, **k)
        same(reduce(*lazy), reduce(*points))
        same(reduce(*lazy, method="tree"), reduce(*points))
    # Each merge of the K least reads a flag: for each axis and method, for either result.
    assert crossings.read <= 2 * 2 * 2 * 3 * 2 and not crossings.sent


def test_weights_and_parameters(points, lazy, cupy_blocks):
    (x, y, b), (lazy_x, lazy_y, lazy_b) = points, lazy
    scale = np.array([0.5])
    lazy_exponent = -Vi(lazy_x).sqdist(Vj(lazy_y)) * Pm(cupy_blocks(scale, 1))
    exponent = -Vi(x).sqdist(Vj(y)) * Pm(scale)
    same(lazy_exponent.sumsoftmaxweight(Vj(lazy_b), axis=1), exponent.sumsoftmaxweight(Vj(b), axis=1))
    same(
        lazy_exponent.logsumexp(axis=1, weight=Vj(lazy_b * 0 + 1)),
        exponent.logsumexp(axis=1, weight=Vj(b * 0 + 1)),
    )
    same((0.25 * lazy_exponent).exp() @ lazy_b, (0.25 * exponent).exp() @ b)


def test_gradients(points, lazy, cupy_blocks):
    gaussian, seed = Genred(GAUSSIAN, INPUTS, axis=1), random((30, 2), seed=3)
    for lazy_seed, host_seed in ((None, None), (cupy_blocks(seed, (10, 2)), seed)):
        value, gradients = gaussian.value_and_grad(*lazy, cotangent=lazy_seed)
        expected, others = gaussian.value_and_grad(*points, cotangent=host_seed)
        same((value, *gradients), (expected, *others))


def test_arrays_of_the_host_are_refused(points, lazy):
    """The device could not read their addresses."""
    gaussian = Genred(GAUSSIAN, INPUTS, axis=1)
    with pytest.raises(TypeError, match=r"y: expected blocks of .*, as x has, got numpy\.ndarray"):
        gaussian(lazy[0], points[1], lazy[2])
    with pytest.raises(TypeError, match=r"cotangent: expected blocks of .*, as x has, got numpy\.ndarray"):
        gaussian.value_and_grad(*lazy, cotangent=np.ones((30, 2)))
