"""Resident lines (cuda/scan/resident_lines.cuh), compiled for the host: held to scans on the CPU in float64."""

import numpy as np
import pytest
import resident_scans
from helpers import BFLOAT16, random, same_bits
from host_scans import check, fixtures, scan
from nonfinite_kinds import KINDS

DTYPES = [np.dtype(t) for t in ("float16", "float32")] + [BFLOAT16]
# Held whole, in one piece; and with pieces that are read again. One part of a line or several.
SHAPES = [(6, 8900), (1, 9000), (1, 50_001), (2, 26_003), (3, 9001), (4, 8901)]


compiled, on_host = fixtures(resident_scans.compile_library)


def check_sums(x, gamma=None, out=None, reverse=False):
    check(x, gamma=gamma, out=out, reverse=reverse, axis=1, has_final=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums(shape, dtype):
    x = random(shape, dtype)
    for reverse in (False, True):
        for gamma in (None, 0.999, 0.5):
            check_sums(x, gamma, reverse=reverse)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_lines_that_begin_and_end_anywhere(dtype):
    for first in range(9):
        wide = random((2, 9017), dtype, first)
        x, out = wide[:, first : 9008 + first // 2], np.full_like(wide, 7)
        for reverse in (False, True):
            check_sums(x, 0.99, out[:, first : 9008 + first // 2], reverse)
            assert (out[:, :first] == 7).all() and (out[:, 9008 + first // 2 :] == 7).all()


def test_results_in_the_place_of_x():
    for reverse in (False, True):
        x = random((1, 50_001), np.float32)
        (expected, _), (result, _) = (
            scan(x, gamma=0.999, out=out, reverse=reverse, axis=1, has_final=False) for out in (None, x)
        )
        assert same_bits(result, expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda dtype: dtype.name)
def test_states_that_are_not_finite(dtype, kind):
    for shape in SHAPES[1:4]:
        for reverse in (False, True):
            x, gates = random(shape, dtype), random(shape, dtype, 1, 0.2, 1.0)
            kind(np.flip(x, -1) if reverse else x, np.flip(gates, -1) if reverse else gates)
            for gamma in (None, 0.9, 0.01):
                check_sums(x, gamma, reverse=reverse)


def test_a_first_element_keeps_its_sign():
    x = np.full((2, 9000), -0.0, np.float32)
    for reverse in (False, True):
        assert np.signbit(scan(x, gamma=0.5, reverse=reverse, axis=1, has_final=False)[0]).all()
