"""Gradients of reductions over pairs of arrays of numpy, cupy and dask, computed explicitly.

The gradient of a sum is a sum over pairs of another formula (see `_compiler.formulas.adjoint`). That of an extreme
is the formula's gradient at the selected pairs, added up by row or by column. Tensors have autograd instead, in
`_torch.pairs`. `Genred.value_and_grad` and `PendingReduction.value_and_grad` call `value_and_grad`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from upsweep import _arrays, bincounts
from upsweep._compiler.formulas import adjoint
from upsweep._utils.integers import as_integer
from upsweep.pairs.function import BoundCall, PairFunction, PairProblem, Sizes

Array = Any  # of numpy, cupy or dask


def value_and_grad(
    function: PairFunction, arrays: Sequence[Any], cotangent: Any = None, wrt: Sequence[int] | None = None,
    ranges: Any = None, n_threads: int | None = None,
) -> Any:  # fmt: skip
    """The result of a call, and the gradients of ``sum(cotangent * result)`` in the inputs at positions `wrt`."""
    if function.reduction not in adjoint.DIFFERENTIABLE:
        raise ValueError(f"reduction: {function.reduction} has no gradient; its result are indices")
    positions = range(len(function.inputs)) if wrt is None else _check_positions(wrt, len(function.inputs))

    def run(bound: BoundCall) -> tuple[Any, Any]:
        placement = bound.placement
        xp: Any = np if placement is None else placement.library.numpy_like
        if placement is not None and xp is None:
            raise TypeError(
                f"{function.inputs[0].name}: explicit gradients are of arrays of numpy, torch and cupy, not of a "
                f"{placement.library.name}"
            )
        with contextlib.nullcontext() if placement is None else placement.library.on(placement.ordinal):
            gradients = _Gradients(function, bound, xp, tuple(positions))
            return function.shaped(gradients.results), tuple(map(gradients.at, positions))

    return function.dispatch(
        run, "value_and_grad", arrays, cotangent=cotangent, ranges=ranges, n_threads=n_threads, positions=positions
    )


def _check_positions(wrt: Sequence[int], n_inputs: int) -> list[int]:
    if not isinstance(wrt, (Sequence, np.ndarray)) or isinstance(wrt, str):
        raise TypeError(f"wrt: expected a sequence of places of inputs, got {wrt!r}")
    positions = [as_integer(position, "wrt") for position in wrt]
    for position in positions:
        if not 0 <= position < n_inputs:
            raise ValueError(f"wrt: expected places of inputs, from 0 to {n_inputs - 1}, got {position}")
    return positions


class _Gradients:
    """The results and the gradients of one call; `xp` has numpy's functions for its arrays."""

    def __init__(self, function: PairFunction, bound: BoundCall, xp: Any, positions: tuple[int, ...]) -> None:
        self.function, self.xp, self.problem = function, xp, bound.problem
        self.reduction, self.sizes = bound.problem.reduction, bound.problem.sizes
        self.arguments = bound.arguments
        self.is_lazy = _arrays.any_dask(*bound.arguments)
        if self.is_lazy and function.reduction not in adjoint.SUMS:
            raise NotImplementedError(
                f"reduction: {function.reduction} of dask arrays has no gradients; chosen pairs may lie in any "
                "block"
            )
        _, self.arrays = function.measure(bound.arguments)
        self.results = self._run(self.problem, self.arrays)
        self.cotangent = self._check(bound.cotangent)
        self._pullbacks = dict(
            adjoint.pullbacks(self.reduction, positions, len(self.arrays))
            if function.reduction in adjoint.SUMS
            else ()
        )

    def _run(self, problem: PairProblem, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return problem.run(arrays if self.is_lazy else [_arrays.as_operand(array, "array") for array in arrays])

    def _check(self, cotangent: Any) -> Array:
        """The cotangent in the shape of the backends' results: batch + (rows, dim)."""
        values = self.results[0]
        if cotangent is None:
            return self.xp.ones_like(values)
        is_plain = self.xp is np and not _arrays.any_dask(cotangent)
        array = _arrays.as_array(cotangent, "cotangent") if is_plain else cotangent
        shape = self.function.shaped((values,)).shape
        if array.shape != shape:
            raise ValueError(f"cotangent: expected the result's shape, {shape}, got {array.shape}")
        return array.astype(values.dtype, copy=False).reshape(values.shape)

    def at(self, position: int) -> Array:
        """The gradient in the input at a position."""
        argument = self.arguments[position]
        if self.function.reduction not in adjoint.SUMS:
            gradient = self._of_extreme(position)
        elif position in self._pullbacks:
            pullback = self.problem.with_reduction(self._pullbacks[position])
            (gradient,) = self._run(pullback, [*self.arrays, self.cotangent, *self._residuals])
        else:
            return self.xp.zeros_like(argument)
        axes = adjoint.broadcast_axes(gradient.shape, self.arrays[position].shape)
        if axes:
            gradient = gradient.sum(axis=axes, keepdims=True, dtype=np.float64).astype(gradient.dtype)
        return gradient.reshape(argument.shape)

    @cached_property
    def _residuals(self) -> list[Array]:
        """What pullbacks of exponential sums read after the cotangent."""
        if self.function.reduction == "logsumexp":
            return [self._finite(self.results[0])]
        if self.function.reduction == "sumsoftmaxweight":
            log_total = self.problem.with_reduction(adjoint.log_total(self.reduction))
            return [self._finite(self._run(log_total, self.arrays)[0]), self.results[0]]
        return []

    def _finite(self, log_totals: Array) -> Array:
        """+inf instead of the -inf of rows without pairs, so that exp(F - inf) = 0."""
        return self.xp.where(log_totals == -np.inf, np.inf, log_totals).astype(log_totals.dtype, copy=False)

    def _of_extreme(self, position: int) -> Array:
        """The gradients of the selected pairs, one for each row, feature and rank among the K smallest."""
        (_, kind, own_dim), batch = self.function.inputs[position], self.sizes.batch
        n_rows, n_columns = self.sizes[:2] if self.reduction.rows == "i" else self.sizes[1::-1]
        k, dim = max(self.function.k, 1), self.reduction.formula.dim
        indices = self._indices.reshape(*batch, n_rows, k, dim)
        cotangents = self.cotangent.reshape(indices.shape)
        by_column = kind not in ("p", self.reduction.rows)
        total = self.xp.zeros((*batch, n_columns if by_column else n_rows, own_dim), self.cotangent.dtype)
        if n_columns == 0:
            return total
        for feature in range(dim):
            columns = indices[..., feature].reshape(*batch, n_rows * k)
            paired = adjoint.at_selected_pairs(self.reduction, feature)
            pullback = dict(adjoint.pullbacks(paired, (position,), len(self.arrays))).get(position)
            if pullback is None:
                continue
            arrays = [self._at_pairs(array, at, columns, k) for at, array in enumerate(self.arrays)]
            weights = cotangents[..., feature].reshape(*batch, n_rows * k, 1)
            missing = columns[..., None] < 0  # no pair was selected; the formula's value may be anything
            weights = self.xp.where(missing, 0, weights).astype(self.cotangent.dtype, copy=False)
            sizes = Sizes(n_rows * k, 1, batch)
            problem = PairProblem(pullback, sizes, lambda rows: None, self.problem.n_threads)
            (part,) = self._run(problem, [*arrays, weights])
            part = self.xp.where(missing, 0, part).astype(total.dtype, copy=False)
            if by_column:
                total = total + self._scatter_sum(part, columns, total.shape)
            else:
                total = total + part.reshape(*batch, n_rows, k, own_dim).sum(-2)
        return total

    @cached_property
    def _indices(self) -> Array:
        """The columns of the extremes."""
        if len(self.results) > 1:
            return self.results[1]
        arg = replace(self.reduction, reduction=f"arg{self.reduction.reduction}")
        return self._run(self.problem.with_reduction(arg), self.arrays)[0]

    def _at_pairs(self, array: Array, position: int, columns: Array, k: int) -> Array:
        """An array gathered at the row or the column of each selected pair."""
        kind = self.function.inputs[position].kind
        if kind == "p":
            return array
        wide = self.xp.broadcast_to(array, (*self.sizes.batch, *array.shape[-2:]))
        if kind == self.reduction.rows:
            return self.xp.repeat(wide, k, axis=-2)
        return self.xp.take_along_axis(wide, self.xp.maximum(columns, 0)[..., None], axis=-2)

    def _scatter_sum(self, part: Array, columns: Array, shape: tuple[int, ...]) -> Array:
        """The rows of `part` added to the rows `columns` of an array of this shape."""
        n_entries, (n_rows, dim) = math.prod(shape[:-2]), shape[-2:]
        first = self.xp.arange(n_entries).reshape(*shape[:-2], 1) * n_rows
        keys = self.xp.where(columns < 0, -1, columns + first).reshape(-1)
        sums = bincounts.bincount(
            keys, part.reshape(-1, dim), length=n_entries * n_rows, invalid="drop", deterministic=True,
            dtype=part.dtype, n_threads=self.problem.n_threads,
        )  # fmt: skip
        return sums.reshape(shape)
