"""Small calls that reach every family of CUDA kernels, with their results compared: what `cuda/sanitize.py` runs.

A group is a function of `GROUPS`. The regimes and algorithms that its calls take are recorded, and `run_group`
raises if one of `COVERAGE` is missing, so that a change of the planner cannot leave a kernel without its case. The
groups of `ON_HOST` need no device: with `devices.FakeCuda` they run on the CPU.
"""

import contextlib
import ctypes
from unittest import mock

import numpy as np
import upsweep
from device_scan_cases import AFFINE, OTHERS, DevicePlace, cell, mixed, with_places
from device_scan_cases import check as check_update
from device_scan_cases import scan as scan_on
from helpers import BFLOAT16, flat, random
from pair_cases import compare as compare_pairs
from pair_cases import gaussian, of_name, random_arrays, run_on_device, some_ranges
from te_cells import diagonals, diagonals_by_hand, gru, lstm
from upsweep import te
from upsweep._backends.cuda import abi, bincount_launch, driver, library, scan_launch, user_scan_launch
from upsweep._backends.cuda.memory import DeviceMemory
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.formulas.nodes import make, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction

REGIMES = (  # by upsweep_plan.regime
    "nothing", "short lines", "lines", "split lines", "columns", "split columns", "window", "packed lines",
    "cluster lines", "persistent lines", "held columns", "wide columns", "resident lines", "block lines",
)  # fmt: skip
COUNT_REGIMES = ("nothing", "tables", "memory", "parts", "rows")  # by upsweep_count_plan.regime
SUM_REGIMES = ("nothing", "own tables", "replicas", "memory", "parts")  # the same, with weights

# Relative to an element, and to the largest one, by the bytes of a real number.
TOLERANCE = {2: 2e-2, 4: 1e-5, 8: 1e-9}


def compare(result, expected):
    """Raise AssertionError unless results have the dtypes, shapes and nearly the values of the CPU's."""
    for actual, exact in zip(flat(result), flat(expected), strict=True):
        actual, exact = np.asarray(actual), np.asarray(exact)
        assert actual.dtype == exact.dtype and actual.shape == exact.shape
        if exact.dtype.kind in "biu":
            np.testing.assert_array_equal(actual, exact)
            continue
        is_complex = exact.dtype.kind == "c"
        tolerance = TOLERANCE[exact.dtype.itemsize // (2 if is_complex else 1)]
        wide = np.complex128 if is_complex else np.float64
        finite = np.abs(exact[np.isfinite(exact)].astype(wide))
        largest = finite.max() if finite.size else 0.0
        np.testing.assert_allclose(
            actual.astype(wide), exact.astype(wide), rtol=tolerance, atol=tolerance * largest + 1e-30
        )


def check(name, *arrays, **keywords):
    """Compare a public function of numpy arrays on the device with itself on the CPU."""
    function = getattr(upsweep, name)
    with np.errstate(all="ignore"):
        compare(function(*arrays, device="cuda", **keywords), function(*arrays, **keywords))


def n_processors():
    return driver.device(0).n_processors


# ---- scans -----------------------------------------------------------------------------------------------------


def check_scans(shape, dtype, axis=-1, options=True):
    """Sums, one factor, gates; with `options` both directions, states, resets and infinities."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        x = random(shape, dtype, high=100.0)
        check("cumulative_sum", x, axis=axis)
        check("cumulative_sum", x, axis=axis, reverse=True, exclusive=True, reset=random(shape) > 0.99)
        return
    x, gates = random(shape, dtype), random(shape, dtype, 1, 0.5, 0.7 if dtype.kind == "c" else 1.0)
    check("cumulative_sum", x, axis=axis)
    check("linear_recurrence", gates, x, axis=axis, reverse=True)
    if not options:
        return
    initial = random(x.sum(axis).shape, np.complex128 if dtype.kind == "c" else np.float64, 2)
    check("discounted_cumsum", x, 0.9, axis=axis, reverse=True, return_final=True)
    check("linear_recurrence", gates, x, axis=axis, initial=initial, return_final=True)
    check("linear_recurrence", gates, x, axis=axis, initial=initial, exclusive=True)
    reset = np.random.default_rng(3).random(shape) < 0.002
    check("linear_recurrence", gates, x, axis=axis, reset=reset, initial=initial, return_final=True)
    check("discounted_cumsum", x, 0.9, axis=axis, reset=reset, reverse=True)
    if dtype.kind == "c":
        return
    # Steps over all states: products that overflow in front of states that are 0, and infinities.
    tokens, factors = np.moveaxis(x.copy(), axis, -1), np.moveaxis(gates.copy(), axis, -1)
    length = shape[axis]
    tokens[..., : length // 2] = 0
    huge = np.sqrt(np.finfo(np.float32 if dtype.itemsize > 2 and dtype != BFLOAT16 else np.float16).max)
    factors[..., length // 8 : length // 4], factors[..., length // 4 : length // 3] = huge, 1 / huge
    tokens[..., 3 * length // 4], tokens[..., -1] = np.inf, -np.inf
    tokens, factors = (np.ascontiguousarray(np.moveaxis(a, -1, axis)) for a in (tokens, factors))
    check("linear_recurrence", factors, tokens, axis=axis)
    check("cumulative_sum", tokens, axis=axis, reverse=True)


def check_lines():
    """Lines that one warp, block or cluster scans, at lengths that do and do not fill vectors."""
    for shape in ((300, 20), (301, 21), (300, 100), (300, 3000), (300, 3001), (2, 50_000), (1, 99_997)):
        check_scans(shape, np.float32)
        for dtype in (np.float16, BFLOAT16, np.float64):
            check_scans(shape, dtype, options=shape == (300, 3001))
    for dtype in (np.float16, BFLOAT16):  # by blocks that iterate over tiles
        check("discounted_cumsum", random((300, 9000), dtype), 0.9, reverse=True)
    for shape in ((300, 30), (300, 1001)):  # kernels of any dtype and any strides
        for dtype in (np.complex64, np.complex128, np.int64):
            check_scans(shape, dtype)
        check("linear_recurrence", random(shape, np.float16, 1), random(shape, np.float32))
        check("discounted_cumsum", random(shape, np.float32), random((shape[0], 1), np.float64, 1))


def check_split_lines():
    """Lines over several blocks: look-back with short and long tiles, persistent and resident lines."""
    for dtype in (np.float16, np.float32, np.float64):
        check_scans((3, 200_001), dtype)
    for dtype in (np.complex64, np.int64):
        check_scans((2, 40_001), dtype)
    n_tiles = 4 * n_processors()
    check_scans((16, -(-n_tiles // 16) * 8192 + 5), np.float32, options=False)
    for dtype in (np.float16, np.float32):  # resident lines, of which some pieces are read again
        x = random((n_processors() // 4, 270_001), dtype)
        check("discounted_cumsum", x, 0.999, reverse=dtype == np.float16)
        check("cumulative_sum", random((3, n_processors() * 5000), dtype))
    # The fewest tiles that the persistent scan takes: eight for each processor.
    for dtype, tile in ((np.float32, 8192), (np.float64, 4096), (np.float16, 16_384)):
        x = random((2, 4 * n_processors() * tile + 4097), dtype)
        initial = random(2, np.float64, 1)
        check("cumulative_sum", x, initial=initial, return_final=True, reverse=dtype == np.float32)
        if dtype == np.float32:
            gates = random(x.shape, dtype, 2, 0.9, 1.0)
            check("linear_recurrence", gates, x)
            gates[0, 100_000:200_000], x[0, 50_000:400_000], x[1, 70_000] = 1e30, 0, np.inf
            check("linear_recurrence", gates, x)


def check_columns():
    """Interleaved lines: a thread for two columns, a block for 8 or 32, and columns that are split over blocks."""
    for dtype in (np.float16, np.float32, np.float64):
        check_scans((19, 1 << 15), dtype, axis=0, options=dtype == np.float32)
    for dtype in (np.float16, BFLOAT16, np.float32, np.float64, np.complex64, np.int64):
        options = dtype == np.float32
        check_scans((150, 9001), dtype, 0, options)
        check_scans((4001, 33), dtype, 0)
        check_scans((9001, 8), dtype, 0, options)
        check_scans((2, 3001, 13), dtype, 1, options)
    check("linear_recurrence", random((4001, 40), np.float16, 1), random((4001, 40), np.float32), axis=0)


def check_windows():
    """Windowed sums: of lines, near and far (float64), each result on its own, and segments."""
    for dtype in (np.float16, np.float32, np.float64, np.complex128, np.int8):
        x = random((3, 5001), dtype, high=9.0)
        for window in (7, 300, 3000):
            check("discounted_cumsum", x, 0.99, window=window)
            check("discounted_cumsum", x, 0.99, window=window, reverse=True, reset=random(x.shape) > 0.99)
    check("discounted_cumsum", random((700, 3)), random(3, seed=1), axis=0, window=40)
    x = random(20_000)
    x[7777] = np.inf
    check("discounted_cumsum", x, 0.5, window=1003)


def check_aggregates():
    """Aggregates of blocks of steps."""
    shapes = (
        ((3, 40), 1),
        ((700, 3001), 1),
        ((3, 30_001), 1),
        ((300, 2000), 0),
        ((20_000, 33), 0),
        ((2, 50, 3), 1),
    )
    for shape, axis in shapes:
        for dtype in (np.float16, np.float32, np.float64, np.complex64):
            x, gates = random(shape, dtype), random(shape, dtype, 1, 0.5, 0.7)
            reset = random(shape, seed=4) > 0.999
            check("cumulative_sum_carry", x, axis=axis)
            check("discounted_cumsum_carry", x, 0.9, axis=axis, reverse=True)
            check("linear_recurrence_carry", gates, x, axis=axis, reset=reset)
        check("cumulative_sum_carry", random(shape, np.int64, high=99.0), axis=axis, reset=reset)
    # No product of other gates vanishes: one that is infinite is infinite in any order.
    x, gates = random((3, 30_000), np.float32), random((3, 30_000), np.float32, 1, 0.99, 1.0)
    x[:, 10_000], gates[:, 5_000:6_000] = np.inf, 1e30
    check("linear_recurrence_carry", gates, x)


def check_gradients():
    """Gradients of gates and tokens of contiguous lines, in one kernel."""
    for dtype in (np.float16, np.float32, np.float64):
        for shape in ((300, 20), (301, 21), (300, 257), (300, 3001)):
            g, gates, y = (random(shape, dtype, seed, 0.1, 0.9) for seed in range(3))
            for reverse in (False, True):
                _check_gradient(g, gates, y, reverse)


def _check_gradient(g, gates, y, reverse):
    with contextlib.closing(DeviceMemory(0)) as memory:
        inputs = [memory.to_device(array) for array in (gates, y, g)]
        outputs = [memory.empty(g.shape, g.dtype) for _ in range(2)]
        pointers = [array.pointer for array in (*inputs, *outputs)]
        request = abi.LinesBackward(0, abi.DTYPES[g.dtype.name], reverse, 0, None, *pointers, *g.shape)
        assert library.load().lines_backward(ctypes.byref(request)) == abi.OK
        results = [np.empty_like(g) for _ in outputs]
        for output, result in zip(outputs, results):
            memory.to_host(output, result)
    step = slice(None, None, -1 if reverse else 1)
    g, gates, y = (array[:, step].astype(np.float64) for array in (g, gates, y))
    none = np.zeros((len(g), 1))
    gx = upsweep.linear_recurrence(np.hstack([gates[:, 1:], none]), g, reverse=True)
    expected = gx, gx * np.hstack([none, y[:, :-1]])
    compare(tuple(results), tuple(array[:, step].astype(results[0].dtype) for array in expected))


# ---- counts ----------------------------------------------------------------------------------------------------


def integers(high, shape, dtype=np.int64, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def check_counts():
    """Counts by every algorithm, and the range of keys."""
    for dtype in (np.uint8, np.int16, np.int32, np.int64):
        check("bincount", integers(100, 100_001, dtype))
        check("bincount", integers(100, (2200, 50), dtype), axis=1)
        check("bincount", integers(100, 100_001, dtype)[::2], length=60, invalid="drop", return_invalid=True)
    for n_bins, dtype in ((2, np.int64), (6143, np.int32), (30_000, np.int64), (65_536, np.int64)):
        check("bincount", integers(n_bins, 1_000_003, dtype))
    check("bincount", np.full(300_000, 17), length=50_000)
    for n_bins in (200_000, 1_000_003, 20_000_000):  # few and many parts
        check("bincount", integers(n_bins, (1 << 21) + 3), length=n_bins)
        check("bincount", integers(n_bins, (1 << 21) + 3, np.int32), length=n_bins - 7, invalid="drop")
    check("bincount", np.full((1 << 21) + 3, 70_000), length=200_000)
    check("bincount", integers(1_000_000, 3001), length=1_000_000, invalid="drop", return_invalid=True)
    check("bincount", integers(50, (3, 1001, 2)), axis=1)


def check_sums():
    """Sums of weights by every algorithm, in any and in a fixed order."""
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.complex64):
        for n_bins in (5, 300, 5000):
            weights = random(100_001, dtype, high=9.0)
            check("bincount", integers(n_bins, 100_001), weights)
    for keys in (np.uint8, np.int16, np.int32):
        check("bincount", integers(100, (300, 501), keys), random((300, 501), np.float32), axis=1)
    weights = random(300_001, np.float32)
    for n_bins in (5, 300, 5000, 40_000, 65_536):
        for deterministic in (False, True):
            check("bincount", integers(n_bins, 300_001), weights, deterministic=deterministic)
    check("bincount", integers(200_000, (1 << 21) + 3), random((1 << 21) + 3, np.float32), length=200_000)
    check("bincount", np.where(weights > 0, 3, integers(200_000, 300_001)), weights, length=200_000)
    check("bincount", integers(1_000_000, 3001), weights[:3001], length=1_000_000, invalid="drop")
    check("bincount", integers(50, 3001), random((3001, 3)))


def check_histograms():
    """Histograms of uniform bins and of thresholds, in one pass and by ranks, and the range of elements."""
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.int64, np.uint64):
        x = random(100_003, np.float64, low=0.0, high=90.0).astype(dtype)
        for bins, limits in ((100, None), (7, (0, 50)), ([0, 1, 1.5, 40], None)):
            check("histogram", x, bins, limits)
        if np.dtype(dtype).kind == "f":
            check("histc", x, 100, 3, 60)
            check("histogram", x, 30, weights=random(len(x), np.float32))
    x = random((100, 1003), np.float32)
    check("histogram", x, 100_000, (-1.0, 1.0))
    check("histogram", x[:, ::2], 50)
    check("histogram", x, np.sort(random(5000)), weights=random(x.shape, np.float64, 1))
    check("histc", x, 100_000, -0.5, 0.5)


# ---- kernels that NVRTC compiles -------------------------------------------------------------------------------


def check_pairs():
    """Every reduction over pairs: split columns, long vectors on tensor cores, ranges, batches."""

    def check_pair(reduction, arrays, n_i, n_j, batch=(), ranges=None, tolerance=2e-5):
        results = run_on_device(reduction, arrays, n_i, n_j, batch, ranges)
        compare_pairs(results, reduction, arrays, n_i, n_j, batch, ranges, tolerance)

    rng = np.random.default_rng(0)
    ranges = some_ranges(rng, 300, 700, 5)
    for name in REDUCTIONS:
        check_pair(of_name(name), random_arrays(33, 3001), 33, 3001)  # columns are split over blocks
        check_pair(of_name(name), random_arrays(300, 700), 300, 700, ranges=ranges)
    check_pair(of_name("sum", "float64"), random_arrays(300, 500, dtype="float64"), 300, 500)
    check_pair(of_name("sum", "float16"), random_arrays(300, 500, dtype="float16"), 300, 500, tolerance=4e-3)
    for dim in (33, 64, 100):
        x, y, b = random_arrays(300, 400, (dim, dim, 1))
        x, y, b = x / dim**0.5, y / dim**0.5, np.abs(b)
        check_pair(PairReduction(gaussian(dim), "sum"), [x, y, b], 300, 400)
        squares = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
        check_pair(PairReduction(squares, "kmin", k=5), [x, y], 300, 400)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in [(3, 1, 40, 3), (2, 60, 3), (3, 2, 60, 1)]]
    check_pair(PairReduction(gaussian(), "sum"), arrays, 40, 60, (3, 2))
    check_pair(PairReduction(gaussian(), "sum"), arrays, 40, 60, (3, 2), some_ranges(rng, 40, 60, 3))


def check_updates():
    """Scans by a user's update: columns, lines, chunks of time, one pass by look-back and persistent."""
    with contextlib.closing(DeviceMemory(0)) as memory, mock.patch.object(library, "find", lambda: None):
        place = DevicePlace(memory)  # without the library, whose kernels would run updates of linear_recurrence
        for shape in ((70, 3), (33, 65), (300, 700)):
            for order in "CF":
                check_update(place, cell, 0.25, np.asarray(random(shape, np.float32), order=order))
        inputs = random((400, 70), np.float32), random((400, 70), np.float16, 1)
        inputs += random((400, 1), np.float32, 2), random((1, 70), np.float32, 3)
        check_update(place, mixed, (0.5, random(70, np.float32, 4)), inputs, tolerance=1e-2)
        for update, init in AFFINE.values():
            for shape in ((20_001,), (1500, 3)):  # one pass with look-back; chunks
                check_update(place, update, init, random(shape), parallel=True, tolerance=1e-9)
        for name, (update, init) in OTHERS.items():
            x = with_places(name, np.round(random(20_001), 2))
            check_update(place, update, init, x, parallel=True, tolerance=1e-9)
        # Tiles enough for the persistent scan.
        x = random(4_400_001, np.float32)
        for update in (lambda s, x: 0.9 * s + 0.1 * x, lambda s, x: np.maximum(s - 0.01, x)):
            expected = upsweep.scan(update, 0.5, x, return_final=True)
            results = scan_on(place, update, 0.5, x, parallel=True)
            for result, exact in zip(results, expected, strict=True):  # steps are rounded to float32
                np.testing.assert_allclose(result, exact, rtol=1e-3, atol=1e-3)


def check_programs():
    """Programs of `te`: kernels for each step, barriers within blocks, products of matrices."""
    x = random((20, 3000), np.float32)
    compare(te.build(*diagonals(), "cuda")(x), diagonals_by_hand(x))
    *_, X, Wx, Wh, cells, outputs = lstm()
    _check_program([X, Wx, Wh], [cells, outputs], [(9, 5, 6), (4, 6, 40), (4, 40, 40)])
    *_, X, Wx, Wh, cells, outputs = lstm(128)
    _check_program([X, Wx, Wh], [cells, outputs], [(5, 3, 40), (4, 40, 128), (4, 128, 128)])
    X, W, scan = gru(70)
    _check_program([X, W], [scan], [(9, 4, 3, 70), (3, 70, 70)], np.float64)


def _check_program(inputs, outputs, shapes, dtype=np.float32):
    arrays = [random(shape, dtype, seed, -0.3, 0.3) for seed, shape in enumerate(shapes)]
    schedule = te.create_schedule(outputs[-1].op)
    results = (te.build(schedule, [*inputs, *outputs], target)(*arrays) for target in ("cuda", "cpu"))
    compare(*(each if isinstance(each, tuple) else (each,) for each in results))


_NAMED_BARRIERS = """
struct Call { unsigned long long *data, n; };
constexpr int kWarps = 16, kThreads = kWarps * 32;
template <int kThreads> __device__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <int kThreads> __device__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
// All warps but two scan. The first of these gives them a state each round, the other one what they read three
// rounds later, and the total of what they have arrived with.
extern "C" __global__ void rounds(const Call call) {
  __shared__ int states[2], steps[2][kWarps], lines[4], totals[2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = call.n;
  if (threadIdx.x < 3) lines[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (warp >= kWarps) {
    const auto combine = [&](int r) {
      meet<kThreads + 32>(3);
      if (lane == 0) totals[r % 2] = 0;
      __syncwarp();
      if (lane < kWarps) atomicAdd(&totals[r % 2], steps[r % 2][lane]);
    };
    if (warp == kWarps + 1) combine(0);
    meet<kThreads + 64>(2);
    for (int r = 0; r < n; ++r) {
      if (lane == 0) (warp == kWarps ? states[r % 2] : lines[(r + 3) % 4]) = warp == kWarps ? r : r + 3;
      __syncwarp();
      if (warp > kWarps && r + 1 < n) combine(r + 1);
      meet<kThreads + 64>(2);
    }
    return;
  }
  int sum = 0;
  const auto reduce = [&](int r) {
    if (lane == 0) steps[r % 2][warp] = lines[r % 4];
    meet<kThreads>(1);
    sum += steps[r % 2][kWarps - 1 - warp];
    arrive<kThreads + 32>(3);
  };
  reduce(0);
  meet<kThreads + 64>(2);
  for (int r = 0; r < n; ++r) {
    if (r + 1 < n) reduce(r + 1);
    sum += lines[r % 4];
    meet<kThreads + 64>(2);
    sum += states[r % 2] + totals[r % 2];   // which is written again when this warp has arrived once more
  }
  call.data[blockIdx.x * kThreads + threadIdx.x] = sum;
}
"""


def check_named_barriers():
    """Barriers as persistent scans have them: what tools report of this kernel, they report of those scans."""
    gpu, blocks, warps, rounds = driver.device(0), 32, 16, 64
    function = gpu.load(nvrtc.fetch_or_compile(_NAMED_BARRIERS, (), gpu.capability)).function("rounds")
    with contextlib.closing(DeviceMemory(0)) as memory:
        sums = np.empty(blocks * warps * 32, np.uint64)
        on_device = memory.empty(sums.shape, sums.dtype)
        function.launch(blocks, (warps + 2) * 32, 0, (ctypes.c_uint64 * 2)(on_device.pointer, rounds))
        memory.to_host(on_device, sums)
    compare(sums, np.full(sums.shape, (3 + warps) * rounds * (rounds - 1) // 2, np.uint64))


# ---- groups ----------------------------------------------------------------------------------------------------

GROUPS = {
    "lines": check_lines, "split lines": check_split_lines, "columns": check_columns, "windows": check_windows,
    "aggregates": check_aggregates, "gradients": check_gradients, "counts": check_counts, "sums": check_sums,
    "histograms": check_histograms, "pairs": check_pairs, "updates": check_updates, "programs": check_programs,
    "named barriers": check_named_barriers,
}  # fmt: skip
ON_HOST = ("lines", "split lines", "columns", "windows", "aggregates", "counts", "sums", "histograms")
COVERAGE = {
    "lines": {"packed lines", "short lines", "block lines", "lines", "cluster lines"},
    "split lines": {"split lines", "persistent lines", "resident lines"},
    "columns": {"columns", "split columns", "held columns", "wide columns"},
    "windows": {"window"},
    "aggregates": {"aggregates: short lines", "aggregates: lines", "aggregates: columns"},
    "counts": {f"counts: {name}" for name in COUNT_REGIMES[1:]},
    "sums": {f"sums: {name}" for name in SUM_REGIMES[1:]},
    "histograms": {"histograms: one pass", "histograms: ranks first"},
    "updates": {"updates: look-back", "updates: persistent", "updates: chunks"},
}


def _describe_count(request, answer):
    return (
        f"sums: {SUM_REGIMES[answer.regime]}"
        if request.weights.data
        else f"counts: {COUNT_REGIMES[answer.regime]}"
    )


def _describe_tiles(_, call):
    if call is None:
        return "updates: chunks"
    return "updates: persistent" if call.sequences[0].launches[0].together else "updates: look-back"


PLANNERS = (  # the functions that choose kernels, and the name of a call's choice from its request and the answer
    (scan_launch, "plan", lambda _, answer: REGIMES[answer.regime]),
    (scan_launch, "plan_reduction", lambda _, answer: f"aggregates: {REGIMES[answer.regime]}"),
    (bincount_launch, "plan", _describe_count),
    (
        bincount_launch, "plan_histogram",
        lambda _, answer: f"histograms: {'one pass' if answer.regime else 'ranks first'}",
    ),
    (user_scan_launch, "_prepare_tiles", _describe_tiles),
)  # fmt: skip


@contextlib.contextmanager
def recorded_plans():
    """Add the choices of the planners within the context to a set, which is its value."""
    seen = set()

    def recorded(function, describe):
        def call(request, *arguments):
            answer = function(request, *arguments)
            seen.add(describe(request, answer))
            return answer

        return call

    with contextlib.ExitStack() as stack:
        for module, name, describe in PLANNERS:
            planner = recorded(getattr(module, name), describe)
            stack.enter_context(mock.patch.object(module, name, planner))
        yield seen


def run_group(name):
    """Run the cases of a group; raise AssertionError if a result is wrong, or a regime has no case."""
    with recorded_plans() as seen:
        GROUPS[name]()
    missing = COVERAGE.get(name, set()) - seen
    assert not missing, f"{name}: no call takes {sorted(missing)}"


# ---- deliberate errors -----------------------------------------------------------------------------------------

FAULTS = {
    "memcheck": "write_outside",
    "racecheck": "race",
    "initcheck": "read_unwritten",
    "synccheck": "part_waits",
}
_FAULTY_KERNELS = """
struct Call { unsigned long long *data, n; };
extern "C" __global__ void write_outside(const Call call) { if (threadIdx.x == 0) call.data[call.n] = 1; }
extern "C" __global__ void read_unwritten(const Call call) { call.data[threadIdx.x] += 1; }
extern "C" __global__ void race(const Call call) {
  __shared__ unsigned long long words[64];
  words[threadIdx.x] = call.n + threadIdx.x;
  call.data[threadIdx.x] = words[63 - threadIdx.x];
}
extern "C" __global__ void part_waits(const Call call) {
  if (threadIdx.x < 16) __syncthreads();
  call.data[threadIdx.x] = 1;
}
"""


def run_fault(tool):
    """Launch a kernel with the error that a tool of compute-sanitizer has to find, in the memory of the cases."""
    gpu, n = driver.device(0), 64
    code = nvrtc.fetch_or_compile(_FAULTY_KERNELS, (), gpu.capability)
    with contextlib.suppress(library.CudaError), contextlib.closing(DeviceMemory(0)) as memory:
        pointer, _ = memory.allocate(8 * n)
        structure = (ctypes.c_uint64 * 2)(pointer, n)
        gpu.load(code).function(FAULTS[tool]).launch(1, n, 0, structure)
        library.synchronize(0, 0)
