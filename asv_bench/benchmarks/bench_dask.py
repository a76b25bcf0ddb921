"""dask arrays: what a graph costs to make, how many tasks it has, and what it adds to a block's own time."""

from functools import cache
from typing import Any

import numpy as np
import upsweep

from . import attributes

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

    @attributes(unit="ms a block", version="07e297c1abb8da9f713834935aca66650f686e40ac2f6ed181c21f0a35228ab5")
    def track_overhead_per_block(self, method: str) -> float:
        """Milliseconds that a block of 4 MiB takes more than in a stream of blocks, measured in turns."""
        import dask.array as da
        from upsweep.bench.timing import measure

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


def time_construction_of_counts() -> None:
    upsweep.bincount(many_blocks().astype(int), length=10)


UPDATES = {
    "affine": (lambda s, x: 0.5 * s + x, 0.0),
    "two states": (lambda s, x: (0.9 * s[0] - 0.2 * s[1] + x, 0.3 * s[0] + 0.8 * s[1]), (0.0, 0.0)),
    "in order": (lambda s, x: np.tanh(s + x), 0.0),
}


def scanned(x: Any, update: str, method: str) -> Any:
    ys = upsweep.scan(*UPDATES[update], x, method=method)
    return ys[0] if isinstance(ys, tuple) else ys


class GraphByUpdate:
    """Of user-defined scans: affine in one state or two, and of no parallel form, whose blocks go in order."""

    params = (tuple(UPDATES), METHODS)
    param_names = ("update", "method")
    number = 1
    repeat = (3, 10, 2.0)
    rounds = 1

    def time_construction(self, update: str, method: str) -> None:
        scanned(many_blocks(), update, method)

    def track_tasks_per_block(self, update: str, method: str) -> float:
        x = many_blocks()
        y = scanned(x, update, method)
        return (len(dict(y.dask)) - len(dict(x.dask))) / N_BLOCKS

    track_tasks_per_block.unit = "tasks"  # type: ignore[attr-defined]  # where asv looks

    def time_tiny_blocks(self, update: str, method: str) -> None:
        """A thousand blocks of one element, on one thread: all of it is overhead."""
        scanned(many_blocks(), update, method).compute(scheduler="sync")


@cache
def points(n_blocks: int) -> Any:
    import dask.array as da

    return da.zeros((n_blocks, 3), chunks=(1, 3), dtype=np.float32)


class GraphOfPairs:
    """Of reductions over pairs of points in blocks of one: 32 blocks of rows by 32 of columns."""

    params = (METHODS,)
    param_names = ("method",)
    number = 1
    repeat = (3, 10, 2.0)
    rounds = 1
    n_blocks = 32

    def total(self, method: str) -> Any:
        x = points(self.n_blocks)
        return (-upsweep.Vi(x).sqdist(upsweep.Vj(x))).exp().sum(axis=1, method=method)

    def time_construction(self, method: str) -> None:
        self.total(method)

    def track_tasks_per_block(self, method: str) -> float:
        added = len(dict(self.total(method).dask)) - len(dict(points(self.n_blocks).dask))
        return added / self.n_blocks**2

    track_tasks_per_block.unit = "tasks"  # type: ignore[attr-defined]  # where asv looks

    def time_tiny_blocks(self, method: str) -> None:
        self.total(method).compute(scheduler="sync")
