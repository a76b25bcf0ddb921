"""Functions of symbols that are made of others, by their names in numpy, else in torch.

Each runs on arrays and numbers too. They follow numpy in NaN, infinities and the sign of zero; the functions that
numpy lacks follow torch. Importing this module completes `operations.FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.recurrences.operations import FUNCTIONS, apply
from upsweep._compiler.recurrences.promotion import is_integer, is_whole

__all__ = ["ALIASES", "FUNCTIONS", "KNOWN", "apply", "near_function"]

KNOWN = "help(upsweep.scan) lists the functions"


def _where(condition: Any, x: Any, y: Any) -> Any:
    return apply("where", condition, x, y)


def _clip(x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = a_min if min is None else min, a_max if max is None else max
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)


def _ceil(x: Any) -> Any:
    return x if is_whole(x) else -apply("floor", -x)


def _trunc(x: Any) -> Any:
    return _where(x < 0, _ceil(x), apply("floor", x))


def _round(x: Any, decimals: int = 0) -> Any:
    if is_integer(x) and decimals >= 0:
        return x
    if not decimals:
        return apply("rint", x)
    scale = 10.0 ** abs(decimals)
    return apply("rint", x * scale) / scale if decimals > 0 else apply("rint", x / scale) * scale


def _fmin(x1: Any, x2: Any) -> Any:
    return _where((x1 != x1) | (x2 < x1), x2, x1)


def _fmax(x1: Any, x2: Any) -> Any:
    return _where((x1 != x1) | (x2 > x1), x2, x1)


def _heaviside(x: Any, values: Any) -> Any:
    return _where(x < 0, 0.0, _where(x > 0, 1.0, _where(apply("equal", x, 0), values, x)))


def _nan_to_num(
    x: Any, copy: bool = True, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    if is_whole(x):
        return x
    info = np.finfo(getattr(x, "dtype", None) or np.float64)
    posinf, neginf = info.max if posinf is None else posinf, info.min if neginf is None else neginf
    x = _where(x != x, 0.0 if nan is None else nan, x)
    x = _where(apply("equal", x, math.inf), float(posinf), x)
    return _where(apply("equal", x, -math.inf), float(neginf), x)


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise ValueError(f"update: np.select with {len(condlist)} conditions and {len(choicelist)} choices")
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        default = _where(condition, choice, default)
    return default


def _elu(x: Any, alpha: float = 1.0) -> Any:
    return _where(x > 0, x, alpha * apply("expm1", apply("minimum", x, 0.0)))


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    exact = apply("logaddexp", x, 0.0) if beta == 1 else apply("logaddexp", x * beta, 0.0) / beta
    # torch is linear from 20 on against overflow, which nothing has here: there the exact value is within 3e-9.
    return exact if threshold == 20 else _where(x * beta > threshold, x, exact)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + apply("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + apply("erf", x * math.sqrt(0.5)))


FUNCTIONS.update({
    "positive": lambda x: x,
    "ceil": _ceil,
    "trunc": _trunc,
    "round": _round,
    "clip": _clip,
    "divmod": lambda x1, x2: (apply("floor_divide", x1, x2), apply("remainder", x1, x2)),
    "fmin": _fmin,
    "fmax": _fmax,
    "isnan": lambda x: apply("not_equal", x, x),
    "isfinite": lambda x: abs(x) < math.inf,
    "isinf": lambda x: apply("equal", abs(x), math.inf),
    "signbit": lambda x: apply("copysign", 1.0, x) < 0,
    "heaviside": _heaviside,
    "nan_to_num": _nan_to_num,
    "select": _select,
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "rsqrt": lambda x: 1 / apply("sqrt", x),
    "lerp": lambda start, end, weight: start + weight * (end - start),
    "relu": lambda x: _where(x <= 0, 0, x),
    "leaky_relu": lambda x, negative_slope=0.01: _where(x > 0, x, negative_slope * x),
    "elu": _elu,
    "gelu": _gelu,
    "silu": lambda x: x * apply("sigmoid", x),
    "softplus": _softplus,
    "logsigmoid": lambda x: -apply("logaddexp", -x, 0.0),
})  # fmt: skip

ALIASES = {
    "absolute": "abs", "fabs": "abs", "true_divide": "divide", "mod": "remainder", "float_power": "power",
    "bitwise_not": "invert", "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
    "around": "round", "round_": "round", "fix": "trunc",
    "expit": "sigmoid", "log_expit": "logsigmoid", "log_sigmoid": "logsigmoid",
    "radians": "deg2rad", "degrees": "rad2deg",
    # torch
    "sub": "subtract", "mul": "multiply", "div": "divide", "truediv": "divide", "floordiv": "floor_divide",
    "neg": "negative", "pow": "power", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq": "equal", "ne": "not_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "clamp": "clip", "special_expit": "sigmoid", "special_erf": "erf",
}  # fmt: skip
"""Other names of the functions, in numpy, scipy.special and torch."""


def near_function(name: str) -> str:
    """``; did you mean X?`` for a name that is a letter or two off, or nothing."""
    return ops.suggestion(name, [*FUNCTIONS], cutoff=0.75)
