"""Arguments of a scan, normalised: what the user wrote becomes arrays of one shape and an axis.

Every check that can be made without reading data happens here, before any work, and names the argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from upsweep import _arrays
from upsweep._arrays import Array, DeviceView, Placement
from upsweep._core import checks

__all__ = [
    "Scan", "check_out", "check_overlap", "discounted_problem", "normalise", "overlap", "overlaps_itself",
    "recurrence_problem", "sum_problem",
]  # fmt: skip


@dataclass
class Scan:
    """A checked scan. `x`, `gates` and `reset` have the result's shape; the others lack `axis`.

    With a `home` they lie there, except for numbers, which are arrays of the host.
    `name` and `factor_name` are the user's names of x and of what is gates or gamma here.
    """

    x: Array
    gates: Array | None
    gamma: Array | None
    reset: Array | None
    initial: Array | None
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
    def factor(self) -> Array | None:
        """The gates, or gamma repeated along the axis: of the result's shape."""
        if self.gamma is None:
            return self.gates
        return np.broadcast_to(self.gamma[(slice(None),) * self.axis + (np.newaxis,)], self.shape)

    @property
    def inputs(self) -> dict[str, Array | None]:
        """The arrays that are read, by the user's names of them."""
        return {self.name: self.x, self.factor_name: self.factor, "reset": self.reset, "initial": self.initial}

    @property
    def accumulator(self) -> np.dtype[Any]:
        return _arrays.accumulator_dtype(self.dtype)

    @property
    def factor_dtype(self) -> np.dtype[Any]:
        """What states are multiplied in: real factors stay real under complex states, whose parts never meet."""
        factor = self.gamma if self.gates is None else self.gates
        if self.accumulator.kind == "c" and (factor is None or factor.dtype.kind != "c"):
            return np.dtype(np.float64)
        return self.accumulator


def _without_axis(array: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """`array`, constant along `axis`, broadcast to `shape` and stripped of it."""
    whole = np.broadcast_to(array, shape[:axis] + (1,) + shape[axis + 1 :])
    return whole[(slice(None),) * axis + (0, ...)]


def normalise(
    name: str,
    x: Array,
    factor_name: str | None,
    factor: Array | None,
    dtype: np.dtype[Any],
    *,
    axis: object,
    reset: object,
    initial: object,
) -> Scan:
    """Broadcast x, its factor (gamma or gates) and reset; find what the factor is along the axis.

    A factor that is the same along the axis becomes `gamma`; any other is `gates`. All are read as they lie.
    """
    named = {name: x}
    if factor is not None and factor_name is not None:
        named[factor_name] = factor
    flags: Array | None = None
    if reset is not None:
        flags = _arrays.as_operand(reset, "reset")
        checks.check_reset(flags.dtype, np.bool_)
        named["reset"] = flags
    state = None if initial is None else _arrays.as_operand(initial, "initial")
    placement = _arrays.common_placement({**named, "initial": state})
    shape = checks.common_shape(named)
    at = checks.check_scan_axis(axis, shape, name)
    scan = Scan(np.broadcast_to(x, shape), None, None, None, None, at, shape, dtype, placement, name)
    scan.factor_name = factor_name or scan.factor_name
    if flags is not None:
        scan.reset = np.broadcast_to(flags, shape)
    if factor is not None:
        padded = factor[(np.newaxis,) * (len(shape) - factor.ndim) + (...,)]
        if padded.shape[at] == 1 or (padded.strides[at] == 0 and padded.size):
            scan.gamma = _without_axis(padded[(slice(None),) * at + (slice(0, 1),)], at, shape)
        else:
            scan.gates = np.broadcast_to(factor, shape)
    if state is not None:
        checks.check_state("initial", state, scan.state_shape, scan.accumulator, _arrays.can_hold)
        try:
            scan.initial = np.broadcast_to(state, scan.state_shape)
        except ValueError:
            raise checks.state_shape_error("initial", state.shape, scan.state_shape) from None
    return scan


def _same_memory(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.shape == b.shape
        and a.dtype == b.dtype
        and all(n <= 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides))
    )


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays share memory, or may: the search for it is bounded."""
    if not np.may_share_memory(a, b):
        return False
    try:
        # The bound is on a search that is exponential at worst; the stubs know only its two named values.
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True  # cannot be told apart in reasonable time


def overlaps_itself(array: Array) -> bool:
    """Whether two elements share memory.

    Such a pair first differs along some axis. Shifted so that the one has index 0 there and all before, it lies in
    that axis' first part, and the other in the rest. Sorted by stride, those are apart in all usual arrays.
    """
    if array.flags.c_contiguous or array.flags.f_contiguous or array.size == 0:
        return False
    ordered = array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    return any(
        overlap(ordered[(0,) * axis + (slice(1, None),)], ordered[(0,) * axis + (slice(0, 1),)])
        for axis in range(array.ndim)
        if ordered.shape[axis] > 1
    )


def check_overlap(out: Array, inputs: Iterable[tuple[str, Array]], called: str = "out") -> None:
    """Raise where two elements of `out` share memory, or one with an input; no memory is read."""
    if overlaps_itself(out):
        raise ValueError(f"{called}: several of its elements share memory (strides of {out.strides} bytes)")
    for name, array in inputs:
        if overlap(out, array):
            raise ValueError(f"{called}: overlaps {name} in memory without being the same array")


def _as_target(out: object, inputs: dict[str, Array | None], placement: Placement | None, called: str) -> Array:
    if placement is None:
        if not isinstance(out, np.ndarray) or isinstance(out, (np.ma.MaskedArray, np.matrix, DeviceView)):
            raise TypeError(f"{called}: expected a numpy.ndarray, got {_arrays.type_name(out)}")
        return out.view(np.ndarray)  # np.memmap and the like
    target = _arrays.as_operand(out, called)
    if not isinstance(target, DeviceView):
        raise TypeError(f"{called}: expected a {placement.library.name}, got {_arrays.type_name(out)}")
    # Numbers are everywhere; the other inputs have lost their own shapes.
    _arrays.common_placement({**{k: a for k, a in inputs.items() if isinstance(a, DeviceView)}, called: target})
    return target


def check_out(
    out: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: dict[str, Array | None],
    in_place: tuple[str, ...] = (),
    placement: Placement | None = None,
    *,
    called: str = "out",
) -> Array:
    """Return `out`, as a plain ndarray or where its `home` is, if the result may be written there.

    `inputs` are all arrays that are read; of these, `in_place` may be `out` itself, element for element. Errors
    say what it is `called`.
    """
    out = _as_target(out, inputs, placement, called)
    checks.check_output(out, shape, dtype, called)
    if not out.flags.writeable:
        raise ValueError(f"{called}: is read-only")
    check_overlap(
        out,
        (
            (name, array)
            for name, array in inputs.items()
            if array is not None and array.size and not (name in in_place and _same_memory(out, array))
        ),
        called,
    )
    return out


# ---- the public scans ------------------------------------------------------------------------------------------


def sum_problem(x: Any, dtype: DTypeLike | None, axis: object, reset: object, initial: object) -> Scan:
    """Return the checked cumulative sum, by np.cumsum's rule for the dtype."""
    summands = _arrays.as_operand(x, "x")
    result = _sum_dtype(summands, dtype)
    if result.kind in "biu" and (summands.dtype.kind not in "biu" or (result.kind == "b" != summands.dtype.kind)):
        summands = _arrays.cast(summands, result, "x")  # each element is cast before it is added
    elif summands.dtype.kind == "c" and result.kind != "c":
        summands = summands.real
    return normalise("x", summands, None, None, result, axis=axis, reset=reset, initial=initial)


def _sum_dtype(x: Array, dtype: DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        result = _arrays.as_dtype(dtype)
        if not (result.kind in "biufc" and result.itemsize <= 16) and not _arrays.is_bfloat16(result):
            raise TypeError(f"dtype: expected a numeric dtype, got {result}")
        return _arrays.as_array(np.empty(0, result), "dtype").dtype.newbyteorder("=")
    if x.dtype.kind in "biu" and x.dtype.itemsize < np.dtype(np.intp).itemsize:
        return np.dtype(np.uintp if x.dtype.kind == "u" else np.intp)
    return x.dtype.newbyteorder("=")


def discounted_problem(
    x: Any, gamma: Any, axis: object, reset: object, initial: object, window: int | None = None
) -> Scan:
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
    dtype = _arrays.result_dtype(
        *(
            value if isinstance(value, (int, float, complex)) and not isinstance(value, np.generic) else array
            for value, array in ((gates, factor), (tokens, terms))
        )
    )
    return normalise("tokens", terms, "gates", factor, dtype, axis=axis, reset=reset, initial=initial)
