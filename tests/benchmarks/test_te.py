"""The benchmark of te: its programs and bars, and that it does not time what answers wrongly."""

import dataclasses

import numpy as np
import pytest
from upsweep.bench import scan_peers, te_programs
from upsweep.bench.peers import optional
from upsweep.bench.te_programs import PROGRAMS

pytest.importorskip("llvmlite")

SMALL = {0: (7, 20), 1: (4, 5, 128), 3: (4, 5, 128), 4: (4, 5, 128)}


def small(program):
    return dataclasses.replace(program, shape=SMALL[program.n_gates])


def test_every_bar_has_its_program():
    found = {program.name: (program.peer, program.bar) for program in PROGRAMS}
    assert len(found) == len(PROGRAMS)
    assert found["te sum (10, 1024)"] == ("us", 10) and found["te tanh (1000, 4096)"] == ("numba", 6)
    assert found["te sum (1024, 1024)"] == ("copy", 0.9) and found["te sum (100,000, 16)"] == ("copy", 0.83)
    assert found["te tanh (1000, 4096) by steps"] == ("numpy", 20)
    assert [found[f"te {cell}, 128 hidden, batch 256"][1] for cell in ("RNN", "GRU", "LSTM")] == [0.67, 1, 1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_rows_have_their_figures(program, monkeypatch):
    monkeypatch.setattr(te_programs, "numba_loop", lambda out, x: lambda: None)
    row = te_programs._row(small(program), 1, 1)
    assert row.figure is not None and row.figure > 0 and row.n_bytes > 0 and "wrong" not in row.note
    assert (row.unit == "us") == (program.peer == "us") and (row.unit == "of copy") == (program.peer == "copy")


def test_the_loops_beside_them_answer_alike():
    program = small(next(each for each in PROGRAMS if each.peer == "numba"))
    (x,), (expected,), (out,) = program.inputs(), program.results(), program.results()
    program.steps(expected, x)
    loop = te_programs.numba_loop(out, x)
    if loop is not None:
        loop()
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    scanned = te_programs.jax_scan(program, x)
    if scanned is not None:
        np.testing.assert_allclose(scanned(), expected[1:], rtol=1e-5)


def test_a_wrong_answer_is_not_timed():
    def off_by_one(out, x):
        out[...] = np.cumsum(x, axis=0) + 1

    row = te_programs._row(dataclasses.replace(small(PROGRAMS[1]), steps=off_by_one), 1, 1)
    assert row.seconds is None and row.figure is None and "wrong" in row.note


def test_builds_are_timed_in_processes_of_their_own():
    (row,) = te_programs.rows("te build of cumulative_sum, from the disk", True, 1)
    assert row.unit == "ms" and row.bar == 10 and 0 < row.figure < 5000


def test_nothing_is_measured_without_a_program():
    assert te_programs.rows("no such program", True, 1) == []


def test_what_others_offer_answers_alike():
    names = set()
    for name, other, ours, theirs in scan_peers.pairs(7, 20, 300):
        np.testing.assert_allclose(np.asarray(ours()), np.asarray(theirs()), rtol=1e-5, atol=1e-6)
        names.add((name, other))
    assert len(names) == 2 * sum(map(bool, (optional("jax"), optional("pandas"))))
    assert [row.case for row in scan_peers.rows("no such case", True)] == []
