"""Hazard: examples in the docstrings of te that no longer run."""

import doctest
import importlib

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
