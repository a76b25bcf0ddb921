"""Split, held and wide columns (cuda/scan), compiled for the host: compared with scans on the CPU in float64."""

import column_scans
import numpy as np
import pytest
from helpers import BFLOAT16, random
from host_scans import check, fixtures, operands, scan
from kernel_cases import REGIMES
from nonfinite_kinds import KINDS
from upsweep._backends.cuda import scan_launch
from upsweep._backends.cuda.descriptor import ArrayDescriptor

# Shapes and axes: several families of tiles, a block with one column, narrow blocks, rows of columns. Sums and one
# factor for all of at most 2,048 steps are held. Wide columns, whole groups of steps ahead and a part of one.
SHAPES = {
    (2_101, 32): 0, (2_500, 33): 0, (9_001, 8): 0, (5_000, 13): 0, (2, 2_200, 9): 1, (777, 3, 40): 0,
    (3, 1_025, 17): 1, (2_048, 8): 0, (600, 256): 0,
}  # fmt: skip
DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64", "complex64", "int64")] + [BFLOAT16]


compiled, on_host = fixtures(column_scans.compile_library)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_option(shape, dtype):
    axis = SHAPES[shape]
    x, gates, gamma, reset, initial = operands(shape, dtype, axis)
    if dtype.kind == "c":
        gamma = gamma.real
    check(x, axis=axis)
    check(x, reset=reset, initial=initial, exclusive=True, axis=axis)
    if dtype.kind != "i":
        check(x, gates, axis=axis)
        check(x, gates, None, reset, initial, axis=axis, reverse=True)
        check(x, gamma=gamma, initial=initial, axis=axis, exclusive=True, reverse=True)
        check(x, gamma=0.99, reset=reset, axis=axis)


def regime(shape, dtype="float32", offset=0, gated=False, reset=False, gamma=1.0):
    """That of a scan along the first axis of rows that lie 1,024 elements apart; there are 256 wide columns."""
    strides = tuple(1024 * np.dtype(dtype).itemsize // divisor for divisor in (1, 1024))
    x = ArrayDescriptor((1 << 20) + offset, shape, strides, dtype)
    flags = x._replace(dtype="bool") if reset else None
    options = {"axis": 0, "reverse": False, "exclusive": False, "device": 0, "stream": 0}
    request = scan_launch.problem(x, x if gated else None, gamma, None, flags, x, None, **options)
    return REGIMES[scan_launch.plan(request, 132).regime]


def test_regimes():
    assert {regime((n, 40)) for n in (2, 256, 1024, 2048)} == {"held columns"}
    assert regime((2049, 40)) == regime((600, 40), gamma=0.3) == regime((4000, 40), "float64") == "split columns"
    assert regime((600, 40), gated=True) == regime((600, 40), reset=True) == "split columns"
    assert regime((600, 40), gamma=1.01) == "split columns"
    assert regime((2049, 256)) == regime((9, 256), gated=True) == regime((9, 256), "float64") == "wide columns"
    assert regime((2049, 256), offset=4) == regime((2049, 257)) == regime((2049, 255)) == "split columns"


@pytest.mark.parametrize("n_steps", [2, 31, 255, 256, 257, 512, 1_024, 2_048])
def test_held_columns(n_steps):
    x, _, _, _, initial = operands((n_steps, 19), np.dtype(np.float32), 0)
    check(x)
    check(x, gamma=-0.97, initial=initial, reverse=True, exclusive=True)
    x[n_steps // 2, ::2] = np.inf
    x[-1, 1] = np.nan
    check(x, initial=initial)
    check(x, gamma=0.999, initial=np.full(19, -np.inf))
    # No state before the first element: an exclusive scan would show its sign, and a factor might change it.
    first = np.full((n_steps, 19), -0.0, np.float32)
    assert not np.signbit(scan(first, gamma=0.97, exclusive=True)[0][0]).any()
    assert np.signbit(scan(first, gamma=-0.97)[0][0]).all()


def test_wide_columns():
    x, gates, gamma, _, initial = operands((70, 260), np.dtype(np.float32), 0)
    check(x, gates)
    check(x, gates, None, None, initial, reverse=True, exclusive=True)
    check(x, gamma=gamma, initial=initial)
    x[33, ::3] = np.inf
    x[40, 1] = np.nan
    check(x, gates)
    check(x, gamma=1.5)


def test_other_layouts():
    x, gates, *_ = operands((6_000, 40), np.dtype(np.float32), 0)
    wide = np.zeros((6_000, 41), np.float32)
    for view in (wide[:, 1:], wide[:, :40]):
        view[...] = x
        check(view, gates)
        check(view, gates.astype(np.float16))
    every_second = np.zeros((6_000, 80), np.float32)[:, ::2]
    every_second[...] = x
    check(every_second, gates)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3_000, 33), (9_001, 8)], ids=str)
def test_states_that_are_not_finite(shape, dtype, kind):
    x, gates = random(shape, dtype), random(shape, dtype, 1, 0.2, 1.0)
    reset = np.random.default_rng(0).random(shape) < 0.001
    for reverse in (False, True):
        x_view, gates_view = ((np.flip(a.T, -1) if reverse else a.T) for a in (x, gates))
        kind(x_view, gates_view)
        check(x, gates, reverse=reverse)
        check(x, gamma=0.9, reverse=reverse)
    check(x, gates, reset=reset, reverse=True, initial=np.full(shape[1], np.inf))


def test_complex_states_that_are_not_finite():
    x, gates, _, reset, _ = operands((3_000, 20), np.dtype(np.complex64), 0)
    x[1_000, ::2], x[1_700, 1] = complex(np.nan, np.nan), complex(np.nan, np.nan)
    check(x, gates)
    check(x, gates, reset=reset)
    check(x, gamma=0.5)
