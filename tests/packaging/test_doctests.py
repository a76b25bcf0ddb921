"""Hazard: examples that no longer run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import upsweep
from upsweep import pairs

MODULES = ["upsweep"] + [
    f"{package.__name__}.{module.name}"
    for package in (upsweep, pairs)
    for module in pkgutil.iter_modules(package.__path__)
    if not module.name.startswith("_") and not module.ispkg and module.name != "distributed"  # that imports torch
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def public_functions():
    return [name for name in upsweep.__all__ if inspect.isroutine(getattr(upsweep, name))]


@pytest.mark.parametrize("name", public_functions())
def test_every_public_function_has_a_numpydoc_docstring_with_an_example(name):
    text = inspect.getdoc(getattr(upsweep, name)) or ""
    function = inspect.signature(getattr(upsweep, name))
    if function.parameters:
        assert "Parameters\n----------" in text
        for parameter in function.parameters:
            assert parameter in text, f"{parameter} is not described"
    assert "Returns\n-------" in text or function.return_annotation in (None, "None")
    assert "Examples\n--------" in text and ">>>" in text


def test_there_are_public_functions():
    assert len(public_functions()) >= 14
