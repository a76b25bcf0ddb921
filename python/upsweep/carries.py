"""What a block does to a state: the pieces from which streaming, chunked and distributed scans are built.

A block of steps turns the state before it into ``multiplier * state + value``, unless a reset in it drops that
state. Two neighbouring blocks do together what `combine` says, so the state before any block follows from the
carries of the blocks before it, in whatever order those were found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays, _dispatch, _signature, scans
from upsweep._arrays import Array

__all__ = ["Carry", "combine", "cumulative_sum_carry", "discounted_cumsum_carry", "linear_recurrence_carry"]


class Carry(NamedTuple):
    """What a block does to the state before it.

    Attributes
    ----------
    multiplier : ndarray
        The product of the block's gates, the first one included; 0 where `reset`. float64, complex128, int64
        or uint64, of the state's shape; float64 also where real gates meet complex tokens.
    value : ndarray
        The state after the block when there is none before it. float64, complex128, int64 or uint64, of the
        same shape.
    reset : ndarray of bool
        Whether the block drops the state before it.

    Examples
    --------
    >>> import upsweep
    >>> carry = upsweep.discounted_cumsum_carry([1.0, 1.0], 0.5)
    >>> carry.apply(4.0)
    array(2.5)
    """

    multiplier: Array
    value: Array
    reset: Array

    def apply(self, state: ArrayLike | None) -> Array:
        """Return the state after the block, given the one before it, or None for none.

        Parameters
        ----------
        state : array_like or None
            Broadcasts with the state's shape.

        Returns
        -------
        ndarray
            In the carry's dtype.

        Raises
        ------
        TypeError
            No array of numbers, or of a kind that the carry cannot hold, as of a scan's `initial`: complex for
            a real carry, floating for one of integers.
        ValueError
            The shapes do not broadcast together.
        """
        if state is None:
            return self.value
        given, dtype = _arrays.as_array(state, "state"), self.value.dtype
        if not _arrays.can_hold(dtype, given.dtype):
            raise TypeError(f"state: {given.dtype} cannot be held by a carry of dtype {dtype}")
        try:
            np.broadcast_shapes(given.shape, self.value.shape)
        except ValueError:
            raise ValueError(
                f"state: shape {given.shape} does not broadcast with the carry's {self.value.shape}"
            ) from None
        return _advance(self, given.astype(dtype, copy=False))


def _advance(carry: Carry, state: Array) -> Array:
    # The product is not formed where it is dropped: an infinity before a reset is gone, not NaN.
    kept = np.where(carry.reset, 0, state).astype(_common_dtype(state, carry.value))
    with np.errstate(all="ignore"):
        return np.asarray(np.where(carry.reset, carry.value, _times(carry.multiplier, kept) + carry.value))


def _common_dtype(a: Array, b: Array) -> np.dtype[Any]:
    """The dtype of both; of two integers, which wrap around alike, b's."""
    return b.dtype if a.dtype.kind in "iu" and b.dtype.kind in "iu" else np.result_type(a, b)


def _times(a: Array, b: Array) -> Array:
    """Their product, where a real number multiplies both parts of a complex one.

    numpy would make it complex, and its imaginary zero turns an infinity into a NaN.
    """
    if a.dtype.kind == "c":
        a, b = b, a
    dtype = _common_dtype(a, b)
    if dtype.kind != "c" or a.dtype.kind == "c":
        return np.asarray(a.astype(dtype, copy=False) * b)
    product = np.empty(np.broadcast_shapes(a.shape, b.shape), dtype)
    product.real, product.imag = a * b.real, a * b.imag
    return product


def combine(carry_a: Carry, carry_b: Carry) -> Carry:
    """What two neighbouring blocks do together; `carry_a` is the first in scan order.

    Parameters
    ----------
    carry_a, carry_b : Carry
        Their arrays broadcast together.

    Returns
    -------
    Carry
        In the dtype that holds both.

    Raises
    ------
    TypeError
        An argument is no Carry.
    ValueError
        The shapes of the states do not broadcast together.

    Examples
    --------
    >>> import upsweep
    >>> x = [1.0, 2.0, 3.0, 4.0]
    >>> a, b = (upsweep.discounted_cumsum_carry(block, 0.5) for block in (x[:1], x[1:]))
    >>> upsweep.combine(a, b).value == upsweep.discounted_cumsum(x, 0.5)[-1]
    np.True_
    """
    for name, carry in (("carry_a", carry_a), ("carry_b", carry_b)):
        if not isinstance(carry, Carry):
            raise TypeError(f"{name}: expected a Carry, got {type(carry).__qualname__}")
    try:
        np.broadcast_shapes(carry_a.value.shape, carry_b.value.shape)
    except ValueError:
        raise ValueError(
            f"carry_b: states of shape {carry_b.value.shape} do not broadcast with carry_a's {carry_a.value.shape}"
        ) from None
    reset = carry_a.reset | carry_b.reset
    with np.errstate(all="ignore"):
        product = _times(carry_a.multiplier, carry_b.multiplier)
    multiplier = np.where(reset, np.zeros((), product.dtype), product)
    return Carry(multiplier, _advance(carry_b, carry_a.value), reset)


def cumulative_sum_carry(
    x: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    reset: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    n_threads: int | None = None,
) -> Carry:
    """What a block of a `cumulative_sum` does to the state before it.

    Parameters
    ----------
    x, axis, reverse, reset, dtype, n_threads
        As in `cumulative_sum`.

    Returns
    -------
    Carry

    Raises
    ------
    TypeError, ValueError
        As `cumulative_sum`.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.cumulative_sum_carry([1, 2, 3]).value
    array(6)
    """
    given = _arrays.as_array(x, "x")
    result_dtype = scans._cumsum_dtype(given, dtype)
    given = scans._for_sum(given, result_dtype)
    scan = _signature.normalise("x", given, None, None, result_dtype, axis=axis, reset=reset, initial=None)
    return Carry(*_dispatch.reduce_scan(scan, reverse=bool(reverse), flush=False, n_threads=n_threads))


def discounted_cumsum_carry(
    x: ArrayLike,
    gamma: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    reset: ArrayLike | None = None,
    n_threads: int | None = None,
) -> Carry:
    """What a block of a `discounted_cumsum` does to the state before it.

    Parameters
    ----------
    x, gamma, axis, reverse, reset, n_threads
        As in `discounted_cumsum`.

    Returns
    -------
    Carry

    Raises
    ------
    TypeError, ValueError
        As `discounted_cumsum`.

    Examples
    --------
    >>> import upsweep
    >>> carry = upsweep.discounted_cumsum_carry([1.0, 2.0], 0.5)
    >>> carry.multiplier, carry.value
    (array(0.25), array(2.5))
    """
    given, factor = _arrays.as_array(x, "x"), _arrays.as_array(gamma, "gamma")
    dtype = scans._discounted_dtype(given, factor)
    return _reduce("x", given, "gamma", factor, dtype, axis, reverse, reset, n_threads)


def linear_recurrence_carry(
    gates: ArrayLike,
    tokens: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    reset: ArrayLike | None = None,
    n_threads: int | None = None,
) -> Carry:
    """What a block of a `linear_recurrence` does to the state before it.

    Parameters
    ----------
    gates, tokens, axis, reverse, reset, n_threads
        As in `linear_recurrence`.

    Returns
    -------
    Carry

    Raises
    ------
    TypeError, ValueError
        As `linear_recurrence`.

    Examples
    --------
    >>> import upsweep
    >>> carry = upsweep.linear_recurrence_carry([0.5, 2.0], [1.0, 1.0])
    >>> carry.multiplier, carry.value
    (array(1.), array(3.))
    """
    factor, given = _arrays.as_array(gates, "gates"), _arrays.as_array(tokens, "tokens")
    dtype = _arrays.result_dtype(factor, given)
    return _reduce("tokens", given, "gates", factor, dtype, axis, reverse, reset, n_threads)


def _reduce(
    name: str,
    x: Array,
    factor_name: str,
    factor: Array,
    dtype: np.dtype[Any],
    axis: int,
    reverse: bool,
    reset: ArrayLike | None,
    n_threads: int | None,
) -> Carry:
    scan = _signature.normalise(name, x, factor_name, factor, dtype, axis=axis, reset=reset, initial=None)
    return Carry(*_dispatch.reduce_scan(scan, reverse=bool(reverse), flush=True, n_threads=n_threads))
