"""Hazard: a benchmark of te's programs on CUDA that times wrong answers, or compares different cells."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("llvmlite")

from upsweep_bench import compare, graph_timing, peers, te_programs  # noqa: E402  # after torch was found
from upsweep_bench.te_programs import Case  # noqa: E402

LSTM_PEERS = (("a loop in torch", 5.0), ("torch.nn.LSTM", None))
SMALL = [
    Case("sum", (40, 30), 0.8, device="cuda"),
    Case("LSTM", (12, 3, 8), 8.0, "us a step", LSTM_PEERS, "cuda"),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.program)
def test_the_gate_passes_what_is_right_and_nothing_else(case, monkeypatch):
    tensors = case.arrays(1, "cpu")
    compare.check(case, tensors)
    right = tensors.answer(case.function(tensors)).clone()
    for name, _ in case.peers:
        answer = tensors.answer(peers.bind(name, case))
        torch.testing.assert_close(answer, right[1:], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(Case, "function", lambda *_: lambda *xs: right * 0.9)
    with pytest.raises(compare.WrongResult, match=r"te .* error"):
        compare.check(case, tensors)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.program)
def test_rows(case, monkeypatch):
    tensors = case.arrays(1, "cpu")
    monkeypatch.setattr(Case, "arrays", lambda case: tensors)
    prepared = graph_timing.Prepared(lambda: None, 1, "")
    monkeypatch.setattr(graph_timing, "prepare", lambda subject: (subject.call(0), prepared)[1])
    monkeypatch.setattr(graph_timing, "copy_of", lambda n: graph_timing.Subject(lambda i: None))
    times = {compare.OURS: 1e-4, "copy": 5e-5, "a loop in torch": 1e-3, "torch.nn.LSTM": 2e-4}
    samples = graph_timing.Samples({name: [seconds] * 3 for name, seconds in times.items()})
    monkeypatch.setattr(graph_timing, "measure", lambda *_: samples)
    rows = compare.measure_case(case)
    if case.program == "sum":
        assert [(row.unit, row.value, row.met) for row in rows] == [("of copy", 0.5, False)]
    else:
        assert [(row.unit, round(row.value, 3)) for row in rows] == [("us", 8.333), ("x", 10), ("x", 2)]
        assert [row.met for row in rows] == [False, True, None]


def test_cases():
    names = [case.name for case in te_programs.cases(device="cuda")]
    assert "te sum over columns (16,384, 65,536)" in names and "te LSTM (1,000, 64, 128)" in names
    assert {case.name for case in te_programs.cases(True, "cuda")} < set(names)
