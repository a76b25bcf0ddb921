"""Scans and counts sharded over processes: what each process checks is in support/ranks.py."""

import doctest
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tensors import torch

PROGRAM = Path(__file__).parents[1] / "support" / "ranks.py"
CHECKS = [PROGRAM, PROGRAM.with_name("strategy_checks.py"), PROGRAM.with_name("transport_checks.py")]
NAMES = [name for path in CHECKS for name in re.findall(r"^@check\ndef (\w+)", path.read_text(), re.MULTILINE)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A function of size and backend that returns the error of each check, or None, by rank."""

    @cache
    def run(size, backend):
        path = tmp_path_factory.mktemp("group") / "store"
        ranks = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(rank), str(size), backend, str(path)],
                cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        reports = []
        try:
            for rank in ranks:
                out, err = rank.communicate(timeout=300)
                reports.append((dict(json.loads(line) for line in out.splitlines() if line.startswith("[")), err))
        finally:
            for rank in ranks:
                rank.kill()
        return reports

    return run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "size, backend",
    [
        (2, "gloo"), (3, "gloo"),
        *(pytest.param(*case, marks=pytest.mark.cuda)
          for case in [(2, "nccl"), (2, "cpu:gloo,cuda:nccl"), (4, "cpu:gloo,cuda:nccl")]),
    ],
)  # fmt: skip
def test_the_check_of_each_process(report, size, backend, name):
    if "nccl" in backend and torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} devices")
    for rank, (errors, err) in enumerate(report(size, backend)):
        assert name in errors, f"rank {rank} ended before this check:\n{err[-3000:]}"
        assert errors[name] is None, f"rank {rank}:\n{errors[name]}"


def test_examples_in_docstrings():
    import upsweep.distributed

    results = doctest.testmod(upsweep.distributed)
    assert results.attempted >= 16 and results.failed == 0


def test_without_a_group():
    import upsweep

    with pytest.raises(RuntimeError, match=r"group: torch\.distributed is not initialised"):
        upsweep.distributed.cumulative_sum(torch.ones(3))


@pytest.mark.parametrize(
    "backends, of_host, of_device",
    [
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"), ("cpu:gloo", "cpu", "cpu"), ("cuda:nccl", "cuda:3", "cuda:1"),
        ("cpu:gloo,cuda:nccl", "cpu", "cuda:1"), ("cpu:mpi,cuda:mpi", "cpu", "cpu"),
    ],
)  # fmt: skip
def test_the_device_of_communication(monkeypatch, backends, of_host, of_device):
    import torch.distributed as dist
    from upsweep.distributed.communicator import Communicator

    for name, answer in (("is_initialized", True), ("get_rank", 0), ("get_world_size", 2)):
        monkeypatch.setattr(dist, name, lambda group=None, answer=answer: answer)
    monkeypatch.setattr(dist, "get_backend_config", lambda group=None: backends)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    messages = Communicator(None).messages
    assert messages.comm_device(torch.device("cpu")) == torch.device(of_host)
    assert messages.comm_device(torch.device("cuda:1")) == torch.device(of_device)
