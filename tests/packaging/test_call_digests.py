"""The script that compares the results of representative calls before and after a change."""

import inspect
import json
import re
import subprocess
import sys

import call_cases
import call_digests
import call_operands
import pytest
import upsweep
from upsweep import cluster, te

pytest.importorskip("llvmlite")

ONLY = r"^(numpy|dask)/run.*cumulative_sum.*(float32|n_threads)|^errors/upsweep.cumul"


def script(command, file, only=ONLY):
    return call_digests.main([command, str(file), "--only", only, "--rounds", "1"])


@pytest.fixture
def written(tmp_path):
    file = tmp_path / "digests.json"
    assert script("write", file) == 0
    return file


def test_equal_results(written, capsys):
    assert script("compare", written) == 0
    assert "changed" not in capsys.readouterr().out


def test_changed_results(written, capsys, monkeypatch):
    original = upsweep.cumulative_sum
    monkeypatch.setattr(upsweep, "cumulative_sum", lambda *args, **keywords: -original(*args, **keywords))
    assert script("compare", written) == 1
    assert 'changed: numpy/run("cumulative_sum", (3, 65), dtype="float32")' in capsys.readouterr().out


def test_changed_errors(written, capsys):
    record = json.loads(written.read_text())
    name = 'errors/upsweep.cumulative_sum("abc")'
    assert record["digests"][name].startswith("TypeError: x: ")
    record["digests"][name] = "TypeError: another text"
    written.write_text(json.dumps(record))
    assert script("compare", written) == 1
    assert f"changed: {name}\n    was TypeError: another text\n    is  TypeError: x: " in capsys.readouterr().out


def test_missing_new_and_skipped_calls(written, capsys):
    record = json.loads(written.read_text())
    name = next(iter(record["digests"]))
    record["digests"] |= {"numpy/gone()": record["digests"].pop(name), "absent/f()": ""}
    written.write_text(json.dumps(record))
    assert script("compare", written, f"{ONLY}|gone|absent") == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"missing: numpy/gone()", f"new: {name}"} < set(lines)
    assert "skipped: 1 calls of libraries or devices that are not here" in lines


def test_slower_calls():
    before, now = ({"environment": {}, "digests": {}, "times": {"f": time, "g": 1.0}} for time in (1.0, 1.2))
    assert call_digests.differences(before, now) == (["slower: f: 1.0 us before, 1.2 us now"], False)


def test_any_number_of_threads():
    digests = call_digests.measure(r"^numpy.*threads[=(]", 0)["digests"]
    pairs = {name: re.sub(r"(threads[=(])1", r"\g<1>2", name) for name in digests}
    assert sum(name != other for name, other in pairs.items()) > 40
    assert {name: digests[name] for name in pairs} == {name: digests[other] for name, other in pairs.items()}


def test_any_order_of_hashes(written, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    command = [sys.executable, call_digests.__file__, "compare", str(written), "--only", ONLY, "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tables_have_every_public_function():
    lines = [line for table in call_cases.TABLES.values() for line in call_cases.expanded(table)]
    text = "\n".join([*lines, *call_cases.SETS.values(), inspect.getsource(call_operands)])
    returned = {"BlockScan", "Carry", "Function", "Schedule", "Tensor"}  # classes whose objects functions return
    for module in (upsweep, te, cluster):
        assert [name for name in {*module.__all__} - returned if not re.search(rf"\b{name}\b", text)] == []
