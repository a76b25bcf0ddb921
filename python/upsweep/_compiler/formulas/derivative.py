"""Symbolic derivatives of formulas: a vector-Jacobian product for each operation, and operators built on them.

`cotangents` applies the rules by reverse-mode differentiation. A derivative is a formula again, so that
derivatives of any order exist. Conventions follow KeOps: the derivative of sqrt at 0 is 0, and so is that of asin
and acos at 1, since rsqrt(0) is 0; steps, comparisons and indices of extremes have none. Where KeOps gives NaN
(sinxdivx at 0, powf of 0 for its exponent), these rules give the limit. The branch of a select that is not chosen
contributes 0, even where its derivative is infinite or NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from upsweep._compiler.formulas.cotangents import Cotangents, Rule, pull_back, widened
from upsweep._compiler.formulas.nodes import Node, constant, make, variable, variables, zero
from upsweep._compiler.formulas.numpy_semantics import tensordot_loops
from upsweep._compiler.formulas.rules import simplify

__all__ = ["RULES", "differential", "divergence", "gradient", "gradient_matrix", "laplacian"]


def gradient(formula: Node, of: Node, cotangent: Node | None = None) -> Node:
    """The derivative of ``sum(cotangent * formula)`` with respect to a variable, for one pair: KeOps' Grad.

    Parameters
    ----------
    formula : Node
        The formula to differentiate.
    of : Node
        A variable.
    cotangent : Node, optional
        A vector of the formula's dim, or a number for all its features; by default 1 if the formula is a number.

    Returns
    -------
    Node
        A formula of the variable's dim.

    Examples
    --------
    >>> x, y, e = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "i")
    >>> gradient(make("exp", make("neg", make("sqdist", x, y))), x, e)
    ((-2) * (Var(2,1,0) * Exp(-SqDist(Var(0,3,0),Var(1,3,1))))) * (Var(0,3,0) - Var(1,3,1))
    """
    if cotangent is None and formula.dim == 1:
        cotangent = constant(1)
    if cotangent is None or cotangent.dim not in (1, formula.dim):
        actual = "none" if cotangent is None else f"{cotangent!r} of dim {cotangent.dim}"
        raise ValueError(f"the gradient of {formula!r} takes a cotangent of dim {formula.dim}, not {actual}")
    if of.op != "variable":
        raise ValueError(f"gradients are taken of variables, not of {of!r}")
    formula = simplify(formula)  # first: subexpressions shared with the derivative are then the same nodes
    (result,) = pull_back({formula: widened(cotangent, formula.dim)}, (of,), RULES, "ifelse")
    return zero(of.dim) if result is None else simplify(result)


def differential(formula: Node, of: Node, tangent: Node) -> Node:
    """The Jacobian-vector product of a formula with the `tangent` of a variable: KeOps' Diff.

    The vector-Jacobian product is linear in its cotangent; its gradient with respect to the cotangent is this one.
    """
    if tangent.dim != of.dim:
        raise ValueError(f"{of!r} of dim {of.dim} cannot move along {tangent!r} of dim {tangent.dim}")
    first = min([0, *(v.static[0] for v in variables(formula, tangent))])
    cotangent = variable(first - 1, formula.dim, "p")
    return gradient(make("scalprod", gradient(formula, of, cotangent), tangent), cotangent)


def gradient_matrix(formula: Node, of: Node) -> Node:
    """The concatenated gradients of all features of a formula: KeOps' GradMatrix."""
    rows = [gradient(formula, of, _unit(formula.dim, n)) for n in range(formula.dim)]
    while len(rows) > 1:  # pairwise, so that the graph's depth is logarithmic
        paired = [make("concat", a, b) for a, b in zip(rows[::2], rows[1::2])]
        rows = paired + rows[len(paired) * 2 :]
    return rows[0]


def divergence(formula: Node, of: Node) -> Node:
    """The trace of the Jacobian with respect to a variable of the formula's dim."""
    if formula.dim != of.dim:
        raise ValueError(f"the divergence of {formula!r} of dim {formula.dim} cannot be of {of!r} of dim {of.dim}")
    total = zero(1)
    for n in range(of.dim):
        row = gradient(formula, of, _unit(of.dim, n))
        total = make("add", total, make("elem", row, static=(n,)))
    return simplify(total)


def laplacian(formula: Node, of: Node) -> Node:
    """The divergence of the gradient of a number."""
    if formula.dim != 1:
        raise ValueError(f"a Laplacian is that of a number, not of {formula!r} of dim {formula.dim}")
    return divergence(gradient(formula, of), of)


def _unit(dim: int, n: int) -> Node:
    return simplify(make("elemT", constant(1), static=(dim, n)))


def _times(factor: Callable[[Node, Node], Node]) -> Rule:
    """The rule of a function of one operand: the cotangent times a factor, a function of operand and value."""
    return lambda node, g: (make("mul", g, factor(node.args[0], node)),)


def _none(node: Node, g: Node) -> Cotangents:
    return (None,) * len(node.args)


def _minus(node: Node) -> Node:
    return make("neg", node)


def _scaled(number: float, node: Node) -> Node:
    return make("mul", constant(number), node)


def _not(node: Node) -> Node:
    return make("sub", constant(1), node)


def _div(node: Node, g: Node) -> Cotangents:
    quotient = make("div", g, node.args[1])
    return quotient, _minus(make("mul", quotient, node))


def _powf(node: Node, g: Node) -> Cotangents:
    a, b = node.args
    lower = make("powf", a, make("sub", b, constant(1)))
    log = make("log", make("add", a, make("eq", a, constant(0))))  # log is 0 at 0, the limit of log(a) * a**b
    return make("mul", g, make("mul", b, lower)), make("mul", g, make("mul", log, node))


def _asin(x: Node, value: Node) -> Node:
    return make("rsqrt", _not(make("square", x)))


def _atan2(node: Node, g: Node) -> Cotangents:
    a, b = node.args
    scaled = make("div", g, make("add", make("square", a), make("square", b)))
    return make("mul", scaled, b), _minus(make("mul", scaled, a))


def _sinxdivx(x: Node, value: Node) -> Node:
    """(cos(x) - sin(x) / x) / x; near 0, where this cancels, the series -x/3 + x^3/30 - ..."""
    square = make("square", x)
    series = constant(1)
    for ratio in (130, 88, 54, 28, 10):
        series = _not(_scaled(1 / ratio, make("mul", square, series)))
    series = _scaled(-1 / 3, make("mul", x, series))
    shifted = make("add", x, make("eq", x, constant(0)))
    quotient = make("div", make("sub", make("cos", x), value), shifted)
    return make("ifelse", make("sub", constant(0.25), square), series, quotient)


def _where(mask: Node, g: Node) -> Node:
    """The cotangent where a mask of 1 and 0 is 1, else 0."""
    return make("ifelse", make("sub", mask, constant(0.5)), g, constant(0))


def _clamp(node: Node, g: Node) -> Cotangents:
    x, low, high = node.args
    below = make("lt", x, low)
    above = make("mul", make("lt", high, x), _not(below))
    inside = make("sub", _not(below), above)
    return _where(inside, g), _where(below, g), _where(above, g)


def _ifelse(node: Node, g: Node) -> Cotangents:
    condition, none = node.args[0], constant(0)
    return None, make("ifelse", condition, g, none), make("ifelse", condition, none, g)


def _mod(node: Node, g: Node) -> Cotangents:
    x, modulus, offset = node.args
    turns = make("floor", make("div", make("sub", x, offset), modulus))
    return g, _minus(make("mul", g, turns)), None


def _pow(x: Node, value: Node) -> Node:
    (exponent,) = value.static
    return _scaled(exponent, make("pow", x, static=(exponent - 1,)))


def _sqdist(node: Node, g: Node) -> Cotangents:
    cotangent = _scaled(2, make("mul", g, make("sub", *node.args)))
    return cotangent, _minus(cotangent)


def _extreme(arg_op: str) -> Rule:
    """The rule of the largest or smallest feature, which gets the whole cotangent."""

    def rule(node: Node, g: Node) -> Cotangents:
        (a,) = node.args
        return (_where(make("one_hot", make(arg_op, a), static=(a.dim,)), g),)

    return rule


def _extract(node: Node, g: Node) -> Cotangents:
    return (make("extractT", g, static=(node.static[0], node.args[0].dim)),)


def _concat(node: Node, g: Node) -> Cotangents:
    a, b = node.args
    return make("extract", g, static=(0, a.dim)), make("extract", g, static=(a.dim, b.dim))


def _matvec(node: Node, g: Node) -> Cotangents:
    matrix, vector = node.args
    return make("tensorprod", g, vector), make("vecmatmult", g, matrix)


def _vecmat(node: Node, g: Node) -> Cotangents:
    vector, matrix = node.args
    return make("matvecmult", matrix, g), make("tensorprod", vector, g)


def _tensorprod(node: Node, g: Node) -> Cotangents:
    a, b = node.args
    return make("matvecmult", g, b), make("vecmatmult", a, g)


def _tensordot(node: Node, g: Node) -> Cotangents:
    """The cotangent of an operand: the result's cotangent contracted with the free axes of the other operand."""
    shape_a, shape_b, axes_a, axes_b = node.static[:4]
    free_a = [n for n in range(len(shape_a)) if n not in axes_a]
    free_b = [n for n in range(len(shape_b)) if n not in axes_b]
    permute = node.static[4] if len(node.static) == 5 else range(len(free_a) + len(free_b))
    shape = tuple(tensordot_loops(*node.static).extents)
    a, b = node.args

    def cotangent(
        other: Node, dims: tuple[int, ...], own: dict[int, int], others: dict[int, int], contracted: dict[int, int]
    ) -> Node:
        """`own` and `others` map axes of the result to free axes, `contracted` the other's axes to this one's."""
        order = [own[n] for n in sorted(own)] + [contracted[n] for n in sorted(contracted)]
        static = (shape, dims, tuple(others), tuple(others.values()), tuple(order))
        return make("tensordot", g, other, static=static)

    of_a, of_b = dict(zip(permute[: len(free_a)], free_a)), dict(zip(permute[len(free_a) :], free_b))
    return (
        cotangent(b, shape_b, of_a, of_b, dict(zip(axes_b, axes_a))),
        cotangent(a, shape_a, of_b, of_a, dict(zip(axes_a, axes_b))),
    )


RULES: dict[str, Rule] = {
    "add": lambda node, g: (g, g),
    "sub": lambda node, g: (g, _minus(g)),
    "mul": lambda node, g: (make("mul", g, node.args[1]), make("mul", g, node.args[0])),
    "div": _div,
    "neg": lambda node, g: (_minus(g),),
    "abs": _times(lambda x, value: make("sign", x)),
    "relu": lambda node, g: (_where(make("step", node.args[0]), g),),
    "exp": _times(lambda x, value: value),
    "log": lambda node, g: (make("div", g, node.args[0]),),
    "sqrt": _times(lambda x, value: _scaled(0.5, make("rsqrt", x))),
    "rsqrt": _times(lambda x, value: _scaled(-0.5, make("pow", value, static=(3,)))),
    "square": _times(lambda x, value: _scaled(2, x)),
    "inverse": _times(lambda x, value: _minus(make("square", value))),
    "pow": _times(_pow),
    "powf": _powf,
    "sin": _times(lambda x, value: make("cos", x)),
    "cos": _times(lambda x, value: _minus(make("sin", x))),
    "asin": _times(_asin),
    "acos": _times(lambda x, value: _minus(_asin(x, value))),
    "atan": lambda node, g: (make("div", g, make("add", constant(1), make("square", node.args[0]))),),
    "atan2": _atan2,
    "tanh": _times(lambda x, value: _not(make("square", value))),
    "sinxdivx": _times(_sinxdivx),
    "xlogx": _times(lambda x, value: make("add", make("log", x), constant(1))),
    "clamp": _clamp,
    "clampint": lambda node, g: (_where(make("diffclampint", node.args[0], static=node.static), g),),
    "ifelse": _ifelse,
    "mod": _mod,
    "sum": lambda node, g: (widened(g, node.args[0].dim),),
    "scalprod": lambda node, g: (make("mul", g, node.args[1]), make("mul", g, node.args[0])),
    "sqdist": _sqdist,
    "max": _extreme("argmax"),
    "min": _extreme("argmin"),
    "sumT": lambda node, g: (make("sum", g),),
    "elem": lambda node, g: (make("elemT", g, static=(node.args[0].dim, node.static[0])),),
    "elemT": lambda node, g: (make("elem", g, static=(node.static[1],)),),
    "extract": _extract,
    "extractT": lambda node, g: (make("extract", g, static=(node.static[0], node.args[0].dim)),),
    "concat": _concat,
    "matvecmult": _matvec,
    "vecmatmult": _vecmat,
    "tensorprod": _tensorprod,
    "tensordot": _tensordot,
    **dict.fromkeys(("sign", "step", "floor", "round", "diffclampint", "eq", "ne", "lt", "le"), _none),
    **dict.fromkeys(("argmax", "argmin", "one_hot"), _none),
}
