"""The benchmark of scans by an update on a GPU: its cases, its check, which fails on what is wrong, its rows."""

import pytest
from tensors import torch  # noqa: F401  # skips where it is not
from upsweep_bench import compare, user_scans

EVERY = user_scans.cases(device="cuda")


def Case(*arguments, **keywords):
    return user_scans.Case(*arguments, **keywords, device="cuda")


def small(case):
    shape = tuple(min(n, 40 + 9 * d) for d, n in enumerate(case.shape))
    return Case(case.update, shape, case.axis, case.dtype, case.threshold, case.metric, case.gradients)


SMALL = sorted({small(case) for case in EVERY}, key=repr)  # the same order in each process


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_each_case_is_checked(monkeypatch, case):
    """On the CPU, whose scans are the same calls."""
    tensors = case.arrays(1, "cpu")
    compare.check(case, tensors)
    right = case.function(tensors)
    assert tensors.call(right)(0) is not None
    monkeypatch.setattr(user_scans.Case, "function", lambda *_: lambda *xs: right(*xs) * 1.01)
    with pytest.raises(compare.WrongResult, match="error"):
        compare.check(case, tensors)


def test_rows():
    case = Case("average", (10,), threshold=0.8, metric="of linear")
    (row,) = compare.rows_from_samples(case, {"upsweep": [2e-6, 2e-6], "versus": [1e-6, 1e-6]}, {})
    assert (row.value, row.unit, row.met) == (0.5, "x", False) and "discounted_cumsum 0.0010 ms" in row.note
    copied = Case("tanh", (10,), threshold=0.6)
    (row,) = compare.rows_from_samples(copied, {"upsweep": [1e-6], "copy": [7e-7]}, {"upsweep": "call by call"})
    assert row.met and row.unit == "of copy" and row.n_bytes == 80 and "call by call" in row.note
    assert Case("tanh", (10, 2), gradients=True).n_bytes == 20 * 4 * (2 + 4)


def test_thresholds_are_those_of_the_plan():
    thresholds = {case.name: case.threshold for case in EVERY if case.threshold}
    assert thresholds["sum (16,384, 65,536)"] == 0.85 and thresholds["tanh (4,096, 65,536)"] == 0.6
    assert all(threshold >= 0.6 for threshold in thresholds.values())
    assert len(user_scans.cases(True, "cuda")) < len(EVERY)
