"""Scans along one axis: cumulative sums, discounted sums and gated recurrences.

Every function here computes one recurrence,

    y[t] = a[t] * y[t-1] + x[t]

with a = 1, a = gamma or a = gates. Real numbers are computed in float64 and rounded once, when they are written.
``upsweep.aggregates`` has the aggregates of blocks, with which a scan can be cut into pieces.

Array libraries
---------------
The result is an array of the arguments' library, on their device: lists and numpy arrays give an ndarray, torch
tensors a tensor. Arrays on two devices are refused. A number goes with arrays of every library.

On a CUDA device the work runs on the current stream of that device, whichever device is current, in memory that
the arrays' library allocates. The call does not wait for it, and a CUDA graph can capture it. With numpy arrays
and ``device=`` the call returns when the result is back.

dask arrays
-----------
The result is a lazy dask array with the chunks of the arguments. Chunks may have any sizes, which have to be
known. Each block is read twice, for its aggregate and for its result; a worker uses one thread for it, unless
``n_threads=`` says more. Bits depend on chunks and `method`, not on the scheduler. With ``method="tree"`` the
states before blocks are computed from products of gates and sums: where the product over a block leaves the
range of float64, the states after it are not finite, even if those of the sequential loop are; and with complex
gates infinite states may become NaN. `out`, `window` and `device` are refused.

Labelled arrays
---------------
pandas Series and DataFrames, xarray DataArrays (also of dask arrays) and polars Series give the same type, with
index, columns, names, coordinates and attributes; so do `scan`, `lfilter`, `ewm_mean` and `ewm_sum`.

- A DataFrame runs down its rows, unless ``axis=1``; `axis` of a DataArray is the name of a dimension.
- Operands that are labelled need equal labels, since none are matched. A Series beside a DataFrame goes with its
  rows or its columns, by its index; DataArrays broadcast by the names of dimensions.
- The final state of a DataFrame is a Series of its columns, of a DataArray one without the dimension, of a Series
  a number. As `initial` it fits again. Carries, counts and histograms are arrays.
- Nullable and Arrow dtypes stay. Missing values (pandas.NA, null) are refused, but by `ewm_mean` and `ewm_sum`;
  NaN is a number. Columns of several dtypes are converted to a common one, and refused where this may round
  integers: those of a `cumulative_sum`, and for all functions those beyond 2**53.
- ``out=`` is refused, and ``include_initial=`` where there is an index: pass ``x.to_numpy()``.

torch tensors
-------------
- dtype: discounted and gated scans of integers give ``torch.get_default_dtype()``, `cumulative_sum` of them
  torch.int64. gates and tokens are promoted as torch does. ``dtype=`` is a torch.dtype.
- A 0-d tensor on the CPU goes with tensors on any device.
- Gradients reach x, gates, tokens, gamma and `initial`, from the result and from the final state, of any order
  (under the compiler: the first). Each has the dtype of its argument, and is 0 where the scan does not read the
  argument: a gate at a reset, or at the first step without `initial`. Forward derivatives (jvp, jacfwd) raise
  NotImplementedError.
- ``out=`` raises ValueError where an argument requires a gradient and gradients are on. An integer ``dtype=``
  raises TypeError where x requires one.
- torch.compile (``fullgraph=True``, dynamic shapes and numbers), ``torch.export``, ``vmap`` and torch.func's
  ``grad`` and ``jacrev`` take every scan; autocast leaves dtypes as they are. ``torch.jit.trace`` is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import DTypeLike

from upsweep import _arrays, _backends
from upsweep._arrays import Array, Axis
from upsweep._arrays.dispatch import dispatched, plain_scans
from upsweep._backends import cpu
from upsweep._core import scan as scan_problem
from upsweep._core.checks import check_window
from upsweep._core.scan import Scan

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays.static_types import (
        A,
        ArrayLike,
        DiscountedKeywords,
        HostArray,
        Number,
        ScanKeywords,
        SumKeywords,
    )
else:
    from numpy.typing import ArrayLike

__all__ = ["cumulative_sum", "discounted_cumsum", "linear_recurrence"]


# fmt: off
@overload
def cumulative_sum(
    x: HostArray, *, out: Array | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[SumKeywords],
) -> Array: ...
@overload
def cumulative_sum(
    x: HostArray, *, out: Array | None = None, return_final: Literal[True],
    **keywords: Unpack[SumKeywords],
) -> tuple[Array, Array]: ...
@overload
def cumulative_sum(
    x: A, *, out: A | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[SumKeywords],
) -> A: ...
@overload
def cumulative_sum(
    x: A, *, out: A | None = None, return_final: Literal[True],
    **keywords: Unpack[SumKeywords],
) -> tuple[A, A]: ...
@overload
def cumulative_sum(
    x: ArrayLike, *, out: Any = None, return_final: bool = False, **keywords: Unpack[SumKeywords],
) -> Any: ...
# fmt: on
def cumulative_sum(
    x: ArrayLike, *, axis: Axis = None, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, dtype: DTypeLike | None = None, include_initial: bool = False,
    exclusive: bool = False, out: Any = None, return_final: bool = False, n_threads: int | None = None,
    device: str | None = None, method: str | None = None,
) -> Any:  # fmt: skip
    """Cumulative sum along `axis`, by default the last: y[t] = x[t] + y[t-1].

    Parameters
    ----------
    x : array_like
        Integers, bool, floating or complex numbers; at least one axis.
    axis : int or str, optional
        The axis that the sum runs along. Default: the last; of a DataFrame 0, down its rows. Of a DataArray the
        name of a dimension, needed if there are several.
    reverse : bool
        Run from the end to the start: y[t] = x[t] + y[t+1].
    initial : array_like, optional
        The state before the first step; broadcasts to x's shape without `axis`.
    reset : array_like of bool, optional
        Broadcasts with x. Where true, the state before that step is dropped.
    dtype : dtype_like, optional
        The dtype of the result. Default: that of x; bool and integers narrower than the platform's become the
        platform's (``np.cumsum``'s rule; of tensors, all integers become int64). Integers wrap around.
    include_initial : bool
        Whether the result begins with the initial state (0 without `initial`), which makes it one step longer; in
        reverse it ends with that state.
    exclusive : bool
        Whether y[t] is the state before step t: the sum of the elements that precede it.
    out : array of the same library, optional
        The result is written to it; may be `x` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Whether to return the state after the last step too.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        The device that computes the scan of numpy arrays, which are copied to it, and the result back. Arrays of
        other libraries are computed on their own device.
    method : {None, "sequential", "tree"}, optional
        How the states before the blocks of dask arrays are computed: one after the other (the default), which
        keeps few blocks in memory, or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of x's library
        It has the shape that x and `reset` broadcast to (one step longer with `include_initial`).
    final : array of x's library
        Only with `return_final`; y's shape without `axis`.

    Raises
    ------
    TypeError
        An argument is no array of numbers; `out` has another dtype than the result.
    ValueError
        Shapes do not broadcast, `axis` is out of range, `out` has another shape, is read-only or overlaps an
        input without being it; `include_initial` together with `exclusive`.

    See Also
    --------
    discounted_cumsum, cumulative_sum_carry

    Notes
    -----
    float32 is summed in float64 and rounded once; complex numbers are summed part by part. The keywords that the
    array API standard's ``cumulative_sum`` has, mean the same. ``help(upsweep.scans)`` describes arrays of other
    libraries, devices and gradients.

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
    if (
        type(x) is np.ndarray and initial is None and reset is None and dtype is None and not include_initial
        and not exclusive and not return_final and device is None and method is None
    ):  # fmt: skip
        y = cpu.scans.plain_sum(x, -1 if axis is None else axis, out, reverse, cpu.threads(n_threads))
        if y is not None:
            return y
    plain = plain_scans.get(type(x))
    if (
        plain is not None and reset is None and dtype is None and not include_initial and device is None
        and method is None
    ):  # fmt: skip
        y = plain(x, None, 1.0, axis, reverse, False, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return y
    if include_initial and exclusive:
        raise ValueError("include_initial: cannot be combined with exclusive, which already begins with it")
    return _cumulative_sum(
        x, initial, reset, out, axis, reverse, dtype, include_initial, exclusive, return_final, n_threads, device,
        method,
    )  # fmt: skip


# fmt: off
@overload
def discounted_cumsum(
    x: HostArray, gamma: HostArray, *, out: Array | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[DiscountedKeywords],
) -> Array: ...
@overload
def discounted_cumsum(
    x: HostArray, gamma: HostArray, *, out: Array | None = None, return_final: Literal[True],
    **keywords: Unpack[DiscountedKeywords],
) -> tuple[Array, Array]: ...
@overload
def discounted_cumsum(
    x: A, gamma: ArrayLike, *, out: A | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[DiscountedKeywords],
) -> A: ...
@overload
def discounted_cumsum(
    x: A, gamma: ArrayLike, *, out: A | None = None, return_final: Literal[True],
    **keywords: Unpack[DiscountedKeywords],
) -> tuple[A, A]: ...
@overload
def discounted_cumsum(
    x: ArrayLike, gamma: ArrayLike, *, out: Any = None, return_final: bool = False,
    **keywords: Unpack[DiscountedKeywords],
) -> Any: ...
# fmt: on
def discounted_cumsum(
    x: ArrayLike, gamma: ArrayLike, *, axis: Axis = None, reverse: bool = False, initial: ArrayLike | None = None,
    reset: ArrayLike | None = None, window: int | None = None, exclusive: bool = False, out: Any = None,
    return_final: bool = False, n_threads: int | None = None, device: str | None = None, method: str | None = None,
) -> Any:  # fmt: skip
    """Discounted sum along `axis`, by default the last: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x : array_like
        float16, bfloat16 (ml_dtypes), float32, float64, complex64 or complex128; integers and bool become
        float64 (of tensors, torch's default dtype). At least one axis.
    gamma : float, complex or array_like
        The discount: a number, or an array that broadcasts with x: per row ``(rows, 1)``, per channel or per
        step. A Python float is used with its 64 bits.
    axis : int or str, optional
        The axis that the sum runs along, counted in the broadcast shape: beside gammas of shape (K, 1, 1), the
        first axis of a 2-D x is 1, or -2. Default: the last; of a DataFrame 0, down its rows. Of a DataArray the
        name of a dimension, needed if there are several.
    reverse : bool
        Run from the end to the start: y[t] = x[t] + gamma * y[t+1].
    initial : array_like, optional
        The state before the first step; broadcasts to the result's shape without `axis`. Without it the first
        y is the first x.
    reset : array_like of bool, optional
        Broadcasts with x. Where true, the state before that step is dropped: an episode ends, another packed
        sequence begins.
    window : int, optional
        The number of elements that a sum has at most, in scan order; `gamma` must be constant along `axis`. The
        sums are computed without a subtraction, so a NaN leaves them after `window` steps.
    exclusive : bool
        Whether y[t] is the state before step t.
    out : array of the same library, optional
        The result is written to it; may be `x` or `gamma` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Whether to return the state after the last step too (in reverse: at t = 0).
    n_threads : int, optional
        Default: see `get_num_threads`. The bits of the result do not depend on it.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        The device that computes the scan of numpy arrays, which are copied to it, and the result back. Arrays of
        other libraries are computed on their own device.
    method : {None, "sequential", "tree"}, optional
        How the states before the blocks of dask arrays are computed: one after the other (the default), which
        keeps few blocks in memory, or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of x's library
        It has the shape that x, gamma and reset broadcast to, and x's dtype, complex if gamma is.
    final : array of x's library
        Only with `return_final`; y's shape without `axis`, float32 for float16 and bfloat16.

    Raises
    ------
    TypeError
        An argument is no array of numbers; `out` has another dtype than the result.
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
    count as zero, so that a decayed tail is as fast as the rest. A real gamma multiplies the two parts of a
    complex state, so an infinity in one of them does not change the other. One long line is cut into blocks
    whose carries are combined [1]_. ``help(upsweep.scans)`` describes arrays of other libraries, devices and
    gradients.

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
        type(x) is np.ndarray and initial is None and reset is None and window is None and not exclusive
        and not return_final and device is None and method is None
    ):  # fmt: skip
        y = cpu.scans.plain_constant(x, gamma, -1 if axis is None else axis, out, reverse, cpu.threads(n_threads))
        if y is not None:
            return y
    plain = plain_scans.get(type(x))
    if (
        plain is not None and reset is None and window is None and type(gamma) is float and device is None
        and method is None
    ):  # fmt: skip
        y = plain(x, None, gamma, axis, reverse, True, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return y
    window = check_window(window, initial, exclusive, return_final)
    return _discounted_cumsum(
        x, gamma, initial, reset, out, axis, reverse, window, exclusive, return_final, n_threads, device, method
    )


# fmt: off
@overload
def linear_recurrence(
    gates: HostArray, tokens: HostArray, *, out: Array | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[ScanKeywords],
) -> Array: ...
@overload
def linear_recurrence(
    gates: HostArray, tokens: HostArray, *, out: Array | None = None, return_final: Literal[True],
    **keywords: Unpack[ScanKeywords],
) -> tuple[Array, Array]: ...
@overload
def linear_recurrence(
    gates: A | Number, tokens: A | Number, *, out: A | None = None, return_final: Literal[False] = False,
    **keywords: Unpack[ScanKeywords],
) -> A: ...
@overload
def linear_recurrence(
    gates: A | Number, tokens: A | Number, *, out: A | None = None, return_final: Literal[True],
    **keywords: Unpack[ScanKeywords],
) -> tuple[A, A]: ...
@overload
def linear_recurrence(
    gates: ArrayLike, tokens: ArrayLike, *, out: Any = None, return_final: bool = False,
    **keywords: Unpack[ScanKeywords],
) -> Any: ...
# fmt: on
def linear_recurrence(
    gates: ArrayLike, tokens: ArrayLike, *, axis: Axis = None, reverse: bool = False,
    initial: ArrayLike | None = None, reset: ArrayLike | None = None, exclusive: bool = False,
    out: Any = None, return_final: bool = False, n_threads: int | None = None, device: str | None = None,
    method: str | None = None,
) -> Any:  # fmt: skip
    """Gated recurrence along `axis`, by default the last: y[t] = gates[t] * y[t-1] + tokens[t].

    Parameters
    ----------
    gates, tokens : array_like
        The factors and summands, which broadcast together. float16, bfloat16 (ml_dtypes), float32, float64,
        complex64 or complex128; integers and bool become float64 (of tensors, torch's default dtype). At least
        one axis.
    axis : int or str, optional
        The axis that the recurrence runs along, of the broadcast shape. Default: the last; of a DataFrame 0, down
        its rows. Of a DataArray the name of a dimension, needed if there are several.
    reverse : bool
        Run from the end to the start: y[t] = gates[t] * y[t+1] + tokens[t].
    initial : array_like, optional
        The state before the first step; broadcasts to the result's shape without `axis`. Without it the first
        y is the first token, and the first gate is not read.
    reset : array_like of bool, optional
        Broadcasts with the others. Where true, the state before that step is dropped. The state is replaced, not
        multiplied by zero, so a reset also stops infinities and NaNs.
    exclusive : bool
        Whether y[t] is the state before step t.
    out : array of the same library, optional
        The result is written to it; may be `gates` or `tokens` itself. Undefined after a KeyboardInterrupt.
    return_final : bool
        Whether to return the state after the last step too (in reverse: at t = 0).
    n_threads : int, optional
        Default: see `get_num_threads`. The bits of the result do not depend on it.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        The device that computes the scan of numpy arrays, which are copied to it, and the result back. Arrays of
        other libraries are computed on their own device.
    method : {None, "sequential", "tree"}, optional
        How the states before the blocks of dask arrays are computed: one after the other (the default), which
        keeps few blocks in memory, or in two passes over a tree, for many workers that hold all blocks.

    Returns
    -------
    y : array of the arguments' library
        It has the broadcast shape and the result type of gates and tokens.
    final : array of the arguments' library
        Only with `return_final`; y's shape without `axis`, float32 for float16 and bfloat16.

    Raises
    ------
    TypeError
        An argument is no array of numbers; `out` has another dtype than the result.
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
    pairs (product of gates, state after a zero state) combine associatively. Where a product leaves the range of
    float64, the steps run sequentially instead. ``help(upsweep.scans)`` describes arrays of other libraries,
    devices and gradients.

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
        type(tokens) is np.ndarray and initial is None and reset is None and not exclusive and not return_final
        and device is None and method is None
    ):  # fmt: skip
        y = cpu.scans.plain_gated(
            gates, tokens, -1 if axis is None else axis, out, reverse, cpu.threads(n_threads)
        )
        if y is not None:
            return y
    plain = plain_scans.get(type(tokens))
    if (
        plain is not None and gates is not None and reset is None and device is None and method is None
    ):  # fmt: skip
        y = plain(tokens, gates, 0.0, axis, reverse, True, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return y
    return _linear_recurrence(
        gates, tokens, initial, reset, out, axis, reverse, exclusive, return_final, n_threads, device, method
    )


@dispatched("x", "initial", "reset", "out", torch="scan", dask="scan", not_with_dask=("out",), labels_of=("x",))
def _cumulative_sum(
    x: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, dtype: Any, include_initial: bool,
    exclusive: bool, return_final: bool, n_threads: int | None, device: str | None,
) -> Any:  # fmt: skip
    ordinal = _arrays.check_device(device)
    scan = scan_problem.sum_problem(x, dtype, axis, reset, initial)
    return _run(scan, out, reverse, exclusive, False, return_final, n_threads, device, ordinal, 0, include_initial)


@dispatched(
    "x", "gamma", "initial", "reset", "out", torch="scan", dask="scan", not_with_dask=("out",), labels_of=("x",)
)
def _discounted_cumsum(
    x: Any, gamma: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, window: int | None,
    exclusive: bool, return_final: bool, n_threads: int | None, device: str | None,
) -> Any:  # fmt: skip
    ordinal = _arrays.check_device(device)
    scan = scan_problem.discounted_problem(x, gamma, axis, reset, initial, window)
    return _run(scan, out, reverse, exclusive, True, return_final, n_threads, device, ordinal, window or 0)


@dispatched(
    "gates",
    "tokens",
    "initial",
    "reset",
    "out",
    torch="scan",
    dask="scan",
    not_with_dask=("out",),
    labels_of=("tokens", "gates"),
)
def _linear_recurrence(
    gates: Any, tokens: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, exclusive: bool,
    return_final: bool, n_threads: int | None, device: str | None,
) -> Any:  # fmt: skip
    ordinal = _arrays.check_device(device)
    scan = scan_problem.recurrence_problem(gates, tokens, axis, reset, initial)
    return _run(scan, out, reverse, exclusive, True, return_final, n_threads, device, ordinal)


def _run(
    scan: Scan, out: Any, reverse: bool, exclusive: bool, flush: bool, return_final: bool, n_threads: int | None,
    device: str | None, ordinal: int | None, window: int = 0, include_initial: bool = False,
) -> Any:  # fmt: skip
    if scan.placement is not None:
        _arrays.refuse_device(device, f"those of type {scan.placement.library.name}")
    axis, shape = scan.axis, scan.shape
    if include_initial:
        shape = (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])
    target = None
    if out is not None:
        in_place = () if include_initial else (scan.name, scan.factor_name)
        target = scan_problem.check_out(out, shape, scan.dtype, scan.inputs, in_place, scan.placement)
    after = target  # the part of the result for the states after each step
    if include_initial:
        target = _backends.cuda_scan.new_result(scan, shape) if target is None else target
        before = (slice(None),) * axis
        after = target[(*before, slice(None, -1) if reverse else slice(1, None))]
        first = target[(*before, slice(-1, None) if reverse else slice(0, 1))]
    y, final = _backends.run_scan(
        scan, out=after, reverse=bool(reverse), exclusive=bool(exclusive), flush=flush, window=window,
        return_final=return_final, n_threads=n_threads, device=ordinal,
    )  # fmt: skip
    if include_initial:
        _backends.cuda_scan.write_state(scan, first)
        y = _arrays.user_array(target)
    result = y if out is None else out
    return (result, final) if return_final else result
