"""numpy's own tests of histogram, on ours."""

import importlib

import numpy as np
import pytest
import upsweep

try:  # some distributors leave numpy's tests out
    numpy_tests = importlib.import_module("numpy.lib.tests.test_histograms")
except ImportError:
    numpy_tests = None

# What is different on purpose, as the docstring says: no objects as weights.
DIFFERENT = {"test_exotic_weights"}
if np.lib.NumpyVersion(np.__version__) < "2.2.0":  # from there on, numpy refuses bins whose edges are equal too
    DIFFERENT.add("test_object_array_of_0d")
LONG = {"test_big_arrays"}  # a minute, and gigabytes


def numpys_tests():
    """Each test as (class, name, arguments); of more than one parametrized argument there is none."""
    for kind in ("TestHistogram", "TestHistogramOptimBinNums") if numpy_tests else ():
        for name in sorted(set(dir(getattr(numpy_tests, kind))) - DIFFERENT - LONG):
            if name.startswith("test_"):
                test = getattr(getattr(numpy_tests, kind), name)
                marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
                values = [{marks[0].args[0]: value} for value in marks[0].args[1]] if marks else [{}]
                yield from (
                    pytest.param(kind, name, arguments, id=f"{name}-{i}") for i, arguments in enumerate(values)
                )


@pytest.mark.skipif(numpy_tests is None, reason="numpy is installed without its tests")
@pytest.mark.parametrize(("kind", "name", "arguments"), list(numpys_tests()))
def test_numpys_own_tests(kind, name, arguments, monkeypatch):
    monkeypatch.setattr(numpy_tests, "histogram", upsweep.histogram)
    monkeypatch.setattr(np, "histogram", upsweep.histogram)
    tests = getattr(numpy_tests, kind)()
    getattr(tests, "setup_method", lambda: None)()
    getattr(tests, name)(**arguments)


def test_there_are_such_tests():
    assert numpy_tests is None or len(list(numpys_tests())) > 30
