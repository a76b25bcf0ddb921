"""Builder of scalar programs: value numbering, constant folding, rewrites, code motion, dead code removal.

Equal instructions share one value number. An instruction is placed in the outermost loop whose index or carries it
depends on (loop-invariant code motion), and its level is the join of its operands' levels. The rewrites concern
single numbers and levels. They change results in these cases only: a division by a value that changes more rarely
than the quotient becomes a product with its inverse, factors that change rarely are multiplied first (about one
rounding each), and 0 * x is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from upsweep._compiler.formulas.rules import is_moderate
from upsweep._compiler.lowering.program import COMPARISONS, FUNCTIONS, Instruction, join

_INVERTED = 2.0**100  # constants up to this, and down to its inverse, have a normal inverse in float32 too
_MAX_DEPTH = 50  # of nested rewrites; beyond, a product of many factors stays unchanged
_COMMUTATIVE = ("add", "mul", "eq", "ne")


class TooLong(Exception):
    """The program exceeds the limit of instructions."""


@dataclass(frozen=True, slots=True)
class Index:
    """An affine index of features: an offset plus loop indices times strides."""

    offset: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: int) -> Index:
        return Index(self.offset + other, self.terms)

    def scaled(self, stride: int, inner: Index | None = None) -> Index:
        """This index times `stride`, plus another."""
        inner = inner or Index()
        terms = tuple((loop, step * stride) for loop, step in self.terms)
        return Index(self.offset * stride + inner.offset, terms + inner.terms)

    def loops(self) -> tuple[int, ...]:
        return tuple(loop for loop, _ in self.terms)

    def static(self) -> tuple[int, ...]:
        return (self.offset, *(stride for _, stride in self.terms))


@dataclass(eq=False, slots=True)
class _Scope:
    """The body of a loop, or the whole program: instructions in order, and their value numbers."""

    items: list[int | _Scope] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)


class Builder:
    """A program under construction. Methods named after instructions return the id of their value."""

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._steps: list[Instruction] = []
        self._scope_of: list[_Scope] = []
        self._root = _Scope()
        self._open = [self._root]
        self._n_rewrites = 0  # nested ones that are running

    # Values

    def const(self, value: float) -> int:
        value = float(value)
        return self._emit("const", (), (value,), key=value.hex())

    def load(self, kind: str, index: Index) -> int:
        return self._emit("load", index.loops(), (kind, *index.static()))

    def number(self, index: Index) -> int:
        """An index as a number."""
        total = self.const(index.offset)
        for loop, stride in index.terms:
            term = self._emit("number", (loop,), ())
            total = self.add(total, self.mul(term, self.const(stride)))
        return total

    def call(self, op: str, *args: int, static: tuple[Any, ...] = ()) -> int:
        """The value of an instruction, after constant folding and rewriting."""
        rewrite = _REWRITES.get(op) if self._n_rewrites < _MAX_DEPTH else None
        values = [self._constant(arg) for arg in args]
        if op in FUNCTIONS and values and None not in values:
            with np.errstate(all="ignore"):
                return self.const(float(FUNCTIONS[op].numpy(*map(np.float64, values))))
        if rewrite is None:
            return self._emit(op, args, static)
        self._n_rewrites += 1
        try:
            return rewrite(self, *args)
        finally:
            self._n_rewrites -= 1

    def add(self, a: int, b: int) -> int:
        return self.call("add", a, b)

    def sub(self, a: int, b: int) -> int:
        return self.call("sub", a, b)

    def mul(self, a: int, b: int) -> int:
        return self.call("mul", a, b)

    def div(self, a: int, b: int) -> int:
        return self.call("div", a, b)

    def choose(self, comparison: str, a: int, b: int, then: int, otherwise: int) -> int:
        """`then` where the comparison of a with b holds, else `otherwise`."""
        x, y = self._constant(a), self._constant(b)
        if x is not None and y is not None:
            return then if COMPARISONS[comparison](x, y) else otherwise
        if then == otherwise:
            return then
        return self._emit("select", (self._emit(comparison, (a, b), ()), then, otherwise), ())

    # Loops and arrays

    @contextmanager
    def at_root(self) -> Iterator[None]:
        """Place the instructions built inside before all open loops."""
        before, self._open = self._open, [self._root]
        yield
        self._open = before

    def loop(
        self, extent: int, inits: Sequence[int], body: Callable[[Index, tuple[int, ...]], Sequence[int]]
    ) -> list[int]:
        """A loop. `body` maps the index and the carries to the next carries. Returns their final values."""
        outer, scope = self._open[-1], _Scope()
        self._open = [*self._open, scope]
        index = self._append("loop", (), (extent,), scope)
        carries = [self._append("carry", (init, index), (), scope) for init in inits]
        following = body(Index(0, ((index, 1),)), tuple(carries))
        self._append("end", (index, *following), (), scope)
        self._open = self._open[:-1]
        outer.items.append(scope)
        level = join(*(self._steps[n].level for n in _flat(scope)))
        for carry in carries:
            self._steps[carry] = replace(self._steps[carry], level=level)
            self._scope_of[carry] = outer
        return carries

    def array(self, extent: int) -> int:
        return self._append("array", (), (extent,), self._open[-1])

    def put(self, array: int, value: int, index: Index) -> None:
        self._append("put", (array, value, *index.loops()), index.static(), self._open[-1])

    def get(self, array: int, index: Index) -> int:
        return self._emit("get", (array, *index.loops()), index.static())

    def store(self, output: str, value: int, index: Index) -> None:
        """Store a component of the "result" or of the "weight"."""
        self._append(output, (value, *index.loops()), index.static(), self._open[-1])

    # The finished program

    def finish(self, roots: Sequence[int]) -> tuple[tuple[Instruction, ...], dict[int, int]]:
        """The live instructions, from `roots` and stored components, and the map from old to new ids."""
        live = self._live(roots)
        order = [n for n in _flat(self._root) if n in live]
        levels = self._levels(order)
        new = {n: position for position, n in enumerate(order)}
        steps = [(self._steps[n], levels[n]) for n in order]
        return tuple(
            Instruction(step.op, tuple(new[arg] for arg in step.args), step.static, level) for step, level in steps
        ), new

    def _live(self, roots: Sequence[int]) -> set[int]:
        """Stored components are live; so is an element of a live array, and a loop with a live instruction."""
        ends = {step.args[0]: n for n, step in enumerate(self._steps) if step.op == "end"}
        puts: dict[int, list[int]] = {}
        for n, step in enumerate(self._steps):
            if step.op == "put":
                puts.setdefault(step.args[0], []).append(n)
        todo = [*roots, *(n for n, step in enumerate(self._steps) if step.op in ("result", "weight"))]
        live: set[int] = set()
        while todo:
            n = todo.pop()
            if n in live:
                continue
            live.add(n)
            todo += self._steps[n].args
            todo += puts.get(n, [])
            todo += [ends[n]] if n in ends else []
        return live

    def _levels(self, order: list[int]) -> dict[int, str]:
        """The level of each instruction: the join of its operands' levels, and one level for a loop or array."""
        levels = dict.fromkeys(order, "p")
        changed = True
        while changed:  # until a fixed point: two iterations with arrays or loops, one without
            changed = False
            inside: list[int] = []
            for n in order:
                step = self._steps[n]
                level = join(*(levels[k] for k in (n, *step.args, *inside)), *_own_level(step))
                inside += [n] if step.op == "loop" else []
                group = [n, *inside] + ([step.args[0]] if step.op == "put" else [])
                for member in group:
                    joined = join(levels[member], level)
                    changed |= joined != levels[member]
                    levels[member] = joined
                inside = inside[:-1] if step.op == "end" else inside
        return levels

    # Pieces

    def _emit(self, op: str, args: tuple[int, ...], static: tuple[Any, ...], key: Any = None) -> int:
        """A pure instruction: an existing equal one, or a new one in the outermost loop that it depends on."""
        if op in _COMMUTATIVE:
            args = tuple(sorted(args))
        scope = max((self._scope_of[arg] for arg in args), key=self._open.index, default=self._root)
        identity = (op, args, static if key is None else key)
        number = scope.numbers.get(identity)
        if number is None:
            number = scope.numbers[identity] = self._append(op, args, static, scope)
        return number

    def _append(self, op: str, args: tuple[int, ...], static: tuple[Any, ...], scope: _Scope) -> int:
        if len(self._steps) >= self._limit:
            raise TooLong
        own = Instruction(op, args, static, "p")
        level = join(*(self._steps[arg].level for arg in args), *_own_level(own))
        self._steps.append(Instruction(op, args, static, level))
        self._scope_of.append(scope)
        scope.items.append(len(self._steps) - 1)
        return len(self._steps) - 1

    def _constant(self, value: int) -> float | None:
        step = self._steps[value]
        return step.static[0] if step.op == "const" else None

    def _inner(self, op: str, value: int) -> tuple[int, ...] | None:
        """The operands of a value, if it is of this operation."""
        return self._steps[value].args if self._steps[value].op == op else None

    def _rarer(self, a: int, b: int) -> bool:
        """Whether `a` changes more rarely than what depends on both."""
        level = self._steps[a].level
        return join(level, self._steps[b].level) != level and level != "ij"

    # Rewrites

    def _add(self, a: int, b: int) -> int:
        for one, other in ((a, b), (b, a)):
            if self._constant(one) == 0:
                return other
            negated = self._inner("neg", one)
            if negated:
                return self.sub(other, negated[0])
        return self._emit("add", (a, b), ())

    def _sub(self, a: int, b: int) -> int:
        if self._constant(b) == 0:
            return a
        if self._constant(a) == 0:
            return self.call("neg", b)
        negated = self._inner("neg", b)
        if negated:
            return self.add(a, negated[0])
        return self._emit("sub", (a, b), ())

    def _neg(self, a: int) -> int:
        negative = self._negative(a)
        return self._emit("neg", (a,), ()) if negative is None else negative

    def _negative(self, a: int, depth: int = 0) -> int | None:
        """The negative of a value, if that costs no instruction per pair."""
        value, negated, difference = self._constant(a), self._inner("neg", a), self._inner("sub", a)
        if value is not None:
            return self.const(-value)
        if negated:
            return negated[0]
        if difference:
            return self._emit("sub", difference[::-1], ())
        factors = self._inner("mul", a) or ()
        for factor, other in zip(factors, factors[::-1]):
            is_tried = factor != other and depth < _MAX_DEPTH
            negative = self._negative(factor, depth + 1) if is_tried else None
            if negative is not None:
                return self.mul(negative, other)
        return self._emit("neg", (a,), ()) if self._steps[a].level in ("p", "i", "j") else None

    def _mul(self, a: int, b: int) -> int:
        for one, other in ((a, b), (b, a)):
            value, negated, factors = self._constant(one), self._inner("neg", one), self._inner("mul", other)
            if value == 0:
                return one
            if value == 1:
                return other
            if value == -1:
                return self.call("neg", other)
            is_rarer = self._rarer(other, one) and not self._rarer(one, other)
            if negated and (is_rarer or self._inner("neg", other)):
                return self.mul(negated[0], self.call("neg", other))
            product = self._reassociated(one, factors) if factors else None
            if product is not None:
                return product
        return self._emit("mul", (a, b), ())

    def _reassociated(self, one: int, factors: tuple[int, ...]) -> int | None:
        """``one * (factor * other)`` as ``(factor * one) * other``, if the inner product changes more rarely then.

        Constants only while they are moderate, so that their product cannot overflow.
        """
        value = self._constant(one)
        if value is not None and not is_moderate(value):
            return None
        for factor, other in (factors, factors[::-1]):
            known = self._constant(factor)
            if known is not None and not is_moderate(known):
                continue
            before = join(self._steps[factor].level, self._steps[other].level)
            after = join(self._steps[factor].level, self._steps[one].level)
            if (value is not None and known is not None) or (after != before and join(after, before) == before):
                return self.mul(self.mul(factor, one), other)
        return None

    def _div(self, a: int, b: int) -> int:
        value, negated = self._constant(b), self._inner("neg", a)
        if negated:
            return self.call("neg", self.div(negated[0], b))
        if value is not None and 1 / _INVERTED <= abs(value) <= _INVERTED:
            return self.mul(a, self.const(1 / value))
        if value is None and self._constant(a) is None and self._rarer(b, a):
            return self.mul(a, self.div(self.const(1), b))
        return self._emit("div", (a, b), ())


_REWRITES: dict[str, Callable[..., int]] = {
    "add": Builder._add, "sub": Builder._sub, "neg": Builder._neg, "mul": Builder._mul, "div": Builder._div,
}  # fmt: skip


def _own_level(step: Instruction) -> tuple[str, ...]:
    """The level that an instruction has independently of its operands."""
    if step.op == "load":
        return (step.static[0],)
    return ("ij",) if step.op in ("sqdist", "dot", "result", "weight") else ()


def _flat(scope: _Scope) -> Iterator[int]:
    for item in scope.items:
        if isinstance(item, int):
            yield item
        else:
            yield from _flat(item)
