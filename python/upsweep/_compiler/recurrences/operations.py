"""Functions of symbols by their names in numpy, and the operators of symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, make, operation
from upsweep._compiler.recurrences import integers
from upsweep._compiler.recurrences.promotion import (
    BOOL,
    FLOAT64,
    common_dtype,
    convert,
    holds_integers,
    is_integer,
    is_integer_kind,
    is_truth,
    is_whole,
    operand,
    operands,
    result_dtype,
)
from upsweep._compiler.recurrences.symbols import (
    Symbol,
    Vector,
    as_objects,
    as_vector,
    is_tensor,
    number_of,
    refusal,
)

_MOST_NUMBERS = 64  # of an array beside symbols: a matrix of 8 by 8

# What operations are of bool, as in numpy and torch. Others take it as 0.0 and 1.0.
_OF_BOOL = {
    "add": "logical_or", "maximum": "logical_or", "mul": "logical_and", "minimum": "logical_and",
    "abs": "positive", "floor": "positive",
}  # fmt: skip


def _of_arity(op: str, function: Callable[..., Symbol]) -> Callable[..., Symbol]:
    """The function with as many parameters as its operation has, for messages."""
    arity = ops.SCALAR[op][0] if op in ops.SCALAR else ops.lookup(op).arity
    return (lambda x: function(x)) if arity == 1 else (lambda x1, x2: function(x1, x2))


def _arithmetic(op: str, of_integers: Callable[..., Node]) -> Callable[..., Symbol]:
    """A function of floats, or of integers, whose result is wrapped to their dtype."""

    def function(*values: Any) -> Symbol:
        nodes, dtype = operands(values)
        if holds_integers(dtype):
            return Symbol(integers.wrapped(of_integers(dtype, *nodes), dtype), dtype)
        if dtype == BOOL and op in ("sub", "neg"):
            raise refusal(
                "a minus sign of bool",
                "take ~d for not d, c ^ d where they differ, and d.astype(int) for 0 and 1",
            )
        if dtype == BOOL and op in _OF_BOOL:
            return apply(_OF_BOOL[op], *values)
        return Symbol(operation(op, *nodes), FLOAT64 if dtype == BOOL else dtype)

    return _of_arity(op, function)


_INTEGER_REMEDY = (
    "cast it by astype(int); beside xs of a float, an integer state begins as init=np.int64(1), not 1, and a "
    "generator as np.uint64(seed)"
)


def _of_bits(name: str, op: str) -> Callable[..., Symbol]:
    """A bit operation of integers; the logical operation of bool."""

    def function(*values: Any) -> Symbol:
        are_bool = all(is_truth(operand(value)[1]) for value in values)
        if all(map(is_whole, values)) and not are_bool:
            nodes, dtype = operands(values)
            if op == "inot":
                return Symbol(integers.wrapped(operation("ixor", *nodes, integers.integer(-1)), dtype), dtype)
            return Symbol(operation(op, *nodes), dtype)
        if not are_bool:
            raise refusal("a bit operation of a float", f"compare it, (x > 0) & d, or {_INTEGER_REMEDY}")
        return FUNCTIONS[name](*values)

    return function


def _shifted(op: str) -> Callable[..., Symbol]:
    def function(*values: Any) -> Symbol:
        nodes, dtype = operands(values)
        if not holds_integers(dtype):
            raise refusal("a shift of a float", _INTEGER_REMEDY)
        name = integers.by_sign(op, dtype) if op == "ishr" else op
        return Symbol(integers.wrapped(operation(name, *nodes), dtype), dtype)

    return function


def _plain(op: str) -> Callable[..., Symbol]:
    def function(*values: Any) -> Symbol:
        pairs = [*map(operand, values)]
        dtype = result_dtype([kind for _, kind in pairs])
        nodes = [convert(node, kind, dtype) for node, kind in pairs]
        return Symbol(operation(op, *nodes), FLOAT64 if dtype == BOOL else dtype)

    return _of_arity(op, function)


def _compared(op: str) -> Callable[[Any, Any], Symbol]:
    def function(a: Any, b: Any) -> Symbol:
        nodes, dtype = operands((a, b))
        if not holds_integers(dtype):
            return Symbol(make(op, *nodes), BOOL)
        name = f"i{op}" if op in ("eq", "ne") else integers.by_sign(f"i{op}", dtype)
        return Symbol(operation(name, *nodes), BOOL)

    return function


def _truth(value: Any) -> Node:
    """The node of ``value != 0``."""
    node, kind = operand(value)
    if is_integer_kind(kind):
        if node.op == "integer":
            return constant(float(node.static[0] != 0))
        return operation("ine", node, integers.integer(0))
    return node if is_truth(kind) else make("ne", node, constant(0))


def _where(condition: Any, x: Any, y: Any) -> Symbol:
    nodes, dtype = operands((x, y))
    return Symbol(operation("where", _truth(condition), *nodes), dtype)


def _power(base: Any, exponent: Any) -> Symbol:
    (a, kind_a), (b, kind_b) = operand(base), operand(exponent)
    dtype = common_dtype([kind_a, kind_b])
    if holds_integers(dtype):
        if b.op != "integer" or not 0 <= b.static[0] <= 64:
            raise refusal("an integer to a power that is no number from 0 to 64", "cast the base by astype(float)")
        return Symbol(integers.power(convert(a, kind_a, dtype), b.static[0], dtype), dtype)
    a, b = convert(a, kind_a, dtype), convert(b, kind_b, dtype)
    if b.op == "constant":
        number = b.static[0]
        if number == 0.5:
            return Symbol(make("sqrt", a), dtype)
        if number == int(number) and abs(number) <= 64:
            return Symbol(make("pow", a, static=(int(number),)) if number != 1 else a, dtype)
    return Symbol(make("powf", a, b), dtype)


def _extreme(name: str) -> Callable[..., Node]:
    """The minimum or the maximum of two integers."""

    def node(dtype: Any, a: Node, b: Node) -> Node:
        pair = (a, b) if name == "minimum" else (b, a)
        return operation("where", operation(integers.by_sign("ile", dtype), *pair), a, b)

    return node


def _negated(node: Node) -> Node:
    return operation("isub", integers.integer(0), node)


def _absolute(dtype: Any, node: Node) -> Node:
    is_negative = operation(integers.by_sign("ilt", dtype), node, integers.integer(0))
    return operation("where", is_negative, _negated(node), node)


def _sign(dtype: Any, node: Node) -> Node:
    zero, one = integers.integer(0), integers.integer(1)
    below, above = (operation(integers.by_sign("ilt", dtype), *pair) for pair in ((node, zero), (zero, node)))
    return operation("where", below, _negated(one), operation("where", above, one, zero))


def _quotient(op: str) -> Callable[..., Symbol]:
    """``//`` or ``%``."""
    of_integers = _arithmetic("div", lambda dtype, a, b: operation(integers.by_sign(op, dtype), a, b))

    def function(a: Any, b: Any) -> Symbol:
        kind = operand(a)[1]
        is_unsigned = isinstance(kind, np.dtype) and kind.kind == "u"
        if op == "imod" and is_unsigned and isinstance(b, int) and b == 2 ** (8 * kind.itemsize):
            return a  # which has wrapped around
        if is_whole(a) and is_whole(b):
            are_bool = not (is_integer(a) or is_integer(b))
            return of_integers(a, apply("add", b, np.int8(0)) if are_bool else b)
        whole = apply("floor", apply("divide", a, b))
        return whole if op == "idiv" else a - b * whole

    return function


_SIMPLE = {
    **{op: op for op in ("add", "abs", "exp", "log", "sqrt", "square", "sin", "cos", "tanh", "floor")},
    **{op: op for op in ops.SCALAR if op not in ("where", "asinh", "acosh", "atanh")},
    "subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "reciprocal": "inverse",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _plain(op) for name, op in _SIMPLE.items()},
    "add": _arithmetic("add", lambda dtype, a, b: operation("iadd", a, b)),
    "subtract": _arithmetic("sub", lambda dtype, a, b: operation("isub", a, b)),
    "multiply": _arithmetic("mul", lambda dtype, a, b: operation("imul", a, b)),
    "negative": _arithmetic("neg", lambda dtype, a: _negated(a)),
    "square": _arithmetic("square", lambda dtype, a: operation("imul", a, a)),
    "abs": _arithmetic("abs", _absolute),
    "floor": _arithmetic("floor", lambda dtype, a: a),
    "minimum": _arithmetic("minimum", _extreme("minimum")),
    "maximum": _arithmetic("maximum", _extreme("maximum")),
    "bitwise_and": _of_bits("logical_and", "iand"),
    "bitwise_or": _of_bits("logical_or", "ior"),
    "bitwise_xor": _of_bits("logical_xor", "ixor"),
    "invert": _of_bits("logical_not", "inot"),
    "left_shift": _shifted("ishl"),
    "right_shift": _shifted("ishr"),
    "less": _compared("lt"),
    "less_equal": _compared("le"),
    "greater": lambda x1, x2: apply("less", x2, x1),
    "greater_equal": lambda x1, x2: apply("less_equal", x2, x1),
    "equal": _compared("eq"),
    "not_equal": _compared("ne"),
    "logical_and": lambda x1, x2: Symbol(make("mul", _truth(x1), _truth(x2)), BOOL),
    "logical_or": lambda x1, x2: Symbol(operation("maximum", _truth(x1), _truth(x2)), BOOL),
    "logical_xor": lambda x1, x2: Symbol(make("ne", _truth(x1), _truth(x2)), BOOL),
    "logical_not": lambda x: Symbol(make("sub", constant(1), _truth(x)), BOOL),
    "where": _where,
    "power": _power,
    "floor_divide": _quotient("idiv"),
    "remainder": _quotient("imod"),
    "sign": lambda x: apply("where", x != x, x, _arithmetic("sign", _sign)(x)),  # NaN stays NaN, as in numpy
}
"""Functions of symbols and numbers by their names in numpy, else in torch; `functions` adds further ones."""


def apply(name: str, *values: Any, **keywords: Any) -> Any:
    """Call a function by name, of symbols, or of arrays and numbers if none is symbolic."""
    for value in values:
        if isinstance(value, (Symbol, Vector)):
            return apply_symbolic(name, values, keywords)
    if hasattr(np, name):
        return getattr(np, name)(*values, **keywords)
    with np.errstate(over="ignore"):
        arrays = [value if hasattr(value, "dtype") else np.asarray(value) for value in values]
        function = ops.numpy_function(_SIMPLE[name]) if name in _SIMPLE else FUNCTIONS[name]
        return function(*arrays, **keywords)


def apply_symbolic(name: str, values: Any, keywords: Any) -> Any:
    """A function of symbols and numbers; of arrays, element by element."""
    function = FUNCTIONS[name]
    for value in values:
        if not isinstance(value, (Symbol, float, int)):
            break
    else:
        return function(*values, **keywords)
    values = [number_of(value) if is_tensor(value) else value for value in values]
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.ndim]
    if not arrays:
        return function(*values, **keywords)
    for array in arrays:
        if array.size > _MOST_NUMBERS:
            operand(array)  # raises
    n_results = 2 if name == "divmod" else 1
    each = np.frompyfunc(functools.partial(function, **keywords), len(values), n_results)
    return as_vector(each(*map(as_objects, values)))


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    return lambda *operands: apply(name, *(operands[::-1] if reflected else operands))


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        raise refusal("pow of three numbers", "write base ** exponent % modulus; integers wrap at 64 bits")
    return apply("power", base, exponent)


def _round(symbol: Symbol, decimals: int | None = None) -> Symbol:
    return apply("round", symbol, decimals or 0)


def cast(symbol: Symbol, dtype: Any) -> Symbol:
    """`astype`: truncated to an integer; 0 or 1 for bool; a float is rounded only when it is written."""
    try:  # the text of a dtype of torch is "torch.float32"
        target = np.dtype(dtype if isinstance(dtype, (type, str)) else str(dtype).removeprefix("torch."))
    except TypeError as error:
        raise refusal(f"astype({dtype!r})", str(error)) from None
    if target == BOOL:
        return Symbol(_truth(symbol), BOOL)
    if target.kind not in "iuf" or (target.kind == "f" and target.itemsize > 8):
        raise refusal(f"astype({dtype!r})", "a number is a float, an integer or bool")
    node, kind = operand(symbol)
    if target.kind == "f":
        return Symbol(convert(node, kind, target), target)
    if not is_integer_kind(kind):
        node = integers.to_integer(node, is_truth=is_truth(kind))
    return Symbol(integers.wrapped(node, target), target)


# The operators of `symbols.Symbol`. mypy knows no assignment to a method.
for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "neg": "negative", "abs": "abs", "invert": "invert", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_function))
    if hasattr(int, f"__r{_name}__"):  # comparisons are reflected by Python
        setattr(Symbol, f"__r{_name}__", _operator(_function, reflected=True))
for _name, _method in {"__pow__": _pow, "__round__": _round, "astype": cast, "to": cast}.items():
    setattr(Symbol, _name, _method)
