"""Calls on arrays that are on a device: whose memory they take, the stream they go to, the scans among them.

`_dispatch` offers what is here to those above.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, Placement, name_of, on_device
from upsweep._arrays import Operand as Array
from upsweep._backends.cuda import scan_launch
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._backends.cuda.scan_launch import problem as cuda_problem
from upsweep._backends.cuda.scan_launch import run_scan as run_cuda_scan
from upsweep._core.scan import Scan

__all__ = [
    "Call",
    "advance_on_device",
    "combine_on_device",
    "described",
    "new_result",
    "user_array",
    "reduce_scan",
    "run_scan",
    "write_state",
]


class Call:
    """One call on arrays of a device: whose memory it takes, and the stream that it goes to."""

    def __init__(self, arrays: Mapping[str, Array | None], placement: Placement | None = None) -> None:
        held = {name: array for name, array in arrays.items() if isinstance(array, DeviceView)}
        placement = placement or _arrays.common_placement({**held})  # given by who has found it
        assert placement is not None
        self.library, self.device = placement
        scan_launch.check_device(self.device)
        producers = [array.origin.stream for array in held.values() if array.origin.stream is not None]
        current = self.library.stream(self.device)
        # Where there is no current stream, the work goes to where the result will be read.
        self.stream = current if current is not None else producers[-1] if producers else 0
        for stream in set(producers) - {self.stream}:
            scan_launch.synchronize(self.device, stream)
        self._memory: Any = None
        # A workspace must not be given the memory of a number that is still to be read.
        self._kept: list[DeviceView] = []

    @property
    def on_stream(self) -> dict[str, int]:
        return {"device": self.device, "stream": self.stream}

    @property
    def where(self) -> dict[str, Any]:
        return {**self.on_stream, "allocate": self.allocate}

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()

    @property
    def memory(self) -> Any:
        """The driver's memory on the stream, for libraries that give none."""
        if self._memory is None:
            from upsweep._backends.cuda import staging

            self._memory = staging.Memory(self.device, self.stream)
        return self._memory

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        given = self.library.workspace(n_bytes, self.device)
        mine: tuple[int, object] = self.memory.allocate(n_bytes) if given is None else given
        return mine

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None) -> DeviceView:
        """An uninitialised array; laid out as `like` is where that has its shape and repeats nothing."""
        if like is None or like.shape != shape or 0 in like.strides or not self.library.transposes:
            return self.library.empty(shape, dtype, self.device, self.stream)
        order = sorted(range(like.ndim), key=lambda axis: -abs(like.strides[axis]))
        return self.library.empty(shape, dtype, self.device, self.stream, tuple(order))

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceView:
        """An uninitialised array that does not outlive the call, which any library can have."""
        if self.library.allocates:
            return self.library.empty(shape, dtype, self.device, self.stream)
        pointer, keep = self.allocate(max(math.prod(shape), 1) * dtype.itemsize)
        return on_device(pointer, shape, dtype, Placement(self.library, self.device), keep)

    def send(self, array: Array) -> DeviceArray:
        """A short array of the host, which does not outlive the call."""
        there = self.library.sent(array, self.device)
        if there is None:
            return self.memory.send(array)
        self._kept.append(there)
        return described(there)

    def number(self, value: Array) -> DeviceArray:
        """One element."""
        on_device = self.library.full(value, self.device)
        if on_device is None:
            return self.memory.send(value)
        self._kept.append(on_device)
        return described(on_device)

    def array(self, array: Array | None) -> DeviceArray | None:
        """The array as the library takes it; a number of the host is sent as one element."""
        if array is None or isinstance(array, DeviceView):
            return None if array is None else described(array)
        nothing = DeviceArray(0, array.shape, (0,) * array.ndim, name_of(array.dtype))
        if array.size == 0:
            return nothing
        element = np.asarray(array[(0,) * array.ndim], array.dtype.newbyteorder("="))
        return nothing._replace(pointer=self.number(element).pointer)

    def gamma(self, gamma: Array | None) -> DeviceArray | complex | None:
        """As an array, or as a number, which is part of the call."""
        if gamma is None or isinstance(gamma, DeviceView):
            return self.array(gamma)
        return complex(gamma[(0,) * gamma.ndim]) if gamma.size else None


def described(array: Array) -> DeviceArray:
    """Describe an array for a kernel. A host array stands for an operand that is not read: its pointer is null."""
    pointer = array.pointer if isinstance(array, DeviceView) and array.size else 0
    return DeviceArray(pointer, array.shape, array.strides, name_of(array.dtype))


def _of_scan(scan: Scan, out: Array | None = None) -> dict[str, Array | None]:
    names = ("x", "gates", "gamma", "reset", "initial")
    return {**{name: getattr(scan, name) for name in names}, "out": out}


def run_scan(
    scan: Scan, out: Array | None, reverse: bool, exclusive: bool, window: int, return_final: bool
) -> tuple[Any, Any]:
    with contextlib.closing(Call(_of_scan(scan, out))) as call:
        result = call.empty(scan.shape, scan.dtype, scan.x) if out is None else out
        final = call.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
        if 0 not in scan.state_shape and (scan.shape[scan.axis] or final is not None):
            x, gates, reset, initial = map(call.array, (scan.x, scan.gates, scan.reset, scan.initial))
            assert x is not None
            problem = cuda_problem(
                x, gates, call.gamma(scan.gamma), initial, reset, described(result), call.array(final),
                axis=scan.axis, reverse=reverse, exclusive=exclusive, window=window, device=call.device,
                stream=call.stream,
            )  # fmt: skip
            run_cuda_scan(problem, call.allocate)
    return user_array(result), None if final is None else user_array(final)


def user_array(array: Array) -> Any:
    """The user's array, of which this is a view."""
    return array.origin.owner if isinstance(array, DeviceView) else array


def new_result(scan: Scan, shape: tuple[int, ...]) -> Array:
    """An uninitialised array of this shape where the scan is."""
    if scan.placement is None:
        return np.empty(shape, scan.dtype)
    with contextlib.closing(Call(_of_scan(scan))) as call:
        return call.empty(shape, scan.dtype)


def write_state(scan: Scan, target: Array) -> None:
    """Write the initial state, or 0, to `target`, a part of a result with one step along the axis."""
    if not isinstance(target, DeviceView):
        target[...] = 0 if scan.initial is None else np.expand_dims(scan.initial, scan.axis)
        return
    if 0 in target.shape:
        return
    with contextlib.closing(Call(_of_scan(scan, target))) as call:
        state = call.array(np.broadcast_to(np.int8(0), scan.state_shape) if scan.initial is None else scan.initial)
        assert state is not None
        at = scan.axis
        block = state._replace(shape=target.shape, strides=(*state.strides[:at], 0, *state.strides[at:]))
        problem = cuda_problem(
            block, None, None, None, None, described(target), None, axis=at, reverse=False, exclusive=False,
            device=call.device, stream=call.stream,
        )  # fmt: skip
        run_cuda_scan(problem, call.allocate)


def reduce_scan(scan: Scan, reverse: bool) -> tuple[Any, Any, Any]:
    dtypes = (scan.factor_dtype, scan.accumulator, np.dtype(np.bool_))
    with contextlib.closing(Call(_of_scan(scan))) as call:
        results = [call.empty(scan.state_shape, dtype) for dtype in dtypes]
        if 0 not in scan.state_shape:
            from upsweep._backends.cuda import aggregate_launch

            x = call.array(scan.x)
            assert x is not None
            aggregate_launch.reduce(
                x, call.array(scan.gates), call.gamma(scan.gamma), call.array(scan.reset),
                *map(described, results), axis=scan.axis, reverse=reverse, **call.where,
            )  # fmt: skip
    multiplier, value, dropped = map(user_array, results)
    return multiplier, value, dropped


Parts = tuple[Array, Array, Array]  # multiplier, value, dropped


def advance_on_device(parts: Parts, state: Array, dtype: np.dtype[Any]) -> Any:
    """The state after a block, in this dtype: `value` where dropped, else ``multiplier * state + value``."""
    shape = np.broadcast_shapes(state.shape, *(part.shape for part in parts))
    names = ("multiplier", "value", "reset", "state")
    spread = [np.broadcast_to(array, shape) for array in (*parts, state)]
    with contextlib.closing(Call(dict(zip(names, spread)))) as call:
        result = call.empty(shape, dtype)
        multiplier, value, dropped, before = spread
        _step(call, multiplier, value, dropped, before, result)
    return user_array(result)


def combine_on_device(first: Parts, second: Parts, factor_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    """The parts of two blocks together, in these dtypes."""
    shape = np.broadcast_shapes(*(part.shape for part in (*first, *second)))
    a_multiplier, a_value, a_dropped = (np.broadcast_to(part, shape) for part in first)
    b_multiplier, b_value, b_dropped = (np.broadcast_to(part, shape) for part in second)
    named = {"carry_a": a_value, "carry_b": b_value}
    zero = np.broadcast_to(np.int8(0), shape)
    with contextlib.closing(Call({**named})) as call:
        multiplier, value, dropped = (call.empty(shape, d) for d in (factor_dtype, dtype, np.dtype(np.bool_)))
        _step(call, None, a_dropped, None, b_dropped, dropped)  # whether their sum is not 0
        _step(call, b_multiplier, zero, dropped, a_multiplier, multiplier)
        _step(call, b_multiplier, b_value, b_dropped, a_value, value)
    return user_array(multiplier), user_array(value), user_array(dropped)


def _step(
    call: Call, multiplier: Array | None, value: Array, dropped: Array | None, state: Array, result: Array
) -> None:
    from upsweep._backends.cuda import aggregate_launch

    tokens, before = call.array(value), call.array(state)
    assert tokens is not None and before is not None
    aggregate_launch.step(
        call.array(multiplier), tokens, call.array(dropped), before, described(result), **call.where
    )  # fmt: skip
