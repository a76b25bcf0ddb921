"""Simplification of formulas by rewrite rules, applied bottom-up until none matches.

The rules keep derivatives small and produce the forms that lowering handles best. They may change the rounding of
products and of sums of equal terms, and hide NaN: 0 * x and x - x are 0. Sums are not reassociated: (a - b) + b
stays, since it rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, fold, intern, make, zero

Rewrite = Callable[[Node], Node | None]
_REWRITES: dict[str, list[Rewrite]] = {}
_MAX_DEPTH = 50  # of nested rewrites; beyond, a product of that many factors stays unchanged
_MAX_REWRITES = 100  # of one node. Each makes it smaller, so that more indicate a cycle of rules
_MODERATE = 2.0**20


class _Depth(threading.local):
    """The number of nested rewrites in the calling thread."""

    value = 0


_depth = _Depth()


def is_moderate(value: float) -> bool:
    """Whether a constant may be multiplied with other constants first: no product of a few of them overflows."""
    return 1 / _MODERATE <= abs(value) <= _MODERATE


def simplify(formula: Node) -> Node:
    """An equivalent formula with fewer operations.

    >>> from upsweep._compiler.formulas.nodes import variable
    >>> x, y = variable(0, 3, "i"), variable(1, 3, "j")
    >>> simplify(make("sum", make("square", make("sub", x, y))))
    SqDist(Var(0,3,0),Var(1,3,1))
    >>> simplify(make("add", make("mul", constant(0), x), make("add", y, y)))
    2 * Var(1,3,1)
    """
    return fold(formula, _rebuilt)


def _rebuilt(node: Node, args: list[Node]) -> Node:
    """A node on simplified operands, simplified."""
    same = node.args == tuple(args)
    return _rewritten(node if same else intern(node.op, tuple(args), node.static, node.dim))


def _rewritten(node: Node) -> Node:
    for _ in range(_MAX_REWRITES):
        better = next((new for rewrite in _REWRITES.get(node.op, []) if (new := rewrite(node))), None)
        if better is None:
            return node
        assert better.dim == node.dim, f"{node!r} became {better!r}"
        node = better
    raise AssertionError(f"the rewrite rules cycle on {node!r}")


def _rule(*names: str) -> Callable[[Rewrite], Rewrite]:
    """Add a rewrite rule to the lists of operations."""

    def add(rewrite: Rewrite) -> Rewrite:
        for name in names:
            _REWRITES.setdefault(name, []).append(rewrite)
        return rewrite

    return add


def _new(op: str, *args: Node, static: tuple[object, ...] = ()) -> Node:
    """An operation on simplified operands, simplified unless the rewrites nest too deeply."""
    node = make(op, *args, static=static)
    if _depth.value >= _MAX_DEPTH:
        return node
    _depth.value += 1
    try:
        return _rewritten(node)
    finally:
        _depth.value -= 1


def _value(node: Node) -> float | None:
    """The constant that every feature of a node equals, if it is known."""
    if node.op == "sumT":
        node = node.args[0]
    return 0.0 if node.op == "zero" else float(node.static[0]) if node.op == "constant" else None


def _replaced(node: Node, old: Node, new: Node) -> tuple[Node, Node]:
    """The two operands of a node, with `new` in place of the first that is `old`."""
    a, b = node.args
    return (new, b) if a is old else (a, new)


def _filled(value: float, dim: int) -> Node:
    if value == 0:
        return zero(dim)
    return constant(value) if dim == 1 else make("sumT", constant(value), static=(dim,))


def _widened(node: Node, dim: int) -> Node:
    return node if node.dim == dim else _new("sumT", node, static=(dim,))


def _scaled(node: Node) -> tuple[float, Node]:
    """A node as a constant times a node."""
    if node.op == "neg":
        factor, inner = _scaled(node.args[0])
        return -factor, inner
    if node.op == "mul" and node.args[0].op == "constant" and node.dim == node.args[1].dim:
        return node.args[0].static[0], node.args[1]
    if node.op == "mul" and node.args[0].dim == 1 < node.dim:
        factor, inner = _scaled(node.args[0])
        return factor, node if factor == 1 else _new("mul", inner, node.args[1])
    return 1.0, node


def _number_times(node: Node) -> tuple[Node, Node]:
    """A node as a node of dim 1 times a vector."""
    if node.op == "neg":
        number, vector = _number_times(node.args[0])
        return _new("neg", number), vector
    if node.op == "mul" and node.args[0].dim == 1:
        return node.args[0], node.args[1]
    return constant(1), node


@_rule(*(name for name, row in ops.TABLE.items() if row.elementwise))
def _fold(node: Node) -> Node | None:
    """Constant folding."""
    values = [_value(arg) for arg in node.args]
    if None in values:
        return None
    function = ops.numpy_function(node.op)
    with np.errstate(all="ignore"):
        return _filled(float(function(*(np.array([value]) for value in values), *node.static)[0]), node.dim)


@_rule("neg")
def _neg(node: Node) -> Node | None:
    (a,) = node.args
    if a.op == "neg":
        return a.args[0]
    if a.op == "sub":
        return _new("sub", a.args[1], a.args[0]) if a.args[0].dim == a.args[1].dim else None
    if a.op == "mul" and a.args[0].dim == 1 < a.dim:  # the sign of one number, not of each feature
        return _new("mul", _new("neg", a.args[0]), a.args[1])
    factor, inner = _scaled(a)
    return None if factor == 1 else _new("mul", constant(-factor), inner)


@_rule("add", "sub")
def _terms(node: Node) -> Node | None:
    """Zero terms; a x + b x = (a + b) x, where a and b are constants or numbers; negative terms."""
    a, b = node.args
    if _value(b) == 0:
        return _widened(a, node.dim)
    if _value(a) == 0:
        return _widened(b if node.op == "add" else _new("neg", b), node.dim)
    (m, x), (n, y) = _scaled(a), _scaled(b)
    if x is y:
        factor = m + n if node.op == "add" else m - n
        return zero(node.dim) if factor == 0 else _new("mul", constant(factor), x)
    (s, u), (t, v) = _number_times(a), _number_times(b)
    if u is v and u.dim > 1:
        return _new("mul", _new(node.op, s, t), u)
    if b.op == "neg":
        return _new("sub" if node.op == "add" else "add", a, b.args[0])
    if a.op == "neg":
        return _new("sub", b, a.args[0]) if node.op == "add" else _new("neg", _new("add", a.args[0], b))
    return None


@_rule("add", "sub", "mul", "div", "sqdist", "scalprod")
def _spread_arguments(node: Node) -> Node | None:
    """A number broadcast to a vector is an operand of dim 1."""
    narrow = [arg.args[0] if arg.op == "sumT" else arg for arg in node.args]
    if narrow == list(node.args):
        return None
    if node.op in ("sqdist", "scalprod"):
        wide = any(arg.dim > 1 for arg in narrow)
        return _new(node.op, *narrow) if wide and node.op == "sqdist" else None
    return _widened(_new(node.op, *narrow), node.dim)


@_rule("mul")
def _factors(node: Node) -> Node | None:
    a, b = node.args
    for one, other in ((a, b), (b, a)):
        value = _value(one)
        if value == 0:
            return zero(node.dim)
        if value == 1:
            return _widened(other, node.dim)
        if value == -1:
            return _widened(_new("neg", other), node.dim)
    if a is b:
        return _new("square", a)
    for one, other in ((a, b), (b, a)):
        if one.op == "neg" and other.op == "neg":
            return _new("mul", a.args[0], b.args[0])
        if one.op == "neg" and not one.dim < node.dim:
            return _new("neg", _new("mul", *_replaced(node, one, one.args[0])))
        if one.op == "elemT" and node.dim == one.dim:
            factor = other if other.dim == 1 else _new("elem", other, static=one.static[1:])
            return _new("elemT", _new("mul", one.args[0], factor), static=one.static)
    return None


@_rule("mul")
def _numbers_first(node: Node) -> Node | None:
    """Products are number times vector, so that numbers are multiplied once and not for each feature.

    Factors that depend on a row or a column only stay together: lowering computes them once for it.
    """
    if node.dim == 1:
        return None
    a, b = node.args
    if b.dim == 1:
        return _new("mul", b, a)
    for one, other in ((a, b), (b, a)):
        if other.op == "mul" and other.args[0].dim == 1 < other.dim and other.kinds >= {"i", "j"}:
            number, vector = other.args
            if one.dim == 1:
                return _new("mul", _new("mul", one, number), vector)
            return _new("mul", number, _new("mul", *_replaced(node, other, vector)))
    return None


@_rule("mul")
def _constants_first(node: Node) -> Node | None:
    """Constants first, and folded; not across a number, which would become a product with a vector."""
    a, b = node.args
    if b.op == "constant" and a.op != "constant":
        return _new("mul", b, a)
    if b.op == "mul" and b.args[0].op == "constant":
        factor, inner = b.args
        if a.op == "constant":
            both = (a.static[0], factor.static[0])
            return _new("mul", constant(both[0] * both[1]), inner) if all(map(is_moderate, both)) else None
        if inner.dim == a.dim:
            return _new("mul", factor, _new("mul", a, inner))
    if a.op == "mul" and a.args[0].op == "constant" and a.args[1].dim == b.dim:
        return _new("mul", a.args[0], _new("mul", a.args[1], b))
    return None


@_rule("div")
def _div(node: Node) -> Node | None:
    a, b = node.args
    if _value(a) == 0:
        return zero(node.dim)
    if _value(b) == 1:
        return _widened(a, node.dim)
    if a.op == "neg":
        return _new("neg", _new("div", a.args[0], b))
    if b.op == "neg":
        return _new("neg", _new("div", a, b.args[0]))
    return None


@_rule("square", "abs", "cos")
def _even(node: Node) -> Node | None:
    return _new(node.op, node.args[0].args[0]) if node.args[0].op == "neg" else None


@_rule("pow")
def _pow(node: Node) -> Node | None:
    (a,), (exponent,) = node.args, node.static
    if exponent in (0, 1):
        return a if exponent else _filled(1, node.dim)
    return _new("square" if exponent == 2 else "inverse", a) if exponent in (2, -1) else None


@_rule("sum")
def _sum(node: Node) -> Node | None:
    (a,) = node.args
    value = _value(a)
    if a.dim == 1:
        return a
    if value is not None:
        return _filled(value * a.dim, 1)
    if a.op == "sumT":
        return _new("mul", constant(a.dim), a.args[0])
    if a.op in ("elemT", "extractT"):
        return _new("sum", a.args[0])
    if a.op == "neg":
        return _new("neg", _new("sum", a.args[0]))
    if a.op == "square":
        (x,) = a.args
        return _new("sqdist", *x.args) if x.op == "sub" else _new("scalprod", x, x)
    if a.op == "mul":
        return _new("scalprod", *a.args)
    return None


@_rule("scalprod")
def _scalprod(node: Node) -> Node | None:
    a, b = node.args
    if a is b and a.op == "sub":
        return _new("sqdist", *a.args)
    for one, other in ((a, b), (b, a)):
        if _value(one) == 0:
            return zero(1)
        if one.op == "sumT":
            one = one.args[0]
        if one.dim == 1:
            return _new("mul", one, _new("sum", _widened(other, max(a.dim, b.dim))))
        if one.op == "neg":
            return _new("neg", _new("scalprod", *_replaced(node, one, one.args[0])))
        if one.op == "mul" and 1 in (one.args[0].dim, one.args[1].dim):
            scale, vector = sorted(one.args, key=lambda arg: arg.dim)
            return _new("mul", scale, _new("scalprod", *_replaced(node, one, vector)))
        if one.op == "elemT" and other.dim > 1:
            return _new("mul", one.args[0], _new("elem", other, static=one.static[1:]))
    return None


@_rule("sqdist")
def _sqdist(node: Node) -> Node | None:
    """A common factor of both vectors moves outside: one product instead of one for each feature."""
    a, b = node.args
    for one, other in ((a, b), (b, a)):
        if _value(other) == 0:
            one = _widened(one, max(a.dim, b.dim))
            return _new("scalprod", one, one)
    if a.op != b.op or a.dim != b.dim:
        return None
    if a.op == "neg":
        return _new("sqdist", a.args[0], b.args[0])
    if a.op == "mul" and a.args[0] is b.args[0] and a.args[0].dim == 1 < a.dim:
        return _new("mul", _new("square", a.args[0]), _new("sqdist", a.args[1], b.args[1]))
    if a.op == "div" and a.args[1] is b.args[1] and a.args[1].dim == 1 < a.dim:
        return _new("div", _new("sqdist", a.args[0], b.args[0]), _new("square", a.args[1]))
    return None


@_rule("elem", "extract")
def _part(node: Node) -> Node | None:
    """Features of a vector that was assembled from parts."""
    (a,) = node.args
    start, dim = (*node.static, 1)[:2]
    if a.dim == dim:
        return a
    if _value(a) is not None or a.op == "sumT":
        return zero(dim) if _value(a) == 0 else _widened(a.args[0], dim)
    if a.op == "extract":
        return _new(node.op, a.args[0], static=(start + a.static[0], *node.static[1:]))
    part = a
    while part.op == "concat":
        split = part.args[0].dim
        if start < split < start + dim:
            break
        start, part = (start, part.args[0]) if start < split else (start - split, part.args[1])
    if part is not a:
        return _new(node.op, part, static=(start, *node.static[1:]))
    if a.op in ("elemT", "extractT"):
        begin = a.static[0] if a.op == "extractT" else a.static[1]
        end = begin + a.args[0].dim
        if start + dim <= begin or start >= end:
            return zero(dim)
        if begin <= start and start + dim <= end:
            return _new("extract", a.args[0], static=(start - begin, dim))
    return None


@_rule("sumT", "elemT", "extractT")
def _broadcast(node: Node) -> Node | None:
    (a,) = node.args
    if a.dim == node.dim:
        return a
    return zero(node.dim) if _value(a) == 0 else None


@_rule("concat", "tensorprod", "matvecmult", "vecmatmult", "tensordot")
def _zero_operands(node: Node) -> Node | None:
    values = [_value(arg) for arg in node.args]
    is_zero = all(value == 0 for value in values) if node.op == "concat" else 0 in values
    return zero(node.dim) if is_zero else None


@_rule("matvecmult", "vecmatmult", "tensorprod")
def _products_with_numbers(node: Node) -> Node | None:
    """A vector of dim 1 is a number, and the product one of number times vector."""
    a, b = node.args
    vector = b if node.op == "matvecmult" else a
    if vector.dim == 1:
        return _widened(_new("mul", a, b), node.dim)
    if node.op == "tensorprod" and b.dim == 1:
        return _new("mul", a, b)
    return None
