"""CUDA executor of user-defined scans: launch plans, and the scans of one call. Imported by the first call.

`LaunchPlan` is prepared for arrays of one layout, and allocates the results of each call; compiled scans of arrays
and tensors, and of their derivatives, hold one. `DeviceScans` runs scans on arrays without preparing anything for
later. Both launch through `user_scan_launch`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from upsweep._arrays import DeviceView, Operand, Placement, common_placement
from upsweep._backends.cuda import library, user_scan_launch
from upsweep._backends.cuda.context import ExecutionContext
from upsweep._backends.cuda.descriptor import ArrayDescriptor, ScanArrays, describe
from upsweep._compiler.cuda.scalars import SIZES
from upsweep._compiler.recurrences.integers import as_word
from upsweep._core.layout import memory_order
from upsweep._core.user_scan import ScanSpec, choose_path, repeated_number, with_host_numbers

__all__ = [
    "ExecutionContext", "DeviceScans", "LaunchPlan", "Layout", "OutputSpec", "ScanArrays", "check_allocates",
    "describe", "final_spec", "layout_of", "output_spec",
]  # fmt: skip


def check_allocates(placement: Placement, arrays: Mapping[str, Operand]) -> None:
    """Raise unless the library of these arrays can allocate results."""
    if not placement.library.allocates:
        name = next(name for name, array in arrays.items() if isinstance(array, DeviceView))
        raise TypeError(
            f"{name}: is a {placement.library.name}, of which upsweep does not know how to allocate another "
            "for the result; convert it explicitly"
        )


# ---- layouts ---------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """The layout of an operand in scan order; its first step is `offset` bytes after the operand's address."""

    array: ArrayDescriptor  # whose pointer is not used
    offset: int = 0

    def reversed(self) -> Layout:
        """The same operand from the last step to the first."""
        array, step = self.array, self.array.strides[0]
        backwards = array._replace(strides=(-step, *array.strides[1:]))
        return Layout(backwards, self.offset + max(array.shape[0] - 1, 0) * step)


def layout_of(spec: ScanSpec, strides: tuple[int, ...], dtype: str, *, is_state: bool = False) -> Layout:
    """The layout of an array with these strides in user order: an input or output, or a state."""
    if is_state:
        return Layout(ArrayDescriptor(0, spec.columns, strides, dtype))
    axis = spec.axis
    in_order = (strides[axis], *strides[:axis], *strides[axis + 1 :])
    layout = Layout(ArrayDescriptor(0, (spec.length, *spec.columns), in_order, dtype))
    return layout.reversed() if spec.reverse else layout


class OutputSpec(NamedTuple):
    """A result that each call allocates: shape, dtype, axes from the outermost in memory, and layout."""

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    layout: Layout


def output_spec(
    spec: ScanSpec, dtype: str, like: Operand | None = None, *, is_state: bool = False
) -> OutputSpec:  # fmt: skip
    """An output, or a final state; its axes are in the order in memory of `like`, or else in C order."""
    shape = spec.columns if is_state else spec.shape
    order = range(len(shape)) if like is None else memory_order(like.strides)
    layout = layout_of(spec, _strides(shape, dtype, order), dtype, is_state=is_state)
    return OutputSpec(shape, dtype, tuple(order), layout)


final_spec = functools.partial(output_spec, is_state=True)


def _strides(shape: tuple[int, ...], dtype: str, order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array whose axes are in this order, from the outermost."""
    strides, n_bytes = [0] * len(shape), SIZES[dtype]
    for d in reversed(order):
        strides[d] = n_bytes
        n_bytes *= shape[d]
    return tuple(strides)


# ---- launches --------------------------------------------------------------------------------------------------


class LaunchPlan:
    """A scan prepared for arrays of one library, device and layout, which allocates the results of each call.

    The recurrence of `spec` has the numbers of the host as constants (`with_host_numbers`). `layouts` has a
    `Layout` for each input, or None for a constant; an `OutputSpec` for each output; a `Layout` for each state, or
    None for a number, which may differ from call to call; an `OutputSpec` for each final state, or None.
    """

    def __init__(self, spec: ScanSpec, placement: Placement, layouts: ScanArrays) -> None:
        library.check_device(placement.ordinal)
        self.placement, self.layouts = placement, layouts
        self._offsets = [0 if x is None else x.offset for x in layouts.inputs]
        self._launch: Any = None
        kinds = spec.recurrence.integer_states
        self._words = [n for n, s in enumerate(layouts.states) if s is None and kinds[n]]  # integers as numbers
        if 0 in spec.columns:
            return
        arrays = ScanArrays(
            [None if x is None else _with_time_stride(x.array) for x in layouts.inputs],
            [y.layout.array for y in layouts.outputs],
            [0.0 if s is None else s.array for s in layouts.states],
            [None if s is None else s.layout.array for s in layouts.finals],
        )
        monoid, _ = choose_path(spec, on_device=True)
        self._launch = user_scan_launch.prepare(spec, arrays, monoid, placement.ordinal)

    def context(self) -> ExecutionContext:
        """The context of a call on the library's current stream, to be closed at its end."""
        return ExecutionContext({}, self.placement)

    def run(
        self, context: ExecutionContext, inputs: Sequence[int | None], states: Sequence[int | float | None]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs and the final states, for the addresses of inputs and states, or numbers."""
        library, device, stream = context.library, context.device, context.stream
        outputs, finals = (
            [new and library.new(new.shape, new.dtype, device, stream, new.order) for new in specs]
            for specs in (self.layouts.outputs, self.layouts.finals)
        )
        if self._launch is not None:
            operands: list[int | float | None] = [
                None if x is None else x + offset for x, offset in zip(inputs, self._offsets)
            ]
            operands += [library.address(y) + new.layout.offset for y, new in zip(outputs, self.layouts.outputs)]
            numbers: list[Any] = [*states]
            for n in self._words:
                numbers[n] = as_word(numbers[n])
            operands += numbers
            operands += [None if s is None else library.address(s) for s in finals]
            self._launch.start(operands, stream, context.allocate)
        return outputs, finals


class DeviceScans(ExecutionContext):
    """Runs the scans of one call on arrays of a device, with `run` and `empty` as in `HostScans` of the CPU.

    `arrays` are those of the call by their names. Results are allocated by their library, on its current stream.
    """

    def __init__(self, arrays: Mapping[str, Operand]) -> None:
        placement = common_placement({**arrays})
        assert placement is not None
        check_allocates(placement, arrays)
        super().__init__(arrays, placement)

    def run(
        self, spec: ScanSpec, inputs: Sequence[Operand], states: Sequence[Operand],
        outputs: Sequence[Operand] | None = None, finals: Sequence[Operand] | None = None,
    ) -> tuple[Sequence[Operand], Sequence[Operand]]:  # fmt: skip
        """Start a scan of inputs in scan order; inputs and states of the host are one number each.

        Returns the outputs in user order and the states after the last step. They are new, or those that were
        passed, whose dtype may differ from the scan's; `finals` are in C order, with as many elements as the
        columns.
        """
        if outputs is None:
            outputs = [self.empty(spec.shape, dtype) for dtype in spec.output_dtypes]
        if finals is None:
            finals = [self.empty(spec.columns, dtype) for dtype in spec.state_dtypes]
        if 0 in spec.columns:
            return outputs, finals
        spec = replace(spec, recurrence=with_host_numbers(spec.recurrence, inputs))
        arrays = ScanArrays(
            [_with_time_stride(describe(x)) if isinstance(x, DeviceView) else None for x in inputs],
            [describe(spec.in_scan_order(y)) for y in outputs],
            [
                describe(s)
                if isinstance(s, DeviceView)
                else as_word(repeated_number(s))
                if is_integer
                else float(repeated_number(s))
                for s, is_integer in zip(states, spec.recurrence.integer_states)
            ],
            [_reshaped(describe(s), spec.columns) for s in finals],
        )
        monoid, _ = choose_path(spec, on_device=True)
        launch = user_scan_launch.prepare(spec, arrays, monoid, self.device)
        operands = [each.pointer if isinstance(each, ArrayDescriptor) else each for each in arrays.operands]
        launch.start(operands, self.stream, self.allocate)
        return outputs, finals


def _with_time_stride(array: ArrayDescriptor) -> ArrayDescriptor:
    """The input; without steps, as one that moves in time: others are read once, before the first step."""
    return array if 0 not in array.shape else array._replace(strides=(1, *array.strides[1:]))


def _reshaped(array: ArrayDescriptor, shape: tuple[int, ...]) -> ArrayDescriptor:
    """An array in C order, in another shape of as many elements."""
    return array._replace(shape=shape, strides=_strides(shape, array.dtype, range(len(shape))))
