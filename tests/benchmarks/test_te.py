"""The benchmarks of te, updates and filters: cases, thresholds, and that no wrong answer is timed."""

import dataclasses

import numpy as np
import pytest
from upsweep_bench import cli, compare, peers, te_programs, user_scans
from upsweep_bench.te_programs import PROGRAMS

pytest.importorskip("llvmlite")

SMALL = {0: (7, 20), 1: (4, 5, 128), 3: (4, 5, 128), 4: (4, 5, 128)}


def small(program):
    return dataclasses.replace(program, shape=SMALL[program.n_gates])


def test_every_threshold_has_its_program():
    own = {program.name: (program.metric, program.threshold) for program in PROGRAMS}
    of_peers = {program.name: dict(program.peers) for program in PROGRAMS}
    assert len(own) == len(PROGRAMS)
    assert own["te sum (10, 1024)"] == ("us", 10) and of_peers["te tanh (1000, 4096)"]["numba"] == 6
    assert own["te sum (1024, 1024)"] == ("of copy", 0.9) and own["te sum (100,000, 16)"] == ("of copy", 0.83)
    assert of_peers["te tanh (1000, 4096)"]["numpy"] == 20
    cells = [of_peers[f"te {cell}, 128 hidden, batch 256"]["numpy"] for cell in ("RNN", "GRU", "LSTM")]
    assert cells == [0.67, 1, 1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_rows_have_their_values(program):
    row, *others = compare.measure_case(small(program), rounds=1)
    assert row.value is not None and row.value > 0 and row.n_bytes > 0 and row.unit == program.metric
    assert all(other.value is not None and other.value > 0 and not other.note for other in others)
    installed = [name for name, _ in program.peers if name not in peers.missing()]
    assert [other.method for other in others] == installed


def test_loops_of_peers_answer_alike():
    program = small(next(each for each in PROGRAMS if "numba" in dict(each.peers)))
    arrays = program.arrays()
    ((x,), (expected,)) = arrays.inputs[0], arrays.new_results()
    program.steps(expected, x)
    for name, _ in program.peers:
        loop = peers.bind(name, program)
        if loop is not None:
            np.testing.assert_allclose(loop(x), expected, rtol=1e-5)


def test_a_wrong_answer_is_not_timed(monkeypatch):
    def off_by_one(out, x):
        out[...] = np.cumsum(x, axis=0) + 1

    monkeypatch.setitem(te_programs._STEPS, "sum", off_by_one)
    with pytest.raises(compare.WrongResult, match=r"te sum .*: error"):
        compare.measure_case(small(PROGRAMS[1]))


def test_builds_are_timed_in_processes_of_their_own():
    (case,) = cli.cases("userscan", True, "cpu", "te build of cumulative_sum, from the disk")
    (row,) = compare.measure_case(case)
    assert row.unit == "ms" and row.threshold == 10 and 0 < row.value < 5000


def test_nothing_is_measured_without_a_program():
    assert cli.cases("userscan", True, "cpu", "no such program") == []


UPDATES = [
    *(dataclasses.replace(case, shape=tuple(min(n, 40) for n in case.shape)) for case in user_scans.updates()),
    *(dataclasses.replace(case, n=300) for case in user_scans.cases() if isinstance(case, user_scans.Filter)),
]


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.label)
def test_updates_and_filters_are_checked_and_their_peers_answer_alike(case, monkeypatch):
    arrays = case.arrays()
    compare.check(case, arrays)
    right = case.function(arrays)
    for name, _ in case.peers:
        function = peers.bind(name, case)
        if function is not None:
            assert arrays.error(function(*arrays.inputs[0])) <= 1e-3
    monkeypatch.setattr(type(case), "function", lambda *_: lambda *xs: right(*xs) * 1.01 + 0.01)
    with pytest.raises(compare.WrongResult, match="error"):
        compare.check(case, arrays)
