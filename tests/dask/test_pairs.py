"""Reductions over pairs of dask arrays: equal to those in one piece for any chunks; graphs; errors."""

import weakref

import numpy as np
import pytest
from helpers import random, same_bits
from pair_cases import check, data, reduction_of
from upsweep import Genred, LazyTensor, Pm, Vi, Vj, _backends
from upsweep._compiler.formulas.reduction import PRECISIONS, REDUCTIONS

pytest.importorskip("llvmlite")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

from upsweep._dask.pairs import run_pairs  # noqa: E402

METHODS = ["sequential", "tree"]
# Of rows and of columns: one block, uneven ones, empty ones, more than a tree's fan-in.
CHUNKS = [((50,), (70,)), ((20, 7, 23), (30, 0, 39, 1)), ((0, 50), (5,) * 14)]


def compute(array):
    result = array.compute(scheduler="sync")
    assert type(result) is np.ndarray and result.shape == array.shape
    assert result.dtype == array.dtype == array._meta.dtype
    return result


def chunked(arrays, rows, columns):
    """x of rows, y and b of columns, and parameters in memory; features are cut too."""
    lead = (2,) * (arrays[0].ndim - 2)
    return [
        da.from_array(arrays[0], chunks=(*lead, rows, 2)),
        da.from_array(arrays[1], chunks=(*lead, columns, 2)),
        da.from_array(arrays[2], chunks=(*lead, columns, 1)),
        arrays[3],
    ]


def one_piece(reduction, arrays, n_i, n_j, batch=()):
    return _backends.run_pairs(reduction, arrays, n_i, n_j, batch, None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", ["i", "j"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_blocks_are_the_whole(name, rows, method):
    for dtype in ("float32", "float64") if rows == "i" else ("float32",):
        reduction = reduction_of(name, dtype, rows=rows)
        arrays = data(50, 70, dtype)
        whole = one_piece(reduction, arrays, 50, 70)
        for sizes in CHUNKS:
            lazy = run_pairs(reduction, chunked(arrays, *sizes), 50, 70, (), method)
            got = tuple(compute(each) for each in lazy)
            check(reduction, arrays, 50, 70, got=got)
            for result, expected in zip(got, whole, strict=True):
                assert result.dtype == expected.dtype
                if "sum" not in name:
                    assert same_bits(result, expected)


def test_graphs_of_two_precisions_have_two_names():
    x, y = da.ones((4, 2), chunks=2), da.ones((5, 2), chunks=2)
    names = {Vi(x).sqdist(Vj(y)).sum(axis=1, precision=precision).name for precision in PRECISIONS}
    assert len(names) == len(PRECISIONS)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch(method):
    for name in ("sum", "logsumexp", "sumsoftmaxweight", "min_argmin", "kmin_argkmin"):
        reduction = reduction_of(name, "float64", weighted=True)
        arrays = data(9, 11, "float64", batch=(3, 2))
        arrays[0] = arrays[0][:, :1]
        arrays[2] = arrays[2][:1]
        lazy = chunked(arrays, (4, 5), (7, 4))
        got = [compute(each) for each in run_pairs(reduction, lazy, 9, 11, (3, 2), method)]
        check(reduction, arrays, 9, 11, (3, 2), got=tuple(got))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [name for name in REDUCTIONS if "sum" not in name])
def test_of_equal_values_the_first_wins(name, method):
    reduction = reduction_of(name, "float32", dim=1)
    arrays = [np.round(array) for array in data(50, 70, "float32", dim=1)]
    for sizes in CHUNKS:
        lazy = run_pairs(reduction, chunked(arrays, *sizes), 50, 70, (), method)
        for result, expected in zip(lazy, one_piece(reduction, arrays, 50, 70), strict=True):
            assert same_bits(compute(result), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_not_finite_goes_as_in_one_piece(name, value, method):
    for weighted in {False, name == "logsumexp"}:
        reduction = reduction_of(name, "float64", weighted=weighted)
        for places in ([29], slice(30, 70), slice(None)):
            for operand in (1, 2) if reduction.weight is not None or name == "sum" else (1,):
                arrays = data(5, 70, "float64")
                arrays[operand][places] = value
                lazy = run_pairs(reduction, chunked(arrays, (5,), CHUNKS[1][1]), 5, 70, (), method)
                for result, expected in zip(lazy, one_piece(reduction, arrays, 5, 70), strict=True):
                    np.testing.assert_allclose(compute(result), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_and_fewer_than_k(name, method):
    for n_i, n_j in ((0, 5), (5, 0), (5, 3)):
        for k in (1, 4, 9) if "kmin" in name else (1,):
            reduction = reduction_of(name, "float64", k=k)
            arrays = data(n_i, n_j, "float64")
            lazy = [da.from_array(array, chunks=2) for array in arrays[:3]]
            results = run_pairs(reduction, [*lazy, arrays[3]], n_i, n_j, (), method)
            for result, expected in zip(results, one_piece(reduction, arrays, n_i, n_j), strict=True):
                np.testing.assert_allclose(compute(result), expected, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_the_worst_of_all_is_chosen_where_there_is_no_other(value, method):
    x, y = np.ones((3, 1)), np.full((6, 1), value)
    lazy = da.from_array(x), da.from_array(y, chunks=((0, 2, 0, 4), 1))
    for name in ("argmin", "argmax", "min_argmin", "max_argmax"):
        result = getattr(Vi(lazy[0]) * Vj(lazy[1]), name)(axis=1, method=method)
        expected = getattr(Vi(x) * Vj(y), name)(axis=1)
        pairs = zip(result, expected) if isinstance(result, tuple) else [(result, expected)]
        for lazily, exact in pairs:
            np.testing.assert_array_equal(compute(lazily), exact)
    places = (Vi(lazy[0]) * Vj(lazy[1])).argKmin(4, axis=1, method=method)
    np.testing.assert_array_equal(compute(places), (Vi(x) * Vj(y)).argKmin(4, axis=1))


def test_weights_of_any_sign():
    """The sum of a block may be negative although the total is positive."""
    x, y = random((9, 1)), random((40, 1), seed=1)
    b = np.where(np.arange(40) < 10, -0.01, 1.0)[:, None]
    call = Genred("-SqDist(x, y)", ["x = Vi(1)", "y = Vj(1)", "b = Vj(1)"], "LogSumExp", axis=1, formula2="b")
    result = call(da.from_array(x, chunks=4), da.from_array(y, chunks=10), b)
    np.testing.assert_allclose(compute(result), call(x, y, b), rtol=1e-12)


def test_sums_are_rounded_once():
    x, y = np.ones((1, 1), np.float32), np.full((700, 1), 0.1, np.float32)
    total = (Vi(da.from_array(x)) * Vj(da.from_array(y, chunks=1))).sum(axis=1)
    assert compute(total)[0, 0] == np.float32(700 * np.float64(np.float32(0.1)))


def expressions(x, y, b):
    distance = ((LazyTensor(x[:, None, :]) - LazyTensor(y[None, :, :])) ** 2).sum(-1)
    kernel = (-distance * Pm([0.5])).exp()
    yield kernel @ b
    yield kernel @ b[:, 0]
    yield kernel.T @ x
    yield (kernel * Vj(b)).sum(axis=1)
    yield kernel.logsumexp(axis=0, weight=Vi(x**2))
    yield kernel.sumsoftmaxweight(Vj(b), axis=1)
    yield distance.argKmin(3, axis=1)
    yield from distance.Kmin_argKmin(2, dim=0)
    yield from distance.concat(Vi(x)).Kmin_argKmin(2, dim=1)
    yield from (Vi(x) - Vj(y)).max_argmax(axis=1)
    yield Genred("Exp(-SqDist(x, y)) * b", ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)"])(x, y, b)
    yield Vi(0, 3).sqdist(Vj(1, 3)).min(axis=1)(x, y)


def test_the_public_names():
    x, y, b = random((50, 3)), random((70, 3), seed=1), random((70, 2), seed=2)
    lazy = (da.from_array(x, chunks=(20, 2)), da.from_array(y, chunks=(30, 3)), da.from_array(b, chunks=(11, 1)))
    for result, expected in zip(expressions(*lazy), expressions(x, y, b), strict=True):
        assert isinstance(result, da.Array)
        np.testing.assert_allclose(compute(result), expected, rtol=1e-12, atol=1e-12)
    # One dask array makes the result one.
    for at in range(3):
        mixed = [lazy[n] if n == at else array for n, array in enumerate((x, y, b))]
        kernel = (-Vi(mixed[0]).sqdist(Vj(mixed[1]))).exp() * Vj(mixed[2])
        result = kernel.sum(axis=1, method="tree")
        assert isinstance(result, da.Array)
        np.testing.assert_allclose(compute(result), (-Vi(x).sqdist(Vj(y))).exp() @ b, rtol=1e-12)


def test_a_formula_that_reads_no_array():
    x, y = random((5, 3)), random((7, 3), seed=1)

    def constant(x, y):
        rows = Vi(x)
        return rows.sqdist(Vj(y)).laplacian(rows).sum(axis=1)

    lazy = constant(da.from_array(x, chunks=2), da.from_array(y, chunks=3))
    np.testing.assert_array_equal(compute(lazy), constant(x, y))


def test_gradients_of_sums():
    x, y, b, p = random((50, 3)), random((70, 3), seed=1), random((70, 2), seed=2), np.array([0.7])
    lazy = da.from_array(x, chunks=(20, 2)), da.from_array(y, chunks=(30, 3)), da.from_array(b, chunks=(11, 1)), p
    aliases = ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)", "p = Pm(1)"]
    weight = random((50, 2), seed=3)
    for call in (
        Genred("Exp(-SqDist(x, y) * p) * b", aliases, axis=1),
        Genred("-SqDist(x, y) * p", aliases, "LogSumExp", axis=1, formula2="b * b"),
        Genred("-SqDist(x, y) * p", aliases, "SumSoftMaxWeight", axis=1, formula2="b"),
    ):
        for cotangent in (None, weight):
            value, gradients = call.value_and_grad(x, y, b, p, cotangent=cotangent)
            lazy_cotangent = cotangent if cotangent is None else da.from_array(cotangent, chunks=7)
            result, lazy_gradients = call.value_and_grad(*lazy, cotangent=lazy_cotangent)
            for lazily, expected in zip((result, *lazy_gradients), (value, *gradients), strict=True):
                np.testing.assert_allclose(compute(lazily), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(NotImplementedError, match="reduction: min of dask arrays has no gradients"):
        Vi(lazy[0]).sqdist(Vj(lazy[1])).min(axis=1, call=False).value_and_grad()


@pytest.mark.parametrize("n_rows", [1, 7])
@pytest.mark.parametrize("n_columns", [1, 8, 9, 64, 65])
def test_tasks_for_each_block_of_pairs(n_rows, n_columns):
    x, y = da.zeros((n_rows, 3), chunks=(1, 3)), da.zeros((n_columns, 3), chunks=(1, 3))
    before = len(dict(x.dask)) + len(dict(y.dask))
    n_blocks = n_rows * n_columns
    for method, most in (("sequential", 1), ("tree", 1.2)):
        for lazy in (Vi(x).sqdist(Vj(y)), Vi(x) - Vj(y)):
            total = lazy.sum(axis=1, method=method)
            assert len(dict(total.dask)) - before <= most * n_blocks + 2 * n_rows * (method == "tree")
            both = lazy.min_argmin(axis=1, method=method)
            tasks = {key for array in both for key in dict(array.dask)}
            assert len(tasks) - before <= most * n_blocks + n_rows * (2 + 2 * (method == "tree"))


class Counted(np.ndarray):
    """Blocks that count how many are alive, and the maximum of that."""

    alive = most = 0

    @classmethod
    def load(cls, i):
        block = np.full((10, 3), float(i)).view(cls)
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)
        weakref.finalize(block, cls.leave)
        return block

    @classmethod
    def leave(cls):
        cls.alive -= 1


@pytest.mark.parametrize("n_rows", [1, 2, 7, 16])
def test_blocks_of_columns_are_released_when_all_rows_have_read_them(n_rows):
    x = da.zeros((n_rows, 3), chunks=(1, 3))
    blocks = [dask.delayed(Counted.load)(i) for i in range(50)]
    y = da.concatenate([da.from_delayed(block, (10, 3), float) for block in blocks])
    Counted.alive = Counted.most = 0
    total = compute(Vi(x).sqdist(Vj(y)).sum(axis=1))
    assert (total == 10 * 3 * np.square(np.arange(50.0)).sum()).all()
    assert Counted.most <= 2 + np.log2(n_rows)


def test_one_state_and_one_block_of_columns_at_a_time():
    x, y = da.zeros((4, 3), chunks=(2, 3)), da.zeros((50, 3), chunks=(1, 3))
    graph = dict(Vi(x).sqdist(Vj(y)).sum(axis=1).dask)
    of_pairs = {key: task for key, task in graph.items() if key[0].startswith("pairs")}
    assert len(of_pairs) == 2 * 50
    for task in of_pairs.values():  # the partial reduction before, and one that the task waits for
        assert sum(key in of_pairs for key in task.dependencies) <= 2
        assert len(task.dependencies) <= 4


def test_names_follow_from_arguments():
    x, y = random((50, 3)), random((70, 3), seed=1)

    def call(scale=1.0, chunks=20, **keywords):
        lazy = da.from_array(x, chunks=chunks), da.from_array(y, chunks=30)
        return (Vi(lazy[0]).sqdist(Vj(lazy[1])) * scale).sum(axis=1, **keywords)

    assert call().name == call().name
    assert set(call().dask) == set(call().dask)
    others = [{"scale": 2.0}, {"chunks": 10}, {"method": "tree"}, {"n_threads": 2}]
    assert len({call(**keywords).name for keywords in [{}, *others]}) == 5


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_from_any_scheduler(method):
    x = da.from_array(random((100, 3), np.float32), chunks=(17, 3))
    total = (-Vi(x).sqdist(Vj(x))).exp().sum(axis=1, method=method)
    assert same_bits(compute(total), total.compute(scheduler="threads", num_workers=4))


def test_nothing_is_computed_before_it_is_asked_for():
    def never(block):
        raise AssertionError("computed")

    x = da.zeros((10, 3), chunks=5).map_blocks(never, dtype=float, meta=np.empty((0, 0)))
    total, (gradient,) = (Vi(x) * Vj(x)).sum(axis=1, call=False).value_and_grad(wrt=[Vi(x)])
    for lazy in (total, gradient, (Vi(x) | Vj(x)).argKmin(2, axis=0)):
        with pytest.raises(AssertionError, match="computed"):
            lazy.compute(scheduler="sync")


def test_foreign_byte_order():
    x, y = random((6, 3)), random((8, 3), seed=1)
    expected = Vi(x).sqdist(Vj(y)).argmin(axis=1)
    lazy = [da.from_array(a.astype(">f8"), chunks=(4, 2)) for a in (x, y)]
    np.testing.assert_array_equal(compute(Vi(lazy[0]).sqdist(Vj(lazy[1])).argmin(axis=1)), expected)


def test_what_is_refused():
    x, y = da.zeros((6, 3), chunks=2), da.zeros((8, 3), chunks=2)
    kernel = Vi(x).sqdist(Vj(y))
    call = Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)
    unknown = x[x[:, 0] > 0]
    with pytest.raises(ValueError, match=r"x: has chunks of unknown sizes.*x\.compute_chunk_sizes\(\)"):
        call(unknown, y)
    with pytest.raises(ValueError, match=r"x: has chunks of unknown sizes.*x\.compute_chunk_sizes\(\)"):
        Vi(unknown)
    masked = da.ma.masked_array(np.zeros((6, 3)))
    with pytest.raises(TypeError, match=r"x: blocks with a mask are not supported.*da\.ma\.filled\(x, 0\)"):
        Vi(masked)
    with pytest.raises(TypeError, match="y: blocks with a mask"):
        call(x, masked)
    with pytest.raises(ValueError, match="n_threads: expected at least 1, got 0"):
        kernel.sum(axis=1, n_threads=0)
    with pytest.raises(ValueError, match="ranges: do not go with dask arrays"):
        call(x, y, ranges=(np.zeros((1, 2), int),) * 6)
    with pytest.raises(ValueError, match="out: does not go with dask arrays"):
        kernel.sum(axis=1, out=np.zeros((6, 1)))
    with pytest.raises(ValueError, match="method: expected 'sequential' or 'tree', got 'blelloch'"):
        kernel.sum(axis=1, method="blelloch")
    with pytest.raises(ValueError, match="method: goes with dask arrays only, got 'tree'"):
        call(np.zeros((6, 3)), np.zeros((8, 3)), method="tree")
    with pytest.raises(ValueError, match="backend: 'GPU' is not where the arrays are"):
        kernel.sum(axis=1, backend="GPU")
    with pytest.raises(TypeError, match="compute dask arrays first"):
        (-Vi(x).sqdist(Vj(x))).exp().solve(x, alpha=1.0)
    with pytest.raises(TypeError, match="y: is of dtype float32, and x of float64"):
        call(x, y.astype("float32"))
    with pytest.raises(TypeError, match="x: float16 is reduced on CUDA only"):
        call(x.astype("float16"), y.astype("float16"))
    with pytest.raises(TypeError, match="x: expected float32 or float64, got int64"):
        call(x.astype(int), y)
    with pytest.raises(ValueError, match="x: expected 3 features"):
        call(x[:, :2], y)
    with pytest.raises(ValueError, match="cotangent: expected the result's shape"):
        call.value_and_grad(x, y, cotangent=da.zeros((5, 1)))
