"""Hazard: the commands of the README."""

import pytest
import upsweep
from helpers import command


def test_info(tmp_path):
    done = command(tmp_path, "info")
    assert done.returncode == 0, done.stderr
    assert upsweep.__version__ in done.stdout
    for level in upsweep.show_config()["isa_built"]:
        assert level in done.stdout


def test_demo(tmp_path):
    done = command(tmp_path, "demo", MPLBACKEND="agg")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("discounted", "recurrence", "bincount", "pairs"):
        assert word in done.stdout.lower()


def test_selfknowledge(tmp_path):
    done = command(tmp_path, "--help")
    assert done.returncode == 0
    for word in ("demo", "info", "bench"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [["no-such-command"], ["info", "--no-such-option"]])
def test_unknown_commands_fail(tmp_path, arguments):
    assert command(tmp_path, *arguments).returncode != 0
