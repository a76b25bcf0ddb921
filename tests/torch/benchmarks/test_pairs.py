"""The benchmark of reductions over pairs on a GPU: cases, the check, which fails on what is wrong, rows."""

from dataclasses import replace

import pytest
from tensors import torch  # noqa: F401  # skips where it is not
from upsweep.bench import cuda_harness, cuda_pairs
from upsweep.bench.cuda_pair_cases import Case, cases

pytest.importorskip("llvmlite")


def small(case):
    cells = None if case.cells is None else 4
    # float16 is for devices
    dtype = "float32" if case.dtype == "float16" else case.dtype
    return replace(
        case, n_rows=200, n_columns=200, dim=min(case.dim, 5), dtype=dtype, cells=cells, share=0.3, bar=None
    )


SMALL = sorted({small(case) for case in cases() if case.n_rows}, key=repr)  # the same order in each process


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name}, {case.dtype}")
def test_each_case_is_checked(monkeypatch, case):
    """On the CPU, whose reductions are the same calls."""
    tensors = cuda_pairs.Tensors(case, 1, device="cpu")
    cuda_pairs.check(case, tensors)
    if case.cells is not None:
        assert 0.1 < tensors.ranges.n_pairs / 200**2 < 0.9
    right = cuda_pairs.function_of(case, tensors.ranges)
    wrong = (
        (lambda *a: right(*a).flip(0)) if case.reduction == "argKmin" else (lambda *a: right(*a) * 1.001 + 1e-3)
    )
    monkeypatch.setattr(cuda_pairs, "function_of", lambda *_: wrong)
    with pytest.raises(cuda_pairs.WrongResult, match="error"):
        cuda_pairs.check(case, tensors)


def test_rows(monkeypatch):
    monkeypatch.setattr(
        cuda_harness, "prepare", lambda subject: cuda_harness.Prepared(lambda: subject.call(0), 1, "")
    )
    samples = cuda_harness.Samples({"upsweep": [2e-3, 3e-3, 4e-3]})
    monkeypatch.setattr(cuda_harness, "measure", lambda *_: samples)
    case = Case("sum", 300, 200, bar=3.5)
    tensors = cuda_pairs.Tensors(case, device="cpu")
    monkeypatch.setattr(cuda_pairs, "Tensors", lambda case: tensors)
    (row,) = cuda_pairs.measure_case(case)
    assert (row.figure, row.unit, row.met) == (3.0, "ms", True) and "0.00e12 pairs/s" in row.note


def test_the_first_use_of_a_formula(monkeypatch):
    first_use = cuda_pairs._first_use
    monkeypatch.setattr(cuda_pairs, "_first_use", lambda: first_use("cpu"))
    (row,) = cuda_pairs.measure_case(Case("first use", bar=300.0))
    assert 0.1 < row.figure < 10_000 and row.unit == "ms"  # compiled, each time


def test_bars_are_those_of_the_plan():
    barred = {case.name: case.bar for case in cases() if case.bar}
    assert barred["Gaussian sum, D=3, 1,000,000 x 1,000,000"] == 300 and len(barred) == 12
    assert len(list(cases(quick=True))) < len(list(cases()))
