"""Functions of the vector mathematics, compiled so that they run over arrays."""

import ctypes
import functools

import numpy as np
from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.mathematics import FUNCTIONS
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.llvm.vectors import Body, Vectors, module


@functools.cache
def vector_function(name, dtype, level, n_args=1, **keywords):
    """A function of `FUNCTIONS` as one of arrays of a dtype."""
    target, bits = TARGETS[level], 8 * np.dtype(dtype).itemsize
    body = Body()
    v = Vectors(body, target, bits)
    with body.loop("loop", "%n", step=v.lanes) as loop:
        inputs = [v.load(v.at(f"%in{k}", loop.index)) for k in range(n_args)]
        v.store(FUNCTIONS[name](v, *inputs, **keywords), v.at("%out", loop.index))
    parameters = "".join(f"ptr %in{k}, " for k in range(n_args))
    text = module([body.define(f"void @f({parameters}ptr %out, i64 %n) #0")], body.needs)
    code = jit.Loaded(jit.compile_object(text, target), target)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (n_args + 1), ctypes.c_int64)(code.address("f"))

    def function(*arrays):
        n = arrays[0].size
        whole = -(-n // v.lanes) * v.lanes
        padded = [np.concatenate([array, np.ones(whole - n, dtype)]) for array in arrays]
        out = np.full(whole, np.nan, dtype)
        call(*[array.ctypes.data for array in padded], out.ctypes.data, whole)
        return out[:n]

    function.code = code  # as long as the function, so lives what it runs
    return function


def units_off(got, exact):
    """How far results are from exact ones of a wider type, in units in the last place; inf for a wrong special
    value.
    """
    rounded = exact.astype(got.dtype)
    finite = np.isfinite(rounded)
    units = np.zeros(got.shape)
    with np.errstate(all="ignore"):
        size = np.abs(np.spacing(rounded)).astype(exact.dtype)
        units[finite] = (np.abs(got.astype(exact.dtype) - exact) / size)[finite]
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    units[~finite & ~same] = np.inf
    units[(rounded == 0) & (got == 0) & (np.signbit(got) != np.signbit(rounded))] = np.inf
    return np.where(np.isnan(units), np.inf, units)
