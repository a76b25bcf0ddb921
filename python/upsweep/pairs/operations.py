"""The operations of a LazyTensor: those of KeOps, by its names, on the features of each pair."""

from __future__ import annotations

import math
from typing import Any

from upsweep._compiler.formulas import nodes, ops
from upsweep._utils.integers import as_integer
from upsweep.pairs.graph import Expression, Leaf, Meta, build, flatten, join_meta, transposed

__all__ = ["Operations"]

_NOTHING = Meta(None, None, None, None, None)
# What KeOps has and this has not: refused by name, before it is an AttributeError.
_REFUSED = {
    "real", "imag", "angle", "conj", "real2complex", "imag2complex", "exp1j", "trace_operator",
}  # fmt: skip


def _is_number(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


class Operations(Expression):
    """Arithmetic, functions, norms and indexing. Each returns an expression; nothing is computed."""

    __slots__ = ()
    __array_ufunc__ = None  # arrays on the left leave operators to us
    __hash__ = object.__hash__

    # ---- how expressions are made ------------------------------------------------------------------------------

    def _new(self, op: str | None, args: tuple[Any, ...], static: tuple[Any, ...], dim: int, meta: Meta) -> Any:
        made = object.__new__(type(self))
        made._op, made._args, made._static, made.ndim, made._meta = op, args, static, dim, meta
        made.ranges, made.backend = self.ranges, self.backend
        return made

    def _lift(self, value: Any) -> Any:
        """A number, list or array as an expression."""
        if isinstance(value, Expression):
            return value
        if type(value) is int:
            return self._new("constant", (), (float(value),), 1, _NOTHING)
        if type(value) is float:  # a parameter, so that another number is no other formula
            return self._new(None, (Leaf([value], "p", 1),), (), 1, _NOTHING)
        made: Any = type(self)
        return made(value)

    def _apply(self, op: str, *others: Any, static: tuple[Any, ...] = (), reverse: bool = False) -> Any:
        """The operation on this and others, with the dim that its row of the table gives."""
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
            try:
                dim = row.dim(tuple([arg.ndim for arg in args]), static)
            except ops.DimError:
                self._complain(op, args, static)
        made = self._new(op, args, static, dim, self._join(op, args))
        for arg in args:
            if arg.ranges is not None or arg.backend is not None:
                _adopt(made, arg)
        return made

    def _complain(self, op: str, args: tuple[Any, ...], static: tuple[Any, ...]) -> None:
        """Raise the error of the formula's language, which names the operands."""
        steps, _ = flatten(*args, gaps=True)
        nodes.make(op, *build(steps), static=static)
        raise AssertionError(f"{op} takes dims {[arg.ndim for arg in args]} after all")

    def _join(self, op: str, args: tuple[Any, ...]) -> Meta:
        meta: Meta = args[0]._meta
        for arg in args[1:]:
            if arg._meta is not meta and arg._meta is not _NOTHING:
                try:
                    meta = join_meta(meta, arg._meta)
                except (TypeError, ValueError) as error:
                    written = " and ".join(self._texts(*args))
                    raise type(error)(f"in {op} of {written}: {error}") from None
        return meta

    def _text(self, limit: int | None = None) -> str:
        return self._texts(self, limit=limit)[0]

    @staticmethod
    def _texts(*parts: Any, limit: int | None = 80) -> list[str]:
        """The formulas of parts of one formula: what two of them read has two names."""
        from upsweep._compiler.formulas.nodes import text

        steps, _ = flatten(*parts, gaps=True)
        return [text(root, limit) for root in build(steps)]

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise NotImplementedError(f"LazyTensor.{name}: KeOps has it, upsweep has not")
        known = [] if name.startswith("_") else [each for each in dir(type(self)) if not each.startswith("_")]
        near = ops.suggestion(name, known)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}")

    # ---- arithmetic --------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return self if _is_number(other, 0) else self._apply("add", other)

    def __radd__(self, other: Any) -> Any:
        return self if _is_number(other, 0) else self._apply("add", other, reverse=True)

    def __sub__(self, other: Any) -> Any:
        return self if _is_number(other, 0) else self._apply("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return -self if _is_number(other, 0) else self._apply("sub", other, reverse=True)

    def _times(self, other: Any, reverse: bool) -> Any:
        if _is_number(other, 0):
            return 0
        if _is_number(other, 1):
            return self
        return -self if _is_number(other, -1) else self._apply("mul", other, reverse=reverse)

    def __mul__(self, other: Any) -> Any:
        return self._times(other, False)

    def __rmul__(self, other: Any) -> Any:
        return self._times(other, True)

    def __truediv__(self, other: Any) -> Any:
        return self if _is_number(other, 1) else self._apply("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        if _is_number(other, 0):
            return 0
        return self._apply("inverse") if _is_number(other, 1) else self._apply("div", other, reverse=True)

    def __or__(self, other: Any) -> Any:
        """``x | y``: the scalar product of features."""
        return self._scalar_product(other, False)

    def __ror__(self, other: Any) -> Any:
        return self._scalar_product(other, True)

    def _scalar_product(self, other: Any, reverse: bool) -> Any:
        other = self._lift(other)
        if other.ndim != self.ndim:
            written = " | ".join(self._texts(self, other))
            raise ValueError(f"in {written}: expected operands of the same dim, got {self.ndim} and {other.ndim}")
        return self._apply("scalprod", other, reverse=reverse)

    def __neg__(self) -> Any:
        return self._apply("neg")

    def __abs__(self) -> Any:
        return self._apply("abs")

    def __pow__(self, other: Any) -> Any:
        if type(other) is int:
            return self._apply("square") if other == 2 else self._apply("pow", static=(other,))
        if _is_number(other, 0.5):
            return self._apply("sqrt")
        if _is_number(other, -0.5):
            return self._apply("rsqrt")
        return self._apply("powf", other)

    def __rpow__(self, other: Any) -> Any:
        return self._apply("powf", other, reverse=True)

    def power(self, other: Any) -> Any:
        """``x ** other``: an integer, a number or an expression."""
        return self**other

    # ---- comparisons: 1 where they hold, else 0 ----------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        return self._apply("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._apply("ne", other)

    def __lt__(self, other: Any) -> Any:
        return self._apply("lt", other)

    def __gt__(self, other: Any) -> Any:
        return self._apply("lt", other, reverse=True)

    def __le__(self, other: Any) -> Any:
        return self._apply("le", other)

    def __ge__(self, other: Any) -> Any:
        return self._apply("le", other, reverse=True)

    def __bool__(self) -> bool:
        raise TypeError(f"{self._text(80)!r} has a value for each pair (i, j), and is neither true nor false")

    # ---- functions of each feature -----------------------------------------------------------------------------

    def abs(self) -> Any:
        """The absolute value."""
        return self._apply("abs")

    def exp(self) -> Any:
        """e to the power of x."""
        return self._apply("exp")

    def log(self) -> Any:
        """The natural logarithm."""
        return self._apply("log")

    def xlogx(self) -> Any:
        """``x * log(x)``, 0 at 0."""
        return self._apply("xlogx")

    def sin(self) -> Any:
        """The sine."""
        return self._apply("sin")

    def cos(self) -> Any:
        """The cosine."""
        return self._apply("cos")

    def asin(self) -> Any:
        """The arcsine."""
        return self._apply("asin")

    def acos(self) -> Any:
        """The arccosine."""
        return self._apply("acos")

    def atan(self) -> Any:
        """The arctangent."""
        return self._apply("atan")

    def atan2(self, other: Any) -> Any:
        """The angle of the points (other, self)."""
        return self._apply("atan2", other)

    def tanh(self) -> Any:
        """The hyperbolic tangent."""
        return self._apply("tanh")

    def sinxdivx(self) -> Any:
        """``sin(x) / x``, 1 at 0."""
        return self._apply("sinxdivx")

    def sinc(self) -> Any:
        """``sin(pi * x) / (pi * x)``, 1 at 0."""
        return (math.pi * self).sinxdivx()

    def sqrt(self) -> Any:
        """The square root."""
        return self._apply("sqrt")

    def rsqrt(self) -> Any:
        """One over the square root, 0 at 0."""
        return self._apply("rsqrt")

    def square(self) -> Any:
        """``x * x``."""
        return self._apply("square")

    def sign(self) -> Any:
        """-1, 0 or 1."""
        return self._apply("sign")

    def step(self) -> Any:
        """0 below 0, else 1."""
        return self._apply("step")

    def relu(self) -> Any:
        """0 below 0, else x."""
        return self._apply("relu")

    def floor(self) -> Any:
        """The largest integer that is not above x."""
        return self._apply("floor")

    def round(self, other: int = 0) -> Any:
        """Rounded to so many decimals."""
        return self._apply("round", static=(other,))

    def clamp(self, other1: Any, other2: Any) -> Any:
        """At least the first, at most the second."""
        if type(other1) is int and type(other2) is int:
            return self._apply("clampint", static=(other1, other2))
        return self._apply("clamp", other1, other2)

    def ifelse(self, other1: Any, other2: Any) -> Any:
        """The first where x >= 0, else the second."""
        return self._apply("ifelse", other1, other2)

    def mod(self, modulus: Any, offset: Any = 0) -> Any:
        """x shifted by multiples of the modulus to between offset and offset + modulus."""
        return self._apply("mod", modulus, offset)

    # ---- norms and distances -----------------------------------------------------------------------------------

    def sqnorm2(self) -> Any:
        """The sum of squares of all features."""
        return self._apply("sqnorm2")

    def norm2(self) -> Any:
        """The Euclidean norm of the features."""
        return self._apply("norm2")

    def norm(self, dim: int) -> Any:
        """`norm2`; `dim` is the last axis."""
        if dim not in (-1, self.dim() - 1):
            raise ValueError(f"dim: norms are over the last axis, {self.dim() - 1}, got {dim}")
        return self.norm2()

    def normalize(self) -> Any:
        """The features over their norm."""
        return self._apply("normalize")

    def sqdist(self, other: Any) -> Any:
        """The squared Euclidean distance."""
        return self._apply("sqdist", other)

    def weightedsqnorm(self, other: Any) -> Any:
        """The squared norm with a weight for all, one for each feature, or a matrix of them."""
        return self._apply("weightedsqnorm", other, reverse=True)

    def weightedsqdist(self, g: Any, s: Any) -> Any:
        """``(x - g).weightedsqnorm(s)``."""
        return (self - g).weightedsqnorm(s)

    def difference_matrix(self, other: Any) -> Any:
        """All differences of two features, row after row."""
        return self._apply("difference_matrix", other)

    def softdtw_sqdist(self, other: Any, gamma: Any) -> Any:
        """The cost of aligning two short sequences of numbers, smoothed by gamma."""
        return self._apply("softdtw_sqdist", other, gamma)

    # ---- features ----------------------------------------------------------------------------------------------

    def elem(self, i: int) -> Any:
        """The feature i."""
        return self._apply("elem", static=(i,))

    def extract(self, i: int, d: int) -> Any:
        """d features, from i on."""
        return self._apply("extract", static=(i, d))

    def __getitem__(self, key: Any) -> Any:
        """A feature or a slice of them: ``x[k]``, ``x[k:l]``, or with a colon for each other axis before.

        Negative numbers count from the end; an ellipsis stands for all other axes.
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
            place = as_integer(key, "index")
        except TypeError:
            raise ValueError(f"a LazyTensor is indexed by integers and slices, got {key!r}") from None
        return self.elem(self._from_start(place))

    def _from_start(self, index: int) -> int:
        return index + self.ndim if index < 0 else index

    def one_hot(self, D: int) -> Any:
        """A vector of dim D that is 1 at the rounded number, else 0."""
        return self._apply("one_hot", static=(D,))

    def concat(self, other: Any) -> Any:
        """The features of both, one after the other."""
        return self._apply("concat", other)

    @staticmethod
    def concatenate(tuple_of_lt: tuple[Any, ...], axis: int = -1) -> Any:
        """The features of all, one after the other; `axis` is the last one."""
        if not isinstance(tuple_of_lt, tuple) or not tuple_of_lt:
            raise ValueError("tuple_of_lt: expected a tuple of LazyTensors")
        first = tuple_of_lt[0]
        if axis not in (-1, first.dim() - 1):
            raise ValueError(
                f"axis: LazyTensors are concatenated along the last one, {first.dim() - 1}, got {axis}"
            )
        for other in tuple_of_lt[1:]:
            first = first.concat(other)
        return first

    @staticmethod
    def cat(tuple_of_lt: tuple[Any, ...], dim: int) -> Any:
        """`concatenate`, by torch's name."""
        return Operations.concatenate(tuple_of_lt, dim)

    def matvecmult(self, other: Any) -> Any:
        """The product of the matrix x, row after row, with a vector."""
        return self._apply("matvecmult", other)

    def vecmatmult(self, other: Any) -> Any:
        """The product of the vector x with a matrix, row after row."""
        return self._apply("vecmatmult", other)

    def tensorprod(self, other: Any) -> Any:
        """All products of two features, row after row."""
        return self._apply("tensorprod", other)

    def keops_tensordot(
        self, other: Any, dimfa: Any, dimfb: Any, contfa: Any, contfb: Any, *args: Any
    ) -> Any:  # fmt: skip
        """The contraction of two tensors of these shapes over axes of both, its axes then permuted."""
        static = tuple(tuple(part) if isinstance(part, (tuple, list)) else (part,) for part in
                       (dimfa, dimfb, contfa, contfb, *args))  # fmt: skip
        return self._apply("tensordot", other, static=static)

    def keops_kron(self, other: Any, dimfself: Any, dimfother: Any) -> Any:
        """The Kronecker product of two tensors of these shapes."""
        return self._apply("kron", other, static=(tuple(dimfself), tuple(dimfother)))

    def bspline(self, x: Any, k: int = 0) -> Any:
        """The B-splines of order k at x, a number; self are their knots."""
        return self._apply("bspline", x, static=(k,))

    def factorize(self, other: Any) -> Any:
        """x: common parts are computed once anyway."""
        return self

    def auto_factorize(self) -> Any:
        """x: common parts are computed once anyway."""
        return self

    # ---- transposes --------------------------------------------------------------------------------------------

    def t(self) -> Any:
        """The same values with rows as columns."""

        def copy(node: Any, args: tuple[Any, ...]) -> Any:
            meta = node._meta
            made = node._new(node._op, args, node._static, node.ndim, meta._replace(ni=meta.nj, nj=meta.ni))
            made.ranges = None
            return made

        made = transposed(self, copy)
        made.ranges = None if self.ranges is None else _swapped(self.ranges)
        return made

    T = property(t)

    def dim(self) -> int:
        """The number of axes, batch dimensions and features among them."""
        batch = self._meta.batch
        return 3 if batch is None else 3 + len(batch)


def _adopt(made: Any, arg: Any) -> None:
    """Block-sparsity and backend of an operand; two that have them have to agree."""
    if arg.backend is not None and made.backend is None:
        made.backend = arg.backend
    if arg.ranges is None or arg.ranges is made.ranges:
        return
    if made.ranges is not None and not _agree(made.ranges, arg.ranges):
        raise ValueError("ranges: the operands have different ones")
    made.ranges = arg.ranges


def _agree(a: Any, b: Any) -> bool:
    from upsweep.pairs.ranges import same_ranges

    return same_ranges(a, b)


def _swapped(ranges: Any) -> Any:
    from upsweep.pairs.ranges import BlockRanges

    return ranges.T if isinstance(ranges, BlockRanges) else (*ranges[3:6], *ranges[:3])
