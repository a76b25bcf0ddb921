"""Symbolic numbers, with which an update is called once to trace it.

Operators and functions of symbols return symbols, with the dtype that numpy would return. `functions` adds those
that are made of others, `protocols` leads functions of numpy, scipy and torch to them, and `lookups` lets
symbols be indices. A symbol has no value: Python cannot branch on it.

Several numbers are an array of Python objects, a `Vector`, on which numpy's own code runs: products with small
matrices, for example, are unrolled.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, make, operation
from upsweep._compiler.recurrences import integers

_LIBRARIES = ("upsweep", "numpy", "torch", "scipy", "pandas")  # whose lines are not the user's
_BOOL = np.dtype(bool)
_MOST_NUMBERS = 64  # of an array beside symbols: a matrix of 8 by 8


def _package(frame: types.FrameType) -> str:
    """The package whose code runs."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _user_line() -> str:
    """The line of the user's program that is running: ``FILE, line 3: the text of the line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _LIBRARIES:
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}, line {line}" + (f": {text}" if text else "")


def refusal(what: str, remedy: str) -> TypeError:
    """The error for something that has no symbolic form, with the user's line."""
    return TypeError(f"update: {what} in {_user_line()}\n{remedy}")


# The refused uses of values in the run of an update, which may have caught the errors.
refused_values: ContextVar[list[TypeError] | None] = ContextVar("refused_values", default=None)


def refusal_of_value(what: str, remedy: str) -> TypeError:
    """The error where an update takes another path than with numbers if it catches it: it is raised again."""
    error = refusal(what, remedy)
    refused = refused_values.get()
    if refused is not None:
        refused.append(error)
    return error


class Symbol:
    """A number whose value is known only when the scan runs; its dtype is int or None for Python's own numbers."""

    __slots__ = ("dtype", "node")
    node: Node
    dtype: np.dtype[Any] | type[int] | None

    def __init__(self, node: Node, dtype: np.dtype[Any] | type[int] | None) -> None:
        self.node, self.dtype = node, dtype

    def __repr__(self) -> str:
        return f"<symbolic {self.dtype or 'number'}>"

    def astype(self, dtype: Any) -> Symbol:
        """Cast: truncated to an integer; 0 or 1 for bool; a float is rounded only when it is written."""
        try:  # the text of a dtype of torch is "torch.float32"
            target = np.dtype(dtype if isinstance(dtype, (type, str)) else str(dtype).removeprefix("torch."))
        except TypeError as error:
            raise refusal(f"astype({dtype!r})", str(error)) from None
        if target == _BOOL:
            return Symbol(_truth(self), _BOOL)
        if target.kind not in "iuf" or (target.kind == "f" and target.itemsize > 8):
            raise refusal(f"astype({dtype!r})", "a number is a float, an integer or bool")
        node, kind = operand(self)
        if target.kind == "f":
            return Symbol(convert(node, kind, target), target)
        if not _is_integer(kind):
            node = integers.to_integer(node, is_truth=_is_truth(kind))
        return Symbol(integers.wrapped(node, target), target)

    to = astype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # Numpy asks for this for each element of np.array([p, q]) too. pandas reads an array of objects by itself:
        # pd.isna would be False.
        if _package(sys._getframe(1)) == "pandas":
            raise refusal("a symbolic value in a function of pandas", "take numpy's: np.isnan(x), with np.where")
        if dtype is None or np.dtype(dtype).kind == "O":
            return as_objects(self)
        raise refusal(
            "a symbolic value as an array",
            "take np.stack of several, np.sum(s) / len(s) for np.mean(s), and x.astype(dtype) for np.float32(x); "
            "random numbers are drawn before the scan, into xs",
        )

    def __round__(self, decimals: int | None = None) -> Symbol:
        return apply("round", self, decimals or 0)

    def __divmod__(self, other: Any) -> tuple[Symbol, Symbol]:
        return apply("divmod", self, other)

    def __rdivmod__(self, other: Any) -> tuple[Symbol, Symbol]:
        return apply("divmod", other, self)

    def __pos__(self) -> Symbol:
        return self

    def __hash__(self) -> int:
        # By identity, a set would never have it, and dict.get would return the default at every step.
        raise refusal(
            "a symbolic value as a key of a dict or a set",
            "take a tuple or an array as the table, table[state]; for membership write (x == 1) | (x == 2)",
        )


class Vector(np.ndarray[Any, Any]):
    """A small array of symbols and numbers, as an array of Python objects, whose functions go to its elements."""


# As messages of Python and of libraries name them.
Symbol.__name__ = Symbol.__qualname__ = "symbolic number"
Vector.__name__ = Vector.__qualname__ = "array of symbolic numbers"


def operand(value: Any) -> tuple[Node, Any]:
    """The node of an operand, and its part in dtype promotion: Python's own numbers, 1 or 1.0, are weak."""
    if isinstance(value, Symbol):
        return value.node, _WEAK.get(value.dtype, value.dtype)
    if isinstance(value, (bool, np.bool_)):
        return constant(float(value)), _BOOL
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        if isinstance(value, int) and -(2**63) <= value < 2**64:
            return integers.integer(value), 1 if value < 2**63 else np.dtype(np.uint64)
        return constant(float(value)), 1.0
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        native = value.dtype.newbyteorder("=")
        return constant(float(value)) if native.kind == "f" else integers.integer(int(value)), native
    if isinstance(value, np.ndarray):
        raise refusal(
            f"an array of shape {value.shape} beside symbolic values",
            "the update is of single numbers: hand the array over in xs, where it broadcasts, or in init",
        )
    if is_tensor(value):
        return operand(number_of(value))
    if value is None:
        raise refusal("expected a number, got None", "without xs, x is None")
    raise TypeError(f"update: expected a number, got {_type_name(value)} in {_user_line()}")


def _type_name(value: object) -> str:
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


_WEAK: dict[Any, Any] = {None: 1.0, int: 1}
_FLOAT64 = np.dtype(np.float64)

# The dtype of a float that Python's own numbers and integers become together, and integers by the functions of
# floats. Set while an update of tensors is traced: then an integer takes the dtype of a float, as in torch.
float_of_integers: ContextVar[np.dtype[Any] | None] = ContextVar("float_of_integers", default=None)

# A state that the update made a wider float, and its dtype. Set while it is traced again to name the line.
narrow_state: ContextVar[tuple[str, np.dtype[Any]] | None] = ContextVar("narrow_state", default=None)


def _is_integer(kind: Any) -> bool:
    return not isinstance(kind, float) and (isinstance(kind, int) or kind.kind in "iu")


def _holds_integers(dtype: Any) -> bool:
    """Whether a result of this dtype is an integer."""
    return dtype is int or (dtype is not None and dtype.kind in "iu")


def is_integer(value: Any) -> bool:
    """Whether an operand is an integer."""
    return _is_integer(operand(value)[1])


def is_whole(value: Any) -> bool:
    """Whether an operand is an integer, also one that has more than 64 bits, or bool."""
    if isinstance(value, int):
        return True
    kind = operand(value)[1]
    return _is_integer(kind) or _is_truth(kind)


def _is_truth(kind: Any) -> bool:
    return isinstance(kind, np.dtype) and kind == _BOOL


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def number_of(tensor: Any) -> Any:
    """A captured tensor as a Python number, if it has one element, else as an array."""
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise refusal(
            "a captured tensor that requires a gradient",
            "it would get none: hand it over in xs or init, where it broadcasts and gets its gradient; of a table "
            "that ids index, table[ids] in xs",
        )
    if sys.modules["torch"]._C._functorch.is_batchedtensor(tensor):
        raise refusal("a captured tensor that vmap maps", "pass it in xs, where it broadcasts")
    if tensor.device.type != "cpu":
        raise refusal(
            f"a captured tensor on {tensor.device}",
            "reading it would wait for the device: hand it over in xs, where it broadcasts, or pass float(tensor)",
        )
    return tensor.item() if tensor.numel() == 1 and not tensor.ndim else np.asarray(tensor)


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of an integer as a float."""
    return float_of_integers.get() or _FLOAT64 if dtype.kind in "iu" else dtype


def common_dtype(kinds: Sequence[Any]) -> np.dtype[Any] | type[int] | None:
    """The promoted dtype; int or None if there are only Python's own numbers."""
    if all(isinstance(kind, (int, float)) for kind in kinds):
        return int if all(isinstance(kind, int) for kind in kinds) else None
    of_torch = float_of_integers.get()
    if of_torch is not None:
        floats = [kind for kind in kinds if isinstance(kind, np.dtype) and kind.kind == "f"]
        if floats or any(isinstance(kind, float) for kind in kinds):
            return np.result_type(*floats) if floats else of_torch
    dtype = np.result_type(*kinds)
    narrow = narrow_state.get()
    if narrow is not None and dtype.kind == "f":
        _refuse_wider(*narrow, kinds, dtype)
    if dtype.kind == "f" and all(map(_is_integer, kinds)):
        raise refusal(
            "int64 and uint64 together, which numpy computes in float64",
            "this is not exact above 2**53: begin the state of a generator as init=np.uint64(seed), or cast "
            "one of them by astype(np.int64) or astype(np.uint64)",
        )
    return dtype


def _refuse_wider(which: str, narrow: np.dtype[Any], kinds: Sequence[Any], dtype: np.dtype[Any]) -> None:
    """Raise if a float of the dtype of a state becomes a wider one, with the operand that makes it so."""
    if dtype == narrow or narrow not in kinds:
        return
    other = next(kind for kind in kinds if isinstance(kind, np.dtype) and kind != narrow)
    done = "1 - done of bool is an integer" if other.kind in "iu" else "1.0 - done of bool is float64"
    raise refusal(
        f"{which} is {narrow} and becomes {dtype}, as in numpy, with a number of {other}",
        f"take x.astype(np.{narrow}), and float(x) of a captured number of numpy; {done}: take "
        f"np.where(done, 0.0, s) for s * (1 - done); or give init, or x, as {dtype}",
    )


def _result(kinds: Sequence[Any]) -> np.dtype[Any] | None:
    """The promoted dtype of a float; None for Python's own numbers."""
    dtype = common_dtype(kinds)
    return None if dtype is None or dtype is int else floating(dtype)  # type: ignore[arg-type]  # a dtype


def convert(node: Node, kind: Any, dtype: Any) -> Node:
    """The node of an operand of this kind in a dtype."""
    if isinstance(kind, float) or kind is dtype:
        return node
    if not _holds_integers(dtype):
        return integers.as_float(node, int if kind == 1 else kind)
    if _is_truth(kind):
        return integers.to_integer(node, is_truth=True)
    if node.op == "integer" and kind == 1 and dtype is not int:
        limits, value = np.iinfo(dtype), node.static[0]
        if not limits.min <= value <= limits.max:
            raise refusal(f"{value}, which is out of bounds for {dtype}", "cast the other operand by astype")
    return node


def _operands(values: Sequence[Any]) -> tuple[list[Node], Any]:
    """The nodes of operands in their common dtype."""
    pairs = [*map(operand, values)]
    large = [value for value in values if isinstance(value, int) and not -(2**63) <= value < 2**64]
    if large and all(map(is_whole, values)):
        raise refusal(
            f"an integer beside {large[0]}, which has more than 64 bits,",
            "uint64 wraps around at 2**64 by itself: give init as np.uint64(...), or cast by astype(np.uint64); "
            "for floats write 2.0**64",
        )
    dtype = common_dtype([kind for _, kind in pairs])
    return [convert(node, kind, dtype) for node, kind in pairs], dtype


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
        nodes, dtype = _operands(values)
        if _holds_integers(dtype):
            return Symbol(integers.wrapped(of_integers(dtype, *nodes), dtype), dtype)
        if dtype == _BOOL and op in ("sub", "neg"):
            raise refusal(
                "a minus sign of bool",
                "take ~d for not d, c ^ d where they differ, and d.astype(int) for 0 and 1",
            )
        if dtype == _BOOL and op in _OF_BOOL:
            return apply(_OF_BOOL[op], *values)
        return Symbol(operation(op, *nodes), _FLOAT64 if dtype == _BOOL else dtype)

    return _of_arity(op, function)


_INTEGER_REMEDY = (
    "cast it by astype(int); beside xs of a float, an integer state begins as init=np.int64(1), not 1, and a "
    "generator as np.uint64(seed)"
)


def _of_bits(name: str, op: str) -> Callable[..., Symbol]:
    """A bit operation of integers; the logical operation of bool."""

    def function(*values: Any) -> Symbol:
        are_bool = all(_is_truth(operand(value)[1]) for value in values)
        if all(map(is_whole, values)) and not are_bool:
            nodes, dtype = _operands(values)
            if op == "inot":
                return Symbol(integers.wrapped(operation("ixor", *nodes, integers.integer(-1)), dtype), dtype)
            return Symbol(operation(op, *nodes), dtype)
        if not are_bool:
            raise refusal("a bit operation of a float", f"compare it, (x > 0) & d, or {_INTEGER_REMEDY}")
        return FUNCTIONS[name](*values)

    return function


def _shifted(op: str) -> Callable[..., Symbol]:
    def function(*values: Any) -> Symbol:
        nodes, dtype = _operands(values)
        if not _holds_integers(dtype):
            raise refusal("a shift of a float", _INTEGER_REMEDY)
        name = integers.by_sign(op, dtype) if op == "ishr" else op
        return Symbol(integers.wrapped(operation(name, *nodes), dtype), dtype)

    return function


def _plain(op: str) -> Callable[..., Symbol]:
    def function(*values: Any) -> Symbol:
        pairs = [*map(operand, values)]
        dtype = _result([kind for _, kind in pairs])
        nodes = [convert(node, kind, dtype) for node, kind in pairs]
        return Symbol(operation(op, *nodes), _FLOAT64 if dtype == _BOOL else dtype)

    return _of_arity(op, function)


def _compared(op: str) -> Callable[[Any, Any], Symbol]:
    def function(a: Any, b: Any) -> Symbol:
        nodes, dtype = _operands((a, b))
        if not _holds_integers(dtype):
            return Symbol(make(op, *nodes), _BOOL)
        name = f"i{op}" if op in ("eq", "ne") else integers.by_sign(f"i{op}", dtype)
        return Symbol(operation(name, *nodes), _BOOL)

    return function


def _truth(value: Any) -> Node:
    """The node of ``value != 0``."""
    node, kind = operand(value)
    if _is_integer(kind):
        if node.op == "integer":
            return constant(float(node.static[0] != 0))
        return operation("ine", node, integers.integer(0))
    return node if _is_truth(kind) else make("ne", node, constant(0))


def _where(condition: Any, x: Any, y: Any) -> Symbol:
    nodes, dtype = _operands((x, y))
    return Symbol(operation("where", _truth(condition), *nodes), dtype)


def _power(base: Any, exponent: Any) -> Symbol:
    (a, kind_a), (b, kind_b) = operand(base), operand(exponent)
    dtype = common_dtype([kind_a, kind_b])
    if _holds_integers(dtype):
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
    "logical_and": lambda x1, x2: Symbol(make("mul", _truth(x1), _truth(x2)), _BOOL),
    "logical_or": lambda x1, x2: Symbol(operation("maximum", _truth(x1), _truth(x2)), _BOOL),
    "logical_xor": lambda x1, x2: Symbol(make("ne", _truth(x1), _truth(x2)), _BOOL),
    "logical_not": lambda x: Symbol(make("sub", constant(1), _truth(x)), _BOOL),
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


def as_objects(value: Any) -> Any:
    """An operand as an array of objects, which no protocol of symbols is called for."""
    if isinstance(value, Symbol):
        boxed = np.empty((), object)
        boxed[()] = value
        return boxed
    return np.asarray(value, object)


def as_vector(value: Any) -> Any:
    """The result of numpy's code on arrays of objects."""
    if isinstance(value, tuple):
        return tuple(map(as_vector, value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value.view(Vector) if value.ndim else value[()]
    return value


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    return lambda *operands: apply(name, *(operands[::-1] if reflected else operands))


def _refusing(refusal: Callable[[str, str], TypeError], what: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(what, remedy)

    return refuse


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "neg": "negative", "abs": "abs", "invert": "invert", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_function))
    if hasattr(int, f"__r{_name}__"):  # comparisons are reflected by Python
        setattr(Symbol, f"__r{_name}__", _operator(_function, reflected=True))


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        raise refusal("pow of three numbers", "write base ** exponent % modulus; integers wrap at 64 bits")
    return apply("power", base, exponent)


setattr(Symbol, "__pow__", _pow)  # noqa: B010 - mypy knows no assignment to a method

_TUPLES = "several states, inputs or outputs are tuples: init=tuple(init), xs=tuple(x.T)"
NOT_A_NUMBER = (
    "a symbolic value as a Python number",
    "use numpy's functions (np.exp, np.tanh, ...), not those of math, and x.astype(dtype), not int(x)",
)
for _name, _refused in {
    "bool": (
        "a Python branch on a symbolic value",
        "the update is traced once, and its values are not known then: choose by np.where(condition, a, b), "
        "combine conditions by & | ~ in place of and, or, not and chains (a < b < c), and take np.minimum, "
        "np.maximum and np.clip in place of min, max and sorted, np.max(np.stack([a, b])) in place of "
        "np.max([a, b]), and np.stack in place of np.array",
    ),
    **dict.fromkeys(("float", "int", "complex"), NOT_A_NUMBER),
    "iter": ("a symbolic number is iterated over", _TUPLES),
    "getitem": (
        "an index of a symbolic number",
        f"the update is of single numbers, of all columns alike; {_TUPLES}",
    ),
    **dict.fromkeys(
        ("matmul", "rmatmul"),
        (
            "a matrix product with a symbolic number",
            "several states are a tuple, init=(0.0, 0.0), and in the update A @ np.stack(state)",
        ),
    ),
}.items():
    _error = refusal_of_value if _name in ("bool", "float", "int", "complex") else refusal
    setattr(Symbol, f"__{_name}__", _refusing(_error, *_refused))
