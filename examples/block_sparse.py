"""Block-sparse reductions: a sum over near pairs of points, in time proportional to their number.

A Gaussian kernel decays so fast that distant pairs are negligible. Clusters decide which pairs are near:

1. points are sorted by the cells of a grid, so that each cell is a range of rows;
2. pairs of cells that are farther apart than a few widths of the kernel are left out: a mask of cells;
3. the mask becomes `ranges`, an argument of the reduction;
4. the result is compared with the dense one, and both are timed.

    python examples/block_sparse.py --output pictures

With matplotlib, pictures go to the folder: the cells with the neighbours of one, the tiles that are computed, and
the time of both reductions over the number of points.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from upsweep import BlockRanges, LazyTensor
from upsweep.cluster import cluster_ranges_centroids, grid_cluster, sort_clusters

Array = NDArray[Any]

SIGMA = 0.01  # the kernel's width
REACH = 5.0  # widths beyond which a pair adds less than exp(-12.5), 4e-6
CELL = 0.025


def make_points(n: int, seed: int = 0) -> Array:
    """Points along two spirals in the unit square."""
    rng = np.random.default_rng(seed)
    turn = np.sqrt(rng.random(n)) * 3.0 * math.pi
    side = rng.choice([-1.0, 1.0], n)
    spirals = 0.5 + 0.045 * (side * turn)[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    points: Array = (spirals + rng.normal(scale=0.008, size=(n, 2))).astype(np.float32)
    return points


def make_kernel(x: Array) -> LazyTensor:
    """exp(-|x_i - x_j|^2 / (2 sigma^2)) of all pairs; nothing is computed yet."""
    squares = LazyTensor(x[:, None, :]).sqdist(LazyTensor(x[None, :, :]))
    kernel: LazyTensor = (squares * (-0.5 / SIGMA**2)).exp()
    return kernel


def make_ranges(x: Array, labels: Array) -> tuple[BlockRanges, Array, Array]:
    """The pairs of cells that are near enough; the cells' rows, and which sees which."""
    rows, centroids, _ = cluster_ranges_centroids(x, labels)
    distances = np.sqrt(((centroids[:, None] - centroids[None]) ** 2).sum(-1))
    # A point and the centroid of its cell are at most a diagonal apart.
    keep = distances < REACH * SIGMA + 2 * math.sqrt(2) * CELL
    return BlockRanges.from_matrix(rows, rows, keep, (len(x), len(x))), rows, keep


def timed(call: Callable[[], Array], repeats: int = 3) -> tuple[float, Array]:
    """The fastest of some calls in seconds, and the result."""
    result, best = call(), math.inf  # the first one compiles
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - begin)
    return best, result


def compare(n: int) -> dict[str, Any]:
    """Dense against sparse for n points."""
    x = make_points(n)
    weights = np.random.default_rng(1).random((n, 1)).astype(np.float32)
    labels = grid_cluster(x, CELL)
    (x, weights), labels = sort_clusters((x, weights), labels)
    ranges, rows, keep = make_ranges(x, labels)

    kernel = make_kernel(x)
    dense_time, dense = timed(lambda: kernel @ weights)
    kernel.ranges = ranges
    sparse_time, sparse = timed(lambda: kernel @ weights)
    return {
        "n": n, "x": x, "labels": labels, "rows": rows, "keep": keep, "ranges": ranges, "dense": dense_time,
        "sparse": sparse_time, "share": ranges.n_pairs / n**2,
        "error": float(abs(sparse - dense).max() / dense.max()),
    }  # fmt: skip


def draw_cells(pyplot: Any, result: dict[str, Any], path: Path) -> None:
    """The points by cell, and those that one cell sees."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    x, labels = result["x"], result["labels"]
    colours = np.random.default_rng(2).permutation(labels.max() + 1)[labels]
    axes[0].scatter(*x.T, c=colours, s=1, cmap="turbo")
    axes[0].set(title=f"{labels.max() + 1} cells of {len(x):,} points", aspect="equal")
    middle = int(labels[len(labels) // 2])
    seen = result["keep"][middle][labels]
    axes[1].scatter(*x.T, c="lightgray", s=1)
    axes[1].scatter(*x[seen].T, c="tab:orange", s=1, label="reduced over")
    axes[1].scatter(*x[labels == middle].T, c="tab:blue", s=2, label="for these rows")
    axes[1].set(title="what one cell sees", aspect="equal")
    axes[1].legend(markerscale=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_tiles(pyplot: Any, result: dict[str, Any], path: Path) -> None:
    """The tiles that are computed."""
    figure, ax = pyplot.subplots(figsize=(6, 6), layout="constrained")
    result["ranges"].plot(ax)
    ax.set_title(f"{100 * result['share']:.1f} % of all pairs")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_times(pyplot: Any, results: list[dict[str, Any]], path: Path) -> None:
    """Dense against sparse, for more and more points."""
    figure, ax = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    sizes = [result["n"] for result in results]
    for name in ("dense", "sparse"):
        ax.loglog(sizes, [1e3 * result[name] for result in results], "o-", label=name)
    ax.set(xlabel="points", ylabel="milliseconds", title="a Gaussian sum over pairs")
    ax.legend()
    ax.grid(True, which="both", alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="dense against block-sparse sums over pairs")
    parser.add_argument("--points", type=int, default=20_000, help="the most points")
    parser.add_argument("--output", type=Path, help="a folder for pictures")
    options = parser.parse_args(arguments)
    results = [compare(max(options.points // part, 1)) for part in (16, 4, 1)]
    print(f"{'points':>9} {'cells':>6} {'pairs kept':>11} {'dense':>10} {'sparse':>10} {'ratio':>6} {'error':>8}")
    for result in results:
        print(
            f"{result['n']:9,} {len(result['rows']):6} {100 * result['share']:10.1f}% "
            f"{1e3 * result['dense']:7.2f} ms {1e3 * result['sparse']:7.2f} ms "
            f"{result['dense'] / result['sparse']:6.1f} {result['error']:8.1e}"
        )
    if options.output is not None:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        options.output.mkdir(parents=True, exist_ok=True)
        draw_cells(pyplot, results[-1], options.output / "cells.png")
        draw_tiles(pyplot, results[0], options.output / "tiles.png")
        draw_times(pyplot, results, options.output / "times.png")
        print(f"pictures: {options.output}")
    return 0 if all(result["error"] < 1e-4 for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
