"""Cluster lines (cuda/scan/cluster_lines.cuh), compiled for the host: held to scans on the CPU in float64."""

import cluster_scans
import numpy as np
import pytest
from helpers import BFLOAT16, random
from host_scans import check, fixtures, operands
from nonfinite_kinds import KINDS

DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64")] + [BFLOAT16]


def shapes(dtype, gated=True):
    """Lines in clusters, some in blocks; odd lengths, so that not all begin on a vector's boundary.

    Blocks take sums where the lines would be split else.
    """
    return (2, 20_001 // dtype.itemsize), (3, (5_603 if gated else 16_384) // dtype.itemsize)


compiled, on_host = fixtures(cluster_scans.compile_library)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("which", [0, 1], ids=["clusters", "blocks"])
def test_every_option(which, dtype):
    x, gates, _, _, initial = operands(shapes(dtype)[which], dtype, 1)
    for reverse in (False, True):
        check(x, gates, axis=1, reverse=reverse)
        check(x, gates, initial=initial, axis=1, reverse=reverse, exclusive=True)
    x, _, gamma, _, initial = operands(shapes(dtype, False)[which], dtype, 1)
    for reverse in (False, True):
        check(x, axis=1, reverse=reverse)
        check(x, gamma=gamma, initial=initial, axis=1, reverse=reverse)
        check(x, gamma=0.9, axis=1, reverse=reverse, exclusive=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_arrays_that_are_aligned_otherwise(dtype):
    n = shapes(dtype)[0][1]
    x, gates, *_ = operands((1, n + 5), dtype, 1)
    for reverse in (False, True):
        check(x[:, 1:-4], gates[:, 2:-3], axis=1, reverse=reverse)
        check(x[:, 3:-2], axis=1, reverse=reverse)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda dtype: dtype.name)
def test_states_that_are_not_finite(dtype, kind):
    for shape, sums in zip(shapes(dtype), shapes(dtype, False)):
        for reverse in (False, True):
            for n, gated in ((shape, True), (sums, False)):
                x, gates = random(n, dtype), random(n, dtype, 1, 0.2, 1.0)
                kind(np.flip(x, -1) if reverse else x, np.flip(gates, -1) if reverse else gates)
                if gated:
                    check(x, gates, axis=1, reverse=reverse)
                else:
                    check(x, gamma=0.9, axis=1, reverse=reverse, exclusive=reverse)
