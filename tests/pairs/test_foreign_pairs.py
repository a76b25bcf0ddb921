"""Reductions over arrays of other libraries: which they are, where they lie, what comes back; over stand-ins."""

import numpy as np
import pytest
from devices import FakeCupyArray, Interface, LentArray
from upsweep import BlockRanges, Genred
from upsweep._cpu import pairs as cpu

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
    from upsweep._cuda import pairs

    seen = []

    def run(reduction, arrays, outs, n_i, n_j, batch, ranges, *, device, stream, allocate):
        seen.append({"device": device, "stream": stream, "ranges": ranges})
        given = [np.asarray(_Memory(array)) for array in arrays]
        for out, result in zip(outs, cpu.run(reduction, given, n_i, n_j, batch, ranges)):
            np.asarray(_Memory(out))[...] = result

    monkeypatch.setattr(pairs, "run", run)
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
    assert fake_pairs[0]["ranges"] is ranges.triple("i", M, N)


def test_arrays_of_two_places_are_refused(fake_pairs, fake_cupy):
    reduce = Genred("SqDist(x, y)", ALIASES, axis=1)
    with pytest.raises(TypeError, match="y: is an array in the host's memory"):
        reduce(on_cupy(X), Y)
    with pytest.raises(ValueError, match="y: is on CUDA device 0, x on CUDA device 1"):
        reduce(on_cupy(X), FakeCupyArray(Y, 0))
    with pytest.raises(ValueError, match="backend: 'CPU' is not where the arrays are"):
        reduce(on_cupy(X), on_cupy(Y), backend="CPU")
    with pytest.raises(NotImplementedError, match="explicit gradients are of numpy's arrays"):
        reduce.value_and_grad(on_cupy(X), on_cupy(Y))


def test_what_has_only_an_interface_has_no_memory_for_results(fake_pairs):
    with pytest.raises(TypeError, match="does not know how to allocate"):
        Genred("SqDist(x, y)", ALIASES, axis=1)(Interface(X), Interface(Y))


def test_what_is_lent_through_dlpack_goes_back():
    result = Genred("SqDist(x, y)", ALIASES, axis=1)(LentArray(X), LentArray(Y))
    assert isinstance(result, LentArray)
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
