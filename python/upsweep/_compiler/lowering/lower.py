"""Lowering of a formula to its scalar program.

Vectors become scalars: short vectors feature by feature, long ones in loops, whose body asks for the feature at
the loop's index. Each operation has a lowering rule: elementwise ones in `lower_elementwise`, those across
features in `lower_features`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order, variables
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.rules import simplify
from upsweep._compiler.formulas.verifier import check_formula, check_variables
from upsweep._compiler.lowering.builder import Builder, Index, TooLong
from upsweep._compiler.lowering.lower_elementwise import RULES
from upsweep._compiler.lowering.lower_features import AT, EACH, Body
from upsweep._compiler.lowering.program import LONG, Program
from upsweep._compiler.lowering.verifier import check_program

__all__ = ["Lowering", "lower", "lower_formulas"]

UNROLLED = 64
"""Vectors of more features are processed by loops."""

STRAIGHT = 1000
"""Programs of more instructions have loops for shorter vectors too, to limit the time of the native compiler."""

_DEPTH = 8  # of elementwise operations on an assembled vector, beyond which it is stored in an array

_RETRIES = ((UNROLLED, STRAIGHT), (16, STRAIGHT), (4, STRAIGHT), (1, math.inf))


def lower(
    reduction: PairReduction, *, distances: bool = True, long: int = LONG, unrolled: int = UNROLLED
) -> Program:
    """The scalar program of a reduction's formula and weight.

    Parameters
    ----------
    reduction : PairReduction
        The reduction.
    distances : bool, optional
        Whether long squared distances and scalar products of a row and a column variable are single instructions,
        `sqdist` and `dot`, or loops like others.
    long : int, optional
        The number of features above which they are long.
    unrolled : int, optional
        The number of features above which vectors are processed by loops.

    Examples
    --------
    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> distance = make("sqdist", variable(0, 2, "i"), variable(1, 2, "j"))
    >>> gaussian = make("exp", make("neg", make("mul", distance, variable(2, 1, "p"))))
    >>> print(lower(PairReduction(gaussian, "sum")))
    i  v0 = i[0]
    i  v1 = i[1]
    j  v2 = j[0]
    j  v3 = j[1]
    ij v4 = sub(v0, v2)
    ij v5 = mul(v4, v4)
    ij v6 = sub(v1, v3)
    ij v7 = mul(v6, v6)
    ij v8 = add(v5, v7)
    p  v9 = p[0]
    p  v10 = neg(v9)
    ij v11 = mul(v8, v10)
    ij v12 = exp(v11)
    results: v12
    """
    return lower_formulas(reduction.formula, reduction.weight, distances=distances, long=long, unrolled=unrolled)


def lower_formulas(
    formula: Node,
    weight: Node | None = None,
    *,
    distances: bool = True,
    long: int = LONG,
    unrolled: int = UNROLLED,
) -> Program:
    """`lower` of a formula and a weight without a reduction."""
    check_variables(formula, *([] if weight is None else [weight]))
    formula = simplify(formula)
    weight = None if weight is None else simplify(weight)
    check_formula(formula, *([] if weight is None else [weight]))
    for most, limit in _RETRIES:
        try:
            program = Lowering(
                formula, weight, min(most, unrolled), limit, long if distances else math.inf
            ).program()
        except TooLong:
            continue
        check_program(program)
        return program
    raise AssertionError("the last try has no limit")


class Lowering:
    """State of one lowering: the builder, and the value number of each feature lowered so far."""

    def __init__(self, formula: Node, weight: Node | None, unrolled: int, limit: float, long: float) -> None:
        self.builder = Builder(limit)
        self.unrolled = unrolled
        self._long = long
        self._formula, self._weight = formula, weight
        self._numbers: dict[tuple[Node, Index], int] = {}
        self._arrays: dict[Node, int] = {}
        self._packed: dict[str, list[tuple[int, int]]] = {"i": [], "j": [], "p": []}
        self._offset: dict[Node, int] = {}
        width = dict.fromkeys(self._packed, 0)
        for node in variables(*self._roots()):
            position, kind = node.static
            self._offset[node] = width[kind]
            width[kind] += node.dim
            self._packed[kind].append((position, node.dim))

    def program(self) -> Program:
        for node in order(*self._roots()):  # operands first, to bound the recursion of `at`
            if node.dim <= self.unrolled:
                for n in range(node.dim):
                    self.at(node, Index(n))
        results = self._components(self._formula, "result")
        weights = [] if self._weight is None else self._components(self._weight, "weight")
        values, new = self.builder.finish([*results, *weights])
        return Program(
            values,
            tuple(new[n] for n in results),
            tuple(new[n] for n in weights),
            self._formula.dim,
            0 if self._weight is None else self._weight.dim,
            *(tuple(self._packed[kind]) for kind in ("i", "j", "p")),
        )

    def at(self, node: Node, index: Index) -> int:
        """The value number of a node's feature."""
        for each, at in self._pending(node, index):
            self._numbers[each, at] = self._value(each, at)
        return self._numbers[node, index]

    def fold(self, extent: int, inits: Sequence[float], body: Body) -> list[int]:
        """Values carried through `body` for each index below an extent: unrolled, or in a loop."""
        carried = [self.builder.const(init) for init in inits]
        if extent > self.unrolled:
            return self.builder.loop(extent, carried, body)
        for n in range(extent):
            carried = list(body(Index(n), tuple(carried)))
        return carried

    def total(self, extent: int, term: Callable[[Index], int]) -> int:
        """The sum of the terms at all indices below an extent."""
        return self.fold(extent, [0], lambda k, carried: [self.builder.add(carried[0], term(k))])[0]

    def walk(self, extent: int, visit: Callable[[Index], object]) -> None:
        """Call `visit` for all indices below an extent."""

        def body(index: Index, carried: tuple[int, ...]) -> tuple[int, ...]:
            visit(index)
            return carried

        self.fold(extent, [], body)

    def each(self, node: Node, visit: Callable[[Index, int], object]) -> None:
        """Call `visit` for all features of a node, with their indices."""
        source = self._assembled(node) if node.dim > self.unrolled else None
        if source is None:
            self.walk(node.dim, lambda k: visit(k, self.at(node, k)))
        elif source is node:
            EACH[node.op](self, node, visit)
        else:
            self.each(source, lambda k, value: visit(k, self._applied(node, k, source, value)))

    def stored(self, node: Node, index: Index) -> int:
        """A feature of a node that is stored in a local array."""
        if node not in self._arrays:
            with self.builder.at_root():
                array = self.builder.array(node.dim)
                self.each(node, lambda k, value: self.builder.put(array, value, k))
            self._arrays[node] = array
        return self.builder.get(self._arrays[node], index)

    def long_pair(self, op: str, a: Node, b: Node) -> int | None:
        """A squared distance or scalar product as one instruction, if both operands are contiguous records."""
        offsets = {}
        for node in (a, b):
            start = node.static[0] if node.op == "extract" else 0
            source = node.args[0] if node.op == "extract" else node
            if source.op == "variable":
                offsets[source.static[1]] = self._offset[source] + start
        if a.dim == b.dim > self._long and set(offsets) == {"i", "j"}:
            return self.builder.call(op, static=(offsets["i"], offsets["j"], a.dim))
        return None

    def _roots(self) -> list[Node]:
        return [self._formula] if self._weight is None else [self._formula, self._weight]

    def _components(self, node: Node, output: str) -> list[int]:
        if node.dim <= self.unrolled:
            return [self.at(node, Index(n)) for n in range(node.dim)]
        self.each(node, lambda k, value: self.builder.store(output, value, k))
        return []

    def _assembled(self, node: Node, depth: int = _DEPTH) -> Node | None:
        """The node if it is in `EACH`, or the operand in `EACH` of which it is an elementwise function."""
        if node.op in EACH:
            return node
        wide = [arg for arg in node.args if arg.dim > 1] if node.op in RULES and depth else []
        return next((arg for arg in wide if self._assembled(arg, depth - 1) is not None), None)

    def _applied(self, node: Node, k: Index, source: Node, value: int) -> int:
        """Feature k of an elementwise node, one of whose operands, `source`, has this value there."""
        args = (value if arg is source else self.at(arg, k if arg.dim > 1 else Index()) for arg in node.args)
        return RULES[node.op](self.builder, tuple(args), node.static)

    def _pending(self, node: Node, index: Index) -> list[tuple[Node, Index]]:
        """The features that have to be lowered for this one: elementwise operands first, then itself."""
        pending: dict[tuple[Node, Index], None] = {}
        stack = [(node, index, False)]
        while stack:
            each, at, entered = stack.pop()
            if (each, at) in pending or (each, at) in self._numbers:
                continue
            if entered or each.op not in RULES:
                pending[each, at] = None
                continue
            stack.append((each, at, True))
            stack += [(arg, at if arg.dim > 1 else Index(), False) for arg in each.args]
        return list(pending)

    def _value(self, node: Node, index: Index) -> int:
        if node.op in RULES:
            args = tuple(self._numbers[arg, index if arg.dim > 1 else Index()] for arg in node.args)
            return RULES[node.op](self.builder, args, node.static)
        if node.op == "variable":
            return self.builder.load(node.static[1], index + self._offset[node])
        if node.op in ("constant", "zero"):
            return self.builder.const(node.static[0] if node.op == "constant" else 0)
        if node.op in AT:
            if index.terms:
                return AT[node.op](self, node, index)
            with self.builder.at_root():
                return AT[node.op](self, node, index)
        assert node.op in EACH, ops.TABLE[node.op].keops
        if index.terms or node.dim > self.unrolled:
            return self.stored(node, index)
        return self._short(node, index)

    def _short(self, node: Node, index: Index) -> int:
        """A feature of a short assembled vector: all its features are lowered at once."""
        features: dict[int, int] = {}
        with self.builder.at_root():
            EACH[node.op](self, node, lambda k, value: features.setdefault(k.offset, value))
        for offset, value in features.items():
            self._numbers[node, Index(offset)] = value
        return features[index.offset]
