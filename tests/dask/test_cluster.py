"""Hazard: worker processes, and one that dies in the middle."""

import os
import signal
import time

import numpy as np
import pytest
import upsweep
from helpers import same_bits

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

N_BLOCKS, LENGTH = 24, 5000
TIMEOUT = 120  # seconds; a quiet machine takes one


@pytest.fixture(scope="module")
def started():
    # After this time a cluster closes a worker that was lost, even if it has come back since.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def client(started):
    """The client, as soon as both workers run: one that a test killed restarts while the next test begins."""
    started.wait_for_workers(2, timeout=60)
    return started


def numbers(folder=None):
    """Blocks of random numbers; if a folder is passed, half of them wait for a file "open" in it."""

    def block_of(i):  # a local function is pickled by value; the workers cannot import this file
        if folder is not None:
            while len(os.listdir(folder)) >= N_BLOCKS // 2 and not os.path.exists(f"{folder}/open"):
                time.sleep(0.005)
            open(f"{folder}/{i}", "w").close()
        return np.random.default_rng(i).random(LENGTH, dtype=np.float32)

    name = "numbers" if folder is None else os.path.basename(folder)
    blocks = [dask.delayed(block_of)(i, dask_key_name=f"{name}-{i}") for i in range(N_BLOCKS)]
    return da.concatenate([da.from_delayed(block, (LENGTH,), np.float32) for block in blocks])


def results(client, *lazy):
    return [future.result(timeout=TIMEOUT) for future in client.compute(lazy)]


def test_processes_give_the_bits_of_one(client):
    x = numbers()
    for method in ("sequential", "tree"):
        y, final = upsweep.discounted_cumsum(x, 0.9999, return_final=True, method=method)
        whole = y.compute(scheduler="sync")
        result, state = results(client, y, final)
        assert same_bits(result, whole)
        assert state == whole[-1]
    keys = (x * 100).astype(int)
    (result,) = results(client, upsweep.bincount(keys))
    assert same_bits(result, np.bincount(keys.compute(scheduler="sync")))
    counts, edges = results(client, *upsweep.histogram(x, 10))
    expected = np.histogram(x.compute(scheduler="sync"), 10)
    assert same_bits(counts, expected[0]) and same_bits(edges, expected[1])


def discounted(x, method):
    return upsweep.discounted_cumsum(x, 0.9999, method=method)


def by_update(x, method):
    """Carries, states and results; the update is traced in this process."""
    pytest.importorskip("llvmlite")
    return upsweep.scan(lambda s, x: 0.9999 * s + x, np.float32(0), x, method=method)


def in_order(x, method):
    """Results and states of a block from one task, which waits for the block before."""
    pytest.importorskip("llvmlite")
    return upsweep.scan(lambda s, x: np.tanh(s + x), np.float32(0), x, method=method)


@pytest.mark.parametrize(
    ("scan", "method"),
    [(discounted, "sequential"), (discounted, "tree"), (by_update, "sequential"), (in_order, "sequential")],
)
def test_a_worker_that_dies_changes_no_bit(client, scan, method, tmp_path):
    expected = scan(numbers(), method).compute(scheduler="sync")
    pids = client.run(os.getpid)
    future = client.compute(scan(numbers(str(tmp_path)), method))

    limit = time.monotonic() + TIMEOUT
    try:
        held = client.has_what()  # the keys that are in each worker's memory
        while max(map(len, held.values())) < N_BLOCKS // 4 and time.monotonic() < limit:
            time.sleep(0.005)
            held = client.has_what()
        victim = max(held, key=lambda address: len(held[address]))
        assert len(held[victim]) >= N_BLOCKS // 4 and not future.done()
        os.kill(pids[victim], signal.SIGKILL)
    finally:
        (tmp_path / "open").touch()  # else the workers and the following tests would wait
    assert same_bits(future.result(timeout=TIMEOUT), expected)
    assert victim not in client.has_what()


def test_pairs_over_processes(client):
    pytest.importorskip("llvmlite")
    x = numbers().reshape(-1, 2).rechunk({1: -1})
    distance = upsweep.Vi(x).sqdist(upsweep.Vj(x[:5000]))
    for method in ("sequential", "tree"):
        lazy = [(-distance).logsumexp(axis=1, method=method), distance.argKmin(3, axis=1, method=method)]
        for result, one in zip(results(client, *lazy), lazy, strict=True):
            assert same_bits(result, one.compute(scheduler="sync"))


def test_an_error_in_a_block_arrives(client):
    keys = da.from_array(np.array([0, 1, 2, -1]), chunks=2)
    with pytest.raises(ValueError, match="must not be negative"):
        client.compute(upsweep.bincount(keys)).result(timeout=TIMEOUT)
