"""Hazard: histograms of arrays that are on a device. Their bins are found on the host, their elements stay."""

import numpy as np
import pytest
import upsweep
from devices import DLPackArray, FakeCupyArray, Interface
from helpers import same_bits

pytestmark = pytest.mark.filterwarnings("ignore:Converting input from bool")  # as numpy's

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
          "float64"]  # fmt: skip


def on(value, device=0):
    return FakeCupyArray(value, device) if isinstance(value, np.ndarray) else value


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """What density needs of cupy."""

    def divide(self, other):
        return FakeCupyArray(self.host / getattr(other, "host", other), self.device.id)

    monkeypatch.setattr(FakeCupyArray, "__truediv__", divide, raising=False)
    monkeypatch.setattr(FakeCupyArray, "sum", lambda self: self.host.sum(), raising=False)


def elements(shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).normal(0, 20, shape)
    return (np.abs(x) if dtype[0] in "ub" else x).astype(dtype)


def check(x, *arguments, weights=None, **keywords):
    """The call on arrays of (what stands for) cupy, beside that on numpy's."""
    result = upsweep.histogram(on(x), *map(on, arguments), weights=on(weights), **keywords)
    expected = upsweep.histogram(x, *arguments, weights=weights, **keywords)
    for a, b in zip(result, expected, strict=True):
        assert isinstance(a, FakeCupyArray) and a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_allclose(result[0].host, expected[0], rtol=1e-6)
    assert same_bits(np.ascontiguousarray(result[1].host), np.ascontiguousarray(expected[1]))
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_dtype(dtype, fake_cupy):
    x = elements((12, 10), dtype)  # int8 holds the counts
    for view in (x, x[::2, ::-3], x.T, x[0], x[0, 0, ...], x[:0], np.broadcast_to(x[0, 0], (3, 3))):
        check(view, 7)
        check(view, 7, (-3, 40.5))
        check(view, [0.0, 1.0, 30.0])
        check(view, np.array([0, 1, 30]), density=view.size > 1 and (np.asarray(view) < 30).any())
        if dtype != "bool":
            for keywords in ({}, {"min": -2, "max": 9}):
                result = upsweep.histc(on(view), 5, **keywords)
                expected = upsweep.histc(view, 5, **keywords)
                assert isinstance(result, FakeCupyArray) and same_bits(result.host, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
def test_weights_of_every_dtype(dtype, fake_cupy):
    x, w = elements((30, 20)), elements((30, 20), dtype, 1)
    check(x, 7, weights=w)
    check(x.T, 7, (-10, 5), weights=w.T)
    check(x[:, ::2], 7, weights=np.asfortranarray(w[:, :10]))
    check(x[:, 0], [0, 1, 2], weights=w[:, 5])
    check(x[:0], 7, weights=w[:0])


def test_edges_that_are_on_the_device_stay_the_users(fake_cupy, fake_cuda):
    edges = on(np.array([0.0, 1.0, 5.0]))
    counts, same_edges = upsweep.histogram(on(elements(50)), edges)
    assert same_edges is edges and fake_cuda.read_back == 1
    assert (counts.host == np.histogram(elements(50), [0, 1, 5])[0]).all()


def test_what_is_read_back(fake_cupy, fake_cuda):
    x = on(elements(50, "float32"), 2)
    upsweep.histogram(x, 5, (0, 1)), upsweep.histogram(x, [0, 1, 2]), upsweep.histc(x, 5, 0, 1)
    assert fake_cuda.read_back == 0 and fake_cuda.ranges == 0
    upsweep.histogram(x), upsweep.histc(x)
    assert fake_cuda.read_back == 2 and fake_cuda.ranges == 2
    assert {(p.count.device, p.count.stream) for p in fake_cuda.histograms} == {(2, 77)}
    short = on(np.zeros(300, np.uint8))
    with pytest.raises(OverflowError, match="cannot hold the count 300 of bin 0"):
        upsweep.histc(short, 2, 0, 1)


def test_bad_input(fake_cupy, fake_cuda):
    x = elements((4, 5))
    bad = x.copy()
    bad[1, 2] = np.nan
    cases = [
        (ValueError, r"x: autodetected range of \[nan, nan\] is not finite: element \(1, 2\) is nan",
         lambda: upsweep.histogram(on(bad))),
        (ValueError, r"x: autodetected range of \[.*inf\] is not finite: element 1 is inf",
         lambda: upsweep.histc(on(np.array([1.0, np.inf])))),
        (TypeError, "bins: the rule 'fd' needs elements in the host's memory",
         lambda: upsweep.histogram(on(x), "fd")),
        (TypeError, "x: expected real numbers", lambda: upsweep.histogram(on(x + 1j))),
        (TypeError, "x: expected integers or real", lambda: upsweep.histc(on(x > 0))),
        (TypeError, "weights: is an array in the host's memory", lambda: upsweep.histogram(on(x), weights=x)),
        (TypeError, "bins: is an array in the host's memory|x: is an array in the host's",
         lambda: upsweep.histogram(x, on(x[0]))),
        (ValueError, "weights: is on CUDA device 1", lambda: upsweep.histogram(on(x), weights=on(x, 1))),
        (ValueError, "weights: expected x's shape",
         lambda: upsweep.histogram(on(x), weights=on(x[0]))),
        (ValueError, "device: goes with numpy arrays only", lambda: upsweep.histogram(on(x), device="cuda")),
        (ValueError, "device: goes with numpy arrays only", lambda: upsweep.histc(on(x), device="cuda")),
        (TypeError, "x: upsweep does not know how to allocate", lambda: upsweep.histogram(Interface(x))),
        (TypeError, "out: has to be given", lambda: upsweep.histc(Interface(x))),
        (TypeError, r"out: expected a cupy\.ndarray", lambda: upsweep.histc(on(x), 5, out=np.zeros(5))),
        (ValueError, "out: expected shape", lambda: upsweep.histc(on(x), 5, out=on(np.zeros(6)))),
    ]  # fmt: skip
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()
    assert not fake_cuda.histograms


def test_results_of_histc_go_to_out(fake_cupy, fake_cuda):
    for dtype in ("float32", "int16", "float16"):
        x, out = elements(50, dtype), np.ones(10, dtype)[::2]
        target = on(out)
        assert upsweep.histc(on(x), 5, out=target) is target
        assert (out == upsweep.histc(x, 5)).all()
        out[...] = 1
        only = Interface(out)
        assert upsweep.histc(Interface(x), 5, out=only) is only
        assert (out == upsweep.histc(x, 5)).all()


def test_numpy_arrays_on_a_device(fake_cuda):
    x, w = elements((30, 20), "float32"), elements((20, 30), "float32", 1).T
    for weights in (None, w, w.astype(np.int16), w.astype(np.complex64), w > 0, w.astype(">f8")):
        for arguments in ((7,), (7, (0, 1)), ([0, 1, 2],), ("fd",) if weights is None else (3,)):
            result = upsweep.histogram(x, *arguments, weights=weights, device="cuda:1")
            expected = upsweep.histogram(x, *arguments, weights=weights)
            for a, b in zip(result, expected, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5)
    assert same_bits(upsweep.histc(x, 9, device="cuda"), upsweep.histc(x, 9))
    assert upsweep.histogram(x.astype(">f4"), 5, device="cuda")[0].sum() == x.size
    assert upsweep.histogram([], 5, device="cuda")[0].tolist() == [0] * 5
    assert {p.count.device for p in fake_cuda.histograms} == {0, 1}


def test_arrays_with_dlpack_alone():
    x, w = elements((30, 20), "float32"), elements((30, 20), "float32", 1)
    for bins in (5, [0, 1, 2], DLPackArray(np.array([0.0, 1.0, 2.0])), "fd"):
        weighted = {} if bins == "fd" else {"weights": w}
        result = upsweep.histogram(
            DLPackArray(x), bins, **{key: DLPackArray(value) for key, value in weighted.items()}
        )
        expected = upsweep.histogram(x, getattr(bins, "array", bins), **weighted)
        for a, b in zip(result, expected, strict=True):
            assert isinstance(a, DLPackArray) and same_bits(a.array, b)
    assert same_bits(upsweep.histc(DLPackArray(x), 5).array, upsweep.histc(x, 5))
    with pytest.raises(TypeError, match="out: arrays that come through DLPack"):
        upsweep.histc(DLPackArray(x), 5, out=np.zeros(5))
