"""Compiled parts of user-defined scans by themselves, for each instruction set that this machine runs."""

import ctypes

import numpy as np
import pytest
import upsweep
from helpers import random

pytest.importorskip("llvmlite")
from upsweep._compiler.formulas.nodes import make
from upsweep._compiler.llvm.scans.chunk_aggregates import VECTORS_AT_ONCE, compile_sums
from upsweep._compiler.llvm.scans.kernel import compile_turn
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.recurrences.recurrence import Recurrence, input_

LEVELS = [level for level in upsweep.show_config()["isa_usable"] if level in TARGETS]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("level", LEVELS)
def test_turn(level, bits):
    side = TARGETS[level].lanes(f"float{bits}")
    compiled = compile_turn(level, bits)
    turn = ctypes.CFUNCTYPE(None, POINTER, INT, POINTER, INT)(compiled.address("turn"))
    rows = np.arange(2 * side * side, dtype=f"f{bits // 8}").reshape(side, 2 * side)[:, 1 : side + 1]
    results = np.zeros((side, side + 3), rows.dtype)
    turn(rows.ctypes.data, rows.strides[0], results.ctypes.data, results.strides[0])
    np.testing.assert_array_equal(results[:, :side], rows.T)
    assert not results[:, side:].any()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("level", LEVELS)
def test_chunk_sums(level, bits, backward):
    """rest = M rest + (x[t], x[t] * w), of chunks with whole rounds and what is behind them."""
    dtype, lanes = np.dtype(f"f{bits // 8}"), TARGETS[level].lanes(f"float{bits}")
    matrix = np.array([[0.9, -0.2], [0.3, 0.8]])
    rests = Recurrence((), (input_(0), make("mul", input_(0), input_(1))), 2)
    compiled = compile_sums(rests, level, bits, (False, True))
    sums = ctypes.CFUNCTYPE(None, POINTER, POINTER, POINTER, POINTER, INT, INT)(compiled.address("sums"))
    behind = range(lanes) if backward else range(lanes)[::-1]
    by_lane = np.stack([np.linalg.matrix_power(matrix, n) for n in behind], axis=-1)
    powers = [np.linalg.matrix_power(matrix, n * lanes) for n in (VECTORS_AT_ONCE, 1)]
    numbers = np.concatenate([m.ravel() for m in (*powers, by_lane)]).astype(dtype)
    for n_vectors in range(VECTORS_AT_ONCE, 3 * VECTORS_AT_ONCE + 1):
        n_chunks, chunk = 3, n_vectors * lanes
        x, weight = random(n_chunks * chunk, dtype), np.array([0.5], dtype)
        vector = lanes * dtype.itemsize
        first = x.ctypes.data + (x.nbytes - vector if backward else 0)
        streams = np.array([first, -vector if backward else vector, weight.ctypes.data, 0], np.int64)
        results, nothing = np.full((2, n_chunks), np.nan, dtype), np.zeros(1, dtype)
        sums(
            streams.ctypes.data, nothing.ctypes.data, numbers.ctypes.data, results.ctypes.data, n_chunks, n_vectors
        )
        for c, part in enumerate((x[::-1] if backward else x).reshape(n_chunks, chunk)):
            rest = np.zeros(2)
            for value in part.astype(np.float64):
                rest = matrix @ rest + (value, 0.5 * value)
            tolerance = 1e-5 if bits == 32 else 1e-13
            np.testing.assert_allclose(results[:, c], rest, rtol=tolerance, atol=tolerance)
