"""Gradients of reductions over pairs of arrays of numpy and cupy: explicit, without a tape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays, _backends, bincounts
from upsweep._arrays.dispatch import handlers
from upsweep._compiler.formulas import adjoint
from upsweep._compiler.formulas.nodes import Node, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._utils.integers import as_integer
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
    places = range(len(call.inputs)) if places is None else _checked(places, len(call.inputs))
    if _arrays.any_torch(*arrays):
        return handlers("torch").pairs.value_and_grad(call, arrays, cotangent, places, ranges, n_threads)
    if _arrays.any_dask(*arrays, cotangent):
        return _lazily(call, arrays, cotangent, places, ranges, n_threads)
    if _arrays.any_dlpack_only(*arrays):

        def of_lent(**lent: Any) -> tuple[Any, Any]:
            *taken, seed = map(_backends.user_array, lent.values())
            return value_and_grad(call, taken, seed, places, ranges, n_threads)

        named = {each.name: array for each, array in zip(call.inputs, arrays)}
        both: tuple[Any, Any] = _arrays.call_via_dlpack(of_lent, {**named, "the cotangent": cotangent})
        return both
    placement = _home(call, arrays, cotangent)
    if placement is None:
        given = [call.operand(place, array) for place, array in enumerate(arrays)]
        return _value_and_grad(_Problem(call, given, np, ranges, n_threads), cotangent, places)
    with placement.library.on(placement.ordinal):
        problem = _Problem(call, list(arrays), placement.library.numpy_like, ranges, n_threads)
        return _value_and_grad(problem, cotangent, places)


def _checked(places: Sequence[int], n_inputs: int) -> list[int]:
    if not isinstance(places, (Sequence, np.ndarray)) or isinstance(places, str):
        raise TypeError(f"wrt: expected a sequence of places of inputs, got {places!r}")
    checked = [as_integer(place, "wrt") for place in places]
    for place in checked:
        if not 0 <= place < n_inputs:
            raise ValueError(f"wrt: expected places of inputs, from 0 to {n_inputs - 1}, got {place}")
    return checked


def _home(call: PairCall, arrays: Sequence[Any], cotangent: Any) -> _arrays.Placement | None:
    """Where arrays of a device are, if their library computes as numpy does."""
    views: dict[str, Array | None] = {
        each.name: call.operand(place, arrays[place]) for place, each in enumerate(call.inputs)
    }
    placement = _arrays.common_placement(views)
    if placement is not None:
        if placement.library.numpy_like is None:
            raise TypeError(
                f"{call.inputs[0].name}: explicit gradients are of arrays of numpy, torch and cupy, not of a "
                f"{placement.library.name}"
            )
        if cotangent is not None:
            _arrays.common_placement({**views, "cotangent": _arrays.as_operand(cotangent, "cotangent")})
    return placement


def _value_and_grad(problem: _Problem, cotangent: Any, places: Sequence[int]) -> tuple[Any, Any]:
    seed = problem.check(cotangent)
    gradients = tuple(problem.gradient(seed, place) for place in places)
    return problem.call.shaped(problem.results), gradients


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
    given = call.lazy_operands(arrays, cotangent)
    problem = _Problem(call, given[: len(arrays)], np, None, n_threads)
    return _value_and_grad(problem, None if cotangent is None else given[-1], places)


class _Problem:
    """A reduction of arrays of numpy, or of `xp`, whose functions are numpy's, and what it came to."""

    def __init__(
        self, call: PairCall, given: list[Array], xp: Any, ranges: Any, n_threads: int | None
    ) -> None:  # fmt: skip
        self.call, self.given, self.xp, self.ranges, self.n_threads = call, given, xp, ranges, n_threads
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
            ones: Array = self.xp.ones_like(values)
            return ones
        plain = self.xp is np and not _arrays.any_dask(cotangent)
        array = _arrays.as_array(cotangent, "cotangent") if plain else cotangent
        shape = self.call.shaped((values,)).shape
        if array.shape != shape:
            raise ValueError(f"cotangent: expected the result's shape, {shape}, got {array.shape}")
        taken: Array = array.astype(values.dtype, copy=False).reshape(values.shape)
        return taken

    def gradient(self, cotangent: Array, place: int) -> Array:
        wanted = next((v for v in self.reduction.variables if v.static[0] == place), None)
        if wanted is None:
            nothing: Array = self.xp.zeros_like(self.given[place])
            return nothing
        if self.call.reduction in adjoint.SUMS:
            gradient = self._of_sum(cotangent, wanted)
        else:
            gradient = self._of_chosen(cotangent, wanted)
        return _collected(gradient, self.ready[place]).reshape(self.given[place].shape)

    def _of_sum(self, cotangent: Array, wanted: Node) -> Array:
        extras = [cotangent]
        if self.call.reduction == "logsumexp":
            extras.append(self._finite(self.results[0]))
        elif self.call.reduction == "sumsoftmaxweight":
            if self._log_totals is None:
                (self._log_totals,) = self._run(adjoint.log_total(self.reduction), self.ready)
            extras += [self._finite(self._log_totals), self.results[0]]
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
        total: Array = self.xp.zeros((*batch, n_result, wanted.dim), cotangent.dtype)
        if n_columns == 0:
            return total
        for feature in range(dim):
            chosen = places[..., feature].reshape(*batch, n_rows * k)
            arrays = [self._paired(array, position, chosen, k) for position, array in enumerate(self.ready)]
            weights = cotangents[..., feature].reshape(*batch, n_rows * k, 1)
            paired = adjoint.at_selected_pairs(self.reduction, feature)
            own = variable(wanted.static[0], wanted.dim, "p" if kind == "p" else "i")
            if own not in paired.variables:
                continue
            pulled = adjoint.pullback(paired, own, len(arrays))
            nowhere = chosen[..., None] < 0  # nothing was chosen, and the formula's value there may be anything
            weights = self.xp.where(nowhere, 0, weights).astype(cotangent.dtype, copy=False)
            (part,) = _run(pulled, [*arrays, weights], Sizes(n_rows * k, 1, batch), None, self.n_threads)
            part = self.xp.where(nowhere, 0, part).astype(total.dtype, copy=False)
            if kind == "p" or kind == self.reduction.rows:
                total = total + part.reshape(*batch, n_rows, k, wanted.dim).sum(-2)
            else:
                total = total + self._added_up(part, chosen, total.shape)
        return total

    def _added_up(self, part: Array, chosen: Array, shape: tuple[int, ...]) -> Array:
        """Each row of `part` added to the row of the result, of this shape, that was chosen."""
        n_entries, (n_rows, dim) = math.prod(shape[:-2]), shape[-2:]
        first = self.xp.arange(n_entries).reshape(*shape[:-2], 1) * n_rows
        keys = self.xp.where(chosen < 0, -1, chosen + first).reshape(-1)
        sums: Array = bincounts.bincount(
            keys, part.reshape(-1, dim), length=n_entries * n_rows, invalid="drop", deterministic=True,
            dtype=part.dtype, n_threads=self.n_threads,
        )  # fmt: skip
        return sums.reshape(shape)

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
        wide = self.xp.broadcast_to(array, (*self.sizes.batch, *array.shape[-2:]))
        paired: Array
        if kind == self.reduction.rows:
            paired = self.xp.repeat(wide, k, axis=-2)
        else:
            paired = self.xp.take_along_axis(wide, self.xp.maximum(chosen, 0)[..., None], axis=-2)
        return paired

    def _finite(self, log_totals: Array) -> Array:
        """With +inf for the -inf of rows of no pairs, so that none has a share: exp(F - inf) = 0."""
        finite: Array = self.xp.where(log_totals == -np.inf, np.inf, log_totals)
        return finite.astype(log_totals.dtype, copy=False)


def _run(
    reduction: PairReduction, arrays: Sequence[Array], sizes: Sizes, triple: Any, n_threads: int | None
) -> tuple[Array, ...]:  # fmt: skip
    if _arrays.any_dask(*arrays):
        return handlers("dask").pairs.run_pairs(reduction, arrays, *sizes, n_threads=n_threads)
    views = [_arrays.as_operand(array, "array") for array in arrays]
    return _backends.run_pairs(
        reduction, views, sizes.n_i, sizes.n_j, sizes.batch, triple, n_threads=n_threads
    )  # fmt: skip


def _collected(gradient: Array, array: Array) -> Array:
    """The gradient (batch, n, dim) summed over what the array was broadcast along; parameters have one row."""
    shape = (1,) * (gradient.ndim - 1) + array.shape if array.ndim == 1 else array.shape
    axes = tuple(axis for axis in range(gradient.ndim - 1) if shape[axis] == 1 and gradient.shape[axis] != 1)
    if axes:
        gradient = gradient.sum(axis=axes, keepdims=True, dtype=np.float64).astype(gradient.dtype)
    return gradient
