"""`histogram` and `histc` of a contiguous CUDA tensor in bins of one width.

The general path (`via_numpy`, then the public function on device views) takes 200 microseconds of the host,
several times as long as the device. Here compiled calls (`_backends.cuda._calls`) allocate the results and a
workspace, and start two kernels; without a range they wait once for the least and the largest element. Both
functions return None for all other calls and wrong arguments, which the general path takes or refuses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._backends.cuda import abi
from upsweep._core import bin_thresholds
from upsweep._core.histogram import MAX_BINS
from upsweep._torch import executors

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
}  # fmt: skip
_CODES = {dtype: abi.DTYPES[dtype.name] for dtype in _DTYPES.values()}
_NUMBERS = (int, float)
_WIDEST = 2.0**126  # from the negative to the positive number float32 has a finite distance


def histc(x: Any, bins: Any, low: Any, high: Any) -> Tensor | None:
    """Return `upsweep.histc` of the tensor, or None."""
    if not (_is_cuda(x) and _are_plain(bins, low, high)):
        return None
    counts: Tensor | None = executors.calls.histc(x, bins, low, high, _WIDEST)
    return counts


def histogram(x: Any, bins: Any, ends: Any) -> tuple[Tensor, Tensor] | None:
    """Return `upsweep.histogram` of the tensor, or None."""
    first, last = ends if type(ends) in (tuple, list) and len(ends) == 2 else (0, 0)
    if not (_is_cuda(x) and _are_plain(bins, first, last) and (first < last or ends is None)):
        return None
    dtype = _DTYPES.get(x.dtype)
    if dtype is None:
        return None
    if ends is None:
        extremes = executors.calls.extremes(x)
        if extremes is None:
            return None
        first, last = map(dtype.type, extremes)
    uniform = bin_thresholds.uniform_bins(first, last, bins, dtype, dtype)
    if uniform is None:
        return None
    result: tuple[Tensor, Tensor] | None = executors.calls.histogram(
        x, uniform.first, uniform.last, bins, uniform.step, _CODES[uniform.step_dtype], _CODES[dtype]
    )
    return result


def _is_cuda(x: Any) -> bool:
    return not torch.compiler.is_dynamo_compiling() and isinstance(x, Tensor) and x.is_cuda


def _are_plain(bins: Any, low: Any, high: Any) -> bool:
    return (
        type(bins) is int and 0 < bins <= MAX_BINS and type(low) in _NUMBERS and type(high) in _NUMBERS
        and -_WIDEST < low <= high < _WIDEST
    )  # fmt: skip
