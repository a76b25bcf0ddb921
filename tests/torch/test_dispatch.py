"""Hazard: arguments that go to a function for tensors by position, and mean something else there."""

import inspect

import pytest
import upsweep
from tensors import torch
from upsweep import aggregates, bincounts, scans
from upsweep._arrays.dispatch import dispatched, handlers

FUNCTIONS = [
    (scans, "scan", "cumulative_sum"),
    (scans, "scan", "discounted_cumsum"),
    (scans, "scan", "linear_recurrence"),
    (bincounts, "bincount", "bincount"),
    (aggregates, "aggregates", "cumulative_sum_carry"),
    (aggregates, "aggregates", "discounted_cumsum_carry"),
    (aggregates, "aggregates", "linear_recurrence_carry"),
]


@pytest.mark.parametrize(("module", "package", "name"), FUNCTIONS, ids=[name for *_, name in FUNCTIONS])
def test_the_functions_for_tensors_have_the_parameters_of_those_for_arrays(module, package, name):
    implementation = inspect.signature(getattr(module, f"_{name}"))
    handler = inspect.signature(getattr(getattr(handlers("torch"), package), name))
    assert [*handler.parameters, "device"] == list(implementation.parameters)
    assert set(implementation.parameters) == set(inspect.signature(getattr(module, name)).parameters) - {"method"}


def test_arrays_come_first_and_the_device_last():
    def _public(x, axis, out, device):
        pass

    with pytest.raises(TypeError, match=r"expected .* first and device last"):
        dispatched("x", "out", torch="scan")(_public)


@pytest.mark.parametrize("keywords", [{"device": "cpu"}, {"method": "tree"}], ids=lambda keywords: min(keywords))
def test_keywords_of_other_libraries_are_refused(keywords):
    with pytest.raises(ValueError, match=f"^{min(keywords)}: goes with"):
        upsweep.cumulative_sum(torch.ones(3), **keywords)
