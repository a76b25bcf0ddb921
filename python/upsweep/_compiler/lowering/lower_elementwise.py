"""Lowering rules of elementwise operations, from the value numbers of the operands to that of the result.

The operands of comparisons are ordered so that NaN gives the value of the operation's numpy function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upsweep._compiler.lowering.builder import Builder

__all__ = ["RULES"]

Static = tuple[Any, ...]
Rule = Callable[[Builder, tuple[int, ...], Static], int]


def _same(op: str) -> Rule:
    """The instruction of the same name."""
    return lambda b, args, static: b.call(op, *args)


def _compared(comparison: str) -> Rule:
    return lambda b, args, static: b.choose(comparison, args[0], args[1], b.const(1), b.const(0))


def _sign(b: Builder, args: tuple[int, ...], static: Static) -> int:
    zero = b.const(0)
    below = b.choose("lt", args[0], zero, b.const(-1), zero)
    return b.choose("lt", zero, args[0], b.const(1), below)


def _step(b: Builder, args: tuple[int, ...], static: Static) -> int:
    return b.choose("lt", args[0], b.const(0), b.const(0), b.const(1))


def _relu(b: Builder, args: tuple[int, ...], static: Static) -> int:
    return b.choose("lt", args[0], b.const(0), b.const(0), args[0])


def _at_zero(value: float, rule: Callable[[Builder, int], int]) -> Rule:
    """`value` where the argument is 0, else the rule's."""
    return lambda b, args, static: b.choose("eq", args[0], b.const(0), b.const(value), rule(b, args[0]))


def _pow(b: Builder, args: tuple[int, ...], static: Static) -> int:
    """By repeated squaring."""
    power, square = b.const(1), args[0]
    exponent = abs(static[0])
    while exponent:
        if exponent % 2:
            power = b.mul(power, square)
        exponent //= 2
        if exponent:
            square = b.mul(square, square)
    return power if static[0] >= 0 else b.div(b.const(1), power)


def _round(b: Builder, args: tuple[int, ...], static: Static) -> int:
    scale = b.const(10.0 ** static[0])
    x = b.mul(args[0], scale)
    magnitude = b.call("abs", x)
    whole = b.call("floor", magnitude)
    up = b.choose("le", b.const(0.5), b.sub(magnitude, whole), b.const(1), b.const(0))
    rounded = b.add(whole, up)
    return b.div(b.choose("lt", x, b.const(0), b.call("neg", rounded), rounded), scale)


def _clamp(b: Builder, args: tuple[int, ...], static: Static) -> int:
    x, low, high = args
    return b.choose("lt", x, low, low, b.choose("lt", high, x, high, x))


def _clampint(b: Builder, args: tuple[int, ...], static: Static) -> int:
    return _clamp(b, (args[0], *map(b.const, static)), ())


def _diffclampint(b: Builder, args: tuple[int, ...], static: Static) -> int:
    zero, one = b.const(0), b.const(1)
    below_top = b.choose("lt", b.const(static[1]), args[0], zero, one)
    return b.choose("lt", args[0], b.const(static[0]), zero, below_top)


def _ifelse(b: Builder, args: tuple[int, ...], static: Static) -> int:
    return b.choose("le", b.const(0), args[0], args[1], args[2])


def _mod(b: Builder, args: tuple[int, ...], static: Static) -> int:
    x, modulus, offset = args
    whole = b.call("floor", b.div(b.sub(x, offset), modulus))
    return b.sub(x, b.mul(modulus, whole))


RULES: dict[str, Rule] = {
    **{op: _same(op) for op in ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "floor")},
    **{op: _same(op) for op in ("sin", "cos", "asin", "acos", "atan", "atan2", "tanh")},
    **{op: _compared(op) for op in ("eq", "ne", "lt", "le")},
    "sign": _sign,
    "step": _step,
    "relu": _relu,
    "rsqrt": _at_zero(0, lambda b, x: b.call("rsqrt", x)),
    "square": lambda b, args, static: b.mul(args[0], args[0]),
    "inverse": lambda b, args, static: b.div(b.const(1), args[0]),
    "pow": _pow,
    "powf": _same("pow"),
    "sinxdivx": _at_zero(1, lambda b, x: b.div(b.call("sin", x), x)),
    "xlogx": _at_zero(0, lambda b, x: b.mul(x, b.call("log", x))),
    "round": _round,
    "clamp": _clamp,
    "clampint": _clampint,
    "diffclampint": _diffclampint,
    "ifelse": _ifelse,
    "mod": _mod,
}
