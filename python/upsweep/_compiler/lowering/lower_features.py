"""Lowering of vectors to scalars: short vectors feature by feature, long ones in loops.

`Lowering` asks for the features of the results; the rule of an operation asks for those of its operands. `AT` has
the rules of operations across features of which each feature can be computed by itself. `EACH` has those of
assembled vectors: their rules visit all features with their indices; the feature at a loop's index is read from a
local array. Elementwise operations have theirs in `lower_elementwise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order, variables
from upsweep._compiler.formulas.numpy_semantics import tensordot_loops
from upsweep._compiler.lowering.builder import Builder, Index
from upsweep._compiler.lowering.lower_elementwise import RULES
from upsweep._compiler.lowering.program import Program

Body = Callable[[Index, tuple[int, ...]], Sequence[int]]
Visit = Callable[[Index, int], object]

_DEPTH = 8  # of elementwise operations on an assembled vector, beyond which it is stored in an array


class Lowering:
    """State of one lowering: the builder, and the value number of each feature lowered so far."""

    def __init__(self, roots: Sequence[Node], unrolled: int, limit: float, long: float) -> None:
        self.builder = Builder(limit)
        self.unrolled = unrolled
        self._long = long
        self._roots = roots
        self._numbers: dict[tuple[Node, Index], int] = {}
        self._arrays: dict[Node, int] = {}
        self._packed: dict[str, list[tuple[int, int]]] = {"i": [], "j": [], "p": []}
        self._offset: dict[Node, int] = {}
        width = dict.fromkeys(self._packed, 0)
        for node in variables(*roots):
            position, kind = node.static
            self._offset[node] = width[kind]
            width[kind] += node.dim
            self._packed[kind].append((position, node.dim))

    def program(self) -> Program:
        for node in order(*self._roots):  # operands first, to bound the recursion of `at`
            if node.dim <= self.unrolled:
                for n in range(node.dim):
                    self.at(node, Index(n))
        outputs = [self._components(root, op) for root, op in zip(self._roots, ("result", "weight"))]
        values, new = self.builder.finish([n for ids in outputs for n in ids])
        results, weights = (tuple(new[n] for n in ids) for ids in (*outputs, ())[:2])
        dim, weight_dim = (*(root.dim for root in self._roots), 0)[:2]
        packed = (tuple(components) for components in self._packed.values())
        return Program(values, results, weights, dim, weight_dim, *packed)

    def at(self, node: Node, index: Index) -> int:
        """The value number of a node's feature."""
        for each, at in self._pending(node, index):
            self._numbers[each, at] = self._value(each, at)
        return self._numbers[node, index]

    def feature(self, node: Node, index: Index) -> int:
        """`at`; of a number the number, which is broadcast to all features."""
        return self.at(node, index if node.dim > 1 else Index())

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
            EACH[node.op](self, node, visit, *node.args)
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
        args = [value if arg is source else self.feature(arg, k) for arg in node.args]
        return RULES[node.op](self.builder, *args, *node.static)

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
            args = [self._numbers[arg, index if arg.dim > 1 else Index()] for arg in node.args]
            return RULES[node.op](self.builder, *args, *node.static)
        if node.op == "variable":
            return self.builder.load(node.static[1], index + self._offset[node])
        if node.op in ("constant", "zero"):
            return self.builder.const(node.static[0] if node.op == "constant" else 0)
        if node.op in AT:
            with nullcontext() if index.terms else self.builder.at_root():
                return AT[node.op](self, node, index, *node.args)
        assert node.op in EACH, ops.TABLE[node.op].keops
        if index.terms or node.dim > self.unrolled:
            return self.stored(node, index)
        return self._short(node, index)

    def _short(self, node: Node, index: Index) -> int:
        """A feature of a short assembled vector: all its features are lowered at once."""
        features: dict[int, int] = {}
        with self.builder.at_root():
            EACH[node.op](self, node, lambda k, value: features.setdefault(k.offset, value), *node.args)
        for offset, value in features.items():
            self._numbers[node, Index(offset)] = value
        return features[index.offset]


def _contracted(instruction: str) -> Callable[..., int]:
    """The sum of products, or of squared differences, as one instruction where there is one."""

    def rule(low: Lowering, node: Node, index: Index, a: Node, b: Node) -> int:
        def term(k: Index) -> int:
            x, y = low.feature(a, k), low.feature(b, k)
            if instruction == "sqdist":
                x = y = low.builder.sub(x, y)
            return low.builder.mul(x, y)

        known = low.long_pair(instruction, a, b)
        return low.total(max(a.dim, b.dim), term) if known is None else known

    return rule


def _best(largest: bool, index_of: bool) -> Callable[..., int]:
    """The largest or smallest feature, or its index; the first NaN if there is one."""

    def rule(low: Lowering, node: Node, index: Index, a: Node) -> int:
        b = low.builder
        zero, one = b.const(0), b.const(1)

        def body(k: Index, carried: tuple[int, ...]) -> list[int]:
            best, at = carried
            value = low.at(a, k)
            first_nan = b.choose("ne", value, value, b.choose("eq", best, best, one, zero), zero)
            better = b.choose("lt", *((best, value) if largest else (value, best)), one, first_nan)
            chosen = b.choose("eq", better, one, value, best)
            return [chosen, b.choose("eq", better, one, b.number(k), at)]

        worst = -math.inf if largest else math.inf
        return low.fold(a.dim, [worst, 0], body)[index_of]

    return rule


def _elem_t(low: Lowering, node: Node, index: Index, a: Node) -> int:
    b = low.builder
    target = b.const(node.static[1])
    return b.choose("eq", b.number(index), target, low.at(a, Index()), b.const(0))


def _one_hot(low: Lowering, node: Node, index: Index, a: Node) -> int:
    b = low.builder
    nearest = b.call("floor", b.add(low.at(a, Index()), b.const(0.5)))
    return b.choose("eq", nearest, b.number(index), b.const(1), b.const(0))


def _matvec(low: Lowering, node: Node, index: Index, matrix: Node, x: Node) -> int:
    n = x.dim
    return low.total(n, lambda k: low.builder.mul(low.feature(matrix, index.scaled(n, k)), low.at(x, k)))


def _vecmat(low: Lowering, node: Node, index: Index, x: Node, matrix: Node) -> int:
    n = node.dim
    return low.total(x.dim, lambda k: low.builder.mul(low.at(x, k), low.feature(matrix, k.scaled(n, index))))


def _shifted(begin: int, visit: Visit) -> Visit:
    """`visit` with indices shifted by `begin`."""
    return lambda k, value: visit(k + begin, value)


def _concat(low: Lowering, node: Node, visit: Visit, *_: Node) -> None:
    parts, todo = [], [node]
    while todo:  # iteratively: a vector may be concatenated from a thousand
        part = todo.pop()
        if part.op == "concat":
            todo += part.args[::-1]
        else:
            parts.append(part)
    begin = 0
    for part in parts:
        low.each(part, _shifted(begin, visit))
        begin += part.dim


def _extract_t(low: Lowering, node: Node, visit: Visit, a: Node) -> None:
    start, zero = node.static[0], low.builder.const(0)
    low.walk(start, lambda k: visit(k, zero))
    low.each(a, _shifted(start, visit))
    end = start + a.dim
    low.walk(node.dim - end, lambda k: visit(k + end, zero))


def _outer(low: Lowering, node: Node, visit: Visit, a: Node, b: Node) -> None:
    def row(k: Index) -> None:
        low.walk(b.dim, lambda n: visit(k.scaled(b.dim, n), low.builder.mul(low.at(a, k), low.at(b, n))))

    low.walk(a.dim, row)


def _tensordot(low: Lowering, node: Node, visit: Visit, a: Node, b: Node) -> None:
    """A loop nest over the axes of the result, around one over the contracted axes."""
    loops = tensordot_loops(*node.static)

    def nest(indices: list[Index]) -> None:
        if len(indices) < len(loops.extents):
            low.walk(loops.extents[len(indices)], lambda k: nest([*indices, k]))
        else:
            visit(_along(loops.strides, indices), total(indices, []))

    def total(free: list[Index], contracted: list[Index]) -> int:
        if len(contracted) < len(loops.contracted):
            return low.total(loops.contracted[len(contracted)], lambda k: total(free, [*contracted, k]))
        indices = free + contracted
        left = _along(loops.strides_a, indices)
        return low.builder.mul(low.feature(a, left), low.feature(b, _along(loops.strides_b, indices)))

    nest([])


def _along(strides: list[int], indices: list[Index]) -> Index:
    result = Index()
    for stride, index in zip(strides, indices):
        if stride:
            result = result.scaled(1, index.scaled(stride))
    return result


AT: dict[str, Callable[..., int]] = {
    "sum": lambda low, node, index, a: low.total(a.dim, lambda k: low.at(a, k)),
    "scalprod": _contracted("dot"),
    "sqdist": _contracted("sqdist"),
    "max": _best(True, False),
    "min": _best(False, False),
    "argmax": _best(True, True),
    "argmin": _best(False, True),
    "sumT": lambda low, node, index, a: low.at(a, Index()),
    "elem": lambda low, node, index, a: low.at(a, Index(node.static[0])),
    "elemT": _elem_t,
    "extract": lambda low, node, index, a: low.at(a, index + node.static[0]),
    "one_hot": _one_hot,
    "matvecmult": _matvec,
    "vecmatmult": _vecmat,
}
"""Rules that return the feature of a node at an index: functions of the lowering, node, index and operands."""

EACH: dict[str, Callable[..., None]] = {
    "concat": _concat, "extractT": _extract_t, "tensorprod": _outer, "tensordot": _tensordot,
}  # fmt: skip
"""Rules that visit all features of a node: functions of the lowering, node, visitor and operands."""
