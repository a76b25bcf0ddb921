"""Gradients of reductions over pairs of numpy's arrays: explicit, without a tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays, _dispatch
from upsweep._expr import adjoint
from upsweep._expr.nodes import Node, variable
from upsweep._expr.reduction import PairReduction
from upsweep.pairs.calls import PairCall, Sizes, refuse_lazy_ranges

__all__ = ["value_and_grad"]

Array = NDArray[Any]


def value_and_grad(
    call: PairCall, arrays: Sequence[Any], cotangent: Any = None, places: Sequence[int] | None = None,
    ranges: Any = None, n_threads: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """The result of a call, and the gradients of sum(cotangent * result) in arrays at these places."""
    if call.reduction not in adjoint.DIFFERENTIABLE:
        raise ValueError(f"reduction: {call.reduction} has no gradient; its result are indices")
    call.check_number(len(arrays))
    places = range(len(call.inputs)) if places is None else places
    if _arrays.any_torch(*arrays):
        from upsweep._torch import pairs

        return pairs.value_and_grad(call, arrays, cotangent, places, ranges, n_threads)
    if _arrays.any_dask(*arrays, cotangent):
        return _lazily(call, arrays, cotangent, places, ranges, n_threads)
    given = [call.operand(place, array) for place, array in enumerate(arrays)]
    if _arrays.any_on_device(*given) or _arrays.any_lent(*arrays):
        raise NotImplementedError("explicit gradients are of numpy's arrays; tensors have torch's own")
    problem = _Problem(call, given, ranges, n_threads)
    gradients = tuple(problem.gradient(problem.check(cotangent), place) for place in places)
    return call.shaped(problem.results), gradients


def _lazily(
    call: PairCall, arrays: Sequence[Any], cotangent: Any, places: Sequence[int], ranges: Any,
    n_threads: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """The same of dask arrays: gradients of sums are sums, and their graphs are those of such."""
    if call.reduction not in adjoint.SUMS:
        raise NotImplementedError(
            f"reduction: {call.reduction} of dask arrays has no gradients; chosen pairs may lie in any block"
        )
    refuse_lazy_ranges(ranges)
    problem = _Problem(call, call.lazy_operands(arrays), None, n_threads)
    gradients = tuple(problem.gradient(problem.check(cotangent), place) for place in places)
    return call.shaped(problem.results), gradients


class _Problem:
    def __init__(self, call: PairCall, given: list[Array], ranges: Any, n_threads: int | None) -> None:
        self.call, self.given, self.ranges, self.n_threads = call, given, ranges, n_threads
        self.reduction = call.of(call.check_dtypes([array.dtype.name for array in given]))
        self.sizes, self.ready = call.measure(given)
        self.results = self._run(self.reduction, self.ready)
        self._log_totals: Array | None = None

    def _run(self, reduction: PairReduction, arrays: Sequence[Array]) -> tuple[Array, ...]:
        triple = self.call.triple(self.ranges, self.sizes, reduction.rows)
        return _run(reduction, arrays, self.sizes, triple, self.n_threads)

    def check(self, cotangent: Any) -> Array:
        """The cotangent in the shape that engines give results in: batch + (rows, dim)."""
        values = self.results[0]
        if cotangent is None:
            return np.ones_like(values)
        array = cotangent if _arrays.any_dask(cotangent) else _arrays.as_array(cotangent, "cotangent")
        shape = self.call.shaped((values,)).shape
        if array.shape != shape:
            raise ValueError(f"cotangent: expected the result's shape, {shape}, got {array.shape}")
        return array.astype(values.dtype, copy=False).reshape(values.shape)

    def gradient(self, cotangent: Array, place: int) -> Array:
        wanted = next((v for v in self.reduction.variables if v.static[0] == place), None)
        if wanted is None:
            return np.zeros_like(self.given[place])
        if self.call.reduction in adjoint.SUMS:
            gradient = self._of_sum(cotangent, wanted)
        else:
            gradient = self._of_chosen(cotangent, wanted)
        return _collected(gradient, self.ready[place]).reshape(self.given[place].shape)

    def _of_sum(self, cotangent: Array, wanted: Node) -> Array:
        extras = [cotangent]
        if self.call.reduction == "logsumexp":
            extras.append(_finite(self.results[0]))
        elif self.call.reduction == "sumsoftmaxweight":
            if self._log_totals is None:
                (self._log_totals,) = self._run(adjoint.log_total(self.reduction), self.ready)
            extras += [_finite(self._log_totals), self.results[0]]
        pulled = adjoint.pullback(self.reduction, wanted, len(self.ready))
        return self._run(pulled, [*self.ready, *extras])[0]

    def _of_chosen(self, cotangent: Array, wanted: Node) -> Array:
        """The gradient of the pairs that were chosen, one for each row, feature and place among the K least."""
        kind, batch = wanted.static[1], self.sizes.batch
        n_rows, n_columns = self._own_sizes()
        k, dim = max(self.call.k, 1), self.reduction.formula.dim
        places = self._places().reshape(*batch, n_rows, k, dim)
        cotangents = cotangent.reshape(places.shape)
        n_result = n_columns if kind not in ("p", self.reduction.rows) else n_rows
        total = np.zeros((*batch, n_result, wanted.dim), self.reduction.dtype)
        if n_columns == 0:
            return total
        for feature in range(dim):
            chosen = places[..., feature].reshape(*batch, n_rows * k)
            arrays = [self._paired(array, position, chosen, k) for position, array in enumerate(self.ready)]
            weights = cotangents[..., feature].reshape(*batch, n_rows * k, 1)
            paired = adjoint.at_place(self.reduction, feature)
            own = variable(wanted.static[0], wanted.dim, "p" if kind == "p" else "i")
            if own not in paired.variables:
                continue
            pulled = adjoint.pullback(paired, own, len(arrays))
            sizes = Sizes(n_rows * k, 1, batch)
            (part,) = _run(
                pulled, [*arrays, np.where(chosen[..., None] < 0, 0, weights)], sizes, None, self.n_threads
            )
            part[chosen < 0] = 0  # nothing was chosen, and the formula's value there may be anything
            if kind == "p" or kind == self.reduction.rows:
                total += part.reshape(*batch, n_rows, k, wanted.dim).sum(-2)
            else:
                for entry in np.ndindex(*batch):
                    np.add.at(total[entry], chosen[entry], part[entry])
        return total

    def _own_sizes(self) -> tuple[int, int]:
        n_i, n_j, _ = self.sizes
        return (n_i, n_j) if self.reduction.rows == "i" else (n_j, n_i)

    def _places(self) -> Array:
        if len(self.results) > 1:
            return self.results[1]
        arg = replace(self.reduction, reduction=f"arg{self.reduction.reduction}")
        places: Array = self._run(arg, self.ready)[0]
        return places

    def _paired(self, array: Array, position: int, chosen: Array, k: int) -> Array:
        """An array with the row or the column of each chosen pair."""
        kind = self.call.inputs[position].kind
        if kind == "p":
            return array
        wide = np.broadcast_to(array, (*self.sizes.batch, *array.shape[-2:]))
        if kind == self.reduction.rows:
            return np.repeat(wide, k, axis=-2)
        return np.take_along_axis(wide, np.maximum(chosen, 0)[..., None], axis=-2)


def _run(
    reduction: PairReduction, arrays: Sequence[Array], sizes: Sizes, triple: Any, n_threads: int | None
) -> tuple[Array, ...]:  # fmt: skip
    if _arrays.any_dask(*arrays):
        from upsweep._dask import pairs

        return pairs.run_pairs(reduction, arrays, *sizes, n_threads=n_threads)
    return _dispatch.run_pairs(
        reduction, arrays, sizes.n_i, sizes.n_j, sizes.batch, triple, n_threads=n_threads
    )  # fmt: skip


def _finite(log_totals: Array) -> Array:
    """With +inf for the -inf of rows that sum to nothing, so that their pairs have no share: exp(F - inf) = 0."""
    finite: Array = np.where(np.isneginf(log_totals), np.inf, log_totals).astype(log_totals.dtype, copy=False)
    return finite


def _collected(gradient: Array, array: Array) -> Array:
    """The gradient (batch, n, dim) summed over what the array was broadcast along; parameters have one row."""
    shape = (1,) * (gradient.ndim - 1) + array.shape if array.ndim == 1 else array.shape
    axes = tuple(axis for axis in range(gradient.ndim - 1) if shape[axis] == 1 and gradient.shape[axis] != 1)
    if axes:
        gradient = gradient.sum(axis=axes, keepdims=True, dtype=np.float64).astype(gradient.dtype)
    return gradient
