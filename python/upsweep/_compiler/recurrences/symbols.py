"""Symbolic numbers, with which an update is called once to trace it.

Operators and numpy's scalar functions (``np.exp``, ``np.where``, ...) of symbols return symbols, with the dtype
that numpy would return. A symbol has no value: Python cannot branch on it.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node, constant, make, operation

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_BOOL = np.dtype(bool)


def _user_line() -> str:
    """The line of the user's program that is running: ``FILE, line 3: the text of the line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(
        (_PACKAGE, "<frozen", "<__array_function")
    ):
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}, line {line}" + (f": {text}" if text else "")


def _refusal(what: str, remedy: str) -> TypeError:
    return TypeError(f"update: {what} in {_user_line()}\n{remedy}")


def _unknown(name: str) -> TypeError:
    return _refusal(f"np.{name} is not known for symbolic values", _known())


def _known() -> str:
    return f"known are {', '.join(sorted(FUNCTIONS))}"


class _NoAttribute(TypeError, AttributeError):
    """A TypeError, as for every refused operation, that `hasattr` and `getattr` also accept."""


class Symbol:
    """A number whose value is known only when the scan runs; dtype None stands for Python's own numbers."""

    __slots__ = ("dtype", "node")
    node: Node
    dtype: np.dtype[Any] | None

    def __init__(self, node: Node, dtype: np.dtype[Any] | None) -> None:
        self.node, self.dtype = node, dtype

    def __repr__(self) -> str:
        return f"<symbolic {self.dtype or 'number'}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        remedy = f"take numpy's functions of numbers; {_known()}, and the method astype"
        raise _NoAttribute(*_refusal(f"a symbolic number has no attribute {name!r}", remedy).args)

    def astype(self, dtype: Any) -> Symbol:
        """Cast: truncated to an integer, which is computed in float64; 0 or 1 for bool; a float is rounded only
        when it is written."""
        try:
            target = np.dtype(dtype)
        except TypeError as error:
            raise _refusal(f"astype({dtype!r})", str(error)) from None
        if target == _BOOL:
            return Symbol(_truth(self), _BOOL)
        if target.kind not in "iuf" or (target.kind == "f" and target.itemsize > 8):
            raise _refusal(f"astype({dtype!r})", "a number is a float, an integer or bool")
        if target.kind == "f" or self.dtype == _BOOL:
            return Symbol(self.node, floating(target))
        below = apply("negative", apply("floor", apply("negative", self)))
        whole = apply("where", apply("less", self, 0), below, apply("floor", self))
        return Symbol(whole.node, floating(target))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = _BY_UFUNC.get(ufunc)
        if name is None or method != "__call__" or keywords:
            raise _unknown(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
        return apply(name, *inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, keywords: Any) -> Any:
        name = {np.where: "where", np.clip: "clip"}.get(func)
        if name is None or keywords:
            raise _unknown(func.__name__)
        return apply(name, *args)

    def __pos__(self) -> Symbol:
        return self

    __hash__ = object.__hash__


def operand(value: Any) -> tuple[Node, Any]:
    """The node of an operand, and its part in dtype promotion: Python's own numbers are weak."""
    if isinstance(value, Symbol):
        return value.node, 1.0 if value.dtype is None else value.dtype
    if isinstance(value, (bool, np.bool_)):
        return constant(float(value)), _BOOL
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return constant(float(value)), 1.0
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        return constant(float(value)), floating(value.dtype)
    if isinstance(value, np.ndarray):
        raise TypeError(
            f"update: an array of shape {value.shape} beside symbolic values in {_user_line()}\n"
            "the update is of single numbers: hand the array over in xs, where it broadcasts, or in init"
        )
    raise TypeError(
        f"update: expected a number, got {type(value).__module__}.{type(value).__qualname__} in {_user_line()}"
    )


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that numbers of a dtype are computed in: integers in float64."""
    return np.dtype(np.float64) if dtype.kind in "iu" else dtype


def _result(kinds: list[Any]) -> np.dtype[Any] | None:
    """The promoted dtype; integers become float64. None if there are only Python's own numbers."""
    if all(isinstance(kind, float) for kind in kinds):
        return None
    return floating(np.result_type(*kinds))


def _plain(op: str) -> Callable[..., Symbol]:
    def function(*values: Any) -> Symbol:
        nodes, kinds = zip(*map(operand, values))
        dtype = _result(list(kinds))
        return Symbol(operation(op, *nodes), np.dtype(np.float64) if dtype == _BOOL else dtype)

    return function


def _compared(op: str) -> Callable[[Any, Any], Symbol]:
    return lambda a, b: Symbol(make(op, operand(a)[0], operand(b)[0]), _BOOL)


def _truth(value: Any) -> Node:
    """The node of ``value != 0``."""
    node, kind = operand(value)
    return node if kind == _BOOL and not isinstance(kind, float) else make("ne", node, constant(0))


def _where(*values: Any) -> Symbol:
    if len(values) != 3:
        raise TypeError(f"update: np.where takes a condition and two values in {_user_line()}")
    (a, kind_a), (b, kind_b) = map(operand, values[1:])
    dtype = _result([kind_a, kind_b])
    return Symbol(operation("where", _truth(values[0]), a, b), dtype)


def _power(base: Any, exponent: Any) -> Symbol:
    (a, kind_a), (b, kind_b) = operand(base), operand(exponent)
    dtype = _result([kind_a, kind_b])
    if b.op == "constant":
        number = b.static[0]
        if number == 0.5:
            return Symbol(make("sqrt", a), dtype)
        if number == int(number) and abs(number) <= 64:
            return Symbol(make("pow", a, static=(int(number),)) if number != 1 else a, dtype)
    return Symbol(make("powf", a, b), dtype)


_SIMPLE = {
    **{op: op for op in ("add", "abs", "exp", "log", "sqrt", "square", "sin", "cos", "tanh", "floor")},
    **{op: op for op in ("minimum", "maximum", "logaddexp")},
    "subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "reciprocal": "inverse",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _plain(op) for name, op in _SIMPLE.items()},
    "less": _compared("lt"),
    "less_equal": _compared("le"),
    "greater": lambda a, b: apply("less", b, a),
    "greater_equal": lambda a, b: apply("less_equal", b, a),
    "equal": _compared("eq"),
    "not_equal": _compared("ne"),
    "isnan": lambda x: apply("not_equal", x, x),
    "logical_and": lambda a, b: Symbol(make("mul", _truth(a), _truth(b)), _BOOL),
    "logical_or": lambda a, b: Symbol(operation("maximum", _truth(a), _truth(b)), _BOOL),
    "logical_xor": lambda a, b: Symbol(make("ne", _truth(a), _truth(b)), _BOOL),
    "logical_not": lambda a: Symbol(make("sub", constant(1), _truth(a)), _BOOL),
    "where": _where,
    "clip": lambda x, low, high: apply("minimum", apply("maximum", x, low), high),
    "power": _power,
    "floor_divide": lambda a, b: apply("floor", apply("divide", a, b)),
    "remainder": lambda a, b: a - b * apply("floor", apply("divide", a, b)),
    "sign": lambda x: apply("where", x != x, x, _plain("sign")(x)),  # NaN stays NaN, as in numpy
    "sigmoid": lambda x: 1 / (1 + apply("exp", -x)),
}
"""Functions of symbols and numbers by their names in numpy; sigmoid has none there."""

_BY_UFUNC = {getattr(np, name): name for name in FUNCTIONS if isinstance(getattr(np, name, None), np.ufunc)}
_BY_UFUNC.update({np.absolute: "abs", np.bitwise_and: "logical_and", np.bitwise_or: "logical_or",
                  np.bitwise_xor: "logical_xor", np.invert: "logical_not", np.fabs: "abs", np.float_power:
                  "power"})  # fmt: skip


def apply(name: str, *values: Any) -> Any:
    """Call a function by name, of symbols, or of arrays and numbers if none is symbolic."""
    if any(isinstance(value, Symbol) for value in values):
        return FUNCTIONS[name](*values)
    if name == "sigmoid":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-np.asarray(values[0])))
    return getattr(np, name)(*values)


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    return lambda *operands: apply(name, *(operands[::-1] if reflected else operands))


def _refusing(what: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _refusal(what, remedy)

    return refuse


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "logical_and", "or": "logical_or", "xor": "logical_xor",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "neg": "negative", "abs": "abs", "invert": "logical_not",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_function))
    if hasattr(int, f"__r{_name}__"):  # comparisons are reflected by Python
        setattr(Symbol, f"__r{_name}__", _operator(_function, reflected=True))

_NUMBER = "a symbolic value as a Python number", "use numpy's functions (np.exp, np.tanh, ...), not those of math"
for _name, _refused in {
    "bool": (
        "a Python branch on a symbolic value",
        "the update is traced once, and its values are not known then: choose by np.where(condition, a, b), "
        "combine conditions by & | ~ in place of and, or, not and chains (a < b < c), and take np.minimum, "
        "np.maximum and np.clip in place of min and max",
    ),
    **dict.fromkeys(("float", "int", "index", "complex"), _NUMBER),
    "iter": ("a symbolic number is iterated over", "several states, inputs or outputs are tuples"),
    "getitem": (
        "an index of a symbolic number",
        "the update is of single numbers, of all columns alike; several states, inputs or outputs are tuples",
    ),
    "round": ("a symbolic value is rounded", "np.floor(x + 0.5) is the integer that is nearest"),
    "array": (
        "a symbolic value as an array",
        "the update is of single numbers; use np.where and ufuncs, and x.astype(dtype) for np.float32(x)",
    ),
}.items():
    setattr(Symbol, f"__{_name}__", _refusing(*_refused))
