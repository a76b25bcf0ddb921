"""Symbolic derivatives of formulas: a vector-Jacobian product for each operation, and operators built on them.

`cotangents` applies the rules by reverse-mode differentiation. A derivative is a formula again, so that
derivatives of any order exist. Conventions follow KeOps: the derivative of sqrt at 0 is 0, and so is that of asin
and acos at 1, since rsqrt(0) is 0; steps, comparisons and indices of extremes have none. Where KeOps gives NaN
(sinxdivx at 0, powf of 0 for its exponent), these rules give the limit. The branch of a select that is not chosen
contributes 0, even where its derivative is infinite or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.cotangents import Cotangents, Rule, pull_back, widened
from upsweep._compiler.formulas.nodes import Node, constant, make, operation, variable, variables, zero
from upsweep._compiler.formulas.numpy_semantics import tensordot_loops
from upsweep._compiler.formulas.rules import simplify


def gradient(formula: Node, of: Node, cotangent: Node | None = None) -> Node:
    """The derivative of ``sum(cotangent * formula)`` with respect to a variable, for one pair: KeOps' Grad.

    The cotangent has the formula's dim, or is a number for all its features; by default it is 1 if the formula is
    a number. The result is a formula of the variable's dim.

    >>> x, y, e = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "i")
    >>> gradient(make("exp", make("neg", make("sqdist", x, y))), x, e)
    ((-2) * (Var(2,1,0) * Exp(-SqDist(Var(0,3,0),Var(1,3,1))))) * (Var(0,3,0) - Var(1,3,1))
    """
    return gradients(formula, (of,), cotangent)[0]


def gradients(formula: Node, of: tuple[Node, ...], cotangent: Node | None = None) -> tuple[Node, ...]:
    """The `gradient` with respect to each of some variables, by one reverse pass."""
    if cotangent is None and formula.dim == 1:
        cotangent = constant(1)
    if cotangent is None or cotangent.dim not in (1, formula.dim):
        actual = "none" if cotangent is None else f"{cotangent!r} of dim {cotangent.dim}"
        raise ValueError(f"the gradient of {formula!r} takes a cotangent of dim {formula.dim}, not {actual}")
    for each in of:
        if each.op != "variable":
            raise ValueError(f"gradients are taken of variables, not of {each!r}")
    formula = simplify(formula)  # first: subexpressions shared with the derivative are then the same nodes
    results = pull_back({formula: widened(cotangent, formula.dim)}, of, RULES, "ifelse")
    return tuple(zero(each.dim) if result is None else simplify(result) for each, result in zip(of, results))


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


def _times(factor: Callable[..., Node]) -> Rule:
    """The rule of a function of one operand: the cotangent times a factor, a function of value and operand."""
    return lambda g, value, x: (make("mul", g, factor(value, x)),)


def _minus(node: Node) -> Node:
    return make("neg", node)


def _scaled(number: float, node: Node) -> Node:
    return make("mul", constant(number), node)


def _not(node: Node) -> Node:
    return make("sub", constant(1), node)


def _div(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    quotient = make("div", g, b)
    return quotient, _minus(make("mul", quotient, value))


def _powf(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    # b * a**(b - 1) is 0 where b is 0, also at an `a` of 0, whose inverse is infinite, and at NaN.
    is_number = make("lt", constant(0), make("abs", a))
    is_constant = make("mul", make("eq", b, constant(0)), _not(is_number))
    lower = make("powf", a, make("add", make("sub", b, constant(1)), is_constant))
    log = make("log", make("add", a, make("eq", a, constant(0))))  # log is 0 at 0, the limit of log(a) * a**b
    return make("mul", g, make("mul", b, lower)), make("mul", g, make("mul", log, value))


def _asin(x: Node) -> Node:
    return make("rsqrt", _not(make("square", x)))


def _atan2(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    square = make("add", make("square", a), make("square", b))
    scaled = make("div", g, make("add", square, make("eq", square, constant(0))))  # both 0: no direction, 0
    return make("mul", scaled, b), _minus(make("mul", scaled, a))


def _sinxdivx(value: Node, x: Node) -> Node:
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


def _clamp(g: Node, value: Node, x: Node, low: Node, high: Node) -> Cotangents:
    below = make("lt", x, low)
    above = make("mul", make("lt", high, x), _not(below))
    inside = make("sub", _not(below), above)
    return _where(inside, g), _where(below, g), _where(above, g)


def _select(g: Node, value: Node, condition: Node, a: Node, b: Node, op: str = "") -> Cotangents:
    none, op = constant(0), op or value.op
    return None, operation(op, condition, g, none), operation(op, condition, none, g)


def _mod(g: Node, value: Node, x: Node, modulus: Node, offset: Node) -> Cotangents:
    turns = make("round", make("div", make("sub", x, value), modulus), static=(0,))
    return g, _minus(make("mul", g, turns)), None


def _pow(value: Node, x: Node) -> Node:
    (exponent,) = value.static
    if exponent == 0:  # 0 * x**-1 would be NaN at 0
        return constant(0)
    return _scaled(exponent, make("pow", x, static=(exponent - 1,)))


def _product(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    return make("mul", g, b), make("mul", g, a)


def _sqdist(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    cotangent = _scaled(2, make("mul", g, make("sub", a, b)))
    return cotangent, _minus(cotangent)


def _extreme(arg_op: str) -> Rule:
    """The rule of the largest or smallest feature, which gets the whole cotangent."""
    return lambda g, value, a: (_where(make("one_hot", make(arg_op, a), static=(a.dim,)), g),)


def _concat(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    return make("extract", g, static=(0, a.dim)), make("extract", g, static=(a.dim, b.dim))


def _tensordot(g: Node, value: Node, a: Node, b: Node) -> Cotangents:
    """The cotangent of an operand: the result's cotangent contracted with the free axes of the other operand."""
    shape_a, shape_b, axes_a, axes_b = value.static[:4]
    free_a = [n for n in range(len(shape_a)) if n not in axes_a]
    free_b = [n for n in range(len(shape_b)) if n not in axes_b]
    permute = value.static[4] if len(value.static) == 5 else range(len(free_a) + len(free_b))
    shape = tuple(tensordot_loops(*value.static).extents)

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


def _none(g: Node, value: Node, *args: Node) -> Cotangents:
    return (None,) * len(args)


RULES: dict[str, Rule] = {
    "add": lambda g, value, a, b: (g, g),
    "sub": lambda g, value, a, b: (g, _minus(g)),
    "mul": _product,
    "div": _div,
    "neg": lambda g, value, x: (_minus(g),),
    "abs": _times(lambda value, x: make("sign", x)),
    "relu": lambda g, value, x: (_where(make("step", x), g),),
    "exp": _times(lambda value, x: value),
    "log": lambda g, value, x: (make("div", g, x),),
    "sqrt": _times(lambda value, x: _scaled(0.5, make("rsqrt", x))),
    "rsqrt": _times(lambda value, x: _scaled(-0.5, make("pow", value, static=(3,)))),
    "square": _times(lambda value, x: _scaled(2, x)),
    "inverse": _times(lambda value, x: _minus(make("square", value))),
    "pow": _times(_pow),
    "powf": _powf,
    "sin": _times(lambda value, x: make("cos", x)),
    "cos": _times(lambda value, x: _minus(make("sin", x))),
    "asin": _times(lambda value, x: _asin(x)),
    "acos": _times(lambda value, x: _minus(_asin(x))),
    "atan": lambda g, value, x: (make("div", g, make("add", constant(1), make("square", x))),),
    "atan2": _atan2,
    "tanh": _times(lambda value, x: _not(make("square", value))),
    "sinxdivx": _times(_sinxdivx),
    "xlogx": _times(lambda value, x: make("add", make("log", x), constant(1))),
    "clamp": _clamp,
    "clampint": lambda g, value, x: (_where(make("diffclampint", x, static=value.static), g),),
    "ifelse": _select,
    "mod": _mod,
    "sum": lambda g, value, x: (widened(g, x.dim),),
    "scalprod": _product,
    "sqdist": _sqdist,
    "max": _extreme("argmax"),
    "min": _extreme("argmin"),
    "sumT": lambda g, value, x: (make("sum", g),),
    "elem": lambda g, value, x: (make("elemT", g, static=(x.dim, value.static[0])),),
    "elemT": lambda g, value, x: (make("elem", g, static=(value.static[1],)),),
    "extract": lambda g, value, x: (make("extractT", g, static=(value.static[0], x.dim)),),
    "extractT": lambda g, value, x: (make("extract", g, static=(value.static[0], x.dim)),),
    "concat": _concat,
    "matvecmult": lambda g, value, matrix, x: (make("tensorprod", g, x), make("vecmatmult", g, matrix)),
    "vecmatmult": lambda g, value, x, matrix: (make("matvecmult", matrix, g), make("tensorprod", x, g)),
    "tensorprod": lambda g, value, a, b: (make("matvecmult", g, b), make("vecmatmult", a, g)),
    "tensordot": _tensordot,
    **dict.fromkeys(
        ("sign", "step", "floor", "round", "diffclampint", "eq", "ne", "lt", "le", "argmax", "argmin", "one_hot"),
        _none,
    ),
}
"""The vector-Jacobian product of each operation, a function of the cotangent, the node and its operands."""


# ---- operations of recurrences ---------------------------------------------------------------------------------


def _extreme_of_two(g: Node, value: Node, x: Node, y: Node) -> Cotangents:
    """To the operand that is the result; of equal ones to the first."""
    first = make("le", x, y) if value.op == "minimum" else make("le", y, x)
    return _select(g, value, first, x, y, "where")[1:]


def _logaddexp(g: Node, value: Node, x: Node, y: Node) -> Cotangents:
    """In proportion to the exponentials; a half each for equal infinities."""
    share = make("div", constant(1), make("add", constant(1), make("exp", make("sub", y, x))))
    share = operation("where", make("eq", x, y), constant(0.5), share)
    first = make("mul", g, share)
    return first, make("sub", g, first)


def _hypot(g: Node, value: Node, x: Node, y: Node) -> Cotangents:
    """In proportion to the sides; 0 where both are 0."""
    scale = operation("where", make("eq", value, constant(0)), constant(0), make("div", g, value))
    return make("mul", scale, x), make("mul", scale, y)


def _fmod(g: Node, value: Node, x: Node, y: Node) -> Cotangents:
    """x - n y, with n the quotient without its fraction, found from the value."""
    return g, _minus(make("mul", g, operation("rint", make("div", make("sub", x, value), y))))


def _copysign(g: Node, value: Node, x: Node, y: Node) -> Cotangents:
    return operation("where", make("eq", value, x), g, _minus(g)), None


def _not_square(x: Node) -> Node:
    """1 - x^2, as a product, which loses no bits near 1."""
    return make("mul", _not(x), make("add", constant(1), x))


SCALAR_RULES: dict[str, Rule] = {
    **RULES, **dict.fromkeys(ops.INTEGER, _none), "where": _select, "minimum": _extreme_of_two,
    "maximum": _extreme_of_two, "logaddexp": _logaddexp,
    "exp2": _times(lambda value, x: _scaled(math.log(2), value)),
    "expm1": _times(lambda value, x: make("exp", x)),
    "log2": lambda g, value, x: (make("div", _scaled(1 / math.log(2), g), x),),
    "log10": lambda g, value, x: (make("div", _scaled(1 / math.log(10), g), x),),
    "log1p": lambda g, value, x: (make("div", g, make("add", constant(1), x)),),
    "tan": _times(lambda value, x: make("add", constant(1), make("square", value))),
    "sinh": _times(lambda value, x: operation("cosh", x)),
    "cosh": _times(lambda value, x: operation("sinh", x)),
    "asinh": _times(lambda value, x: make("rsqrt", make("add", constant(1), make("square", x)))),
    "acosh": _times(lambda value, x: make("rsqrt", _minus(_not_square(x)))),
    "atanh": lambda g, value, x: (make("div", g, _not_square(x)),),
    "erf": _times(lambda value, x: _scaled(2 / math.sqrt(math.pi), make("exp", _minus(make("square", x))))),
    "sigmoid": _times(lambda value, x: make("mul", value, _not(value))),
    "hypot": _hypot, "fmod": _fmod, "copysign": _copysign, "rint": _none,
}  # fmt: skip
"""The rules of the operations of recurrences, those of `ops.SCALAR` and `ops.INTEGER` included."""
