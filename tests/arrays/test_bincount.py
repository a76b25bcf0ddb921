"""Hazard: counts of arrays that are on a device. What they read back, and when; nothing else is looked at."""

import numpy as np
import pytest
import upsweep
from devices import DLPackArray, FakeCupyArray, Interface
from helpers import same_bits
from upsweep._backends.cuda import library

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def on(value, device=0):
    return FakeCupyArray(value, device) if isinstance(value, np.ndarray) else value


def keys_of(shape, n_bins=20, dtype="int64", seed=0):
    limit = 2 if dtype == "bool" else n_bins
    return np.random.default_rng(seed).integers(0, limit, shape).astype(dtype)


def normal(shape, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 9
    return (x + 1j * rng.standard_normal(shape)).astype(dtype) if np.dtype(dtype).kind == "c" else x.astype(dtype)


def check(*arrays, **keywords):
    """The call on arrays of (what stands for) cupy beside that on numpy's, and again into `out`."""
    result, expected = upsweep.bincount(*map(on, arrays), **keywords), upsweep.bincount(*arrays, **keywords)
    if keywords.get("return_invalid"):
        assert result[1].host.shape == () and result[1].host == expected[1]
        result, expected = result[0], expected[0]
    assert isinstance(result, FakeCupyArray) and result.dtype == expected.dtype and result.shape == expected.shape
    np.testing.assert_allclose(result.host, expected, rtol=1e-6, atol=1e-6)
    first = np.full_like(result.host, 3)
    again = upsweep.bincount(*map(on, arrays), out=(target := on(first)), **keywords)
    assert (again[0] if isinstance(again, tuple) else again) is target
    assert same_bits(first, result.host)
    upsweep.bincount(*map(on, arrays), out=target, accumulate=True, **keywords)
    np.testing.assert_allclose(first, 2 * expected, rtol=1e-6, atol=1e-6)
    return result


@pytest.mark.parametrize("dtype", INTEGERS)
def test_keys_of_every_dtype(dtype, fake_cupy):
    x = keys_of(200, dtype=dtype)
    for keys in (x, x[::3], x[::-1], x[:1], x[:0], np.broadcast_to(x[:1], 50)):
        check(keys)
        check(keys, minlength=30)
        check(keys, length=25)
        check(keys, length=5, invalid="drop", return_invalid=True)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64",
                                   "complex128"])  # fmt: skip
def test_weights_of_every_dtype(dtype, fake_cupy):
    x = keys_of(200)
    for w in (normal(200, dtype), normal((200, 3), dtype), normal((3, 200), dtype).T, normal((200, 0), dtype)):
        check(x, w)
        check(x, w, length=5, invalid="drop", return_invalid=True)
        check(x[:0], w[:0], minlength=3)
        check(x[:0], w[:0], minlength=3, dtype=np.complex64)


def test_dtypes_of_results(fake_cupy):
    x, w, whole = keys_of(200), normal(200), normal(200, np.int16)
    for dtype in ("int32", "uint8", "uint64", "float16", "float32", "float64", "complex64"):
        if dtype != "uint8":  # what is added to it would not fit
            check(x, dtype=dtype)
        check(x, whole, dtype=dtype) if dtype[0] != "u" else None
    for dtype in ("float16", "float32", "complex64", "complex128"):
        result = upsweep.bincount(on(x), on(w), dtype=dtype)
        np.testing.assert_allclose(result.host, upsweep.bincount(x, w, dtype=dtype), rtol=1e-3)
        assert result.dtype == dtype
    assert same_bits(upsweep.bincount(on(x), on(w), dtype=np.int32).host, upsweep.bincount(x, w, dtype=np.int32))
    assert same_bits(
        upsweep.bincount(on(x), on(whole), dtype=np.uint64).host, upsweep.bincount(x, whole, dtype=np.uint64)
    )


def test_axes(fake_cupy):
    x = keys_of((3, 40, 2), 7)
    for axis in (0, 1, 2, -1):
        check(x, axis=axis)
        check(x, normal((3, 40, 2)), axis=axis)
        check(x, normal((3, 40, 2, 4), np.complex64), axis=axis, length=4, invalid="drop")
        check(x.T, axis=axis, minlength=9)
    check(x[:0], axis=1, length=3)
    check(x[:, :0], axis=1, length=3)


def test_what_is_read_back(fake_cupy, fake_cuda):
    x, w = on(keys_of(200)), on(normal(200))
    upsweep.bincount(x, w, length=20, invalid="drop", return_invalid=True)
    upsweep.bincount(x, out=on(np.zeros(20, np.int64)), invalid="drop")
    assert fake_cuda.read_back == 0 and fake_cuda.ranges == 0
    upsweep.bincount(x, w)
    assert (fake_cuda.read_back, fake_cuda.ranges) == (1, 1)
    upsweep.bincount(x, w, length=20)
    assert (fake_cuda.read_back, fake_cuda.ranges) == (2, 1)
    upsweep.bincount(x, invalid="drop")
    assert (fake_cuda.read_back, fake_cuda.ranges) == (3, 2)


def test_the_callers_stream_device_and_wish(fake_cupy, fake_cuda):
    upsweep.bincount(on(keys_of(20), 3), on(normal(20), 3), deterministic=True, length=20, invalid="drop")
    upsweep.bincount(on(keys_of(20), 3), length=20, invalid="drop")
    launches = [(p.device, p.stream, bool(p.deterministic)) for p in fake_cuda.counts]
    assert launches == [(3, 77, True), (3, 77, False)] and not fake_cuda.waited


def test_errors_leave_out_untouched(fake_cupy):
    x = np.array([[1, 2, 3], [4, -5, 9]])
    out = np.full((2, 6), 7)
    cases = [
        (ValueError, r"x: element \(1, 1\) is -5, keys must not be negative", {"axis": 1}),
        (ValueError, r"x: element \(1, 1\) is -5, keys must not be negative", {"axis": 1, "out": on(out)}),
        (
            ValueError,
            r"x: element \(1, 1\) is -5, keys must not be negative",
            {"axis": 1, "length": 6, "out": on(out), "accumulate": True},
        ),
        (ValueError, r"x: element \(1, 1\) is 9, outside the 6 bins", {"x": x[:, ::2], "axis": 1, "length": 6}),
        (ValueError, "out: expected shape", {"axis": 1, "out": on(out), "length": 5}),
        (TypeError, "out: expected dtype", {"axis": 1, "out": on(out.astype(np.int32))}),
        (ValueError, "out: overlaps x", {"axis": 1, "out": on(x)}),
        (TypeError, r"out: expected a cupy\.ndarray", {"axis": 1, "out": out}),
        (TypeError, "weights: is an array in the host's memory", {"axis": 1, "weights": np.ones((2, 3))}),
        (ValueError, "weights: is on CUDA device 1", {"axis": 1, "weights": on(np.ones((2, 3)), 1)}),
        (ValueError, "device: goes with numpy arrays only", {"axis": 1, "device": "cuda"}),
        (ValueError, r"x: expected 1-D keys, got shape \(2, 3\); use", {}),
        (TypeError, "x: expected keys of integers or bool, got dtype float64", {"x": x / 2, "axis": 1}),
    ]
    for error, match, keywords in cases:
        arguments = {"x": x, **keywords}
        with pytest.raises(error, match=match):
            upsweep.bincount(on(arguments.pop("x")), **arguments)
    assert (out == 7).all()
    with pytest.raises(TypeError, match=r"out: expected a numpy\.ndarray"):
        upsweep.bincount(x[0], out=on(out[0]))


def test_more_bins_than_the_device_has_memory_for(fake_cupy, fake_cuda):
    cases = [("x: the largest key", {"x": np.array([1, 2**40])}), ("length: it asks", {"length": 1 << 40}),
             ("minlength: it asks", {"minlength": 1 << 40})]  # fmt: skip
    for match, keywords in cases:
        arguments = {"x": np.array([1, 2]), **keywords}
        with pytest.raises(MemoryError, match=match):
            upsweep.bincount(on(arguments.pop("x")), **arguments)
    assert not fake_cuda.counts


def test_arrays_that_have_only_the_interface(fake_cuda):
    x, w = keys_of(50), normal(50)
    out = np.zeros(20)
    target = Interface(out)
    for invalid in ("raise", "drop"):
        assert upsweep.bincount(Interface(x), Interface(w), out=target, invalid=invalid) is target
        assert same_bits(out, upsweep.bincount(x, w, length=20))
    short = np.zeros(20, np.float32)
    upsweep.bincount(Interface(x), Interface(w), out=Interface(short), dtype=np.float32)
    np.testing.assert_allclose(short, out, rtol=1e-6)
    with pytest.raises(TypeError, match=r"out: has to be given.*Interface"):
        upsweep.bincount(Interface(x))
    with pytest.raises(TypeError, match="out: has to be given"):
        upsweep.bincount(Interface(x), out=Interface(np.zeros(20, int)), invalid="drop", return_invalid=True)


def test_numpy_arrays_on_a_device(fake_cuda):
    x, w = keys_of((3, 40), 7), normal((3, 40))
    for keywords in ({"axis": 1}, {"axis": 0, "length": 9}, {"axis": 1, "length": 4, "invalid": "drop"}):
        for weights in (None, w, normal((3, 40, 2), np.complex64), w.astype(np.float32), w.astype(np.int8)):
            result = upsweep.bincount(x, weights, device="cuda:2", **keywords)
            expected = upsweep.bincount(x, weights, **keywords)
            assert (
                isinstance(result, np.ndarray)
                and result.dtype == expected.dtype
                and result.flags == expected.flags
            )
            np.testing.assert_allclose(result, expected, rtol=1e-12)
            out = np.ones_like(result)
            upsweep.bincount(x, weights, device="cuda:2", out=out, accumulate=True, **keywords)
            np.testing.assert_allclose(out, expected + 1, rtol=1e-12)
    assert {p.device for p in fake_cuda.counts} == {2}
    counts, n = upsweep.bincount(x[0], length=3, invalid="drop", return_invalid=True, device="cuda")
    assert (counts == np.bincount(x[0])[:3]).all() and n == (x[0] > 2).sum() and isinstance(n, np.int64)
    assert (upsweep.bincount(x.astype(">i4")[0], device="cuda") == np.bincount(x[0])).all()
    assert upsweep.bincount(x[0, :0], w[0, :0], 3, device="cuda").tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="element 2 is -1"):
        upsweep.bincount([3, 4, -1], device="cuda")
    with pytest.raises(ValueError, match="element 1 is 4, outside the 4 bins"):
        upsweep.bincount([3, 4, 1], length=4, device="cuda")
    wide = upsweep.bincount([1, 1], np.array([2**63, 5], np.uint64), dtype=np.uint64, device="cuda")
    assert wide.dtype == np.uint64 and wide.tolist() == [0, 2**63 + 5]


def test_arrays_with_dlpack_alone():
    x, w = keys_of((3, 40), 7), normal((3, 40), np.float32)
    result = upsweep.bincount(DLPackArray(x), DLPackArray(w), axis=1)
    assert isinstance(result, DLPackArray) and same_bits(result.array, upsweep.bincount(x, w, axis=1))
    counts, n = upsweep.bincount(DLPackArray(x[0]), length=3, invalid="drop", return_invalid=True)
    assert isinstance(counts, DLPackArray) and n == (x[0] > 2).sum()
    with pytest.raises(TypeError, match="out: arrays that come through DLPack"):
        upsweep.bincount(DLPackArray(x[0]), out=np.zeros(7, int))
    with pytest.raises(TypeError, match="weights: expected a"):
        upsweep.bincount(DLPackArray(x[0]), w[0])


def test_the_device_is_checked_before_anything_is_sent(monkeypatch):
    def refuse(device):
        raise RuntimeError(f"no device {device}")

    monkeypatch.setattr(library, "check_device", refuse)
    with pytest.raises(RuntimeError, match="no device 5"):
        upsweep.bincount([1, 2], device="cuda:5")
