"""Static types of public calls: ``python -m mypy`` checks this file, and nothing runs it.

An expression whose type is another one is an error, and so is a comment that allows an error where there is none.
"""

from typing import Any, assert_type

import numpy as np
import upsweep
from numpy.typing import NDArray
from upsweep import lfilter, te

Array = NDArray[Any]


class Tensor:
    """What arrays of all other libraries have, for these checks to be the same whichever are installed."""

    shape: tuple[int, ...]

    def __add__(self, other: object) -> "Tensor":
        raise NotImplementedError


class Series(Tensor):
    def to_numpy(self) -> Array:
        raise NotImplementedError


def scans(x: Array, t: Tensor, s: Series, flag: bool) -> None:
    assert_type(upsweep.cumulative_sum(x), Array)
    assert_type(upsweep.cumulative_sum([1, 2], axis=0), Array)
    assert_type(upsweep.cumulative_sum(x, return_final=True), tuple[Array, Array])
    assert_type(upsweep.cumulative_sum(t, reverse=True, reset=t), Tensor)
    assert_type(upsweep.cumulative_sum(s, return_final=True), tuple[Series, Series])
    assert_type(upsweep.cumulative_sum(t, return_final=flag), Any)
    assert_type(upsweep.discounted_cumsum(x.astype(np.float32), 0.5, window=3, out=x), Array)
    assert_type(upsweep.discounted_cumsum(t, t, initial=t, out=t), Tensor)
    assert_type(upsweep.linear_recurrence(x, [0.5]), Array)
    assert_type(upsweep.linear_recurrence(0.5, t), Tensor)
    assert_type(upsweep.linear_recurrence(s, np.float32(1), return_final=True), tuple[Series, Series])
    assert_type(upsweep.discounted_cumsum_left(x, 0.5), Array)
    assert_type(upsweep.discounted_cumsum_right(t, 0.5), Tensor)
    assert_type(upsweep.pscan(t, t), Tensor)
    assert_type(upsweep.PScan.apply(t, t), Any)
    assert_type(upsweep.scan_forward(t, t, reverse=True), Tensor)
    assert_type(lfilter([1.0], [1.0, -0.5], x), Array)
    assert_type(lfilter([1.0], [1.0, -0.5], t, zi=t), tuple[Tensor, Tensor])
    assert_type(upsweep.ewm_mean([1.0, 2.0], alpha=0.5), Array)
    assert_type(upsweep.ewm_mean(s, halflife="36h", times=s, adjust=False), Series)
    assert_type(upsweep.ewm_sum(t, span=3), Tensor)


def counts(x: Array, t: Tensor, s: Series) -> None:
    assert_type(upsweep.bincount([1, 2], minlength=3), Array)
    assert_type(upsweep.bincount(s, s), Array)
    assert_type(upsweep.bincount(t, t, length=4, invalid="drop"), Tensor)
    assert_type(upsweep.bincount(x, length=4, invalid="drop", return_invalid=True), tuple[Array, np.int64])
    assert_type(upsweep.histogram(s, 10), tuple[Array, Array])
    assert_type(upsweep.histogram(t, [0.0, 1.0], weights=t), tuple[Tensor, Tensor])
    assert_type(upsweep.histc(t, 10), Tensor)


def lazily_imported_names(x: Array) -> None:
    assert_type(upsweep.LazyTensor(x[:, None, :]), upsweep.LazyTensor)
    assert_type(upsweep.Vi(x), upsweep.LazyTensor)
    assert_type(upsweep.scan.explain(lambda s, x: s + x, 0.0, x).path, str)
    assert_type(te.placeholder((3,)), te.Tensor)
    assert_type(upsweep.__version__, str)
    upsweep.distributed.nope()  # type: ignore[attr-defined]  # the module is known, and has no such name


def mistakes(x: Array, t: Tensor) -> None:
    upsweep.nope()  # type: ignore[attr-defined]
    upsweep.LazyTensr(x)  # type: ignore[attr-defined]
    upsweep.cumulative_sum(x, revers=True)  # type: ignore[call-overload]
    upsweep.cumulative_sum(t, reverse="yes")  # type: ignore[call-overload]
    upsweep.discounted_cumsum(t)  # type: ignore[call-overload]
    upsweep.bincount(x, invalid="ignore")  # type: ignore[call-overload]
