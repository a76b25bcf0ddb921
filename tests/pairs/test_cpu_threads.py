"""Hazard: results that depend on the number of threads, on other calls, or on a fork."""

import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from helpers import in_threads, run_python, ticks_inside
from pair_cases import ALL, data, random_ranges, reduction_of, same_bits
from upsweep._backends.cpu import pairs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALL)
def test_the_same_bits_for_any_number_of_threads(name, dtype):
    reduction = reduction_of(name, dtype)
    for n_i, n_j in [(700, 900), (3, 60_000), (40, 20_000)]:
        arrays = data(n_i, n_j, dtype)
        one = pairs.run(reduction, arrays, n_i, n_j, n_threads=1)
        for n_threads in (2, 3, 7):
            assert same_bits(pairs.run(reduction, arrays, n_i, n_j, n_threads=n_threads), one)
    triple = random_ranges(700, 900, 20, np.random.default_rng(0))
    arrays = data(700, 900, dtype)
    one = pairs.run(reduction, arrays, 700, 900, ranges=triple, n_threads=1)
    assert same_bits(pairs.run(reduction, arrays, 700, 900, ranges=triple, n_threads=2), one)


def test_calls_from_several_threads_at_once():
    names = ["sum", "logsumexp", "argkmin", "min_argmin"]
    arrays = data(300, 400)
    expected = [pairs.run(reduction_of(name), arrays, 300, 400) for name in names]
    wrong = []

    def work(n):
        for repeat in range(30):
            at = (n + repeat) % len(names)
            if not same_bits(pairs.run(reduction_of(names[at]), arrays, 300, 400), expected[at]):
                wrong.append(names[at])

    in_threads(work, *range(4))
    assert not wrong


def test_one_formula_compiled_by_several_threads_at_once():
    reductions = [reduction_of("sum", dim=dim) for dim in (5, 6, 7)]
    arrays = [data(20, 30, dim=dim) for dim in (5, 6, 7)]
    results = [[] for _ in reductions]
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for reduction, inputs, result in zip(reductions, arrays, results):
            result.append(pairs.run(reduction, inputs, 20, 30))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in results:
        assert len(result) == 4
        assert all(same_bits(each, result[0]) for each in result)


FORK = """
    import os, sys
    sys.path.insert(0, SUPPORT)
    import numpy as np
    from pair_cases import data, reduction_of, same_bits
    from upsweep._backends.cpu import pairs
    arrays = data(1500, 1500)
    def run(name):
        return pairs.run(reduction_of(name), arrays, 1500, 1500, n_threads=2)
    expected = run("sum")
    child = os.fork()
    if child == 0:
        # One that was known before, and one that is compiled in the child.
        fine = same_bits(run("sum"), expected) and len(run("argmin")) == 1
        os._exit(0 if fine else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), same_bits(run("sum"), expected))
"""


def test_parent_and_child_of_a_fork_both_go_on():
    support = repr(str(Path(__file__).parents[1] / "support"))
    assert run_python(FORK.replace("SUPPORT", support)).split() == ["0", "True"]


def test_the_gil_is_released():
    """Another thread counts on while a reduction runs."""
    reduction, arrays = reduction_of("sum", "float64"), data(6000, 6000, "float64")
    assert ticks_inside(lambda: pairs.run(reduction, arrays, 6000, 6000, n_threads=1), 5) >= 5
