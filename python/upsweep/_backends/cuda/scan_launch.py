"""The CUDA backend: one scan on arrays of a device, described by pointers and strides.

It knows no array library: whoever calls it brings pointers, a stream and a way to allocate.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import NamedTuple

from upsweep._backends.cuda import abi
from upsweep._backends.cuda.library import CudaError, Library, find, load

__all__ = [
    "CudaError",
    "DeviceArray",
    "Library",
    "accumulator_of",
    "check_device",
    "find",
    "load",
    "plan",
    "plan_reduction",
    "prepare_scan",
    "problem",
    "reduction",
    "run_lines",
    "run_lines_backward",
    "run_reduction",
    "run_scan",
    "start_scan",
    "synchronize",
]


class DeviceArray(NamedTuple):
    """An array on a device: strides in bytes, dtype by its name."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


_checked: set[int] = set()

# CUDA's own words for these say little to someone who has asked for a device by its name.
_MISSING = {
    "cudaErrorInsufficientDriver": "this machine has no NVIDIA driver, or one that is older than the library",
    "cudaErrorNoDevice": "this machine has no CUDA device",
    "cudaErrorInvalidDevice": "this machine has no CUDA device of that number",
}


def check_device(device: int) -> None:
    """Raise unless the library holds code for this device; asked once a device."""
    if device in _checked:
        return
    name = ctypes.create_string_buffer(256)
    try:
        load().device_check(device, name, ctypes.byref(ctypes.c_int32()))
    except CudaError as error:
        for code, missing in _MISSING.items():
            if code in str(error):
                raise CudaError(f"CUDA device {device}: {missing}: {error}") from None
        raise
    _checked.add(device)


def _describe(target: abi.Array, array: DeviceArray, axis: int | None) -> None:
    target.data = array.pointer
    target.dtype = abi.DTYPES[array.dtype]
    strides = array.strides
    if axis is not None:
        target.time_stride = strides[axis]
        strides = strides[:axis] + strides[axis + 1 :]
    target.batch_strides[: len(strides)] = strides


def accumulator_of(dtype: str) -> int:
    """What the library adds up for results of this dtype."""
    return abi.ACCUMULATORS.get(dtype.rstrip("0123456789"), abi.REAL)


def problem(
    x: DeviceArray,
    gates: DeviceArray | None,
    gamma: DeviceArray | complex | None,
    initial: DeviceArray | None,
    reset: DeviceArray | None,
    out: DeviceArray | None,
    final: DeviceArray | None,
    *,
    axis: int,
    reverse: bool,
    exclusive: bool,
    device: int,
    stream: int,
    window: int = 0,
) -> abi.ScanProblem:
    """Describe a scan. x, gates, reset and out have one shape; gamma, initial and final lack its `axis`.

    Without `out` only the final state is found, in final's dtype.
    """
    result = final if out is None else out
    assert result is not None
    p = abi.ScanProblem()
    p.device, p.stream, p.reverse, p.exclusive = device, stream, reverse, exclusive
    p.accumulator = accumulator_of(result.dtype)
    p.length, p.window = x.shape[axis], window
    batch = x.shape[:axis] + x.shape[axis + 1 :]
    p.n_batch = len(batch)
    p.batch_shape[: len(batch)] = batch
    _describe(p.x, x, axis)
    if out is not None:
        _describe(p.out, out, axis)
    if gates is not None:
        _describe(p.gates, gates, axis)
    elif isinstance(gamma, DeviceArray):
        _describe(p.gamma, gamma, None)
    else:
        number = complex(1 if gamma is None else gamma)
        p.gamma_re, p.gamma_im = number.real, number.imag
    if reset is not None:
        _describe(p.reset, reset, axis)
    if initial is not None:
        _describe(p.initial, initial, None)
    if final is not None:
        _describe(p.final_state, final, None)
    return p


def reduction(
    x: DeviceArray,
    gates: DeviceArray | None,
    gamma: DeviceArray | complex | None,
    initial: DeviceArray | None,
    reset: DeviceArray | None,
    multiplier: DeviceArray | None,
    value: DeviceArray,
    dropped: DeviceArray | None,
    *,
    axis: int,
    reverse: bool,
    device: int,
    stream: int,
) -> abi.Reduction:
    """Describe what a block of steps does to a state; what is found of it lacks the block's `axis`."""
    r = abi.Reduction()
    r.scan = problem(
        x, gates, gamma, initial, reset, None, value, axis=axis, reverse=reverse, exclusive=False, device=device,
        stream=stream,
    )  # fmt: skip
    for target, array in ((r.multiplier, multiplier), (r.dropped, dropped)):
        if array is not None:
            _describe(target, array, None)
    return r


def synchronize(device: int, stream: int) -> None:
    """Wait until the work on this stream is done."""
    load().copy_to_host(device, stream, None, None, 0)  # of no bytes: what is left of a copy is the wait


def plan(p: abi.ScanProblem, n_processors: int = 0) -> abi.Plan:
    """How the library will run the scan; with `n_processors` no device is looked at."""
    answer = abi.Plan()
    load().plan_scan(ctypes.byref(p), n_processors, ctypes.byref(answer))
    return answer


def plan_reduction(r: abi.Reduction) -> abi.Plan:
    """How the library will reduce; no device is looked at."""
    answer = abi.Plan()
    load().plan_reduce(ctypes.byref(r), ctypes.byref(answer))
    return answer


_pack_lines = struct.Struct(abi.LINES_FORMAT).pack_into


def run_lines(
    dtype: str,
    x: int,
    gates: int,
    gamma: float,
    out: int,
    lines: int,
    length: int,
    *,
    reverse: bool,
    device: int,
    stream: int,
    allocate: Callable[[int], tuple[int, object]],
) -> None:
    """Start the plainest scan: lines one after the other in memory, from pointers. `gates` 0: gamma."""
    check_device(device)
    request = abi.Lines()
    _pack_lines(
        request, 0, device, abi.DTYPES[dtype], reverse, 0, stream, x, gates, out, gamma, lines, length, 0, 0
    )
    scan_lines = load().scan_lines
    if scan_lines(request):
        request.workspace, keep = allocate(request.workspace_bytes)
        scan_lines(request)
        del keep


_pack_lines_backward = struct.Struct(abi.LINES_BACKWARD_FORMAT).pack_into
_NOT_HERE = next(code for code, name in abi.STATUS.items() if name == "NOT_HERE")


def run_lines_backward(
    dtype: str,
    gates: int,
    y: int,
    g: int,
    gx: int,
    g_gates: int,
    lines: int,
    length: int,
    *,
    reverse: bool,
    device: int,
    stream: int,
) -> bool:
    """Start the derivative of the plainest gated scan, which made `y`; False: no kernel is for these lines."""
    check_device(device)
    request = abi.LinesBackward()
    _pack_lines_backward(
        request, 0, device, abi.DTYPES[dtype], reverse, 0, stream, gates, y, g, gx, g_gates, lines, length
    )
    return bool(load().lines_backward(request) != _NOT_HERE)


def run_scan(p: abi.ScanProblem, allocate: Callable[[int], tuple[int, object]]) -> None:
    """Start the scan on its stream.

    `allocate` returns the pointer of that many bytes on the device, and what keeps them from being handed out
    again before work that was started up to now is done.
    """
    start_scan(prepare_scan(p), allocate)


def prepare_scan(p: abi.ScanProblem) -> abi.ScanProblem:
    """The scan, with how much workspace it takes."""
    check_device(p.device)
    p.workspace_bytes = plan(p).workspace_bytes
    return p


def start_scan(p: abi.ScanProblem, allocate: Callable[[int], tuple[int, object]]) -> None:
    """Start a prepared scan, perhaps of other arrays than it was prepared for, if they lie alike."""
    keep = None
    if p.workspace_bytes:
        p.workspace, keep = allocate(p.workspace_bytes)
    load().scan(ctypes.byref(p))
    del keep


def run_reduction(r: abi.Reduction, allocate: Callable[[int], tuple[int, object]]) -> None:
    """Start the reduction on its stream; `allocate` as for a scan."""
    check_device(r.scan.device)
    r.scan.workspace_bytes = plan_reduction(r).workspace_bytes
    keep = None
    if r.scan.workspace_bytes:
        r.scan.workspace, keep = allocate(r.scan.workspace_bytes)
    load().reduce(ctypes.byref(r))
    del keep
