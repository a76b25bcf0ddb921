"""CUDA executor of the scans: runs checked scans, their aggregates and the steps between blocks.

The functions take device arrays, or numpy arrays together with a device (see `staging`). Nothing here waits for
the device, except that numpy results are copied back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand, user_array
from upsweep._backends.cuda import scan_launch
from upsweep._backends.cuda.context import ExecutionContext
from upsweep._backends.cuda.cupy_calls import register_short_path
from upsweep._backends.cuda.descriptor import describe
from upsweep._backends.cuda.staging import open_context
from upsweep._core.scan import Scan


def _operands(scan: Scan, out: Operand | None = None) -> dict[str, Operand | None]:
    names = ("x", "gates", "gamma", "reset", "initial")
    return {**{name: getattr(scan, name) for name in names}, "out": out}


def run_scan(
    scan: Scan, out: Operand | None, reverse: bool, exclusive: bool, window: int, return_final: bool,
    device: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Run a scan; return the result and, if it is asked for, the state after the last step."""
    with open_context(_operands(scan, out), device) as context:
        result = context.empty(scan.shape, scan.dtype, scan.x) if out is None else out
        final = context.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
        if 0 not in scan.state_shape and (scan.shape[scan.axis] or final is not None):
            problem = scan_launch.problem(
                context.input(scan.x), context.optional_input(scan.gates), context.factor(scan.gamma),
                context.optional_input(scan.initial), context.optional_input(scan.reset), context.output(result),
                None if final is None else context.output(final), axis=scan.axis, reverse=reverse,
                exclusive=exclusive, window=window, **context.on_stream,
            )  # fmt: skip
            scan_launch.run_scan(problem, context.allocate)
    y = user_array(result)
    register_short_path(y)
    return y, None if final is None else user_array(final)


def new_result(scan: Scan, shape: tuple[int, ...]) -> Operand:
    """Return an uninitialised array of this shape, of the library and on the device of the scan."""
    if scan.placement is None:
        return np.empty(shape, scan.dtype)
    with ExecutionContext(_operands(scan)) as context:
        return context.empty(shape, scan.dtype)


def write_state(scan: Scan, target: Operand) -> None:
    """Write the initial state, or 0, to `target`, a part of a result that has one step along the axis."""
    if not isinstance(target, DeviceView):
        target[...] = 0 if scan.initial is None else np.expand_dims(scan.initial, scan.axis)
        return
    if 0 in target.shape:
        return
    with ExecutionContext(_operands(scan, target)) as context:
        zeros = np.broadcast_to(np.int8(0), scan.state_shape)
        state = context.input(zeros if scan.initial is None else scan.initial)
        axis = scan.axis
        block = state._replace(shape=target.shape, strides=(*state.strides[:axis], 0, *state.strides[axis:]))
        problem = scan_launch.problem(
            block, None, None, None, None, describe(target), None, axis=axis, reverse=False, exclusive=False,
            **context.on_stream,
        )  # fmt: skip
        scan_launch.run_scan(problem, context.allocate)


def reduce_scan(scan: Scan, reverse: bool, device: int | None = None) -> tuple[Any, Any, Any]:
    """Return the aggregate of a block: multiplier, value, and whether a reset drops the state before it."""
    with open_context(_operands(scan), device) as context:
        dtypes = (scan.factor_dtype, scan.accumulator, np.dtype(np.bool_))
        results = [context.empty(scan.state_shape, dtype) for dtype in dtypes]
        if 0 not in scan.state_shape:
            scan_launch.reduce(
                context.input(scan.x), context.optional_input(scan.gates), context.factor(scan.gamma),
                None, context.optional_input(scan.reset), *map(context.output, results), axis=scan.axis,
                reverse=reverse, **context.resources,
            )  # fmt: skip
    multiplier, value, dropped = map(user_array, results)
    return multiplier, value, dropped


Parts = tuple[Operand, Operand, Operand]  # of an aggregate: multiplier, value, dropped


def advance_on_device(parts: Parts, state: Operand, dtype: np.dtype[Any]) -> Any:
    """Return the state after a block, in `dtype`: `value` where dropped, else ``multiplier * state + value``."""
    shape = np.broadcast_shapes(state.shape, *(part.shape for part in parts))
    names = ("multiplier", "value", "reset", "state")
    multiplier, value, dropped, before = (np.broadcast_to(array, shape) for array in (*parts, state))
    with ExecutionContext(dict(zip(names, (multiplier, value, dropped, before)))) as context:
        result = context.empty(shape, dtype)
        _step(context, multiplier, value, dropped, before, result)
    return user_array(result)


def combine_on_device(first: Parts, second: Parts, factor_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    """Return the aggregate of two consecutive blocks, in these dtypes."""
    shape = np.broadcast_shapes(*(part.shape for part in (*first, *second)))
    a_multiplier, a_value, a_dropped = (np.broadcast_to(part, shape) for part in first)
    b_multiplier, b_value, b_dropped = (np.broadcast_to(part, shape) for part in second)
    zero = np.broadcast_to(np.int8(0), shape)
    with ExecutionContext({"carry_a": a_value, "carry_b": b_value}) as context:
        multiplier, value, dropped = (context.empty(shape, d) for d in (factor_dtype, dtype, np.dtype(np.bool_)))
        _step(context, None, a_dropped, None, b_dropped, dropped)  # whether their sum is not 0
        _step(context, b_multiplier, zero, dropped, a_multiplier, multiplier)
        _step(context, b_multiplier, b_value, b_dropped, a_value, value)
    return user_array(multiplier), user_array(value), user_array(dropped)


def _step(
    context: ExecutionContext, multiplier: Operand | None, value: Operand, dropped: Operand | None, state: Operand,
    result: Operand,
) -> None:  # fmt: skip
    scan_launch.advance(
        context.optional_input(multiplier), context.input(value), context.optional_input(dropped),
        context.input(state), describe(result), **context.resources,
    )  # fmt: skip
