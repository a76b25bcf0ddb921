"""Hazard: numbers on edges and next to them. histc of arrays, against torch.histc."""

import numpy as np
import pytest
import upsweep
from edges import around, hard_numbers, with_random_bins
from helpers import BFLOAT16
from tensors import torch


def torchs(x, *arguments):
    if x.dtype == BFLOAT16:
        return torch.histc(torch.from_numpy(x.view(np.int16)).view(torch.bfloat16), *arguments).double().numpy()
    return torch.histc(torch.from_numpy(x), *arguments).numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", BFLOAT16], ids=str)
@pytest.mark.parametrize("n_bins", [1, 2, 3, 10, 77, 100, 1000])
def test_histc_is_torchs(dtype, n_bins):
    # With more bins than this torch writes behind its result in these dtypes.
    if n_bins > {"float16": 500, "bfloat16": 100}.get(np.dtype(dtype).name, n_bins):
        pytest.skip("torch has no answer")
    generator = np.random.default_rng(n_bins)
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (-3.0, 4.0), (0.1, 0.3), (-0.7, 1.4142), (1000.0, 1010.0)):
        too_far = np.dtype(dtype).itemsize == 2 and (high - low) * n_bins > 1000
        if too_far or (low == 1000 and dtype == BFLOAT16):
            continue
        x = hard_numbers(generator, dtype, n_bins, low, high)
        x = np.concatenate([x, np.array([np.nan], dtype)])
        for limits in ((low, high), (int(low) - 1, int(high) + 1)):
            result = upsweep.histc(x, n_bins, *limits)
            assert result.dtype == x.dtype
            if result.max() < 250:  # up to there bfloat16 counts one by one
                np.testing.assert_array_equal(result.astype(float), torchs(x, n_bins, *limits))
        x = x[:-1]
        result = upsweep.histc(x, n_bins)
        if result.max() < 250:
            np.testing.assert_array_equal(result.astype(float), torchs(x, n_bins))


def test_histc_range_of_the_data():
    for numbers in ([1.0, 2.0, 3.0, 3.0], [5.0, 5.0], [], [-0.0, 0.0]):
        x = np.array(numbers, np.float32)
        for limits in ((), (0, 0), (3, 3)):
            np.testing.assert_array_equal(upsweep.histc(x, 4, *limits), torchs(x, 4, *limits))


def test_histc_where_numbers_are_much_finer_than_the_ends():
    # Around 0, numbers of the type are much closer than the roundings of x - min.
    x = np.concatenate([around(np.linspace(-1e-6, 1e-6, 999), np.float32), np.float32([0.0, -0.0])])
    for n_bins in (2, 10, 99):
        np.testing.assert_array_equal(upsweep.histc(x, n_bins, -1, 1), torchs(x, n_bins, -1, 1))
        np.testing.assert_array_equal(
            upsweep.histc(x.astype("f8"), n_bins, -1, 1), torchs(x.astype("f8"), n_bins, -1, 1)
        )


@with_random_bins
def test_random_calls(numbers, n_bins, low, width, dtype):
    x = np.concatenate([np.array(numbers, dtype), around(np.linspace(low, low + width, n_bins + 1), dtype)])
    np.testing.assert_array_equal(upsweep.histc(x, n_bins, low, low + width), torchs(x, n_bins, low, low + width))
