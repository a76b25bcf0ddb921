"""Dtypes: the argument `dtype`, and the dtypes of results, accumulators and states."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from upsweep._arrays.device_view import Operand

DType = np.dtype[Any]


def is_bfloat16(dtype: DType) -> bool:
    """Whether this is ml_dtypes' bfloat16, without importing ml_dtypes."""
    return dtype.itemsize == 2 and dtype.kind in "Vf" and dtype.name == "bfloat16"


@functools.cache
def name_of(dtype: DType) -> str:
    """Return `dtype.name`, which numpy assembles anew, in microseconds, on each access."""
    return dtype.name


def as_dtype(value: DTypeLike) -> DType:
    """Return the dtype that the argument `dtype` names."""
    try:
        return np.dtype(value)
    except (TypeError, ValueError, SyntaxError) as error:  # numpy parses strings with commas as Python
        raise TypeError(f"dtype: {value!r} names no dtype: {error}") from None


def inexact_dtype(dtype: DType) -> DType:
    """Return float64 for integers and bool, other dtypes in native byte order."""
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")


def result_dtype(*arrays: Operand | complex) -> DType:
    """Return the inexact dtype of numpy's promotion; Python scalars do not widen it."""
    return inexact_dtype(np.result_type(*arrays))


def complex_dtype(dtype: DType) -> DType:
    """Return the complex dtype of the same precision, complex64 for 16-bit dtypes."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.complex128 if dtype == np.float64 else np.complex64)


def state_dtype(dtype: DType) -> DType:
    """Return the dtype of states in results of this dtype: float32 for float16 and bfloat16."""
    return np.dtype(np.float32) if dtype == np.float16 or is_bfloat16(dtype) else dtype


def can_hold(state: DType, value: DType) -> bool:
    """Whether a state of this dtype (float64, complex128 or 64-bit integers) can be set to a value of another."""
    if value.kind in "biu":
        return True  # all integers wrap around alike
    return state.kind in "fc" and (value.kind != "c" or state.kind == "c")


def accumulator_dtype(dtype: DType) -> DType:
    """Return the dtype that a scan with results of this dtype computes in."""
    kind = dtype.kind
    return np.dtype({"c": np.complex128, "b": np.int64, "i": np.int64, "u": np.uint64}.get(kind, np.float64))
