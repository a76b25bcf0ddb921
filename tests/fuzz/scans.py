"""Sums, discounted sums and linear recurrences, against `upsweep.reference`."""

import numpy as np
import upsweep
from helpers import DTYPES, SCANS, check, reference_of_long_lines, reference_scan, same_bits
from upsweep.testing import assert_scan_close

from .driver import Case
from .operands import (
    FINITE,
    NORMAL,
    THREADS,
    chance,
    described,
    laid_out,
    numbers,
    output,
    partly_broadcast,
    pick,
    shape,
)

INTEGERS = [
    np.dtype(t) for t in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
]


def draw(rng):
    """One call of one scan."""
    name = pick(rng, *SCANS)
    if chance(rng, 0.03):
        return _long(rng, name)
    dtype = pick(rng, *(DTYPES + INTEGERS if name == "cumulative_sum" or chance(rng, 0.1) else DTYPES))
    size = shape(rng)
    axis = int(rng.integers(-len(size), len(size)))
    # Subnormal numbers count as zero where they are multiplied, which shows if it is by a large number.
    special = pick(rng, FINITE, NORMAL) if dtype.kind not in "biu" else NORMAL
    x = laid_out(rng, numbers(rng, size, dtype, special=special))
    keywords = {"axis": axis, "reverse": chance(rng, 0.5)}
    if name == "cumulative_sum":
        arrays = (x,)
    elif name == "discounted_cumsum":
        arrays = (x, _gamma(rng, size, dtype, special))
    else:
        arrays = (_gates(rng, partly_broadcast(rng, size), dtype, special), x)
    if chance(rng, 0.4):
        keywords["reset"] = rng.random(partly_broadcast(rng, size)) < pick(rng, 0.02, 0.3, 1.0)
    gamma = np.shape(arrays[1]) if name == "discounted_cumsum" else None
    steps = () if not gamma else (1,) * (len(size) - len(gamma)) + gamma
    if gamma is not None and (not gamma or steps[axis] == 1) and chance(rng, 0.3):
        keywords["window"] = int(rng.integers(1, 40))
    else:
        _states(rng, name, size, axis, dtype, keywords, special)
    if name == "cumulative_sum" and dtype.kind in "iub" and chance(rng, 0.2):
        keywords["dtype"] = pick(rng, np.int64, np.uint64)
    return Case(f"upsweep.{name}({described(*arrays, **keywords)})", lambda: _check(rng, name, arrays, keywords))


def _states(rng, name, size, axis, dtype, keywords, special):
    """At times the state before the first step, and what is returned of states."""
    extras = ["exclusive", "return_final", "include_initial"][: 3 if name == "cumulative_sum" else 2]
    for extra in extras:
        if chance(rng, 0.25) and not (extra == "include_initial" and keywords.get("exclusive")):
            keywords[extra] = True
    if chance(rng, 0.4):
        columns = tuple(np.delete(size, axis).tolist())
        own = np.dtype(np.float64) if dtype.kind in "biu" and name != "cumulative_sum" else dtype
        keywords["initial"] = laid_out(rng, numbers(rng, columns, own, special=special)) if chance(rng, 0.7) else 1


def _gates(rng, size, dtype, special):
    dtype = dtype if dtype.kind in "fcV" else np.dtype(np.float64)
    share = pick(rng, 0.7, 1.0, 0.05) * (0.7 if dtype.kind == "c" else 1)
    return laid_out(rng, numbers(rng, size, dtype, -share, share, special))


def _gamma(rng, size, dtype, special):
    if chance(rng, 0.5):
        return pick(rng, 0.0, 0.5, 0.99, 1.0, -0.8, 1.01, 1e-30, 1.0 - 1e-9)
    return _gates(rng, partly_broadcast(rng, size), dtype, special)


def _check(rng, name, arrays, keywords):
    """The rounding promise, then the bits: for other numbers of threads, into an `out`, in place."""
    call = getattr(upsweep, name)
    result = check(name, *arrays, **keywords)
    y = result[0] if isinstance(result, tuple) else result
    for n_threads in THREADS:
        assert same_bits(call(*arrays, **keywords, n_threads=n_threads), result), f"n_threads={n_threads}"
    (exact, scale), *_ = reference_scan(name, *arrays, **keywords)
    rtol = 1e-6 if y.dtype.itemsize == 2 and y.dtype.kind not in "iu" else None
    out = output(rng, y)  # other layouts may have other bits
    call(*arrays, **keywords, out=out)
    assert_scan_close(out, exact, scale, rtol=rtol)
    x = arrays[-1] if name == "linear_recurrence" else arrays[0]
    if x.shape == y.shape and x.dtype == y.dtype and x.dtype.isnative and x.flags.c_contiguous:
        inside = x.copy()
        moved = tuple(inside if array is x else array for array in arrays)
        call(*moved, **keywords, out=inside)
        assert_scan_close(inside, exact, scale, rtol=rtol)


def _long(rng, name):
    """One or two lines that are cut into blocks."""
    dtype = pick(rng, np.float32, np.float64, np.float16)
    size = pick(rng, (70_001,), (2, 40_000), (30_000, 2), (1, 131_072))
    axis = int(np.argmax(size))
    x = laid_out(rng, numbers(rng, size, dtype))
    gamma = pick(rng, 0.999, 0.5, 1.0, -0.9)
    gates = (numbers(rng, size, dtype, -1, 1),) if name == "linear_recurrence" else ()
    arrays = (*gates, x, gamma) if name == "discounted_cumsum" else (*gates, x)
    keywords = {"axis": axis, "reverse": chance(rng, 0.5)}
    if chance(rng, 0.5):
        keywords["reset"] = rng.random(size) < 1e-4

    def test():
        call = getattr(upsweep, name)
        results = [call(*arrays, **keywords, n_threads=n) for n in THREADS]
        assert all(same_bits(results[0], y) for y in results)
        ((exact, scale),) = reference_of_long_lines(name, *arrays, **keywords)
        rtol = 1e-6 if np.dtype(dtype).itemsize == 2 else 1e-12
        assert_scan_close(results[0], exact, scale, rtol=rtol)

    return Case(f"upsweep.{name}({described(*arrays, **keywords)})", test)
