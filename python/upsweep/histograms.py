"""Histograms with numpy's and torch's rules: ``histogram`` and ``histc``.

Checks and edges come from `_core/histogram.py`; the executors of `_backends` count elements by thresholds.
Tensors and arrays with DLPack alone are converted to operands, and the same function is called on these.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, DeviceView, Operand
from upsweep._arrays.dates import are_dates, in_utc
from upsweep._arrays.dispatch import handlers
from upsweep._arrays.libraries import PLAIN
from upsweep._core import bin_thresholds
from upsweep._core import histogram as histogram_problem
from upsweep._core.histogram import Histogram
from upsweep._core.scan import check_out

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays.static_types import A, ArrayLike, HostArray, Keywords, Labelled
else:
    from numpy.typing import ArrayLike

__all__ = ["histc", "histogram"]

DType = np.dtype[Any]


# fmt: off
@overload
def histogram(
    x: HostArray | Labelled, bins: ArrayLike | str = 10, range: tuple[Any, Any] | None = None, *,
    weights: ArrayLike | None = None, density: bool = False, **keywords: Unpack[Keywords],
) -> tuple[Array, Array]: ...
@overload
def histogram(
    x: A, bins: ArrayLike | str = 10, range: tuple[Any, Any] | None = None, *, weights: A | None = None,
    density: bool = False, **keywords: Unpack[Keywords],
) -> tuple[A, A]: ...
# fmt: on
def histogram(
    x: ArrayLike, bins: ArrayLike | str = 10, range: tuple[Any, Any] | None = None, *,
    weights: ArrayLike | None = None, density: bool = False, n_threads: int | None = None,
    device: str | None = None,
) -> Any:  # fmt: skip
    """Count all elements of an array in each bin, or sum their weights: ``np.histogram``, to the last count.

    Parameters
    ----------
    x : array_like
        Real numbers, bool, dates or durations (of numpy, Python or pandas), of any shape, strides and byte order,
        counted as if flattened. A NaN or NaT lies in no bin.
    bins : int, array_like or str
        The number of bins of equal width; or their edges, 1-D, which may not decrease; or the name of one of
        ``np.histogram_bin_edges``'s rules: 'auto', 'fd', 'doane', 'scott', 'stone', 'rice', 'sturges', 'sqrt'.
    range : (low, high), optional
        Where bins of equal width begin and end; what is outside is left out. Default: the least and the largest
        element. If they are equal, bins reach from half less to half more.
    weights : array_like, optional
        Real or complex, of x's shape: the result is their sum in each bin.
    density : bool
        Divide by the sum of the result and by the bins' widths, so that the integral is 1.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        With numpy arrays: where to compute. On CUDA they are copied there and the result back. Arrays of
        other libraries are computed where they are.

    Returns
    -------
    hist : array of x's library
        One number for each bin: intp, or of the dtype of `weights`, or float64 with `density`.
    edges : array of x's library
        One more than bins. Each bin has its lower edge and not its upper one; the last has both.

    Raises
    ------
    TypeError
        `x`, `weights` or edges that are no real numbers of at most 64 bits; `bins` neither integer nor array nor
        name; a rule with `weights`; a range of long doubles beside arrays that are not numpy's.
    ValueError
        Fewer than one bin; edges that decrease or are NaN; a range that decreases, is not finite or is too narrow
        for that many bins; without a range NaN or infinity in `x`; `weights` of another shape.

    Notes
    -----
    Bins of equal width are numpy's with their roundings: the place of an element is calculated in the dtype of
    the edges (float32 for float32 data and a range of Python's numbers) and corrected by the edges. Elements are
    never converted as a whole, and no array of x's size is made (but by the rules, which are numpy's).

    Sums of floating weights are added in float64 in fixed chunks and rounded once: the bits do not depend on the
    number of threads, and are numpy's where sums are exact. Those of integers are exact modulo 2**64; for bool
    they say whether there is any.

    There is one coordinate and no axis: `bincount` counts the bins of ``np.searchsorted`` along an axis, and
    combined keys of several coordinates. Elements outside are in the first and the last bin of edges that begin
    with -inf and end with inf. ``weights=w**2`` gives the squares of errors. docs/looked_for.md has the code.

    bool is counted as 0 and 1, with numpy's RuntimeWarning. Complex numbers, which numpy takes in some cases, are
    refused. Edges of dates are dates, or text such as "2024-03-30T12:00"; unlike numpy's, a number of bins has
    edges in whole units of x and of the range, rounded down. Where `x` has a time zone, so have `bins` and
    `range`, and the edges returned are in UTC. Series and DataArrays give arrays.

    Tensors and arrays of a device give what numpy gives for their elements, where they are: counts are int64,
    edges have numpy's dtype. Edges may be a list, or an array beside `x`, which is returned itself. On a CUDA
    device the call waits once for the data's range, or to read given edges that are there; with `range`, or edges
    in a list, it does not. The device computes the edges of bins of equal width in float32 and float64; libraries
    other than torch and cupy wait until others are sent. The named rules need elements in the host's memory. There
    are no gradients: weights that require one are refused.

    dask arrays give dask arrays, of the edges too, and take bins by their number or edges in memory. A number of
    bins without a range looks at all blocks twice: with `range` they are let go after the first time. Sizes of
    blocks may be unknown, as after indexing with a mask; weights are then indexed with the same one.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.histogram([1.0, 2.0, 1.0, 4.0], bins=3)
    (array([2, 1, 1]), array([1., 2., 3., 4.]))
    >>> upsweep.histogram([1, 2, 1, 4], bins=[1, 2, 4], weights=[0.5, 1.0, 2.0, 4.0])
    (array([2.5, 5. ]), array([1, 2, 4]))
    >>> upsweep.histogram(np.arange(8.0), 4, range=(0, 4), density=True)[0]
    array([0.2, 0.2, 0.2, 0.4])
    """
    if not {type(x), type(bins), type(weights)} <= PLAIN:
        if weights is None and device is None and n_threads is None and not density and _arrays.any_torch(x):
            uniform = handlers("torch").histogram.histogram(x, bins, range)
            if uniform is not None:
                return uniform
        settings: dict[str, Any] = {"range": range, "density": density, "n_threads": n_threads}
        if _arrays.any_labelled(x, bins, weights):
            x, bins, settings["range"] = in_utc(x=x, bins=bins, range=range).values()
            data = {**_data(x=x, weights=weights), **_data(bins=bins)}
            return histogram(**data, **settings, device=device)
        if _arrays.any_dask(x, bins, weights):
            _dask = handlers("dask")
            _dask.reject_options(device=device)
            return _dask.histogram.histogram(histogram, x, bins, weights=weights, **settings)
        result = _via_other_library(histogram, {"x": x, "bins": bins, "weights": weights}, device, settings)
        if result is not None:
            return result
    if are_dates(x):
        numbers, ends, edges = histogram_problem.dates_and_edges(x, bins, range)
        counts, _ = histogram(numbers, ends, weights=weights, n_threads=n_threads, device=device)
        return _density(counts, edges) if density else counts, edges
    ordinal = _arrays.check_device(device)
    _backends.check_threads(n_threads)
    numbers = histogram_problem.as_numbers(x)
    summands = histogram_problem.as_weights(weights, numbers)
    device_bins = _arrays.as_operand(bins, "bins") if _arrays.any_on_device(bins) else None
    placement = _arrays.common_placement({"x": numbers, "weights": summands, "bins": device_bins})
    if placement is not None:
        library = placement.library
        _arrays.refuse_device(device, f"a {library.name}")
        if not library.allocates:
            raise TypeError(f"x: upsweep does not know how to allocate a {library.name} for the result")
        if density and not library.computes:
            raise TypeError(
                f"density: a {library.name} cannot be divided; divide the counts by their sum and widths"
            )
        histogram_problem.refuse_long_double(range)
    edges_or_number: Any = bins if device_bins is None else _backends.cuda_bincount.to_host(device_bins)
    if np.ndim(edges_or_number) == 0:
        find_extremes = functools.partial(_backends.find_extremes, n_threads=n_threads)
        edges, thresholds = histogram_problem.uniform_edges(
            numbers, edges_or_number, range, summands, find_extremes, placement is None or density
        )
    else:
        edges, thresholds = histogram_problem.explicit_edges(edges_or_number, numbers.dtype.newbyteorder("="))
    n_bins = thresholds.n_bins if edges is None else max(edges.size - 1, 0)
    problem = Histogram(numbers, summands, thresholds, n_bins)
    if isinstance(numbers, DeviceView):
        return _run_on_device(problem, edges, device_bins, density)
    counted = _backends.run_histogram(problem, n_threads, ordinal)
    if summands is None:
        counted = counted.astype(np.intp, copy=False)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            counted = counted.astype(summands.dtype.newbyteorder("="), copy=False)
    return _density(counted, edges) if density else counted, edges


# fmt: off
@overload
def histc(
    x: HostArray | Labelled, bins: int = 100, min: Any = 0, max: Any = 0, *, out: Array | None = None,
    **keywords: Unpack[Keywords],
) -> Array: ...
@overload
def histc(
    x: A, bins: int = 100, min: Any = 0, max: Any = 0, *, out: A | None = None, **keywords: Unpack[Keywords],
) -> A: ...
# fmt: on
def histc(
    x: ArrayLike, bins: int = 100, min: Any = 0, max: Any = 0, *, out: Any = None,
    n_threads: int | None = None, device: str | None = None,
) -> Any:  # fmt: skip
    """Count all elements of an array in bins of equal width: ``torch.histc``, for arrays.

    Parameters
    ----------
    x : array_like
        Real numbers, of any shape, strides and byte order. NaN and what lies outside of the range is left out.
    bins : int
        The number of bins.
    min, max : number
        The range, both ends within it, in x's dtype. Where they are equal, as by default, it is from the least to
        the largest element; where these are equal too, from one less to one more, or to the next number of float32
        or float64 where that is farther.
    out : array of the same library, optional
        The result goes here: of x's dtype and `bins` elements. An error leaves it untouched.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        With numpy arrays: where to compute. On CUDA they are copied there and the result back. Arrays of
        other libraries are computed where they are.

    Returns
    -------
    array of x's library
        The counts, in x's dtype.

    Raises
    ------
    TypeError
        `x` bool or no real numbers; `bins` not an integer; `out` of another dtype.
    ValueError
        Fewer than one bin; `min` greater than `max`, not finite, or so far from it that their difference is
        not; without a range, NaN or infinity in `x`; `out` of another shape.
    OverflowError
        x's dtype cannot hold one of the counts, or its integers `min` or `max`.

    Notes
    -----
    The bin of an element is ``(x - min) * bins / (max - min)``, cut to an integer, with each operation rounded to
    x's dtype as torch does it; `max` itself is in the last bin. There is no correction by the edges, which is
    what sets it apart from `histogram`. For integers, which torch takes on CUDA only, it is exact.

    On a CUDA device the call waits once for the data's range, and not with `min` and `max`, unless x has more
    elements than its dtype can count (float16, short integers).

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.histc(np.array([1.0, 2.0, 1.0], np.float32), bins=4, min=0, max=3)
    array([0., 2., 1., 0.], dtype=float32)
    >>> upsweep.histc([1, 5, 5, 9], bins=2)
    array([1, 3])
    """
    if not {type(x), type(out)} <= PLAIN:
        if out is None and device is None and n_threads is None and _arrays.any_torch(x):
            uniform = handlers("torch").histogram.histc(x, bins, min, max)
            if uniform is not None:
                return uniform
        if _arrays.any_dask(x, out):
            raise TypeError("x: histc does not take dask arrays; histogram(x, bins, range=(min, max)) does")
        settings = {"bins": bins, "min": min, "max": max, "n_threads": n_threads}
        if _arrays.any_labelled(x, out):
            handlers("labelled").refuse_out(out)
            return histc(**_data(x=x), **settings, device=device)
        result = _via_other_library(histc, {"x": x, "out": out}, device, settings)
        if result is not None:
            return result
    ordinal = _arrays.check_device(device)
    _backends.check_threads(n_threads)
    numbers = _arrays.as_operand(x, "x")
    placement = _arrays.common_placement({"x": numbers})
    if placement is not None:
        _arrays.refuse_device(device, f"a {placement.library.name}")
    if numbers.dtype.kind in "bc":
        raise TypeError(f"x: expected integers or real floating numbers, got dtype {numbers.dtype}")
    n_bins, dtype = histogram_problem.as_count(bins), numbers.dtype.newbyteorder("=")
    target = None
    if out is not None:
        target = check_out(out, (n_bins,), dtype, {"x": numbers}, placement=placement)
    find_extremes = functools.partial(_backends.find_extremes, n_threads=n_threads)
    low, high = histogram_problem.histc_range(numbers, min, max, find_extremes)
    if placement is not None and dtype in (np.float32, np.float64):
        thresholds: Any = bin_thresholds.UniformBins(float(low), float(high), n_bins)
    else:
        thresholds = bin_thresholds.linear_thresholds(low, high, n_bins, dtype, _backends.fill_linear_thresholds)
    problem = Histogram(numbers, None, thresholds, n_bins)
    may_overflow = numbers.size > _largest(dtype)
    if isinstance(numbers, DeviceView):
        if may_overflow:
            counts, _ = _backends.cuda_bincount.run_histogram(problem, np.dtype(np.int64))
            _check_held(_backends.cuda_bincount.to_host(counts), dtype)
        return _arrays.user_array(_backends.cuda_bincount.run_histogram(problem, dtype, target)[0])
    counted = _backends.run_histogram(problem, n_threads, ordinal)
    if may_overflow:
        _check_held(counted, dtype)
    if out is None:
        return counted.astype(dtype)
    out[...] = counted.astype(dtype)
    return out


def _data(**named: Any) -> dict[str, Any]:
    """Return the arguments without labels."""
    if not _arrays.any_labelled(*named.values()):
        return named
    data: dict[str, Any] = handlers("labelled").without_labels(named, {}, None, dates=True).arrays
    return data


def _density(counted: Array, edges: Array) -> Array:
    density: Array = counted / np.array(np.diff(edges), float) / counted.sum()
    return density


def _via_other_library(function: Any, arrays: dict[str, Any], device: Any, settings: dict[str, Any]) -> Any:
    """Return the function's result for tensors, or arrays that only DLPack describes; None for other arguments."""
    if _arrays.any_torch(*arrays.values()):
        _arrays.refuse_device(device, "torch tensors")
        call = handlers("torch").via_numpy.call_via_numpy
    elif _arrays.any_dlpack_only(*arrays.values()):
        _arrays.refuse_device(device, "arrays of other libraries")
        call = _arrays.call_via_dlpack
        if not _arrays.any_dlpack_only(arrays.get("bins")):  # a number, a list or a name
            settings = {**settings, **{name: arrays.pop(name) for name in ("bins",) if name in arrays}}
    else:
        return None
    histogram_problem.refuse_long_double(settings.get("range"))
    return call(function, arrays, **settings)


def _run_on_device(
    problem: Histogram, edges: Array | None, device_bins: Operand, density: bool
) -> tuple[Any, Any]:  # fmt: skip
    """Return the result and the edges: the user's own array, a copy on the device, or those made there."""
    dtype = np.dtype(np.int64) if problem.weights is None else problem.weights.dtype
    result, device_edges = _backends.cuda_bincount.run_histogram(problem, dtype)
    counts = _arrays.user_array(result)
    if edges is None:
        return counts, _arrays.user_array(device_edges)
    if density:
        widths = _arrays.copy_to_device_of(problem.x, np.array(np.diff(edges), float))
        counts = counts / _arrays.user_array(widths) / counts.sum()
    ends = _arrays.copy_to_device_of(problem.x, edges) if device_bins is None else device_bins
    return counts, _arrays.user_array(ends)


def _largest(dtype: DType) -> float:
    """Return the largest number of the dtype; infinity where no count exceeds it."""
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 65504 if dtype == np.float16 else np.inf


def _check_held(counts: Array, dtype: DType) -> None:
    """Raise OverflowError if x's dtype cannot hold one of the counts."""
    most = int(counts.max())
    if most > _largest(dtype):
        raise OverflowError(
            f"x: its dtype {dtype} cannot hold the count {most} of bin {int(counts.argmax())}; convert x first"
        )
