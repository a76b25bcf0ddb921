"""Few long lines on CUDA, which all processors take in waves of tiles: held to scans on the CPU in float64."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits
from upsweep.testing import assert_scan_close

pytestmark = pytest.mark.cuda

LENGTH = 9_000_001  # of a line, or of three: tiles enough, and a last one that is cut off
RTOL = {"float16": 1e-6, "float32": 1e-12, "float64": 1e-12}


def keep(shape, dtype, seed=1):
    """Gates near 1, whose products stay ordinary numbers."""
    return (1 + (random(shape, np.float64, seed) - 0.5) * 1e-3).astype(dtype)


def check(name, *arrays, out=None, **keywords):
    scan = getattr(upsweep, name)
    dtype = arrays[-1 if name == "linear_recurrence" else 0].dtype
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in arrays]
    sizes = [np.abs(a) for a in wide]
    expected = scan(*wide, **keywords)
    if "initial" in keywords:
        scale = scan(*sizes, **keywords | {"initial": np.abs(keywords["initial"])})
    else:
        scale = scan(*sizes, **keywords)
    result = scan(*arrays, device="cuda", out=out, **keywords)
    again = scan(*arrays, device="cuda", **keywords) if out is None else result
    results = [each if isinstance(each, tuple) else (each,) for each in (result, again, expected, scale)]
    for y, same, exact, size in zip(*results):
        assert_scan_close(y, exact, size, rtol=RTOL[dtype.name])
        assert same_bits(y, same)


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("shape", [(LENGTH,), (3, LENGTH // 3), (7, 1_300_000)], ids=str)
def test_sums_and_gates_of_few_lines(shape, dtype):
    x, initial = random(shape, dtype), random(shape[:-1], np.float64, 5)
    for reverse in (False, True):
        check("cumulative_sum", x, reverse=reverse, initial=initial, return_final=True)
        check("discounted_cumsum", x, 0.9, reverse=reverse)
        check("discounted_cumsum", x, -0.99999, reverse=reverse, exclusive=True, initial=initial)
        check("linear_recurrence", keep(shape, dtype), x, reverse=reverse, return_final=True)
        check("linear_recurrence", random(shape, dtype, 2), x, reverse=reverse, initial=initial)


def test_bases_and_results_that_are_not_aligned():
    x, gates = random(LENGTH + 3, np.float32), keep(LENGTH + 3, np.float32)
    out = np.full(LENGTH + 3, np.nan, np.float32)
    check("linear_recurrence", gates[1:-2], x[2:-1], out=out[3:])
    assert np.isnan(out[:3]).all()
    check("cumulative_sum", x[1:], out=out[1:])
    check("cumulative_sum", x.copy()[3:], reverse=True)


def test_results_in_the_place_of_an_input():
    x, gates = random(LENGTH, np.float32), keep(LENGTH, np.float32)
    expected = upsweep.linear_recurrence(gates, x, device="cuda")
    for target in (x.copy(), gates.copy()):
        arrays = [target if a.tobytes() == target.tobytes() else a for a in (gates, x)]
        assert same_bits(upsweep.linear_recurrence(*arrays, out=target, device="cuda"), expected)


# Up to the end of the line, and in its last tiles.
@pytest.mark.parametrize("at", [3, LENGTH - 60_000, LENGTH - 1])
def test_infinities_go_on_as_they_do_step_by_step(at):
    x, gates = random(LENGTH, np.float32), keep(LENGTH, np.float32)
    x[at] = np.inf
    check("discounted_cumsum", x, 0.9)
    check("linear_recurrence", gates, x)
    x[at - 30_000] = -np.inf
    check("linear_recurrence", gates, x)


@pytest.mark.parametrize("at", [0, 12_345, LENGTH - 1])
def test_what_is_no_number_stays_so(at):
    x, gates = random(LENGTH, np.float32), keep(LENGTH, np.float32)
    x[at] = np.nan
    check("cumulative_sum", x)
    check("discounted_cumsum", x, 0.9)
    check("linear_recurrence", gates, x)
    x[at], x[at // 2] = np.inf, -np.inf
    check("cumulative_sum", x)


def test_products_that_overflow_where_states_do_not():
    x, gates = random(LENGTH, np.float32), keep(LENGTH, np.float32)
    gates[-195_000:-100_000], gates[-290_000:-200_000] = 1e30, 1e-30
    x[-200_000:-95_000] = 0  # from a state that is exactly 0: 0 times any product
    check("linear_recurrence", gates, x)
    check("linear_recurrence", np.where(np.arange(LENGTH) < 8192, np.float32(1.3), gates), np.where(x > 2, x, 0))
    on_the_way = gates.copy()  # of a tile's warps, but not of all of it
    on_the_way[8192 : 8192 + 3072], on_the_way[8192 + 3072 : 16384] = 1.3, 0.01
    check("linear_recurrence", on_the_way, np.where(np.arange(LENGTH) < 16384, np.float32(0), x))
    check("discounted_cumsum", np.where(np.arange(LENGTH) < LENGTH - 500, np.float32(0), x), 1.15)
    gates[-10_000] = 0
    x[-20_000] = np.inf  # times 0 is no number, and stays none
    check("linear_recurrence", gates, x)
