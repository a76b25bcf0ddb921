"""dask arrays of cupy's blocks: everything happens where they are."""

import pickle

import numpy as np
import pytest
import upsweep
from block_updates import UPDATES
from helpers import SCANS, flat, operands, random

cupy = pytest.importorskip("cupy", reason="cupy is not installed")
dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array")

pytestmark = pytest.mark.cuda

METHODS = ["sequential", "tree"]
LENGTH, CHUNKS = 5000, (0, 1200, 1, 3000, 799, 0)  # steps enough for time to be cut within a block, too few, none


def sent(array, chunks):
    """Blocks on the device; numbers as they are."""
    return da.from_array(array, chunks=chunks).map_blocks(cupy.asarray) if np.ndim(array) else array


def same(result, expected, tolerance=1e-10):
    for lazy, exact in zip(flat(result), flat(expected), strict=True):
        assert isinstance(lazy._meta, cupy.ndarray) and lazy._meta.ndim == lazy.ndim == np.ndim(exact)
        for block in dask.compute(*np.ravel(lazy.to_delayed()).tolist(), scheduler="threads"):
            assert isinstance(block, cupy.ndarray) and block.dtype == lazy.dtype == lazy._meta.dtype
        results = cupy.asnumpy(lazy.compute(scheduler="threads"))
        assert results.shape == np.shape(exact)
        np.testing.assert_allclose(results, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, method):
    arrays = operands(name, (3, LENGTH))
    lazy = [sent(array, (2, CHUNKS)) for array in arrays]
    reset = random((3, LENGTH), seed=5) > 1.5
    for reverse in (False, True):
        for more, on_device in (({}, {}), ({"reset": reset}, {"reset": sent(reset, (2, CHUNKS))})):
            keywords = {"reverse": reverse, "return_final": True}
            result = getattr(upsweep, name)(*lazy, method=method, **keywords, **on_device)
            same(result, getattr(upsweep, name)(*arrays, **keywords, **more), 1e-9)


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128"])
def test_sums(dtype):
    x, start = (5 * random((3, LENGTH))).astype(dtype), (5 * random(3, seed=2)).astype(dtype)
    for method in METHODS:
        result = upsweep.cumulative_sum(
            sent(x, (2, CHUNKS)),
            initial=cupy.asarray(start),
            include_initial=True,
            return_final=True,
            method=method,
        )
        expected = upsweep.cumulative_sum(x, initial=start, include_initial=True, return_final=True)
        same(result, expected, 1e-4 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", UPDATES)
def test_updates(name, method):
    update, init = UPDATES[name]
    for shape, axis in (((3, LENGTH), 1), ((LENGTH, 40), 0)):
        x, chunks = random(shape), [2, 2]
        chunks[axis] = CHUNKS
        if axis == 0:
            chunks[1] = 30
        for reverse in (False, True):
            keywords = {"axis": axis, "reverse": reverse, "return_final": True}
            result = upsweep.scan(update, init, sent(x, tuple(chunks)), method=method, **keywords)
            same(result, upsweep.scan(update, init, x, **keywords), 1e-8)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_dtypes(dtype):
    x = (5 * random((4, LENGTH))).astype(dtype)
    init = np.float16(0.5) if dtype == "float16" else 0.5
    for name in ("constant", "tanh"):
        result = upsweep.scan(UPDATES[name][0], init, sent(x, (3, CHUNKS)), axis=1)
        expected = upsweep.scan(UPDATES[name][0], init, x, axis=1)
        same(result, expected, {"float16": 2e-3, "float32": 1e-5}.get(dtype, 1e-10))
        assert result.dtype == expected.dtype


def test_states_of_the_user():
    x, start, gate = random((3, LENGTH)), random(3, seed=1), 0.25
    update = lambda s, x: (x[1] * s[0] + x[0], np.maximum(s[1], x[0]))  # noqa: E731
    for on_device in (sent(start, 2), cupy.asarray(start)):
        result = upsweep.scan(update, (on_device, 0.5), (sent(x, (2, CHUNKS)), gate), axis=1, return_final=True)
        same(result, upsweep.scan(update, (start, 0.5), (x, gate), axis=1, return_final=True))
    empty = np.zeros((3, 0))
    same(
        upsweep.scan(UPDATES["tanh"][0], 0.5, sent(empty, 2), axis=1, return_final=True), (empty, np.full(3, 0.5))
    )


def test_where_products_leave_the_range():
    gates = np.array([1e200] * 4 + [1e-200] * 4)
    update = lambda s, x: x * s  # noqa: E731
    same(upsweep.scan(update, 0.0, sent(gates, ((1, 5, 2),))), upsweep.scan(update, 0.0, gates))


def test_filters():
    x, zi = random((4, LENGTH)), random((4, 2), seed=1)
    lazy, b, a = sent(x, (3, CHUNKS)), [0.5, 0.2, 0.1], [2.0, -0.5, 0.3]
    same(upsweep.lfilter(b, a, lazy), upsweep.lfilter(b, a, x))
    same(upsweep.lfilter(b, a, lazy, zi=sent(zi, 2)), upsweep.lfilter(b, a, x, zi=zi))
    x[1, :3] = x[2, 7] = np.nan
    lazy, times = sent(x, (3, CHUNKS)), np.cumsum(random(LENGTH) ** 2)
    for keywords in ({"alpha": 0.3}, {"span": 3, "ignore_na": True}, {"halflife": 2.0, "times": times}):
        same(upsweep.ewm_mean(lazy, **keywords), upsweep.ewm_mean(x, **keywords))
        same(upsweep.ewm_sum(lazy, **keywords), upsweep.ewm_sum(x, **keywords))
    same(upsweep.ewm_mean(lazy, alpha=0.3, adjust=False), upsweep.ewm_mean(x, alpha=0.3, adjust=False))


def test_counts():
    keys, weights = np.random.default_rng(0).integers(0, 20, (3, 1000)), random((3, 1000))
    lazy, summands = sent(keys, (2, 300)), sent(weights, (2, 300))
    same(upsweep.bincount(lazy, axis=1, length=20), upsweep.bincount(keys, axis=1, length=20))
    same(
        upsweep.bincount(lazy, summands, axis=1, length=20), upsweep.bincount(keys, weights, axis=1, length=20)
    )  # fmt: skip
    many = random((3, 1000, 2), seed=1)
    same(
        upsweep.bincount(lazy, sent(many, (2, 300, 1)), axis=1, length=20),
        upsweep.bincount(keys, many, axis=1, length=20),
    )
    results, dropped = upsweep.bincount(lazy, length=10, invalid="drop", return_invalid=True, axis=1)
    assert int(dropped.compute()) == (keys >= 10).sum()
    same(results, upsweep.bincount(keys, length=10, invalid="drop", axis=1))
    counts = upsweep.bincount(sent(keys[0], 300)).compute()
    assert cupy.asnumpy(counts).tolist() == np.bincount(keys[0]).tolist()
    for limits in (None, (-1, 1)):
        for density in (False, True):
            result = upsweep.histogram(lazy * 0.5, 8, limits, density=density)
            same(result, np.histogram(keys * 0.5, 8, limits, density=density))
        same(
            upsweep.histogram(summands, 8, limits, weights=lazy * 1.0),
            np.histogram(weights, 8, limits, weights=keys * 1.0),
        )


@pytest.mark.parametrize("operation", ["Sum", "LogSumExp", "Max", "Min_ArgMin", "KMin_ArgKMin"])
def test_pairs(operation):
    points = random((300, 3)), random((400, 3), seed=1), random((400, 2), seed=2)
    lazy = [sent(array, (rows, array.shape[1])) for array, rows in zip(points, (100, 150, 90))]
    inputs = ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)"]
    formula = "Exp(-SqDist(x, y)) * b" if operation == "Sum" else "SqDist(x, y)"
    k = {"opt_arg": 3} if "KMin" in operation else {}
    for axis in (0, 1):
        reduce = upsweep.Genred(formula, inputs, reduction_op=operation, axis=axis, **k)
        for method in METHODS:
            same(reduce(*lazy, method=method), reduce(*points), 1e-6)
    if operation == "Sum":
        value, gradients = reduce.value_and_grad(*lazy)
        expected, others = reduce.value_and_grad(*points)
        same((value, *gradients), (expected, *others), 1e-6)
        kernels = [0.25 * (-upsweep.Vi(x).sqdist(upsweep.Vj(y))).exp() for x, y, _ in (lazy, points)]
        same(kernels[0] @ lazy[2], kernels[1] @ points[2], 1e-6)


def test_carries_travel():
    x = random((3, 2000))
    for name in ("two gated", "leaking max", "last largest"):
        update, init = UPDATES[name]
        blocks = cupy.asarray(x[:, :900]), cupy.asarray(x[:, 900:])
        parts = [upsweep.scan.carry(update, init, block, axis=1) for block in blocks]
        a, b = pickle.loads(pickle.dumps(parts))
        final = upsweep.scan(update, init, x, axis=1, return_final=True)[1]
        for whole in (b.apply(a.apply(init)), upsweep.combine(a, b).apply(init)):
            for result, expected in zip(flat(whole), flat(final), strict=True):
                np.testing.assert_allclose(cupy.asnumpy(result), expected, rtol=1e-10)


def test_streams():
    x = random((LENGTH, 3), np.float16)
    update = UPDATES["constant"][0]
    cuts = range(0, LENGTH, 700)
    scan = upsweep.scan_blocks(upsweep.scan, update, np.float16(0.5), (cupy.asarray(x[i : i + 700]) for i in cuts))
    result = cupy.asnumpy(cupy.concatenate(list(scan)))
    np.testing.assert_allclose(result, upsweep.scan(update, np.float16(0.5), x), rtol=2e-3, atol=2e-3)
