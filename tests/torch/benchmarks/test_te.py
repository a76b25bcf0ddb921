"""Hazard: a benchmark of te's programs on CUDA that times wrong answers, or compares different cells."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("llvmlite")

from upsweep.bench import cuda_harness, cuda_te, cuda_te_cases  # noqa: E402  # after it is known that torch is there
from upsweep.bench.cuda_te_cases import Case  # noqa: E402

SMALL = [Case("columns", (40, 30), 0.8), Case("lstm", (12, 3, 8), 8.0)]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.program)
def test_the_gate_passes_what_is_right_and_nothing_else(case, monkeypatch):
    tensors = cuda_te.Tensors(case, 1, device="cpu")
    cuda_te.check(case, tensors)
    right = tensors.ours(0).clone()
    for call in tensors.rivals().values():
        torch.testing.assert_close(call(0), right[1:], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(tensors, "ours", lambda i: right * 0.9)
    with pytest.raises(cuda_te.WrongResult, match=r"te .* error"):
        cuda_te.check(case, tensors)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.program)
def test_rows(case, monkeypatch):
    tensors = cuda_te.Tensors(case, 1, device="cpu")
    monkeypatch.setattr(cuda_te, "Tensors", lambda case: tensors)
    monkeypatch.setattr(cuda_harness, "prepare", lambda subject: subject.call(0))
    monkeypatch.setattr(cuda_harness, "copy_of", lambda n: cuda_harness.Subject(lambda i: None))
    times = {cuda_te.OURS: 1e-4, "copy": 5e-5, "a loop in torch": 1e-3, "torch.nn.LSTM": 2e-4}
    samples = cuda_harness.Samples({name: [seconds] * 3 for name, seconds in times.items()})
    monkeypatch.setattr(cuda_harness, "measure", lambda *_: samples)
    rows = cuda_te.measure_case(case)
    if case.program == "columns":
        assert [(row.unit, row.figure, row.met) for row in rows] == [("of copy", 0.5, False)]
    else:
        assert [(row.unit, round(row.figure, 3)) for row in rows] == [("us", 8.333), ("x", 10), ("x", 2)]
        assert [row.met for row in rows] == [False, True, None]


def test_cases():
    names = [case.name for case in cuda_te_cases.cases()]
    assert "te sum over columns (16,384, 65,536)" in names and "te LSTM (1,000, 64, 128)" in names
    assert {case.name for case in cuda_te_cases.cases(quick=True)} < set(names)
