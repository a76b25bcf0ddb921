"""Hazard: a benchmark of counts that times wrong answers, or keys that are not what their name says."""

import argparse
import json
from dataclasses import replace
from functools import partial

import pytest
from helpers import command

torch = pytest.importorskip("torch", reason="torch is not installed")

from upsweep import bench  # noqa: E402  # after it is known that torch is there
from upsweep.bench import (  # noqa: E402
    cuda,
    cuda_cases,
    cuda_count_cases,
    cuda_counts,
    cuda_harness,
    cuda_peers,
    cuda_scans,
    machine,
)
from upsweep.bench.cuda_count_cases import Case  # noqa: E402

SMALL = [
    Case(3000, 50),
    Case(3000, 7, "uint8"),
    Case(3000, 5000, "int32"),
    Case(3000, 50, weights="float32"),
    Case(3000, 50, weights="float32", deterministic=True, figure="of free"),
    Case(3000, 20, "float32"),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name}, {case.dtype}")
def test_the_gate_passes_what_is_right_and_nothing_else(case, monkeypatch):
    tensors = cuda_counts.Tensors(case, 1, device="cpu")
    cuda_counts.check(case, tensors)
    right = cuda_counts.function_of(case)

    def one_more(y):
        return y + (torch.arange(len(y)) == y.argmax()) * (1e-3 * y if case.weights else 1).to(y.dtype)

    spoils = [lambda y: y[:-1], lambda y: torch.zeros_like(y)]
    spoils += [one_more] if case.weights else [lambda y: y + (torch.arange(len(y)) == 3).to(y.dtype)]
    for spoil in spoils:
        monkeypatch.setattr(cuda_counts, "function_of", lambda _, spoil=spoil: lambda *args: spoil(right(*args)))
        with pytest.raises(cuda_counts.WrongResult, match=case.name):
            cuda_counts.check(case, tensors)


def test_keys_are_distributed_as_they_are_named():
    def keys(distribution, n_bins=1000, dtype="int64"):
        case = Case(20_000, n_bins, dtype, distribution)
        found = cuda_counts.make_keys(case, torch.Generator().manual_seed(0))
        assert found.dtype == getattr(torch, dtype) and found.shape == (20_000,)
        assert found.min().item() >= 0 and found.max().item() < n_bins
        return found

    assert len(keys("uniform").unique()) == 1000
    assert keys("uniform", 10_000, "uint8").max() == 255
    assert keys("all equal").unique().tolist() == [500]
    assert keys("two values").unique().tolist() == [0, 999]
    ordered = keys("sorted")
    assert (ordered.diff() >= 0).all() and len(ordered.unique()) == 1000
    counts = torch.bincount(keys("Zipf"), minlength=1000)
    assert 1.5 < counts[0] / counts[1] < 2.5 and counts[0] > 20 * counts[100] > 0
    assert (keys("multiples of 32") % 32 == 0).all() and len(keys("multiples of 32").unique()) == 32
    assert keys("low bins", 10_000_000).max() < 32_768


def test_cases():
    every = cuda_count_cases.cases()
    names = [f"{case.name}, {case.dtype}" for case in every]
    assert len(set(names)) >= len(names) - 3  # the series over n meets the table at its largest
    assert {case.distribution for case in every} == {"uniform", *cuda_count_cases.DISTRIBUTIONS}
    assert {case.n for case in every if case.n_bins == 256} >= {10_000, 1_000_000, 100_000_000, 1 << 27}
    assert {257, 6143, 12_287} <= {case.n_bins for case in every}
    table = {(case.dtype, case.n_bins): case for case in every if case.figure == "of copy" and case.n == 1 << 27
             and not case.weights}  # fmt: skip
    for key, seconds in {("int64", 256): 0.26e-3, ("int32", 4096): 0.16e-3, ("uint8", 2): 0.055e-3,
                         ("float32", 100): 0.15e-3, ("int64", 100_000_000): 3e-3}.items():  # fmt: skip
        case = table[key]
        assert case.bar == pytest.approx(case.n_bytes / 4.27e12 / seconds, rel=1e-2)
    assert all(name in cuda_peers.PEERS for case in every for name, _ in case.peers)
    quick = cuda_count_cases.cases(quick=True)
    assert max(case.n_bytes for case in quick) < 2**28


def test_rows_from_samples():
    case = Case(1000, 256, bar=0.5, peers=(("torch.bincount", 1.0), ("cupy", 1.0)))
    seconds = {"upsweep": [2e-6, 1e-6, 9e-6], "copy": [1e-6] * 3, "torch.bincount": [4e-6] * 3}
    ours, torchs, cupys = cuda_counts.rows_from_samples(case, seconds, {"cupy": "refused"})
    assert (ours.figure, ours.met, ours.unit, ours.length) == (0.5, True, "of copy", 1000)
    assert ours.n_bytes == 1000 * 8 + 256 * 8
    assert (torchs.figure, torchs.met, torchs.method) == (2.0, True, "torch.bincount")
    assert (cupys.seconds, cupys.note) == (None, "refused")
    skewed = replace(case, figure="of uniform", distribution="Zipf", bar=1 / 1.5, peers=())
    (row,) = cuda_counts.rows_from_samples(skewed, {"upsweep": [3e-6], "versus": [1.9e-6]}, {})
    assert row.unit == "x" and row.figure == pytest.approx(1.9 / 3) and row.met is False and "uniform" in row.note


@pytest.mark.parametrize("module, case", [
    (cuda_scans, cuda_cases.Case("linear_recurrence", (2, 3, 32))),
    (cuda_scans, cuda_cases.Case("linear_recurrence", (2, 3, 30), figure="per element", versus=(2, 3, 32))),
    (cuda_counts, SMALL[0]),
    (cuda_counts, replace(SMALL[0], distribution="Zipf", figure="of uniform")),
])  # fmt: skip
def test_a_case_is_timed_in_turns_with_its_peers(module, case, monkeypatch):
    order = []

    def prepare(subject):
        number = len(order)
        order.append(number)
        return cuda_harness.Prepared(lambda: order.append(number), 1, f"number {number}")

    def elapsed(run):
        run()
        return 1e-3 * (1 + order[-1])

    def answer(*arrays):  # without the weights of counts, which are none
        return module.function_of(case)(*arrays)

    for name, function in (("right", answer), ("wrong", lambda x, other: x)):
        monkeypatch.setitem(cuda_peers.PEERS, name, cuda_peers.Peer("torch", lambda case, f=function: f))
    monkeypatch.setattr(module, "Tensors", partial(module.Tensors, device="cpu"))
    monkeypatch.setattr(cuda_harness, "n_sets", lambda n_bytes: 1)
    monkeypatch.setattr(cuda_harness, "prepare", prepare)
    monkeypatch.setattr(cuda_harness, "_elapsed", elapsed)
    monkeypatch.setattr(cuda_harness, "copy_of", lambda n_bytes: cuda_harness.Subject(lambda i: None))
    rows = module.measure_case(replace(case, peers=(("right", 1.0), ("wrong", 1.0))), rounds=2, warmup=1)
    assert order == [0, 1, 2] * 4  # upsweep, what it is compared with, the peer
    ours, right, wrong = rows
    assert (ours.seconds, ours.method, ours.note.rpartition("; ")[2]) == (1e-3, "upsweep", "number 0")
    assert (right.seconds, right.figure, right.note) == (3e-3, 3.0, "number 2")
    assert wrong.seconds is None and wrong.note.startswith("wrong, not timed")


def test_peers_answer_as_upsweep_does(monkeypatch):
    monkeypatch.setattr(cuda_harness, "prepare", lambda subject: subject)
    for case in SMALL:
        tensors = cuda_counts.Tensors(case, 1, device="cpu")
        name = "torch.histc" if case.is_histogram else "torch.bincount"
        assert tensors.error(tensors.call(cuda_peers.bind(name, case))(0)) <= 1e-4
    with pytest.raises(cuda_peers.Refused, match="int64"):
        cuda_peers.PEERS["scatter_add_"].bind(Case(10, 5, "int32"))


def options(*arguments):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(["counts", "--device", "cuda", *arguments])


def test_no_speed_is_reported_when_a_result_is_wrong(monkeypatch, capsys, tmp_path):
    def measure_case(case, rounds, warmup):
        if case.n_bins == 257:
            raise cuda_counts.WrongResult("this one is wrong")
        return cuda_counts.rows_from_samples(case, {"upsweep": [1e-3], "copy": [1e-3], "versus": [1e-3]}, {})

    monkeypatch.setattr(cuda, "why_not", lambda: None)
    monkeypatch.setattr(machine, "describe_cuda", machine.describe)
    monkeypatch.setattr(cuda_peers, "missing", lambda: list(cuda_peers.PEERS))
    monkeypatch.setattr(cuda_counts, "measure_case", measure_case)
    monkeypatch.setattr(cuda_counts, "Tensors", lambda case, count: None)
    monkeypatch.setattr(cuda_counts, "check", lambda case, tensors: None)
    path = tmp_path / "rows.json"
    assert bench.run(options("--only", "in 25", "--json", str(path))) == 1
    said = capsys.readouterr().out
    assert "no speed is reported" in said and "this one is wrong" in said and not path.exists()
    assert "fpscan" not in said and "cupy with CUB" in said  # not installed, and asked for
    assert bench.run(options("--only", "in 4,096", "--json", str(path))) == 0
    assert json.loads(path.read_text())["rows"][0]["figure"] == 1


@pytest.mark.cuda
@pytest.mark.parametrize("only", ["in 256 bins uniform", "in 4,096 bins all equal", "histc"])
def test_the_table_on_a_device(only, tmp_path):
    done = command(tmp_path, "bench", "counts", "--device=cuda", "--quick", "--only", only, "--json", "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows[0]["method"] == "upsweep" and rows[0]["figure"] > 0.05
    assert any(row["method"].startswith("torch.") and row["figure"] for row in rows)
