"""Scalar expressions: indices, sizes and elements, in the programs of users and in loop nests.

A node is immutable. ``read`` is an element of a tensor, ``load`` one of a buffer; all other rows of
`OPERATIONS` mean what numpy's function does. Operators build nodes, so ``==`` is a comparison in the user's
program: nodes are distinguished by identity, and by `key` where equal expressions are the same.
"""

from __future__ import annotations

import copyreg
import hashlib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from upsweep._compiler.loops.expression_text import expression_text
from upsweep._compiler.loops.traversal import fold, fold_cached

FLOATS = ("float32", "float64")
INTS = ("int32", "int64")
DTYPES = (*FLOATS, *INTS, "bool")
_BY_WIDTH = ("bool", *INTS, *FLOATS)  # of two dtypes the later one holds the result
ITEM_BYTES = {name: np.dtype(name).itemsize for name in DTYPES}

_PACKAGE = str(Path(__file__).parents[2])


# Operation -> (arity, what it means). Comparisons give bool; and, or, not take it.
OPERATIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, np.add), "sub": (2, np.subtract), "mul": (2, np.multiply), "div": (2, np.divide),
    "floordiv": (2, np.floor_divide), "mod": (2, np.remainder), "min": (2, np.minimum), "max": (2, np.maximum),
    "pow": (2, np.power), "neg": (1, np.negative), "abs": (1, np.abs), "exp": (1, np.exp), "log": (1, np.log),
    "sqrt": (1, np.sqrt), "rsqrt": (1, lambda x: 1.0 / np.sqrt(x)), "sin": (1, np.sin), "cos": (1, np.cos),
    "tanh": (1, np.tanh), "atan": (1, np.arctan), "asin": (1, np.arcsin), "acos": (1, np.arccos),
    "sigmoid": (1, lambda x: 1.0 / (1.0 + np.exp(-x))), "floor": (1, np.floor),
    "lt": (2, np.less), "le": (2, np.less_equal), "gt": (2, np.greater), "ge": (2, np.greater_equal),
    "eq": (2, np.equal), "ne": (2, np.not_equal), "and": (2, np.logical_and), "or": (2, np.logical_or),
    "not": (1, np.logical_not),
}  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOGICAL = ("and", "or", "not")
# What operations mean for integers of Python, which do not wrap around, and for conditions.
INTEGER_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{op: getattr(operator, op) for op in ("add", "sub", "mul", "floordiv", "mod", "neg", "abs", *COMPARISONS)},
    "and": operator.and_, "or": operator.or_, "not": operator.not_, "min": min, "max": max,
    "select": lambda condition, a, b: a if condition else b,
}  # fmt: skip
_OF_FLOATS = (
    "div", "pow", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "atan", "asin", "acos", "sigmoid", "floor",
)  # fmt: skip
# Python's binary operators on numbers, by numpy's functions.
_OPERATORS = {
    function: op
    for op, (arity, function) in OPERATIONS.items()
    if arity == 2 and op not in ("min", "max", "and", "or")
}
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def users_line() -> str:
    """``file:line`` of the innermost caller outside the package."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "<unknown>" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _operator(op: str) -> Callable[[Any, Any], Expr]:
    return lambda self, other: binary(op, self, other)


def _reflected(op: str) -> Callable[[Any, Any], Expr]:
    return lambda self, other: binary(op, other, self)


class Expr:
    """A scalar. It never changes; `known_atoms`, `known_form` and `known_key` cache `atoms`, `linear`, `key`."""

    __slots__ = ("args", "dtype", "known_atoms", "known_form", "known_key", "op", "static", "where")

    def __init__(
        self, op: str, args: tuple[Expr, ...], dtype: str, static: tuple[Any, ...] = (), where: str = ""
    ) -> None:
        self.op, self.args, self.dtype, self.static, self.where = op, args, dtype, static, where
        self.known_key: str | None = None
        self.known_atoms: frozenset[Any] | None = None
        self.known_form: Any = None

    def __repr__(self) -> str:
        return expression_text(self, limit=2000)

    def __bool__(self) -> bool:
        if self.op == "const":
            return bool(self.static[0])
        if self.op in ("eq", "ne") and key(self.args[0]) == key(self.args[1]):
            return self.op == "eq"
        raise TypeError(
            f"{users_line()}: {self!r} has no truth value before it is computed; for a choice between two values "
            "write te.select(condition, a, b); for and, or, not te.all(a, b), te.any(a, b), te.logical_not(a); "
            "for 0 < x < 1 te.all(0 < x, x < 1)"
        )

    __hash__ = object.__hash__

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """All slots but the caches, which hold ids of other objects."""
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        caches = dict.fromkeys(("known_key", "known_form", "known_atoms"))
        return None, {name: getattr(self, name) for name in names} | caches

    def __reduce__(self) -> Any:
        """Operations as a list of rows, which pickle and deepcopy do not follow by recursion."""
        if not self.args:
            return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]  # not in its stub
        rows: list[Expr | tuple[Any, ...]] = []

        def append(node: Expr, args: list[int]) -> int:
            rows.append((node.op, args, node.dtype, node.static, node.where) if args else node)
            return len(rows) - 1

        fold(self, append)
        return _of_rows, (rows,)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"{users_line()}: {self!r} is one number, and no sequence; te.sum(..., axis=te.reduce_axis((0, n))) "
            "and the like reduce over an index"
        )

    def __float__(self) -> float:
        loops = "te.compute, te.reduce_axis and te.scan loop over an index, it indexes a tensor, "
        raise TypeError(
            f"{users_line()}: {self!r} is no number before it is computed; {loops if self.dtype in INTS else ''}"
            "te.exp, te.tanh and the like are its functions, te.cast changes its dtype"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # Numpy asks for this where an expression is an index of its array, and where it is made a part of one.
        raise TypeError(
            f"{users_line()}: {self!r} in an array of numpy: for W[i, k] of an array W make a tensor of its shape "
            "and dtype, te.placeholder(W.shape, str(W.dtype)), and pass W to the built function"
        )

    __int__ = __index__ = __complex__ = __float__  # none of them returns

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Expr:
        # Called for a number of numpy on the left of an operator.
        op = _OPERATORS.get(ufunc)
        if op is None or method != "__call__" or keywords:
            raise TypeError(
                f"{users_line()}: np.{ufunc.__name__} of {self!r}: te has functions of its own (te.exp, te.tanh, "
                "te.max, te.select, ...)"
            )
        return binary(op, *inputs)

    def astype(self, dtype: str) -> Expr:
        """The value as another dtype."""
        return cast(self, dtype)

    def equal(self, other: Any) -> Expr:
        """Whether two values are equal, as ``==``."""
        return binary("eq", self, other)

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __floordiv__, __mod__, __pow__ = _operator("floordiv"), _operator("mod"), _operator("pow")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")
    # In a user's program == and != compare the values.
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # type: ignore[assignment]  # those of object give a bool

    # Of conditions alone, which `binary` checks.
    __and__, __rand__, __or__, __ror__ = _operator("and"), _reflected("and"), _operator("or"), _reflected("or")

    def __invert__(self) -> Expr:
        return unary("not", self)

    def _refuse(self, _: Any) -> Any:
        raise TypeError(
            f"{users_line()}: {self!r}: there are no operations on bits and no products of matrices; "
            "te.sum(a * b, axis=k) is a product, != the exclusive or of conditions, ** a power"
        )

    __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __matmul__ = __rmatmul__ = _refuse

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __abs__(self) -> Expr:
        return unary("abs", self)


class Axis(Expr):
    """An index that runs over [0, extent) in a loop. `kind` is data, reduce, scan or thread."""

    __slots__ = ("extent", "kind", "name")

    def __init__(self, name: str, extent: Expr | None, kind: str = "data") -> None:
        super().__init__("axis", (), "int64", (name,))
        self.name, self.extent, self.kind = name, extent, kind

    @property
    def var(self) -> Axis:
        """The index itself, as TVM's programs name it."""
        return self


def check_dtype(dtype: str) -> str:
    """A dtype's name, if it is one that nests compute with."""
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError):  # the latter for an expression, which has an attribute dtype
        name = ""
    if name not in DTYPES:
        raise TypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    return name


def lowest(dtype: str) -> int:
    """The least number of an integer dtype."""
    return -(2**31) if dtype == "int32" else -(2**63)


def _is_number_of(value: Any, dtype: str) -> bool:
    return dtype not in INTS or lowest(dtype) <= int(value) < -lowest(dtype)


def const(value: Any, dtype: str) -> Expr:
    """A constant."""
    value = bool(value) if dtype == "bool" else int(value) if dtype in INTS else float(value)
    return Expr("const", (), dtype, (value,))


def index_const(value: int) -> Expr:
    """A constant index or size."""
    return const(value, "int64")


def constant_of(expr: Expr) -> int | None:
    """The value of an integer expression that is one number, else None."""
    return int(expr.static[0]) if expr.op == "const" else None


def constant_product(extents: Iterable[Expr]) -> int | None:
    """The product of integer expressions, if each is one number."""
    sizes = [constant_of(extent) for extent in extents]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def variable(name: str) -> Expr:
    """A size that is known when the compiled function is called."""
    return Expr("var", (), "int64", (name,), users_line())


def load(buffer: Any, indices: tuple[Expr, ...]) -> Expr:
    """An element of a buffer."""
    return Expr("load", indices, buffer.dtype, (buffer,))


def as_expr(value: Any, dtype: str | None = None) -> Expr:
    """An expression unchanged; a number as a constant of `dtype`, by default float32 or int32."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, _NUMBERS):
        hint = "; arrays and tensors are read element by element, X[i, j]" if hasattr(value, "shape") else ""
        raise TypeError(f"{users_line()}: expected an expression or a number, got {value!r}{hint}")
    if dtype is None:
        is_real = isinstance(value, (float, np.floating))
        dtype = "bool" if isinstance(value, (bool, np.bool_)) else "float32" if is_real else "int32"
    if not _is_number_of(value, dtype):
        raise ValueError(f"{users_line()}: {value!r} does not fit {dtype}; expected a number that does")
    return const(value, dtype)


def cast(value: Any, dtype: str) -> Expr:
    """The value as another dtype; floats to integers are truncated."""
    dtype = check_dtype(dtype)
    expr = as_expr(value)
    if expr.dtype == dtype:
        return expr
    if expr.op == "const" and _is_number_of(expr.static[0], dtype):
        return const(expr.static[0], dtype)
    return Expr("cast", (expr,), dtype)


def _matched(a: Any, b: Any) -> tuple[Expr, Expr]:
    """Both values in their common dtype: a number has that of the expression, if it can."""
    if not isinstance(a, Expr):
        if isinstance(b, Expr):
            return _matched(b, a)[::-1]
        a = as_expr(a)
    if not isinstance(b, Expr):
        as_real = isinstance(b, (float, np.floating)) and a.dtype not in FLOATS
        b = as_expr(b, "float32" if as_real else a.dtype)
    dtype = max(a.dtype, b.dtype, key=_BY_WIDTH.index)
    return cast(a, dtype), cast(b, dtype)


def _folded(op: str, a: Expr, b: Expr, dtype: str) -> Expr | None:
    """Integers and neutral elements, so that indices stay readable."""
    if a.op == b.op == "const":
        if a.dtype in INTS or a.dtype == "bool":
            value = INTEGER_OPERATIONS[op](a.static[0], b.static[0])
            return const(value, dtype) if _is_number_of(value, dtype) else None
        return None
    if dtype not in INTS:
        return None
    left, right = (x.static[0] if x.op == "const" else None for x in (a, b))
    if (op, right) in (("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1)):
        return a
    if (op, left) in (("add", 0), ("mul", 1)):
        return b
    return const(0, dtype) if op == "mul" and 0 in (left, right) else None


def binary(op: str, a: Any, b: Any) -> Expr:
    """An operation of two values, which are given one dtype first."""
    a, b = _matched(a, b)
    if op in LOGICAL and a.dtype != "bool":
        raise TypeError(
            f"{users_line()}: {op}: expected conditions, got {a!r} and {b!r}; comparisons stand in parentheses "
            "beside & and |, and there are no operations on bits"
        )
    if op in _OF_FLOATS and a.dtype not in FLOATS:
        if op == "div":
            raise TypeError(
                f"{users_line()}: {a!r} / {b!r}: integers are divided by //, or cast them to a float first"
            )
        a, b = cast(a, "float32"), cast(b, "float32")
    if op in ("floordiv", "mod") and not (a.dtype in INTS and b.op == "const" and b.static[0] > 0):
        raise TypeError(f"{users_line()}: {op}: expected integers and a positive constant, got {a!r} and {b!r}")
    if op not in (*COMPARISONS, *LOGICAL) and a.dtype == "bool":
        a, b = cast(a, "int32"), cast(b, "int32")
    dtype = "bool" if op in (*COMPARISONS, *LOGICAL) else a.dtype
    return _operation(op, a, b, dtype)


def _operation(op: str, a: Expr, b: Expr, dtype: str) -> Expr:
    folded = _folded(op, a, b, dtype)
    return Expr(op, (a, b), dtype) if folded is None else folded


def unary(op: str, a: Any) -> Expr:
    """An operation of one value."""
    a = as_expr(a)
    if op == "not":
        if a.dtype != "bool":
            raise TypeError(f"{users_line()}: not: expected a condition, got {a!r}, of dtype {a.dtype}")
    elif a.dtype == "bool" or (op in _OF_FLOATS and a.dtype not in FLOATS):
        a = cast(a, "float32" if op in _OF_FLOATS else "int32")
    if op == "neg" and a.op == "const" and _is_number_of(-a.static[0], a.dtype):
        return const(-a.static[0], a.dtype)
    return Expr(op, (a,), a.dtype)


def select(condition: Any, a: Any, b: Any) -> Expr:
    """`a` where the condition holds, else `b`; only the selected one is evaluated.

    Parameters
    ----------
    condition : Expr
        Of dtype bool.
    a, b : Expr or number

    Returns
    -------
    Expr

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((8,), name="X")
    >>> te.compute((8,), lambda i: te.select(i > 0, X[i - 1], 0.0), name="shifted")
    Tensor(name=shifted, shape=(8), dtype=float32)
    """
    condition = as_expr(condition)
    if condition.dtype != "bool":
        raise TypeError(f"{users_line()}: select: expected a condition first, got {condition!r}")
    a, b = _matched(a, b)
    return Expr("select", (condition, a, b), a.dtype)


def _of_rows(rows: list[Expr | tuple[Any, ...]]) -> Expr:
    """The expression of the last row; a row is a node without arguments, or has its arguments' numbers."""
    nodes: list[Expr] = []
    for row in rows:
        if not isinstance(row, Expr):
            op, args, dtype, static, where = row
            row = Expr(op, tuple(nodes[arg] for arg in args), dtype, static, where)
        nodes.append(row)
    return nodes[-1]


def atoms(expr: Expr) -> frozenset[Any]:
    """The axes and sizes that occur, and the buffers and tensors that are read."""
    known = expr.known_atoms
    return fold_cached(expr, "known_atoms", _atoms) if known is None else known


def _atoms(expr: Expr, args: list[frozenset[Any]]) -> frozenset[Any]:
    own = [expr] if expr.op in ("axis", "var") else [expr.static[0]] if expr.op in ("load", "read") else []
    return frozenset(own).union(*args)


def mentions(expr: Expr, axis: Expr) -> bool:
    """Whether an axis or a variable occurs."""
    return axis in atoms(expr)


def contains(expr: Expr, axes: Any) -> bool:
    """Whether one of several occurs."""
    return not atoms(expr).isdisjoint(axes)


def has_loads(expr: Expr) -> bool:
    """Whether an element of a buffer is read."""
    return any(not isinstance(atom, Expr) for atom in atoms(expr))


def outside_loads(expr: Expr) -> tuple[Expr, ...]:
    """The operands but for the indices of loads."""
    return () if expr.op == "load" else expr.args


def with_args(expr: Expr, args: Sequence[Expr]) -> Expr:
    """The expression with other arguments of the same dtypes; integers are folded."""
    if all(new is old for new, old in zip(args, expr.args)):
        return expr
    if expr.op in OPERATIONS and len(args) == 2:
        return _operation(expr.op, args[0], args[1], expr.dtype)
    return Expr(expr.op, tuple(args), expr.dtype, expr.static, expr.where)


def substitute(expr: Expr, values: Mapping[Any, Expr]) -> Expr:
    """The expression with axes and variables replaced."""
    return fold(expr, with_args, {id(old): new for old, new in values.items()})


def key(expr: Expr) -> str:
    """Equal for expressions that are built alike of the same axes, variables and tensors."""
    return expr.known_key or fold_cached(expr, "known_key", _key)


_MAX_KEY = 200  # characters


def _key(expr: Expr, args: list[str]) -> str:
    if expr.op in ("axis", "var"):
        return f"{expr.static[0]}@{id(expr)}"
    static = ",".join(str(part) if isinstance(part, (int, float, str)) else str(id(part)) for part in expr.static)
    text = f"{expr.op}:{expr.dtype}[{static}]({' '.join(args)})"
    # The text of a tree can be far larger than the expression, which may share arguments.
    return text if len(text) <= _MAX_KEY else hashlib.sha256(text.encode()).hexdigest()
