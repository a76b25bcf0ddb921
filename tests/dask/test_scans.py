"""Scans of dask arrays: equal to scans in one piece for any chunks; graphs of bounded size; errors."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, operands, random, reference_scan, same_bits
from upsweep.testing import assert_scan_close

da = pytest.importorskip("dask.array")

METHODS = ["sequential", "tree"]
# Sizes along the scan axis: one block, uneven ones, empty ones first and last, more than a tree's fan-in squared.
CHUNKS = [(100,), (3, 90, 7), (0, 40, 0, 60, 0), (1,) * 70 + (30,)]


def compute(array):
    return array.compute(scheduler="sync")


def chunked(array, sizes, axis):
    """The dask array with these sizes along the axis, and blocks of 2 along all others."""
    if not np.ndim(array):
        return array
    chunks = [2] * array.ndim
    chunks[axis] = sizes if array.shape[axis] > 1 else 1
    return da.from_array(array, chunks=tuple(chunks))


def compare(name, *arrays, axis=-1, sizes=CHUNKS[1], reset=None, initial=None, method=None, **keywords):
    """Compare result and final state with the reference implementation; return them as dask arrays."""
    lazy = [chunked(array, sizes, axis) for array in arrays]
    flags = reset if reset is None else chunked(reset, sizes, axis)
    lazy_results = getattr(upsweep, name)(
        *lazy, axis=axis, reset=flags, initial=initial, return_final=True, method=method, **keywords
    )
    assert all(isinstance(m, da.Array) for m in lazy_results)
    keywords = {**keywords, "initial": initial if initial is None else np.asarray(initial)}
    whole = getattr(upsweep, name)(*arrays, axis=axis, reset=reset, return_final=True, **keywords)
    rows = reference_scan(name, *arrays, axis=axis, reset=reset, return_final=True, **keywords)
    for lazily, in_memory, (exact, scale) in zip(lazy_results, whole, rows):
        assert lazily.shape == in_memory.shape and lazily.dtype == in_memory.dtype
        result = compute(lazily)
        assert isinstance(result, np.ndarray) and result.dtype == lazily.dtype == lazily._meta.dtype
        assert_scan_close(result, exact, scale, rtol=1e-6 if in_memory.dtype.itemsize == 2 else None)
        blocks = lazily.blocks.ravel() if lazily.ndim else [lazily]
        assert all(compute(block).shape == block.shape for block in blocks[:3])
    return lazy_results


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_blocks_are_the_whole(name, dtype, method):
    for sizes in CHUNKS:
        arrays = operands(name, (100,), dtype)
        compare(name, *arrays, sizes=sizes, method=method, reverse=sizes is CHUNKS[3])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_each_keyword(name, reverse, method):
    for shape, axis in (((3, 100), 1), ((100, 3), 0), ((2, 100, 3), 1)):
        arrays = operands(name, shape)
        state_shape = tuple(np.delete(shape, axis))
        common = {"axis": axis, "reverse": reverse, "method": method}
        compare(name, *arrays, **common, reset=random(shape, seed=3) > 0.95, initial=random(state_shape))
        compare(name, *arrays, **common, exclusive=True)
        compare(name, *arrays, **common, initial=2.0, sizes=CHUNKS[2])


@pytest.mark.parametrize("method", METHODS)
def test_keywords_of_one_scan(method):
    x = random((3, 100))
    for reverse in (False, True):
        compare("cumulative_sum", x, include_initial=True, initial=2.0, reverse=reverse, method=method)
        compare("cumulative_sum", x, include_initial=True, sizes=CHUNKS[2], reverse=reverse, method=method)
    compare("cumulative_sum", np.arange(100, dtype=np.int8), method=method)
    compare("cumulative_sum", x, dtype="float32", method=method)
    for gamma in (1, 0.3 - 0.4j, random((3, 1)), random((3, 100), seed=1), np.float64(0.5)):
        compare("discounted_cumsum", x, gamma, method=method)
    compare("linear_recurrence", random((3, 1)), x, method=method)


def test_operands_may_have_other_chunks_or_be_in_memory():
    gates, tokens = operands("linear_recurrence", (4, 100))
    whole, final = upsweep.linear_recurrence(gates, tokens, initial=np.arange(4.0), return_final=True)
    for operands_and_state in (
        (da.from_array(gates, chunks=(3, 17)), da.from_array(tokens, chunks=(2, 40)), da.arange(4.0, chunks=3)),
        (gates, da.from_array(tokens, chunks=(2, 40)), np.arange(4)),
        (da.from_array(gates, chunks=(3, 17)), tokens.tolist(), [0, 1, 2, 3]),
        (gates, tokens, da.arange(4.0, chunks=3)),
    ):
        y, state = upsweep.linear_recurrence(
            *operands_and_state[:2], initial=operands_and_state[2], return_final=True
        )
        np.testing.assert_allclose(compute(y), whole, rtol=1e-12)
        np.testing.assert_allclose(compute(state), final, rtol=1e-12)
    gamma = da.from_array(np.array(0.5), chunks=())
    y = upsweep.discounted_cumsum(da.from_array(tokens, chunks=(2, 40)), gamma)
    np.testing.assert_allclose(compute(y), upsweep.discounted_cumsum(tokens, 0.5), rtol=1e-12)


def test_the_first_gate_is_not_read_after_empty_blocks():
    gates, tokens = np.array([np.nan, 0.5]), np.ones(2)
    lazy = (da.from_array(a, chunks=((0, 1, 1),)) for a in (gates, tokens))
    np.testing.assert_array_equal(compute(upsweep.linear_recurrence(*lazy)), [1, 1.5])


def test_blocks_are_scanned_where_products_overflow():
    gates = np.array([1e200] * 4 + [1e-200] * 4)
    lazy = [da.from_array(a, chunks=((1, 5, 2),)) for a in (gates, np.zeros(8))]
    assert not compute(upsweep.linear_recurrence(*lazy, initial=0.0)).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_blocks", [1, 2, 8, 9, 64, 65, 600])
def test_at_most_three_tasks_a_block(n_blocks, method):
    for rows in (1, 1000):
        x = da.zeros((rows, n_blocks), chunks=(rows, 1))
        y, final = upsweep.cumulative_sum(x, return_final=True, method=method)
        assert len(dict(y.dask)) - len(dict(x.dask)) <= 3 * n_blocks
        assert len(dict(final.dask)) - len(dict(x.dask)) <= 3 * n_blocks + 1


def test_a_tree_is_not_deep():
    def depth(method):
        graph = dict(upsweep.cumulative_sum(da.zeros(512, chunks=1), method=method).dask)
        known = {}
        for key in graph:
            stack = [key]
            while stack:
                below = [k for k in graph[stack[-1]].dependencies if k not in known]
                if below:
                    stack += below
                else:
                    top = stack.pop()
                    known[top] = 1 + max((known[k] for k in graph[top].dependencies), default=0)
        return max(known.values())

    assert depth("sequential") > 512
    assert depth("tree") <= 10


def test_names_follow_from_arguments():
    x = np.random.default_rng(0).random(100)

    def call(**keywords):
        return upsweep.discounted_cumsum(da.from_array(x, chunks=30), keywords.pop("gamma", 0.5), **keywords)

    assert call().name == call().name
    assert set(call().dask) == set(call().dask)
    others = [{"gamma": 0.6}, {"reverse": True}, {"initial": 1.0}, {"method": "tree"}, {"exclusive": True}]
    assert len({call(**keywords).name for keywords in [{}, *others]}) == 6


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_from_any_scheduler(method):
    x = da.from_array(random((3, 1000), np.float32), chunks=(2, 77))
    y = upsweep.discounted_cumsum(x, 0.99, method=method)
    assert same_bits(compute(y), y.compute(scheduler="threads", num_workers=4))


def test_nothing_is_computed_before_it_is_asked_for():
    def never(block):
        raise AssertionError("computed")

    x = da.zeros(100, chunks=10).map_blocks(never, dtype=float, meta=np.empty(0))
    y = upsweep.cumulative_sum(x, initial=x[3], reset=x > 0)
    with pytest.raises(AssertionError, match="computed"):
        compute(y)


@pytest.mark.parametrize("name", ["discounted_cumsum_left", "discounted_cumsum_right"])
def test_a_gamma_for_each_row(name):
    x, gamma = random((5, 40)), random(5)
    expected = getattr(upsweep, name)(x, gamma)
    lazy = da.from_array(x, chunks=(2, 17))
    for pair in ((lazy, gamma), (lazy, gamma.tolist()), (lazy, da.from_array(gamma, chunks=3)),
                 (x, da.from_array(gamma, chunks=3))):  # fmt: skip
        np.testing.assert_allclose(compute(getattr(upsweep, name)(*pair)), expected, rtol=1e-12)
    np.testing.assert_allclose(
        compute(getattr(upsweep, name)(lazy, np.float64(0.5))), getattr(upsweep, name)(x, 0.5), rtol=1e-12
    )


def test_blocks_that_are_not_numpys_are_refused_before_they_are_computed():
    x, masked = da.zeros((3, 100), chunks=(2, 30)), da.ma.masked_array(np.zeros(3), mask=[0, 1, 0])
    row = da.ma.masked_array(np.zeros(100))
    for name, call in {
        "x": lambda: upsweep.cumulative_sum(masked),
        "gamma": lambda: upsweep.discounted_cumsum(x, row),
        "gates": lambda: upsweep.linear_recurrence(row, x),
        "reset": lambda: upsweep.cumulative_sum(x, reset=row > 0),
        "initial": lambda: upsweep.cumulative_sum(x, initial=masked),
        "weights": lambda: upsweep.bincount(np.arange(3), masked),
    }.items():
        with pytest.raises(TypeError, match=rf"{name}: blocks with a mask.*da\.ma\.filled\({name}, 0\)"):
            call()
    with pytest.raises(TypeError, match=r"x: blocks with a mask"):
        upsweep.histogram(masked)
    sparse = pytest.importorskip("scipy.sparse")
    blocks = x.map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 0)))
    with pytest.raises(TypeError, match=r"x: expected blocks of numpy or cupy, got scipy\.csr_array"):
        upsweep.cumulative_sum(blocks)


@pytest.mark.parametrize(("n_threads", "error"), [(0, ValueError), ("2", TypeError)])
def test_numbers_of_threads_are_refused_before_anything_is_computed(n_threads, error):
    x = da.zeros(10, chunks=3, dtype=int)
    for function in (upsweep.cumulative_sum, upsweep.bincount, upsweep.histogram):
        with pytest.raises(error, match="n_threads: expected"):
            function(x, n_threads=n_threads)


def test_what_is_refused():
    x = da.zeros((3, 100), chunks=(2, 30))
    unknown = da.zeros(10, chunks=5)[da.ones(10, chunks=5) > 0]
    with pytest.raises(ValueError, match=r"x: has chunks of unknown sizes.*x\.compute_chunk_sizes\(\)"):
        upsweep.cumulative_sum(unknown)
    with pytest.raises(ValueError, match="out: does not go with dask arrays"):
        upsweep.cumulative_sum(x, out=np.zeros((3, 100)))
    with pytest.raises(ValueError, match="device: does not go with dask arrays"):
        upsweep.cumulative_sum(x, device="cuda")
    with pytest.raises(ValueError, match="method: expected 'sequential' or 'tree', got 'blelloch'"):
        upsweep.cumulative_sum(x, method="blelloch")
    with pytest.raises(ValueError, match="method: goes with dask arrays only"):
        upsweep.cumulative_sum(np.zeros(3), method="tree")
    with pytest.raises(NotImplementedError, match="window: "):
        upsweep.discounted_cumsum(x, 0.5, window=3)
    with pytest.raises(np.exceptions.AxisError, match="axis 2"):
        upsweep.cumulative_sum(x, axis=2)
    with pytest.raises(ValueError, match=r"shapes do not broadcast together: tokens \(3, 100\), gates \(4, 1\)"):
        upsweep.linear_recurrence(np.zeros((4, 1)), x)
    with pytest.raises(TypeError, match="reset: expected an array of bool"):
        upsweep.cumulative_sum(x, reset=x)
    with pytest.raises(ValueError, match="initial: shape"):
        upsweep.cumulative_sum(x, initial=da.zeros(4))
    with pytest.raises(TypeError, match="initial: complex128 cannot be held"):
        upsweep.cumulative_sum(x, initial=1j)
    with pytest.raises(ValueError, match="include_initial: cannot be combined"):
        upsweep.cumulative_sum(x, include_initial=True, exclusive=True)
    with pytest.raises(TypeError, match="gamma: masked arrays are not supported"):
        upsweep.discounted_cumsum(x, np.ma.array([1.0]))


def test_empty_blocks_next_to_one_element():
    """dask miscounts an axis of one element that is in several blocks."""
    x, gamma = random((3, 33)), random((1, 33), seed=1)
    for sizes in ((1,), (0, 1), (0, 0, 1, 0)):
        lazy = da.from_array(gamma, chunks=(sizes, 9))
        for tokens in (da.from_array(x, chunks=((1, 0, 2), 10)), x):
            result = upsweep.discounted_cumsum(tokens, lazy).compute(scheduler="sync")
            np.testing.assert_allclose(result, upsweep.discounted_cumsum(x, gamma), rtol=1e-12)
        y = upsweep.cumulative_sum(lazy, axis=1)
        assert y.shape == y.compute(scheduler="sync").shape == (1, 33)
    nothing = da.zeros((2, 0), chunks=(1, (0, 0)))
    assert upsweep.linear_recurrence(nothing, da.zeros((2, 0), chunks=(2, (0, 0, 0)))).compute().shape == (2, 0)


def test_a_real_sum_of_complex_numbers_warns_no_sooner_than_the_whole(recwarn):
    x = da.ones((3, 4), chunks=2, dtype=complex)
    assert upsweep.cumulative_sum(x, dtype=float).dtype == float
    assert not recwarn
