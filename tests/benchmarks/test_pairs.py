"""The benchmark of pairs: its cases and thresholds, and that it does not time what answers wrongly."""

from dataclasses import replace

import numpy as np
import pytest
import upsweep
from upsweep_bench import compare, pairs


def reductions(quick=False):
    return [case for case in pairs.cases(quick) if isinstance(case, pairs.Case)]


def test_every_threshold_has_its_case():
    thresholds = {(case.name, case.dtype): case.threshold for case in reductions()}
    assert len(thresholds) == len(reductions())
    assert thresholds["Gaussian sum, D=3", "float32"] == 3.0 and thresholds["Gaussian sum, D=3", "float64"] == 0.9
    assert thresholds["logsumexp, D=3", "float32"] == 1.5 and thresholds["argKmin(10), D=3", "float32"] == 1.0
    assert thresholds["Gaussian sum, D=64", "float32"] == 0.5
    assert sorted(case.threshold for case in reductions() if case.block) == [0.5, 0.85, 0.85]


def test_rows_have_their_figures(monkeypatch):
    monkeypatch.setattr(pairs, "QUICK_POINTS", 600)
    cases = pairs.cases(quick=True)
    of_cases = [compare.measure_case(case, rounds=2) for case in cases]
    rows = [row for row, *_ in of_cases]
    assert len(rows) == len(reductions()) + 3
    for row in rows:
        assert row.value is not None and row.value > 0 and row.seconds is not None, row
    assert {row.unit for row in rows} == {"Gpairs/s/core", "of dense", "us"}
    for row, *peers in of_cases:
        if row.unit == "Gpairs/s/core":
            assert any("numpy" in peer.method and peer.value > 0 for peer in peers)


def test_half_of_the_points_can_be_in_one_block():
    (case,) = [case for case in reductions() if case.half_in_one]
    ranges = replace(case, n_rows=2000, n_columns=2000).arrays().ranges
    assert tuple(ranges[0][0]) == (0, 1000)
    mask = ranges.to_mask()
    assert mask.diagonal().all() and mask[:1000, :1000].all()


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        upsweep.LazyTensor, "logsumexp", lambda self, axis, **_: np.zeros((self.shape[0], 1), np.float32)
    )
    with pytest.raises(compare.WrongResult, match="logsumexp, D=3, float32: error"):
        compare.measure_case(replace(pairs.cases()[1], n_rows=300, n_columns=300))
