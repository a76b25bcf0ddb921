"""Executor of counts on the CPU. `_backends` calls it for numpy arrays."""

from __future__ import annotations

import numpy as np

from upsweep._arrays import Array
from upsweep._backends import cpu
from upsweep._core import bincount
from upsweep._core.bincount import Count


def run(count: Count, n_threads: int | None) -> tuple[Array, np.int64 | None]:
    """Return the result, or the user's `out`, and the number of dropped keys if that is requested."""
    counter = cpu.bincounts.Counter(
        count.keys,
        # Without keys or sums no weight is read; only the number of bins has to be found.
        None if count.keys.size == 0 or count.n_sums == 0 else count.weights,
        with_sums=count.n_sums is not None,
        integers=count.accumulator.kind in "iu",
        n_bins=-1 if count.n_bins is None else count.n_bins,
        least=count.least,
        drop=count.drop,
        n_threads=cpu.threads(n_threads),
    )
    n_bins, has_outside = counter.scan_keys()
    if has_outside:
        # Without a fixed number of bins only negative keys are outside.
        first = counter.first_outside(np.iinfo(np.int64).max if count.n_bins is None else n_bins)
        raise bincount.outside_error(count, first, n_bins)
    bincount.check_memory(count, n_bins, cpu.memory_limit, largest_key=n_bins > count.least)
    result = count.out
    if result is not None and result.dtype == count.accumulator and count.bins_last(result).flags.carray:
        if result.size:  # contiguous, aligned and writeable: the kernels write to it directly
            counter.write(count.bins_last(result), not count.accumulate)
    else:
        table: Array = np.zeros((*count.rows, n_bins, *count.sums), count.accumulator)
        if table.size:
            counter.write(table, False)
        result = store(count.bins_in_place(table), count)
    return result, np.int64(counter.count_outside(n_bins)) if count.return_invalid else None


def store(table: Array, count: Count) -> Array:
    """Return the table in the dtype of the result, written to `out` or added to it; values are rounded once."""
    out = count.out
    if out is None:
        return table.astype(count.dtype, copy=False)
    if out.dtype.kind in "iu":  # numpy adds no floats to integers; integer dtypes all wrap around alike
        table = table.astype(out.dtype, copy=False)
    np.add(out, table, out=out, casting="unsafe") if count.accumulate else np.copyto(out, table, casting="unsafe")
    return out
