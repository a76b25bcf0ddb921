"""The benchmark of counts: its cases, its keys, and that it does not time what answers wrongly."""

import numpy as np
import pytest
import upsweep
from upsweep.bench import counts
from upsweep.bench.counts import Case, make_keys


def test_every_bar_has_its_case():
    found = {(case.dtype, case.n_bins, case.distribution, case.weights): case.bar for case in counts.cases()}
    assert len(found) == len(counts.cases()) == len({(case.name, case.dtype) for case in counts.cases()})
    for n_bins in (2, 256, 10_000):
        bars = [found["int64", n_bins, keys, None] for keys in ("uniform", "Zipf", "sorted", "all equal")]
        assert bars == [2.8, 2.8, 4.0, 4.0]
    assert found["int32", 256, "Zipf", None] == 7
    assert found["uint8", 256, "uniform", None] == found["uint16", 256, "uniform", None] == 8
    assert (found["int64", 256, "uniform", "float64"], found["int64", 256, "uniform", "float32"]) == (2.3, 5.0)
    assert found["int64", 1_000_000, "uniform", None] == 3
    assert found["int64", 16_000_000, "uniform", None] == 3.5


def test_keys_are_what_their_name_says():
    made = {
        name: make_keys(Case("int32", 1000, name), 5000) for name in ("uniform", "Zipf", "sorted", "all equal")
    }
    for keys in made.values():
        assert keys.dtype == np.int32 and keys.shape == (5000,) and keys.min() >= 0 and keys.max() < 1000
    assert (np.diff(made["sorted"]) >= 0).all() and not (np.diff(made["uniform"]) >= 0).all()
    assert (made["all equal"] == 999).all()
    shares = np.bincount(made["Zipf"])
    assert shares[0] > 2 * shares[10] > 4 * shares[200]


def test_a_row_has_the_figure_and_the_others():
    (row,) = counts.run("256 bins, uniform, uint8", quick=True, n_threads=1)
    assert row.figure is not None and row.figure > 0 and row.unit == "x"
    assert row.n_bytes == 1_000_000
    assert "numpy " in row.note and "copy " in row.note


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(upsweep, "bincount", lambda keys, weights, **_: np.bincount(keys, weights) + 1)
    (row,) = counts.run("256 bins, uniform, uint8", quick=True)
    assert row.seconds is None and row.figure is None and "wrong" in row.note


@pytest.mark.parametrize("only", ["no such case"])
def test_nothing_is_measured_without_a_case(only):
    assert counts.run(only) == []
