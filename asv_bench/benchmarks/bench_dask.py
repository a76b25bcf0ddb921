"""dask arrays: what a graph costs to make, how many tasks it has, and what it adds to a block's own time."""

from functools import cache
from typing import Any

import numpy as np
import upsweep

N_BLOCKS = 1000
LENGTH = 1 << 20  # elements a block where work is measured: 4 MiB
METHODS = ("sequential", "tree")


@cache
def many_blocks() -> Any:
    import dask.array as da

    return da.zeros(N_BLOCKS, chunks=1)


@cache
def numbers() -> np.ndarray:
    return np.random.default_rng(0).random(16 * LENGTH, dtype=np.float32)


class Graph:
    params = (METHODS,)
    param_names = ("method",)
    number = 1
    repeat = (3, 10, 2.0)
    rounds = 1

    def time_construction(self, method: str) -> None:
        """Of a scan over a thousand blocks."""
        upsweep.discounted_cumsum(many_blocks(), 0.5, method=method)

    def track_tasks_per_block(self, method: str) -> float:
        x = many_blocks()
        y = upsweep.discounted_cumsum(x, 0.5, method=method)
        return (len(dict(y.dask)) - len(dict(x.dask))) / N_BLOCKS

    track_tasks_per_block.unit = "tasks"  # type: ignore[attr-defined]  # where asv looks

    def time_tiny_blocks(self, method: str) -> None:
        """A thousand blocks of one element, on one thread: all of it is overhead."""
        upsweep.discounted_cumsum(many_blocks(), 0.5, method=method).compute(scheduler="sync")

    def track_overhead_per_block(self, method: str) -> float:
        """Milliseconds that a block of 4 MiB takes more than in a stream of blocks, measured in turns."""
        import dask.array as da
        from upsweep.bench.harness import measure

        x = numbers()
        lazy = da.from_array(x, chunks=LENGTH, name=False)

        def stream() -> None:
            blocks = (x[i : i + LENGTH] for i in range(0, x.size, LENGTH))
            for _ in upsweep.scan_blocks(upsweep.discounted_cumsum, blocks, 0.5, n_threads=1):
                pass

        def graph() -> None:
            upsweep.discounted_cumsum(lazy, 0.5, method=method).persist(scheduler="sync")

        samples = measure({"stream": stream, "graph": graph}, rounds=3, burst=1)
        return 1e3 * (samples.best("graph") - samples.best("stream")) / 16

    track_overhead_per_block.unit = "ms a block"  # type: ignore[attr-defined]  # where asv looks


def time_construction_of_counts() -> None:
    upsweep.bincount(many_blocks().astype(int), length=10)
