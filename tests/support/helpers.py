"""What the tests share: random operands, oracles, and the comparison of an operation with its reference."""

import collections
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import upsweep
from upsweep import reference
from upsweep.testing import assert_scan_close

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64", "complex64", "complex128")] + [BFLOAT16]
SCANS = ["cumulative_sum", "discounted_cumsum", "linear_recurrence"]
LAYOUTS = ["fortran", "negative strides", "odd strides", "unaligned"]
INPUT_LAYOUTS = [*LAYOUTS, "field of a record", "other byte order", "read-only"]


def dtype_name(dtype):
    return np.dtype(dtype).name


def flat(value):
    """The arrays of a result, however it is arranged."""
    return [array for item in value for array in flat(item)] if isinstance(value, tuple) else [value]


def random(shape, dtype=np.float64, seed=0, low=-1.0, high=1.0):
    """Uniform numbers; both parts of a complex one."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(low, high, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.uniform(low, high, shape)
    return np.asarray(x).astype(dtype)


def operands(name, shape, dtype=np.float64, seed=0, gamma=0.97):
    """Arguments for the scan `name` whose result has this shape; all gates are at most 1 in size."""
    x = random(shape, dtype, seed)
    if name == "cumulative_sum":
        return (x,)
    if name == "discounted_cumsum":
        return x, gamma
    share = 0.7 if np.dtype(dtype).kind == "c" else 1.0
    return random(shape, dtype, seed + 1, -share, share), x


def poisoned(shape, dtype):
    """Fresh memory that shows when it is read, or left unwritten."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return np.full(shape, np.iinfo(dtype).max // 3, dtype)
    return np.full(shape, complex(np.nan, np.nan) if dtype.kind == "c" else np.nan).astype(dtype)


def relaid(x, layout):
    """The same numbers in another layout."""
    if layout == "fortran":
        return np.asfortranarray(x)
    if layout == "negative strides":
        return np.flip(np.flip(x).copy())
    if layout == "odd strides":
        big = poisoned(tuple(3 * n + 1 for n in x.shape), x.dtype)
        part = big[tuple(slice(1, 3 * n + 1, 3) for n in x.shape)]
        part[...] = x
        return part
    if layout == "unaligned":
        part = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        part[...] = x
        return part
    if layout == "field of a record":
        records = np.zeros(x.shape, [("skip", np.uint8), ("value", x.dtype)])
        records["value"] = x
        return records["value"]
    if layout == "other byte order":
        return x.astype(x.dtype.newbyteorder())
    assert layout == "read-only"
    x = x.copy()
    x.flags.writeable = False
    return x


def wide(x):
    """The same numbers in float64 or complex128; integers, Python numbers and None as they are."""
    if x is None or isinstance(x, bool | int | float | complex):
        return x
    x = np.asarray(x)
    if x.dtype.kind in "biu":
        return x
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def same_bits(a, b):
    """Whether two arrays (or tuples of them) hold the same bytes, NaNs included."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same_bits(*pair) for pair in zip(a, b))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _size(a):
    """The absolute values; of integers as float64, which has that of the least one."""
    return np.abs(np.asarray(a, float) if np.asarray(a).dtype.kind in "iu" else a)


def reference_scan(name, *arrays, **keywords):
    """Return (exact, scale): the reference unrounded, non-finite where float64 is, and the same scan of sizes."""
    function = getattr(reference, name)
    if np.dtype(keywords.get("dtype")).kind not in "biu":
        keywords.pop("dtype", None)
    keywords = {key: wide(value) if key == "initial" else value for key, value in keywords.items()}
    arrays = [wide(a) for a in arrays]
    sizes = dict(keywords)
    if keywords.get("initial") is not None:
        sizes["initial"] = np.abs(keywords["initial"])
    with np.errstate(all="ignore"):
        double = function(*arrays, **keywords)
        exact = function(*arrays, precision="extended", **keywords)
        scale = function(*map(_size, arrays), **sizes)
    if not isinstance(double, tuple):
        double, exact, scale = (double,), (exact,), (scale,)
    exact = [np.where(np.isfinite(d), e, d) for d, e in zip(double, exact)]
    return list(zip(exact, scale))


def check(name, *arrays, with_out=True, **keywords):
    """Compare one call with its reference, in value, dtype and shape, and again into poisoned memory."""
    result = getattr(upsweep, name)(*arrays, **keywords)
    rounded = getattr(reference, name)(*arrays, **keywords)
    results = result if isinstance(result, tuple) else (result,)
    roundeds = rounded if isinstance(rounded, tuple) else (rounded,)
    assert len(results) == len(roundeds)
    for actual, expected, (exact, scale) in zip(results, roundeds, reference_scan(name, *arrays, **keywords)):
        assert isinstance(actual, np.ndarray)
        assert actual.dtype == expected.dtype, f"{actual.dtype} is not {expected.dtype}"
        half = roundeds[0].dtype.name in ("float16", "bfloat16")
        assert_scan_close(actual, exact, scale, rtol=1e-6 if half else None)
    if with_out:
        out = np.empty_like(results[0])  # in the same layout: the bits are promised for each layout
        out[...] = poisoned(out.shape, out.dtype)
        again = getattr(upsweep, name)(*arrays, out=out, **keywords)
        assert (again[0] if isinstance(again, tuple) else again) is out
        assert same_bits(out, results[0])
    return result


def sequential(gates, tokens):
    """The recurrence of one line in Python's own floats: an oracle fast enough for long lines."""
    gates, tokens = np.asarray(gates, float).tolist(), np.asarray(tokens, float).tolist()
    y, state = [], None
    for gate, token in zip(gates, tokens):
        state = token if state is None else gate * state + token
        y.append(state)
    return np.array(y, np.float64)


def reference_of_long_lines(
    name, *arrays, axis=-1, reverse=False, exclusive=False, initial=None, reset=None, return_final=False
):
    """Return `reference_scan` for real numbers, computed in float64, many times faster for few long lines."""
    x = arrays[-1] if name == "linear_recurrence" else arrays[0]
    factor = 1.0 if name == "cumulative_sum" else arrays[0] if name == "linear_recurrence" else arrays[1]

    def lines(a, dtype):
        a = np.moveaxis(np.broadcast_to(np.asarray(a, dtype), x.shape), axis, -1)
        return (a[..., ::-1] if reverse else a).reshape(-1, x.shape[axis])

    def scan(size):
        factors, tokens = size(lines(factor, float)), size(lines(x, float))
        drops = lines(False if reset is None else reset, bool)
        states = [None] * len(tokens) if initial is None else size(np.asarray(initial, float)).ravel().tolist()
        y = np.empty(tokens.shape)
        for row, state in enumerate(states):
            written = []
            for gate, token, drop in zip(factors[row].tolist(), tokens[row].tolist(), drops[row].tolist()):
                before = None if drop else state
                state = token if before is None else gate * before + token
                written.append((before or 0.0) if exclusive else state)
            y[row], states[row] = written, state
        whole = y[:, ::-1] if reverse else y
        others = np.delete(x.shape, axis)
        return np.moveaxis(whole.reshape(*others, -1), -1, axis), np.reshape(states, others)

    both = zip(scan(np.asarray), scan(np.abs))
    return list(both) if return_final else [next(both)]


def split_at(length, *cuts):
    """Slices that cut a length at these points."""
    return [slice(*pair) for pair in pairwise((0, *cuts, length))]


def ticks_inside(call, expected, limit=60):
    """How often another thread ran inside of calls, until it was `wanted` times or `limit` seconds are over.

    A tick away from both ends of a call is impossible while that keeps the GIL.
    """
    ticks, stop = collections.deque(maxlen=2000), threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0002)

    call()  # what is done once takes longer
    thread = threading.Thread(target=tick)
    thread.start()
    inside, until = 0, time.perf_counter() + limit
    try:
        while inside < expected and time.perf_counter() < until:
            begin = time.perf_counter()
            call()
            end = time.perf_counter()
            margin = (end - begin) / 10
            inside += sum(begin + margin < t < end - margin for t in tuple(ticks))
    finally:
        stop.set()
        thread.join()
    return inside


def in_threads(work, *arguments):
    """Call `work` with each of the arguments, all at once, each in a thread of its own."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_python(code, timeout=300, **environment):
    """Run a program in a fresh interpreter, outside of the checkout, and return what it prints."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def command(folder, *arguments, program=("-m", "upsweep"), **environment):
    """Run ``python -m upsweep`` in a folder; returns the completed process with its output."""
    import os

    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def run_benchmarks(folder, *arguments, **environment):
    """Run ``python asv_bench/run.py`` in a folder; returns the completed process with its output."""
    program = Path(__file__).parents[2] / "asv_bench" / "run.py"
    return command(folder, *arguments, program=(str(program),), **environment)
