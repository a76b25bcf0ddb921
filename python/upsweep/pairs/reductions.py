"""The reductions of a LazyTensor: those of KeOps, by its names, over rows or over columns."""

from __future__ import annotations

from typing import Any

from upsweep._compiler.formulas.parser import reduction_name
from upsweep._utils.integers import as_integer
from upsweep.pairs.calls import AUTO, Input, Options, PairCall, number_of_least, options_of
from upsweep.pairs.derivatives import Derivatives
from upsweep.pairs.graph import KINDS, build, flatten
from upsweep.pairs.reduced import Reduced

__all__ = ["Reductions"]

_KEPT = 1024
# By what a formula looks like and how it is reduced.
_calls: dict[Any, PairCall] = {}
_OF_FORMULAS = ("dtype_acc", "use_double_acc", "sum_scheme")
_OF_CALLS = ("backend", "device_id", "ranges", "out", "n_threads", "method")
# Hints for KeOps' compiler, which mean nothing here.
_IGNORED = ("enable_chunks", "use_fast_math", "optional_flags")


def call_of(
    roots: tuple[Any, ...], reduction: str, rows: str, k: int, options: Options
) -> tuple[PairCall, list[Any]]:
    """The call of an expression's reduction, and the leaves that are its inputs."""
    steps, leaves = flatten(*roots)
    key = steps, reduction, rows, k, options
    call = _calls.get(key)
    if call is None:
        nodes = build(steps)
        inputs = [Input(_name(leaf, place), leaf.kind, leaf.dim) for place, leaf in enumerate(leaves)]
        weight = nodes[1] if len(nodes) > 1 else None
        call = PairCall(inputs, nodes[0], reduction, rows, weight=weight, k=k, options=options)
        if len(_calls) >= _KEPT:
            _calls.clear()
        _calls[key] = call
    return call, leaves


def _name(leaf: Any, place: int) -> str:
    return f"Var({place},{leaf.dim},{KINDS.index(leaf.kind)})"


class Reductions(Derivatives):
    """Sums, soft and hard extremes, over an axis of pairs; over features where that is the axis."""

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
            Weights of "LogSumExp" and "SumSoftMaxWeight".
        opt_arg : int, optional
            K of "KMin" and its kin.
        axis, dim : int
            The axis, by numpy's or torch's name: the number of batch dimensions, or one more.
        call : bool
            False: return what can be printed and called instead of the result.
        **kwargs
            `ranges` (see `BlockRanges`), `out`, `n_threads`; `backend`, `device_id`; `dtype_acc`,
            `use_double_acc`, `sum_scheme`; with dask arrays `method`: see `Genred`.

        Returns
        -------
        array of shape batch + (rows, dim), or a pair of arrays
        """
        name = reduction_name(reduction_op)
        axis = dim if axis is None else axis
        if axis is None:
            raise ValueError("axis: expected the number of an axis of pairs")
        n_batch = self.dim() - 3
        place = as_integer(axis, "axis") - n_batch
        if axis < 0:
            place += self.dim()
        if place not in (0, 1):
            raise ValueError(f"axis: expected {n_batch} (rows) or {n_batch + 1} (columns), got {axis}")
        k = number_of_least(opt_arg, "K", reduction_op) if "kmin" in name else 0
        settings, formula_settings = {}, {}
        for key, value in kwargs.items():
            if key in _OF_CALLS:
                settings[key] = value
            elif key in _OF_FORMULAS:
                formula_settings[key] = value
            elif key not in _IGNORED:
                raise TypeError(
                    f"{key}: is no keyword of a reduction; there are {', '.join(_OF_CALLS + _OF_FORMULAS)}"
                )
        options = options_of(name, **formula_settings) if formula_settings else AUTO
        roots: tuple[Any, ...] = (self,)
        meta = self._meta
        if other is not None:
            roots = self, self._lift(other)
            meta = self._join(reduction_op, roots)
        prepared, leaves = call_of(roots, name, "j" if place == 0 else "i", k, options)
        if self.ranges is not None and settings.get("ranges") is None:
            settings["ranges"] = self.ranges
        if self.backend is not None and "backend" not in settings:
            settings["backend"] = self.backend
        reduced = Reduced(prepared, leaves, meta, reduction_op, place, settings)
        return reduced() if call and reduced.is_complete else reduced

    # ---- sums --------------------------------------------------------------------------------------------------

    def sum(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The sum over features (the default), rows or columns."""
        axis = axis if dim is None else dim
        if axis in (-1, self.dim() - 1):
            return self._apply("sum")
        return self.reduction("Sum", axis=axis, **kwargs)

    def sum_reduction(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The sum over rows or columns."""
        return self.reduction("Sum", axis=axis, dim=dim, **kwargs)

    def logsumexp(self, axis: int | None = None, dim: int | None = None, weight: Any = None, **kwargs: Any) -> Any:
        """``log(sum(exp(x) * weight))``, without overflow."""
        if weight is not None:
            kwargs["other"] = weight  # a name of old for it
        return self.reduction("LogSumExp", axis=axis, dim=dim, **kwargs)

    def logsumexp_reduction(self, **kwargs: Any) -> Any:
        """`logsumexp`."""
        return self.logsumexp(**kwargs)

    def sumsoftmaxweight(self, weight: Any, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """``sum(exp(x) * weight) / sum(exp(x))``, without overflow."""
        return self.reduction("SumSoftMaxWeight", other=weight, axis=axis, dim=dim, **kwargs)

    def sumsoftmaxweight_reduction(self, **kwargs: Any) -> Any:
        """`sumsoftmaxweight`."""
        return self.sumsoftmaxweight(**kwargs)

    # ---- extremes ----------------------------------------------------------------------------------------------

    def _extreme(self, op: str, axis: int, dim: int | None, kwargs: dict[str, Any]) -> Any:
        axis = axis if dim is None else dim
        if axis in (-1, self.dim() - 1):
            return self._apply(op.lower())
        return self.reduction(op, axis=axis, **kwargs)

    def min(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The least over features (the default), rows or columns; NaN where one is."""
        return self._extreme("Min", axis, dim, kwargs)

    def max(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The largest over features (the default), rows or columns; NaN where one is."""
        return self._extreme("Max", axis, dim, kwargs)

    def argmin(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The place of the least, the first of equal ones; int64 over rows or columns."""
        return self._extreme("ArgMin", axis, dim, kwargs)

    def argmax(self, axis: int = -1, dim: int | None = None, **kwargs: Any) -> Any:
        """The place of the largest, the first of equal ones; int64 over rows or columns."""
        return self._extreme("ArgMax", axis, dim, kwargs)

    def min_reduction(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The least over rows or columns."""
        return self.reduction("Min", axis=axis, dim=dim, **kwargs)

    def max_reduction(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The largest over rows or columns."""
        return self.reduction("Max", axis=axis, dim=dim, **kwargs)

    def argmin_reduction(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The place of the least over rows or columns."""
        return self.reduction("ArgMin", axis=axis, dim=dim, **kwargs)

    def argmax_reduction(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The place of the largest over rows or columns."""
        return self.reduction("ArgMax", axis=axis, dim=dim, **kwargs)

    def min_argmin(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The least over rows or columns, and its place."""
        return self.reduction("Min_ArgMin", axis=axis, dim=dim, **kwargs)

    def min_argmin_reduction(self, **kwargs: Any) -> Any:
        """`min_argmin`."""
        return self.min_argmin(**kwargs)

    def max_argmax(self, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The largest over rows or columns, and its place."""
        return self.reduction("Max_ArgMax", axis=axis, dim=dim, **kwargs)

    def max_argmax_reduction(self, **kwargs: Any) -> Any:
        """`max_argmax`."""
        return self.max_argmax(**kwargs)

    def Kmin(self, K: int, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The K least over rows or columns in increasing order; +inf where there are fewer."""
        return self.reduction("KMin", opt_arg=K, axis=axis, dim=dim, **kwargs)

    def Kmin_reduction(self, **kwargs: Any) -> Any:
        """`Kmin`."""
        return self.Kmin(**kwargs)

    def argKmin(self, K: int, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The places of the K least, int64; -1 where there are fewer."""
        return self.reduction("ArgKMin", opt_arg=K, axis=axis, dim=dim, **kwargs)

    def argKmin_reduction(self, **kwargs: Any) -> Any:
        """`argKmin`."""
        return self.argKmin(**kwargs)

    def Kmin_argKmin(self, K: int, axis: int | None = None, dim: int | None = None, **kwargs: Any) -> Any:
        """The K least and their places."""
        return self.reduction("KMin_ArgKMin", opt_arg=K, axis=axis, dim=dim, **kwargs)

    def Kmin_argKmin_reduction(self, **kwargs: Any) -> Any:
        """`Kmin_argKmin`."""
        return self.Kmin_argKmin(**kwargs)
