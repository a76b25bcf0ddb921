"""Loop nests that are a scan by an update, which `_backends.cuda.scan_loops` runs as `scan(update)` does.

    scan[0, i] = X[0, i]
    for (t) { scan[t + 1, i] = scan[t, i] + X[t + 1, i] }

is the recurrence s + x of each column, which is associative, so that time can be parallel where columns are few.
A nest has this form if one scan is all of it, the schedule leaves its loops open, each state depends on the step
before it in its own column, and all numbers are floats of one dtype. `scan_form` traces the expressions as the
update of a `scan` is traced.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep._compiler.loops.expressions import (
    FLOATS,
    OPERATIONS,
    Axis,
    Expr,
    constant_of,
    contains,
    index_const,
    key,
    load,
    outside_loads,
    substitute,
)
from upsweep._compiler.loops.linear import Linear, linear, same, simplified
from upsweep._compiler.loops.rewrite import block_of, paths_to
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Buffer, For, Produce, Statement, Store, loads_of
from upsweep._compiler.loops.traversal import fold
from upsweep._compiler.recurrences.associative import find_monoid, find_product
from upsweep._compiler.recurrences.recurrence import Recurrence
from upsweep._compiler.recurrences.trace import trace

# What leaves the other operand as it is.
_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


class ScanAccess:
    """An element of a buffer at each step and column: affine in their indices, for known sizes."""

    def __init__(self, buffer: Buffer, forms: Sequence[Linear], axes: Sequence[Axis]) -> None:
        self.buffer = buffer
        self._coefficients = [[form.coefficient(axis) for form in forms] for axis in axes]
        for axis in axes:
            forms = [form.without(axis) for form in forms]
        rest = [form.expr() for form in forms]
        if any(contains(each, axes) for each in rest):
            raise _OtherForm
        self._offsets = [evaluator(each) for each in rest]

    def layout(self, strides: Sequence[int], sizes: Sizes, first_step: int = 0) -> tuple[int, tuple[int, ...]]:
        """The offset of the first element in an array of these strides, and its strides along time and columns."""
        own = tuple(sum(c * stride for c, stride in zip(each, strides)) for each in self._coefficients)
        offset = sum(at(sizes) * stride for at, stride in zip(self._offsets, strides))
        return offset + first_step * own[0], own


@dataclass(eq=False)
class ScanForm:
    """A scan over `length` steps of `columns`, which are sizes; the first steps are those of `initial`.

    `starts` are the statements of the first steps. With `neutral` numbers as states before it, a step more than
    the nest has gives the first steps, too.
    """

    recurrence: Recurrence
    why: str  # time can be parallel
    dtype: np.dtype[Any]
    length: Expr
    columns: tuple[Expr, ...]
    inputs: list[ScanAccess]
    outputs: list[ScanAccess]
    initial: list[ScanAccess]
    starts: Statement
    neutral: list[float] | None


class _OtherForm(Exception):
    """The nest is no scan by an associative update."""


def scan_form(body: Statement, arguments: Collection[Buffer], free: Collection[int]) -> ScanForm | None:
    """The form of a nest, or None; `free` are the ids of the axes that the schedule leaves open."""
    try:
        return _Nest(body, arguments, free).form()
    except (_OtherForm, TypeError, ValueError):  # the latter of updates that cannot be traced
        return None


def _require(condition: bool) -> None:
    if not condition:
        raise _OtherForm


class _Nest:
    """The stores of a nest: those of the first steps, and those of each step, in terms of one set of axes."""

    def __init__(self, body: Statement, arguments: Collection[Buffer], free: Collection[int]) -> None:
        self.starts: dict[Buffer, tuple[tuple[For, ...], Store]] = {}
        self.values: dict[Buffer, tuple[tuple[Linear, ...], Expr]] = {}  # of a step: its element, and the value
        self.loops: tuple[For, ...] = ()  # over time, and over the columns
        for store, path in paths_to(body):
            loops = tuple(each for each in path if isinstance(each, For) and not each.tag)
            _require(len(loops) == len(path) and store.buffer.dtype in FLOATS)
            if loops and loops[0].axis.kind == "scan":
                _require(all(id(loop.axis) in free for loop in loops[1:]))
                self.loops = self.loops or loops
                _require(loops[0] is self.loops[0] and len(loops) == len(self.loops))
                self._add(store, loops)
            else:
                _require(store.buffer not in self.starts)
                self.starts[store.buffer] = loops, store
        _require(bool(self.loops) and self.starts.keys() <= self.values.keys() & {*arguments})
        self.time = self.loops[0].axis

    def _add(self, store: Store, loops: tuple[For, ...]) -> None:
        """A store of a step, whose value may read those before it."""
        _require(all(same(loop.extent, first.extent) for loop, first in zip(loops, self.loops)))
        renamed = {loop.axis: first.axis for loop, first in zip(loops, self.loops)}
        element = _forms(substitute(index, renamed) for index in store.indices)
        _require(store.buffer not in self.values and _end_alike(element, self._columns()))
        value = substitute(store.value, renamed)
        known = {}
        for each in loads_of(value):
            other, stored = self.values.get(each.static[0], ((), value))
            if other and _are_equal(_forms(each.args), other):
                known[each] = stored
        self.values[store.buffer] = element, substitute(value, known)

    def _columns(self) -> tuple[Linear, ...]:
        return _forms(loop.axis for loop in self.loops[1:])

    def form(self) -> ScanForm:
        states, axes = list(self.starts), [loop.axis for loop in self.loops]
        before = {state: self._before(state) for state in states}
        inputs, places = list[ScanAccess](), dict[str, int]()

        def place_of(each: Expr) -> int:
            """The position of an input, or that of a state less the number of states."""
            name, buffer, forms = _text(each), each.static[0], _forms(each.args)
            if name not in places and buffer in before:
                _require(_are_equal(forms, before[buffer]))
                places[name] = states.index(buffer) - len(states)
            elif name not in places:
                _require(buffer not in self.values)
                places[name] = len(inputs)
                inputs.append(ScanAccess(buffer, forms, axes))
            return places[name]

        values = [self.values[state][1] for state in states]
        reads = {id(each): place_of(each) for value in values for each in loads_of(value)}
        (dtype,) = {np.dtype(buffer.dtype) for buffer in (*states, *(each.buffer for each in inputs))}
        structure = -1 if len(states) == 1 else len(states)

        def update(state: Any, x: Any) -> Any:
            before_step = [state] if structure == -1 else [*state]
            known = {n: before_step[place] if place < 0 else x[place] for n, place in reads.items()}
            after = tuple(fold(value, _symbol, dict(known), outside_loads) for value in values)
            return after[0] if structure == -1 else after

        traced = trace(update, (dtype,) * len(states), structure, (dtype,) * len(inputs), len(inputs) or None)
        monoid, why = find_monoid(traced.recurrence)
        if monoid is None:
            product, why = find_product(traced.recurrence)
            _require(product is not None)
        return ScanForm(
            traced.recurrence, why, dtype, self.loops[0].extent, tuple(loop.extent for loop in self.loops[1:]),
            inputs,
            [ScanAccess(state, self.values[state][0], axes) for state in states],
            [ScanAccess(state, before[state], axes) for state in states],
            Produce(states[0].name, block_of(*((*loops, store)[0] for loops, store in self.starts.values()))),
            self._neutral(states, reads),
        )  # fmt: skip

    def _before(self, state: Buffer) -> tuple[Linear, ...]:
        """A state's element in the step before, where time is the first index; the first one is in the start."""
        (now, *columns), (_, start) = self.values[state][0], self.starts[state]
        before = now.plus(Linear(-1))
        _require(len(columns) == len(self.loops) - 1 and before.coefficient(self.time) == 1)
        _require(linear(substitute(start.indices[0], self._units(state))).equals(before.without(self.time)))
        return before, *columns

    def _units(self, state: Buffer) -> dict[Axis, Expr]:
        """The index of each loop around a start that has one step."""
        loops, _ = self.starts[state]
        return {loop.axis: index_const(0) for loop in loops if constant_of(loop.extent) == 1}

    def _neutral(self, states: list[Buffer], reads: Mapping[int, int]) -> list[float] | None:
        """The states from which the step before the first one gives the first steps; None if there are none."""
        numbers = []
        for place, state in enumerate(states):
            value, (loops, start) = self.values[state][1], self.starts[state]
            rest = [arg for arg in value.args if not any(reads[id(each)] < 0 for each in loads_of(arg))]
            moved = [arg for arg in value.args if reads.get(id(_scaled(arg, value.op))) == place - len(states)]
            if value.op not in _NEUTRAL or len(rest) != 1 or len(moved) != 1:
                return None
            units = self._units(state)
            others = [loop.axis for loop in loops if loop.axis not in units]
            columns = {axis: loop.axis for axis, loop in zip(others, self.loops[1:])}
            first = substitute(start.value, {**units, **columns})
            if _text(substitute(rest[0], {self.time: index_const(-1)})) != _text(first):
                return None
            numbers.append(_NEUTRAL[value.op])
        return numbers


def _scaled(arg: Expr, op: str) -> Expr:
    """What a term of a sum multiplies with a finite number, so that 0 stays 0; else the operand itself."""
    if op == "add" and arg.op == "mul":
        for factor, other in zip(arg.args, arg.args[::-1]):
            if factor.op == "const" and math.isfinite(factor.static[0]):
                return other
    return arg


def _forms(indices: Iterable[Expr]) -> tuple[Linear, ...]:
    return tuple(linear(index) for index in indices)


def _are_equal(a: Sequence[Linear], b: Sequence[Linear]) -> bool:
    return len(a) == len(b) and all(x.equals(y) for x, y in zip(a, b))


def _end_alike(element: Sequence[Linear], columns: Sequence[Linear]) -> bool:
    """Whether the last indices of an element are the columns'."""
    return len(element) >= len(columns) and _are_equal(element[len(element) - len(columns) :], columns)


def _text(expr: Expr) -> str:
    """A key that is equal for expressions which read the same elements."""
    loads = {each: load(each.static[0], tuple(simplified(i) for i in each.args)) for each in loads_of(expr)}
    return key(substitute(expr, loads))


def _symbol(node: Expr, args: list[Any]) -> Any:
    """An operation on symbols of a trace."""
    if node.op == "const" and node.dtype in FLOATS:
        return node.static[0]
    if node.op == "select":
        return np.where(*args)
    _require(node.op in OPERATIONS and bool(args))
    return OPERATIONS[node.op][1](*args)
