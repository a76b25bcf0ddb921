"""Scans by a user's update of arrays that are on a device. Imported by the first call that needs it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from upsweep._arrays import Array, DeviceView, Placement, common_placement
from upsweep._backends.cuda import scan_launch, user_scan_launch
from upsweep._backends.cuda.context import Call, described
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._compiler.formulas.nodes import Node, constant, substitute
from upsweep._compiler.recurrences.associative import Monoid
from upsweep._compiler.recurrences.recurrence import Recurrence, input_

__all__ = [
    "Call",
    "DeviceScans",
    "New",
    "Place",
    "ScanPlan",
    "check_allocates",
    "described",
    "in_scan_order",
    "lying",
    "new_result",
    "number",
    "with_constants",
    "with_numbers",
]

SIZES = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes of what results are


# By their text, which tells -0.0 from 0.0, and of which NaN is equal to itself.
@functools.lru_cache(512)
def _substituted(recurrence: Recurrence, numbers: tuple[tuple[int, str], ...]) -> Recurrence:
    values: dict[Node, Node] = {input_(place): constant(float.fromhex(text)) for place, text in numbers}
    new = [substitute(root, values) for root in (*recurrence.states, *recurrence.outputs)]
    k = recurrence.n_states
    return Recurrence(tuple(new[:k]), tuple(new[k:]), recurrence.n_inputs)


def with_numbers(recurrence: Recurrence, inputs: Sequence[Array]) -> Recurrence:
    """The recurrence with what the host has of its inputs, which is one number each, in its formulas."""
    return with_constants(
        recurrence,
        {place: number(x) if x.size else 0.0 for place, x in enumerate(inputs) if not isinstance(x, DeviceView)},
    )


def with_constants(recurrence: Recurrence, numbers: Mapping[int, float]) -> Recurrence:
    """The recurrence with these numbers in the place of inputs."""
    return _substituted(recurrence, tuple((n, x.hex()) for n, x in numbers.items())) if numbers else recurrence


def number(array: Array) -> float:
    """The number that an array of the host repeats."""
    assert all(n == 1 or stride == 0 for n, stride in zip(array.shape, array.strides))
    return float(array[(0,) * array.ndim])


def check_allocates(placement: Placement, arrays: Mapping[str, Array]) -> None:
    """Raise unless the library of these arrays can have results."""
    if not placement.library.allocates:
        name = next(name for name, array in arrays.items() if isinstance(array, DeviceView))
        raise TypeError(
            f"{name}: is a {placement.library.name}, of which upsweep does not know how to allocate another "
            "for the result; convert it explicitly"
        )


class Place(NamedTuple):
    """How an operand lies in the scan's order; its first step is `offset` bytes from the operand's address on."""

    array: DeviceArray  # with time first; its own address means nothing
    offset: int = 0

    def reversed(self) -> Place:
        """The same from the last step to the first."""
        array, step = self.array, self.array.strides[0]
        turned = array._replace(strides=(-step, *array.strides[1:]))
        return Place(turned, self.offset + max(array.shape[0] - 1, 0) * step)


def lying(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Place:
    """How an array without time lies."""
    return Place(DeviceArray(0, shape, strides, dtype))


def in_scan_order(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, axis: int, reverse: bool
) -> Place:  # fmt: skip
    """How an array with time on `axis` lies in the scan's order."""
    moved = [(*of[axis : axis + 1], *of[:axis], *of[axis + 1 :]) for of in (shape, strides)]
    place = Place(DeviceArray(0, moved[0], moved[1], dtype))
    return place.reversed() if reverse else place


class New(NamedTuple):
    """A result, which each call has anew: what it is for its user, and how it lies in the scan's order."""

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]  # its axes from the outermost in memory to the innermost
    place: Place


def new_result(
    shape: tuple[int, ...], dtype: str, *, axis: int | None = None, reverse: bool = False,
    like: Array | None = None,
) -> New:  # fmt: skip
    """A result with time on `axis`; laid out as `like` is where that has its shape and repeats nothing."""
    order = tuple(range(len(shape)))
    if like is not None and like.shape == shape and 0 not in like.strides:
        order = tuple(sorted(order, key=lambda d: -abs(like.strides[d])))
    strides, n_bytes = [0] * len(shape), SIZES[dtype]
    for d in reversed(order):
        strides[d] = n_bytes
        n_bytes *= shape[d]
    lies = tuple(strides)
    if axis is None:
        return New(shape, dtype, order, lying(shape, lies, dtype))
    return New(shape, dtype, order, in_scan_order(shape, lies, dtype, axis, reverse))


class ScanPlan:
    """A scan of arrays of one library on a device, ready for any that lie as those of its first call.

    The recurrence has numbers of the host in its formulas (`with_numbers`), where `inputs` has None. States may be
    numbers, whichever.
    """

    def __init__(
        self, placement: Placement, recurrence: Recurrence, dtype: np.dtype[Any], inputs: Sequence[Place | None],
        outputs: Sequence[New], states: Sequence[Place | None], finals: Sequence[New | None], length: int,
        columns: tuple[int, ...], form: Monoid | None,
    ) -> None:  # fmt: skip
        scan_launch.check_device(placement.ordinal)
        self.placement, self.inputs, self.outputs, self._finals = placement, inputs, outputs, finals
        self._offsets = [0 if place is None else place.offset for place in inputs]
        self._plan = None
        if 0 not in columns:
            self._plan = user_scan_launch.Plan(
                recurrence, dtype.name, [None if x is None else _read_by_steps(x.array) for x in inputs],
                [y.place.array for y in outputs], [0.0 if s is None else s.array for s in states],
                [None if s is None else s.place.array for s in finals], length, columns, form, placement.ordinal,
            )  # fmt: skip

    def again(self) -> Call:
        """A call on the library's current stream, to be closed at its end."""
        return Call({}, self.placement)

    def run(
        self, call: Call, inputs: Sequence[int | None], states: Sequence[int | float]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs and the last states, of addresses of inputs, and of states or what these are."""
        library, ordinal, stream = call.library, call.device, call.stream
        made = [library.new(y.shape, y.dtype, ordinal, stream, y.order) for y in self.outputs]
        last = [
            None if s is None else library.new(s.shape, s.dtype, ordinal, stream, s.order) for s in self._finals
        ]
        if self._plan is not None:
            operands: list[int | float | None] = [
                None if x is None else x + offset for x, offset in zip(inputs, self._offsets)
            ]
            operands += [library.address(y) + spec.place.offset for y, spec in zip(made, self.outputs)]
            operands += states
            operands += [None if s is None else library.address(s) for s in last]
            self._plan.start(operands, stream, call.allocate)
        return made, last


class DeviceScans:
    """Scans of one call of the user's, on its stream, with memory from its library."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        placement = common_placement({**arrays})  # which says what does not go together
        assert placement is not None
        check_allocates(placement, arrays)
        self.call = Call(arrays, placement)

    def close(self) -> None:
        self.call.close()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None) -> DeviceView:
        """An uninitialised array; laid out as `like` is where that has its shape and repeats nothing."""
        return self.call.empty(shape, dtype, like)

    def run(
        self, recurrence: Recurrence, dtype: np.dtype[Any], inputs: Sequence[Array], outputs: Sequence[Array],
        states: Sequence[Array], finals: Sequence[Array | None], length: int, columns: tuple[int, ...],
        form: Monoid | None,
    ) -> None:  # fmt: skip
        """Start a scan over the first axis of `inputs` and `outputs`.

        Inputs of the host are in its formulas, by `with_numbers`; states of the host are a number each. `finals`
        are in C order, of as many elements as `columns`.
        """
        if 0 in columns:
            return
        user_scan_launch.run(
            recurrence, dtype.name,
            [_read_by_steps(described(x)) if isinstance(x, DeviceView) else None for x in inputs],
            [described(out) for out in outputs],
            [described(s) if isinstance(s, DeviceView) else number(s) for s in states],
            [None if s is None else _in_order(s, columns) for s in finals], length, columns, form,
            allocate=self.call.allocate, **self.call.on_stream,
        )  # fmt: skip


def _read_by_steps(array: DeviceArray) -> DeviceArray:
    """The input; of no steps as one that moves in time: what is the same at all steps is read before the first."""
    return array if 0 not in array.shape else array._replace(strides=(1, *array.strides[1:]))


def _in_order(array: Array, shape: tuple[int, ...]) -> DeviceArray:
    """An array that was made in C order, in another shape of as many elements."""
    strides, n_bytes = list[int](), array.itemsize
    for n in reversed(shape):
        strides.insert(0, n_bytes)
        n_bytes *= n
    return described(array)._replace(shape=shape, strides=tuple(strides))
