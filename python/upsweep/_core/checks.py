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
        raise ValueError(f"shapes do not broadcast together: {shapes}") from None


def check_axis(axis: object, ndim: int) -> int:
    """Return the axis counted from the front."""
    index = as_integer(axis, "axis")
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim, "axis")
    return index % ndim


def check_scan_axis(axis: object, shape: Any, name: str) -> int:
    """Return the axis of a scan over this shape, counted from the front; errors name the scanned argument."""
    if not shape:
        raise ValueError(f"{name}: expected at least one axis to scan along, got a 0-d array")
    return check_axis(axis, len(shape))


def check_reset(dtype: Any, bool_dtype: Any) -> None:
    """Raise unless the dtype of resets is bool."""
    if dtype != bool_dtype:
        raise TypeError(f"reset: expected an array of bool, got dtype {dtype}")


def check_state(name: str, array: Any, state_shape: Shape, dtype: Any, can_hold: CanHold) -> None:
    """Raise for an initial state of too many axes, or of a kind that states of this dtype cannot hold."""
    if array.ndim > len(state_shape):
        raise ValueError(
            f"{name}: expected the state's shape {tuple(state_shape)} (the result's without its axis) or one that "
            f"broadcasts to it, got {tuple(array.shape)}"
        )
    if not can_hold(dtype, array.dtype):
        raise TypeError(f"{name}: {array.dtype} cannot be held by a state of dtype {dtype}")


def state_shape_error(name: str, shape: Shape, state_shape: Shape) -> ValueError:
    """Return the error for an initial state that does not broadcast."""
    return ValueError(f"{name}: shape {tuple(shape)} does not broadcast to the state's {tuple(state_shape)}")


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


def check_keys(keys: Any, is_integral: bool, axis: object, rule: str = " according to the rule 'safe'") -> int:
    """Return the counted axis of the keys; `rule` ends the error for keys that are no integers."""
    if axis is None and keys.ndim != 1:
        depth = "small" if keys.ndim == 0 else "large"
        raise ValueError(
            f"x: object of too {depth} depth for desired array: expected 1-D without axis=, got {keys.ndim}-D"
        )
    if not is_integral:
        raise TypeError(f"x: Cannot cast keys of dtype {keys.dtype} to integers{rule}")
    return 0 if axis is None else check_axis(axis, keys.ndim)


def check_weights(weights: Any, keys: Any) -> int | None:
    """Return the number of sums for each key, None for one without an axis of its own."""
    if weights is None or weights.shape == keys.shape:
        return None
    if weights.ndim != keys.ndim + 1 or weights.shape[:-1] != keys.shape:
        raise ValueError(
            "weights: The weights and list don't have the same length: expected x's shape "
            f"{tuple(keys.shape)}, or one axis more behind it, got {tuple(weights.shape)}"
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


def shape_error(name: str, shape: object, array: Any) -> ValueError:
    """Return the error for an array of another shape than expected."""
    return ValueError(f"{name}: expected shape {shape}, got {tuple(array.shape)}")


def check_writeable(out: Any, called: str = "out") -> None:
    """Raise for a numpy array or a device view that is read-only."""
    if not out.flags.writeable:
        raise ValueError(f"{called}: is read-only")
