"""The benchmark of scans by an update on a GPU: its cases, its check, which fails on what is wrong, its rows."""

import pytest
from tensors import torch  # noqa: F401  # skips where it is not
from upsweep.bench import cuda_userscan
from upsweep.bench.cuda_userscan_cases import Case, cases


def small(case):
    shape = tuple(min(n, 40 + 9 * d) for d, n in enumerate(case.shape))
    return Case(case.update, shape, case.axis, case.dtype, case.bar, case.figure, case.gradients)


SMALL = sorted({small(case) for case in cases()}, key=repr)  # the same order in each process


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_each_case_is_checked(monkeypatch, case):
    """On the CPU, whose scans are the same calls."""
    tensors = cuda_userscan.Tensors(case, 1, device="cpu")
    cuda_userscan.check(case, tensors)
    assert tensors.call(cuda_userscan.function_of(case))(0) is not None
    right = cuda_userscan.function_of(case)
    monkeypatch.setattr(cuda_userscan, "function_of", lambda case: lambda *xs: right(*xs) * 1.01)
    with pytest.raises(cuda_userscan.WrongResult, match="error"):
        cuda_userscan.check(case, tensors)


def test_rows():
    case = Case("average", (10,), bar=0.8, figure="of linear")
    (row,) = cuda_userscan.rows_from_samples(case, {"upsweep": [2e-6, 2e-6], "versus": [1e-6, 1e-6]}, {})
    assert (row.figure, row.unit, row.met) == (0.5, "x", False) and "discounted_cumsum 0.0010 ms" in row.note
    copied = Case("tanh", (10,), bar=0.6)
    (row,) = cuda_userscan.rows_from_samples(copied, {"upsweep": [1e-6], "copy": [7e-7]}, {"upsweep": "in a row"})
    assert row.met and row.unit == "of copy" and row.n_bytes == 80 and "in a row" in row.note
    assert Case("tanh", (10, 2), gradients=True).n_bytes == 20 * 4 * (2 + 4)


def test_bars_are_those_of_the_plan():
    barred = {case.name: case.bar for case in cases() if case.bar}
    assert barred["sum (16,384, 65,536)"] == 0.8 and barred["tanh (4,096, 65,536)"] == 0.6
    assert all(bar >= 0.6 for bar in barred.values()) and len(list(cases(quick=True))) < len(list(cases()))
