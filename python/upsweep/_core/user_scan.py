"""A user-defined scan without its arrays: what runs, over which shape, and by which path.

`ScanSpec` is the parameter object that the front end (`_user_scan`, `_torch`) and the backends share.
`choose_path` decides from it alone whether time runs in parallel, so results depend neither on the load of the
machine nor on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from upsweep._arrays import Array, DeviceView
from upsweep._compiler.recurrences.associative import Monoid, Product, find_linear, find_monoid, find_product
from upsweep._compiler.recurrences.recurrence import Recurrence, with_constants
from upsweep._core.layout import moveaxis


@dataclass(frozen=True)
class ScanSpec:
    """One scan of a recurrence: everything but its arrays.

    Kernels see arrays in scan order: time is the first axis, and the first step is the first element. Users see
    time on `axis`; with `reverse` the first step is the last element.
    """

    recurrence: Recurrence
    dtype: np.dtype[Any]  # float32 or float64: steps are computed in it, with integers in words of float64
    length: int  # steps
    columns: tuple[int, ...]  # the shape without the time axis, which is the shape of the states
    axis: int = 0
    reverse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an output as the user sees it."""
        return self.columns[: self.axis] + (self.length,) + self.columns[self.axis :]

    @property
    def output_dtypes(self) -> list[np.dtype[Any]]:
        """The dtypes of outputs before they are rounded."""
        return [np.dtype(np.int64) if flag else self.dtype for flag in self.recurrence.integer_outputs]

    @property
    def state_dtypes(self) -> list[np.dtype[Any]]:
        """The dtypes of states before they are rounded."""
        return [np.dtype(np.int64) if flag else self.dtype for flag in self.recurrence.integer_states]

    def in_scan_order(self, array: Any) -> Any:
        """A user's array, of `shape`, in scan order."""
        return self.reversed(moveaxis(array, self.axis, 0))

    def in_user_order(self, array: Any) -> Any:
        """An array in scan order as the user sees it."""
        return moveaxis(self.reversed(array), 0, self.axis)

    def reversed(self, array: Any) -> Any:
        """An array with time first in the other of the two orders, if they differ."""
        return array[::-1] if self.reverse else array


def with_host_numbers(recurrence: Recurrence, inputs: Sequence[Array]) -> Recurrence:
    """The recurrence of a scan on a device, with inputs in the host's memory, one number each, as constants."""
    return with_constants(
        recurrence,
        {n: repeated_number(x) if x.size else 0 for n, x in enumerate(inputs) if not isinstance(x, DeviceView)},
    )


def repeated_number(array: Array) -> int | float:
    """The number that a broadcast array of the host repeats."""
    assert all(n == 1 or stride == 0 for n, stride in zip(array.shape, array.strides))
    number: np.generic = array[(0,) * array.ndim]
    return int(number) if array.dtype.kind in "iu" else float(number)


class Explanation(NamedTuple):
    """How a scan runs: `path` is "parallel in time" or "sequential in time"."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


# From how many columns on, or below how many steps, time runs sequentially. On the host fewer columns leave lanes
# of a vector empty; then cutting time is worth it, if there are enough steps.
_HOST = 8, 4096
# Some tens of thousands of columns fill a device. From 8192 on, reading the inputs once, one thread for a column,
# is as fast as reading them twice in chunks of time, of which the second pass writes. Cutting costs three kernels.
_DEVICE = 8192, 1024


def choose_path(
    spec: ScanSpec, *, on_device: bool = False, are_plain: bool = True
) -> tuple[Monoid | Product | None, Explanation]:
    """Choose how to run: with a monoid time is parallel, with None it is sequential.

    The spec of a scan on a device is that after `with_host_numbers`. `are_plain` says whether `linear_recurrence`
    takes the dtypes of the inputs, and returns those of the results.
    """
    n_columns = math.prod(spec.columns)
    monoid: Monoid | Product | None
    monoid, why = find_monoid(spec.recurrence)
    if monoid is None and on_device:
        monoid, why_product = find_product(spec.recurrence)
        why = why_product or why
    if monoid is None:
        return None, Explanation("sequential in time", why)
    columns, length = _DEVICE if on_device else _HOST
    why_not = ""
    if n_columns >= columns:
        enough = f"fill a device ({columns} do)" if on_device else f"are enough to run in parallel ({columns} are)"
        why_not = f"{n_columns} columns {enough}"
    elif spec.length < length:
        why_not = f"{spec.length} steps are few (below {length}{' on a device' * on_device})"
    if on_device and are_plain and find_linear(spec.recurrence) is not None:
        linear = "the update is gates * state + tokens, a linear_recurrence, whose kernels run it"
        return None if why_not else monoid, Explanation("parallel in time", linear)
    if why_not:
        return None, Explanation("sequential in time", f"{why}, but {why_not}")
    few = f"columns are few{' for a device' * on_device} ({n_columns})"
    return monoid, Explanation("parallel in time", f"{why}, and {few}")
