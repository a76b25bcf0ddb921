"""Scan a file that is larger than the memory that may be used for it, in two ways.

    python examples/larger_than_memory.py              # 256 MB of float32, 2 workers of 256 MiB
    python examples/larger_than_memory.py --elements 1000000000 --memory 512MiB

First as a stream of blocks in one process, whose peak memory is printed; then by dask, on worker processes with a
set memory limit (one that exceeds it is restarted by dask). Both answers are compared. Times are printed beside
that of the same workers reading the file twice. Needs dask and distributed: ``pip install "upsweep[dask]"``.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np
import upsweep

GAMMA = 0.999


class NumbersInFile:
    """float32 numbers in a file, read where they are asked for: an array to dask, which sends only its name."""

    def __init__(self, path):
        self.path = str(path)
        self.dtype = np.dtype(np.float32)
        self.shape = (os.path.getsize(path) // self.dtype.itemsize,)
        self.ndim = 1

    def __getitem__(self, index):
        begin, end, _ = (
            index[0].indices(self.shape[0]) if isinstance(index, tuple) else index.indices(self.shape[0])
        )
        return np.fromfile(self.path, self.dtype, end - begin, offset=begin * self.dtype.itemsize)


def write(path, n_elements, chunk):
    generator = np.random.default_rng(0)
    with open(path, "wb") as file:
        for begin in range(0, n_elements, chunk):
            generator.random(min(chunk, n_elements - begin), dtype=np.float32).tofile(file)


def drop_from_page_cache(path):
    """Make the next reader read the file from the disk, where the system supports it."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def stream(numbers, chunk):
    """Sum and last number of the scan, in one process, a block at a time."""
    blocks = (numbers[begin : begin + chunk] for begin in range(0, numbers.shape[0], chunk))
    total, last = 0.0, None
    for y in upsweep.scan_blocks(upsweep.discounted_cumsum, blocks, GAMMA):
        total, last = total + y.sum(dtype=np.float64), y[-1]
    return total, last


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--elements", type=int, default=64_000_000)
    options.add_argument(
        "--chunk", type=int, default=None, help="elements a block; default: 64 MB, at most 1/16 of all"
    )
    options.add_argument("--memory", default="256MiB", help="of each worker")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--method", choices=["sequential", "tree"], default="sequential")
    options.add_argument("--folder", default=None, help="for the file; default: the temporary one")
    parsed = options.parse_args()
    chunk = parsed.chunk or max(1, min(16_000_000, parsed.elements // 16))

    with tempfile.TemporaryDirectory(dir=parsed.folder) as folder:
        path = Path(folder) / "numbers"
        write(path, parsed.elements, chunk)
        numbers = NumbersInFile(path)
        whole, block = (4 * n / 1e6 for n in (parsed.elements, chunk))
        print(f"{parsed.elements:,} numbers, {whole:,.0f} MB, in blocks of {block:,.0f} MB")

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        drop_from_page_cache(path)
        (total, last), seconds = timed(lambda: stream(numbers, chunk))
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"a stream of blocks: {seconds:.2f} s, {more:,.0f} MiB more than before")

        # A worker's allocator returns memory to the system late, and dask warns of that.
        with (
            dask.config.set({"distributed.logging.distributed.worker.memory": "error"}),
            distributed.LocalCluster(
                n_workers=parsed.workers,
                threads_per_worker=1,
                memory_limit=parsed.memory,
                dashboard_address=None,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            x = da.from_array(numbers, chunks=chunk, name=f"numbers-{parsed.elements}")
            y = upsweep.discounted_cumsum(x, GAMMA, method=parsed.method)
            warm = da.zeros(1000, chunks=100)  # the workers import what they need
            client.compute(upsweep.cumulative_sum(warm).sum()).result()

            def read():
                return client.compute(x.max()).result()

            def scan():
                return dask.compute(y.sum(dtype=np.float64), y[-1])

            reads, scans = [], []
            for _ in range(3):
                drop_from_page_cache(path)
                reads.append(timed(read)[1])
                drop_from_page_cache(path)
                (dask_total, dask_last), seconds = timed(scan)
                scans.append(seconds)
                np.testing.assert_allclose([dask_total, dask_last], [total, last], rtol=1e-6)
            peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            twice = 2 * min(reads)
            print(
                f"dask, {parsed.workers} workers of {parsed.memory}: {min(scans):.2f} s, {min(scans) / twice:.2f} "
                f"of reading it twice ({twice:.2f} s), at most {max(peaks.values()):,.0f} MiB a worker"
            )


if __name__ == "__main__":
    main()
