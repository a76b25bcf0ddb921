"""Schedules lowered for the arguments of calls: functions are compiled from them and pickled as them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from upsweep._compiler.loops.expressions import ITEM_BYTES, Axis, Expr, key
from upsweep._compiler.loops.statements import Allocate, Buffer, Statement, all_statements
from upsweep._compiler.loops.traversal import walk
from upsweep.te.bounds_checks import SizeCheck, check_memory
from upsweep.te.lowering import lower_schedule
from upsweep.te.schedule import Schedule
from upsweep.te.tensors import ComputeOp, Tensor

__all__ = ["LoweredSchedule", "lower_for", "memory_checks"]


class LoweredSchedule(NamedTuple):
    """A loop nest with the arguments of its calls."""

    name: str
    args: list[Tensor | Expr]
    device: int | None  # of CUDA; None: the CPU
    body: Statement
    buffers: list[Buffer]
    sizes: list[Expr]
    checks: list[SizeCheck]  # of the schedule
    free_axes: list[Axis]  # of stages that the schedule leaves open

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors."""
        return [arg for arg in self.args if isinstance(arg, Tensor)]

    @property
    def size_args(self) -> list[Expr]:
        """The arguments that are sizes."""
        return [arg for arg in self.args if isinstance(arg, Expr)]


def _check_arguments(schedule: Any, args: Any) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected te.create_schedule(...), got {schedule!r}")
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args: expected a list of tensors, got {args!r}")
    for position, arg in enumerate(args):
        if not isinstance(arg, Tensor) and not (isinstance(arg, Expr) and arg.op == "var"):
            raise TypeError(f"args: expected tensors, and sizes from te.var; args[{position}] is {arg!r}")


def _sizes_of(schedule: Schedule, args: Sequence[Tensor | Expr]) -> list[Expr]:
    """All symbolic sizes of a schedule, those among the arguments first."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    tensors += [tensor for stage in schedule.stages for tensor in stage.op.outputs]
    exprs = [arg for arg in args if isinstance(arg, Expr)]
    exprs += [extent for tensor in tensors for extent in tensor.shape]
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp):
            exprs += [axis.extent for axis in stage.op.reduce_axis if axis.extent is not None]
            exprs.append(stage.op.body)
    sizes: dict[str, Expr] = {}
    for node in (node for expr in exprs for node in walk(expr) if node.op == "var"):
        sizes.setdefault(key(node), node)
    return list(sizes.values())


def memory_checks(body: Statement) -> list[SizeCheck]:
    """The checks that the buffers of a nest are not too large for int64."""
    buffers = [each.buffer for each in all_statements(body) if isinstance(each, Allocate)]
    return [check for b in buffers for check in check_memory(b.name, b.shape, ITEM_BYTES[b.dtype])]


def lower_for(
    schedule: Schedule, args: Sequence[Tensor | Expr], name: str = "lower", device: int | None = None
) -> LoweredSchedule:
    """Lower a schedule for calls with these arguments.

    Raises
    ------
    TypeError, ValueError
        Arguments that are no tensors or sizes, or do not belong to the schedule.
    """
    _check_arguments(schedule, args)
    body, buffers = lower_schedule(schedule, [arg for arg in args if isinstance(arg, Tensor)])
    open_stages = [stage for stage in schedule.stages if not stage.touched]
    free_axes = [leaf for stage in open_stages for leaf in stage.leaves if leaf.kind == "data"]
    return LoweredSchedule(
        name, list(args), device, body, buffers, _sizes_of(schedule, args), schedule.checks, free_axes
    )
