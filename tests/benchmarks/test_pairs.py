"""The benchmark of pairs: its cases and bars, and that it does not time what answers wrongly."""

import numpy as np
import upsweep
from upsweep.bench import pairs


def test_every_bar_has_its_case():
    found = {(case.name, case.dtype): case.bar for case in pairs.cases()}
    assert len(found) == len(pairs.cases())
    assert found["Gaussian sum, D=3", "float32"] == 3.0 and found["Gaussian sum, D=3", "float64"] == 0.9
    assert found["logsumexp, D=3", "float32"] == 1.5 and found["argKmin(10), D=3", "float32"] == 1.0
    assert found["Gaussian sum, D=64", "float32"] == 0.5
    assert sorted(case.bar for case in pairs.cases() if case.block) == [0.5, 0.85, 0.85]


def test_rows_have_their_figures(monkeypatch):
    monkeypatch.setattr(pairs, "_QUICK_POINTS", 600)
    rows = pairs.run(quick=True, n_threads=1)
    assert len(rows) == len(pairs.cases()) + 3
    for row in rows:
        assert row.figure is not None and row.figure > 0 and row.seconds is not None, row
    assert {row.unit for row in rows} == {"Gpairs/s/core", "of dense", "us"}
    assert all("numpy" in row.note for row in rows if row.unit == "Gpairs/s/core")


def test_half_of_the_points_can_be_in_one_block():
    (case,) = [case for case in pairs.cases() if case.half_in_one]
    ranges = pairs._ranges(case, 2000)
    assert tuple(ranges[0][0]) == (0, 1000)
    mask = ranges.to_mask()
    assert mask.diagonal().all() and mask[:1000, :1000].all()


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        upsweep.LazyTensor, "logsumexp", lambda self, axis, **_: np.zeros((self.shape[0], 1), np.float32)
    )
    row = pairs.measure_case(pairs.cases()[1], 300, 1, 1)
    assert row.seconds is None and row.figure is None and "wrong" in row.note
