"""Expressions, the graph below a LazyTensor, and their conversion to nodes of a formula.

User code builds the same expressions again for each call, with other arrays. An expression is therefore a light
object: an operation and its operands. `flatten` turns it into a signature, in which leaves have positions instead
of arrays. The signature is the key under which `reductions` caches what is constructed once, by `build`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from upsweep._compiler.formulas import derivative, nodes
from upsweep._compiler.formulas.nodes import Node

_DERIVED: dict[str, Callable[..., Node]] = {
    "grad": derivative.gradient, "grad_matrix": derivative.gradient_matrix, "diff": derivative.differential,
    "divergence": derivative.divergence, "laplacian": derivative.laplacian,
}  # fmt: skip


class Leaf:
    """An array of rows ("i"), columns ("j") or parameters ("p"), or the symbolic variable `index`."""

    __slots__ = ("array", "dim", "index", "kind")

    def __init__(self, array: Any, kind: str, dim: int, index: int | None = None) -> None:
        self.array, self.kind, self.dim, self.index = array, kind, dim, index


class Meta(NamedTuple):
    """The common properties of the arrays of an expression; None where none determines them."""

    ni: int | None
    nj: int | None
    batch: tuple[int, ...] | None
    dtype: str | None
    location: Any  # the library, or a tensor's device


NO_ARRAYS = Meta(None, None, None, None, None)


class Expression:
    """An operation on expressions; `_op` is None for a leaf, and `_args` then the `Leaf`."""

    __slots__ = ("_args", "_meta", "_op", "_static", "backend", "ndim", "ranges")
    _op: str | None
    _args: tuple[Any, ...]
    _static: tuple[Any, ...]
    _meta: Meta
    ndim: int
    ranges: Any
    backend: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graph as rows: pickle and deepcopy recurse, and expressions may be deep."""
        graph = postorder(self)
        numbers = dict(zip(graph, range(len(graph))))
        rows: list[tuple[Any, ...]] = []
        for each in graph.values():
            args = each._args if each._op is None else tuple(numbers[id(arg)] for arg in each._args)
            rows.append(
                (type(each), each._op, args, each._static, each._meta, each.ndim, each.ranges, each.backend)
            )
        return _from_rows, (rows,)


def postorder(*roots: Expression) -> dict[int, Any]:
    """The expressions of some graphs by id, operands from left to right before their users; without recursion."""
    visited: dict[int, Any] = {}
    stack: list[Any] = [*reversed(roots)]
    while stack:
        each = stack.pop()
        if each is None:  # the operands of the expression below it are visited
            each = stack.pop()
            visited[id(each)] = each
        elif id(each) not in visited:
            if each._op is None:
                visited[id(each)] = each
            else:
                stack += (each, None, *reversed(each._args))
    return visited


def _from_rows(rows: list[tuple[Any, ...]]) -> Expression:
    """The last of the expressions that `Expression.__reduce__` listed."""
    expressions: list[Expression] = []
    for kind, op, args, *state in rows:
        each = object.__new__(kind)
        each._op, each._args = op, args if op is None else tuple(expressions[arg] for arg in args)
        each._static, each._meta, each.ndim, each.ranges, each.backend = state
        expressions.append(each)
    return expressions[-1]


@functools.lru_cache(maxsize=1024)
def join_meta(a: Meta, b: Meta) -> Meta:
    """The common properties of two operands; raises ValueError or TypeError where they do not go together."""
    if a.location is not None and b.location is not None and a.location != b.location:
        raise TypeError(f"one has arrays of {a.location}, the other of {b.location}")
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        raise TypeError(f"one is of dtype {a.dtype}, the other of {b.dtype}; convert one")
    for name, size, other in (("rows (i)", a.ni, b.ni), ("columns (j)", a.nj, b.nj)):
        if size is not None and other is not None and size != other:
            raise ValueError(f"one has {size} {name}, the other {other}")
    return Meta(
        b.ni if a.ni is None else a.ni,
        b.nj if a.nj is None else a.nj,
        _broadcast(a.batch, b.batch),
        a.dtype or b.dtype,
        b.location if a.location is None else a.location,
    )


def _broadcast(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    n = max(len(a), len(b))
    wide_a, wide_b = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(wide_a, wide_b)):
        raise ValueError(f"their batch dimensions, {a} and {b}, do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(wide_a, wide_b))


def flatten(*roots: Expression, gaps: bool = False) -> tuple[tuple[Any, ...], list[Any]]:
    """The expressions as steps (op, static, *step numbers of the operands), and the leaves by position.

    Symbolic leaves have the positions of their indices; arrays follow in the order in which they are first
    reached. The last step has the numbers of the roots. With `gaps`, for a part of a formula, positions without a
    symbolic variable have the leaf None; otherwise they are an error.
    """
    graph = postorder(*roots)
    numbers = dict(zip(graph, range(len(graph))))
    symbols = [each._args[0] for each in graph.values() if each._op is None and each._args[0].index is not None]
    leaves = _by_index(symbols, gaps) if symbols else []
    positions: dict[Any, int] = {}
    steps: list[Any] = []
    for each in graph.values():
        if each._op is None:
            leaf = each._args[0]
            position = leaf.index
            if position is None:
                position = positions.setdefault((id(leaf.array), leaf.kind), len(leaves))
                if position == len(leaves):
                    leaves.append(leaf)
            steps.append(("variable", position, leaf.dim, leaf.kind))
        else:
            steps.append((each._op, each._static, *[numbers[id(arg)] for arg in each._args]))
    steps.append(tuple([numbers[id(root)] for root in roots]))
    return tuple(steps), leaves


def _by_index(leaves: list[Leaf], gaps: bool) -> list[Leaf | None]:
    """Symbolic variables by index."""
    symbols: dict[Any, Leaf] = {}
    for leaf in leaves:
        first = symbols.setdefault(leaf.index, leaf)
        if (first.dim, first.kind) != (leaf.dim, leaf.kind):
            both = f"V{first.kind}({first.dim}) and V{leaf.kind}({leaf.dim})"
            raise ValueError(f"symbolic variable {leaf.index} is both {both}")
    missing = [index for index in range(max(symbols)) if index not in symbols]
    if missing and not gaps:
        raise ValueError(f"symbolic variables have to be numbered from 0 without gaps; {missing} are missing")
    return [symbols.get(index) for index in range(max(symbols) + 1)]


def build(steps: Sequence[Any]) -> tuple[Node, ...]:
    """The nodes of the roots of flattened expressions."""
    built: list[Node] = []
    for op, *rest in steps[:-1]:
        if op == "variable":
            built.append(nodes.variable(*rest))
        elif op == "constant":
            built.append(nodes.constant(rest[0][0]))
        else:
            static, *operands = rest
            args = [built[number] for number in operands]
            derived = _DERIVED.get(op)
            built.append(nodes.make(op, *args, static=static) if derived is None else derived(*args))
    return tuple(built[number] for number in steps[-1])
