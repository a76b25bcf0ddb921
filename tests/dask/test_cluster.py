"""Hazard: worker processes, and one that dies in the middle."""

import time

import numpy as np
import pytest
import upsweep
from helpers import same_bits

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

N_BLOCKS, LENGTH = 24, 5000


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def block_of(i, pause):
    """The i-th block of the numbers, which take their time to come."""
    time.sleep(pause)
    return np.random.default_rng(i).random(LENGTH, dtype=np.float32)


def numbers(pause=0.0):
    import dask

    blocks = [dask.delayed(block_of, pure=True)(i, pause) for i in range(N_BLOCKS)]
    return da.concatenate([da.from_delayed(block, (LENGTH,), np.float32) for block in blocks])


def test_processes_give_the_bits_of_one(client):
    x = numbers()
    for method in ("sequential", "tree"):
        y, final = upsweep.discounted_cumsum(x, 0.9999, return_final=True, method=method)
        whole = y.compute(scheduler="sync")
        mine, state = client.gather(client.compute([y, final]))
        assert same_bits(mine, whole)
        assert state == whole[-1]
    keys = (x * 100).astype(int)
    assert same_bits(client.compute(upsweep.bincount(keys)).result(), np.bincount(keys.compute(scheduler="sync")))
    counts, edges = client.gather(client.compute(list(upsweep.histogram(x, 10))))
    theirs = np.histogram(x.compute(scheduler="sync"), 10)
    assert same_bits(counts, theirs[0]) and same_bits(edges, theirs[1])


@pytest.mark.parametrize("method", ["sequential", "tree"])
def test_a_worker_that_dies_changes_no_bit(client, method):
    expected = upsweep.discounted_cumsum(numbers(), 0.9999, method=method).compute(scheduler="sync")
    y = upsweep.discounted_cumsum(numbers(pause=0.04), 0.9999, method=method)
    future = client.compute(y)

    def done():
        # Held only by the scheduler's own count of them: what workers have in memory now.
        return sum(len(keys) for keys in client.has_what().values())

    limit = time.monotonic() + 20
    while done() < N_BLOCKS // 3 and time.monotonic() < limit:
        time.sleep(0.005)
    before = client.has_what()
    assert sum(map(len, before.values())) >= N_BLOCKS // 3 and not future.done()
    victim = max(before, key=lambda address: len(before[address]))
    assert before[victim]
    pid = client.run(_own_pid, workers=[victim])[victim]
    _kill(pid)
    result = future.result(timeout=60)
    assert victim not in client.has_what()
    assert same_bits(result, expected)


def _own_pid():
    import os

    return os.getpid()


def _kill(pid):
    import os
    import signal

    os.kill(pid, signal.SIGKILL)


def test_an_error_in_a_block_arrives(client):
    keys = da.from_array(np.array([0, 1, 2, -1]), chunks=2)
    with pytest.raises(ValueError, match="must not be negative"):
        client.compute(upsweep.bincount(keys)).result(timeout=30)
