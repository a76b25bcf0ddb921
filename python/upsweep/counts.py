"""Counts of integer keys."""

from __future__ import annotations

import operator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays, _cpu
from upsweep._arrays import Array
from upsweep._signature import check_out

__all__ = ["bincount"]


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out: Array | None = None,
    accumulate: bool = False,
    dtype: DTypeLike | None = None,
    invalid: Literal["raise", "drop"] = "raise",
    n_threads: int | None = None,
    device: str | None = None,
) -> Array:
    """Count the occurrences of each key, or sum a weight for each.

    Parameters
    ----------
    x : array_like
        Keys: 1-D, integers of any width or bool, not negative.
    weights : array_like, optional
        Real, of x's shape: the result is their sum for each key, in float64. Read as they lie, as `x` is, in
        any dtype, byte order and stride.
    minlength : int
        The least number of bins.
    length : int, optional
        The number of bins, whatever the keys are; keys outside are handled as `invalid` says.
    out : ndarray, optional
        The result goes here: 1-D, C-contiguous, of the result's dtype; its size is the number of bins. An error
        leaves it untouched.
    accumulate : bool
        Add to `out` instead of overwriting it.
    dtype : dtype_like, optional
        Of the result; default: intp for counts, float64 for sums of weights. Any other is converted to at the
        end, from a result of the default dtype.
    invalid : {"raise", "drop"}
        What to do with keys below 0, or from `length` on: an error, or leave them out.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu"}
        Where to compute.

    Returns
    -------
    ndarray
        One number for each bin: ``max(largest key + 1, minlength)`` of them without `length` or `out`.

    Raises
    ------
    TypeError
        Keys are no integers, or weights no real numbers.
    ValueError
        Keys are not 1-D, negative or outside the bins; weights of another shape; `minlength` negative; `length`
        smaller than `minlength`; `accumulate` without `out`.
    MemoryError
        The largest key, `minlength` or `length` asks for more bins than memory can hold.

    Notes
    -----
    ``np.bincount``'s results and errors. Float weights are summed in fixed chunks: the bits do not depend on the
    number of threads, and are numpy's below 2**17 keys or where the sums are exact. Beyond the result, a thread
    takes 1 MiB at most.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.bincount([0, 1, 1, 3])
    array([1, 2, 0, 1])
    >>> upsweep.bincount([0, 1, 1], weights=[0.5, 1.0, 2.0])
    array([0.5, 3. ])
    >>> upsweep.bincount([0, -1, 7, 1], length=3, invalid="drop")
    array([1, 1, 0])
    """
    if _arrays.check_device(device) is not None:
        raise NotImplementedError(f"device={device!r}: bincount runs on the CPU only")
    if invalid not in ("raise", "drop"):
        raise ValueError(f"invalid: expected 'raise' or 'drop', got {invalid!r}")
    keys = _as_keys(x)
    summands = None if weights is None else _as_weights(weights, keys)
    least = _as_size(minlength, "minlength")
    # Without keys there is nothing to sum, and numpy answers with integers.
    result_dtype = np.dtype(np.intp if summands is None or keys.size == 0 else np.float64)
    wanted = result_dtype if dtype is None else _arrays.as_dtype(dtype)
    if wanted.kind not in "iuf":
        raise TypeError(f"dtype: expected integers or real floating numbers, got {wanted}")
    n_threads = _cpu.threads(n_threads)

    n_bins = _fixed_bins(length, least, out, wanted, {"x": keys, "weights": summands})
    if accumulate and out is None:
        raise ValueError("accumulate: needs out= to add to")
    if keys.size and (n_bins is None or invalid == "raise"):
        n_bins = _check_keys(keys, n_bins, least, invalid, n_threads)
    elif n_bins is None:
        n_bins = least

    native = out is not None and wanted == result_dtype
    by_keys = "minlength" if n_bins == least else "x"
    asker = "out" if out is not None else by_keys if length is None else "length"
    sums = out if native and out is not None else _zeros(n_bins, result_dtype, asker)
    if keys.size:
        _cpu.counts.count(keys, summands, sums, native and not accumulate, n_threads)
    elif native and not accumulate:
        sums[...] = 0
    if out is None:
        return sums.astype(wanted, copy=False)
    if not native:
        if accumulate:
            out += sums.astype(wanted)
        else:
            out[...] = sums
    return out


def _as_keys(x: ArrayLike) -> Array:
    keys = (
        np.asarray(x, dtype=np.intp) if isinstance(x, (list, tuple)) and len(x) == 0 else _arrays.as_array(x, "x")
    )
    if keys.ndim != 1:
        raise ValueError(
            f"x: object of too small depth or too deep for desired array: expected 1-D, got {keys.ndim}-D"
        )
    if keys.dtype.kind not in "biu":
        raise TypeError(f"x: Cannot cast keys of dtype {keys.dtype} to integers according to the rule 'safe'")
    return keys


def _as_weights(weights: ArrayLike, keys: Array) -> Array:
    array = _arrays.as_array(weights, "weights")
    if array.dtype.kind == "c":
        raise TypeError(f"weights: expected real numbers, got dtype {array.dtype}")
    if array.shape != keys.shape:
        raise ValueError(
            f"weights: The weights and list don't have the same length: {array.shape} and {keys.shape}"
        )
    return array


def _as_size(value: object, name: str) -> int:
    try:
        size = operator.index(value)  # type: ignore[arg-type]  # its TypeError is ours to word
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if size < 0:
        raise ValueError(f"{name}: must not be negative, got {size}")
    return size


def _fixed_bins(
    length: object, least: int, out: Array | None, dtype: np.dtype[Any], inputs: dict[str, Array | None]
) -> int | None:
    """The number of bins that the arguments fix, if they do."""
    n_bins = None if length is None else _as_size(length, "length")
    if n_bins is not None and n_bins < least:
        raise ValueError(f"length: {n_bins} is smaller than minlength={least}")
    if out is None:
        return n_bins
    shape = (np.size(out) if n_bins is None else n_bins,)
    check_out(out, shape, dtype, inputs)
    if not out.flags.c_contiguous:
        raise ValueError("out: expected a C-contiguous array")
    if shape[0] < least:
        raise ValueError(f"out: has {shape[0]} bins, fewer than minlength={least}")
    return shape[0]


def _check_keys(keys: Array, n_bins: int | None, least: int, invalid: str, n_threads: int) -> int:
    """Look at the keys once; returns the number of bins."""
    largest, first_negative = _cpu.counts.find_range(keys, n_threads)
    if invalid == "raise" and first_negative >= 0:
        raise ValueError(
            f"x: 'x' argument must not be negative: element {first_negative} is {int(keys[first_negative])}"
        )
    if n_bins is None:
        return max(least, largest + 1)
    if invalid == "raise" and largest >= n_bins:
        first = _first_from(keys, n_bins)
        raise ValueError(f"x: element {first} is {int(keys[first])}, outside the {n_bins} bins")
    return n_bins


def _first_from(keys: Array, n_bins: int) -> int:
    """The position of the first key that is `n_bins` or more; looked for in blocks, without a copy of all keys."""
    block = 1 << 16
    for start in range(0, keys.size, block):
        outside = keys[start : start + block] >= n_bins
        if outside.any():
            return start + int(np.argmax(outside))
    raise AssertionError("no such key")


def _zeros(n_bins: int, dtype: np.dtype[Any], asker: str) -> Array:
    try:
        return np.zeros(n_bins, dtype)
    except (MemoryError, ValueError, OverflowError):
        what = "the largest key" if asker == "x" else "it"
        raise MemoryError(f"{asker}: {what} asks for {n_bins} bins, more than memory can hold") from None
