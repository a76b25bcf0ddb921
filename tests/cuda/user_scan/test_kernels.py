"""User-defined scans on a CUDA device against the reference: layouts, dtypes, chunks of time, repeated runs."""

import contextlib

import numpy as np
import pytest
import upsweep
from device_scan_cases import AFFINE, INDEPENDENT, OTHERS, DevicePlace, cell, check, mixed, scan, with_places
from helpers import random
from upsweep._backends.cuda import library
from upsweep._backends.cuda.memory import DeviceMemory

pytestmark = pytest.mark.cuda


@pytest.fixture
def place(monkeypatch):
    monkeypatch.setattr(library, "find", lambda: None)  # the kernels of linear_recurrence are tested elsewhere
    with contextlib.closing(DeviceMemory(0)) as memory:
        yield DevicePlace(memory)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 1), (70, 3), (33, 65), (1000, 33), (64, 70_000), (2, 100_000), (5, 0)]
)
def test_layouts(place, shape, order):
    x = np.asarray(random(shape, np.float32), order=order)
    check(place, cell, 0.25, x)
    check(place, cell, random(shape[1:], np.float32, 1), x[::-1])


def test_axes_that_are_not_one(place):
    x = random((20, 6, 9), np.float32)
    for view in (x, x.transpose(1, 0, 2), x.transpose(2, 1, 0), x.transpose(1, 2, 0)[::-1]):
        check(place, cell, random(view.shape[2:], np.float32, 1), view)


@pytest.mark.parametrize("order", ["C", "F"])
def test_dtypes_structures_and_inputs_that_repeat(place, order):
    x = np.asarray(random((400, 370), np.float32), order=order)
    signs = np.asarray(np.random.default_rng(0).integers(-3, 4, x.shape).astype(np.float16), order=order)
    per_step, per_column = random((400, 1), np.float32, 2), random((1, 370), np.float32, 3)
    check(place, mixed, (0.5, random(370, np.float32, 4)), (x, signs, per_step, per_column), tolerance=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", AFFINE)
def test_affine_updates_in_chunks(place, name, dtype):
    if name == "rotated" and dtype == np.float32:
        pytest.skip("nothing decays, and rounding adds up in the reference as well")
    update, init = AFFINE[name]
    for shape in ((1000,), (2048,), (300_001,), (5000, 3), (1100, 700)):
        x = random(shape, dtype)
        results = check(place, update, init, x, parallel=True, tolerance=1e-3 if dtype == np.float32 else 1e-9)
        again = scan(place, update, init, x, parallel=True)
        assert [a.tobytes() for a in results] == [b.tobytes() for b in again]
    check(place, update, init, random((3, 9000), dtype).T[::-1], parallel=True, tolerance=1e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_other_updates_in_chunks(place, name):
    update, init = OTHERS[name]
    for length in (1000, 100_011):
        x = np.round(random(length), 2)
        check(place, update, init, with_places(name, x), parallel=True, tolerance=1e-9)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_states_in_chunks(place, name):
    update, init = INDEPENDENT[name]
    for shape in ((1000,), (100_011,), (5000, 30)):
        x = np.round(random(shape), 2)
        check(place, update, init, with_places(name, x), parallel=True, tolerance=1e-9)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("name", ["constant", "dropped", "two", "max with resets"])
def test_special_values_in_chunks(place, name, special):
    update, init = {**AFFINE, **OTHERS}[name]
    x = random(60_000, np.float32)
    x[[100, 40_000]] = special
    x[50_000] = 2.0
    with np.errstate(all="ignore"):
        check(place, update, init, x, parallel=True, tolerance=1e-3)


LONG = {
    "lasting": (lambda s, x: 0.999999 * s + 0.25 * x, 0.5),
    "constant": (AFFINE["constant"][0], 0.5),
    "dropped": (AFFINE["dropped"][0], 0.5),
    "two": (AFFINE["two"][0], (0.5, -1.0)),
    "highest": (lambda s, x: np.maximum(s - 0.01, x), -np.inf),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LONG)
def test_lines_in_one_pass(place, name, dtype):
    """Against the CPU's scan, which is not step by step either; tiles that look back, and waves of them."""
    update, init = LONG[name]
    for shape in ((100_000,), (4_400_011,), (3, 2_000_003)):
        x = random(shape, dtype).T
        expected = upsweep.scan(update, init, x, return_final=True)
        results = scan(place, update, init, x, parallel=True)
        flat = [expected[0], *(expected[1] if isinstance(expected[1], tuple) else (expected[1],))]
        for got, other in zip(results, flat):
            tolerance = 1e-3 if dtype == np.float32 else 1e-9
            np.testing.assert_allclose(got, other, rtol=tolerance, atol=tolerance)
        again = scan(place, update, init, x, parallel=True)
        assert [a.tobytes() for a in results] == [b.tobytes() for b in again]


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["constant", "dropped"])
def test_special_values_in_one_pass(place, name, special):
    update, init = LONG[name]
    x = random(4_500_000, np.float32)
    x[[100, 3_000_000]] = special
    x[4_000_000] = 2.0  # which "dropped" drops the state at
    with np.errstate(all="ignore"):
        expected = upsweep.scan(update, init, x)
        results = scan(place, update, init, x, parallel=True)[0]
    np.testing.assert_allclose(results, expected, rtol=1e-3, atol=1e-3)
