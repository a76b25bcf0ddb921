"""The table of operations: name, name in KeOps, arity, numpy function and dim rule of each.

A row is all that nodes, formula text and evaluation need. The derivative of an operation is an entry of
`derivative.RULES`, its scalar instructions one of `lowering.lower_elementwise` or `lowering.lower_features`; tests
check that no entry is missing. A composite operation has an `expand` instead: `make` replaces it by other
operations. `composites` registers those.

A dim rule takes the operands' dims and the static arguments, and returns the result's dim or raises `DimError`.

Names, argument orders and conventions are those of KeOps' formulas: step(0) = 1, sign(0) = 0, rsqrt(0) = 0,
sinxdivx(0) = 1, xlogx(0) = 0, ifelse(c, a, b) is a where c >= 0, halves are rounded away from zero, comparisons
are 1 or 0, argmax and argmin are the first of equal features or the first NaN, matrices are row-major. Unlike
KeOps', an ifelse whose condition is a comparison is a where that holds, and 49 mod 49 is 0 in any dtype.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep._compiler.formulas import numpy_semantics as m

Static = tuple[Any, ...]
DimRule = Callable[[tuple[int, ...], Static], int]


class DimError(ValueError):
    """Dims or static arguments that an operation does not accept."""


def elementwise(dims: tuple[int, ...], static: Static) -> int:
    """The common dim; an operand of dim 1 broadcasts."""
    wide = {dim for dim in dims if dim != 1}
    if len(wide) > 1:
        raise DimError("dims have to be equal, or 1")
    for number in static:
        if not isinstance(number, (int, float)):
            raise DimError(f"{number!r} is not a number")
    return wide.pop() if wide else 1


def elementwise_integer(dims: tuple[int, ...], static: Static) -> int:
    """`elementwise`, of operations whose static argument is an integer."""
    if not isinstance(static[0], int):
        raise DimError(f"the number has to be an integer, not {static[0]!r}")
    return elementwise(dims, static)


def contraction(dims: tuple[int, ...], static: Static) -> int:
    """Two vectors of one dim, or of dim 1, contracted to a number."""
    elementwise(dims, static)
    return 1


def one(dims: tuple[int, ...], static: Static) -> int:
    return 1


def first(dims: tuple[int, ...], static: Static) -> int:
    return dims[0]


def outer(dims: tuple[int, ...], static: Static) -> int:
    return dims[0] * dims[1]


def _index(value: Any, low: int, high: float, what: str) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        bounds = f"from {low} to {high}" if high != math.inf else f"of at least {low}"
        raise DimError(f"{what} has to be an integer {bounds}, not {value!r}")
    return value


def from_scalar(name: str) -> DimRule:
    """Operations from a number to a vector whose dim is the first static argument."""

    def rule(dims: tuple[int, ...], static: Static) -> int:
        if dims[0] != 1:
            raise DimError(f"{name} takes an argument of dim 1")
        return _index(static[0], 1, math.inf, "the dim")

    return rule


def elem(dims: tuple[int, ...], static: Static) -> int:
    _index(static[0], 0, dims[0] - 1, "the index")
    return 1


def elem_t(dims: tuple[int, ...], static: Static) -> int:
    dim = from_scalar("ElemT")(dims, static)
    _index(static[1], 0, dim - 1, "the index")
    return dim


def extract(dims: tuple[int, ...], static: Static) -> int:
    start = _index(static[0], 0, dims[0] - 1, "the start")
    return _index(static[1], 1, dims[0] - start, "the number of features")


def extract_t(dims: tuple[int, ...], static: Static) -> int:
    start = _index(static[0], 0, math.inf, "the start")
    return _index(static[1], start + dims[0], math.inf, "the dim")


def matvec(dims: tuple[int, ...], static: Static) -> int:
    if dims[0] % dims[1]:
        raise DimError("the matrix's dim has to be a multiple of the vector's")
    return dims[0] // dims[1]


def tensordot(dims: tuple[int, ...], static: Static) -> int:
    shape_a, shape_b, axes_a, axes_b = static[:4]
    if any(not isinstance(part, tuple) for part in static):
        raise DimError("shapes, axes and the permutation have to be lists of integers")
    if math.prod(shape_a) != dims[0] or math.prod(shape_b) != dims[1]:
        raise DimError(f"shapes {list(shape_a)} and {list(shape_b)} do not have the arguments' dims")
    for axes, shape in ((axes_a, shape_a), (axes_b, shape_b)):
        if len(set(axes)) != len(axes) or any(axis not in range(len(shape)) for axis in axes):
            raise DimError(f"{list(axes)} are not axes of a tensor of shape {list(shape)}")
    if [shape_a[axis] for axis in axes_a] != [shape_b[axis] for axis in axes_b]:
        raise DimError(f"axes {list(axes_a)} and {list(axes_b)} have different lengths")
    n_axes = len(shape_a) + len(shape_b) - 2 * len(axes_a)
    if len(static) == 5 and sorted(static[4]) != list(range(n_axes)):
        raise DimError(f"{list(static[4])} is not a permutation of {n_axes} axes")
    contracted: int = math.prod(shape_a[axis] for axis in axes_a)
    return dims[0] * dims[1] // contracted**2


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table."""

    name: str
    keops: str  # the name in formula texts
    arity: int  # the number of operands
    numpy: Callable[..., Any] | None  # of arrays (..., dim) and static arguments; None for composite operations
    dim: DimRule = elementwise
    n_static: int = 0  # the least number of static arguments
    n_optional: int = 0  # how many more there may be
    expand: Callable[..., Any] | None = None  # of composite operations: the formula that replaces it

    @property
    def elementwise(self) -> bool:
        """Whether feature k of the result is a function of feature k of the operands."""
        return self.dim in (elementwise, elementwise_integer)


TABLE: dict[str, Operation] = {}
"""All operations by their name here, composite ones included."""

BY_KEOPS: dict[str, str] = {}
"""The names here by the names in formula texts."""


def register(name: str, keops: str, *columns: Any, **optional: Any) -> None:
    """Add an `Operation` to the table, by its fields."""
    TABLE[name] = Operation(name, keops, *columns, **optional)
    BY_KEOPS[keops] = name


register("add", "Add", 2, np.add)
register("sub", "Subtract", 2, np.subtract)
register("mul", "Mult", 2, np.multiply)
register("div", "Divide", 2, np.divide)
register("neg", "Minus", 1, np.negative)
register("abs", "Abs", 1, np.abs)
register("sign", "Sign", 1, m.sign)
register("step", "Step", 1, lambda x: np.where(x < 0, 0, 1).astype(x.dtype))
register("relu", "ReLU", 1, lambda x: np.where(x < 0, 0, x))
register("exp", "Exp", 1, np.exp)
register("log", "Log", 1, np.log)
register("sqrt", "Sqrt", 1, np.sqrt)
register("rsqrt", "Rsqrt", 1, lambda x: np.where(x == 0, 0, 1 / np.sqrt(x)))
register("square", "Square", 1, np.square)
register("inverse", "Inv", 1, np.reciprocal)
register("pow", "Pow", 1, lambda x, n: np.power(x, x.dtype.type(n)), elementwise_integer, 1)
register("powf", "Powf", 2, np.power)
register("sin", "Sin", 1, np.sin)
register("cos", "Cos", 1, np.cos)
register("asin", "Asin", 1, np.arcsin)
register("acos", "Acos", 1, np.arccos)
register("atan", "Atan", 1, np.arctan)
register("atan2", "Atan2", 2, np.arctan2)
register("tanh", "Tanh", 1, np.tanh)
register("sinxdivx", "SinXDivX", 1, lambda x: np.where(x == 0, 1, np.sin(x) / x))
register("xlogx", "XLogX", 1, lambda x: np.where(x == 0, 0, x * np.log(x)))
register("floor", "Floor", 1, np.floor)
register("round", "Round", 1, m.round_half_away, elementwise_integer, 1)
register("clamp", "Clamp", 3, m.clamp)
register("clampint", "ClampInt", 1, m.clamp, elementwise, 2)
register(
    "diffclampint", "DiffClampInt", 1, lambda x, low, high: (~((x < low) | (x > high))).astype(x.dtype),
    elementwise, 2,
)  # fmt: skip
register("ifelse", "IfElse", 3, lambda condition, a, b: np.where(condition >= 0, a, b))
register("mod", "Mod", 3, lambda x, modulus, offset: np.mod(x - offset, modulus) + offset)
register("eq", "Equal", 2, m.comparison(np.equal))
register("ne", "NotEqual", 2, m.comparison(np.not_equal))
register("lt", "LessThan", 2, m.comparison(np.less))
register("le", "LessOrEqual", 2, m.comparison(np.less_equal))
register("sum", "Sum", 1, m.over_features(np.sum), one)
register("scalprod", "Scalprod", 2, lambda a, b: (a * b).sum(-1, keepdims=True), contraction)
register("sqdist", "SqDist", 2, lambda a, b: np.square(a - b).sum(-1, keepdims=True), contraction)
register("max", "Max", 1, m.over_features(np.max), one)
register("min", "Min", 1, m.over_features(np.min), one)
register("argmax", "ArgMax", 1, m.over_features(np.argmax), one)
register("argmin", "ArgMin", 1, m.over_features(np.argmin), one)
register("sumT", "SumT", 1, lambda x, dim: np.repeat(x, dim, axis=-1), from_scalar("SumT"), 1)
register("elem", "Elem", 1, lambda x, index: x[..., index : index + 1], elem, 1)
register("elemT", "ElemT", 1, lambda x, dim, index: m.extract_t(x, index, dim), elem_t, 2)
register("extract", "Extract", 1, lambda x, start, dim: x[..., start : start + dim], extract, 2)
register("extractT", "ExtractT", 1, m.extract_t, extract_t, 2)
register("concat", "Concat", 2, m.concat, lambda dims, static: dims[0] + dims[1])
register(
    "one_hot", "OneHot", 1, lambda x, dim: (np.floor(x + 0.5) == np.arange(dim)).astype(x.dtype),
    from_scalar("OneHot"), 1,
)  # fmt: skip
register("matvecmult", "MatVecMult", 2, m.matvec, matvec)
register("vecmatmult", "VecMatMult", 2, m.vecmat, lambda dims, static: matvec(dims[::-1], static))
register("tensorprod", "TensorProd", 2, m.outer, outer)
register("tensordot", "TensorDot", 2, m.tensordot, tensordot, 4, n_optional=1)


# How conditions are composed of comparisons: operations whose results are 1 or 0, those that keep that, and sums.
TRUTH_VALUES = frozenset({"eq", "ne", "lt", "le", "step", "one_hot", "diffclampint"})
LOGICAL = TRUTH_VALUES | {"mul", "max", "min", "square", "elem", "extract", "concat"}
COUNTING = frozenset({"add", "sum", "scalprod"})


# Operations on numbers that only recurrences have, and that follow numpy: their arity and numpy function. Extremes
# propagate NaN, and comparisons with NaN are false.
SCALAR: dict[str, tuple[int, Callable[..., Any]]] = {
    "where": (3, lambda condition, a, b: np.where(condition != 0, a, b)),
    "minimum": (2, np.minimum), "maximum": (2, np.maximum), "logaddexp": (2, np.logaddexp),
    **{op: (1, getattr(np, op)) for op in ("exp2", "expm1", "log2", "log10", "log1p", "tan", "sinh", "cosh")},
    "rint": (1, np.rint), "asinh": (1, np.arcsinh), "acosh": (1, np.arccosh), "atanh": (1, np.arctanh),
    "erf": (1, m.erf), "sigmoid": (1, m.sigmoid), "hypot": (2, np.hypot), "fmod": (2, np.fmod),
    "copysign": (2, np.copysign),
}  # fmt: skip

# Operations on integers, whose values are the bits of words; only recurrences have them. Arithmetic wraps around,
# division rounds down and is 0 by 0, shifts by 64 and more bits leave the sign or 0. The static arguments of
# "wrap" are the bits of a narrower integer, and whether it has a sign; those of the lookups are the words of a
# table, whose entry at a number they are. The number is one of 0, 1, ... up to the last place.
INTEGER_COMPARISONS = ("ieq", "ine", "ilt", "ile", "unsigned_ilt", "unsigned_ile")
INTEGER: dict[str, int] = {
    **dict.fromkeys(("iadd", "isub", "imul", "iand", "ior", "ixor", "ishl", "ishr", "unsigned_ishr"), 2),
    **dict.fromkeys(("idiv", "imod", "unsigned_idiv", "unsigned_imod", *INTEGER_COMPARISONS), 2),
    **dict.fromkeys(("to_float", "unsigned_to_float", "to_integer", "wrap", "lookup", "integer_lookup"), 1),
}
"""Their numbers of operands."""


def arity(name: str) -> int:
    """The number of operands of an operation."""
    if name in INTEGER:
        return INTEGER[name]
    return SCALAR[name][0] if name in SCALAR else TABLE[name].arity


def numpy_function(name: str) -> Callable[..., Any]:
    """The numpy function of an operation that is not composite."""
    if name == "lookup":
        return m.lookup
    function = SCALAR[name][1] if name in SCALAR else TABLE[name].numpy
    assert function is not None, f"{name} is a composite operation"
    return function


def suggestion(name: str, known: list[str], cutoff: float = 0.6) -> str:
    """``; did you mean X?`` for the nearest known name, or nothing; `cutoff` is how near, at most 1."""
    folded = {k.lower().replace("_", ""): k for k in known}
    near = difflib.get_close_matches(name.lower().replace("_", ""), list(folded), n=1, cutoff=cutoff)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def lookup(name: str) -> Operation:
    """The row of an operation. Raises ValueError if there is none; the nearest name is suggested."""
    row = TABLE.get(name)
    if row is None:
        raise ValueError(f"there is no operation {name!r}{suggestion(name, list(TABLE))}")
    return row
