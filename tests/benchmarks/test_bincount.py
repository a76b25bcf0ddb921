"""The benchmark of counts: its cases, its keys, and that it does not time what answers wrongly."""

import numpy as np
import pytest
import upsweep
from upsweep_bench import cli, compare, counts
from upsweep_bench.case import Source
from upsweep_bench.counts import Case, make_keys


def rows(only):
    return [row for case in cli.cases("counts", True, "cpu", only) for row in compare.measure_case(case)]


def test_every_threshold_has_its_case():
    thresholds = {
        (case.dtype, case.n_bins, case.distribution, case.weights): dict(case.peers)["numpy"]
        for case in counts.cases()
    }
    assert len(thresholds) == len(counts.cases()) == len({(case.name, case.dtype) for case in counts.cases()})
    for n_bins in (2, 256, 10_000):
        of_keys = [thresholds["int64", n_bins, keys, None] for keys in ("uniform", "Zipf", "sorted", "all equal")]
        assert of_keys == [2.8, 2.8, 4.0, 4.0]
    assert thresholds["int32", 256, "Zipf", None] == 7
    assert thresholds["uint8", 256, "uniform", None] == thresholds["uint16", 256, "uniform", None] == 8
    assert (thresholds["int64", 256, "uniform", "float64"], thresholds["int64", 256, "uniform", "float32"]) == (
        2.3,
        5.0,
    )
    assert thresholds["int64", 1_000_000, "uniform", None] == 3
    assert thresholds["int64", 16_000_000, "uniform", None] == 3.5


def test_keys_are_what_their_name_says():
    cases = {name: Case(5000, 1000, "int32", name) for name in ("uniform", "Zipf", "sorted", "all equal")}
    samples = {name: make_keys(case, Source(case, None)) for name, case in cases.items()}
    for keys in samples.values():
        assert keys.dtype == np.int32 and keys.shape == (5000,) and keys.min() >= 0 and keys.max() < 1000
    assert (np.diff(samples["sorted"]) >= 0).all() and not (np.diff(samples["uniform"]) >= 0).all()
    assert (samples["all equal"] == 500).all()
    shares = np.bincount(samples["Zipf"])
    assert shares[0] > 2 * shares[10] > 4 * shares[200]


def test_a_case_has_a_row_and_one_for_each_peer():
    row, numpy, *_ = rows("256 bins uniform, uint8")
    assert row.value is not None and row.value > 0 and row.unit == "of copy" and "copy " in row.note
    assert row.n_bytes == 1_000_000 + 256 * 8
    assert numpy.method == "numpy" and numpy.value > 0 and numpy.unit == "x" and numpy.threshold == 8


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(upsweep, "bincount", lambda keys, weights: np.bincount(keys, weights) + 1)
    with pytest.raises(compare.WrongResult, match="256 bins uniform, uint8: error"):
        rows("256 bins uniform, uint8")


@pytest.mark.parametrize("only", ["no such case"])
def test_nothing_is_measured_without_a_case(only):
    assert rows(only) == []
