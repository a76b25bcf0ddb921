"""Windowed sums on CUDA: along lines (cuda/scan/window_lines.cuh), and of any strides and dtype (window.cuh)."""

import numpy as np
import pytest
import upsweep
from helpers import random, reference_scan, same_bits
from upsweep.testing import assert_scan_close

pytestmark = pytest.mark.cuda


def check(x, gamma, **keywords):
    y = upsweep.discounted_cumsum(x, gamma, device="cuda", **keywords)
    ((exact, scale),) = reference_scan("discounted_cumsum", x, gamma, **keywords)
    half = y.dtype.name in ("float16", "bfloat16")
    assert_scan_close(y, exact, scale, rtol=1e-6 if half else None)
    return y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "window", [1, 7, 15, 16, 17, 31, 64, 100, 255, 256, 257, 511, 512, 513, 767, 768, 1000, 2999]
)
def test_windows_around_the_size_of_a_segment(window, reverse):
    x = random((3, 5000), np.float32)
    check(x, 0.99, window=window, reverse=reverse)
    check(x, -1.001, window=window, reverse=reverse)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "float32", "float64", "complex64", "complex128"])
def test_dtypes_axes_and_strides(dtype):
    x = random((700, 3, 4), np.float64, low=0, high=5).astype(dtype)
    for window in (5, 40, 300, 10**12):
        check(x, 0.9, axis=0, window=window)
        check(x[::-2, :, ::-1], 0.9, axis=0, window=window, reverse=True)


def test_gamma_per_row_and_complex():
    x = random((4, 900, 3))
    for gamma in (random((4, 1, 1), seed=3), random(3, seed=4), np.array([0.5 + 0.5j]), 0.0, 1.0):
        check(x, gamma, axis=1, window=9)
        check(x, gamma, axis=1, window=300)


@pytest.mark.parametrize("window", [3, 33, 400, 1300])
def test_resets_cut_windows(window):
    for share in (0.001, 0.1, 1):
        reset = np.random.default_rng(2).random((3, 9000)) < share
        check(random((3, 9000)), 0.999, window=window, reset=reset)
        check(random((3, 9000)), 0.999, window=window, reset=reset, reverse=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_leaves_after_window_steps(bad):
    for window, gamma in ((1, 0.99), (5, 0.99), (100, 0.99), (1000, 0.99), (1003, 0.5), (3001, 1e-3), (700, -0.9)):
        x = random(20_000)
        x[7777] = bad
        y = upsweep.discounted_cumsum(x, gamma, window=window, device="cuda")
        on_cpu = upsweep.discounted_cumsum(x, gamma, window=window)
        np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(y)), np.arange(7777, 7777 + window))
        np.testing.assert_array_equal(y[7777 : 7777 + window], on_cpu[7777 : 7777 + window])


def test_powers_beyond_the_range():
    x = np.zeros(4000)
    x[100] = 1e-300
    for gamma in (2.0, -3.0, 1e200):
        y = upsweep.discounted_cumsum(x, gamma, window=1500, device="cuda")
        np.testing.assert_allclose(y, upsweep.discounted_cumsum(x, gamma, window=1500), rtol=1e-9)
    for gamma in (np.inf, np.nan):
        y = upsweep.discounted_cumsum(random(600), gamma, window=500, device="cuda")
        np.testing.assert_array_equal(y, upsweep.discounted_cumsum(random(600), gamma, window=500))


def check_tensor(x, gamma, window, out=None, **keywords):
    """Compare the result of a CUDA tensor to that of the same numbers in float64 on the CPU."""
    import torch

    wide = x.cpu().double()
    factor = gamma.cpu() if isinstance(gamma, torch.Tensor) else gamma
    exact = upsweep.discounted_cumsum(wide, factor, window=window, **keywords)
    size = upsweep.discounted_cumsum(wide.abs(), abs(factor), window=window, **keywords)
    y = upsweep.discounted_cumsum(x, gamma, window=window, out=out, **keywords)
    error = (y.cpu().double() - exact.to(x.dtype).double()).abs()
    half = x.dtype.itemsize == 2
    assert (error <= (1e-6 if half else 1e-12) * size + torch.finfo(x.dtype).eps * exact.abs() + 1e-300).all()
    return y


# Near and far tiles: of 8,192 (16 bits), 4,096 and 2,048 (float64) steps.
TENSOR_WINDOWS = [1, 2, 3, 31, 1000, 2431, 4479, 8575, 30_001, 10**9]


@pytest.mark.parametrize("window", TENSOR_WINDOWS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_lines_of_tensors(dtype, window):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, dtype)
    x = torch.randn(2, 50_003, device="cuda", dtype=dtype)  # the second line begins elsewhere in a vector
    check_tensor(x, 0.999, window)
    check_tensor(x[:, 3:], -1.0, window, reverse=True)
    out = torch.full_like(x, 7)
    check_tensor(x[:, 1:-1], 0.99, window, out=out[:, 2:])
    assert (out[:, :2] == 7).all()
    gamma = torch.tensor([0.9, -0.9999], device="cuda", dtype=torch.float64)[:, None]
    check_tensor(x, gamma, window)


@pytest.mark.parametrize("window", [2, 31, 1000])
def test_short_lines_of_tensors(window):
    torch = pytest.importorskip("torch")
    for length in (window + 1, 64, 255, 256, 257, 1024, 4093, 4097):
        if length > window:
            check_tensor(torch.randn(300, length, device="cuda"), 0.99, window)


@pytest.mark.parametrize("window", [4, 50, 3000, 20_000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_in_place_of_a_tensor(dtype, window):
    torch = pytest.importorskip("torch")
    for reverse in (False, True):
        x = torch.randn(3, 100_000, device="cuda", dtype=getattr(torch, dtype))
        y = upsweep.discounted_cumsum(x, 0.99, window=window, reverse=reverse)
        upsweep.discounted_cumsum(x, 0.99, window=window, reverse=reverse, out=x)
        assert same_bits(x.cpu().numpy(), y.cpu().numpy())


@pytest.mark.parametrize("window", [5, 1000, 20_000])
def test_results_do_not_change_from_run_to_run(window):
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3_000_000, device="cuda")
    first = upsweep.discounted_cumsum(x, 0.9999, window=window)
    for _ in range(5):
        assert torch.equal(upsweep.discounted_cumsum(x, 0.9999, window=window), first)


def test_many_lines_and_a_long_window():
    torch = pytest.importorskip("torch")
    x = torch.randn(70_000, 100, device="cuda", dtype=torch.float64)
    exact = upsweep.discounted_cumsum(x.cpu(), 0.9, window=20)
    torch.testing.assert_close(upsweep.discounted_cumsum(x, 0.9, window=20).cpu(), exact)
    x = torch.randn(1, 3_000_000, device="cuda", dtype=torch.float64)
    exact = upsweep.discounted_cumsum(x.cpu(), 0.999999, window=1_000_000)
    torch.testing.assert_close(
        upsweep.discounted_cumsum(x, 0.999999, window=1_000_000).cpu(), exact, rtol=1e-9, atol=1e-9
    )
