"""The nodes that formulas are made of: immutable, and one object for one expression.

A node stands for a vector of ``dim`` features of each pair (i, j). Nodes are hash-consed: the same operation
on the same arguments is the same object for as long as somebody holds it, so that nodes compare and hash by
identity, and a common subexpression is found by building it. The table is weak, and guarded by a lock.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from upsweep._compiler.formulas import ops

__all__ = [
    "KINDS",
    "Node",
    "Static",
    "constant",
    "listed",
    "make",
    "node_of",
    "of_rows",
    "order",
    "plain",
    "substitute",
    "variable",
    "variables",
    "zero",
]

Static = tuple[Any, ...]
"""Numbers and tuples of numbers that belong to an operation, not to the data."""

KINDS = ("i", "j", "p")
"""What a variable is indexed by: rows, columns, nothing. KeOps counts them 0, 1, 2."""

_NOTHING: frozenset[str] = frozenset()
_lock = threading.Lock()
_table: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def _unlock() -> None:
    """A child of a fork has no thread that could give the lock back."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class Node:
    """One operation of a formula. Made by `variable`, `constant`, `zero` and `make` only.

    Attributes
    ----------
    op : str
        The operation's name: a row of `ops.TABLE`, or "variable", "constant", "zero".
    args : tuple of Node
        What it is applied to.
    static : tuple
        Its numbers: of "pow" the exponent, of "variable" (position, kind), of "constant" (value,).
    dim : int
        The number of features.
    kinds : frozenset of {"i", "j", "p"}
        The kinds of the variables in it.
    """

    __slots__ = ("__weakref__", "args", "dim", "kinds", "op", "static")
    op: str
    args: tuple[Node, ...]
    static: Static
    dim: int
    kinds: frozenset[str]

    def __init__(self, *_: object) -> None:
        raise TypeError("nodes are made by variable(), constant(), zero() and make()")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"nodes are immutable: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return _last_of, (listed(self),)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __repr__(self) -> str:
        from upsweep._compiler.formulas.text import text

        return text(self, limit=2000)


def node_of(op: str, args: tuple[Node, ...], static: Static, dim: int) -> Node:
    """The node of this operation, without any check: what `make` ends in."""
    # 1, 1.0 and True, 0.0 and -0.0 are equal, and NaN is not: numbers are told apart by how they are written.
    key = (op, args, dim, repr(static))
    with _lock:
        found = _table.get(key)
        if found is None:
            found = Node.__new__(Node)
            kinds = frozenset(static[1]) if op == "variable" else _NOTHING.union(*(arg.kinds for arg in args))
            for name, value in (("op", op), ("args", args), ("static", static), ("dim", dim), ("kinds", kinds)):
                object.__setattr__(found, name, value)
            _table[key] = found
    return found


Rows = tuple[tuple[str, tuple[int, ...], Static, int], ...]


def listed(*roots: Node) -> Rows:
    """Nodes as rows (op, numbers of the arguments' rows, static, dim), without recursion: of any depth."""
    number: dict[Node, int] = {}
    for node in order(*roots):
        number[node] = len(number)
    return tuple((node.op, tuple(number[arg] for arg in node.args), node.static, node.dim) for node in number)


def of_rows(rows: Iterable[tuple[str, Sequence[int], Static, int]]) -> list[Node]:
    """The nodes of the rows that `listed` gave, in their order."""
    nodes: list[Node] = []
    for op, args, static, dim in rows:
        nodes.append(node_of(op, tuple(nodes[arg] for arg in args), static, dim))
    return nodes


def _last_of(rows: Rows) -> Node:
    return of_rows(rows)[-1]


def variable(position: int, dim: int, kind: str) -> Node:
    """An input: the array at `position` among the arrays of a call, with `dim` features, indexed by `kind`."""
    if kind not in KINDS:
        raise ValueError(f"the kind of a variable is one of {', '.join(KINDS)}, not {kind!r}")
    if dim < 1:
        raise ValueError(f"variable {position} has to have at least one feature, not {dim}")
    return node_of("variable", (), (int(position), kind), int(dim))


def constant(value: float) -> Node:
    """A number, of dim 1; kept in float64."""
    return node_of("constant", (), (float(value),), 1)


def zero(dim: int) -> Node:
    """A vector of zeros, which simplification knows as such."""
    return node_of("zero", (), (int(dim),), int(dim))


def make(op: str, *args: Node, static: Static = ()) -> Node:
    """The node of an operation applied to nodes.

    Parameters
    ----------
    op : str
        A name in `ops.TABLE`.
    args : Node
        Its arguments. Those of elementwise operations have the same dim, or dim 1.
    static : tuple
        Its numbers, in KeOps' order.

    Raises
    ------
    ValueError
        For an unknown operation, a wrong number of arguments, dims that do not fit (both operands are named,
        with their dims), or numbers out of range.
    """
    row = ops.lookup(op)
    static = tuple(map(plain, static))
    if len(args) != row.arity:
        raise ValueError(f"{row.keops} takes {row.arity} argument{'s' * (row.arity != 1)}, not {len(args)}")
    least, most = row.n_static
    if not least <= len(static) <= most:
        raise ValueError(
            f"{row.keops} takes {least if least == most else f'{least} to {most}'} numbers, not {static}"
        )
    try:
        dim = row.dim(tuple(arg.dim for arg in args), static)
    except ops.DimError as error:
        raise ValueError(_complaint(row.keops, args, static, str(error))) from None
    if row.expand is not None:
        return row.expand(make, args, static)
    return node_of(op, args, static, dim)


def plain(number: Any) -> Any:
    """Python's own numbers, so that one operation is written in one way only."""
    if isinstance(number, (tuple, list)):
        return tuple(map(plain, number))
    own = number.item() if hasattr(number, "item") else number
    return int(own) if isinstance(own, bool) else own


def _complaint(name: str, args: tuple[Node, ...], static: Static, what: str) -> str:
    from upsweep._compiler.formulas.text import text

    written = [text(arg, limit=200) for arg in args]
    dims = " and ".join(f"{operand} has {arg.dim}" for operand, arg in zip(written, args))
    return f"in {name}({', '.join([*written, *map(str, static)])}): {what}: {dims}"


def order(*roots: Node) -> list[Node]:
    """All nodes below `roots` and themselves, each once, arguments before what uses them."""
    done: dict[Node, None] = {}
    stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(root.args)) for root in reversed(roots)]
    while stack:
        node, rest = stack[-1]
        below = next((arg for arg in rest if arg not in done), None)
        if below is None:
            done[node] = None
            stack.pop()
        else:
            stack.append((below, iter(below.args)))
    return list(done)


def variables(*roots: Node) -> tuple[Node, ...]:
    """The variables in formulas, by position."""
    return tuple(
        sorted((n for n in order(*roots) if n.op == "variable"), key=lambda n: (n.static[0], n.static[1]))
    )


def substitute(root: Node, replaced: Mapping[Node, Node]) -> Node:
    """The formula with nodes exchanged for others of the same dims."""
    new: dict[Node, Node] = {}
    for node in order(root):
        if node in replaced:
            if replaced[node].dim != node.dim:
                raise ValueError(
                    f"{node!r} of dim {node.dim} cannot become {replaced[node]!r} of {replaced[node].dim}"
                )
            new[node] = replaced[node]
        else:
            new[node] = node_of(node.op, tuple(new[arg] for arg in node.args), node.static, node.dim)
    return new[root]
