"""Scans along one axis: cumulative sums, discounted sums and gated recurrences.

Every function here is one recurrence,

    y[t] = a[t] * y[t-1] + x[t]

with a = 1, a = gamma or a = gates. Real numbers are computed in float64 and rounded once, when written. What a
block does to a state, so that a scan can be cut into pieces, is in ``upsweep.aggregates``.

Arrays and their libraries
--------------------------
The result is an array of the library that the arguments are of, on their device: lists and numpy arrays give an
ndarray, torch tensors a tensor. Arrays on two devices are refused. A number goes with any of them.

On a CUDA device work is put on the current stream of that device, whichever device is current, in memory of the
arrays' library. Nothing waits for it, and it can be captured in a CUDA graph. With numpy arrays and ``device=``
the call returns when the result is back.

dask arrays
-----------
The result is a dask array, computed when dask computes it, with the chunks of the arguments: their sizes have to
be known, and may be any. A block is looked at twice, for what it does to the state and for its result; a worker
uses one thread for it, unless ``n_threads=`` says more. Bits depend on chunks and `method`, not on who computes
them. With ``method="tree"`` states travel between blocks as products of gates and sums: where the product over a
block leaves the range of float64, the states after it are not finite, even if the plain loop's are; and with
complex gates what is infinite there may be NaN here.
There are no `out`, `window` and `device`.

torch tensors
-------------
- dtype: discounted and gated scans of integers give ``torch.get_default_dtype()``, `cumulative_sum` of them
  torch.int64. gates and tokens are promoted as torch does. ``dtype=`` is a torch.dtype.
- A 0-d tensor on the CPU goes with tensors on any device.
- Gradients reach x, gates, tokens, gamma and `initial`, from the result and from the final state, of any order
  (under the compiler: the first). Each has its argument's dtype, and is 0 where the argument is not read: a gate
  at a reset, or at the first step without `initial`. A gamma has none with ``window=``. Derivatives taken forward
  (jvp, jacfwd) raise NotImplementedError.
- ``out=`` raises ValueError where an argument requires a gradient and gradients are on. So does, with
  TypeError, an integer ``dtype=`` where x requires one.
- The compiler (``fullgraph=True``, shapes and numbers that change), ``torch.export``, ``vmap`` and torch.func's
  ``grad`` and ``jacrev`` take every scan; autocast leaves dtypes as they are. ``torch.jit.trace`` is refused.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from upsweep import _arrays, _backends
from upsweep._arrays import Array
from upsweep._arrays.dispatch import handlers
from upsweep._backends import cpu
from upsweep._core import scan as scan_problem
from upsweep._utils.integers import as_size

__all__ = [
    "cumulative_sum",
    "discounted_cumsum",
    "linear_recurrence",
]


# fmt: off
@overload
def cumulative_sum(
    x: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, dtype: DTypeLike | None = None, include_initial: bool = False,
    exclusive: bool = False, out: Array | None = None, return_final: Literal[False] = False,
    n_threads: int | None = None, device: str | None = None, method: str | None = None,
) -> Array: ...
@overload
def cumulative_sum(
    x: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, dtype: DTypeLike | None = None, include_initial: bool = False,
    exclusive: bool = False, out: Array | None = None, return_final: Literal[True],
    n_threads: int | None = None, device: str | None = None, method: str | None = None,
) -> tuple[Array, Array]: ...
# fmt: on
def cumulative_sum(
    x: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
    exclusive: bool = False,
    out: Array | None = None,
    return_final: bool = False,
    n_threads: int | None = None,
    device: str | None = None,
    method: str | None = None,
) -> Any:
    """Cumulative sum along an axis: y[t] = x[t] + y[t-1].

    Parameters
    ----------
    x : array_like
        Integers, bool, floating or complex numbers; at least one axis.
    axis : int
        The axis that the sum runs along.
    reverse : bool
        Run from the end to the start: y[t] = x[t] + y[t+1].
    initial : array_like, optional
        The state before the first step; broadcasts to x's shape without `axis`.
    reset : array_like of bool, optional
        Broadcasts with x. Where true, the state before that step is dropped.
    dtype : dtype_like, optional
        Of the result. Default: x's; integers narrower than the platform's, and bool, become the platform's
        (``np.cumsum``'s rule; of tensors, all integers become int64). Integers wrap around.
    include_initial : bool
        The result begins with the initial state (0 without `initial`) and is one step longer; in reverse it
        ends with it.
    exclusive : bool
        y[t] is the state before step t: the sum of what precedes it.
    out : array of the same library, optional
        The result goes here; may be `x` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Return also the state after the last step.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        With numpy arrays: where to compute. On CUDA they are copied there and the result back. Arrays of
        other libraries are computed where they are.
    method : {None, "sequential", "tree"}, optional
        With dask arrays: how the states before blocks are found. One after the other (the default), which keeps
        few blocks in memory; or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of x's library
        Of the shape that x and `reset` broadcast to (one longer with `include_initial`).
    final : array of x's library
        Only with `return_final`; y's shape without `axis`.

    Raises
    ------
    TypeError
        An argument is no array of numbers, `out` has another dtype than the result.
    ValueError
        Shapes do not broadcast, `axis` is out of range, `out` has another shape, is read-only or overlaps an
        input without being it; `include_initial` together with `exclusive`.

    See Also
    --------
    discounted_cumsum, cumulative_sum_carry

    Notes
    -----
    float32 is summed in float64 and rounded once; complex numbers are summed part by part. The keywords follow
    the array API standard's ``cumulative_sum`` where that has them. Other libraries' arrays, devices and
    gradients: see ``help(upsweep.scans)``.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.cumulative_sum([1, 2, 3, 4])
    array([ 1,  3,  6, 10])
    >>> upsweep.cumulative_sum([1, 2, 3, 4], reset=[False, False, True, False])
    array([1, 3, 3, 7])
    >>> upsweep.cumulative_sum([1.0, 2.0, 3.0], include_initial=True)
    array([0., 1., 3., 6.])
    """
    # fmt: off
    if (
        type(x) is np.ndarray and type(axis) is int and axis == -1 and initial is None and reset is None
        and dtype is None and out is None and not include_initial and not exclusive and not return_final
        and device is None and method is None
    ):
        # fmt: on
        y = cpu.scans.plain_sum(x, reverse, cpu.threads(n_threads))
        if y is not None:
            return y
    if _arrays.any_dask(x, initial, reset, out):
        _check_include(include_initial, exclusive)
        return _dask_scan(
            cumulative_sum, {"x": x}, method, out, device, return_final, axis=axis, reverse=reverse,
            initial=initial, reset=reset, n_threads=n_threads, dtype=dtype, include_initial=include_initial,
            exclusive=exclusive,
        )  # fmt: skip
    _refuse_method(method)
    if _arrays.any_torch(x, initial, reset, out):
        _arrays.refuse_device(device, "torch tensors")
        return handlers("torch").scan.cumulative_sum(
            x, axis=axis, reverse=reverse, initial=initial, reset=reset, dtype=dtype,
            include_initial=include_initial, exclusive=exclusive, out=out, return_final=return_final,
            n_threads=n_threads,
        )  # fmt: skip
    if _arrays.any_dlpack_only(x, initial, reset, out):
        _arrays.refuse_device(device, "arrays of other libraries")
        return _arrays.call_via_dlpack(
            cumulative_sum, {"x": x, "initial": initial, "reset": reset, "out": out}, axis=axis, reverse=reverse,
            dtype=dtype, include_initial=include_initial, exclusive=exclusive, return_final=return_final,
            n_threads=n_threads,
        )  # fmt: skip
    ordinal = _arrays.check_device(device)
    _check_include(include_initial, exclusive)
    given = _arrays.as_operand(x, "x")
    result_dtype = _cumsum_dtype(given, dtype)
    given = _for_sum(given, result_dtype)
    scan = scan_problem.normalise("x", given, None, None, result_dtype, axis=axis, reset=reset, initial=initial)
    _refuse_device(scan, device)
    if not include_initial:
        return _finish(scan, out, reverse, exclusive, False, 0, return_final, n_threads, ordinal)

    longer = scan.shape[: scan.axis] + (scan.shape[scan.axis] + 1,) + scan.shape[scan.axis + 1 :]
    inputs = {"x": given, "reset": scan.reset, "initial": scan.initial}
    if out is None:
        whole = _backends.new_result(scan, longer)
    else:
        whole = scan_problem.check_out(out, longer, result_dtype, inputs, placement=scan.placement)
    before = (slice(None),) * scan.axis
    _, final = _backends.run_scan(
        scan,
        out=whole[before + (slice(None, -1) if reverse else slice(1, None),)],
        reverse=reverse,
        exclusive=False,
        flush=False,
        return_final=return_final,
        n_threads=n_threads,
        device=ordinal,
    )
    _backends.write_state(scan, whole[before + (slice(-1, None) if reverse else slice(0, 1),)])
    result = _backends.user_array(whole) if out is None else out
    return (result, final) if return_final else result


# fmt: off
@overload
def discounted_cumsum(
    x: ArrayLike, gamma: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, window: int | None = None, exclusive: bool = False, out: Array | None = None,
    return_final: Literal[False] = False, n_threads: int | None = None, device: str | None = None,
    method: str | None = None,
) -> Array: ...
@overload
def discounted_cumsum(
    x: ArrayLike, gamma: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, window: int | None = None, exclusive: bool = False, out: Array | None = None,
    return_final: Literal[True], n_threads: int | None = None, device: str | None = None,
    method: str | None = None,
) -> tuple[Array, Array]: ...
# fmt: on
def discounted_cumsum(
    x: ArrayLike,
    gamma: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    window: int | None = None,
    exclusive: bool = False,
    out: Array | None = None,
    return_final: bool = False,
    n_threads: int | None = None,
    device: str | None = None,
    method: str | None = None,
) -> Any:
    """Discounted sum along an axis: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x : array_like
        float16, bfloat16 (ml_dtypes), float32, float64, complex64 or complex128; integers and bool become
        float64 (of tensors, torch's default dtype). At least one axis.
    gamma : float, complex or array_like
        The discount: a number, or anything that broadcasts with x: per row ``(rows, 1)``, per channel, per
        step. A Python float keeps its 64 bits.
    axis : int
        The axis that the sum runs along.
    reverse : bool
        Run from the end to the start: y[t] = x[t] + gamma * y[t+1].
    initial : array_like, optional
        The state before the first step; broadcasts to the result's shape without `axis`. Without it the first
        y is the first x.
    reset : array_like of bool, optional
        Broadcasts with x. Where true, the state before that step is dropped: an episode ends, another packed
        sequence begins.
    window : int, optional
        Sum at most this many elements, counted in scan order; `gamma` must be constant along `axis`. Computed
        without a subtraction, so that a NaN is gone after `window` steps.
    exclusive : bool
        y[t] is the state before step t.
    out : array of the same library, optional
        The result goes here; may be `x` or `gamma` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Return also the state after the last step (in reverse: at t = 0).
    n_threads : int, optional
        Default: see `get_num_threads`. The result's bits do not depend on it.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        With numpy arrays: where to compute. On CUDA they are copied there and the result back. Arrays of
        other libraries are computed where they are.
    method : {None, "sequential", "tree"}, optional
        With dask arrays: how the states before blocks are found. One after the other (the default), which keeps
        few blocks in memory; or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of x's library
        Of the shape that x, gamma and reset broadcast to; x's dtype, complex if gamma is.
    final : array of x's library
        Only with `return_final`; y's shape without `axis`, float32 for float16 and bfloat16.

    Raises
    ------
    TypeError
        An argument is no array of numbers, `out` has another dtype than the result.
    ValueError
        Shapes do not broadcast, `axis` is out of range, `out` has another shape, is read-only or overlaps an
        input without being it; `window` is below 1 or meets `initial`, `return_final`, `exclusive` or a
        gamma that varies along the axis.

    See Also
    --------
    linear_recurrence, discounted_cumsum_right, discounted_cumsum_carry

    Notes
    -----
    Real numbers are computed in float64 and rounded once, when written; numbers below the smallest normal one
    count as zero, so that a decayed tail costs no more than the rest. A real gamma multiplies the two parts of a
    complex state: an infinity in one of them leaves the other alone. One long line is cut into blocks whose
    carries are combined [1]_. Other libraries' arrays, devices and gradients: see ``help(upsweep.scans)``.

    References
    ----------
    .. [1] G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.

    Examples
    --------
    Returns of an episode, and of two episodes in one array:

    >>> import upsweep
    >>> rewards = [1.0, 0.0, 2.0, 4.0]
    >>> upsweep.discounted_cumsum(rewards, 0.5, reverse=True)
    array([2., 2., 4., 4.])
    >>> upsweep.discounted_cumsum(rewards, 0.5, reverse=True, reset=[False, True, False, False])
    array([1., 0., 4., 4.])
    """
    if (
        type(x) is np.ndarray and type(axis) is int and axis == -1 and initial is None and reset is None
        and window is None and out is None and not exclusive and not return_final and device is None
        and method is None
    ):  # fmt: skip
        y = cpu.scans.plain_constant(x, gamma, reverse, cpu.threads(n_threads))
        if y is not None:
            return y
    steps = _check_window(window, initial, exclusive, return_final)
    if _arrays.any_dask(x, gamma, initial, reset, out):
        if steps:
            raise NotImplementedError("window: of dask arrays, use dask.array.map_overlap with depth=window - 1")
        return _dask_scan(
            discounted_cumsum, {"x": x, "gamma": gamma}, method, out, device, return_final, axis=axis,
            reverse=reverse, initial=initial, reset=reset, n_threads=n_threads, exclusive=exclusive,
        )  # fmt: skip
    _refuse_method(method)
    if _arrays.any_torch(x, gamma, initial, reset, out):
        _arrays.refuse_device(device, "torch tensors")
        return handlers("torch").scan.discounted_cumsum(
            x, gamma, axis=axis, reverse=reverse, initial=initial, reset=reset, window=steps, exclusive=exclusive,
            out=out, return_final=return_final, n_threads=n_threads,
        )  # fmt: skip
    if _arrays.any_dlpack_only(x, gamma, initial, reset, out):
        _arrays.refuse_device(device, "arrays of other libraries")
        return _arrays.call_via_dlpack(
            discounted_cumsum, {"x": x, "gamma": gamma, "initial": initial, "reset": reset, "out": out}, axis=axis,
            reverse=reverse, window=window, exclusive=exclusive, return_final=return_final, n_threads=n_threads,
        )  # fmt: skip
    ordinal = _arrays.check_device(device)
    given = _arrays.as_operand(x, "x")
    factor = _arrays.as_operand(gamma, "gamma")
    dtype = _discounted_dtype(given, factor)
    scan = scan_problem.normalise("x", given, "gamma", factor, dtype, axis=axis, reset=reset, initial=initial)
    _refuse_device(scan, device)
    if steps and scan.gates is not None:
        raise ValueError(f"window: needs a gamma that is constant along the axis, got one of shape {factor.shape}")
    return _finish(scan, out, reverse, exclusive, True, steps, return_final, n_threads, ordinal)


# fmt: off
@overload
def linear_recurrence(
    gates: ArrayLike, tokens: ArrayLike, *, axis: int = -1, reverse: bool = False,
    initial: ArrayLike | None = None, reset: ArrayLike | None = None, exclusive: bool = False,
    out: Array | None = None, return_final: Literal[False] = False, n_threads: int | None = None,
    device: str | None = None, method: str | None = None,
) -> Array: ...
@overload
def linear_recurrence(
    gates: ArrayLike, tokens: ArrayLike, *, axis: int = -1, reverse: bool = False,
    initial: ArrayLike | None = None, reset: ArrayLike | None = None, exclusive: bool = False,
    out: Array | None = None, return_final: Literal[True], n_threads: int | None = None,
    device: str | None = None, method: str | None = None,
) -> tuple[Array, Array]: ...
# fmt: on
def linear_recurrence(
    gates: ArrayLike,
    tokens: ArrayLike,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    exclusive: bool = False,
    out: Array | None = None,
    return_final: bool = False,
    n_threads: int | None = None,
    device: str | None = None,
    method: str | None = None,
) -> Any:
    """Gated recurrence along an axis: y[t] = gates[t] * y[t-1] + tokens[t].

    Parameters
    ----------
    gates, tokens : array_like
        They broadcast together. float16, bfloat16 (ml_dtypes), float32, float64, complex64 or complex128;
        integers and bool become float64 (of tensors, torch's default dtype). At least one axis.
    axis : int
        The axis that the recurrence runs along, of the broadcast shape.
    reverse : bool
        Run from the end to the start: y[t] = gates[t] * y[t+1] + tokens[t].
    initial : array_like, optional
        The state before the first step; broadcasts to the result's shape without `axis`. Without it the first
        y is the first token, and the first gate is not read.
    reset : array_like of bool, optional
        Broadcasts with the others. Where true, the state before that step is dropped; a selection, not a
        multiplication by zero, so it also stops infinities and NaNs.
    exclusive : bool
        y[t] is the state before step t.
    out : array of the same library, optional
        The result goes here; may be `gates` or `tokens` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Return also the state after the last step (in reverse: at t = 0).
    n_threads : int, optional
        Default: see `get_num_threads`. The result's bits do not depend on it.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        With numpy arrays: where to compute. On CUDA they are copied there and the result back. Arrays of
        other libraries are computed where they are.
    method : {None, "sequential", "tree"}, optional
        With dask arrays: how the states before blocks are found. One after the other (the default), which keeps
        few blocks in memory; or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of the arguments' library
        Of the broadcast shape and of the result type of gates and tokens.
    final : array of the arguments' library
        Only with `return_final`; y's shape without `axis`, float32 for float16 and bfloat16.

    Raises
    ------
    TypeError
        An argument is no array of numbers, `out` has another dtype than the result.
    ValueError
        Shapes do not broadcast, `axis` is out of range, `out` has another shape, is read-only or overlaps an
        input without being it.

    See Also
    --------
    discounted_cumsum, linear_recurrence_carry

    Notes
    -----
    Real numbers are computed in float64 and rounded once, when written; numbers below the smallest normal one
    count as zero. Real gates multiply the two parts of a complex state. The parallel form is Blelloch's [1]_:
    pairs (product of gates, state from nothing) combine associatively. Where a product leaves the range of float64
    the steps are taken in order instead. Other libraries' arrays, devices and gradients: see
    ``help(upsweep.scans)``.

    References
    ----------
    .. [1] G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.linear_recurrence([0.5, 0.5, 2.0], [1.0, 1.0, 1.0])
    array([1. , 1.5, 4. ])
    >>> y, final = upsweep.linear_recurrence([0.5, 0.5], [1.0, 1.0], initial=4.0, return_final=True)
    >>> y, final
    (array([3. , 2.5]), array(2.5))
    """
    if (
        type(tokens) is np.ndarray and type(axis) is int and axis == -1 and initial is None and reset is None
        and out is None and not exclusive and not return_final and device is None and method is None
    ):  # fmt: skip
        y = cpu.scans.plain_gated(gates, tokens, reverse, cpu.threads(n_threads))
        if y is not None:
            return y
    if _arrays.any_dask(gates, tokens, initial, reset, out):
        return _dask_scan(
            linear_recurrence, {"gates": gates, "tokens": tokens}, method, out, device, return_final, axis=axis,
            reverse=reverse, initial=initial, reset=reset, n_threads=n_threads, exclusive=exclusive,
        )  # fmt: skip
    _refuse_method(method)
    if _arrays.any_torch(gates, tokens, initial, reset, out):
        _arrays.refuse_device(device, "torch tensors")
        return handlers("torch").scan.linear_recurrence(
            gates, tokens, axis=axis, reverse=reverse, initial=initial, reset=reset, exclusive=exclusive, out=out,
            return_final=return_final, n_threads=n_threads,
        )  # fmt: skip
    if _arrays.any_dlpack_only(gates, tokens, initial, reset, out):
        _arrays.refuse_device(device, "arrays of other libraries")
        return _arrays.call_via_dlpack(
            linear_recurrence,
            {"gates": gates, "tokens": tokens, "initial": initial, "reset": reset, "out": out}, axis=axis,
            reverse=reverse, exclusive=exclusive, return_final=return_final, n_threads=n_threads,
        )  # fmt: skip
    ordinal = _arrays.check_device(device)
    factor = _arrays.as_operand(gates, "gates")
    given = _arrays.as_operand(tokens, "tokens")
    dtype = _arrays.result_dtype(
        gates if isinstance(gates, (int, float, complex)) and not isinstance(gates, np.generic) else factor,
        tokens if isinstance(tokens, (int, float, complex)) and not isinstance(tokens, np.generic) else given,
    )
    scan = scan_problem.normalise("tokens", given, "gates", factor, dtype, axis=axis, reset=reset, initial=initial)
    _refuse_device(scan, device)
    return _finish(scan, out, reverse, exclusive, True, 0, return_final, n_threads, ordinal)


# ---- what the functions above share ----------------------------------------------------------------------


def _dask_scan(
    function: Any, arrays: dict[str, Any], method: str | None, out: object, device: object, return_final: bool,
    **keywords: Any,
) -> Any:  # fmt: skip
    """The scan of dask arrays, whose tasks call `function` again, on blocks."""
    _dask = handlers("dask")
    _dask.reject_options(out=out, device=device)
    return _dask.scan(function, arrays, method=method, return_final=return_final, **keywords)


def _check_include(include_initial: bool, exclusive: bool) -> None:
    if include_initial and exclusive:
        raise ValueError("include_initial: cannot be combined with exclusive, which already begins with it")


def _refuse_method(method: object) -> None:
    if method is not None:
        raise ValueError(f"method: goes with dask arrays only, got {method!r}")


def _refuse_device(scan: scan_problem.Scan, device: object) -> None:
    if scan.placement is not None:
        _arrays.refuse_device(device, f"those of type {scan.placement.library.name}")


def _finish(
    scan: scan_problem.Scan,
    out: object,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int,
    return_final: bool,
    n_threads: int | None,
    device: int | None,
) -> Any:
    target = None
    if out is not None:
        inputs = {
            scan.name: scan.x, scan.factor_name: scan.factor, "reset": scan.reset, "initial": scan.initial,
        }  # fmt: skip
        in_place = (scan.name, scan.factor_name)
        target = scan_problem.check_out(
            out, scan.shape, scan.dtype, inputs, in_place=in_place, placement=scan.placement
        )
    y, final = _backends.run_scan(
        scan,
        out=target,
        reverse=bool(reverse),
        exclusive=bool(exclusive),
        flush=flush,
        window=window,
        return_final=return_final,
        n_threads=n_threads,
        device=device,
    )
    result = y if out is None else out
    return (result, final) if return_final else result


def _check_window(window: object, initial: object, exclusive: bool, return_final: bool) -> int:
    """The number of elements, 0 for no window."""
    if window is None:
        return 0
    size = as_size(window, "window", 1)
    others = {"initial": initial is not None, "exclusive": exclusive, "return_final": return_final}
    for name, is_given in others.items():
        if is_given:
            raise ValueError(f"window: cannot be combined with {name}")
    return min(size, np.iinfo(np.int64).max)


def _discounted_dtype(x: Array, gamma: Array) -> np.dtype[Any]:
    """x's dtype: gamma never widens it, but makes it complex."""
    dtype = _arrays.inexact_dtype(x.dtype)
    return _arrays.complex_dtype(dtype) if gamma.dtype.kind == "c" else dtype


def _cumsum_dtype(x: Array, dtype: DTypeLike | None) -> np.dtype[Any]:
    """np.cumsum's rule for the dtype of a sum."""
    if dtype is not None:
        wanted = _arrays.as_dtype(dtype)
        if not (wanted.kind in "biufc" and wanted.itemsize <= 16) and not _arrays.is_bfloat16(wanted):
            raise TypeError(f"dtype: expected a numeric dtype, got {wanted}")
        return _arrays.as_array(np.empty(0, wanted), "dtype").dtype.newbyteorder("=")
    platform = np.dtype(np.intp)
    if x.dtype.kind in "bi" and x.dtype.itemsize < platform.itemsize:
        return platform
    if x.dtype.kind == "u" and x.dtype.itemsize < platform.itemsize:
        return np.dtype(np.uintp)
    return x.dtype.newbyteorder("=")


def _for_sum(x: Array, dtype: np.dtype[Any]) -> Array:
    """x as the kernels can read it for a sum of this dtype.

    The one conversion that is made beforehand is from floating to integer, or to bool, where each element is to
    be cast before it is added.
    """
    if dtype.kind in "biu" and (x.dtype.kind not in "biu" or (dtype.kind == "b" != x.dtype.kind)):
        return _arrays.cast(x, dtype, "x")
    if x.dtype.kind == "c" and dtype.kind != "c":
        return x.real
    return x
