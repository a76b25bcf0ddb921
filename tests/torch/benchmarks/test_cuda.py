"""Hazard: a benchmark of CUDA tensors that times wrong answers, or that another package's failure ends."""

import doctest
import gc
import json
import weakref
from functools import partial

import numpy as np
import pytest
from helpers import run_benchmarks

torch = pytest.importorskip("torch", reason="torch is not installed")

import upsweep  # noqa: E402  # after torch was found
from upsweep import reference  # noqa: E402
from upsweep.bench import machine  # noqa: E402
from upsweep_bench import cli, compare, graph_timing, isolated, oracle, peers, scans  # noqa: E402

Case = partial(scans.Case, device="cuda")
GATED = Case("linear_recurrence", (3, 100))


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 1000])
def test_the_baseline_is_the_recurrence(length):
    random = np.random.default_rng(length)
    gates, tokens = random.normal(size=(2, 4, length)), random.normal(size=(2, 4, length))
    gates[..., 0] = np.nan  # the first gate does not count
    y = oracle.hillis_steele(torch.from_numpy(gates), torch.from_numpy(tokens))
    np.testing.assert_allclose(y.numpy(), reference.linear_recurrence(gates, tokens), rtol=1e-11, atol=1e-13)


def test_the_example_of_the_baseline():
    results = doctest.testmod(oracle)
    assert results.attempted and not results.failed


CASES = [
    GATED,
    Case("linear_recurrence", (3, 100), "float16"),
    Case("linear_recurrence", (2, 60, 5), axis=1),
    Case("linear_recurrence", (3, 100), gradients=True),
    Case("linear_recurrence", (3, 1), gradients=True),
    Case("discounted_cumsum", (2, 300)),
    Case("discounted_cumsum", (1, 300), window=7),
    Case("discounted_cumsum", (1, 5), window=7),
    Case("cumulative_sum", (2, 300)),
    Case("linear_recurrence", (2, 60, 5), axis=1, carry=True),
    Case("linear_recurrence", (1, 100_000), carry=True),
    Case("discounted_cumsum", (2, 300), carry=True),
    Case("cumulative_sum", (2, 300), carry=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.dtype}")
def test_the_gate_passes_what_is_right_and_nothing_else(case, monkeypatch):
    monkeypatch.setattr(oracle, "_PIECE", 150)  # several pieces
    tensors = case.arrays(1, "cpu")
    compare.check(case, tensors)
    right = case.function(tensors)
    spoilers = [lambda y: y * 1.02, lambda y: torch.where(y == y.max(), torch.nan, y)]
    if case.carry:
        spoilers = [
            lambda c, change=change, part=part: c._replace(**{part: change(getattr(c, part))})
            for change in spoilers for part in ("multiplier", "value")
            if part == "value" or case.n_elements < 100_000  # whose product is nothing
        ]  # fmt: skip
    for spoil in spoilers:
        monkeypatch.setattr(scans.Case, "function", lambda *_, spoil=spoil: lambda *args: spoil(right(*args)))
        if case.gradients and case.length == 1 and spoil(torch.tensor(1.0)) != spoil(torch.tensor(1.0)):
            continue  # the gradient of a NaN that replaces y is 0: no error in what is looked at
        with pytest.raises(compare.WrongResult, match=case.name):
            compare.check(case, tensors)


def run(*arguments):
    return cli.main(["scans", "--device", "cuda", *arguments])


@pytest.fixture
def with_a_fake_device(monkeypatch):
    monkeypatch.setattr(cli, "reason_not_to_run", lambda: None)
    monkeypatch.setattr(machine, "describe_cuda", machine.describe)


@pytest.mark.usefixtures("with_a_fake_device")
def test_no_speed_is_reported_when_a_result_is_wrong(monkeypatch, capsys, tmp_path):
    def measure_case(case, rounds, warmup):
        if case.shape == (2, 256, 32):
            raise compare.WrongResult("this one is wrong")
        return compare.rows_from_samples(case, {"upsweep": [1e-3], "copy": [1e-3]}, {})

    monkeypatch.setattr(compare, "measure_case", measure_case)
    monkeypatch.setattr(scans.Case, "arrays", lambda case, count: None)
    monkeypatch.setattr(compare, "check", lambda case, tensors: None)
    path = tmp_path / "rows.json"
    assert run("--only", "2 x 256 x", "--json", str(path)) == 1
    reported = capsys.readouterr().out
    assert "no speed is reported" in reported and "this one is wrong" in reported and " ms" not in reported
    assert not path.exists()
    assert run("--only", "2 x 256 x 1,024", "--json", str(path)) == 0
    assert json.loads(path.read_text())["rows"][0]["seconds"] == 1e-3
    assert run("--only", "no such case") == 2


@pytest.mark.usefixtures("with_a_fake_device")
def test_what_is_not_implemented_gets_its_line(monkeypatch, capsys):
    def measure_case(case, rounds, warmup):
        raise NotImplementedError("window: not on CUDA")

    monkeypatch.setattr(compare, "measure_case", measure_case)
    assert run("--only", "window=") == 0
    assert "window: not on CUDA" in capsys.readouterr().out


@pytest.mark.usefixtures("with_a_fake_device")
def test_peers_are_measured_one_by_one_and_may_break_down(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(peers, "missing", lambda: ["fpscan", "accelerated-scan"])
    measured = []

    def measure_case(case, rounds, warmup):
        measured.append([name for name, _ in case.peers])
        if case.peers and case.length == 512:
            raise compare.ContextLost("peer: illegal memory access\nand more")
        seconds = {name: [3e-3] for name, _ in case.peers}
        return compare.rows_from_samples(case, {"upsweep": [1e-3], "copy": [1e-3], **seconds}, {})

    def each(function, items):
        for item in items:
            try:
                yield function(item), ""
            except compare.ContextLost as error:
                yield None, str(error)

    monkeypatch.setattr(compare, "measure_case", measure_case)
    monkeypatch.setattr(isolated, "each", each)
    path = tmp_path / "rows.json"
    assert run("--only", "8 x 1,536 x", "--json", str(path)) == 0
    assert max(map(len, measured)) == 1 and measured.index(["associative_scan"]) > measured.count([])
    rows = {row["case"] + row["dtype"]: row for row in json.loads(path.read_text())["rows"]}
    fine = rows["associative_scan against linear_recurrence 8 x 1,536 x 2,048float32"]
    lost = rows["associative_scan against linear_recurrence 8 x 1,536 x 512float32"]
    assert fine["value"] == pytest.approx(3)
    assert lost["seconds"] is None and lost["note"] == "not timed: peer: illegal memory access"
    names = [row["case"] for row in json.loads(path.read_text())["rows"]]
    assert names.index("linear_recurrence 8 x 1,536 x 8,192 forward and backward") < names.index(lost["case"])
    assert not any("fpscan" in name for name in names)


def test_rows_from_samples():
    case = Case("linear_recurrence", (2, 32), threshold=0.5, peers=(("fpscan", 1.1), ("a", 1.0), ("b", None)))
    seconds = {"upsweep": [2e-6, 1e-6, 9e-6], "copy": [1e-6, 1e-6, 1e-6], "fpscan": [4e-6, 4e-6, 4e-6]}
    ours, fpscan, refused = compare.rows_from_samples(case, seconds, {"a": "refused", "fpscan": "call by call"})
    assert (ours.value, ours.threshold, ours.met, ours.unit) == (0.5, 0.5, True, "of copy")
    assert (ours.seconds, ours.p90, ours.n_bytes, ours.length) == (2e-6, 9e-6, 64 * 12, 32)
    assert (fpscan.value, fpscan.met, fpscan.unit, fpscan.note) == (2.0, True, "x", "call by call")
    assert (refused.seconds, refused.met, refused.note) == (None, None, "refused")
    odd = Case("linear_recurrence", (2, 30), threshold=0.95, metric="per element", versus_shape=(2, 32))
    (row,) = compare.rows_from_samples(odd, {"upsweep": [3e-6], "versus": [3.2e-6]}, {})
    assert row.value == pytest.approx(1) and row.unit == "x" and row.met
    for metric in ("us", "us host"):
        short = Case("linear_recurrence", (1, 32), threshold=8.0, metric=metric)
        (row,) = compare.rows_from_samples(short, {"upsweep": [9e-6]}, {})
        assert row.value == pytest.approx(9) and row.unit == "us" and row.met is False


def test_peers_that_fail_are_not_timed(monkeypatch):
    synchronised = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronised.append(1))
    monkeypatch.setattr(graph_timing, "prepare", lambda subject: subject)

    def add(name, function, package="torch"):
        monkeypatch.setitem(peers.PEERS, name, peers.Peer(package, lambda case: function))

    def fail(gates, tokens):
        raise OSError("no kernel\nmore of it")

    def refuse(case):
        raise peers.Refused("takes nothing")

    add("right", oracle.hillis_steele)
    add("wrong", lambda gates, tokens: tokens)
    add("not a number", lambda gates, tokens: tokens * torch.nan)
    add("failing", fail)
    add("absent", fail, package="no_such_package_anywhere")
    monkeypatch.setitem(peers.PEERS, "picky", peers.Peer("torch", refuse))
    tensors = GATED.arrays(1, "cpu")

    def outcome(name):
        return compare.prepare_peer(name, GATED, tensors)

    assert isinstance(outcome("right"), graph_timing.Subject)
    assert outcome("absent") is None
    assert outcome("wrong").startswith("wrong, not timed: relative error 0.9")
    assert outcome("not a number") == "wrong, not timed: relative error nan"
    assert outcome("picky") == "not timed: takes nothing"
    assert not synchronised
    assert outcome("failing") == "raised, not timed: OSError: no kernel"
    assert synchronised

    def broken():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(compare.ContextLost, match="failing: an illegal memory access"):
        outcome("failing")


def test_peers_refuse_what_they_cannot_do():
    for shape in ((2, 3, 31), (2, 3, 48), (2, 3, 131072)):
        with pytest.raises(peers.Refused, match="powers of two"):
            peers.PEERS["fpscan"].bind(Case("linear_recurrence", shape))
    with pytest.raises(peers.Refused, match="65,535 rows"):
        peers.PEERS["torch-discounted-cumsum"].bind(Case("discounted_cumsum", (65536, 2)))
    assert "fpscan" in peers.missing() or peers.bind("fpscan", Case("linear_recurrence", (2, 3, 64)))


def test_combination_of_spans():
    random = np.random.default_rng(0)
    (a, x), (b, y) = random.random((2, 2))
    assert peers._combine((a, x), (b, y)) == (a * b, b * x + y)


def test_arrays_rotate_past_the_cache():
    mebibyte = 1 << 20
    assert graph_timing.n_sets(1000 * mebibyte, 50 * mebibyte) == 1
    assert graph_timing.n_sets(10 * mebibyte, 50 * mebibyte) == 15
    assert graph_timing.n_sets(1, 50 * mebibyte) == 256
    for seconds, count in ((1e-6, 1), (1e-6, 7), (1e-3, 3), (1.0, 1), (0.0, 256)):
        calls = graph_timing.calls_for(seconds, count)
        assert calls % count == 0 and (calls * seconds >= 1e-3 or calls >= 1024)
    used = []
    graph_timing._run_calls(graph_timing.Subject(used.append, 3), 7)
    assert used == [0, 1, 2, 0, 1, 2, 0]


def test_methods_take_turns(monkeypatch):
    order = []
    monkeypatch.setattr(graph_timing, "event_seconds", lambda run: run())
    methods = {
        name: graph_timing.Prepared(lambda name=name: order.append(name) or len(order), n_calls, "")
        for name, n_calls in (("a", 1), ("b", 2))
    }
    samples = graph_timing.measure(methods, rounds=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert samples.seconds == {"a": [3, 5], "b": [4 / 2, 6 / 2]}


# ---- on a device ---------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_the_table_on_a_device(tmp_path):
    only = "linear_recurrence 2 x 256 x 4,096"
    done = run_benchmarks(tmp_path, "scans", "--device", "cuda", "--quick", "--only", only, "--json", "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every answer was within rounding" in done.stdout and "of copy" in done.stdout
    report = json.loads((tmp_path / "rows.json").read_text())
    assert report["machine"]["gpu"] and report["machine"]["cuda_driver"]
    row = report["rows"][0]
    assert row["case"] == only and 1e-6 < row["seconds"] < 1e-3 and 0.1 < row["value"] < 1.5
    assert row["note"].startswith("copy ") and "call by call" not in row["note"]  # captured in a graph


@pytest.mark.cuda
@pytest.mark.parametrize("only", ["1 x 65,536 device time", "16 x 128 host time", "2 x 256 x 1,024 forward and"])
def test_times_and_gradients_on_a_device(tmp_path, only):
    done = run_benchmarks(tmp_path, "scans", "--device", "cuda", "--quick", "--only", only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("of copy" if "forward" in only else " us") in done.stdout


@pytest.mark.cuda
def test_the_sweep_on_a_device(tmp_path):
    pytest.importorskip("matplotlib")
    flags = ["--batch=2", "--dim=16", "--dtype=float32", "--iters=5", "--warmup=1", "--outdir=out"]
    flags += ["--seqlens", "64", "1000"]
    done = run_benchmarks(
        tmp_path, "scans", "--device=cuda", "--seqlens", "64", "1000", *flags, "--json=rows.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    baseline = [row for row in rows if row["method"] == "Hillis-Steele"]
    assert [row["length"] for row in baseline] == [64, 1000] and all(row["value"] > 1 for row in baseline)
    for name in ("latency_vs_seqlen.png", "speedup_vs_seqlen.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.cuda
def test_a_wrong_result_on_a_device(monkeypatch, capsys):
    right = upsweep.linear_recurrence
    monkeypatch.setattr(upsweep, "linear_recurrence", lambda *args, **keywords: right(*args, **keywords) * 1.001)
    assert run("--quick", "--only", "linear_recurrence 2 x 256 x 1,024") == 1
    assert "no speed is reported" in capsys.readouterr().out


@pytest.mark.cuda
def test_what_cannot_be_captured_is_timed_in_a_row():
    x = torch.ones(1000, device="cuda")
    prepared = graph_timing.prepare(graph_timing.Subject(lambda i: (x + 1).sum().item()))  # waits for the device
    assert "call by call" in prepared.note
    samples = graph_timing.measure({"waiting": prepared}, rounds=3)
    assert all(1e-6 < seconds < 1e-2 for seconds in samples.seconds["waiting"])
    # And the next one is captured as if nothing had been.
    assert graph_timing.prepare(graph_timing.Subject(lambda i: x + 1)).note == ""


@pytest.mark.cuda
def test_a_graph_keeps_the_arrays_that_it_was_captured_with():
    def sums(size):
        x = torch.arange(size, device="cuda")
        arrays.append(weakref.ref(x))
        return graph_timing.prepare(graph_timing.Subject(lambda i: x + 1))

    arrays = []
    prepared = [sums(1 << 20), sums(1 << 21)]  # the second capture gives unused memory back to the device
    gc.collect()
    assert all(array() is not None for array in arrays) and not any(p.note for p in prepared)
    graph_timing.measure({"one": prepared[0], "other": prepared[1]}, rounds=2)
    del prepared
    gc.collect()
    assert all(array() is None for array in arrays)


@pytest.mark.cuda
def test_a_copy_is_no_faster_than_the_device():
    n_bytes = 1 << 30
    samples = graph_timing.measure({"copy": graph_timing.prepare(graph_timing.copy_of(n_bytes))}, rounds=5)
    rate = n_bytes / graph_timing.median(samples.seconds["copy"]) / 1e12
    assert 0.05 < rate < 20  # TB/s: an order of magnitude around every card there is
