"""Hazard: the commands of the README."""

import contextlib
import dataclasses
import re
import time
from pathlib import Path

import numpy as np
import pytest
import upsweep
from helpers import command
from upsweep import demo, selftest
from upsweep.__main__ import main


def test_info(tmp_path):
    done = command(tmp_path, "info")
    assert done.returncode == 0, done.stderr
    assert upsweep.__version__ in done.stdout
    for level in upsweep.show_config()["isa_built"]:
        assert level in done.stdout


def test_demo(tmp_path):
    done = command(tmp_path, "demo", "--output", "picture.png", MPLBACKEND="agg")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("discounted", "recurrence", "bincount", "pairs"):
        assert word in done.stdout.lower()
    assert re.search(
        r"^all \d results are right; upsweep is [\d.]+ to \d+ times faster", done.stdout, re.MULTILINE
    )
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_demo_writes_only_the_picture_that_is_asked_for(tmp_path, monkeypatch, capsys):
    row = demo.Row("sum", 3, lambda: np.arange(3), lambda y: None, "slower", lambda: time.sleep(1e-3))
    wrong = dataclasses.replace(row, title="wrong", check=lambda y: np.testing.assert_array_equal(y, 0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_source_bytes", lambda: None)
    monkeypatch.setattr(demo, "_rows", lambda data: [row, row])
    assert demo.run() == 0
    assert list(tmp_path.iterdir()) == []
    assert re.search(r"all 2 results are right.*\n.* demo --output", capsys.readouterr().out)
    assert demo.run(Path("picture.svg")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["picture.svg"]
    assert "picture: picture.svg" in capsys.readouterr().out
    monkeypatch.setattr(demo, "_rows", lambda data: [row, wrong])
    assert demo.run() == 1
    assert "1 of 2 results is WRONG" in capsys.readouterr().out


def test_demo_refuses_a_picture_before_it_measures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "_source_bytes", None)
    assert demo.run(tmp_path / "no folder" / "picture.png") == 2
    assert "--output: there is no folder" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert demo.run(tmp_path / "picture.png") == 2
    assert "--output: needs matplotlib: pip install" in capsys.readouterr().err


def test_selftest_counts_its_checks(monkeypatch, capsys):
    def fail():
        raise AssertionError("it differs")

    passed = selftest.Check("a", lambda: None)
    monkeypatch.setattr(selftest, "checks", lambda counts: [passed] * 21)
    assert selftest.run()
    assert re.search(r"\nall 21 checks passed in \d+\.\d s\n$", capsys.readouterr().out)
    monkeypatch.setattr(selftest, "checks", lambda counts: [passed, selftest.Check("b", fail)])
    assert not selftest.run()
    assert re.search(r"b: .* it differs\n\n1 of 2 checks FAILED in", capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help(arguments, capsys):
    with contextlib.suppress(SystemExit):
        assert main(arguments) == 0
    printed = capsys.readouterr().out
    for word in ("demo", "info", "bench", "selftest", "--version"):
        assert word in printed


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"upsweep {upsweep.__version__}\n"


@pytest.mark.parametrize("arguments", [["no-such-command"], ["info", "--no-such-option"]])
def test_unknown_commands_fail(tmp_path, arguments):
    assert command(tmp_path, *arguments).returncode != 0
