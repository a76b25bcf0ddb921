"""Hazard: a kernel that no case of `sanitize.py` reaches, a wrong case, an error that a run does not count.

Needs no GPU: calls run on the CPU, and plans need no device.
"""

import importlib.util
import time
import types
from pathlib import Path

import kernel_cases
import pytest
from devices import find_installed
from upsweep._backends.cuda import driver, library


@pytest.fixture
def planned_cuda(fake_cuda, monkeypatch):
    """The CUDA library on the CPU, with the regimes that the real one chooses for 132 processors."""
    path = find_installed()
    if path is None:
        pytest.skip("built without the CUDA library")
    real = library.Library(path)

    def planner(name):
        def plan(request, *arguments):
            answer = arguments[-1]
            getattr(real, name)(request, *(132 for _ in arguments[1:]), answer)
            answer._obj.workspace_bytes = 1000

        return plan

    for name in ("plan_scan", "plan_reduce", "plan_count", "plan_histogram"):
        monkeypatch.setattr(fake_cuda, name, planner(name))
    monkeypatch.setattr(driver, "device", lambda _: types.SimpleNamespace(n_processors=132))


@pytest.mark.parametrize("group", kernel_cases.ON_HOST)
def test_cases_reach_every_kernel(group, planned_cuda):
    kernel_cases.run_group(group)


def test_a_regime_without_a_case_is_an_error(planned_cuda, monkeypatch):
    monkeypatch.setitem(kernel_cases.GROUPS, "windows", lambda: kernel_cases.check("cumulative_sum", [1.0, 2.0]))
    with pytest.raises(AssertionError, match=r"windows: no call takes \['window'\]"):
        kernel_cases.run_group("windows")


def test_every_regime_has_a_group():
    covered = set().union(*kernel_cases.COVERAGE.values())
    assert set(kernel_cases.REGIMES[1:]) <= covered


@pytest.fixture(scope="module")
def sanitize():
    spec = importlib.util.spec_from_file_location("sanitize", Path(__file__).parent / "sanitize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "script, errors",
    [
        ("echo '========= ERROR SUMMARY: 0 errors'", 0),
        ("echo '========= ERROR SUMMARY: 1 error'; exit 1", 1),
        ("echo '========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)'", 3),
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 1", "wrong results"),
        ("echo Traceback; exit 1", "no report"),
        ("echo '========= Error: Device not supported'; echo '========= ERROR SUMMARY: 1 error'", "not supported"),
        ("sleep 60 & sleep 60", "time limit"),
    ],
)
def test_what_a_tool_reports(script, errors, sanitize, tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\necho '========= COMPUTE-SANITIZER'\n{script}\n")
    tool.chmod(0o755)
    limit = 1.5 if errors == "time limit" else 60
    runner = sanitize.Runner(str(tool), tmp_path, time.monotonic() + 60, limit)
    result, seconds, log = runner.run("split lines", "memcheck")
    assert result == errors and seconds < 30 and log.name == "split-lines.memcheck.log"
    assert script.startswith("sleep") or sanitize.first_report(result, log)
    assert sanitize.Runner(str(tool), tmp_path, time.monotonic(), 60).run("pairs")[0] == "not run"
