"""Infinities, NaN and products that overflow or vanish on CUDA, in each layout: held to float64 on the CPU."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits
from nonfinite_kinds import KINDS

pytestmark = pytest.mark.cuda

# Each is scanned by other kernels: see cuda/README.md.
LAYOUTS = {
    "persistent": ((2, 4_500_001), 1),
    "split": ((3, 300_001), 1),
    "split, long runs": ((20, 250_001), 1),
    "cluster": ((2, 60_000), 1),
    "lines": ((700, 5_001), 1),
    "packed": ((3_000, 100), 1),
    "columns": ((1_000, 20_001), 0),
    "split columns": ((20_000, 70), 0),
}
RTOL = {"float16": 2e-6, "float32": 1e-12, "float64": 1e-12}


def check(name, arrays, axis, dtype, **keywords):
    scan = getattr(upsweep, name)
    result = scan(*arrays, axis=axis, device="cuda", **keywords)
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in arrays]
    expected = scan(*wide, axis=axis, **keywords)
    size = scan(*(np.abs(a) for a in wide), axis=axis, **keywords)
    with np.errstate(over="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    limits = np.finfo(dtype)
    result_wide = result.astype(np.float64)
    lost = ~np.isfinite(rounded)
    np.testing.assert_array_equal(result_wide[lost], rounded[lost])
    within = np.isfinite(size) & ~lost
    allowed = RTOL[dtype] * size + limits.eps * np.abs(rounded) + float(limits.tiny)
    assert (np.abs(result_wide - rounded) <= allowed)[within].all()
    assert np.isfinite(result_wide[~lost]).all()
    assert same_bits(scan(*arrays, axis=axis, device="cuda", **keywords), result)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_states_are_those_of_the_loop(layout, dtype, kind):
    shape, axis = LAYOUTS[layout]
    x, gates = random(shape, dtype), random(shape, dtype, 1, 0.2, 1.0)
    for reverse in (False, True):
        arrays = gates.copy(), x.copy()
        views = [np.moveaxis(a, axis, -1) for a in arrays]
        gates_view, x_view = (np.flip(view, -1) for view in views) if reverse else views
        kind(x_view, gates_view)
        check("linear_recurrence", arrays, axis, dtype, reverse=reverse)
        check("discounted_cumsum", (arrays[1], 0.9), axis, dtype, reverse=reverse)
