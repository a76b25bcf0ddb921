"""Hazard: a benchmark of counts that times wrong answers, or keys that are not what their name says."""

import json
from dataclasses import replace
from functools import partial

import pytest
from helpers import run_benchmarks

torch = pytest.importorskip("torch", reason="torch is not installed")

from upsweep.bench import machine  # noqa: E402  # after torch was found
from upsweep_bench import cli, compare, counts, graph_timing, histograms, peers, scans  # noqa: E402
from upsweep_bench.case import Source  # noqa: E402

Case = partial(counts.Case, device="cuda")
Scan = partial(scans.Case, device="cuda")
EVERY = cli.cases("counts", False, "cuda")
SMALL = [
    Case(3000, 50),
    Case(3000, 7, "uint8"),
    Case(3000, 5000, "int32"),
    Case(3000, 50, weights="float32"),
    Case(3000, 50, weights="float32", deterministic=True, metric="of free"),
    histograms.Case(3000, 20, function_name="histc", device="cuda"),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.name}, {case.dtype}")
def test_the_gate_passes_what_is_right_and_nothing_else(case, monkeypatch):
    tensors = case.arrays(1, "cpu")
    compare.check(case, tensors)
    right = case.function(tensors)

    def one_more(y):
        return y + (torch.arange(len(y)) == y.argmax()) * (1e-3 * y if case.weights else 1).to(y.dtype)

    spoils = [lambda y: y[:-1], lambda y: torch.zeros_like(y)]
    spoils += [one_more] if case.weights else [lambda y: y + (torch.arange(len(y)) == 3).to(y.dtype)]
    for spoil in spoils:
        monkeypatch.setattr(type(case), "function", lambda *_, spoil=spoil: lambda *args: spoil(right(*args)))
        with pytest.raises(compare.WrongResult, match=case.name):
            compare.check(case, tensors)


def test_keys_are_distributed_as_they_are_named():
    def keys(distribution, n_bins=1000, dtype="int64"):
        case = Case(20_000, n_bins, dtype, distribution)
        sample = counts.make_keys(case, Source(case, "cpu"))
        assert sample.dtype == getattr(torch, dtype) and sample.shape == (20_000,)
        assert sample.min().item() >= 0 and sample.max().item() < n_bins
        return sample

    assert len(keys("uniform").unique()) == 1000
    assert keys("uniform", 10_000, "uint8").max() == 255
    assert keys("all equal").unique().tolist() == [500]
    assert keys("two values").unique().tolist() == [0, 999]
    ordered = keys("sorted")
    assert (ordered.diff() >= 0).all() and len(ordered.unique()) == 1000
    of_zipf = torch.bincount(keys("Zipf"), minlength=1000)
    assert 1.5 < of_zipf[0] / of_zipf[1] < 2.5 and of_zipf[0] > 20 * of_zipf[100] > 0
    assert (keys("multiples of 32") % 32 == 0).all() and len(keys("multiples of 32").unique()) == 32
    assert keys("low bins", 10_000_000).max() < 32_768


def test_cases():
    every = [case for case in EVERY if isinstance(case, counts.Case)]
    names = [case.label for case in EVERY]
    assert len(set(names)) >= len(names) - 3  # the series over n meets the table at its largest
    assert {case.distribution for case in every} == {"uniform", *counts.DISTRIBUTIONS}
    assert {case.n for case in every if case.n_bins == 256} >= {10_000, 1_000_000, 100_000_000, 1 << 27}
    assert {257, 6143, 12_287} <= {case.n_bins for case in every}
    table = {(case.dtype, case.n_bins): case for case in every if case.metric == "of copy" and case.n == 1 << 27
             and not case.weights}  # fmt: skip
    table |= {(case.dtype, case.bins): case for case in EVERY if isinstance(case, histograms.Case)}
    for key, seconds in {("int64", 256): 0.26e-3, ("int32", 4096): 0.16e-3, ("uint8", 2): 0.055e-3,
                         ("float32", 100): 0.15e-3, ("int64", 100_000_000): 3e-3}.items():  # fmt: skip
        case = table[key]
        assert case.threshold == pytest.approx(case.n_bytes / 4.27e12 / seconds, rel=1e-2)
    assert all(name in peers.PEERS for case in EVERY for name, _ in case.peers)
    quick = cli.cases("counts", True, "cuda")
    assert max(case.n_bytes for case in quick) < 2**28


def test_rows_from_samples():
    case = Case(1000, 256, threshold=0.5, peers=(("torch.bincount", 1.0), ("cupy", 1.0)))
    seconds = {"upsweep": [2e-6, 1e-6, 9e-6], "copy": [1e-6] * 3, "torch.bincount": [4e-6] * 3}
    ours, torchs, cupys = compare.rows_from_samples(case, seconds, {"cupy": "refused"})
    assert (ours.value, ours.met, ours.unit, ours.length) == (0.5, True, "of copy", 1000)
    assert ours.n_bytes == 1000 * 8 + 256 * 8
    assert (torchs.value, torchs.met, torchs.method) == (2.0, True, "torch.bincount")
    assert (cupys.seconds, cupys.note) == (None, "refused")
    skewed = replace(case, metric="of uniform", distribution="Zipf", threshold=1 / 1.5, peers=())
    (row,) = compare.rows_from_samples(skewed, {"upsweep": [3e-6], "versus": [1.9e-6]}, {})
    assert row.unit == "x" and row.value == pytest.approx(1.9 / 3) and row.met is False and "uniform" in row.note


@pytest.mark.parametrize("case", [
    Scan("linear_recurrence", (2, 3, 32)),
    Scan("linear_recurrence", (2, 3, 30), metric="per element", versus_shape=(2, 3, 32)),
    SMALL[0],
    replace(SMALL[0], distribution="Zipf", metric="of uniform"),
], ids=lambda case: case.name)  # fmt: skip
def test_a_case_is_timed_in_turns_with_its_peers(case, monkeypatch):
    order = []

    def prepare(subject):
        number = len(order)
        order.append(number)
        return graph_timing.Prepared(lambda: order.append(number), 1, f"number {number}")

    def elapsed(run):
        run()
        return 1e-3 * (1 + order[-1])

    def answer(*arrays):  # without the weights of counts, which are none
        return case.function(tensors)(*arrays)

    for name, function in (("right", answer), ("wrong", lambda x, other: x)):
        monkeypatch.setitem(peers.PEERS, name, peers.Peer("torch", lambda case, f=function: f))
    arrays_of = type(case).arrays
    tensors = case.arrays(1, "cpu")
    monkeypatch.setattr(type(case), "arrays", lambda self, count=None, device=None: arrays_of(self, 1, "cpu"))
    monkeypatch.setattr(graph_timing, "n_sets", lambda n_bytes: 1)
    monkeypatch.setattr(graph_timing, "prepare", prepare)
    monkeypatch.setattr(graph_timing, "event_seconds", elapsed)
    monkeypatch.setattr(graph_timing, "copy_of", lambda n_bytes: graph_timing.Subject(lambda i: None))
    rows = compare.measure_case(replace(case, peers=(("right", 1.0), ("wrong", 1.0))), rounds=2, warmup=1)
    assert order == [0, 1, 2] * 4  # upsweep, what it is compared with, the peer
    ours, right, wrong = rows
    assert (ours.seconds, ours.method, ours.note.rpartition("; ")[2]) == (1e-3, "upsweep", "number 0")
    assert (right.seconds, right.value, right.note) == (3e-3, 3.0, "number 2")
    assert wrong.seconds is None and wrong.note.startswith("wrong, not timed")


def test_peers_answer_as_upsweep_does():
    for case in SMALL:
        tensors = case.arrays(1, "cpu")
        name = "torch.histc" if isinstance(case, histograms.Case) else "torch.bincount"
        assert tensors.error(tensors.call(peers.bind(name, case))(0)) <= 1e-4
    with pytest.raises(peers.Refused, match="int64"):
        peers.PEERS["scatter_add_"].bind(Case(10, 5, "int32"))


def run(*arguments):
    return cli.main(["counts", "--device", "cuda", *arguments])


def test_no_speed_is_reported_when_a_result_is_wrong(monkeypatch, capsys, tmp_path):
    def measure_case(case, rounds, warmup):
        if case.label.find("in 257 bins") > 0:
            raise compare.WrongResult("this one is wrong")
        return compare.rows_from_samples(case, {"upsweep": [1e-3], "copy": [1e-3], "versus": [1e-3]}, {})

    monkeypatch.setattr(cli, "reason_not_to_run", lambda: None)
    monkeypatch.setattr(machine, "describe_cuda", machine.describe)
    monkeypatch.setattr(peers, "missing", lambda: list(peers.PEERS))
    monkeypatch.setattr(compare, "measure_case", measure_case)
    monkeypatch.setattr(counts.Case, "arrays", lambda case, count: None)
    monkeypatch.setattr(compare, "check", lambda case, tensors: None)
    path = tmp_path / "rows.json"
    assert run("--only", "in 25", "--json", str(path)) == 1
    reported = capsys.readouterr().out
    assert "no speed is reported" in reported and "this one is wrong" in reported and not path.exists()
    assert "fpscan" not in reported and "cupy with CUB" in reported  # not installed, and asked for
    assert run("--only", "in 4,096", "--json", str(path)) == 0
    assert json.loads(path.read_text())["rows"][0]["value"] == 1


@pytest.mark.cuda
@pytest.mark.parametrize("only", ["in 256 bins uniform", "in 4,096 bins all equal", "histc"])
def test_the_table_on_a_device(only, tmp_path):
    done = run_benchmarks(tmp_path, "counts", "--device=cuda", "--quick", "--only", only, "--json", "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows[0]["method"] == "upsweep" and rows[0]["value"] > 0.05
    assert any(row["method"].startswith("torch.") and row["value"] for row in rows)
