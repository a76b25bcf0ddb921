"""Scans by kernels of cuda/ that were compiled for the host, held to scans on the CPU in float64."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, random, same_bits
from host_device import describe
from upsweep._backends.cuda import library, scan_launch

RTOL = {2: 2e-6, 4: 1e-12, 8: 1e-12}


def fixtures(compile_library):
    """Return the fixtures of a test module: a library that is compiled once, and its use in every test."""

    @pytest.fixture(scope="module")
    def compiled(tmp_path_factory):
        return compile_library(tmp_path_factory.mktemp("kernels"))

    @pytest.fixture(autouse=True)
    def on_host(compiled, monkeypatch):
        monkeypatch.setattr(library, "load", lambda: compiled)
        monkeypatch.setattr(library, "check_device", lambda device: None)

    return compiled, on_host


def scan(
    x, gates=None, gamma=None, reset=None, initial=None,
    *, out=None, exclusive=False, reverse=False, axis=0, has_final=True,
):  # fmt: skip
    """Return the result and the final state, which hold 77 before; `has_final`: whether that is asked for."""
    out = np.full_like(x, 77) if out is None else out
    final_dtype = x.dtype if x.dtype.kind in "biuc" else np.float64
    final = np.full(x.shape[:axis] + x.shape[axis + 1 :], 77, final_dtype)
    described = [
        describe(a) if isinstance(a, np.ndarray) else a
        for a in (x, gates, gamma, initial, reset, out, final if has_final else None)
    ]
    memory = []

    def allocate(n_bytes):
        memory.append(np.full(-(-n_bytes // 8), np.nan))
        return memory[-1].ctypes.data, None

    request = scan_launch.problem(*described, axis=axis, reverse=reverse, exclusive=exclusive, device=0, stream=0)
    scan_launch.run_scan(request, allocate)
    return out, final


def widen(array):
    if not isinstance(array, np.ndarray) or array.dtype.kind in "bi":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def check(x, gates=None, gamma=None, reset=None, initial=None, axis=0, has_final=True, out=None, **options):
    options_of_scan = options | {"axis": axis, "has_final": has_final, "out": out}
    result, final = (each.copy() for each in scan(x, gates, gamma, reset, initial, **options_of_scan))
    again = scan(x, gates, gamma, reset, initial, **options_of_scan)
    assert same_bits(result, again[0]) and same_bits(final, again[1])

    def expected(of):
        operands = [of(widen(a)) for a in (x, gates, gamma, initial)]
        where = options | {"axis": axis, "reset": reset, "initial": operands[3], "return_final": True}
        if gates is not None:
            return upsweep.linear_recurrence(operands[1], operands[0], **where)
        if gamma is None:
            return upsweep.cumulative_sum(operands[0], **where)
        by = np.expand_dims(operands[2], axis) if isinstance(gamma, np.ndarray) else operands[2]
        return upsweep.discounted_cumsum(operands[0], by, **where)

    sizes = expected(lambda a: a if a is None else abs(a))
    for y, exact, size in zip((result, final) if has_final else (result,), expected(lambda a: a), sizes):
        compare(y, exact, size, RTOL[x.dtype.itemsize] if x.dtype.kind != "c" else 1e-12)


def compare(result, exact, size, rtol):
    if result.dtype.kind == "i":
        np.testing.assert_array_equal(result, exact)
        return
    if result.dtype.kind == "c":
        for part in ("real", "imag"):
            compare(getattr(result, part), getattr(exact, part), size, rtol)
        return
    with np.errstate(over="ignore"):
        rounded = exact.astype(result.dtype).astype(np.float64)
    result, limits = result.astype(np.float64), result.dtype
    eps, tiny = (2.0**-7, 1e-38) if limits == BFLOAT16 else (np.finfo(limits).eps, float(np.finfo(limits).tiny))
    lost = ~np.isfinite(rounded)
    np.testing.assert_array_equal(result[lost], rounded[lost])
    within = np.isfinite(size) & ~lost
    with np.errstate(invalid="ignore"):
        assert (np.abs(result - rounded) <= rtol * size + eps * np.abs(rounded) + tiny)[within].all()
    assert np.isfinite(result[~lost]).all()


def operands(shape, dtype, axis, seed=0):
    """Return x, gates, gammas of the columns, resets and initial states."""
    batch = shape[:axis] + shape[axis + 1 :]
    if dtype.kind == "i":
        integers = np.random.default_rng(seed).integers
        return integers(-99, 99, shape), None, None, integers(0, 99, shape) == 0, integers(-99, 99, batch)
    x, gates = random(shape, dtype, seed), random(shape, dtype, seed + 1, -0.7, 1.0)
    if dtype.kind == "c":
        gates = (gates * 0.7).astype(dtype)
    state = np.complex128 if dtype.kind == "c" else np.float64
    reset = np.random.default_rng(seed).random(shape) < 0.003
    return x, gates, random(batch, state, seed + 2, 0.9, 1.0), reset, random(batch, state, seed + 3)
