"""Static types of the public signatures. Type checkers alone import this module (``if TYPE_CHECKING``).

A function that returns the type of its arguments has two signatures: numpy arrays, lists and numbers (`HostArray`)
give an ndarray, and an array of another library (`A`) gives one of its own type. With ``return_final`` each of
them exists twice, and a last one, which returns Any, takes a bool that is known at run time alone, and arrays of
no known kind. Keywords that the signatures share are a TypedDict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from upsweep._arrays.libraries import Axis

__all__ = [
    "A", "ArrayLike", "CountKeywords", "DiscountedKeywords", "EwmKeywords", "HostArray", "Keywords", "Labelled",
    "Number", "ScanKeywords", "SumKeywords",
]  # fmt: skip


class OtherArray(Protocol):
    """A tensor, a dask, cupy or jax array, a Series, DataFrame or DataArray.

    It need not be an ArrayLike of numpy: what pyright takes for dask's Array has no ``__array__``.
    """

    @property
    def shape(self) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...


class Labelled(OtherArray, Protocol):
    """A Series, DataFrame or DataArray, whose counts are an ndarray."""

    def to_numpy(self) -> Any: ...


A = TypeVar("A", bound=OtherArray)
ArrayLike: TypeAlias = npt.ArrayLike | OtherArray
Number: TypeAlias = complex | np.number[Any] | np.bool
HostArray: TypeAlias = npt.NDArray[Any] | Sequence[Any] | Number


class Keywords(TypedDict, total=False):
    """Those of every function that computes."""

    n_threads: int | None
    device: str | None


class ScanKeywords(Keywords, total=False):
    """Those of the named scans."""

    axis: Axis
    reverse: bool
    initial: ArrayLike | None
    reset: ArrayLike | None
    exclusive: bool
    method: str | None


class SumKeywords(ScanKeywords, total=False):
    """Those of `cumulative_sum`."""

    dtype: Any  # of numpy or of the arrays' library
    include_initial: bool


class DiscountedKeywords(ScanKeywords, total=False):
    """Those of `discounted_cumsum`."""

    window: int | None


class CountKeywords(Keywords, total=False):
    """Those of `bincount`."""

    length: int | None
    axis: Axis
    accumulate: bool
    dtype: Any  # of numpy or of the arrays' library
    invalid: Literal["raise", "drop"]
    deterministic: bool


class EwmKeywords(TypedDict, total=False):
    """Those of `ewm_mean` and `ewm_sum`."""

    alpha: float | None
    com: float | None
    span: float | None
    halflife: Any
    times: ArrayLike | None
    ignore_na: bool
    axis: Axis
