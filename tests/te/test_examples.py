"""Hazard: examples in the docstrings of te that no longer run."""

import doctest
import importlib
import runpy
from pathlib import Path

import pytest
from upsweep import te

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("name", ["build", "compat", "function", "mathematics", "tensors", "scans", "schedule"])
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(f"upsweep.te.{name}"))
    assert results.attempted > 0 and results.failed == 0


def test_every_public_name_is_described():
    for name in te.__all__:
        assert getattr(te, name).__doc__, name


def run_example(name, capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / name), run_name="__main__")
    return capsys.readouterr().out


def test_the_example_of_recurrences(capsys):
    text = run_example("recurrences.py", capsys)
    assert "produce sums {" in text and "produce product {" in text and "numpy, step by step" in text


def test_the_example_of_the_tutorial(capsys):
    text = run_example("scan_tutorial.py", capsys)
    assert text.count("produce scan {") == 3 and "allocate s1[float32 * 32]" in text
    assert "scan.v1[scan.idx + 1, i] = scan.v1[scan.idx, i] + scan.v0[scan.idx, 0]" in text
