"""Lowering rules of elementwise operations.

A rule is a function of the builder, the value numbers of the operands and the static arguments. The operands of
comparisons are ordered so that NaN gives the value of the operation's numpy function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from upsweep._compiler.lowering.builder import Builder

Rule = Callable[..., int]


def _same(op: str) -> Rule:
    """The instruction of the same name."""
    return lambda b, *args: b.call(op, *args)


def _compared(comparison: str) -> Rule:
    return lambda b, x, y: b.choose(comparison, x, y, b.const(1), b.const(0))


def _sign(b: Builder, x: int) -> int:
    zero = b.const(0)
    below = b.choose("lt", x, zero, b.const(-1), zero)
    return b.choose("lt", zero, x, b.const(1), below)


def _at_zero(value: float, rule: Rule) -> Rule:
    """`value` where the argument is 0, else the rule's."""
    return lambda b, x: b.choose("eq", x, b.const(0), b.const(value), rule(b, x))


def _pow(b: Builder, x: int, exponent: int) -> int:
    """By repeated squaring."""
    power, square, rest = b.const(1), x, abs(exponent)
    while rest:
        if rest % 2:
            power = b.mul(power, square)
        rest //= 2
        if rest:
            square = b.mul(square, square)
    return power if exponent >= 0 else b.div(b.const(1), power)


def _round(b: Builder, x: int, digits: int) -> int:
    scale = b.const(10.0**digits)
    x = b.mul(x, scale)
    magnitude = b.call("abs", x)
    whole = b.call("floor", magnitude)
    up = b.choose("le", b.const(0.5), b.sub(magnitude, whole), b.const(1), b.const(0))
    rounded = b.add(whole, up)
    return b.div(b.choose("lt", x, b.const(0), b.call("neg", rounded), rounded), scale)


def _clamp(b: Builder, x: int, low: int, high: int) -> int:
    return b.choose("lt", x, low, low, b.choose("lt", high, x, high, x))


def _diffclampint(b: Builder, x: int, low: float, high: float) -> int:
    zero, one = b.const(0), b.const(1)
    below_top = b.choose("lt", b.const(high), x, zero, one)
    return b.choose("lt", x, b.const(low), zero, below_top)


def _mod(b: Builder, x: int, modulus: int, offset: int) -> int:
    """x - modulus * floor((x - offset) / modulus).

    The rounded quotient, often a product with the inverse, may be on the wrong side of an integer (in float64
    49 * (1 / 49) < 1), so the quotients next to it are tried too. If none gives a result of that size, x is too
    large for its digits to tell, and the result is NaN.
    """
    zero, one, size = b.const(0), b.const(1), b.call("abs", modulus)
    direction = b.choose("lt", modulus, zero, b.const(-1), one)
    x = b.mul(b.sub(x, offset), direction)
    whole = b.call("floor", b.div(x, size))
    finite = b.choose("eq", size, b.const(math.inf), one, size)  # the quotient is 0, and infinity times 0 is NaN
    rest, less = b.sub(x, b.mul(finite, whole)), b.sub(x, b.mul(size, b.add(whole, one)))
    rest = b.choose("le", zero, less, less, rest)
    rest = b.choose("lt", rest, zero, b.add(rest, size), rest)
    rest = b.choose("le", b.call("abs", rest), b.mul(size, b.const(1.25)), rest, b.const(math.nan))
    return b.add(b.mul(rest, direction), offset)


RULES: dict[str, Rule] = {
    **{op: _same(op) for op in ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "floor")},
    **{op: _same(op) for op in ("sin", "cos", "asin", "acos", "atan", "atan2", "tanh")},
    **{op: _compared(op) for op in ("eq", "ne", "lt", "le")},
    "sign": _sign,
    "step": lambda b, x: b.choose("lt", x, b.const(0), b.const(0), b.const(1)),
    "relu": lambda b, x: b.choose("lt", x, b.const(0), b.const(0), x),
    "rsqrt": _at_zero(0, _same("rsqrt")),
    "square": lambda b, x: b.mul(x, x),
    "inverse": lambda b, x: b.div(b.const(1), x),
    "pow": _pow,
    "powf": _same("pow"),
    "sinxdivx": _at_zero(1, lambda b, x: b.div(b.call("sin", x), x)),
    "xlogx": _at_zero(0, lambda b, x: b.mul(x, b.call("log", x))),
    "round": _round,
    "clamp": _clamp,
    "clampint": lambda b, x, low, high: _clamp(b, x, b.const(low), b.const(high)),
    "diffclampint": _diffclampint,
    "ifelse": lambda b, condition, x, y: b.choose("le", b.const(0), condition, x, y),
    "mod": _mod,
}
