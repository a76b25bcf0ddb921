"""Executor of reductions over pairs on the CPU: compiles a kernel for the reduction and runs it.

`_backends` calls `run` for numpy arrays. Importing this module loads llvmlite.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._backends import cpu
from upsweep._backends.cpu._pairs import Kernel, Plan
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._compiler.llvm.pairs.compiled import CompiledReduction

__all__ = ["plan", "run"]

Array = NDArray[Any]

_MAX_COLUMNS = 2**31  # of ranges, where the kernels store indices in as many bits as values

_KINDS = {"sum": "sum", "logsumexp": "logsumexp", "sumsoftmaxweight": "sumsoftmaxweight",
          "kmin": "smallest", "argkmin": "smallest", "kmin_argkmin": "smallest"}  # fmt: skip
_BITS = {"float32": 32, "float64": 64}


@functools.lru_cache(512)
def _kernel(reduction: PairReduction) -> Kernel:
    if reduction.dtype not in _BITS:
        raise TypeError(f"the CPU reduces float32 and float64 over pairs, not {reduction.dtype}")
    compiled = CompiledReduction(reduction, cpu.level)
    program, name = compiled.program, reduction.reduction
    rows, columns = ("i", "j") if reduction.rows == "i" else ("j", "i")
    kinds = [kind for _, kind in outputs(reduction)]
    plain_too = name == "sumsoftmaxweight" or program.n_weights == 0
    return Kernel(
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


def plan(reduction: PairReduction, n_i: int, n_j: int, triple: Sequence[Any]) -> Plan:
    """Schedule the blocks of a triple of ranges (blocks, slices, columns) as tasks; a plan can run many times."""
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    if (
        n_columns >= _MAX_COLUMNS
        and reduction.dtype == "float32"
        and any(k == "index" for _, k in outputs(reduction))
    ):
        raise ValueError(
            f"ranges: indices of float32 reach to {_MAX_COLUMNS} columns, not {n_columns}; use float64"
        )
    arrays = [np.ascontiguousarray(part, dtype=np.int64) for part in triple]
    return _kernel(reduction).plan(n_rows, n_columns, arrays)


def _as_plan(reduction: PairReduction, n_i: int, n_j: int, ranges: Any) -> Plan:
    """Return the plan of ranges. A `Triple` caches it."""
    if isinstance(ranges, Plan):
        return ranges
    if not hasattr(ranges, "plan"):
        return plan(reduction, n_i, n_j, ranges)
    cached: Plan = ranges.plan(("cpu", reduction, n_i, n_j), lambda triple: plan(reduction, n_i, n_j, triple))
    return cached


def run(
    reduction: PairReduction,
    arrays: Sequence[Array],
    n_i: int,
    n_j: int,
    batch: tuple[int, ...] = (),
    ranges: Any = None,
    n_threads: int | None = None,
) -> tuple[Array, ...]:
    """Reduce over pairs. The bits of the results do not depend on the number of threads.

    Parameters
    ----------
    reduction : PairReduction
        The formula and its reduction. The first call compiles the kernel.
    arrays : sequence of ndarray
        By position, of shapes (..., n_i, dim), (..., n_j, dim), and (..., 1, dim) or (dim,) for parameters, where
        ``...`` broadcasts to `batch`; of the reduction's dtype, any strides.
    n_i, n_j : int
        The numbers of rows and columns; exchanged where `reduction.rows` is "j".
    batch : tuple of int
        The batch dimensions.
    ranges : Triple, triple of arrays, Plan, list of them, optional
        The pairs of blocks to reduce over, or the `plan` of them: one for all batch entries, or a list of one for
        each.
    n_threads : int, optional
        The most threads.

    Returns
    -------
    tuple of ndarray of shape batch + (rows, dim)
        As `outputs` of the reduction says.

    Notes
    -----
    Sums (of values, or of exp) treat subnormal terms as zero, because subnormal arithmetic would take a hundred
    times as long. Sums of float32 are added in float32 over at most 256 columns, and these partial sums in
    `dtype_acc`.
    """
    kernel = _kernel(reduction)
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    plans: list[Plan] | None = None
    if ranges is not None:
        plans = [
            _as_plan(reduction, n_i, n_j, part) for part in (ranges if isinstance(ranges, list) else [ranges])
        ]
    values, indices = kernel.run(arrays, n_rows, n_columns, batch, plans, cpu.threads(n_threads))
    return tuple(part for part in (values, indices) if part is not None)
