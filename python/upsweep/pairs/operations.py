"""The operations of a LazyTensor, by KeOps' names: functions of the features of each pair, and derivatives.

Methods return expressions; nothing is computed. Those that only name an operation of the table are created by
`_unary`, `_binary` and `_operator`; `_shows` appends the example of a method to its docstring.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from upsweep import _arrays
from upsweep._compiler.formulas import nodes, ops
from upsweep._compiler.formulas.nodes import text
from upsweep._utils.examples import named, with_example
from upsweep._utils.integers import as_integer
from upsweep.pairs import protocols
from upsweep.pairs.expression import NO_ARRAYS, Expression, Leaf, Meta, build, flatten, join_meta, postorder
from upsweep.pairs.protocols import COMPARISONS, REMEDIES
from upsweep.pairs.ranges import BlockRanges, same_ranges

# Methods of KeOps that this package does not have.
_UNSUPPORTED = {
    "real", "imag", "angle", "conj", "real2complex", "imag2complex", "exp1j", "trace_operator",
}  # fmt: skip


class MissingMethodError(AttributeError, NotImplementedError):
    """A method of KeOps that this package does not have; an AttributeError, so that `hasattr` is False."""


def _shows(call: str, result: str) -> Callable[..., Any]:
    """A decorator: the example of a method is the result of this call."""
    return with_example(">>> from upsweep import LazyTensor, Vi, Vj", f">>> {call}", result)


def _unary(op: str, doc: str, formula: str = "") -> Callable[..., Any]:
    """The method of an operation on one operand, and the formula of its example where that is composite."""

    def method(self: Operations) -> Any:
        return self._apply(op)

    formula = formula or f"{ops.TABLE[op].keops}(Var(0,3,0))"
    return _shows(f"Vi(0, 3).{op}().formula", repr(formula))(named(method, op, doc, "Operations"))


def _binary(op: str, doc: str, reverse: bool = False, dims: tuple[int, ...] = (3, 3, 1)) -> Callable[..., Any]:
    """The method of an operation on two operands, which `reverse` exchanges; `dims` are those of its example."""

    def method(self: Operations, other: Any) -> Any:
        return self._apply(op, other, reverse=reverse)

    dim, other_dim, result_dim = dims
    shape = (1, 1, result_dim) if result_dim > 1 else (1, 1)
    call = f"Vi(0, {dim}).{op}(Vj(1, {other_dim})).shape"
    return _shows(call, repr(shape))(named(method, op, doc, "Operations"))


def _operator(
    op: str, special: Mapping[float, Callable[[Any], Any]] = MappingProxyType({}), reverse: bool = False
) -> Callable[..., Any]:
    """The operator of an operation on two operands; `special` are the results for some numbers as the other."""

    def method(self: Operations, other: Any) -> Any:
        if isinstance(other, (int, float)) and other in special and not isinstance(other, bool):
            return special[other](self)
        return self._apply(op, other, reverse=reverse)

    return method


def _same(x: Any) -> Any:
    return x


_FACTORS: dict[float, Callable[[Any], Any]] = {1: _same, -1: operator.neg}


class Operations(Expression):
    """Arithmetic, functions, norms, indexing and derivatives."""

    __slots__ = ()
    __hash__ = object.__hash__

    # ---- construction ------------------------------------------------------------------------------------------

    def _new(self, op: str | None, args: tuple[Any, ...], static: tuple[Any, ...], dim: int, meta: Meta) -> Any:
        new = object.__new__(type(self))
        new._op, new._args, new._static, new.ndim, new._meta = op, args, static, dim, meta
        new.ranges, new.backend = self.ranges, self.backend
        return new

    def _lift(self, value: Any) -> Any:
        """A number, list or array as an expression."""
        if isinstance(value, Expression):
            return value
        if type(value) is int:
            return self._new("constant", (), (float(value),), 1, NO_ARRAYS)
        if type(value) is float:  # a parameter, so that formulas that differ in it share compiled code
            return self._new(None, (Leaf([value], "p", 1),), (), 1, NO_ARRAYS)
        lazy_tensor: Any = type(self)
        if getattr(value, "shape", None) == () and not isinstance(value, np.generic):
            value = self._as_own_dtype(value)
        return lazy_tensor(value)

    def _as_own_dtype(self, array: Any) -> Any:
        """An array of real numbers in the dtype of this expression's arrays; a tensor keeps its gradient."""
        own, name = self._meta.dtype, str(array.dtype).rpartition(".")[2]
        if own is None or name == own or not name.startswith(("float", "bfloat", "int", "uint", "bool")):
            return array
        return array.to(getattr(sys.modules["torch"], own)) if _arrays.any_torch(array) else array.astype(own)

    def _apply(self, op: str, *others: Any, static: tuple[Any, ...] = (), reverse: bool = False) -> Any:
        """The operation on this and other expressions; the dim is that of the table of operations."""
        row = ops.TABLE[op]
        if static:
            static = tuple(map(nodes.plain, static))
        if not others and row.elementwise and not static:
            return self._new(op, (self,), (), self.ndim, self._meta)
        args = (self, *[self._lift(other) for other in others])
        if reverse:
            args = args[::-1]
        if len(args) == 2 and row.elementwise and args[0].ndim == args[1].ndim:
            dim = self.ndim
        else:
            if self.ndim == 1 and (row.elementwise or row.dim is ops.contraction):
                self._refuse_vectors(others)
            try:
                dim = row.dim(tuple([arg.ndim for arg in args]), static)
            except ops.DimError:  # `make` raises the error that quotes the operands
                steps, _ = flatten(*args, gaps=True)
                nodes.make(op, *build(steps), static=static)
                raise
        result = self._new(op, args, static, dim, self._join(op, args))
        for arg in args:
            if arg.ranges is not None or arg.backend is not None:
                result._adopt_settings(arg)
        return result

    def _refuse_vectors(self, values: tuple[Any, ...]) -> None:
        """Raise for vectors with as many numbers as there are rows or columns, which would be parameters.

        Each pair would get a vector of results. `Pm` says that this is meant. The same holds for as many numbers
        as a batch dimension has entries.
        """
        batch = self._meta.batch or ()
        for value in values:
            shape: Any = (len(value),) if isinstance(value, list) else getattr(value, "shape", ())
            n = shape[0] if len(shape) == 1 and not isinstance(value, Expression) else 1
            if n > 1 and n in (self._meta.ni, self._meta.nj):
                raise ValueError(
                    f"a vector w of {n} numbers is {n} parameters of each pair; for one number of each column "
                    "write Vj(w[:, None]), of each row Vi(w[:, None]), for parameters Pm(w)"
                )
            if n > 1 and n in batch:
                nones = ", None" * (3 + batch[::-1].index(n))
                raise ValueError(
                    f"a vector w of {n} numbers is {n} parameters of each pair; for one number per batch write "
                    f"LazyTensor(w[:{nones}]), for parameters Pm(w)"
                )

    def _adopt_settings(self, operand: Any) -> None:
        """Take over `ranges` and `backend` of an operand; those of two operands have to agree."""
        if operand.backend is not None and self.backend is None:
            self.backend = operand.backend
        if operand.ranges is None or operand.ranges is self.ranges:
            return
        if self.ranges is not None and not same_ranges(self.ranges, operand.ranges):
            raise ValueError("ranges: the operands have different ones")
        self.ranges = operand.ranges

    def _join(self, op: str, args: tuple[Any, ...]) -> Meta:
        """The common properties of the operands."""
        meta: Meta = args[0]._meta
        for arg in args[1:]:
            if arg._meta is not meta and arg._meta is not NO_ARRAYS:
                try:
                    meta = join_meta(meta, arg._meta)
                except (TypeError, ValueError) as error:
                    written = " and ".join(self._texts(*args))
                    raise type(error)(f"in {op} of {written}: {error}{_shapes(args, error)}") from None
        return meta

    def _text(self, limit: int | None = None) -> str:
        return self._texts(self, limit=limit)[0]

    @staticmethod
    def _texts(*parts: Any, limit: int | None = 80) -> list[str]:
        """The texts of several parts of one formula, with consistent names of variables."""
        steps, _ = flatten(*parts, gaps=True)
        return [text(root, limit) for root in build(steps)]

    def __getattr__(self, name: str) -> Any:
        if name in _UNSUPPORTED:
            raise MissingMethodError(f"LazyTensor.{name}: KeOps has it, upsweep has not", name=name, obj=self)
        if name in REMEDIES:
            raise AttributeError(f"LazyTensor has no {name}; write {REMEDIES[name]}", name=name, obj=self)
        known = [] if name.startswith("_") else [each for each in dir(type(self)) if not each.startswith("_")]
        near = ops.suggestion(name, known, cutoff=0.8)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}")

    # ---- functions of numpy and torch --------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return protocols.call("numpy", name, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: dict[str, Any]) -> Any:
        return protocols.call("numpy", function.__name__, args, keywords)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return protocols.call("torch", function.__name__, args, kwargs or {})

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"a LazyTensor of shape {self.shape} stores no numbers and is no array: reduce it, as in K.sum(axis=1)"
            ", or take K @ numpy.eye(N) of a small one"
        )

    # ---- arithmetic --------------------------------------------------------------------------------------------

    __add__ = _operator("add", {0: _same})
    __radd__ = _operator("add", {0: _same}, reverse=True)
    __sub__ = _operator("sub", {0: _same})
    __rsub__ = _operator("sub", {0: operator.neg}, reverse=True)
    __mul__ = _operator("mul", _FACTORS)
    __rmul__ = _operator("mul", _FACTORS, reverse=True)
    __truediv__ = _operator("div", {1: _same})
    __rtruediv__ = _operator("div", {1: lambda x: x._apply("inverse")}, reverse=True)

    def __or__(self, other: Any, reverse: bool = False) -> Any:
        """``x | y``: the scalar product of features; of two comparisons, 1 where one of them holds."""
        other = self._lift(other)
        n_comparisons = (self._op in COMPARISONS) + (other._op in COMPARISONS)
        if n_comparisons == 2 or (n_comparisons == 1 and self.ndim == other.ndim == 1):
            return self._one_of(other)
        if other.ndim != self.ndim:
            written = " | ".join(self._texts(self, other))
            raise ValueError(f"in {written}: expected operands of the same dim, got {self.ndim} and {other.ndim}")
        return self._apply("scalprod", other, reverse=reverse)

    def __ror__(self, other: Any) -> Any:
        return self.__or__(other, True)

    def __neg__(self) -> Any:
        return self._apply("neg")

    def __pow__(self, other: Any) -> Any:
        if type(other) is int:
            return self._apply("square") if other == 2 else self._apply("pow", static=(other,))
        if isinstance(other, float) and other in (0.5, -0.5):
            return self._apply("sqrt" if other > 0 else "rsqrt")
        return self._apply("powf", other)

    __rpow__ = _operator("powf", reverse=True)

    def __floordiv__(self, other: Any) -> NoReturn:
        raise TypeError("//: is not defined for LazyTensors; write (x / y).floor()")

    __rfloordiv__ = __floordiv__

    def __rmatmul__(self, other: Any) -> NoReturn:
        raise TypeError("v @ K: is not defined for LazyTensors; write K.T @ v")

    def __mod__(self, other: Any) -> Any:
        return self.mod(other)

    def __rmod__(self, other: Any) -> Any:
        return self._lift(other).mod(self)

    @_shows("Vi(0, 3).power(2).formula", "'Square(Var(0,3,0))'")
    def power(self, other: Any) -> Any:
        """``x ** other``: an integer, a number or an expression."""
        return self**other

    # ---- comparisons: 1 where they hold, else 0 ----------------------------------------------------------------

    def _number_that_hold(self, symbol: str, other: Any) -> Any:
        """The sum of two comparisons; raises unless both are some."""
        other = self._lift(other)
        for each in (self, other):
            if each._op not in COMPARISONS:
                written = each._text(80)
                raise TypeError(
                    f"{symbol}: expected comparisons of LazyTensors, got {written}; compare it, as in (x > 0)"
                )
        return self + other

    def _one_of(self, other: Any) -> Any:
        return self._number_that_hold("|", other) >= 1

    @_shows("((Vi(0, 1) < Vj(1, 1)) & (Vi(0, 1) > 0)).shape", "(1, 1)")
    def __and__(self, other: Any) -> Any:
        """``(x < y) & (y < z)``: 1 where both comparisons hold, else 0."""
        return self._number_that_hold("&", other) >= 2

    def __xor__(self, other: Any) -> Any:
        """``(x < y) ^ (y < z)``: 1 where one comparison holds and the other does not, else 0."""
        return self._number_that_hold("^", other) == 1

    def __invert__(self) -> Any:
        """``~(x < y)``: 1 where the comparison does not hold, NaN included, else 0."""
        return self._number_that_hold("~", self) == 0

    __rand__, __rxor__ = __and__, __xor__

    __eq__ = _operator("eq")
    __ne__ = _operator("ne")
    __lt__ = _operator("lt")
    __gt__ = _operator("lt", reverse=True)
    __le__ = _operator("le")
    __ge__ = _operator("le", reverse=True)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self._text(80)!r} has a value for each pair (i, j), and is neither true nor false; combine "
            "comparisons by &, | and ~, each in parentheses"
        )

    def __float__(self) -> NoReturn:
        raise TypeError(f"a LazyTensor of shape {self.shape} is no number: reduce it, as in K.sum(axis=1)")

    def __len__(self) -> NoReturn:
        raise TypeError(f"a LazyTensor has no length; its shape is {self.shape}")

    __iter__ = None  # else Python would iterate by indices, until the first error

    # ---- functions of each feature -----------------------------------------------------------------------------

    abs = __abs__ = _unary("abs", "The absolute value.")
    exp = _unary("exp", "e to the power of x.")
    log = _unary("log", "The natural logarithm.")
    xlogx = _unary("xlogx", "``x * log(x)``, 0 at 0.")
    sin = _unary("sin", "The sine.")
    cos = _unary("cos", "The cosine.")
    asin = _unary("asin", "The arcsine.")
    acos = _unary("acos", "The arccosine.")
    atan = _unary("atan", "The arctangent.")
    atan2 = _binary("atan2", "The angle of the points (other, self).", dims=(3, 3, 3))
    tanh = _unary("tanh", "The hyperbolic tangent.")
    sinxdivx = _unary("sinxdivx", "``sin(x) / x``, 1 at 0.")
    sqrt = _unary("sqrt", "The square root.")
    rsqrt = _unary("rsqrt", "One over the square root, 0 at 0.")
    square = _unary("square", "``x * x``.")
    sign = _unary("sign", "-1, 0 or 1.")
    step = _unary("step", "0 below 0, else 1.")
    relu = _unary("relu", "0 below 0, else x.")
    floor = _unary("floor", "The largest integer that is not above x.")

    @_shows("Vi(0, 3).sinc().shape", "(1, 1, 3)")
    def sinc(self) -> Any:
        """``sin(pi * x) / (pi * x)``, 1 at 0."""
        return (math.pi * self).sinxdivx()

    @_shows("Vi(0, 3).round(2).formula", "'Round(Var(0,3,0),2)'")
    def round(self, other: int = 0) -> Any:
        """x rounded to `other` decimals."""
        return self._apply("round", static=(other,))

    @_shows("Vi(0, 3).clamp(0, 1).formula", "'ClampInt(Var(0,3,0),0,1)'")
    def clamp(self, other1: Any = None, other2: Any = None, min: Any = None, max: Any = None) -> Any:
        """x limited to [other1, other2], by torch's names `min` and `max`; one of them may be left out."""
        other1, other2 = min if other1 is None else other1, max if other2 is None else other2
        if other2 is None:
            if other1 is None:
                raise TypeError("clamp: expected min, max or both, got none")
            return (self < other1).ifelse(other1, self)
        if other1 is None:
            return (self > other2).ifelse(other2, self)
        if type(other1) is int and type(other2) is int:
            return self._apply("clampint", static=(other1, other2))
        return self._apply("clamp", other1, other2)

    @_shows("Vi(0, 3).ifelse(Vj(1, 3), 0).formula", "'IfElse(Var(0,3,0),Var(1,3,1),0)'")
    def ifelse(self, other1: Any, other2: Any) -> Any:
        """`other1` where x >= 0, else `other2`; if x is a comparison, such as ``x < y``, where it holds."""
        return self._apply("ifelse", other1, other2)

    @_shows("Vi(0, 3).mod(2).formula", "'Mod(Var(0,3,0),2,0)'")
    def mod(self, modulus: Any, offset: Any = 0) -> Any:
        """x modulo `modulus`, in [offset, offset + modulus), as `numpy.mod` within the rounding of x.

        Where abs(x / modulus) is above 2**24 in float32, 2**53 in float64, x has too few digits to tell, and the
        result is NaN or rounded.
        """
        if type(modulus) is int and modulus == 0:
            modulus = 0.0  # a parameter: products with a constant 0 are 0, NaN or not
        return self._apply("mod", modulus, offset)

    # ---- norms and distances -----------------------------------------------------------------------------------

    sqnorm2 = _unary("sqnorm2", "The squared Euclidean norm of the features.", "Sum(Square(Var(0,3,0)))")
    norm2 = _unary("norm2", "The Euclidean norm of the features.", "Sqrt(Sum(Square(Var(0,3,0))))")
    normalize = _unary(
        "normalize", "The features divided by their norm.", "Rsqrt(Sum(Square(Var(0,3,0)))) * Var(0,3,0)"
    )
    sqdist = _binary("sqdist", "The squared Euclidean distance.")
    weightedsqnorm = _binary(
        "weightedsqnorm", "The squared norm with one weight, one for each feature, or a matrix.", reverse=True
    )
    difference_matrix = _binary(
        "difference_matrix", "The differences of all pairs of features, row-major.", dims=(3, 3, 9)
    )

    @_shows("Vi(0, 3).norm(-1).formula", "'Sqrt(Sum(Square(Var(0,3,0))))'")
    def norm(self, dim: int | None = None, axis: int | None = None, p: float = 2) -> Any:
        """`norm2`, over the last axis, the features, ``norm(-1)``; `axis` is numpy's name of `dim`.

        With p=1 it is the sum of the absolute values.
        """
        dim = axis if dim is None else dim
        if dim not in (-1, self.dim() - 1):
            raise ValueError(
                f"dim: norms are over the features, axis {self.dim() - 1} or -1, got {dim}; over columns write "
                "(x**2).sum(axis=1) and take the square root"
            )
        if p not in (1, 2):
            raise ValueError(f"p: expected 1 or 2, got {p!r}; write (x.abs()**p).sum(-1) ** (1 / p)")
        return self.norm2() if p == 2 else self.abs()._apply("sum")

    @_shows("Vi(0, 3).weightedsqdist(Vj(1, 3), 2).formula", "'2 * Sum(Square((Var(0,3,0) - Var(1,3,1))))'")
    def weightedsqdist(self, g: Any, s: Any) -> Any:
        """``(x - g).weightedsqnorm(s)``."""
        return (self - g).weightedsqnorm(s)

    @_shows("Vi(0, 3).softdtw_sqdist(Vj(1, 3), 0.5).shape", "(1, 1)")
    def softdtw_sqdist(self, other: Any, gamma: Any) -> Any:
        """The cost of the alignment of two short sequences of numbers, smoothed by gamma."""
        return self._apply("softdtw_sqdist", other, gamma)

    # ---- features ----------------------------------------------------------------------------------------------

    @_shows("Vi(0, 3).elem(1).formula", "'Elem(Var(0,3,0),1)'")
    def elem(self, i: int) -> Any:
        """The feature i."""
        return self._apply("elem", static=(i,))

    @_shows("Vi(0, 3).extract(1, 2).formula", "'Extract(Var(0,3,0),1,2)'")
    def extract(self, i: int, d: int) -> Any:
        """d features, starting with i."""
        return self._apply("extract", static=(i, d))

    def __getitem__(self, key: Any) -> Any:
        """A feature or a slice of features: ``x[k]``, ``x[k:l]``, ``x[..., k]``, or a colon for each other axis.

        Negative numbers count from the end.
        """
        if isinstance(key, tuple):
            others = key[:-1]
            if others != (...,) and (len(key) != self.dim() or any(each != slice(None) for each in others)):
                raise ValueError(f"a LazyTensor is indexed along its last axis only, got {key}")
            key = key[-1]
        if isinstance(key, slice):
            if key.step not in (None, 1):
                raise ValueError(f"a LazyTensor is sliced in steps of 1, got {key.step}")
            start = 0 if key.start is None else self._from_start(key.start)
            return self.extract(start, (self.ndim if key.stop is None else self._from_start(key.stop)) - start)
        try:
            index = as_integer(key, "index")
        except TypeError:
            raise ValueError(f"a LazyTensor is indexed by integers and slices, got {key!r}") from None
        return self.elem(self._from_start(index))

    def _from_start(self, index: int) -> int:
        return index + self.ndim if index < 0 else index

    @_shows("Vi(0, 1).one_hot(3).formula", "'OneHot(Var(0,1,0),3)'")
    def one_hot(self, D: int) -> Any:
        """A vector of dim D: 1 at the index that x rounds to, else 0."""
        return self._apply("one_hot", static=(D,))

    concat = _binary("concat", "The features of both operands.", dims=(3, 2, 5))
    matvecmult = _binary("matvecmult", "The product of a row-major matrix x with a vector.", dims=(6, 3, 2))
    vecmatmult = _binary("vecmatmult", "The product of a vector x with a row-major matrix.", dims=(3, 6, 2))
    tensorprod = _binary("tensorprod", "The products of all pairs of features, row-major.", dims=(3, 2, 6))

    @staticmethod
    @_shows("LazyTensor.concatenate((Vi(0, 3), Vj(1, 2))).formula", "'Concat(Var(0,3,0),Var(1,2,1))'")
    def concatenate(tuple_of_lt: tuple[Any, ...], axis: int = -1) -> Any:
        """The features of all tensors; `axis` is the last one."""
        if not isinstance(tuple_of_lt, (tuple, list)) or not tuple_of_lt:
            raise ValueError("tuple_of_lt: expected a tuple or list of LazyTensors")
        first = tuple_of_lt[0]
        if axis not in (-1, first.dim() - 1):
            raise ValueError(
                f"axis: LazyTensors are concatenated along the last one, {first.dim() - 1}, got {axis}"
            )
        for other in tuple_of_lt[1:]:
            first = first.concat(other)
        return first

    @staticmethod
    @_shows("LazyTensor.cat((Vi(0, 3), Vj(1, 2)), -1).formula", "'Concat(Var(0,3,0),Var(1,2,1))'")
    def cat(tuple_of_lt: tuple[Any, ...], dim: int = -1) -> Any:
        """`concatenate`, by torch's name."""
        return Operations.concatenate(tuple_of_lt, dim)

    @_shows("Vi(0, 6).keops_tensordot(Vj(1, 6), (2, 3), (3, 2), (1,), (0,)).shape", "(1, 1, 4)")
    def keops_tensordot(self, other: Any, dimfa: Any, dimfb: Any, contfa: Any, contfb: Any, *args: Any) -> Any:
        """Tensors of shapes `dimfa` and `dimfb`, contracted over axes `contfa` and `contfb`, then permuted."""
        parts = dimfa, dimfb, contfa, contfb, *args
        static = tuple(tuple(part) if isinstance(part, (tuple, list)) else (part,) for part in parts)
        return self._apply("tensordot", other, static=static)

    @_shows("Vi(0, 4).keops_kron(Vj(1, 6), (2, 2), (3, 2)).shape", "(1, 1, 24)")
    def keops_kron(self, other: Any, dimfself: Any, dimfother: Any) -> Any:
        """The Kronecker product of tensors of these shapes."""
        return self._apply("kron", other, static=(tuple(dimfself), tuple(dimfother)))

    @_shows("LazyTensor([0.0, 1.0, 2.0, 3.0]).bspline(Vi(0, 1), 1).shape", "(1, 1, 2)")
    def bspline(self, x: Any, k: int = 0) -> Any:
        """The B-splines of order k at a number x; self are the knots."""
        return self._apply("bspline", x, static=(k,))

    @_shows("Vi(0, 3).factorize(1).formula", "'Var(0,3,0)'")
    def factorize(self, other: Any) -> Any:
        """x itself: common subexpressions are always computed once."""
        return self

    @_shows("Vi(0, 3).auto_factorize().formula", "'Var(0,3,0)'")
    def auto_factorize(self) -> Any:
        """x itself: common subexpressions are always computed once."""
        return self

    # ---- transposes --------------------------------------------------------------------------------------------

    @_shows("Vi(0, 3).t().formula", "'Var(0,3,1)'")
    def t(self) -> Any:
        """The same values with rows and columns exchanged."""
        copies: dict[int, Any] = {}
        swapped: dict[int, Leaf] = {}
        for node in postorder(self).values():
            if node._op is None:
                leaf = node._args[0]
                kind = {"i": "j", "j": "i", "p": "p"}[leaf.kind]
                args = [swapped.setdefault(id(leaf), Leaf(leaf.array, kind, leaf.dim, leaf.index))]
            else:
                args = [copies[id(arg)] for arg in node._args]
            meta = node._meta._replace(ni=node._meta.nj, nj=node._meta.ni)
            copies[id(node)] = node._new(node._op, tuple(args), node._static, node.ndim, meta)
            copies[id(node)].ranges = None
        result, ranges = copies[id(self)], self.ranges
        if ranges is not None:
            result.ranges = ranges.T if isinstance(ranges, BlockRanges) else (*ranges[3:6], *ranges[:3])
        return result

    T = property(t)

    @_shows("Vi(0, 3).dim()", "3")
    def dim(self) -> int:
        """The number of axes, with batch dimensions and features."""
        batch = self._meta.batch
        return 3 if batch is None else 3 + len(batch)

    # ---- derivatives -------------------------------------------------------------------------------------------

    def _derivative(self, op: str, dim: int, *args: Any) -> Any:
        args = (self, *args)
        return self._new(op, args, (), dim, self._join(op, args))

    def grad(self, other: Any, gradin: Any) -> Any:
        """The gradient of x in the variable `other`, applied to `gradin` of x's dim: a vector of other's dim.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> x, y = Vi(np.array([[1.0], [2.0]])), Vj(np.array([[0.0], [3.0]]))
        >>> x.sqdist(y).grad(x, 1).sum(axis=1)
        array([[-2.],
               [ 2.]])
        """
        variable, cotangent = _variable(other), self._lift(gradin)
        if cotangent.ndim != self.ndim:
            raise ValueError(f"gradin: expected dim {self.ndim}, as {self._text(80)} has, got {cotangent.ndim}")
        return self._derivative("grad", variable.ndim, variable, cotangent)

    @_shows("Vi(0, 3).sqdist(Vj(1, 3)).grad_matrix(Vi(0, 3)).shape", "(1, 1, 3)")
    def grad_matrix(self, other: Any) -> Any:
        """The concatenated gradients of all features of x in the variable `other`."""
        variable = _variable(other)
        return self._derivative("grad_matrix", self.ndim * variable.ndim, variable)

    @_shows("Vi(0, 3).sqdist(Vj(1, 3)).diff(Vi(0, 3), Vj(1, 3)).shape", "(1, 1)")
    def diff(self, other: Any, diffin: Any) -> Any:
        """The derivative of x along `diffin`, a tangent of the variable `other`."""
        variable, tangent = _variable(other), self._lift(diffin)
        if tangent.ndim != variable.ndim:
            raise ValueError(f"diffin: expected dim {variable.ndim}, as the variable has, got {tangent.ndim}")
        return self._derivative("diff", self.ndim, variable, tangent)

    @_shows("(Vi(0, 3) * 2).divergence(Vi(0, 3)).formula", "'6'")
    def divergence(self, var: Any) -> Any:
        """The divergence of x in a variable of its dim."""
        variable = _variable(var)
        if variable.ndim != self.ndim:
            raise ValueError(f"var: expected dim {self.ndim}, as {self._text(80)} has, got {variable.ndim}")
        return self._derivative("divergence", 1, variable)

    @_shows("Vi(0, 3).sqdist(Vj(1, 3)).laplacian(Vi(0, 3)).formula", "'6'")
    def laplacian(self, var: Any) -> Any:
        """The Laplacian of x, of dim 1, in a variable."""
        if self.ndim != 1:
            raise ValueError(f"laplacian: expected a formula of dim 1, got {self.ndim}: {self._text(80)}")
        return self._derivative("laplacian", 1, _variable(var))


def _shapes(args: tuple[Any, ...], error: Exception) -> str:
    """Which of the operands are arrays of which shapes, behind an error in their dtypes or devices."""
    arrays = [arg._args[0].array for arg in args if arg._op is None]
    shapes = [
        f"an array of shape {tuple(array.shape)} and dtype {array.dtype}"
        for array in arrays
        if hasattr(array, "shape")
    ]
    return f" (here {', '.join(shapes)})" if shapes and isinstance(error, TypeError) else ""


def _variable(expression: Any) -> Any:
    if not isinstance(expression, Operations) or expression._op is not None:
        raise ValueError(
            "other: expected a LazyTensor that is a variable: of an array, and no result of operations"
        )
    return expression
