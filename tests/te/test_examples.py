"""Hazard: examples in the docstrings of te that no longer run."""

import doctest
import importlib
import runpy
from pathlib import Path

import pytest
from upsweep import te

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("name", ["tensors", "scans", "schedule", "building"])
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(f"upsweep.te.{name}"))
    assert results.attempted > 0 and results.failed == 0


def test_every_public_name_is_described():
    for name in te.__all__:
        assert getattr(te, name).__doc__, name


def test_the_example_of_recurrences(capsys):
    path = Path(__file__).parents[2] / "examples" / "recurrences.py"
    runpy.run_path(str(path), run_name="__main__")
    text = capsys.readouterr().out
    assert "produce sums {" in text and "produce product {" in text and "numpy, step by step" in text
