"""numpy's own tests of bincount, on ours; and random calls against np.bincount."""

import gc
import importlib

import numpy as np
import pytest
import upsweep
from helpers import same_bits
from hypothesis import given
from hypothesis import strategies as st

try:  # some distributors leave numpy's tests out
    numpy_tests = importlib.import_module("numpy.lib.tests.test_function_base").TestBincount
except ImportError:
    numpy_tests = None


def numpys_tests():
    """Each test as (name, one of its arguments or nothing)."""
    for name in dir(numpy_tests):
        if name.startswith("test_"):
            marks = [m for m in getattr(getattr(numpy_tests, name), "pytestmark", []) if m.name == "parametrize"]
            values = [{marks[0].args[0]: value} for value in marks[0].args[1]] if marks else [{}]
            yield from ((name, arguments) for arguments in values)


@pytest.fixture
def no_collection():
    """One of the tests counts references, and arrays of tests before this one may lie about in cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(numpy_tests is None, reason="numpy is installed without its tests")
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("name, arguments", list(numpys_tests()))
def test_numpys_own_tests(name, arguments, monkeypatch):
    monkeypatch.setattr(np, "bincount", upsweep.bincount)
    getattr(numpy_tests(), name)(**arguments)


def test_there_are_such_tests():
    assert numpy_tests is None or len(list(numpys_tests())) > 12


DTYPES = ["int8", "uint8", "int16", "uint16", "int32", ">i4", "uint32", "int64", ">u8", "uint64"]


@given(
    keys=st.lists(st.integers(0, 127), max_size=80), repeat=st.sampled_from([1, 7, 200]),
    dtype=st.sampled_from(DTYPES), minlength=st.integers(0, 300), step=st.sampled_from([1, 2, -1, -3]),
    weighted=st.sampled_from([None, "float32", "float64", "int16"]), n_threads=st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_random_calls(keys, repeat, dtype, minlength, step, weighted, n_threads):
    keys = np.repeat(np.array(keys, np.int64), repeat)[::step]
    weights = None if weighted is None else (np.arange(keys.size) % 100).astype(weighted)[::-1]
    result = upsweep.bincount(keys.astype(dtype), weights, minlength, n_threads=n_threads)
    assert same_bits(result, np.bincount(keys, weights, minlength))


@given(
    rows=st.integers(0, 5), n=st.integers(0, 40), n_bins=st.integers(1, 20), dtype=st.sampled_from(DTYPES),
    axis=st.sampled_from([0, 1, -1, -2]), seed=st.integers(0, 100),
)  # fmt: skip
def test_random_batches(rows, n, n_bins, dtype, axis, seed):
    x = np.random.default_rng(seed).integers(0, 127, (rows, n)).astype(dtype)
    result, n_invalid = upsweep.bincount(x, axis=axis, length=n_bins, invalid="drop", return_invalid=True)
    lines = np.moveaxis(x, axis, -1).astype(np.int64)
    expected = np.array([np.bincount(line[line < n_bins], minlength=n_bins) for line in lines], np.intp)
    np.testing.assert_array_equal(np.moveaxis(result, axis, -1), expected.reshape(lines.shape[0], n_bins))
    assert n_invalid == (x >= n_bins).sum()
