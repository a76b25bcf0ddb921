"""What a LazyTensor is made of: operations on leaves, which become nodes of a formula when it is reduced.

Expressions are built again on each call of a user's function, with other arrays in the same places. So they are
light: an operation is an object with its arguments. `flatten` turns one into a signature, in which leaves have
numbers instead of arrays, and everything that follows from the signature is made once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from upsweep._compiler.formulas import derivative, nodes
from upsweep._compiler.formulas.nodes import KINDS, Node

__all__ = ["KINDS", "Expression", "Leaf", "Meta", "build", "flatten", "join_meta", "transposed"]

_DERIVED: dict[str, Callable[..., Node]] = {
    "grad": derivative.gradient, "grad_matrix": derivative.gradient_matrix, "diff": derivative.differential,
    "divergence": derivative.divergence, "laplacian": derivative.laplacian,
}  # fmt: skip


class Leaf:
    """An array in its place: rows ("i"), columns ("j") or parameters ("p"); or a place for one (`index`)."""

    __slots__ = ("array", "dim", "index", "kind")

    def __init__(self, array: Any, kind: str, dim: int, index: int | None = None) -> None:
        self.array, self.kind, self.dim, self.index = array, kind, dim, index


class Meta(NamedTuple):
    """What the arrays below an expression have in common; None where none of them says."""

    ni: int | None
    nj: int | None
    batch: tuple[int, ...] | None
    dtype: str | None
    place: Any  # the library, or a tensor's device


class Expression:
    """One operation; `op` is None for a leaf, whose arguments are the leaf itself."""

    __slots__ = ("_args", "_meta", "_op", "_static", "backend", "ndim", "ranges")
    _op: str | None
    _args: tuple[Any, ...]
    _static: tuple[Any, ...]
    _meta: Meta
    ndim: int
    ranges: Any
    backend: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        """The expressions below this one, as a list: pickle and deepcopy recurse, and expressions may be deep."""
        numbers: dict[int, int] = {}
        rows: list[tuple[Any, ...]] = []
        stack: list[Expression] = [self]
        while stack:
            each = stack[-1]
            waiting = [] if each._op is None else [arg for arg in each._args if id(arg) not in numbers]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if id(each) not in numbers:
                numbers[id(each)] = len(rows)
                args = each._args if each._op is None else tuple(numbers[id(arg)] for arg in each._args)
                state = each._op, args, each._static, each._meta, each.ndim, each.ranges, each.backend
                rows.append((type(each), *state))
        return _of_rows, (rows,)


def _of_rows(rows: list[tuple[Any, ...]]) -> Expression:
    """The last of the expressions that `Expression.__reduce__` listed."""
    found: list[Expression] = []
    for kind, op, args, *state in rows:
        each = object.__new__(kind)
        each._op, each._args = op, args if op is None else tuple(found[arg] for arg in args)
        each._static, each._meta, each.ndim, each.ranges, each.backend = state
        found.append(each)
    return found[-1]


@functools.lru_cache(maxsize=1024)
def join_meta(a: Meta, b: Meta) -> Meta:
    """What two operands have together.

    Raises
    ------
    ValueError
        They are of different sizes, or batches that do not broadcast.
    TypeError
        They are of different dtypes, libraries or devices.
    """
    if a.place is not None and b.place is not None and a.place != b.place:
        raise TypeError(f"one has arrays of {a.place}, the other of {b.place}")
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        raise TypeError(f"one is of dtype {a.dtype}, the other of {b.dtype}; convert one")
    for name, mine, other in (("rows (i)", a.ni, b.ni), ("columns (j)", a.nj, b.nj)):
        if mine is not None and other is not None and mine != other:
            raise ValueError(f"one has {mine} {name}, the other {other}")
    return Meta(
        b.ni if a.ni is None else a.ni,
        b.nj if a.nj is None else a.nj,
        _broadcast(a.batch, b.batch),
        a.dtype or b.dtype,
        b.place if a.place is None else a.place,
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
    """The expressions as steps (op, static, *numbers of arguments), and the leaves by position.

    Symbolic leaves have the positions that their users gave them; arrays come behind those, in the order in which
    they are first met. The numbers of the roots are the last step. With `gaps`, of a part of a formula, None
    is the leaf of each position that no symbolic variable of it has; otherwise these are an error.
    """
    numbers: dict[int, int] = {}
    places: dict[Any, int] = {}
    leaves: list[Leaf] = []
    symbolic: dict[int, Leaf] = {}
    steps: list[Any] = []
    stack: list[Expression] = list(reversed(roots))
    while stack:
        node = stack[-1]
        if id(node) in numbers:
            stack.pop()
            continue
        if node._op is None:
            stack.pop()
            leaf = node._args[0]
            if leaf.index is not None:
                place = -1 - leaf.index
                _same_symbol(symbolic.setdefault(leaf.index, leaf), leaf)
            else:
                key = id(leaf.array), leaf.kind
                place = places.setdefault(key, len(leaves))
                if place == len(leaves):
                    leaves.append(leaf)
            step: tuple[Any, ...] = ("variable", place, leaf.dim, leaf.kind)
        else:
            waiting = [arg for arg in node._args if id(arg) not in numbers]
            if waiting:
                waiting.reverse()
                stack += waiting
                continue
            stack.pop()
            step = (node._op, node._static, *[numbers[id(arg)] for arg in node._args])
        numbers[id(node)] = len(steps)
        steps.append(step)
    if symbolic:
        steps, leaves = _placed(steps, leaves, symbolic, gaps)
    steps.append(tuple([numbers[id(root)] for root in roots]))
    return tuple(steps), leaves


def _same_symbol(first: Leaf, leaf: Leaf) -> None:
    if (first.dim, first.kind) != (leaf.dim, leaf.kind):
        raise ValueError(
            f"symbolic variable {leaf.index} is both V{first.kind}({first.dim}) and V{leaf.kind}({leaf.dim})"
        )


def _placed(
    steps: list[Any], leaves: list[Leaf], symbolic: dict[int, Leaf], gaps: bool
) -> tuple[list[Any], list[Any]]:
    n_symbols = max(symbolic) + 1
    missing = [index for index in range(n_symbols) if index not in symbolic]
    if missing and not gaps:
        raise ValueError(f"symbolic variables have to be numbered from 0 without gaps; {missing} are missing")
    moved = [
        (step[0], -1 - step[1] if step[1] < 0 else step[1] + n_symbols, *step[2:])
        if step[0] == "variable"
        else step
        for step in steps
    ]
    return moved, [symbolic.get(index) for index in range(n_symbols)] + leaves


def build(steps: Sequence[Any]) -> tuple[Node, ...]:
    """The nodes of the roots of flattened expressions."""
    made: list[Node] = []
    for step in steps[:-1]:
        if step[0] == "variable":
            made.append(nodes.variable(*step[1:]))
        elif step[0] == "constant":
            made.append(nodes.constant(step[1][0]))
        else:
            made.append(_apply(step[0], [made[number] for number in step[2:]], step[1]))
    return tuple(made[number] for number in steps[-1])


def _apply(op: str, args: list[Node], static: tuple[Any, ...]) -> Node:
    derived = _DERIVED.get(op)
    return nodes.make(op, *args, static=static) if derived is None else derived(*args)


def transposed(root: Any, copy: Any) -> Any:
    """The expression with rows as columns; `copy` makes an expression like another of a new (op, args)."""
    done: dict[int, Any] = {}
    swapped: dict[int, Leaf] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
            continue
        if node._op is None:
            leaf = node._args[0]
            kind = {"i": "j", "j": "i", "p": "p"}[leaf.kind]
            new = swapped.setdefault(id(leaf), Leaf(leaf.array, kind, leaf.dim, leaf.index))
            done[id(node)] = copy(node, (new,))
            stack.pop()
            continue
        waiting = [arg for arg in node._args if id(arg) not in done]
        if waiting:
            stack += waiting
        else:
            done[id(node)] = copy(node, tuple(done[id(arg)] for arg in node._args))
            stack.pop()
    return done[id(root)]
