"""Executor of linear filters on the CPU: any order, real or complex, to the precision of longdouble.

`upsweep.filters` calls it for numpy arrays. A filter is computed in the dtype of its coefficients: float64,
complex128, longdouble or clongdouble.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from upsweep._arrays import Array
from upsweep._backends import cpu

if TYPE_CHECKING:
    from upsweep._backends.cpu._isa import _filters
else:  # not loaded by `import upsweep`, as most programs filter nothing
    _filters = importlib.import_module(f"upsweep._backends.cpu._isa.{cpu.level}._filters")


def lfilter(
    b: Array, a: Array, x: Array, axis: int, dtype: np.dtype[Any], initial: Array | None
) -> tuple[Array, Array | None]:
    """Filter along an axis; return the result in a dtype, and with initial states those after the last step.

    b and a have one length and one dtype, and a[0] is 1. States have the shape of x, but the order along `axis`.
    """
    y, final = np.empty(x.shape, dtype), None
    if initial is not None:
        initial = np.ascontiguousarray(initial, np.result_type(b, dtype))
        final = initial.copy()
    if not x.size:
        return y, None if final is None else final.astype(dtype, copy=False)
    # Real coefficients filter the two parts, so that an infinity in one does not reach the other.
    is_split = dtype.kind == "c" and b.dtype.kind != "c"
    if b.dtype.char in "gG" or (is_split and x.dtype.kind != "c"):
        x = x.astype(dtype, copy=False)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :]) * (2 if is_split else 1)

    def lines(array: Array) -> Array:
        parts = array[..., np.newaxis].view(array.real.dtype) if is_split else array
        return parts.reshape(outer, array.shape[axis], inner)

    states = [None if array is None else lines(array) for array in (initial, final)]
    _filters.lfilter(b, a, lines(x), states[0], lines(y), states[1], cpu.threads(None))
    return y, None if final is None else final.astype(dtype, copy=False)
