"""bincount, histogram and histc on a device: values, streams, graphs, waiting; arrays of torch, cupy, numpy."""

import numpy as np
import pytest
import upsweep

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.cuda

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
FIXED = {"length": 300, "invalid": "drop"}


def keys_of(shape, n_bins=300, dtype=np.int64, seed=0):
    return np.random.default_rng(seed).integers(0, n_bins, shape).astype(dtype)


def on(array, device="cuda"):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


@pytest.mark.parametrize("n_bins", [2, 257, 6143, 65_536, 1_000_000])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_values_in_every_way_of_counting(dtype, n_bins):
    x = keys_of(300_000, n_bins, dtype)
    w = np.random.default_rng(1).standard_normal(len(x)).astype(np.float32)
    for keys, weights in ((x, w), (np.full_like(x, n_bins - 1), w)):
        counts = np.bincount(keys.astype(np.int64), minlength=n_bins)
        sums = np.bincount(keys.astype(np.int64), weights, n_bins)
        scale = np.bincount(keys.astype(np.int64), np.abs(weights), n_bins)
        for options in ({}, {"length": n_bins}, {"length": n_bins, "invalid": "drop"}):
            result = upsweep.bincount(on(keys), minlength=n_bins, **options)
            assert result.is_cuda and (result.cpu().numpy() == counts).all()
            for deterministic in (False, True):
                result = upsweep.bincount(on(keys), on(weights), n_bins, deterministic=deterministic, **options)
                assert result.dtype == torch.float32
                error = np.abs(result.cpu().numpy() - sums)
                assert (error <= 2.0**-24 * np.abs(sums) + 1e-13 * scale).all()


def test_a_graph_counts_again_and_again():
    x, w = on(keys_of(100_000)), torch.rand(100_000, device="cuda")
    total = torch.zeros(300, dtype=torch.int64, device="cuda")
    upsweep.bincount(x, w, **FIXED), upsweep.bincount(x, out=total, accumulate=True, invalid="drop")
    total.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums, n = upsweep.bincount(x, w, return_invalid=True, **FIXED)
        upsweep.bincount(x, out=total, accumulate=True, invalid="drop")
    expected = torch.zeros_like(total)
    for seed in range(3):
        x.copy_(on(keys_of(100_000, 310, seed=seed)))
        graph.replay()
        inside = x[x < 300]
        expected += torch.bincount(inside, minlength=300)
        assert torch.equal(total, expected) and n.item() == len(x) - len(inside)
        torch.testing.assert_close(sums, torch.bincount(inside, w[x < 300].double(), 300).float())


def test_work_goes_to_the_current_stream_and_nothing_waits():
    x, w = on(keys_of(100_000)), torch.zeros(100_000, device="cuda", requires_grad=True)
    upsweep.bincount(x, w, **FIXED).sum().backward()  # kernels load when first used
    torch.cuda.synchronize()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        with torch.no_grad():
            w.fill_(1)  # another stream would read the zeros that are there until now
        sums, n = upsweep.bincount(x, w, return_invalid=True, **FIXED)
        (gradient,) = torch.autograd.grad(sums.sum(), w)
        done.record()
        assert not done.query()
    torch.cuda.synchronize()
    assert sums.sum().item() == 100_000 and n.item() == 0 and (gradient == 1).all()


def test_the_largest_key_asks_for_more_than_the_device_has():
    with pytest.raises(MemoryError, match="x: the largest key asks for"):
        upsweep.bincount(torch.tensor([1, 2**40], device="cuda"))
    with pytest.raises(MemoryError, match="length: it asks for"):
        upsweep.bincount(torch.tensor([1], device="cuda"), length=2**40)


def test_numpy_arrays():
    x, w = keys_of((30, 1000), 50, np.uint16), np.random.default_rng(1).random((30, 1000))
    for keywords in ({"axis": 1}, {"axis": 0, "length": 40, "invalid": "drop"}):
        assert (upsweep.bincount(x, device="cuda", **keywords) == upsweep.bincount(x, **keywords)).all()
        result = upsweep.bincount(x, w, device="cuda", **keywords)
        np.testing.assert_allclose(result, upsweep.bincount(x, w, **keywords), rtol=1e-12)
    with pytest.raises(ValueError, match=r"element \(3, 7\) is -1"):
        bad = x.astype(int)
        bad[3, 7] = -1
        upsweep.bincount(bad, axis=1, device="cuda")
    for weights in (None, w, w.astype(np.complex64), x):
        result, expected = (upsweep.histogram(w, 40, weights=weights, device=device) for device in ("cuda", "cpu"))
        for a, b in zip(result, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert (upsweep.histc(w, 40, device="cuda") == upsweep.histc(w, 40)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint64"])
def test_histograms_have_numpys_counts(dtype):
    x = (np.random.default_rng(0).normal(0, 25, 300_000)).astype(np.float64)
    x = (np.abs(x) if dtype[0] == "u" else x).astype(dtype)
    many = 500 if dtype == "float16" else 50_000  # in float16 the edges of more would not increase
    for bins, bin_range in ((100, None), (7, (0, 50)), (many, (-3.0, 11.5)), ([0, 1, 1.5, 40], None)):
        result, edges = upsweep.histogram(on(x), bins, bin_range)
        expected, ends = np.histogram(x, bins, bin_range)
        assert (result.cpu().numpy() == expected).all() and (edges.cpu().numpy() == ends).all()
        assert edges.cpu().numpy().dtype == ends.dtype
    if dtype.startswith("float"):
        assert (upsweep.histc(on(x), 100).cpu().numpy() == upsweep.histc(x, 100)).all()


def test_counts_in_floats_are_rounded_once():
    # Up to 2**24 elements are added in float32, more in int64; a view has other strides.
    for n in (2**24, 2**24 + 5):
        out = torch.full((6,), 7.0, device="cuda")
        upsweep.histc(torch.ones(n, device="cuda"), 3, 0, 3, out=out[::2])
        assert out.tolist() == [0, 7, np.float32(n), 7, 0, 7]
    x = torch.rand(2**20, device="cuda")
    for n_bins in (100, 10_000, 100_000):
        for y in (x, x.double()):
            result, expected = (upsweep.histc(each, n_bins, 0.1, 0.9) for each in (y, y.cpu().numpy()))
            assert (result.cpu().numpy() == expected).all()


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    x, w = keys_of(10_000), np.random.default_rng(1).random(10_000)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        keys, weights = cupy.asarray(x), cupy.asarray(w)
        counts = upsweep.bincount(keys)
        sums, n = upsweep.bincount(keys, weights, length=200, invalid="drop", return_invalid=True)
        short = upsweep.bincount(keys, weights, dtype=np.float16)
        hist, edges = upsweep.histogram(weights, 20, density=True)
        out = cupy.empty(300, np.int64)
        assert upsweep.bincount(keys, out=out) is out
        histc = upsweep.histc(weights, 20, out=cupy.zeros(20))
    stream.synchronize()
    assert isinstance(counts, cupy.ndarray) and (cupy.asnumpy(counts) == np.bincount(x)).all()
    np.testing.assert_allclose(cupy.asnumpy(sums), np.bincount(x, w)[:200], rtol=1e-12)
    assert int(n) == (x >= 200).sum() and (cupy.asnumpy(out) == np.bincount(x)).all()
    assert short.dtype == np.float16
    expected, ends = np.histogram(w, 20, density=True)
    np.testing.assert_allclose(cupy.asnumpy(hist), expected, rtol=1e-12)
    assert (cupy.asnumpy(edges) == ends).all() and histc.sum() == 10_000


@needs_two
def test_two_devices():
    x, w = on(keys_of(1000), "cuda:1"), torch.rand(1000, device="cuda:1")
    torch.cuda.set_device(0)
    for result in (upsweep.bincount(x, w), upsweep.histogram(w)[0], upsweep.histogram(w)[1], upsweep.histc(w)):
        assert result.device == torch.device("cuda:1")
    assert torch.equal(upsweep.bincount(x).cpu(), torch.bincount(x.cpu())) and torch.cuda.current_device() == 0
    for call in (
        lambda: upsweep.bincount(x, w.to("cuda:0")),
        lambda: upsweep.histogram(w, weights=w.to("cuda:0")),
    ):
        with pytest.raises(ValueError, match="weights: is on cuda:0"):
            call()
