"""Hazard: examples that no longer run."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re

import pytest
import upsweep
from upsweep import cluster, pairs, te
from upsweep.pairs.pending import PendingReduction
from upsweep.te import compat
from upsweep.te.schedule import Stage

MODULES = ["upsweep"] + [
    f"{package.__name__}.{module.name}"
    for package in (upsweep, pairs)
    for module in pkgutil.iter_modules(package.__path__)
    if not module.name.startswith("_")
    and not module.ispkg
    and module.name not in ("distributed", "torch_ops")  # which import torch
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


def public_callables():
    """All public functions and classes by name, with the public methods that the package defines."""
    modules = [upsweep, te, compat, cluster]
    if importlib.util.find_spec("torch") is not None:
        modules.append(importlib.import_module("upsweep.distributed"))
    callables = {f"{each.__name__}.{name}": getattr(each, name) for each in modules for name in each.__all__}
    callables |= {"upsweep.te.Stage": Stage, "upsweep.pairs.PendingReduction": PendingReduction}
    for name, value in list(callables.items()):
        if inspect.isclass(value):
            methods = [each for each in dir(value) if not each.startswith("_")]
            callables |= {f"{name}.{method}": getattr(value, method) for method in methods}
    return {
        name: value
        for name, value in callables.items()
        if callable(value) and (getattr(value, "__module__", None) or "").startswith("upsweep")
    }


def test_every_public_function_class_and_method_has_an_example():
    has_example = re.compile(r"Examples\n-{8}\n(?s:.*?)>>> ").search
    callables = public_callables()
    assert {"upsweep.LazyTensor.Kmin", "upsweep.te.Stage.split", "upsweep.bincount"} <= callables.keys()
    assert [name for name, value in callables.items() if not has_example(inspect.getdoc(value) or "")] == []
