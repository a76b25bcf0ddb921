"""Aggregates of blocks of steps, and their composition: the parts of streaming, chunked and distributed scans.

A block of steps turns the state before it into ``multiplier * state + value``, unless a reset in it drops that
state. `combine` composes the carries of two neighbouring blocks. Composition is associative, so the state before
any block follows from the carries of the blocks before it, in whatever order they were computed.

The arrays of a carry have the library and device of the block: ndarrays, torch tensors, cupy arrays. Those of
tensors are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays, _backends
from upsweep._arrays import Array, Axis
from upsweep._arrays.dispatch import dispatched, handlers
from upsweep._core import scan as scan_problem
from upsweep._core.checks import check_carry_state
from upsweep._core.scan import Scan

__all__ = ["Carry", "combine", "cumulative_sum_carry", "discounted_cumsum_carry", "linear_recurrence_carry"]


class Carry(NamedTuple):
    """The aggregate of a block of steps: what it does to the state before it.

    Attributes
    ----------
    multiplier : ndarray, torch.Tensor, cupy.ndarray, ...
        The product of all gates of the block; 0 where `reset` is set. float64, complex128, int64 or uint64, of
        the state's shape; float64 also for real gates with complex tokens.
    value : ndarray, torch.Tensor, cupy.ndarray, ...
        The state after the block without a state before it. float64, complex128, int64 or uint64, of the same
        shape.
    reset : ndarray, torch.Tensor, cupy.ndarray, ... of bool
        Whether the block drops the state before it.

    Examples
    --------
    >>> import upsweep
    >>> carry = upsweep.discounted_cumsum_carry([1.0, 1.0], 0.5)
    >>> carry.apply(4.0)
    array(2.5)
    """

    multiplier: Any
    value: Any
    reset: Any

    def apply(self, state: Any) -> Any:
        """Return the state after the block.

        Parameters
        ----------
        state : array_like or None
            The state before the block, None for no state: a number, or an array of the carry's library that
            broadcasts with the state's shape.

        Returns
        -------
        ndarray, torch.Tensor, cupy.ndarray, ...
            The state, in the carry's dtype and library.

        Raises
        ------
        TypeError
            The state is no array of numbers, belongs to another library than the carry, or has a kind that the
            carry cannot hold: complex for a real carry, floating for a carry of integers.
        ValueError
            The shapes do not broadcast together; the state is on another device.

        Examples
        --------
        >>> import upsweep
        >>> carry = upsweep.cumulative_sum_carry([1, 2, 3])
        >>> carry.apply(10)
        array(16)
        """
        if state is None:
            return self.value
        if _arrays.any_torch(self.value, state):
            return handlers("torch").aggregates.apply(*self, state)
        if _arrays.any_dlpack_only(self.value, state):
            return _arrays.call_via_dlpack(
                lambda state, **parts: Carry(**parts).apply(state), {**self._asdict(), "state": state}
            )
        parts, before = _parts(self), _arrays.as_operand(state, "state")
        placement, dtype = _arrays.common_placement({"carry": parts[1], "state": before}), parts[1].dtype
        check_carry_state(before, parts[1], _arrays.can_hold)
        if placement is not None:
            return _backends.cuda_scan.advance_on_device(parts, before, dtype)
        return _advance(self, before.astype(dtype, copy=False))


def _combine(**parts: Any) -> Carry:
    first, second = (Carry(*(parts[f"{side}_{name}"] for name in Carry._fields)) for side in ("a", "b"))
    return combine(first, second)


def _parts(carry: Carry, name: str = "carry") -> tuple[Array, Array, Array]:
    multiplier, value, reset = (_arrays.as_operand(part, name) for part in carry)
    return multiplier, value, reset


def _advance(carry: Carry, state: Array) -> Array:
    # A reset replaces the state by 0 before the product is formed: infinity times 0 would be NaN.
    state = np.where(carry.reset, 0, state).astype(_common_dtype(state, carry.value))
    with np.errstate(all="ignore"):
        return np.asarray(np.where(carry.reset, carry.value, _times(carry.multiplier, state) + carry.value))


def _common_dtype(a: Array, b: Array) -> np.dtype[Any]:
    """Return the dtype that holds both; b's for two integers, whose products wrap around in the same way."""
    return b.dtype if a.dtype.kind in "iu" and b.dtype.kind in "iu" else np.result_type(a, b)


def _times(a: Array, b: Array) -> Array:
    """Return the product, in which a real number multiplies both parts of a complex one.

    numpy makes the real number complex, and its imaginary zero turns an infinity into a NaN.
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
    """Compose the aggregates of two neighbouring blocks.

    Parameters
    ----------
    carry_a, carry_b : Carry
        The carries of the two blocks, `carry_a` of the first one in scan order. Their arrays broadcast together
        and have one library and device. Or two results of ``scan.carry``.

    Returns
    -------
    Carry
        That of both blocks, in the dtype that holds both carries.

    Raises
    ------
    TypeError
        An argument is no Carry; the carries are of two libraries.
    ValueError
        The shapes of the states do not broadcast together; the carries are on two devices.

    Examples
    --------
    >>> import upsweep
    >>> x = [1.0, 2.0, 3.0, 4.0]
    >>> a, b = (upsweep.discounted_cumsum_carry(block, 0.5) for block in (x[:1], x[1:]))
    >>> upsweep.combine(a, b).value == upsweep.discounted_cumsum(x, 0.5)[-1]
    np.True_
    """
    then = getattr(carry_a, "then", None)
    if then is not None and type(carry_a) is type(carry_b):  # carries of `scan`
        composed: Carry = then(carry_b)
        return composed
    for name, carry in (("carry_a", carry_a), ("carry_b", carry_b)):
        if not isinstance(carry, Carry):
            raise TypeError(f"{name}: expected a Carry, got {type(carry).__qualname__}")
    a_shape, b_shape = tuple(carry_a.value.shape), tuple(carry_b.value.shape)
    try:
        np.broadcast_shapes(a_shape, b_shape)
    except ValueError:
        raise ValueError(f"carry_b: states of shape {b_shape} do not broadcast with carry_a's {a_shape}") from None
    if _arrays.any_torch(carry_a.value, carry_b.value):
        return Carry(*handlers("torch").aggregates.combine(carry_a, carry_b))
    if _arrays.any_dlpack_only(carry_a.value, carry_b.value):
        named = {f"{side}_{k}": v for side, c in (("a", carry_a), ("b", carry_b)) for k, v in c._asdict().items()}
        result: Carry = _arrays.call_via_dlpack(_combine, named)
        return result
    if _arrays.any_on_device(carry_a.value, carry_b.value):
        a, b = _parts(carry_a, "carry_a"), _parts(carry_b, "carry_b")
        _arrays.common_placement({"carry_a": a[1], "carry_b": b[1]})
        dtypes = (_common_dtype(a[i], b[i]) for i in (0, 1))
        return Carry(*_backends.cuda_scan.combine_on_device(a, b, *dtypes))
    reset = carry_a.reset | carry_b.reset
    with np.errstate(all="ignore"):
        product = _times(carry_a.multiplier, carry_b.multiplier)
    multiplier = np.where(reset, np.zeros((), product.dtype), product)
    return Carry(multiplier, _advance(carry_b, carry_a.value), reset)


def cumulative_sum_carry(
    x: ArrayLike, *, axis: Axis = None, reverse: bool = False, reset: ArrayLike | None = None,
    dtype: DTypeLike | None = None, n_threads: int | None = None, device: str | None = None,
) -> Carry:  # fmt: skip
    """Return the aggregate of a block of a `cumulative_sum`, along `axis`, by default the last.

    Parameters
    ----------
    x, axis, reverse, reset, dtype, n_threads, device
        As in `cumulative_sum`.

    Returns
    -------
    Carry
        What the block does to the state before it.

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
    return Carry(*_cumulative_sum_carry(x, reset, axis, reverse, dtype, n_threads, device))


def discounted_cumsum_carry(
    x: ArrayLike, gamma: ArrayLike, *, axis: Axis = None, reverse: bool = False, reset: ArrayLike | None = None,
    n_threads: int | None = None, device: str | None = None,
) -> Carry:  # fmt: skip
    """Return the aggregate of a block of a `discounted_cumsum`, along `axis`, by default the last.

    Parameters
    ----------
    x, gamma, axis, reverse, reset, n_threads, device
        As in `discounted_cumsum`.

    Returns
    -------
    Carry
        What the block does to the state before it.

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
    return Carry(*_discounted_cumsum_carry(x, gamma, reset, axis, reverse, n_threads, device))


def linear_recurrence_carry(
    gates: ArrayLike, tokens: ArrayLike, *, axis: Axis = None, reverse: bool = False,
    reset: ArrayLike | None = None, n_threads: int | None = None, device: str | None = None,
) -> Carry:  # fmt: skip
    """Return the aggregate of a block of a `linear_recurrence`, along `axis`, by default the last.

    Parameters
    ----------
    gates, tokens, axis, reverse, reset, n_threads, device
        As in `linear_recurrence`.

    Returns
    -------
    Carry
        What the block does to the state before it.

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
    return Carry(*_linear_recurrence_carry(gates, tokens, reset, axis, reverse, n_threads, device))


# The function that makes the carry of a block, by the name of the scan.
CARRIES: dict[str, Callable[..., Carry]] = {
    "cumulative_sum": cumulative_sum_carry, "discounted_cumsum": discounted_cumsum_carry,
    "linear_recurrence": linear_recurrence_carry,
}  # fmt: skip


_Parts = tuple[Any, Any, Any]


@dispatched("x", "reset", torch="aggregates", labels_of=("x",))
def _cumulative_sum_carry(
    x: Any, reset: Any, axis: int, reverse: bool, dtype: Any, n_threads: int | None, device: str | None
) -> _Parts:
    return _reduce(scan_problem.sum_problem(x, dtype, axis, reset, None), reverse, False, n_threads, device)


@dispatched("x", "gamma", "reset", torch="aggregates", labels_of=("x",))
def _discounted_cumsum_carry(
    x: Any, gamma: Any, reset: Any, axis: int, reverse: bool, n_threads: int | None, device: str | None
) -> _Parts:
    return _reduce(scan_problem.discounted_problem(x, gamma, axis, reset, None), reverse, True, n_threads, device)


@dispatched("gates", "tokens", "reset", torch="aggregates", labels_of=("tokens", "gates"))
def _linear_recurrence_carry(
    gates: Any, tokens: Any, reset: Any, axis: int, reverse: bool, n_threads: int | None, device: str | None
) -> _Parts:
    scan = scan_problem.recurrence_problem(gates, tokens, axis, reset, None)
    return _reduce(scan, reverse, True, n_threads, device)


def _reduce(scan: Scan, reverse: bool, flush: bool, n_threads: int | None, device: str | None) -> _Parts:
    ordinal = _arrays.check_device(device)
    if scan.placement is not None:
        _arrays.refuse_device(device, f"those of type {scan.placement.library.name}")
    return _backends.reduce_scan(scan, reverse=bool(reverse), flush=flush, n_threads=n_threads, device=ordinal)
