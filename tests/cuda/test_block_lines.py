"""Block lines (cuda/scan/block_lines.cuh), compiled for the host: held to scans on the CPU in float64."""

import ctypes

import cluster_scans
import numpy as np
import pytest
from helpers import BFLOAT16, random, same_bits
from host_device import describe
from host_scans import check, fixtures, scan
from kernel_cases import REGIMES
from nonfinite_kinds import KINDS
from upsweep._backends.cuda import scan_launch

DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64")] + [BFLOAT16]
# Of a line: a lane each in groups of lanes, then two a lane in warps and blocks.
VECTORS = [1, 2, 3, 8, 31, 32, 33, 64, 65, 100, 300, 1024]
LONGER = [1025, 1536, 2000]  # of blocks that iterate over tiles of 256, 512 or 1,024


compiled, on_host = fixtures(cluster_scans.compile_library)


def lines(vectors, dtype, n=5):
    """Return tokens and gates that begin on a vector's boundary."""
    shape = n, vectors * 16 // dtype.itemsize
    return random(shape, dtype), random(shape, dtype, 1, -0.7, 1.0)


def check_lines(*arrays, **options):
    described = [describe(array) for array in arrays]
    x, gates = described if len(arrays) == 2 else (*described, None)
    request = scan_launch.problem(
        x, gates, options.get("gamma"), None, None, x, None, axis=1, reverse=False, exclusive=False, device=0,
        stream=0,
    )  # fmt: skip
    assert REGIMES[scan_launch.plan(request, 132).regime] == "block lines"
    check(*arrays, axis=1, has_final=False, **options)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_lines_of_every_size(vectors, dtype):
    x, gates = lines(vectors, dtype)
    for reverse in (False, True):
        check_lines(x, gates, reverse=reverse)
        for gamma in (None, 0.9, -1.01):
            check_lines(x, gamma=gamma, reverse=reverse)


@pytest.fixture(params=[(9, 18), (8, 17), (3, 17)], ids=["16 or 8 warps", "8 warps", "4 warps"])
def n_lines(request, compiled):
    """So many lines that so few processors do not split them; fewer would be lines of clusters."""
    n_processors = ctypes.c_int.in_dll(compiled.loaded, "n_processors")
    before, (n_processors.value, lines) = n_processors.value, request.param
    yield lines
    n_processors.value = before


def check_tiles(compiled, *arrays, **options):
    check_lines(*arrays, **options)
    assert ctypes.c_int.in_dll(compiled.loaded, "last_blocks").value > 1


@pytest.mark.parametrize("vectors", LONGER)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_longer_lines(compiled, n_lines, vectors, dtype):
    x, gates = lines(vectors, dtype, n_lines)
    for reverse in (False, True):
        if dtype == np.float32:
            check_tiles(compiled, x, gates, reverse=reverse)
        for gamma in (None, 0.9, -1.01):
            check_tiles(compiled, x, gamma=gamma, reverse=reverse)
    expected, _ = scan(x, None, axis=1, has_final=False)
    assert same_bits(scan(x.copy(), None, axis=1, has_final=False, out=x)[0], expected)


def test_longer_results_in_the_place_of_an_input(n_lines):
    for place in range(2):
        x, gates = lines(1300, np.dtype(np.float32), n_lines)
        expected, _ = scan(x, gates, axis=1, has_final=False)
        assert same_bits(scan(x, gates, axis=1, has_final=False, out=(x, gates)[place])[0], expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", DTYPES[1:3], ids=lambda dtype: dtype.name)
def test_states_of_longer_lines_that_are_not_finite(compiled, n_lines, dtype, kind):
    for reverse in (False, True):
        x, gates = lines(1100, dtype, n_lines)
        gates = np.abs(gates).astype(dtype)
        kind(np.flip(x, -1) if reverse else x, np.flip(gates, -1) if reverse else gates)
        if dtype == np.float32:
            check_tiles(compiled, x, gates, reverse=reverse)
        for gamma in (0.9, 0.01, -0.01, 3.0 if dtype.itemsize == 4 else 1.01):
            check_tiles(compiled, x, gamma=gamma, reverse=reverse)


def test_products_that_overflow_for_some_lanes_of_a_warp_alone(compiled, n_lines):
    x, gates = lines(1100, np.dtype(np.float32), n_lines)
    x[:, :1100] = 0
    gates[:, 1072:1104] = 1e-25  # four runs of 8, of which neighbours are combined two by two
    gates[:, 1080:1096] = 1e25
    check_tiles(compiled, x, gates)


@pytest.mark.parametrize(("dtype", "gamma"), [(np.float32, 1e5), (np.float32, -1e5), (np.float64, 1e10)])
def test_powers_that_overflow_within_a_warp(compiled, n_lines, dtype, gamma):
    x, _ = lines(1300, np.dtype(dtype), n_lines)
    run = 32 // x.itemsize
    x[:] = 1
    for first in range(0, x.shape[1], 16 * run):  # of half a warp
        x[:, first : first + 6 * run] = 0
    check_tiles(compiled, x, gamma=gamma)


@pytest.mark.parametrize("gamma", [np.inf, -np.inf, np.nan])
def test_a_gamma_that_is_not_finite_leaves_the_first_element(gamma):
    for dtype in DTYPES:
        for vectors in (1, 2, 40, 300):
            x, _ = lines(vectors, dtype)
            check_lines(x, gamma=gamma)


def test_results_in_the_place_of_an_input():
    for vectors in (3, 300):
        for reverse in (False, True):
            x, gates = lines(vectors, np.dtype(np.float32))
            expected, _ = scan(x, gates, axis=1, reverse=reverse, has_final=False)
            for out in (gates, x):
                assert same_bits(scan(x, gates, axis=1, reverse=reverse, has_final=False, out=out)[0], expected)
                x, gates = lines(vectors, np.dtype(np.float32))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda dtype: dtype.name)
def test_states_that_are_not_finite(dtype, kind):
    for vectors in (27, 32, 40, 90, 300):
        for reverse in (False, True):
            x, gates = lines(vectors, dtype)
            gates = np.abs(gates).astype(dtype)
            kind(np.flip(x, -1) if reverse else x, np.flip(gates, -1) if reverse else gates)
            check_lines(x, gates, reverse=reverse)
            # States of 16-bit elements are infinite beyond the range of float32.
            for gamma in (0.9, -0.01, 1.01 if dtype.itemsize == 2 else 3.0):
                check_lines(x, gamma=gamma, reverse=reverse)


def test_a_first_gate_is_not_used():
    for vectors in (5, 90):
        x, gates = lines(vectors, np.dtype(np.float32))
        gates[:, 0], gates[:, -1] = np.inf, np.nan
        check_lines(x, gates)
        check_lines(x, np.flip(gates, -1).copy(), reverse=True)


@pytest.mark.parametrize(
    ("shape", "dtype", "gated", "exclusive"),
    [
        ((5, 514), np.float32, False, False),  # not whole vectors
        ((5, 512), np.float32, False, True),
        ((9000, 8200), np.float16, True, False),  # more than two vectors a thread
        ((9000, 4102), np.float32, False, False),
        ((9000, 258), np.float64, True, False),
    ],
)
def test_lines_that_take_another_kernel(shape, dtype, gated, exclusive):
    item = np.dtype(dtype).itemsize
    x = describe(np.lib.stride_tricks.as_strided(np.zeros(4, dtype), shape, (shape[1] * item, item)))
    gates, gamma = (x, None) if gated else (None, 0.9)
    request = scan_launch.problem(
        x, gates, gamma, None, None, x, None, axis=1, reverse=False, exclusive=exclusive, device=0, stream=0
    )
    with pytest.raises(ValueError, match="no plan"):
        scan_launch.plan(request, 132)
