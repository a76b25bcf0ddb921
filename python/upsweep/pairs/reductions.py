"""The reductions of a LazyTensor, by KeOps' names, over rows, columns or features.

`function_of` caches a `PairFunction` for each signature of an expression, so that only the first call constructs
nodes. Methods of which KeOps has two names are created by `_reduction`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from upsweep._compiler.formulas.nodes import KINDS
from upsweep._compiler.formulas.parser import reduction_name
from upsweep._utils.examples import named, with_example
from upsweep._utils.integers import as_integer
from upsweep._utils.lru_cache import LRUCache
from upsweep.pairs.expression import build, flatten
from upsweep.pairs.function import Input, PairFunction, check_k, formula_settings
from upsweep.pairs.operations import Operations
from upsweep.pairs.pending import PendingReduction

_functions: LRUCache[Any, PairFunction] = LRUCache(1024)
_FORMULA_KEYWORDS = ("dtype_acc", "use_double_acc", "sum_scheme", "precision")
_CALL_KEYWORDS = ("backend", "device_id", "ranges", "out", "n_threads", "method")
_IGNORED_KEYWORDS = ("enable_chunks", "use_fast_math", "optional_flags")  # hints for KeOps' compiler
# Reductions of features, which are part of a formula, keep their axis and ignore the others, as KeOps does.
_FEATURE_KEYWORDS = (
    "keepdim", "keepdims", "backend", "device_id", "dtype_acc", "use_double_acc", "sum_scheme", *_IGNORED_KEYWORDS,
)  # fmt: skip


class ValuesAndIndices(NamedTuple):
    """The results of `topk`, and of torch's functions `min` and `max`, by torch's names."""

    values: Any
    indices: Any


def take_formula_options(keywords: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of a formula's numbers from keywords, and return them; remove those without effect."""
    for name in _IGNORED_KEYWORDS:
        keywords.pop(name, None)
    return {name: keywords.pop(name) for name in _FORMULA_KEYWORDS if name in keywords}


def function_of(
    roots: tuple[Any, ...], reduction: str, rows: str, k: int = 0, **settings: Any
) -> tuple[PairFunction, list[Any]]:
    """The function of an expression's reduction, and the leaves that are its inputs."""
    steps, leaves = flatten(*roots)

    def construct() -> PairFunction:
        formula, *weights = build(steps)
        names = [f"Var({n},{leaf.dim},{KINDS.index(leaf.kind)})" for n, leaf in enumerate(leaves)]
        inputs = [Input(name, leaf.kind, leaf.dim) for name, leaf in zip(names, leaves)]
        weight = weights[0] if weights else None
        return PairFunction(inputs, formula, reduction, rows, weight=weight, k=k, **settings)

    return _functions.get_or_build((steps, reduction, rows, k, *settings.items()), construct), leaves


# The results of the examples of generated methods, which reduce the distances 9, 1 and 4 from one row.
_RESULTS = {
    "Sum": "array([[14.]])", "LogSumExp": "array([[9.00704851]])", "SumSoftMaxWeight": "array([[1.]])",
    "Min": "array([[1.]])", "ArgMin": "array([[1]])", "Min_ArgMin": "(array([[1.]]), array([[1]]))",
    "Max": "array([[9.]])", "ArgMax": "array([[0]])", "Max_ArgMax": "(array([[9.]]), array([[0]]))",
    "KMin": "array([[1., 4.]])", "ArgKMin": "array([[1, 2]])",
    "KMin_ArgKMin": "(array([[1., 4.]]), array([[1, 2]]))",
}  # fmt: skip


def _named(method: Callable[..., Any], op: str, name: str, doc: str) -> Callable[..., Any]:
    """The method with its name, docstring and example."""
    operand = "weight=Vj(np.ones((3, 1))), " if op == "SumSoftMaxWeight" else "K=2, " if "KMin" in op else ""
    example = with_example(
        ">>> import numpy as np", ">>> from upsweep import Vi, Vj",
        ">>> distances = Vi(np.zeros((1, 1))).sqdist(Vj(np.array([[3.0], [1.0], [2.0]])))",
        f">>> distances.{name}({operand}axis=1)", _RESULTS[op],
    )  # fmt: skip
    return example(named(method, name, doc, "Reductions"))


def _reduction(op: str, name: str, doc: str) -> Callable[..., Any]:
    """The method of a reduction over rows or columns."""

    def method(self: Reductions, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        return self.reduction(op, axis=axis, dim=dim, **kwargs)

    return _named(method, op, name, f"{doc} over rows or columns.")


def _k_reduction(op: str, name: str, doc: str) -> Callable[..., Any]:
    """The method of a reduction to the K smallest values."""

    def method(self: Reductions, K: int, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        return self.reduction(op, opt_arg=K, axis=axis, dim=dim, **kwargs)

    return _named(method, op, name, doc)


def _feature_reduction(op: str, name: str, doc: str) -> Callable[..., Any]:
    """The method of a reduction over rows, columns, or by default features."""

    def method(self: Reductions, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        axis = axis if dim is None else dim
        if axis in (-1, self.dim() - 1):
            for keyword in kwargs:
                if keyword not in _FEATURE_KEYWORDS:
                    raise TypeError(f"{keyword}: is no keyword of a reduction over features")
            return self._apply(name)
        return self.reduction(op, axis=axis, **kwargs)

    return _named(method, op, name, f"{doc} over features (the default), rows or columns.")


def _alias(op: str, name: str) -> Callable[..., Any]:
    """The method `name` by KeOps' other name, which takes keywords alone."""

    def method(self: Reductions, **kwargs: Any) -> Any:
        return getattr(self, name)(**kwargs)

    return _named(method, op, f"{name}_reduction", f"`{name}`.")


class Reductions(Operations):
    """Sums, softmax weights and extremes."""

    __slots__ = ()

    def reduction(
        self, reduction_op: str, other: Any = None, opt_arg: Any = None, axis: int | None = None,
        dim: int | None = None, call: bool = True, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Reduce over rows (axis 0) or columns (axis 1), batch dimensions not counted.

        Parameters
        ----------
        reduction_op : str
            KeOps' name: "Sum", "LogSumExp", "ArgKMin", ...
        other : LazyTensor, optional
            The weights of "LogSumExp" and "SumSoftMaxWeight".
        opt_arg : int, optional
            K of the "KMin" family.
        axis, dim : int
            The axis, by numpy's or torch's name: the number of batch dimensions, or one more.
        call : bool
            False returns an object that can be printed and called, instead of the result.
        **kwargs
            `ranges` (see `BlockRanges`), `out`, `n_threads`, `backend`, `device_id`, `dtype_acc`,
            `use_double_acc`, `sum_scheme`, `precision` and, for dask arrays, `method`: see `Genred`.

        Returns
        -------
        array of shape batch + (rows, dim), or a pair of arrays

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> x, y = np.array([[0.0], [3.0]]), np.array([[1.0], [2.0], [5.0]])
        >>> Vi(x).sqdist(Vj(y)).reduction("Min_ArgMin", axis=1)
        (array([[1.],
               [1.]]), array([[0],
               [1]]))
        >>> print(Vi(x).sqdist(Vj(y)).reduction("Sum", axis=1, call=False))
        Reduction
            formula: SqDist(Var(0,1,0),Var(1,1,1))
            inputs: Vi(1), Vj(1)
            shape: (2, 3, 1)
            reduction: Sum (axis=1)
            loop nest:
                for j in 0 .. 3:    # once, into packed records
                    v1 = j[0]
                for i in 0 .. 2:    # threads and vector lanes
                    v0 = i[0]
                    sum = 0    # kept in float64
                    for j in 0 .. 3, or in its ranges:    # blocks in cache
                        v2 = sub(v0, v1)
                        v3 = mul(v2, v2)
                        sum takes results: v3
        """
        name = reduction_name(reduction_op)
        axis = dim if axis is None else axis
        n_batch = self.dim() - 3
        if axis is None:
            raise ValueError(f"axis: expected {n_batch} (rows) or {n_batch + 1} (columns), got none")
        pair_axis = as_integer(axis, "axis") - n_batch
        if axis < 0:
            pair_axis += self.dim()
        if pair_axis not in (0, 1):
            raise ValueError(f"axis: expected {n_batch} (rows) or {n_batch + 1} (columns), got {axis}")
        k = check_k(opt_arg, "K", reduction_op) if "kmin" in name else 0
        options = take_formula_options(kwargs) if kwargs else {}
        for keyword in list(kwargs):
            if keyword in ("keepdim", "keepdims"):
                if not kwargs.pop(keyword):
                    raise ValueError(f"{keyword}: results keep the last axis; for the first column write [..., 0]")
            elif keyword not in _CALL_KEYWORDS:
                known = ", ".join(_CALL_KEYWORDS + _FORMULA_KEYWORDS)
                raise TypeError(f"{keyword}: is no keyword of a reduction; there are {known}")
        settings = formula_settings(name, **options) if options else {}
        roots: tuple[Any, ...] = (self,)
        meta = self._meta
        if other is not None:
            self._refuse_vectors((other,))
            roots = self, self._lift(other)
            meta = self._join(reduction_op, roots)
        function, leaves = function_of(roots, name, "j" if pair_axis == 0 else "i", k, **settings)
        if self.ranges is not None and kwargs.get("ranges") is None:
            kwargs["ranges"] = self.ranges
        if self.backend is not None:
            kwargs.setdefault("backend", self.backend)
        pending = PendingReduction(function, leaves, meta, reduction_op, pair_axis, kwargs)
        return pending() if call and pending.is_complete else pending

    sum = _feature_reduction("Sum", "sum", "The sum")
    sum_reduction = _reduction("Sum", "sum_reduction", "The sum")

    def mean(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The mean over features (the default), rows or columns: ``mean(axis=1)`` for each row, over its columns.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> Vi(np.zeros((1, 1))).sqdist(Vj(np.array([[3.0], [1.0]]))).mean(axis=1)
        array([[5.]])
        """
        axis = axis if dim is None else dim
        total = self.sum(axis=axis, **kwargs)
        if axis in (-1, self.dim() - 1):
            return total / self.ndim
        if isinstance(total, PendingReduction) or kwargs.get("ranges", self.ranges) is not None:
            raise ValueError("mean: takes arrays without ranges; divide the sum by the number of pairs")
        return total / self._shape[axis]

    def topk(
        self, k: int, axis: int | None = None, dim: int | None = None, largest: bool = True, **kwargs: Any
    ) -> Any:
        """The k largest values over rows or columns in decreasing order, and their indices, as `torch.topk`.

        NaN comes last, not first as torch's. With ``largest=False`` the smallest in increasing order, as
        `Kmin_argKmin`.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> Vi(np.zeros((1, 1))).sqdist(Vj(np.array([[3.0], [1.0], [2.0]]))).topk(2, axis=1)
        ValuesAndIndices(values=array([[9., 4.]]), indices=array([[0, 2]]))
        """
        smallest = (-self if largest else self).Kmin_argKmin(k, axis=axis, dim=dim, **kwargs)
        if isinstance(smallest, PendingReduction):
            if not largest:
                return smallest
            raise ValueError("topk: takes arrays; (-K).Kmin_argKmin(k, axis) can be called with them later")
        values, indices = smallest
        return ValuesAndIndices(-values if largest else values, indices)

    def _extremes(self, name: str, axis: Any, **kwargs: Any) -> Any:
        """``torch.min(x, dim)`` or ``torch.max(x, dim)``."""
        if axis in (-1, self.dim() - 1):
            return ValuesAndIndices(getattr(self, name)(**kwargs), getattr(self, f"arg{name}")(**kwargs))
        both = getattr(self, f"{name}_arg{name}")(axis=axis, **kwargs)
        return both if isinstance(both, PendingReduction) else ValuesAndIndices(*both)

    def logsumexp(self, axis: int | None = None, dim: int | None = None, weight: Any = None, **kwargs: Any) -> Any:
        """``log(sum(exp(x) * weight))`` over rows or columns, without overflow.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> (Vi(np.array([[1000.0]])) * Vj(np.ones((2, 1)))).logsumexp(axis=1).round(4)
        array([[1000.6931]])
        """
        if weight is not None:
            kwargs["other"] = weight  # KeOps' older name
        return self.reduction("LogSumExp", axis=axis, dim=dim, **kwargs)

    def sumsoftmaxweight(self, weight: Any, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """``sum(exp(x) * weight) / sum(exp(x))`` over rows or columns, without overflow: softmax attention.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> scores = Vi(np.zeros((1, 1))) * Vj(np.ones((2, 1)))
        >>> scores.sumsoftmaxweight(Vj(np.array([[1.0], [3.0]])), axis=1)
        array([[2.]])
        """
        return self.reduction("SumSoftMaxWeight", other=weight, axis=axis, dim=dim, **kwargs)

    logsumexp_reduction = _alias("LogSumExp", "logsumexp")
    sumsoftmaxweight_reduction = _alias("SumSoftMaxWeight", "sumsoftmaxweight")

    min = _feature_reduction("Min", "min", "The minimum, NaN if any value is,")
    max = _feature_reduction("Max", "max", "The maximum, NaN if any value is,")
    argmin = _feature_reduction("ArgMin", "argmin", "The int64 index of the minimum, the first of equal values,")
    argmax = _feature_reduction("ArgMax", "argmax", "The int64 index of the maximum, the first of equal values,")
    min_reduction = _reduction("Min", "min_reduction", "The minimum")
    max_reduction = _reduction("Max", "max_reduction", "The maximum")
    argmin_reduction = _reduction("ArgMin", "argmin_reduction", "The index of the minimum")
    argmax_reduction = _reduction("ArgMax", "argmax_reduction", "The index of the maximum")
    min_argmin = _reduction("Min_ArgMin", "min_argmin", "The minimum, and its index,")
    max_argmax = _reduction("Max_ArgMax", "max_argmax", "The maximum, and its index,")
    Kmin = _k_reduction("KMin", "Kmin", "The K smallest values, increasing, NaN last; +inf where there are fewer.")
    argKmin = _k_reduction("ArgKMin", "argKmin", "The int64 indices of `Kmin`; -1 where there are fewer values.")
    Kmin_argKmin = _k_reduction("KMin_ArgKMin", "Kmin_argKmin", "The K smallest values, and their indices.")
    min_argmin_reduction = _alias("Min_ArgMin", "min_argmin")
    max_argmax_reduction = _alias("Max_ArgMax", "max_argmax")
    Kmin_reduction = _alias("KMin", "Kmin")
    argKmin_reduction = _alias("ArgKMin", "argKmin")
    Kmin_argKmin_reduction = _alias("KMin_ArgKMin", "Kmin_argKmin")
