"""`histogram` and `histc` of a contiguous CUDA tensor in bins of one width.

The general path (`via_numpy`, then the public function on device views) takes 200 microseconds of the host,
several times as long as the device. Here a call allocates its results and a workspace, and starts two kernels;
without a range it waits once for the least and the largest element. Both functions return None for all other calls
and wrong arguments, which the general path takes or refuses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep import _backends
from upsweep._core import bin_thresholds
from upsweep._core.bin_thresholds import UniformBins
from upsweep._core.histogram import MAX_BINS
from upsweep._torch import executors
from upsweep._torch import scan as torch_scan

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
}  # fmt: skip
_NUMBERS = (int, float)
_WIDEST = 2.0**126  # from the negative to the positive number float32 has a finite distance


def histc(x: Any, bins: Any, low: Any, high: Any) -> Tensor | None:
    """Return `upsweep.histc` of the tensor, or None."""
    if not (_is_plain(x) and _are_plain(bins, low, high)):
        return None
    number = _DTYPES[x.dtype].type
    first, last = float(number(low)), float(number(high))
    ends = _extremes(x) if first == last else (first, last)
    if ends is None or not -_WIDEST < ends[0] < ends[1] < _WIDEST:
        return None
    counts = torch.empty(bins, dtype=x.dtype, device=x.device)
    _run(x, UniformBins(*ends, bins), counts, None)
    return counts


def histogram(x: Any, bins: Any, ends: Any) -> tuple[Tensor, Tensor] | None:
    """Return `upsweep.histogram` of the tensor, or None."""
    first, last = ends if type(ends) in (tuple, list) and len(ends) == 2 else (0, 0)
    if not (_is_plain(x) and _are_plain(bins, first, last) and (first < last or ends is None)):
        return None
    dtype = _DTYPES[x.dtype]
    if ends is None:
        extremes = _extremes(x)
        if extremes is None:
            return None
        first, last = map(dtype.type, extremes)
    uniform = bin_thresholds.uniform_bins(first, last, bins, dtype, dtype)
    if uniform is None:
        return None
    counts = torch.empty(bins, dtype=torch.int64, device=x.device)
    edges = torch.empty(bins + 1, dtype=x.dtype, device=x.device)
    _run(x, uniform, counts, edges)
    return counts, edges


def _is_cuda(x: Tensor) -> bool:
    return x.is_cuda


def _is_plain(x: Any) -> bool:
    try:
        return (
            not torch_scan.is_traced() and torch_scan.is_plain_tensor(x) and _is_cuda(x) and x.dtype in _DTYPES
            and not x.is_nested and x.is_contiguous() and not x.is_neg() and x.numel() > 0
        )  # fmt: skip
    except RuntimeError:  # a sparse or nested tensor, which the general path refuses
        return False


def _are_plain(bins: Any, low: Any, high: Any) -> bool:
    return (
        type(bins) is int and 0 < bins <= MAX_BINS and type(low) in _NUMBERS and type(high) in _NUMBERS
        and -_WIDEST < low <= high < _WIDEST
    )  # fmt: skip


def _extremes(x: Tensor) -> tuple[float, float] | None:
    """Return the least and the largest element, None if one is not finite."""
    resources = executors.TensorContext(x).resources
    low, high, first = _backends.cuda_bincount_launch.find_extremes(executors.describe(x), **resources)
    return (low, high) if first < 0 else None


def _run(x: Tensor, bins: UniformBins, counts: Tensor, edges: Tensor | None) -> None:
    device = x.get_device()
    _backends.cuda_bincount_launch.run_uniform(
        executors.NAMES[x.dtype], x.data_ptr(), x.numel(), bins, executors.NAMES[counts.dtype], counts.data_ptr(),
        0 if edges is None else edges.data_ptr(), device=device,
        stream=torch._C._cuda_getCurrentRawStream(device),
        allocate=lambda n_bytes: executors.workspace(n_bytes, x.device),
    )  # fmt: skip
