"""Counts on a device: every regime, dtype and layout against numpy; invalid keys; writes out of bounds."""

import contextlib
import ctypes

import numpy as np
import pytest
from kernel_cases import COUNT_REGIMES, SUM_REGIMES
from upsweep._backends.cuda import bincount_launch
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._backends.cuda.memory import DeviceMemory

pytestmark = pytest.mark.cuda

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
GUARD = 77  # around results: what nobody may write


def bincounts(keys, n_bins):
    """The counts along the last axis, in numpy."""
    keys = keys.reshape(int(np.prod(keys.shape[:-1])), keys.shape[-1])
    rows = [row[(row >= 0) & (row < n_bins)].astype(np.int64) for row in keys]
    return np.array([np.bincount(row, minlength=n_bins) for row in rows]).reshape(-1, n_bins)


def send(memory, array):
    """Copy an array to the device with its strides and its alignment to 16 bytes."""
    if not array.size:
        return memory.empty(array.shape, array.dtype)
    low, high = np.lib.array_utils.byte_bounds(array)
    raw = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8).copy()
    place = memory.empty((raw.size + 16,), np.dtype(np.uint8))
    at = place.pointer + (low - place.pointer) % 16
    memory.library.copy_to_device(0, 0, at, raw.ctypes.data, raw.nbytes)
    first = array.__array_interface__["data"][0]
    return ArrayDescriptor(at + first - low, array.shape, array.strides, array.dtype.name)


def fetch(memory, array, dtype=np.int64):
    result = np.empty(array.shape, dtype)
    memory.to_host(array, result)
    return result


def run(keys, n_bins, axis=-1, before=None):
    """Count on the device: counts, dropped keys, position of the first; `before` is what is added to."""
    axis %= keys.ndim
    shape = keys.shape[:axis] + (n_bins,) + keys.shape[axis + 1 :]
    with contextlib.closing(DeviceMemory(0)) as memory:
        guarded = np.full(int(np.prod(shape)) + 64, GUARD, np.int64)
        inner = guarded[32 : guarded.size - 32].reshape(shape)
        if before is not None:
            inner[...] = before
        sent = send(memory, guarded)
        strides = tuple(np.empty(shape, np.int64).strides)
        out = ArrayDescriptor(sent.pointer + 32 * 8, shape, strides, "int64")
        marks = memory.empty((2,), np.dtype(np.int64))
        bincount_launch.count(
            send(memory, keys), out, allocate=memory.allocate, axis=axis, device=0, stream=0,
            accumulate=before is not None, dropped=marks.pointer, first_outside=marks.pointer + 8,
        )  # fmt: skip
        result = fetch(memory, sent._replace(shape=guarded.shape, strides=(8,)))
        assert (result[:32] == GUARD).all() and (result[-32:] == GUARD).all()
        dropped, first = fetch(memory, marks)
    return result[32:-32].reshape(shape), int(dropped), int(first)


def check(keys, n_bins, axis=-1):
    rows = np.moveaxis(keys, axis, -1)
    expected = bincounts(rows, n_bins)
    outside = np.flatnonzero((rows.ravel() < 0) | (rows.ravel() >= n_bins))
    result, dropped, first = run(keys, n_bins, axis)
    np.testing.assert_array_equal(np.moveaxis(result, axis, -1).reshape(expected.shape), expected)
    assert dropped == len(outside)
    assert first == (outside[0] if len(outside) else -1)


def random_keys(dtype, n, n_bins, seed=0, spill=0.0):
    """Uniform keys; `spill`: the share of those that may be any number of the dtype."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(np.uint8 if dtype == "bool" else dtype)
    keys = rng.integers(0, min(n_bins, int(info.max) + 1), n, dtype=np.uint64)
    anything = rng.integers(info.min, info.max, n, dtype=info.dtype, endpoint=True)
    return np.where(rng.random(n) < spill, anything, keys.astype(info.dtype)).astype(dtype)


DISTRIBUTIONS = {
    "uniform": lambda rng, n, bins: rng.integers(0, bins, n),
    "equal": lambda rng, n, bins: np.full(n, bins - 1),
    "two": lambda rng, n, bins: rng.choice([0, bins - 1], n),
    "sorted": lambda rng, n, bins: np.sort(rng.integers(0, bins, n)),
    "zipf": lambda rng, n, bins: np.minimum(rng.zipf(1.3, n), bins) - 1,
    "multiples of 32": lambda rng, n, bins: rng.integers(0, (bins + 31) // 32, n) * 32,
}
# Around what the tables of an H200 hold 32 times, several times, once, and in shares.
BINS = [1, 2, 31, 255, 256, 257, 896, 897, 2000, 4096, 6143, 12287, 14337, 28673, 57344, 57345, 65536, 114_689]


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_bins_and_distributions(name, n_bins):
    rng = np.random.default_rng(n_bins)
    for n in (40_000, 300_001):
        keys = DISTRIBUTIONS[name](rng, n, n_bins)
        check(keys.astype(np.int64), n_bins)
        check(keys.astype(np.int32), n_bins)


PART_KEYS = 1 << 21  # from which on keys are put into parts, where the bins are too many for tables


@pytest.mark.parametrize("n_bins", [120_000, 1_000_000, 40_000_000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_parts(name, n_bins):
    n = max(PART_KEYS, n_bins // 8) + 5
    keys = DISTRIBUTIONS[name](np.random.default_rng(n_bins), n, n_bins)
    check(keys, n_bins)
    keys = keys.astype(np.uint32)
    keys[::100] = np.random.default_rng(0).integers(0, 2**32, len(keys[::100]))
    for view in (keys, keys[3:], keys[::-1]):
        check(view, n_bins)


def test_adding_parts_to_what_is_there():
    """Parts of one piece, of several and of none."""
    keys = np.concatenate([np.arange(PART_KEYS) % 32_768, random_keys("int64", 50_000, 900_000)])
    before = np.arange(1_000_000)
    result = run(keys, 1_000_000, before=before)[0]
    np.testing.assert_array_equal(result - before, np.bincount(keys, minlength=1_000_000))


def test_parts_of_a_batch():
    check(random_keys("int64", 2 * PART_KEYS, 150_000, spill=0.01).reshape(2, PART_KEYS), 150_000)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_dtypes_and_keys_outside(dtype):
    for n_bins in (1, 2, 7, 100, 128, 129, 255, 256, 300, 5000, 40_000, 70_000):
        for spill in (0.0, 0.1, 1.0):
            check(random_keys(dtype, 20_000, n_bins, seed=n_bins, spill=spill), n_bins)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_lengths_and_heads(dtype):
    for n in (0, 1, 2, 7, 31, 33, 257, 1025, 16_385):
        for begin in (0, 1, 3, 7):
            check(random_keys(dtype, n + begin, 100, spill=0.05)[begin:], 100)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64"])
@pytest.mark.parametrize("n_bins", [10, 3000, 200_000])
def test_strides(dtype, n_bins):
    keys = random_keys(dtype, 12_000, n_bins, spill=0.01)
    for view in (keys[::2], keys[::-1], keys[5::-3], np.broadcast_to(keys[7:8], (5000,))):
        check(view, n_bins)


@pytest.mark.parametrize("n_bins", [3, 700, 100_000])
def test_batches(n_bins):
    keys = random_keys("int32", 4 * 5 * 600, n_bins, spill=0.01).reshape(4, 5, 600)
    for axis in range(3) if n_bins < 1000 else [2]:  # the others have thousands of rows
        check(keys, n_bins, axis)
        check(keys[:, ::-2, 3:], n_bins, axis)
    check(keys.transpose(2, 0, 1), n_bins, 0)
    check(keys[:, :0], n_bins)
    check(keys[..., :0], n_bins)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64"])
def test_many_rows(dtype):
    for rows, length, n_bins in ((70_000 if dtype == "int8" else 2200, 3, 4), (2200, 70, 500), (2200, 1, 1)):
        keys = random_keys(dtype, rows * length, n_bins, spill=0.01).reshape(rows, length)
        check(keys, n_bins)
        check(keys.T, n_bins, 0)
        before = np.full((rows, n_bins), 3)
        np.testing.assert_array_equal(run(keys, n_bins, before=before)[0] - 3, run(keys, n_bins)[0])
    check(keys[:, :0], 5)


def test_more_axes_than_a_launch_takes():
    keys = random_keys("uint8", 2**9 * 10, 5, spill=0.01).reshape((2,) * 9 + (10,))[(slice(None, None, -1),) * 9]
    check(keys[..., ::-1].transpose(8, 1, 6, 3, 4, 5, 2, 7, 0, 9), 5)


@pytest.mark.parametrize("n_bins", [10, 5000, 70_000])
def test_adding_to_what_is_there(n_bins):
    keys, before = random_keys("int64", 20_000, n_bins), np.arange(n_bins) * 2**33
    result, dropped, first = run(keys, n_bins, before=before)
    np.testing.assert_array_equal(result, before + np.bincount(keys, minlength=n_bins))
    assert (dropped, first) == (0, -1)
    assert (run(keys[:0], n_bins, before=before)[0] == before).all()


# ---- sums of weights -------------------------------------------------------------------------------------------


def run_sums(keys, weights, n_bins, dtype, axis=-1, before=None, deterministic=False):
    axis %= keys.ndim
    shape = keys.shape[:axis] + (n_bins,) + keys.shape[axis + 1 :] + weights.shape[keys.ndim :]
    with contextlib.closing(DeviceMemory(0)) as memory:
        out = send(memory, np.full(shape, GUARD if before is None else before, dtype))
        marks = memory.empty((2,), np.dtype(np.int64))
        bincount_launch.count(
            send(memory, keys), out, allocate=memory.allocate, weights=send(memory, weights), axis=axis,
            device=0, stream=0, accumulate=before is not None, deterministic=deterministic, dropped=marks.pointer,
            first_outside=marks.pointer + 8,
        )  # fmt: skip
        return fetch(memory, out, dtype), *map(int, fetch(memory, marks))


def check_sums(keys, weights, n_bins, dtype, axis=-1, **keywords):
    """Against numpy's sums in float64, or exactly for integers."""
    result, dropped, first = run_sums(keys, weights, n_bins, dtype, axis, **keywords)
    rows = np.moveaxis(keys, axis, -1)
    outside = np.flatnonzero((rows.ravel() < 0) | (rows.ravel() >= n_bins))
    assert (dropped, first) == (len(outside), outside[0] if len(outside) else -1)
    columns = weights[..., None] if weights.ndim == keys.ndim else weights
    rows = rows.reshape(int(np.prod(rows.shape[:-1])), rows.shape[-1])
    columns = np.moveaxis(columns, axis % keys.ndim, -2).reshape(*rows.shape, columns.shape[-1])
    wide = np.result_type(dtype, np.float64) if np.dtype(dtype).kind in "fc" else np.int64
    exact = np.zeros((len(rows), n_bins, columns.shape[-1]), wide)
    scale = np.zeros(exact.shape)
    for row, (k, w) in enumerate(zip(rows, columns)):
        inside = (k >= 0) & (k < n_bins)
        np.add.at(exact[row], k[inside].astype(np.int64), w[inside].astype(wide))
        np.add.at(scale[row], k[inside].astype(np.int64), np.abs(w[inside].astype(wide)).astype(float))
    if keywords.get("before") is not None:
        exact += keywords["before"]
        scale += abs(keywords["before"])
    result = result[..., None] if weights.ndim == keys.ndim else result
    result = np.moveaxis(result, axis % keys.ndim, -2).reshape(exact.shape)
    if wide is np.int64:
        np.testing.assert_array_equal(result, exact)
    else:
        half_unit = np.finfo(result.dtype).eps / 2 * np.abs(exact)
        assert (np.abs(result - exact) <= half_unit + 1e-15 * 64 * scale).all()


def random_weights(dtype, shape, seed=5):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.kind == "c" else values).astype(dtype)


@pytest.mark.parametrize("n_bins", [1, 3, 100, 1800, 4096, 14_000, 40_000, 200_000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sums(name, n_bins):
    rng = np.random.default_rng(n_bins)
    for n, deterministic in ((5, False), (50_003, False), (50_003, True)):
        keys = DISTRIBUTIONS[name](rng, n, n_bins)
        weights = random_weights(np.float32, n)
        check_sums(keys, weights, n_bins, np.float32, deterministic=deterministic)
        check_sums(keys.astype(np.int32), weights.astype(float), n_bins, np.float64, deterministic=deterministic)
        check_sums(keys[::-2], weights[::-2], n_bins, np.float64, before=3.5)
        check_sums(keys, random_weights(np.int64, n), n_bins, np.int64)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sums_of_parts(name, dtype):
    for n_bins in (40_000, 1_000_003):  # few and many parts
        keys = DISTRIBUTIONS[name](np.random.default_rng(n_bins), PART_KEYS + 5, n_bins).astype(dtype)
        weights = random_weights(np.float32, keys.size)
        check_sums(keys, weights, n_bins, np.float32)
        check_sums(keys[3:], weights[3:], n_bins - 11, np.float64, before=3.5)
        check_sums(keys[:-1], weights[1:], n_bins, np.float64)  # which begin otherwise than the keys


@pytest.mark.parametrize("dtype", [*INTEGERS, "float16", "float32", "float64", "complex64", "complex128"])
def test_dtypes_of_weights(dtype):
    for n_bins in (70, 30_000):
        keys = random_keys("int16", 10_000, n_bins, spill=0.1)
        weights = random_weights(dtype, 10_000)
        check_sums(keys, weights, n_bins, np.complex128 if "complex" in dtype else np.float64)
        check_sums(keys, weights, n_bins, np.complex64 if "complex" in dtype else np.float32)
        if dtype in INTEGERS:
            with np.errstate(over="ignore"):
                check_sums(keys, weights, n_bins, np.int64, before=-5)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_by_keys_of_every_dtype(dtype):
    for n_bins in (2, 100, 300):
        keys = random_keys(dtype, 5000, n_bins, spill=0.1)
        check_sums(keys, random_weights(np.float32, 5000), n_bins, np.float64)


@pytest.mark.parametrize("n_bins", [7, 40_000])
def test_sums_of_batches_and_columns(n_bins):
    keys = random_keys("int64", 3 * 4 * 500, n_bins, spill=0.01).reshape(3, 4, 500)
    for axis in range(3) if n_bins < 1000 else [2]:  # the others have thousands of rows
        check_sums(keys, random_weights(np.float32, keys.shape), n_bins, np.float64, axis)
        check_sums(keys, random_weights(np.float64, (*keys.shape, 3))[..., ::-1], n_bins, np.float64, axis)
    transposed = random_weights(np.complex64, (500, 4, 3)).transpose(2, 1, 0)
    check_sums(keys[..., 1:], transposed[..., 1:], n_bins, np.complex128)
    check_sums(keys[..., :0], transposed[..., :0], n_bins, np.complex128)
    repeated = np.broadcast_to(np.float32(0.1), keys.shape)
    check_sums(keys, repeated, n_bins, np.float32)


def test_sums_with_what_is_not_finite():
    keys = np.tile(np.arange(7), 5000)
    weights = np.ones(keys.size, np.float32)
    weights[[3, 7 * 300 + 1, 7 * 300 + 2, 7 * 4000 + 2]] = np.nan, np.inf, np.inf, -np.inf
    result = run_sums(keys, weights, 7, np.float32)[0]
    np.testing.assert_array_equal(result, [5000, np.inf, np.nan, np.nan, 5000, 5000, 5000])


@pytest.mark.parametrize("n_bins", [3, 4000, 60_000])
def test_sums_in_order_have_the_same_bits(n_bins):
    rng = np.random.default_rng(0)
    keys, weights = (
        rng.integers(0, n_bins, 200_000),
        rng.standard_normal(200_000) * 10.0 ** rng.integers(-9, 9, 200_000),
    )
    first = run_sums(keys, weights, n_bins, np.float64, deterministic=True)[0]
    for _ in range(5):
        assert run_sums(keys, weights, n_bins, np.float64, deterministic=True)[0].tobytes() == first.tobytes()


def test_what_cannot_be_summed():
    keys, floats = np.arange(5), np.ones(5)
    with pytest.raises(ValueError, match="out of sums of floats has to be float32 or float64"):
        run_sums(keys, floats, 5, np.int64)
    with pytest.raises(ValueError, match="out of sums has to be int64, float32 or float64"):
        run_sums(keys, floats, 5, np.float16)
    with pytest.raises(ValueError, match="dtype of keys is no integer"):
        run_sums(floats, floats, 5, np.float64)


def key_range(keys, axis=-1):
    with contextlib.closing(DeviceMemory(0)) as memory:
        largest, first = bincount_launch.read_range(
            "key_range", send(memory, keys), 2, axis=axis % keys.ndim, device=0, stream=0, allocate=memory.allocate
        )
    return largest % 2**64 if keys.dtype.kind in "ub" else largest, first


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ranges(dtype):
    info = np.iinfo(np.uint8 if dtype == "bool" else dtype)
    for n in (1, 5, 1000, 70_001):
        keys = np.random.default_rng(n).integers(0, int(info.max), n, info.dtype, endpoint=True)
        keys = keys.astype(dtype)
        for view in (keys, keys[::-1], keys[n // 2 :]):
            assert key_range(view) == (int(view.max()), -1)
        if info.min < 0:
            keys[[-1, n // 3]] = -1, info.min
            assert key_range(keys) == (max(int(keys.max()), -1), n // 3)
            assert key_range(keys[: n // 3]) == (int(keys[: n // 3].max(initial=-1)), -1)
    assert key_range(np.empty(0, dtype)) == (-1 if info.min < 0 else 0, -1)


def test_a_range_of_a_batch():
    keys = random_keys("int32", 600, 50).reshape(10, 60)
    keys[7, 3] = -5
    assert key_range(keys) == (49, 7 * 60 + 3)
    assert key_range(keys, axis=0) == (49, 3 * 10 + 7)


def test_regimes_that_were_meant():
    """That the shapes above are those of every regime."""
    keys = ArrayDescriptor(1 << 20, (PART_KEYS,), (8,), "int64")

    def plan(n, keys=keys):
        out = ArrayDescriptor(1 << 30, (n,), (8,), "int64")
        return bincount_launch.plan(bincount_launch.describe(keys, out, axis=0, device=0, stream=0), 132)

    answers = [plan(n) for n in (*BINS, 120_000, 1 << 28)]
    assert {COUNT_REGIMES[a.regime] for a in answers} == {"tables", "memory", "parts"}
    assert {a.replicas for a in answers} == {1, 2, 4, 8, 16, 32} and {a.shares for a in answers} == {1, 2}
    many = bincount_launch.describe(
        keys._replace(shape=(5000, 20), strides=(160, 8)),
        ArrayDescriptor(1 << 30, (5000, 9), (72, 8), "int64"), axis=1, device=0, stream=0,
    )  # fmt: skip
    assert COUNT_REGIMES[bincount_launch.plan(many, 132).regime] == "rows"
    weights = keys._replace(strides=(4,), dtype="float32")
    sums = bincount_launch.describe(
        keys, ArrayDescriptor(1 << 30, (120_000,), (4,), "float32"), weights, axis=0, device=0, stream=0
    )  # fmt: skip
    assert SUM_REGIMES[bincount_launch.plan(sums, 132).regime] == "parts"
    few = plan(120_000, keys._replace(shape=(PART_KEYS - 1,)))
    assert COUNT_REGIMES[few.regime] == "memory" and few.workspace_bytes == 0
    assert plan(120_000).workspace_bytes > 2 * PART_KEYS


# ---- histograms ------------------------------------------------------------------------------------------------

REALS = [*INTEGERS, "float16", "float32", "float64"]


def run_histogram(x, thresholds, n_bins, weights=None, dtype=np.int64, before=None, **hint):
    thresholds = np.asarray(thresholds, bincount_launch.threshold_dtype(x.dtype.name))
    with contextlib.closing(DeviceMemory(0)) as memory:
        guarded = np.full(n_bins + 16, GUARD, dtype)
        if before is not None:
            guarded[8:-8] = before
        sent = send(memory, guarded)
        size = guarded.itemsize
        out = ArrayDescriptor(sent.pointer + 8 * size, (n_bins,), (size,), guarded.dtype.name)
        dropped = memory.empty((1,), np.dtype(np.int64))
        bincount_launch.histogram(
            send(memory, x), send(memory, thresholds), out, allocate=memory.allocate,
            weights=None if weights is None else send(memory, weights), device=0, stream=0,
            accumulate=before is not None, deterministic=True, dropped=dropped.pointer, **hint,
        )  # fmt: skip
        result = fetch(memory, sent._replace(shape=guarded.shape, strides=(size,)), dtype)
        assert (result[:8] == GUARD).all() and (result[-8:] == GUARD).all()
        return result[8:-8], int(fetch(memory, dropped)[0])


def slots_of(x, thresholds):
    """What is meant, in numpy; NaN is in slot 0."""
    kind = np.dtype(bincount_launch.threshold_dtype(x.dtype.name))
    x = x.ravel().astype(kind)
    return np.where(x == x, np.searchsorted(np.asarray(thresholds, kind), x, "right"), 0)


def check_histogram(x, thresholds, n_bins, **hint):
    slots = slots_of(x, thresholds)
    inside = (slots > 0) & (slots <= n_bins)
    expected = np.bincount(slots[inside] - 1, minlength=n_bins)
    result, dropped = run_histogram(x, thresholds, n_bins, **hint)
    np.testing.assert_array_equal(result, expected)
    assert dropped == (~inside).sum()
    result, _ = run_histogram(x, thresholds, n_bins, before=7, **hint)
    np.testing.assert_array_equal(result, expected + 7)


def random_elements(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        return random_weights(dtype, shape, seed)
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    x.ravel()[:: max(x.size // 7, 1)] = np.nan
    x.ravel()[1 :: max(x.size // 5, 1)] = np.inf
    x.ravel()[2 :: max(x.size // 5, 1)] = -np.inf
    return x


@pytest.mark.parametrize("dtype", REALS)
def test_histograms_of_every_dtype(dtype):
    for n, n_bins in ((3, 2), (5000, 1), (20_001, 100), (20_001, 3000), (20_001, 70_000)):
        x = random_elements(dtype, n, seed=n_bins)
        some = x[np.isfinite(x)].astype(float) if dtype in REALS[-3:] else x.astype(float)
        some = np.append(some, [0.0, 1.0])
        low, high = np.quantile(some, 0.1), np.quantile(some, 0.9) + 1
        kind = bincount_launch.threshold_dtype(dtype)
        even = np.linspace(low, high, n_bins + 1)
        if kind in ("int64", "uint64"):
            even = np.unique(even.astype(kind))
        for view in (x, x[1:], x[::-2]):
            check_histogram(view, even, n_bins, origin=low, scale=n_bins / (high - low))
            check_histogram(view, even, n_bins, origin=low + 1, scale=1.0)  # a guess that is wrong
        uneven = np.sort(np.random.default_rng(1).choice(even, len(even)))  # some of them repeat
        check_histogram(x, uneven, n_bins, origin=low, scale=n_bins / (high - low))
        check_histogram(x, even[: len(even) // 2], n_bins)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elements_on_thresholds(dtype):
    kind = bincount_launch.threshold_dtype(dtype)
    edges = np.linspace(-1, 1, 101).astype(dtype)
    x = np.concatenate([edges, np.nextafter(edges, np.array(9, dtype)), -edges, edges * 0])
    check_histogram(np.repeat(x, 37), edges.astype(kind), 100, origin=-1, scale=50)
    check_histogram(np.zeros(1, dtype), np.empty(0, kind), 5)


def test_histograms_of_any_shape_and_weights():
    x = random_elements("float32", (30, 40, 50))
    weights = random_weights(np.float32, x.shape)
    thresholds = np.linspace(-5, 5, 201)
    for view, of in (
        (x, weights),
        (x.transpose(2, 0, 1), weights),
        (x[::-1, ::2], weights[:, :20].copy()),
    ):
        check_histogram(view, thresholds, 200, origin=-5, scale=20)
        of = of.reshape(view.shape) if of.size == view.size else np.resize(of, view.shape)
        slots = slots_of(view, thresholds)
        inside = (slots > 0) & (slots <= 200)
        expected = np.bincount(slots[inside] - 1, of.ravel()[inside].astype(float), 200)
        result, dropped = run_histogram(view, thresholds, 200, of, np.float64, origin=-5, scale=20)
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
        assert dropped == (~inside).sum()
    result, _ = run_histogram(x, thresholds, 200, (weights * (1 - 2j)).astype(np.complex64), np.complex128)
    slots = slots_of(x, thresholds)
    expected = np.bincount(slots, weights.ravel(), 202)[1:-1] * (1 - 2j)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="one stride apart"):
        run_histogram(x, thresholds, 200, weights.transpose(1, 0, 2).reshape(30, 40, 50, order="F"), np.float64)


@pytest.mark.parametrize("dtype", REALS)
def test_value_ranges(dtype):
    for shape in ((1,), (1000,), (50, 20, 31), ()):
        x = np.asarray(random_elements(dtype, shape, seed=3))
        finite = np.isfinite(x.ravel().astype(float)) if dtype in REALS[-3:] else np.ones(x.size, bool)
        for view, first in (
            (x, -1 if finite.all() else int(np.argmin(finite))),
            (np.where(finite.reshape(x.shape), x, 0).astype(dtype), -1),
        ):
            with contextlib.closing(DeviceMemory(0)) as memory:
                least, largest, position = bincount_launch.find_extremes(
                    send(memory, view), device=0, stream=0, allocate=memory.allocate
                )
            assert position == first
            if first < 0:
                assert (least, largest) == (view.min(), view.max())
