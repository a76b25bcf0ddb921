"""The problem class of scans, and the checks of their arguments.

`normalise` broadcasts the operands and classifies the factor; `check_out` validates a user's output array. All
checks that need no element happen here, before any work, and their errors name the argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand, Placement
from upsweep._core import checks
from upsweep._core.layout import have_same_memory, overlap, overlaps_itself


@dataclass
class Scan:
    """A checked scan. `x`, `gates` and `reset` have the result's shape; the others lack `axis`.

    With a `placement` the operands are device views of arrays there, except for numbers, which are host
    arrays. `name` and `factor_name` are the user's names of x and of the factor (gates or gamma).
    """

    x: Operand
    gates: Operand | None
    gamma: Operand | None
    reset: Operand | None
    initial: Operand | None
    axis: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    placement: Placement | None = None
    name: str = "x"
    factor_name: str = "gamma"

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def factor(self) -> Operand | None:
        """The gates, or gamma repeated along the axis, in the result's shape."""
        if self.gamma is None:
            return self.gates
        return np.broadcast_to(self.gamma[(slice(None),) * self.axis + (np.newaxis,)], self.shape)

    @property
    def inputs(self) -> dict[str, Operand | None]:
        """The arrays that are read, by the user's names of them."""
        return {self.name: self.x, self.factor_name: self.factor, "reset": self.reset, "initial": self.initial}

    @property
    def accumulator(self) -> np.dtype[Any]:
        return _arrays.accumulator_dtype(self.dtype)

    @property
    def factor_dtype(self) -> np.dtype[Any]:
        """The dtype of products of factors: float64 for real factors of complex states, which do not mix parts."""
        factor = self.gamma if self.gates is None else self.gates
        if self.accumulator.kind == "c" and (factor is None or factor.dtype.kind != "c"):
            return np.dtype(np.float64)
        return self.accumulator


def normalise(
    name: str, x: Operand, factor_name: str | None, factor: Operand | None, dtype: np.dtype[Any], *, axis: object,
    reset: object, initial: object,
) -> Scan:  # fmt: skip
    """Broadcast x, its factor (gamma or gates) and reset without copies.

    A factor that is constant along the axis becomes `gamma`; any other one is `gates`.
    """
    named = {name: x}
    if factor is not None and factor_name is not None:
        named[factor_name] = factor
    flags: Operand | None = None
    if reset is not None:
        flags = _arrays.as_operand(reset, "reset")
        checks.check_reset(flags.dtype, np.bool_)
        named["reset"] = flags
    state = None if initial is None else _arrays.as_operand(initial, "initial")
    placement = _arrays.common_placement({**named, "initial": state})
    shape = checks.common_shape(named)
    index = checks.check_scan_axis(axis, shape, name)
    scan = Scan(np.broadcast_to(x, shape), None, None, None, None, index, shape, dtype, placement, name)
    scan.factor_name = factor_name or scan.factor_name
    if flags is not None:
        scan.reset = np.broadcast_to(flags, shape)
    if factor is not None:
        padded = factor[(np.newaxis,) * (len(shape) - factor.ndim) + (...,)]
        if padded.shape[index] == 1 or (padded.strides[index] == 0 and padded.size):
            before: tuple[Any, ...] = (slice(None),) * index
            constant = np.broadcast_to(padded[(*before, slice(0, 1))], (*shape[:index], 1, *shape[index + 1 :]))
            scan.gamma = constant[(*before, 0, ...)]
        else:
            scan.gates = np.broadcast_to(factor, shape)
    if state is not None:
        checks.check_state("initial", state, scan.state_shape, scan.accumulator, _arrays.can_hold)
        try:
            scan.initial = np.broadcast_to(state, scan.state_shape)
        except ValueError:
            raise checks.state_shape_error("initial", state.shape, scan.state_shape, shape) from None
    return scan


def check_overlap(out: Operand, inputs: Iterable[tuple[str, Operand]], called: str = "out") -> None:
    """Raise where two elements of `out` share memory, or one with an input; no memory is read."""
    if overlaps_itself(out):
        raise ValueError(f"{called}: several of its elements share memory (strides of {out.strides} bytes)")
    for name, array in inputs:
        if overlap(out, array):
            raise ValueError(f"{called}: overlaps {name} in memory without being the same array")


def _as_target(out: object, inputs: dict[str, Operand], placement: Placement | None, called: str) -> Operand:
    if placement is None:
        if not isinstance(out, np.ndarray) or isinstance(out, (np.ma.MaskedArray, np.matrix)):
            raise TypeError(f"{called}: expected a numpy.ndarray, got {_arrays.type_name(out)}")
        return out.view(np.ndarray)  # of np.memmap and other subclasses
    target = _arrays.as_operand(out, called)
    if not isinstance(target, DeviceView):
        raise TypeError(f"{called}: expected a {placement.library.name}, got {_arrays.type_name(out)}")
    # Numbers go with any device. Inputs of the host are numbers, though broadcast to other shapes by now.
    _arrays.common_placement({**{k: a for k, a in inputs.items() if isinstance(a, DeviceView)}, called: target})
    return target


def check_out(
    out: object, shape: tuple[int, ...], dtype: np.dtype[Any], inputs: dict[str, Operand | None],
    in_place: tuple[str, ...] = (), placement: Placement | None = None, *, called: str = "out",
) -> Operand:  # fmt: skip
    """Return `out` as a plain ndarray or a device view, if the result may be written to it.

    `inputs` are all arrays that are read; of these, `in_place` may be `out` itself, element for element. Errors
    call it `called`.
    """
    target = _as_target(out, inputs, placement, called)
    checks.check_output(target, shape, dtype, called)
    checks.check_writeable(target, called)
    others = (
        (name, array)
        for name, array in inputs.items()
        if array is not None and array.size and not (name in in_place and have_same_memory(target, array))
    )
    check_overlap(target, others, called)
    return target


def sum_problem(x: Any, dtype: DTypeLike | None, axis: object, reset: object, initial: object) -> Scan:
    """Return the checked cumulative sum, by np.cumsum's rule for the dtype."""
    summands = _arrays.as_operand(x, "x")
    result = _sum_dtype(summands, dtype)
    if result.kind in "biu" and (summands.dtype.kind not in "biu" or (result.kind == "b" != summands.dtype.kind)):
        summands = _arrays.cast(summands, result, "x")  # each element is cast before it is added
    elif summands.dtype.kind == "c" and result.kind != "c":
        summands = summands.real
    return normalise("x", summands, None, None, result, axis=axis, reset=reset, initial=initial)


def _sum_dtype(x: Operand, dtype: DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        result = _arrays.as_dtype(dtype)
        if not (result.kind in "biufc" and result.itemsize <= 16) and not _arrays.is_bfloat16(result):
            raise TypeError(f"dtype: expected a numeric dtype, got {result}")
        return _arrays.as_array(np.empty(0, result), "dtype").dtype.newbyteorder("=")
    if x.dtype.kind in "biu" and x.dtype.itemsize < np.dtype(np.intp).itemsize:
        return np.dtype(np.uintp if x.dtype.kind == "u" else np.intp)
    return x.dtype.newbyteorder("=")


def discounted_problem(x: Any, gamma: Any, axis: Any, reset: Any, initial: Any, window: int | None = None) -> Scan:
    """Return the checked discounted sum, of x's dtype: gamma never widens it, but makes it complex."""
    terms, factor = _arrays.as_operand(x, "x"), _arrays.as_operand(gamma, "gamma")
    dtype = _arrays.inexact_dtype(terms.dtype)
    dtype = _arrays.complex_dtype(dtype) if factor.dtype.kind == "c" else dtype
    scan = normalise("x", terms, "gamma", factor, dtype, axis=axis, reset=reset, initial=initial)
    checks.check_window_gamma(window, scan.gates, factor)
    return scan


def recurrence_problem(gates: Any, tokens: Any, axis: object, reset: object, initial: object) -> Scan:
    """Return the checked recurrence, of the dtype that gates and tokens promote to."""
    factor, terms = _arrays.as_operand(gates, "gates"), _arrays.as_operand(tokens, "tokens")
    weak = (
        value if isinstance(value, (int, float, complex)) and not isinstance(value, np.generic) else array
        for value, array in ((gates, factor), (tokens, terms))
    )
    dtype = _arrays.result_dtype(*weak)
    return normalise("tokens", terms, "gates", factor, dtype, axis=axis, reset=reset, initial=initial)
