"""Lowering: from a formula to its scalar program.

A formula's features become numbers, one by one: short vectors feature after feature, long ones in loops, whose
body asks for a feature at the index of the loop. What every operation does then is a rule: of elementwise ones in
`lower_each`, of those across features in `lower_across`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order, variables
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.formulas.rules import simplify
from upsweep._compiler.formulas.verifier import check_formula, check_program, check_variables
from upsweep._compiler.lowering.builder import Builder, Index, TooLong
from upsweep._compiler.lowering.lower_elementwise import RULES
from upsweep._compiler.lowering.lower_features import AT, EACH
from upsweep._compiler.lowering.program import LONG, Program

__all__ = ["Lowering", "lower", "lower_formulas"]

UNROLLED = 64
"""Vectors of more features are walked by loops."""

STRAIGHT = 1000
"""Programs of more instructions have loops for shorter vectors too: compilers take long for them."""

_DEPTH = 8  # of elementwise operations on a vector made piece by piece, beyond which it is kept in an array

_RETRIES = ((UNROLLED, STRAIGHT), (16, STRAIGHT), (4, STRAIGHT), (1, math.inf))

Body = Callable[[Index, tuple[int, ...]], Sequence[int]]


def lower(
    reduction: PairReduction, *, distances: bool = True, long: int = LONG, unrolled: int = UNROLLED
) -> Program:
    """The scalar program of a reduction's formula and weight.

    Parameters
    ----------
    reduction : PairReduction
        What is reduced.
    distances : bool, optional
        Whether long squared distances and scalar products of a row's and a column's variable are single
        instructions, `sqdist` and `dot`, or loops like others.
    long : int, optional
        Those of more features than this are long.
    unrolled : int, optional
        Vectors of more features than this are walked by loops.

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
    """As `lower`, for a formula and a weight that belong to no reduction."""
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
    """One lowering: what is known of the formula's features so far."""

    def __init__(self, formula: Node, weight: Node | None, unrolled: int, limit: float, long: float) -> None:
        self.builder = Builder(limit)
        self.unrolled = unrolled
        self._long = long
        self._formula, self._weight = formula, weight
        self._known: dict[tuple[Node, Index], int] = {}
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
        for node in order(*self._roots()):  # arguments first: recursion is for long vectors
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
        """The feature of a node at an index."""
        for each, place in self._unknown(node, index):
            self._known[each, place] = self._value(each, place)
        return self._known[node, index]

    def fold(self, extent: int, inits: Sequence[float], body: Body) -> list[int]:
        """Numbers carried through `body` for each index below an extent: step after step, or in a loop."""
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
        """Visits all indices below an extent."""

        def body(index: Index, carried: tuple[int, ...]) -> tuple[int, ...]:
            visit(index)
            return carried

        self.fold(extent, [], body)

    def each(self, node: Node, visit: Callable[[Index, int], object]) -> None:
        """Visits all features of a node, with their indices."""
        pieces = self._pieces(node) if node.dim > self.unrolled else None
        if pieces is None:
            self.walk(node.dim, lambda k: visit(k, self.at(node, k)))
        elif pieces is node:
            EACH[node.op](self, node, visit)
        else:
            self.each(pieces, lambda k, value: visit(k, self._applied(node, k, pieces, value)))

    def kept(self, node: Node, index: Index) -> int:
        """A feature of a node that is written into an array once and read from there."""
        if node not in self._arrays:
            with self.builder.at_root():
                array = self.builder.array(node.dim)
                self.each(node, lambda place, value: self.builder.put(array, value, place))
            self._arrays[node] = array
        return self.builder.get(self._arrays[node], index)

    def long_pair(self, op: str, a: Node, b: Node) -> int | None:
        """A squared distance or scalar product as one instruction, if it is of records' numbers in a row."""
        places = {}
        for node in (a, b):
            start = node.static[0] if node.op == "extract" else 0
            source = node.args[0] if node.op == "extract" else node
            if source.op == "variable":
                places[source.static[1]] = self._offset[source] + start
        if a.dim == b.dim > self._long and set(places) == {"i", "j"}:
            return self.builder.call(op, static=(places["i"], places["j"], a.dim))
        return None

    def _roots(self) -> list[Node]:
        return [self._formula] if self._weight is None else [self._formula, self._weight]

    def _components(self, node: Node, what: str) -> list[int]:
        if node.dim <= self.unrolled:
            return [self.at(node, Index(n)) for n in range(node.dim)]
        self.each(node, lambda place, value: self.builder.hand_out(what, value, place))
        return []

    def _pieces(self, node: Node, depth: int = _DEPTH) -> Node | None:
        """A vector made piece by piece: the node itself, or an argument of which it is an elementwise function."""
        if node.op in EACH:
            return node
        wide = [arg for arg in node.args if arg.dim > 1] if node.op in RULES and depth else []
        return next((arg for arg in wide if self._pieces(arg, depth - 1) is not None), None)

    def _applied(self, node: Node, k: Index, known: Node, value: int) -> int:
        """Feature k of an elementwise node, one of whose arguments has this value there."""
        args = (value if arg is known else self.at(arg, k if arg.dim > 1 else Index()) for arg in node.args)
        return RULES[node.op](self.builder, tuple(args), node.static)

    def _unknown(self, node: Node, index: Index) -> list[tuple[Node, Index]]:
        """What elementwise operations below a feature have not been computed yet, arguments first, then itself."""
        found: dict[tuple[Node, Index], None] = {}
        stack = [(node, index, False)]
        while stack:
            each, place, entered = stack.pop()
            if (each, place) in found or (each, place) in self._known:
                continue
            if entered or each.op not in RULES:
                found[each, place] = None
                continue
            stack.append((each, place, True))
            stack += [(arg, place if arg.dim > 1 else Index(), False) for arg in each.args]
        return list(found)

    def _value(self, node: Node, index: Index) -> int:
        if node.op in RULES:
            args = tuple(self._known[arg, index if arg.dim > 1 else Index()] for arg in node.args)
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
            return self.kept(node, index)
        return self._short(node, index)

    def _short(self, node: Node, index: Index) -> int:
        """A feature of a short vector that is made piece by piece: all are, and this is one of them."""
        pieces: dict[int, int] = {}
        with self.builder.at_root():
            EACH[node.op](self, node, lambda place, value: pieces.setdefault(place.offset, value))
        for place, value in pieces.items():
            self._known[node, Index(place)] = value
        return pieces[index.offset]
