"""Reductions over pairs of numpy arrays: from a reduction to a compiled kernel, and to the driver that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._backends import cpu
from upsweep._backends.cpu._pairs import Kernel, Plan
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._compiler.llvm.pairs.compiled import CompiledReduction

__all__ = ["Plan", "plan", "run"]

Array = NDArray[Any]

_MOST_KERNELS = 512  # kept in memory; the oldest go first
_MOST_COLUMNS = 2**31  # of ranges: indices have as many bits as the numbers beside them
_kernels: dict[PairReduction, Kernel] = {}

_KINDS = {"sum": "sum", "logsumexp": "logsumexp", "sumsoftmaxweight": "sumsoftmaxweight",
          "kmin": "smallest", "argkmin": "smallest", "kmin_argkmin": "smallest"}  # fmt: skip
_BITS = {"float32": 32, "float64": 64}


def _kernel(reduction: PairReduction) -> Kernel:
    known = _kernels.get(reduction)
    if known is not None:
        return known
    if reduction.dtype not in _BITS:
        raise TypeError(f"the CPU reduces float32 and float64 over pairs, not {reduction.dtype}")
    compiled = CompiledReduction(reduction, cpu.level)
    program, name = compiled.program, reduction.reduction
    rows, columns = ("i", "j") if reduction.rows == "i" else ("j", "i")
    kinds = [kind for _, kind in outputs(reduction)]
    plain_too = name == "sumsoftmaxweight" or program.n_weights == 0
    kernel = Kernel(
        compile=compiled.tile,
        kind=_KINDS.get(name, "best"),
        bits=_BITS[reduction.dtype],
        accumulator_bits=_BITS[reduction.dtype_acc],
        lanes=compiled.lanes,
        largest="max" in name,
        indexed="arg" in name,
        n_sums=program.n_weights + plain_too,
        dim=program.n_results,
        k=reduction.k,
        cost=compiled.cost,
        n_prepared=compiled.n_prepared,
        components=[program.components(kind) for kind in (rows, columns, "p")],
        wants_values="float" in kinds,
        wants_indices="index" in kinds,
        n_values=outputs(reduction)[0][0],
    )
    while len(_kernels) >= _MOST_KERNELS:
        _kernels.pop(next(iter(_kernels)), None)
    return _kernels.setdefault(reduction, kernel)


def plan(reduction: PairReduction, n_i: int, n_j: int, triple: Sequence[Any]) -> Plan:
    """The tasks of a triple of ranges (blocks, slices, columns), to be given to `run` in its place, any number
    of times.
    """
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    if (
        n_columns >= _MOST_COLUMNS
        and reduction.dtype == "float32"
        and any(k == "index" for _, k in outputs(reduction))
    ):
        raise ValueError(
            f"ranges: indices of float32 reach to {_MOST_COLUMNS} columns, not {n_columns}; use float64"
        )
    arrays = [np.ascontiguousarray(part, dtype=np.int64) for part in triple]
    return _kernel(reduction).plan(n_rows, n_columns, arrays)


def run(
    reduction: PairReduction,
    arrays: Sequence[Array],
    n_i: int,
    n_j: int,
    batch: tuple[int, ...] = (),
    ranges: Any = None,
    n_threads: int | None = None,
) -> tuple[Array, ...]:
    """Reduce over pairs.

    Parameters
    ----------
    reduction : PairReduction
        What is reduced. Its kernel is compiled at the first call, and kept.
    arrays : sequence of ndarray
        By position, of shapes (..., n_i, dim), (..., n_j, dim), and (..., 1, dim) or (dim,) for parameters, where
        ``...`` broadcasts to `batch`; of the reduction's dtype, any strides.
    n_i, n_j : int
        The numbers of rows and columns; exchanged where `reduction.rows` is "j".
    batch : tuple of int
        The batch dimensions.
    ranges : triple, Plan, list of them, optional
        ``(blocks, slices, columns)`` or the `plan` of it; one for all batch entries, or a list of one for each.
    n_threads : int, optional
        At most so many.

    Returns
    -------
    tuple of ndarray of shape batch + (rows, dim)
        As `outputs` of the reduction says. The bits are the same for any number of threads.

    Notes
    -----
    While sums are made (of values, or of exp) what is below the smallest normal number counts as zero: such
    tails would take a hundred times as long. Sums of float32 are made of at most 256 columns in float32, and of
    those in `dtype_acc`.
    """
    kernel = _kernel(reduction)
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    plans: Any = None
    if ranges is not None:
        each = ranges if isinstance(ranges, list) else [ranges]
        plans = [part if isinstance(part, Plan) else plan(reduction, n_i, n_j, part) for part in each]
    values, indices = kernel.run(arrays, n_rows, n_columns, batch, plans, cpu.threads(n_threads))
    return tuple(part for part in (values, indices) if part is not None)
