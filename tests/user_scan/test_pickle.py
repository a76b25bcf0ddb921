"""Scans that were decorated, and the functions of `scan`, are pickled and copied like other functions."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import upsweep


def decay(s, x):
    return 0.5 * s + x


@upsweep.scan(reverse=True)
def decorated(s, x):
    return 0.5 * s + x


bound = upsweep.scan(reverse=True)(decay)  # the update keeps its name
X = np.arange(5.0)
EXPECTED = upsweep.scan(decay, 0.0, X, reverse=True)
DUPLICATES = {
    "pickle": lambda each: pickle.loads(pickle.dumps(each)), "copy": copy.copy, "deepcopy": copy.deepcopy,
}  # fmt: skip


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
@pytest.mark.parametrize("function", [decorated, bound], ids=["decorated", "bound"])
def test_decorated_updates(function, duplicate):
    other = duplicate(duplicate(function))
    np.testing.assert_array_equal(other(0.0, X), EXPECTED)
    np.testing.assert_array_equal(other(0.0, X, reverse=False), upsweep.scan(decay, 0.0, X))
    assert other.__name__ == function.__name__ and other.__doc__ == function.__doc__
    assert callable(other.__wrapped__)


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_scan_and_its_functions(duplicate):
    assert duplicate(upsweep.scan) is upsweep.scan
    np.testing.assert_array_equal(duplicate(upsweep.scan.where)(X > 2, X, 0), np.where(X > 2, X, 0))
    np.testing.assert_array_equal(duplicate(upsweep.scan.sigmoid)(0.0), 0.5)


def test_updates_without_a_name():
    """Plain pickle names the lambda; cloudpickle, and with it dask, takes it by value."""
    scanned = upsweep.scan(reverse=True)(lambda s, x: 0.5 * s + x)
    with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
        pickle.dumps(scanned)
    cloudpickle = pytest.importorskip("cloudpickle")
    for function in (scanned, decorated, bound):
        np.testing.assert_array_equal(pickle.loads(cloudpickle.dumps(function))(0.0, X), EXPECTED)


def test_a_spawned_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for function in (decorated, bound):
            np.testing.assert_array_equal(pool.apply(function, (0.0, X)), EXPECTED)
        np.testing.assert_array_equal(pool.apply(upsweep.scan, (decay, 0.0, X), {"reverse": True}), EXPECTED)
