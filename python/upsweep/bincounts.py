"""Counts of integer keys, and sums of weights by key, for arrays of numpy, torch, cupy and other libraries.

One function reads every layout: keys and weights are not copied, and the kernels see the counted axis last
(``upsweep._core.bincount.Count``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import DTypeLike

from upsweep import _arrays, _backends
from upsweep._arrays import Array, Axis
from upsweep._arrays.dispatch import dispatched, plain_counts
from upsweep._backends import cpu
from upsweep._core import bincount as bincount_problem

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays.static_types import A, ArrayLike, CountKeywords, HostArray, Labelled
else:
    from numpy.typing import ArrayLike

__all__ = ["bincount"]


# fmt: off
@overload
def bincount(
    x: HostArray | Labelled, weights: ArrayLike | None = None, minlength: int = 0, *, out: Array | None = None,
    return_invalid: Literal[False] = False, **keywords: Unpack[CountKeywords],
) -> Array: ...
@overload
def bincount(
    x: HostArray | Labelled, weights: ArrayLike | None = None, minlength: int = 0, *, out: Array | None = None,
    return_invalid: Literal[True], **keywords: Unpack[CountKeywords],
) -> tuple[Array, np.int64]: ...
@overload
def bincount(
    x: A, weights: A | None = None, minlength: int = 0, *, out: A | None = None,
    return_invalid: Literal[False] = False, **keywords: Unpack[CountKeywords],
) -> A: ...
@overload
def bincount(
    x: A, weights: A | None = None, minlength: int = 0, *, out: A | None = None,
    return_invalid: Literal[True], **keywords: Unpack[CountKeywords],
) -> tuple[A, A]: ...
@overload
def bincount(
    x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, out: Any = None,
    return_invalid: bool = False, **keywords: Unpack[CountKeywords],
) -> Any: ...
# fmt: on
def bincount(
    x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, length: int | None = None,
    axis: Axis = None, out: Any = None, accumulate: bool = False, dtype: DTypeLike | None = None,
    invalid: Literal["raise", "drop"] = "raise", deterministic: bool = False, return_invalid: bool = False,
    n_threads: int | None = None, device: str | None = None,
) -> Any:  # fmt: skip
    """Count the occurrences of each key of a 1-D array, or along `axis`; or sum a weight for each.

    Parameters
    ----------
    x : array_like
        Keys: integers of any width or bool, not negative; 1-D without `axis`.
    weights : array_like, optional
        Real or complex numbers of any dtype, whose sum for each key is the result: of x's shape for one sum, or
        with one axis more, (..., k), for k sums. Like `x` they are read in any byte order and stride, without a
        copy.
    minlength : int
        The least number of bins.
    length : int, optional
        The number of bins, whatever the keys are; `invalid` says what happens to keys outside.
    axis : int or str, optional
        Count along this axis only: a batch of counts, in which the bins replace the axis. Of a DataArray the name
        of a dimension.
    out : array of the same library, optional
        The result is written to it. It has the result's shape and dtype, and sets the number of bins. An error
        leaves it untouched; after a KeyboardInterrupt it is undefined.
    accumulate : bool
        Whether to add to `out` instead of overwriting it.
    dtype : dtype_like, optional
        The dtype of the result. Default: intp for counts, float64 for sums, complex128 for complex ones. With an
        integer dtype, integer weights are summed as 64-bit integers, which wrap around; all other sums are rounded
        once, at the end (sums of floats are truncated to an integer dtype). Counts and sums of integers that a
        short integer dtype cannot hold wrap around, as in numpy's astype: 300 is 44 in uint8. For tensors a
        torch.dtype: see Notes.
    invalid : {"raise", "drop"}
        Whether keys below 0, or from `length` on, raise an error or are left out.
    deterministic : bool
        Whether sums of floats have the same bits on each run on a CUDA device. No effect on the CPU: results
        there are always deterministic, for any number of threads.
    return_invalid : bool
        With ``invalid="drop"``: whether to return the number of keys that were left out, too.
    n_threads : int, optional
        Default: see `get_num_threads`.
    device : {None, "cpu", "cuda", "cuda:N"}, optional
        The device that counts numpy arrays, which are copied to it, and the result back. Arrays of other
        libraries are counted on their own device.

    Returns
    -------
    counts : array of x's library
        One number for each bin: ``max(largest key + 1, minlength)`` of them without `length` or `out`, with the
        largest key of all rows. The shape is x's with `axis` replaced by the bins, and the k sums last.
    n_invalid : int64
        Only with `return_invalid`; for tensors and arrays on a device, a 0-d array on that device.

    Raises
    ------
    TypeError
        Keys are no integers, weights no numbers; `dtype` is real where weights are complex, or of integers where
        they require a gradient; `out` has another dtype than the result.
    ValueError
        Keys have more than one axis, and `axis` is not given; one is negative or outside the bins; weights of
        another shape; `minlength` negative; `length` smaller than `minlength`; `accumulate` without `out`.
    MemoryError
        The largest key, `minlength` or `length` asks for more bins than this machine, or the device, has memory
        for. Nothing is allocated then.
    NotImplementedError
        The number of bins of tensors is not known while torch transforms them (vmap); forward derivatives.

    Notes
    -----
    Results and errors are those of ``np.bincount``. Float weights are summed in float64, in fixed chunks: the
    bits do not depend on the number of threads, and are numpy's below 2**17 keys, from 2**16 bins on, or where
    the sums are exact. More than 2**17 keys are never copied whole: besides the result each thread allocates
    about 1 MiB, and from 2**18 bins on (of sums, 2**16) all threads together at least a quarter of the result.
    An `out` is written through a temporary of its size if its bins are not the last axis, if it is not aligned,
    or if its dtype is not the one of the computation.

    Tensors follow ``torch.bincount``: counts are int64, sums of float32 float32, of complex64 complex64, of all
    other real weights (float16, bfloat16, integers, bool) float64; without keys the result is int64, unless
    `dtype` is given. All are summed in 64 bits a part and rounded once. Gradients of every order reach the
    weights: that of a weight is the result's at its key, and 0 for a key that was left out. ``torch.compile``
    compiles the call with `length` (or `out`) and ``invalid="drop"``; other calls depend on the keys' values and
    break the graph. The gradient makes an int64 copy of the keys.

    On a CUDA device the work runs on the current stream. With `length` (or `out`) and ``invalid="drop"`` the call
    does not wait for it, and a CUDA graph can capture it. Otherwise the call waits once: for the range of the keys
    if the number of bins is unknown, else for the number of keys outside. With many bins, sums of floats may have
    other bits on each run, unless `deterministic` is set or torch's own switch for it is on.

    Series and DataArrays give arrays, as in ``np.bincount``; those of keys and weights need equal labels.
    Dimensions of DataArrays are matched by name.

    dask arrays give dask arrays: one task counts a block, and groups of counts are added in a fixed order. Without
    `length`, which `axis` requires, the number of bins is unknown until they are computed.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.bincount([0, 1, 1, 3])
    array([1, 2, 0, 1])
    >>> upsweep.bincount([0, 1, 1], weights=[0.5, 1.0, 2.0])
    array([0.5, 3. ])
    >>> upsweep.bincount([0, -1, 7, 1], length=3, invalid="drop", return_invalid=True)
    (array([1, 1, 0]), np.int64(2))
    >>> upsweep.bincount([[0, 1, 1], [2, 2, 2]], axis=1)
    array([[1, 2, 0],
           [0, 0, 3]])
    """
    if (
        type(x) in (np.ndarray, list) and length is None and axis is None and out is None
        and not accumulate and dtype is None and invalid == "raise" and not return_invalid and device is None
    ):  # fmt: skip
        y = cpu.bincounts.plain(x, weights, minlength, cpu.threads(n_threads))
        if y is not None:
            return y
    plain = plain_counts.get(type(x))
    if (
        plain is not None and axis is None and out is None and dtype is None and n_threads is None
        and device is None and not (accumulate or return_invalid)
    ):  # fmt: skip
        y = plain(x, weights, minlength, length, invalid, deterministic)
        if y is not None:
            return y
    return _bincount(
        x, weights, out, minlength, length, axis, accumulate, dtype, invalid, deterministic, return_invalid,
        n_threads, device,
    )  # fmt: skip


@dispatched("x", "weights", "out", torch="bincount", dask="bincount", not_with_dask=("out", "accumulate"))
def _bincount(
    x: Any, weights: Any, out: Any, minlength: Any, length: Any, axis: Any, accumulate: bool, dtype: Any,
    invalid: Any, deterministic: bool, return_invalid: bool, n_threads: int | None, device: str | None,
) -> Any:  # fmt: skip
    ordinal = _arrays.check_device(device)
    count = bincount_problem.normalise_count(
        x, weights, minlength, length=length, axis=axis, out=out, accumulate=accumulate, dtype=dtype,
        invalid=invalid, deterministic=deterministic, return_invalid=return_invalid,
    )  # fmt: skip
    if count.placement is not None:
        _arrays.refuse_device(device, f"a {count.placement.library.name}")
    result, n_invalid = _backends.run_count(count, n_threads=n_threads, device=ordinal)
    result = result if out is None else out
    return (result, n_invalid) if return_invalid else result
