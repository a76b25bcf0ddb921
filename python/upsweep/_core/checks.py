"""Checks of arguments by their shapes and dtypes, for arrays of every library.

The functions take shapes and names of dtypes, or anything with a `shape`, and raise the errors that users see. The
problems of numpy arrays and of device memory (`scan`, `bincount`) and those of tensors (`upsweep._torch`) call
them. Sizes may be torch's symbols: no function compares more of them than its error needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep._utils.integers import as_integer, as_size

Shape = tuple[int, ...]
CanHold = Callable[[Any, Any], bool]  # whether a state of one dtype can be set to a value of another


def common_shape(named: dict[str, Any], broadcast: Callable[..., Any] = np.broadcast_shapes) -> Any:
    """Return the shape that the arrays broadcast to, by the function of their library."""
    try:
        return broadcast(*[array.shape for array in named.values()])
    except (ValueError, RuntimeError):  # numpy's, torch's
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in named.items())
        raise ValueError(f"shapes do not broadcast together: {shapes}{missing_axes(named)}") from None


def missing_axes(named: dict[str, Any], axis: int | None = None) -> str:
    """The remedy for an array that has some axes of the largest one, but none for those after; "" if none is.

    With `axis`, the array has to have that one.
    """
    whole = max((tuple(array.shape) for array in named.values()), key=len)
    for name, array in named.items():
        n = array.ndim
        places = [
            place for place in range(len(whole) - n)
            if n and whole[place : place + n] == tuple(array.shape) and (axis is None or 0 <= axis - place < n)
        ]  # fmt: skip
        if len(places) == 1:
            axes = tuple(range(places[0], places[0] + n))
            index = ", ".join([":"] * n + ["None"] * (len(whole) - axes[-1] - 1))
            which = f"axes {axes}" if n > 1 else f"axis {axes[0]}"
            return f"; for one number at each index of {which}, pass {name}[{index}]"
    return ""


def fitting_axis(shape: Shape, whole: Shape) -> str:
    """The remedy for a state that is as that of a scan along another axis of this shape; "" if none is."""
    fits = [n for n in range(len(whole)) if (*whole[:n], *whole[n + 1 :]) == tuple(shape)]
    return f"; it would fit axis={' or axis='.join(map(str, fits))}" if fits else ""


def check_axis(axis: object, ndim: int) -> int:
    """Return the axis counted from the front."""
    if isinstance(axis, (tuple, list)):
        raise TypeError(f"axis: expected one integer, got {axis!r}; reshape several axes to one, or call for each")
    index = as_integer(axis, "axis")
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim, "axis")
    return index % ndim


def check_scan_axis(axis: object, shape: Any, name: str) -> int:
    """Return the axis of a scan over this shape, counted from the front, by default the last one.

    Errors name the scanned argument.
    """
    if not shape:
        raise ValueError(f"{name}: expected at least one axis to scan along, got a 0-d array")
    return check_axis(-1 if axis is None else axis, len(shape))


def check_reset(dtype: Any, bool_dtype: Any) -> None:
    """Raise unless the dtype of resets is bool."""
    if dtype != bool_dtype:
        positions = (
            "; positions, as cu_seqlens, make a mask by np.isin(np.arange(n), cu_seqlens[:-1]), those of the last "
            "steps for reverse=True by np.isin(np.arange(n), cu_seqlens[1:] - 1)"
        )
        raise TypeError(
            f"reset: expected an array of bool, got dtype {dtype}; for zeros and ones use dones > 0: convert it "
            f"once, dones = dones > 0, before ~dones is used{positions if 'int' in str(dtype) else ''}"
        )


def check_state(name: str, array: Any, state_shape: Shape, dtype: Any, can_hold: CanHold) -> None:
    """Raise for an initial state of too many axes, or of a kind that states of this dtype cannot hold."""
    if array.ndim > len(state_shape):
        raise ValueError(
            f"{name}: expected the state's shape {tuple(state_shape)} (the result's without its axis) or one that "
            f"broadcasts to it, got {tuple(array.shape)}"
        )
    if not can_hold(dtype, array.dtype):
        raise TypeError(f"{name}: {array.dtype} cannot be held by a state of dtype {dtype}")


def state_shape_error(name: str, shape: Shape, state_shape: Shape, whole: Shape) -> ValueError:
    """Return the error for an initial state that does not broadcast; `whole` is the shape of the result."""
    return ValueError(
        f"{name}: shape {tuple(shape)} does not broadcast to the state's {tuple(state_shape)}"
        f"{fitting_axis(shape, whole)}"
    )


def check_carry_state(
    state: Any, value: Any, can_hold: CanHold,
    broadcast: Callable[..., Any] = np.broadcast_shapes,
) -> None:  # fmt: skip
    """Raise unless a carry with this value can be applied to the state."""
    if not can_hold(value.dtype, state.dtype):
        raise TypeError(f"state: {state.dtype} cannot be held by a carry of dtype {value.dtype}")
    try:
        broadcast(state.shape, value.shape)
    except (ValueError, RuntimeError):
        shapes = tuple(state.shape), tuple(value.shape)
        raise ValueError(f"state: shape {shapes[0]} does not broadcast with the carry's {shapes[1]}") from None


def check_window(window: object, initial: object, exclusive: bool, return_final: bool) -> int | None:
    """Return the number of elements of `window`, or None for no window."""
    if window is None:
        return None
    size = as_size(window, "window", 1)
    others = {"initial": initial is not None, "exclusive": exclusive, "return_final": return_final}
    for name, is_used in others.items():
        if is_used:
            raise ValueError(f"window: cannot be combined with {name}")
    return min(size, np.iinfo(np.int64).max)


def check_window_gamma(window: int | None, gates: Any, gamma: Any) -> None:
    """Raise where a discount that varies along the axis meets a window."""
    if window and gates is not None:
        shape = tuple(gamma.shape)
        raise ValueError(f"window: needs a gamma that is constant along the axis, got one of shape {shape}")


def check_count_keywords(invalid: object, return_invalid: bool, accumulate: bool, out: object) -> bool:
    """Whether keys outside the bins are left out."""
    if not isinstance(invalid, str) or invalid not in ("raise", "drop"):
        raise ValueError(f"invalid: expected 'raise' or 'drop', got {invalid!r}")
    if return_invalid and invalid != "drop":
        raise ValueError("return_invalid: goes with invalid='drop'; with 'raise' there are none to count")
    if accumulate and out is None:
        raise ValueError("accumulate: needs out= to add to")
    return invalid == "drop"


def check_keys(keys: Any, is_integral: bool, axis: object) -> int:
    """Return the counted axis of the keys."""
    if axis is None and keys.ndim != 1:
        flat = ".ravel() (of a DataFrame .to_numpy().ravel())"
        shape = f"shape {tuple(keys.shape)}; use {flat} to count them all, or axis= to count along one axis"
        raise ValueError(f"x: expected 1-D keys, got {shape if keys.ndim else 'a single number'}")
    if not is_integral:
        raise TypeError(
            f"x: expected keys of integers or bool, got dtype {keys.dtype}; convert them, or count numbers by "
            "histogram"
        )
    return 0 if axis is None else check_axis(axis, keys.ndim)


def check_weights(weights: Any, keys: Any) -> int | None:
    """Return the number of sums for each key, None for one without an axis of its own."""
    if weights is None or weights.shape == keys.shape:
        return None
    if weights.ndim != keys.ndim + 1 or weights.shape[:-1] != keys.shape:
        raise ValueError(
            f"weights: expected x's shape {tuple(keys.shape)}, or for several sums one axis more behind it, got "
            f"{tuple(weights.shape)}"
        )
    n_sums: int = weights.shape[-1]
    return n_sums


def check_bins(minlength: object, length: object) -> tuple[int, int | None]:
    """Return the least number of bins, and their number where `length` sets it."""
    minimum = _n_bins(minlength, "minlength")
    n_bins = None if length is None else _n_bins(length, "length")
    if n_bins is not None and n_bins < minimum:
        raise ValueError(f"length: {n_bins} is smaller than minlength={minimum}")
    return minimum, n_bins


def _n_bins(value: object, name: str) -> int:
    """A number of bins; errors have numpy's words."""
    size = as_integer(value, name, f"{type(value).__name__!r} object cannot be interpreted as an integer")
    if size < 0:
        raise ValueError(f"{name}: must not be negative, got {size}")
    return size


def check_imaginary(weights: Any, keeps_imaginary: bool, dtype: Any) -> None:
    """Raise for sums of complex weights in a dtype without an imaginary part."""
    if not keeps_imaginary:
        raise TypeError(f"dtype: sums of {weights.dtype} weights would lose their imaginary part in {dtype}")


def bins_of_out(out: Any, n_bins: Any, shape: Shape, axis: int, minimum: int) -> Any:
    """Return the number of bins that `out` sets, where `length` does not.

    `shape` is the result's with any number of bins at `axis`.
    """
    if n_bins is None:
        if not hasattr(out, "shape"):
            return minimum  # no array, which is refused later
        if len(out.shape) != len(shape):
            sizes = ", ".join("bins" if at == axis else str(n) for at, n in enumerate(shape))
            comma = "," if len(shape) == 1 else ""
            raise ValueError(f"out: expected shape ({sizes}{comma}), got {tuple(out.shape)}")
        n_bins = out.shape[axis]
    if n_bins < minimum:
        raise ValueError(f"out: has {n_bins} bins, fewer than minlength={minimum}")
    return n_bins


def check_output(out: Any, shape: Any, dtype: Any, called: str = "out") -> None:
    """Raise unless the array has this shape and dtype."""
    if out.shape != shape:
        raise shape_error(called, tuple(shape), out)
    if out.dtype != dtype:
        raise TypeError(f"{called}: expected dtype {dtype}, got {out.dtype}")


def check_count_out(out: Any, result: Any, dtype: object) -> None:
    """Raise, with the remedy, for an `out` whose dtype is not that of sums without `dtype`."""
    if dtype is None and getattr(out, "dtype", result) != result:
        raise TypeError(
            f"out: expected dtype {result}, got {out.dtype}; pass dtype=out.dtype for sums rounded to it"
        )


def shape_error(name: str, shape: object, array: Any) -> ValueError:
    """Return the error for an array of another shape than expected."""
    return ValueError(f"{name}: expected shape {shape}, got {tuple(array.shape)}")


def check_writeable(out: Any, called: str = "out") -> None:
    """Raise for a numpy array or a device view that is read-only."""
    if not out.flags.writeable:
        raise ValueError(f"{called}: is read-only")
