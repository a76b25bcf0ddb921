"""What a block of steps does to a state, on a device: scans of which only the final state is kept.

    value       the final state from nothing
    multiplier  the product of the factors: the final state of zeros after 1; 0 where the block resets
    dropped     whether a reset drops the state before the block: the final sum of the flags

and what a block does to a given state, one step: `value` where dropped, else ``multiplier * state + value``.
Nothing but these reads or writes the arrays, so that every library that allocates memory has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from upsweep import _cuda
from upsweep._cuda import DeviceArray

__all__ = ["reduce", "step"]

Allocate = Callable[[int], tuple[int, object]]


def power(base: complex, exponent: int) -> complex:
    """The product of so many factors; as in the kernels, a real one multiplies both parts."""
    if base.imag == 0:
        with np.errstate(all="ignore"):
            return complex(np.power(np.float64(base.real), float(exponent)))
    result = 1 + 0j
    while exponent:
        if exponent & 1:
            result = _product(base, result)
        base, exponent = _product(base, base), exponent >> 1
    return result


def _product(a: complex, b: complex) -> complex:
    if a.imag == 0:
        return complex(a.real * b.real, a.real * b.imag)
    return complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _spread(element: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """One element as an array of this shape."""
    return element._replace(shape=shape, strides=(0,) * len(shape))


def _timed(array: DeviceArray) -> DeviceArray:
    """A state as a block of one step, its last axis."""
    return array._replace(shape=(*array.shape, 1), strides=(*array.strides, 0))


def reduce(
    x: DeviceArray,
    gates: DeviceArray | None,
    gamma: DeviceArray | complex | None,
    reset: DeviceArray | None,
    results: Sequence[DeviceArray],
    bits: Sequence[DeviceArray],
    *,
    axis: int,
    reverse: bool,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Fill the results: multiplier, value and dropped, of x's shape without `axis`. `bits`: elements 0 and 1."""
    multiplier, value, dropped = results
    zero, one = bits
    if 0 in value.shape:
        return

    def keep_final(
        x: DeviceArray, gates: DeviceArray | None, gamma: DeviceArray | complex | None,
        initial: DeviceArray | None, reset: DeviceArray | None, final: DeviceArray, axis: int = len(value.shape),
    ) -> None:  # fmt: skip
        p = _cuda.problem(
            x, gates, gamma, initial, reset, None, final, axis=axis, reverse=reverse, exclusive=False,
            device=device, stream=stream,
        )  # fmt: skip
        _cuda.run_scan(p, allocate)

    nothing = _timed(_spread(zero, value.shape))
    before = _spread(one, value.shape)
    keep_final(x, gates, gamma, None, reset, value, axis)
    if gates is not None or isinstance(gamma, DeviceArray):
        keep_final(_spread(zero, x.shape), gates, gamma, before, None, multiplier, axis)
    else:
        number = power(complex(1 if gamma is None else gamma), x.shape[axis])
        keep_final(nothing, None, number, before, None, multiplier)
    if reset is None:
        keep_final(nothing, None, None, None, None, dropped)
    else:
        keep_final(reset, None, None, None, None, dropped, axis)
        # 0 where dropped, by selection: the product may be infinite there.
        keep_final(nothing, None, None, multiplier, _timed(dropped), multiplier)


def step(
    multiplier: DeviceArray | None,
    value: DeviceArray,
    dropped: DeviceArray | None,
    state: DeviceArray,
    result: DeviceArray,
    *,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Fill `result` with `value` where dropped, else ``multiplier * state + value``; all are of one shape."""
    # One step whose output is the result: a final state would have to be of 32 or 64 bits.
    if 0 in result.shape:
        return
    p = _cuda.problem(
        _timed(value), None if multiplier is None else _timed(multiplier), None, state,
        None if dropped is None else _timed(dropped), _timed(result), None, axis=len(result.shape), reverse=False,
        exclusive=False, device=device, stream=stream,
    )  # fmt: skip
    _cuda.run_scan(p, allocate)
