"""The benchmark of reductions over pairs on a GPU: cases, the check, which fails on what is wrong, rows."""

from dataclasses import replace

import pytest
from tensors import torch  # noqa: F401  # skips where it is not
from upsweep_bench import cli, compare, graph_timing, pairs

pytest.importorskip("llvmlite")

EVERY = cli.cases("pairs", False, "cuda")


def small(case):
    cells = None if case.cells is None else 4
    # float16 is for devices
    dtype = "float32" if case.dtype == "float16" else case.dtype
    return replace(
        case, n_rows=200, n_columns=200, dim=min(case.dim, 5), dtype=dtype, cells=cells, share=0.3, threshold=None
    )


# Sorted: the same order in each process of pytest-xdist.
SMALL = sorted({small(case) for case in EVERY if isinstance(case, pairs.Case)}, key=repr)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name}, {case.dtype}")
def test_each_case_is_checked(monkeypatch, case):
    """On the CPU, whose reductions are the same calls."""
    tensors = case.arrays(1, "cpu")
    compare.check(case, tensors)
    if case.cells is not None:
        assert 0.1 < tensors.ranges.n_pairs / 200**2 < 0.9
    right = case.function(tensors)
    error = 2 * tensors.allowed()
    indices = case.reduction in ("argmin", "argKmin")
    wrong = (lambda *a: right(*a).flip(0)) if indices else (lambda *a: right(*a) * (1 + error) + error)
    monkeypatch.setattr(pairs.Case, "function", lambda *_: wrong)
    with pytest.raises(compare.WrongResult, match="error"):
        compare.check(case, tensors)


def test_rows(monkeypatch):
    monkeypatch.setattr(
        graph_timing, "prepare", lambda subject: graph_timing.Prepared(lambda: subject.call(0), 1, "")
    )
    samples = graph_timing.Samples({"upsweep": [2e-3, 3e-3, 4e-3]})
    monkeypatch.setattr(graph_timing, "measure", lambda *_: samples)
    case = pairs.Case("sum", 300, 200, threshold=3.5, device="cuda")
    tensors = case.arrays(device="cpu")
    monkeypatch.setattr(pairs.Case, "arrays", lambda case: tensors)
    (row,) = compare.measure_case(case)
    assert (row.value, row.unit, row.met) == (3.0, "ms", True) and "0.00e12 pairs/s" in row.note


def test_the_first_use_of_a_formula(monkeypatch):
    first_use = pairs._first_use
    monkeypatch.setattr(pairs, "_first_use", lambda: first_use("cpu"))
    (case,) = cli.cases("pairs", False, "cuda", "first use")
    (row,) = compare.measure_case(case)
    assert row.threshold == 200 and 0.1 < row.value < 10_000 and row.unit == "ms"  # compiled, each time


def test_thresholds_are_those_of_the_plan():
    thresholds = {case.name: case.threshold for case in EVERY if case.threshold}
    assert thresholds["Gaussian sum, D=3, 1,000,000 x 1,000,000"] == 275 and len(thresholds) == 15
    assert len(cli.cases("pairs", True, "cuda")) < len(EVERY)
