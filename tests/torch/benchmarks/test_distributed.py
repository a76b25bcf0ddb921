"""Hazard: a benchmark of ranks that times wrong answers, or waits for a rank that is gone."""

import json

import pytest
import upsweep
from helpers import run_benchmarks
from tensors import torch
from upsweep_bench import cli, distributed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["scans", "--ranks", "2"], "argument --ranks: is about distributed"),
        (["counts", "--elements", "2**20"], "argument --elements: is about distributed"),
        (["distributed", "--device", "cuda"], "argument --device: of distributed, --backend nccl"),
        (["distributed", "--batch", "2"], "argument --batch: needs scans"),
        (["distributed", "--elements", "2**"], "argument --elements: invalid count value: '2**'"),
        (["distributed", "--ranks", "0"], "argument --ranks: invalid count value: '0'"),
        (["distributed", "--backend", "mpi"], "argument --backend: invalid choice"),
    ],
)
def test_options_that_do_not_go_together(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_what_has_to_be_installed(capsys):
    devices = torch.cuda.device_count()
    assert cli.main(["distributed", "--backend", "nccl", "--ranks", str(devices + 1)]) == 2
    assert f"needs as many devices, there are {devices}" in capsys.readouterr().err
    assert cli.main(["distributed", "--only", "no such case"]) == 2


def test_thresholds():
    thresholds = {(case.operation, case.gates): case.threshold for case in distributed.cases()}
    assert thresholds == {
        ("linear_recurrence", "keep"): 0.55, ("linear_recurrence", "decay"): 0.85, ("cumulative_sum", ""): 0.60,
        ("discounted_cumsum", ""): 0.85,
    }  # fmt: skip
    assert len({case.name for case in distributed.cases()}) == 2 * len(thresholds)


def test_a_whole_run(tmp_path):
    done = run_benchmarks(
        tmp_path, "distributed", "--ranks", "2", "--elements", "2**13", "--quick", "--json", "rows.json"
    )
    assert done.returncode == 0, done.stderr
    assert "correctness: every step follows from the one before it" in done.stdout
    result = json.loads((tmp_path / "rows.json").read_text())
    assert result["machine"]["ranks"] == 2 and result["machine"]["backend"] == "gloo"
    assert [row["case"] for row in result["rows"]] == [
        name for case in distributed.cases() for name in (case.name, f"{case.name} in a row")
    ]
    assert result["machine"]["messages"] == "torch.distributed"
    for row in result["rows"]:
        assert row["value"] > 0 and row["seconds"] > 0 and row["unit"] == "of one rank"
        assert row["threshold"] is None  # messages, not scans


def test_a_rank_that_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(distributed, "cases", lambda: [distributed.Case("no_such_scan", 1, 0.5)])
    assert cli.main(["distributed", "--ranks", "2", "--elements", "16"]) == 1
    reported = capsys.readouterr().out
    assert "no speed is reported: rank 0: AttributeError" in reported and "no_such_scan" in reported


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_gate_passes_what_is_right_and_nothing_else(monkeypatch):
    monkeypatch.setattr(distributed, "_PIECE", 150)  # several pieces
    for case in distributed.cases():
        factors, x = distributed._shard(case, 3000, torch.device("cpu"))
        arguments = (factors, x) if case.gates else (x,) if case.gamma == 1 else (x, factors)
        y = getattr(upsweep, case.operation)(*arguments)
        distributed.check(factors, x, y)
        for at in (0, y.shape[1] // 2, -1):
            for wrong in (1.00001 * float(y[-1, at]) + 1e-5, float("nan")):
                spoilt = y.clone()
                spoilt[-1, at] = wrong
                with pytest.raises(distributed.WrongResult, match="a step is off"):
                    distributed.check(factors, x, spoilt)
