"""Nodes of formulas: immutable, hash-consed, with their text in KeOps' language.

A node is an operation applied to operands. Its value is a vector of ``dim`` features for each pair (i, j). Nodes
are hash-consed: the same operation on the same operands is the same object while any reference to it exists. So
nodes compare and hash by identity, and building an expression is also common subexpression elimination. The table
is a weak dictionary guarded by a lock.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.ops import Static

Value = TypeVar("Value")

KINDS = ("i", "j", "p")
"""What a variable is indexed by: rows, columns, or neither (a parameter). KeOps' categories are 0, 1, 2."""

_lock = threading.Lock()
_table: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def _unlock() -> None:
    """Replace the lock in a forked child: the thread that held it does not exist there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class Node:
    """An operation applied to operands. Created by `variable`, `constant`, `zero` and `make` only."""

    __slots__ = ("__weakref__", "args", "dim", "kinds", "op", "static")
    op: str  # a row of `ops.TABLE`, or "variable", "constant", "zero"
    args: tuple[Node, ...]
    static: Static  # of "pow" the exponent, of "variable" (position, kind, ...), of "constant" (value,)
    dim: int  # the number of features
    kinds: frozenset[str]  # of the variables that it reads: "i", "j", "p"

    def __init__(self, *_: object) -> None:
        raise TypeError("nodes are made by variable(), constant(), zero() and make()")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"nodes are immutable: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return _last_node, (as_rows(self),)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __repr__(self) -> str:
        return text(self, limit=2000)


def intern(op: str, args: tuple[Node, ...], static: Static, dim: int) -> Node:
    """The unique node of an operation, unchecked: what `make` ends in."""
    # 1, 1.0 and True, 0.0 and -0.0 are equal, and NaN is not: repr distinguishes static arguments by their text.
    key = (op, args, dim, repr(static))
    with _lock:
        node = _table.get(key)
        if node is None:
            node = Node.__new__(Node)
            kinds = frozenset(static[1]) if op == "variable" else frozenset().union(*(arg.kinds for arg in args))
            for name, value in (("op", op), ("args", args), ("static", static), ("dim", dim), ("kinds", kinds)):
                object.__setattr__(node, name, value)
            _table[key] = node
    return node


Rows = tuple[tuple[str, tuple[int, ...], Static, int], ...]


def as_rows(*roots: Node) -> Rows:
    """A graph as rows (op, row numbers of the operands, static, dim): pickled without recursion, at any depth."""
    number = {node: n for n, node in enumerate(order(*roots))}
    return tuple((node.op, tuple(number[arg] for arg in node.args), node.static, node.dim) for node in number)


def from_rows(rows: Iterable[tuple[str, Sequence[int], Static, int]]) -> list[Node]:
    """The nodes of the rows of `as_rows`, in their order."""
    nodes: list[Node] = []
    for op, args, static, dim in rows:
        nodes.append(intern(op, tuple(nodes[arg] for arg in args), static, dim))
    return nodes


def _last_node(rows: Rows) -> Node:
    return from_rows(rows)[-1]


def variable(position: int, dim: int, kind: str) -> Node:
    """An input: the array at `position` among the arrays of a call, with `dim` features, indexed by `kind`."""
    if kind not in KINDS:
        raise ValueError(f"the kind of a variable is one of {', '.join(KINDS)}, not {kind!r}")
    if dim < 1:
        raise ValueError(f"variable {position} has to have at least one feature, not {dim}")
    return intern("variable", (), (int(position), kind), int(dim))


def constant(value: float) -> Node:
    """A number, of dim 1, in float64."""
    return intern("constant", (), (float(value),), 1)


def zero(dim: int) -> Node:
    """A vector of zeros; a node of its own, so that simplification recognises it."""
    return intern("zero", (), (int(dim),), int(dim))


def make(op: str, *args: Node, static: Static = ()) -> Node:
    """The node of an operation of `ops.TABLE` applied to nodes, with static arguments in KeOps' order.

    Raises ValueError for unknown operations, wrong numbers of arguments, dims that do not match, and static
    arguments out of range. The message has the text and the dim of each operand.
    """
    row = ops.lookup(op)
    static = tuple(map(plain, static))
    if len(args) != row.arity:
        raise ValueError(f"{row.keops} takes {row.arity} argument{'s' * (row.arity != 1)}, not {len(args)}")
    low = row.n_static
    if not 0 <= len(static) - low <= row.n_optional:
        expected = f"{low} to {low + row.n_optional}" if row.n_optional else low
        raise ValueError(f"{row.keops} takes {expected} numbers, not {static}")
    try:
        dim = row.dim(tuple(arg.dim for arg in args), static)
    except ops.DimError as error:
        texts = [text(arg, limit=200) for arg in args]
        widths = " and ".join(f"{operand} has {arg.dim}" for operand, arg in zip(texts, args))
        call = f"{row.keops}({', '.join([*texts, *map(str, static)])})"
        raise ValueError(f"in {call}: {error}: {widths}") from None
    if row.expand is not None:
        expanded: Node = row.expand(*args, *static)
        return expanded
    if op == "ifelse":
        args = (_threshold(args[0]), *args[1:])
    return intern(op, args, static, dim)


def _threshold(condition: Node) -> Node:
    """The condition of an "ifelse", minus 0.5 if it is a comparison or composed of comparisons.

    These are 1 or 0, so that the condition of KeOps, >= 0, would always hold. Raises ValueError for sums of them,
    which may be meant as "or" as well as "and".
    """
    todo, counts = [condition], False
    seen = set(todo)
    while todo:
        node = todo.pop()
        args = node.args[1:] if node.op == "sub" and node.args[0] is constant(1) else node.args
        if node.op in ops.COUNTING:
            counts = True
        elif node.op not in ops.LOGICAL and args is node.args:
            return condition
        if node.op not in ops.TRUTH_VALUES:
            todo += [arg for arg in args if arg not in seen]
            seen.update(args)
    if counts:
        raise ValueError(
            f"in IfElse({text(condition, limit=200)},...): the condition is a number of comparisons that hold, "
            "and never below 0; compare it, as in (condition >= 1)"
        )
    return make("sub", condition, constant(0.5))


def operation(op: str, *args: Node) -> Node:
    """The node of an operation on numbers: of `ops.TABLE`, or of `ops.SCALAR` or `ops.INTEGER`, which only
    recurrences have.
    """
    if op not in ops.SCALAR and op not in ops.INTEGER:
        return make(op, *args)
    assert len(args) == ops.arity(op)
    return intern(op, args, (), 1)


def plain(number: Any) -> Any:
    """Static arguments as Python's own numbers and tuples, so that equal ones have one text."""
    if isinstance(number, (tuple, list)):
        return tuple(map(plain, number))
    own = number.item() if hasattr(number, "item") else number
    return int(own) if isinstance(own, bool) else own


def order(*roots: Node) -> list[Node]:
    """All nodes of a graph in topological order, each once: operands before their users, the roots included."""
    visited: dict[Node, None] = {}
    stack = [*reversed(roots)]
    while stack:
        node = stack[-1]
        missing = [arg for arg in node.args if arg not in visited]
        if missing:
            stack += reversed(missing)
        else:
            visited[node] = None
            stack.pop()
    return list(visited)


def fold(root: Node, value_of: Callable[[Node, list[Value]], Value]) -> Value:
    """The value of a formula, by ``value_of(node, values of its operands)``."""
    values: dict[Node, Value] = {}
    for node in order(root):
        values[node] = value_of(node, [values[arg] for arg in node.args])
    return values[root]


def variables(*roots: Node) -> tuple[Node, ...]:
    """The variables in formulas, by position."""
    return tuple(
        sorted((n for n in order(*roots) if n.op == "variable"), key=lambda n: (n.static[0], n.static[1]))
    )


def substitute(root: Node, replaced: Mapping[Node, Node]) -> Node:
    """The formula with some nodes replaced by others of the same dim."""
    for old, new in replaced.items():
        if old.dim != new.dim:
            raise ValueError(f"{old!r} of dim {old.dim} cannot become {new!r} of {new.dim}")
    return fold(root, lambda node, args: replaced.get(node) or intern(node.op, tuple(args), node.static, node.dim))


# ---- verifier --------------------------------------------------------------------------------------------------

_LEAVES = {"variable": 2, "constant": 1, "zero": 1}  # and the numbers of their static arguments


def check_variables(*roots: Node) -> None:
    """Raise ValueError where two variables at one position, an array of the user, differ in dim or kind."""
    declared: dict[int, Node] = {}
    for node in (each for each in order(*roots) if each.op == "variable"):
        other = declared.setdefault(node.static[0], node)
        if other is not node:
            raise ValueError(f"array {node.static[0]} cannot be {other!r} and {node!r} in one formula")


def check_formula(*roots: Node) -> None:
    """Assert, after a pass, that each node is a valid application of an operation in the table, and its dim."""
    for node in order(*roots):
        if node.op in _LEAVES:
            assert not node.args and len(node.static) == _LEAVES[node.op], f"a malformed {node.op}"
            assert node.op != "variable" or node.static[1] in KINDS, f"a variable of kind {node.static[1]}"
            continue
        row = ops.TABLE.get(node.op)
        assert row is not None, f"no operation {node.op}"
        assert row.expand is None, f"{row.keops} is a composite operation"
        assert len(node.args) == row.arity, f"{row.keops} of {len(node.args)} arguments"
        n_optional = len(node.static) - row.n_static
        assert 0 <= n_optional <= row.n_optional, f"{row.keops} with the numbers {node.static}"
        dim = row.dim(tuple(arg.dim for arg in node.args), node.static)
        assert node.dim == dim, f"{row.keops} of dim {node.dim}, which should be {dim}"


# ---- text ------------------------------------------------------------------------------------------------------

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "scalprod": "|",
}  # fmt: skip


MAX_TEXT = 20_000
"""Default limit of a formula's text in characters. The text is as long as the tree, which can be far larger than
the graph."""


def text(node: Node, limit: int | None = MAX_TEXT) -> str:
    """The formula in KeOps' language, truncated to `limit` characters; `parser.parse` is the inverse.

    >>> x, y = variable(0, 3, "i"), variable(1, 3, "j")
    >>> text(make("exp", make("neg", make("sqdist", x, y))))
    'Exp(-SqDist(Var(0,3,0),Var(1,3,1)))'
    """

    def shortened(line: str) -> str:
        return line if limit is None or len(line) <= limit else f"{line[: limit - 3]}..."

    whole = fold(node, lambda each, args: shortened(_line(each, args)))
    return whole[1:-1] if node.op in _INFIX and whole.endswith(")") else whole


def key_text(*roots: Node) -> str:
    """The formulas as numbered rows, one for each node: unique, and the same text in any process."""
    lines = [f"{op}:{dim}({','.join(map(str, args))}){static!r}" for op, args, static, dim in as_rows(*roots)]
    nodes = order(*roots)
    return "\n".join([*lines, " ".join(str(nodes.index(root)) for root in roots)])


def _line(node: Node, args: list[str]) -> str:
    if node.op == "variable":
        position, kind, *_ = node.static
        return f"Var({position},{node.dim},{KINDS.index(kind)})"
    if node.op == "zero":
        return f"Zero({node.dim})"
    if node.op == "constant":
        return _number(node.static[0])
    if node.op == "neg" and node.args[0].op != "constant":
        return f"-{args[0]}"
    if node.op in _INFIX:
        return f"({args[0]} {_INFIX[node.op]} {args[1]})"
    name = ops.TABLE[node.op].keops if node.op in ops.TABLE else node.op  # of recurrences alone
    return f"{name}({','.join([*args, *map(_static, node.static)])})"


def _static(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)  # not as an integer, which would be another static argument
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "(-inf)"}.get(value, "nan")
    digits = "-0.0" if value == 0 and math.copysign(1, value) < 0 else repr(value).removesuffix(".0")
    return f"({digits})" if digits.startswith("-") else digits
