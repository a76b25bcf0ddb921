"""User-defined scans of dask arrays: equal to scans in one piece for any chunks and method."""

import numpy as np
import pytest
import upsweep
from block_updates import COMBINED, IN_ORDER, UPDATES
from helpers import random, same_bits

pytest.importorskip("llvmlite")
trace = pytest.importorskip("upsweep._compiler.recurrences.trace")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

METHODS = ["sequential", "tree"]
# Sizes along the scan axis: one block, uneven ones, empty ones first and last, more than a tree's fan-in squared.
CHUNKS = [(100,), (3, 90, 7), (0, 40, 0, 60, 0), (1,) * 65 + (35,)]


def items(value):
    return value if isinstance(value, tuple) else (value,)


def chunked(array, sizes, axis):
    """The dask array with these sizes along the axis, and blocks of 2 along all others."""
    chunks = [2] * array.ndim
    chunks[axis] = sizes if array.shape[axis] > 1 else 1
    return da.from_array(array, chunks=tuple(chunks))


def compare(update, init, xs, lazy, tolerance=1e-12, **keywords):
    """Compare outputs and final states with those of the whole; return them as dask arrays."""
    lazy_results = upsweep.scan(update, init, lazy, return_final=True, **keywords)
    whole = {name: value for name, value in keywords.items() if name != "method"}
    in_memory = upsweep.scan(update, init, xs, return_final=True, **whole)
    for several, expected in zip(lazy_results, in_memory):
        assert isinstance(several, tuple) == isinstance(expected, tuple)
        for one, exact in zip(items(several), items(expected), strict=True):
            assert isinstance(one, da.Array) and one.shape == exact.shape and one.dtype == exact.dtype
            result = one.compute(scheduler="sync")
            assert type(result) is np.ndarray and result.dtype == one.dtype == one._meta.dtype
            np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)
            if one.ndim:
                block = one.blocks[(0,) * one.ndim]
                assert block.compute(scheduler="sync").shape == block.shape
    return lazy_results


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", UPDATES)
def test_blocks_are_the_whole(name, method):
    update, init = UPDATES[name]
    x = random(100)
    for sizes in CHUNKS if method == "tree" else CHUNKS[1:3]:
        compare(update, init, x, chunked(x, sizes, 0), method=method, reverse=sizes is CHUNKS[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["two gated", "leaking max", "last largest", "tanh"])
def test_any_axis(name, method):
    update, init = UPDATES[name]
    for shape, axis in (((3, 100), 1), ((100, 3), 0), ((2, 100, 3), -2)):
        x = random(shape)
        for reverse in (False, True):
            lazy = chunked(x, CHUNKS[1], axis)
            compare(update, init, x, lazy, axis=axis, reverse=reverse, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_long_blocks_run_parallel_in_time_themselves(method):
    x = random(50_000)
    for name in ("constant", "two gated", "last least", "logaddexp"):
        update, init = UPDATES[name]
        compare(update, init, x, chunked(x, (20_000, 9_999, 20_001), 0), 1e-9, method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "bool", ">f8"])
def test_dtypes(dtype, method):
    x = (random(100) * 5).astype(dtype)
    init = np.float16(0.5) if dtype == "float16" else 0.5
    update = COMBINED["constant"][0] if dtype != "bool" else lambda s, x: np.where(x, s * 0.5, s + 1)
    tolerance = {"float16": 2e-3, "float32": 1e-6}.get(dtype, 1e-12)
    compare(update, init, x, chunked(x, CHUNKS[1], 0), tolerance, method=method)


def test_states_of_their_own_dtypes():
    x = random(100, np.float32)
    init = (np.float32(0), False)
    for sizes in CHUNKS:
        compare(lambda s, x: (np.where(s[1], 0.5 * s[0], x), x > s[0]), init, x, chunked(x, sizes, 0), 1e-6)


def test_states_and_inputs_may_have_other_chunks_or_be_in_memory():
    x, gate = random((4, 100)), random((4, 1), seed=1)
    update = lambda s, x: (x[0] * s[0] + x[1], np.maximum(s[1], x[1]))  # noqa: E731
    start = np.arange(4.0)
    lazy = da.from_array(x, chunks=(2, 40))
    for chained in (update, lambda s, x: (x[0] * s[0] + x[1], 0.5 * s[1] + x[1])):
        for states in (
            (da.arange(4.0, chunks=3), 1.0),
            (start, da.ones(4, chunks=1)),
            ([0.0, 1.0, 2.0, 3.0], 1.0),
        ):
            in_memory = (start, 1.0)
            for inputs in ((da.from_array(gate, chunks=3), lazy), (gate, lazy), (gate.tolist(), lazy)):
                result = upsweep.scan(chained, states, inputs, axis=1, return_final=True)
                expected = upsweep.scan(chained, in_memory, (gate, x), axis=1, return_final=True)
                for a, b in zip((*result[0], *result[1]), (*expected[0], *expected[1])):
                    np.testing.assert_allclose(a.compute(scheduler="sync"), b, rtol=1e-12)
    y = upsweep.scan(COMBINED["constant"][0], da.arange(4.0, chunks=3), x, axis=1)
    np.testing.assert_allclose(
        y.compute(scheduler="sync"), upsweep.scan(lambda s, x: 0.9 * s + x, start, x, axis=1)
    )


def test_nothing_to_read():
    start = random((4, 5))
    lazy = da.from_array(start, chunks=2)
    for update in (lambda s, _: 0.9 * s, lambda s, _: np.tanh(s)):
        for axis in (0, 1, 2):
            expected = upsweep.scan(update, start, axis=axis, length=7, return_final=True)
            result = upsweep.scan(update, lazy, axis=axis, length=7, return_final=True)
            for a, b in zip(result, expected):
                np.testing.assert_allclose(a.compute(scheduler="sync"), b, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_no_steps_and_no_columns(method):
    for name in ("two gated", "leaking max", "tanh"):
        update, init = UPDATES[name]
        for shape, chunks in (((0,), -1), ((0,), ((0, 0),)), ((5, 0), ((2, 3), 0)), ((0, 3), ((0,), 2))):
            x = np.zeros(shape)
            compare(update, init, x, da.from_array(x, chunks=chunks), method=method)


def test_no_outputs():
    x = random(100)
    update = lambda s, x: (s + x, None)  # noqa: E731
    for kind in (update, lambda s, x: (np.tanh(s + x), None)):
        ys, final = upsweep.scan(kind, 0.0, da.from_array(x, chunks=30), return_final=True)
        assert ys is None
        np.testing.assert_allclose(
            final.compute(scheduler="sync"), upsweep.scan(kind, 0.0, x, return_final=True)[1]
        )


def test_the_decorator():
    @upsweep.scan(axis=1, method="tree")
    def average(mean, x):
        return 0.9 * mean + 0.1 * x

    x = random((3, 100))
    result = average(0.0, da.from_array(x, chunks=(2, 9)))
    np.testing.assert_allclose(
        result.compute(scheduler="sync"), average(0.0, da.from_array(x, chunks=-1)).compute()
    )
    with pytest.raises(ValueError, match="method: goes with dask arrays only, got 'tree'"):
        average(0.0, x)


@pytest.mark.parametrize(
    "name", ["constant", "reset", "two states", "max", "leaking max", "logaddexp", "last largest"]
)
def test_infinities_and_nan_propagate_as_in_the_whole(name):
    update, init = UPDATES[name]
    for where in (2, 3, 50, 99):
        for value in (np.nan, np.inf, -np.inf):
            x = random(100)
            x[where] = value
            compare(update, init, x, chunked(x, CHUNKS[1], 0))
    if "largest" not in name:
        compare(update, np.nan if np.ndim(init) == 0 else (np.nan, 0.0), x, chunked(x, CHUNKS[1], 0))


@pytest.mark.parametrize("method", METHODS)
def test_the_worst_of_all_against_none(method):
    """A block without a winner keeps the state, even if the state is as bad as the start value."""
    x = np.array([-np.inf, 1.0, np.nan, np.nan, np.nan, -np.inf])
    place = np.arange(10.0, 16.0)
    for strict in (True, False):

        def update(state, new, strict=strict):
            best, at = state
            better = best < new[0] if strict else best <= new[0]
            return np.where(better, new[0], best), np.where(better, new[1], at)

        for numbers in (x, np.where(x == 1, np.nan, x)):
            lazy = da.from_array(numbers, chunks=1), da.from_array(place, chunks=1)
            compare(update, (-np.inf, -1.0), (numbers, place), lazy, method=method)


def test_blocks_are_scanned_where_products_overflow():
    gates = np.array([1e200] * 4 + [1e-200] * 4)
    lazy = da.from_array(gates, chunks=((1, 5, 2),))
    compare(lambda s, x: x * s, 0.0, gates, lazy)
    compare(lambda s, x: (x * s[0] + s[1], s[0]), (0.0, 0.0), gates, lazy)
    x = random((2, 3000))
    compare(lambda s, x: np.where(x > 0.95, 0.0, 3.0 * s) + x, 0.0, x, da.from_array(x, chunks=(1, 999)), axis=1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_blocks", [1, 2, 8, 9, 64, 65, 600])
def test_at_most_three_tasks_a_block(n_blocks, method):
    for rows in (1, 1000):
        x = da.zeros((rows, n_blocks), chunks=(rows, 1))
        for name in ("constant", "two gated", "tanh"):
            update, init = UPDATES[name]
            ys, final = upsweep.scan(update, init, x, axis=1, return_final=True, method=method)
            n_outputs = len(items(ys))
            for y in items(ys):
                assert len(dict(y.dask)) - len(dict(x.dask)) <= (3 + (n_outputs > 1)) * n_blocks
            whole = {key for array in (*items(ys), *items(final)) for key in dict(array.dask)}
            most = 3 + (n_outputs if n_outputs > 1 else 0)
            assert len(whole) - len(dict(x.dask)) <= most * n_blocks + len(items(final))


def test_names_follow_from_what_the_update_does():
    x = np.random.default_rng(0).random(100)

    def call(factor=0.5, **keywords):
        lazy = da.from_array(x, chunks=30)
        return upsweep.scan(lambda s, x: factor * s + x, keywords.pop("init", 0.0), lazy, **keywords)

    assert call().name == call().name
    assert set(call().dask) == set(call().dask)
    others = [{"factor": 0.6}, {"reverse": True}, {"init": 1.0}, {"method": "tree"}, {"init": np.float32(0)}]
    assert len({call(**keywords).name for keywords in [{}, *others[:-1]]}) == 5
    with pytest.raises(TypeError, match="the state is float32 and becomes float64"):
        call(**others[-1])


def test_not_traced_for_each_block(monkeypatch):
    traced = []
    monkeypatch.setattr(trace, "trace", lambda *args, of=trace.trace: traced.append(args) or of(*args))
    y = upsweep.scan(lambda state, x: 0.53 * state + x, 0.0, da.ones(100, chunks=10))
    y.compute(scheduler="sync")
    assert len(traced) == 2  # the second time shows that it is the same from call to call


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["two gated", "tanh"])
def test_the_same_bits_from_any_scheduler(name, method):
    update, init = UPDATES[name]
    x = da.from_array(random((3, 1000), np.float32), chunks=(2, 77))
    init = tuple(map(np.float32, init)) if isinstance(init, tuple) else np.float32(init)
    for y in items(upsweep.scan(update, init, x, axis=1, method=method)):
        assert same_bits(y.compute(scheduler="sync"), y.compute(scheduler="threads", num_workers=4))


def test_explain():
    x = da.ones(100, chunks=40)
    for name, why in (("constant", "affine in its state"), ("max", "maximum"), ("garch", "affine in its state")):
        path, text = upsweep.scan.explain(*UPDATES[name], x)
        assert path == "parallel in time" and why in text and "each of 3 blocks, one pass" in text
    path, why = upsweep.scan.explain(*IN_ORDER["tanh"], x)
    assert path == "sequential in time"
    assert "3 blocks in order, each from the state after the one before" in why
    path, why = upsweep.scan.explain(lambda s, _: 0.9 * s, da.ones(4, chunks=2), length=5)
    assert path == "sequential in time" and "1 block in order" in why


def test_nothing_is_computed_before_it_is_asked_for():
    def never(block):
        raise AssertionError("computed")

    x = da.zeros(100, chunks=10).map_blocks(never, dtype=float, meta=np.empty(0))
    for name in ("constant", "tanh"):
        y = upsweep.scan(UPDATES[name][0], x[3], x)
        with pytest.raises(AssertionError, match="computed"):
            y.compute(scheduler="sync")


def test_what_is_refused():
    x = da.zeros((3, 100), chunks=(2, 30))
    update = COMBINED["constant"][0]
    unknown = da.zeros(10, chunks=5)[da.ones(10, chunks=5) > 0]
    with pytest.raises(
        ValueError, match=r"xs\[1\]: has chunks of unknown sizes.*xs\[1\]\.compute_chunk_sizes\(\)"
    ):
        upsweep.scan(update, 0.0, (1.0, unknown))
    with pytest.raises(ValueError, match="method: expected 'sequential' or 'tree', got 'blelloch'"):
        upsweep.scan(update, 0.0, x, method="blelloch")
    with pytest.raises(ValueError, match="method: goes with dask arrays only"):
        upsweep.scan(update, 0.0, np.zeros(3), method="tree")
    with pytest.raises(ValueError, match=r"init: shape \(4,\) does not broadcast to \(100,\)"):
        upsweep.scan(update, da.zeros(4), x)
    with pytest.raises(ValueError, match="axis 2 is out of bounds"):
        upsweep.scan(update, 0.0, x, axis=2)
    with pytest.raises(ValueError, match="length: 7 is not the length of xs along axis, 3"):
        upsweep.scan(update, 0.0, x, length=7)
    with pytest.raises(TypeError, match="xs: expected real numbers, got dtype complex128"):
        upsweep.scan(update, 0.0, x * 1j)
    with pytest.raises(TypeError, match=r"scan\.gradient: takes no dask arrays"):
        upsweep.scan.gradient(update, 0.0, x, 1.0)
