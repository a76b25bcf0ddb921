"""Hazard: a parallel call, a fork, and a parallel call in the child: it hangs if the pool was not paused."""

import os
import sys

import pytest
from helpers import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

PREPARE = """
    import multiprocessing, os, signal, sys, time, warnings
    import numpy as np, upsweep
    warnings.simplefilter("ignore")
    x = np.random.default_rng(0).random((1, 2_000_000))
    keys = (x[0] * 1000).astype(np.int64)
    expected = upsweep.discounted_cumsum(x, 0.999, n_threads=2)
    counts = upsweep.bincount(keys, n_threads=2)
    def check(n_threads=2):
        y = upsweep.discounted_cumsum(x, 0.999, n_threads=n_threads)
        again = upsweep.bincount(keys, n_threads=n_threads)
        return y.tobytes() == expected.tobytes() and bool((again == counts).all())
    def wait(child, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hung"
"""


def test_parent_and_child_both_go_on():
    code = """
    child = os.fork()
    if child == 0:
        os._exit(0 if check() and check(3) else 1)
    print(wait(child), check())
    """
    assert run_python(PREPARE + code).split() == ["0", "True"]


def test_a_grandchild_and_several_children():
    code = """
    def generation(depth):
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                fine = check() and (depth == 0 or generation(depth - 1))
                os._exit(0 if fine else 1)
            children.append(child)
        return [wait(child) for child in children] == [0, 0] and check()
    print(generation(1))
    """
    assert run_python(PREPARE + code).strip() == "True"


def test_multiprocessing_with_fork():
    code = """
    pool = multiprocessing.get_context("fork").Pool(2)
    print(all(pool.map_async(check, [1, 2, 3, 2]).get(timeout=60)))
    pool.terminate()
    """
    assert run_python(PREPARE + code).strip() == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's OpenMP pools are of interest here")
def test_a_fork_while_another_thread_is_inside_a_call():
    code = """
    import threading
    stop = threading.Event()
    def work():
        while not stop.is_set():
            upsweep.discounted_cumsum(x, 0.999, n_threads=2)
    thread = threading.Thread(target=work)
    thread.start()
    results = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if check(1) else 1)
        results.append(wait(child))
    stop.set()
    thread.join()
    print(results == [0] * 5, results, check())
    """
    assert run_python(PREPARE + code).split()[0] == "True"
