"""The C interface of libupsweep_cuda.so in ctypes: the structures and functions of cuda/include/upsweep_cuda.h.

A test compares this file with the header and with the symbols that the library exports. The launch modules fill
the structures; `library` sets the functions' types.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any, TypeVar

from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor

Answer = TypeVar("Answer", bound=ctypes.Structure)

ABI = 5
MAX_DIMS = 64
_Sizes = c_int64 * MAX_DIMS

STATUS = {0: "OK", 1: "INVALID", 2: "UNSUPPORTED", 3: "CUDA_ERROR", 4: "WORKSPACE", 5: "NO_KERNEL"}
OK, NEEDS_WORKSPACE, NO_KERNEL = 0, 4, 5  # statuses that are no errors

# upsweep_dtype, by the name that numpy and torch have for it.
DTYPES = {
    name: code
    for code, name in enumerate((
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    ))
}  # fmt: skip

# upsweep_rule: of the thresholds of a histogram.
THRESHOLDS, HISTC, HISTOGRAM = 0, 1, 2

# upsweep_accumulator, by the dtype's name without its size.
REAL, COMPLEX, INTEGER = 0, 1, 2
ACCUMULATORS = {
    "float": REAL, "bfloat": REAL, "complex": COMPLEX, "bool": INTEGER, "int": INTEGER, "uint": INTEGER,
}  # fmt: skip


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Return fields of a structure from groups of a type and the names of its fields."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Array(ctypes.Structure):
    """upsweep_array: a strided array on a device; strides in bytes."""

    _fields_ = _fields(
        (c_void_p, "data"), (c_int32, "dtype reserved"), (c_int64, "time_stride"), (_Sizes, "batch_strides")
    )


def fill_array(target: Array, array: ArrayDescriptor, axis: int | None = None) -> None:
    """Fill in an array; `axis` is the one along which the operation runs, None: the array lacks it."""
    target.data, target.dtype = array.pointer, DTYPES[array.dtype]
    strides = array.strides
    if axis is not None:
        target.time_stride = strides[axis]
        strides = strides[:axis] + strides[axis + 1 :]
    target.batch_strides[: len(strides)] = strides


def call_with_workspace(function: Callable[[Any], Any], request: Any, holder: Any, allocate: Allocate) -> None:
    """Call a function with a request of which the part `holder` says how many bytes of workspace it needs."""
    keep_alive = None
    if holder.workspace_bytes:
        holder.workspace, keep_alive = allocate(holder.workspace_bytes)
    function(ctypes.byref(request))
    del keep_alive


def ask(function: Callable[..., Any], request: Any, *arguments: int, answer: Answer) -> Answer:
    """Return the structure that a function of the library fills in for a request."""
    function(ctypes.byref(request), *arguments, ctypes.byref(answer))
    return answer


class ScanProblem(ctypes.Structure):
    """upsweep_scan: the request for one scan."""

    _fields_ = _fields(
        (c_int32, "device accumulator reverse exclusive"), (c_void_p, "stream workspace"),
        (c_int64, "workspace_bytes"), (c_double, "gamma_re gamma_im"), (c_int64, "length window"),
        (c_int32, "n_batch reserved"), (_Sizes, "batch_shape"),
        (Array, "x gates reset out gamma initial final_state"),
    )  # fmt: skip


class Reduction(ctypes.Structure):
    """upsweep_reduction: the request for the aggregate of a block of steps."""

    _fields_ = _fields((ScanProblem, "scan"), (Array, "multiplier dropped"))


class Lines(ctypes.Structure):
    """upsweep_lines: the request for a scan of contiguous lines of one dtype."""

    _fields_ = _fields(
        (c_int32, "device dtype reverse reserved"), (c_void_p, "stream x gates out"), (c_double, "gamma"),
        (c_int64, "lines length"), (c_void_p, "workspace"), (c_int64, "workspace_bytes"),
    )  # fmt: skip


class LinesBackward(ctypes.Structure):
    """upsweep_lines_backward: the request for the gradients of such a scan with gates."""

    _fields_ = _fields(
        (c_int32, "device dtype reverse reserved"), (c_void_p, "stream gates y g gx g_gates"),
        (c_int64, "lines length"),
    )  # fmt: skip


class Plan(ctypes.Structure):
    """upsweep_plan: how the library will run a scan."""

    _fields_ = _fields(
        (c_int32, "regime typed"), (c_int64, "lines tile n_launches workspace_bytes"),
    )  # fmt: skip


class Count(ctypes.Structure):
    """upsweep_count: a count, or sums of weights."""

    _fields_ = _fields(
        (c_int32, "device accumulate deterministic n_batch"), (c_void_p, "stream workspace"),
        (c_int64, "workspace_bytes length n_bins n_columns weights_column_stride out_column_stride"),
        (_Sizes, "batch_shape"), (Array, "keys weights out"), (c_void_p, "dropped first_outside"),
    )  # fmt: skip


class Histogram(ctypes.Structure):
    """upsweep_histogram: elements that are counted by their ranks among thresholds."""

    _fields_ = _fields(
        (Count, "count"), (c_void_p, "thresholds"), (c_int64, "n_thresholds"), (c_double, "origin scale"),
        (c_int32, "rule edge_dtype step_dtype reserved"), (c_double, "first last step"), (c_void_p, "edges"),
    )  # fmt: skip


class CountPlan(ctypes.Structure):
    """upsweep_count_plan: how the library will count."""

    _fields_ = _fields(
        (c_int32, "regime replicas shares vectors"), (c_int64, "splits n_launches workspace_bytes"),
    )  # fmt: skip


STRUCTS = {
    "upsweep_array": Array,
    "upsweep_scan": ScanProblem,
    "upsweep_reduction": Reduction,
    "upsweep_lines": Lines,
    "upsweep_lines_backward": LinesBackward,
    "upsweep_plan": Plan,
    "upsweep_count": Count,
    "upsweep_histogram": Histogram,
    "upsweep_count_plan": CountPlan,
}

# name: (result, arguments, whether the result is a status, whether the call may block and so releases the GIL)
FUNCTIONS = {
    "upsweep_cuda_abi": (c_int32, (), False, False),
    "upsweep_cuda_sizes": (None, (POINTER(c_int64),), False, False),
    "upsweep_cuda_architectures": (c_int32, (POINTER(c_int32), c_int32), False, False),
    "upsweep_cuda_last_error": (c_char_p, (), False, False),
    "upsweep_cuda_device_count": (c_int32, (POINTER(c_int32),), True, True),
    "upsweep_cuda_device_check": (c_int32, (c_int32, c_char_p, POINTER(c_int32)), True, True),
    "upsweep_cuda_plan_scan": (c_int32, (POINTER(ScanProblem), c_int32, POINTER(Plan)), True, False),
    "upsweep_cuda_scan": (c_int32, (POINTER(ScanProblem),), True, False),
    "upsweep_cuda_scan_lines": (c_int32, (POINTER(Lines),), True, False),
    "upsweep_cuda_plan_reduce": (c_int32, (POINTER(Reduction), POINTER(Plan)), True, False),
    "upsweep_cuda_reduce": (c_int32, (POINTER(Reduction),), True, False),
    "upsweep_cuda_plan_lines_backward": (c_int32, (POINTER(LinesBackward), c_int32), True, False),
    "upsweep_cuda_lines_backward": (c_int32, (POINTER(LinesBackward),), True, False),
    "upsweep_cuda_plan_count": (c_int32, (POINTER(Count), c_int32, POINTER(CountPlan)), True, False),
    "upsweep_cuda_count": (c_int32, (POINTER(Count),), True, False),
    "upsweep_cuda_key_range": (c_int32, (POINTER(Count), c_void_p), True, False),
    "upsweep_cuda_plan_histogram": (c_int32, (POINTER(Histogram), c_int32, POINTER(CountPlan)), True, False),
    "upsweep_cuda_histogram": (c_int32, (POINTER(Histogram),), True, False),
    "upsweep_cuda_value_range": (c_int32, (POINTER(Count), c_void_p), True, False),
    "upsweep_cuda_allocate": (c_int32, (c_int32, c_void_p, c_int64, POINTER(c_void_p)), True, True),
    "upsweep_cuda_free": (c_int32, (c_int32, c_void_p, c_void_p), True, False),
    "upsweep_cuda_copy_to_device": (c_int32, (c_int32, c_void_p, c_void_p, c_void_p, c_int64), True, True),
    "upsweep_cuda_copy_to_host": (c_int32, (c_int32, c_void_p, c_void_p, c_void_p, c_int64), True, True),
}
