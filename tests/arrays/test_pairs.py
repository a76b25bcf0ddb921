"""Reductions over arrays of other libraries: which they are, where they lie, what comes back; over stand-ins."""

import numpy as np
import pytest
from devices import DLPackArray, FakeCupyArray, Interface
from upsweep import BlockRanges, Genred
from upsweep._backends.cpu import pairs as cpu

M, N = 7, 5
X, Y = np.random.default_rng(0).normal(size=(M, 3)), np.random.default_rng(1).normal(size=(N, 3))
SQUARES = ((X[:, None] - Y) ** 2).sum(-1)
ALIASES = ["x = Vi(3)", "y = Vj(3)"]


class _Memory:
    def __init__(self, array):
        self.__array_interface__ = {
            "version": 3, "data": (array.pointer, False), "typestr": np.dtype(array.dtype).str,
            "shape": array.shape, "strides": array.strides,
        }  # fmt: skip


@pytest.fixture
def fake_pairs(monkeypatch, fake_cuda):
    """The device's engine on the host's memory, through the CPU's."""
    from upsweep._backends.cuda import pairs_launch

    seen = []

    def run(reduction, arrays, outs, n_i, n_j, batch, ranges, *, device, stream, allocate):
        seen.append({"device": device, "stream": stream, "ranges": ranges})
        operands = [np.asarray(_Memory(array)) for array in arrays]
        for out, result in zip(outs, cpu.run(reduction, operands, n_i, n_j, batch, ranges)):
            np.asarray(_Memory(out))[...] = result

    monkeypatch.setattr(pairs_launch, "run", run)
    return seen


def on_cupy(array):
    return FakeCupyArray(np.array(array), 1)


def test_arrays_of_a_device_are_read_there(fake_pairs, fake_cupy):
    result = Genred("SqDist(x, y)", ALIASES, axis=1)(on_cupy(X), on_cupy(Y))
    assert isinstance(result, FakeCupyArray) and result.device.id == 1
    np.testing.assert_allclose(result.host[:, 0], SQUARES.sum(1))
    assert fake_pairs[0]["device"] == 1 and fake_pairs[0]["stream"] == fake_cupy.stream


def test_values_and_places(fake_pairs, fake_cupy):
    values, places = Genred("SqDist(x, y)", ALIASES, "Min_ArgMin", 0)(on_cupy(X), on_cupy(Y))
    np.testing.assert_allclose(values.host[:, 0], SQUARES.min(0))
    np.testing.assert_array_equal(places.host[:, 0], SQUARES.argmin(0))
    assert places.dtype == np.int64


def test_ranges_are_followed(fake_pairs, fake_cupy):
    ranges = BlockRanges.causal(M, N)
    result = Genred("SqDist(x, y)", ALIASES, axis=1)(on_cupy(X), on_cupy(Y), ranges=ranges)
    np.testing.assert_allclose(result.host[:, 0], (SQUARES * ranges.to_mask()).sum(1))
    assert fake_pairs[0]["ranges"] is ranges.intervals("i", M, N)


def test_arrays_of_two_places_are_refused(fake_pairs, fake_cupy):
    reduce = Genred("SqDist(x, y)", ALIASES, axis=1)
    with pytest.raises(TypeError, match="y: is an array in the host's memory"):
        reduce(on_cupy(X), Y)
    with pytest.raises(ValueError, match="y: is on CUDA device 0, x on CUDA device 1"):
        reduce(on_cupy(X), FakeCupyArray(Y, 0))
    with pytest.raises(ValueError, match="backend: 'CPU' is not where the arrays are"):
        reduce(on_cupy(X), on_cupy(Y), backend="CPU")
    with pytest.raises(TypeError, match="cotangent: is an array in the host's memory"):
        reduce.value_and_grad(on_cupy(X), on_cupy(Y), cotangent=np.ones((M, 1)))
    with pytest.raises(ValueError, match=r"cotangent: expected the result's shape, \(7, 1\), got \(7,\)"):
        reduce.value_and_grad(on_cupy(X), on_cupy(Y), cotangent=on_cupy(np.ones(M)))
    with pytest.raises(TypeError, match="explicit gradients are of arrays of numpy, torch and cupy, not of a"):
        reduce.value_and_grad(Interface(X), Interface(Y))


B, P = np.random.default_rng(2).normal(size=(N, 2)), np.array([0.7])
WITH_GRADIENTS = {
    "Sum": ("Exp(-p * SqDist(x, y)) * b", {}),
    "LogSumExp": ("-p * SqDist(x, y)", {"formula2": "Square(b)"}),
    "SumSoftMaxWeight": ("-p * SqDist(x, y)", {"formula2": "b"}),
    "Min": ("p * SqDist(x, y) * b", {}),
    "Max_ArgMax": ("p * SqDist(x, y) * b", {}),
    "KMin": ("p * SqDist(x, y) * b", {"opt_arg": 3}),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_numpys_own(fake_pairs, fake_cupy, name, axis):
    """Of arrays of a device, of batches, of rows that no block has; nothing is read by the host."""
    formula, keywords = WITH_GRADIENTS[name]
    reduce = Genred(formula, [*ALIASES, "b = Vj(2)", "p = Pm(1)"], name, axis, **keywords)
    arrays = np.stack([X, X[::-1]]), Y, B, P
    ranges = BlockRanges(([[0, 2], [3, 6]], [2, 3], [[0, 2], [3, 4], [1, 5]]), (M, N))
    value, expected = reduce.value_and_grad(*arrays, ranges=ranges)
    values = value if isinstance(value, tuple) else (value,)
    cotangent = np.random.default_rng(3).normal(size=values[0].shape)
    _, expected = reduce.value_and_grad(*arrays, cotangent=cotangent, ranges=ranges)
    value_on_device, gradients = reduce.value_and_grad(
        *map(on_cupy, arrays), cotangent=on_cupy(cotangent), ranges=ranges
    )
    for computed, other in zip(
        value_on_device if isinstance(value_on_device, tuple) else (value_on_device,), values
    ):
        np.testing.assert_array_equal(computed.host, other)
    for computed, other, array in zip(gradients, expected, arrays):
        assert isinstance(computed, FakeCupyArray) and computed.device.id == 1 and computed.shape == array.shape
        np.testing.assert_allclose(computed.host, other, rtol=1e-12, atol=1e-12)


def test_gradients_of_some_arrays_without_a_cotangent(fake_pairs, fake_cupy):
    reduce = Genred("SqDist(x, y)", ALIASES, axis=1)
    _, (dy,) = reduce.value_and_grad(on_cupy(X), on_cupy(Y), wrt=[1])
    np.testing.assert_allclose(dy.host, 2 * (M * Y - X.sum(0)))
    _, (none,) = Genred("SqDist(x, x)", ALIASES, axis=1).value_and_grad(on_cupy(X), on_cupy(Y), wrt=[1])
    np.testing.assert_array_equal(none.host, 0 * Y)


def test_gradients_go_back_through_dlpack():
    reduce = Genred("SqDist(x, y)", ALIASES, "Min", axis=1)
    ones = DLPackArray(2 * np.ones((M, 1)))
    value, gradients = reduce.value_and_grad(DLPackArray(X), DLPackArray(Y), cotangent=ones)
    _, expected = reduce.value_and_grad(X, Y)
    np.testing.assert_allclose(value.array[:, 0], SQUARES.min(1))
    for computed, other in zip(gradients, expected):
        assert isinstance(computed, DLPackArray)
        np.testing.assert_allclose(computed.array, 2 * other)


def test_what_has_only_an_interface_has_no_memory_for_results(fake_pairs):
    with pytest.raises(TypeError, match="does not know how to allocate"):
        Genred("SqDist(x, y)", ALIASES, axis=1)(Interface(X), Interface(Y))


def test_results_go_back_through_dlpack():
    result = Genred("SqDist(x, y)", ALIASES, axis=1)(DLPackArray(X), DLPackArray(Y))
    assert isinstance(result, DLPackArray)
    np.testing.assert_allclose(result.array[:, 0], SQUARES.sum(1))


def test_numpys_arrays_are_sent_to_a_device_and_back(fake_pairs):
    reduce = Genred("SqDist(x, y)", ALIASES, axis=1)
    for backend, device_id, device in (("GPU", -1, 0), ("GPU_1D", 2, 2)):
        result = reduce(X, Y, backend=backend, device_id=device_id)
        np.testing.assert_allclose(result[:, 0], SQUARES.sum(1))
        assert fake_pairs.pop()["device"] == device
    assert reduce(X[:0], Y, backend="GPU").shape == (0, 1) and not fake_pairs
    np.testing.assert_allclose(reduce(X, Y, backend="CPU")[:, 0], SQUARES.sum(1))


def test_known_shapes_are_of_numpys_arrays_only(fake_pairs, fake_cupy):
    reduce = Genred("SqDist(x, y)", ALIASES, axis=1)
    for _ in range(2):
        assert isinstance(reduce(X, Y), np.ndarray)
    assert isinstance(reduce(on_cupy(X), on_cupy(Y)), FakeCupyArray)
    assert len(fake_pairs) == 1
