"""CUDA executor of reductions over pairs of rows; it compiles the kernels of a formula on their first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import Operand, user_array
from upsweep._backends.cuda import pairs_launch
from upsweep._backends.cuda.staging import open_context
from upsweep._compiler.formulas.reduction import outputs


def run_pairs(
    reduction: Any, arrays: Sequence[Operand], n_i: int, n_j: int, batch: tuple[int, ...], ranges: Any,
    device: int | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the results: device arrays, for which nothing waits; of numpy arrays and a device numpy arrays."""
    with open_context({str(n): array for n, array in enumerate(arrays)}, device) as context:
        shape, dtypes = (*batch, n_i if reduction.rows == "i" else n_j), {"float": arrays[0].dtype}
        results = [
            context.empty((*shape, dim), dtypes.get(kind, np.dtype(np.int64))) for dim, kind in outputs(reduction)
        ]
        if 0 not in results[0].shape:
            pairs_launch.run(
                reduction, [context.input(array) for array in arrays],
                [context.output(result) for result in results], n_i, n_j, batch, ranges, **context.resources,
            )  # fmt: skip
    return tuple(user_array(result) for result in results)
