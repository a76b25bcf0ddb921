"""Scans: times, fractions of a copy, ratios to numpy and scipy, peak memory.

No benchmark has a ``setup``: asv would make each sample a single call, which is no way to time microseconds.
Inputs are made once a process, in the first call, which asv counts as warm-up.
"""

import subprocess
import sys
from dataclasses import replace
from functools import cache, partial

import numpy as np
import upsweep
from upsweep.bench.timing import Call
from upsweep_bench import compare
from upsweep_bench.case import microseconds
from upsweep_bench.scans import Case

from . import attributes

LAYOUTS = {
    "one line": ((1, 10_000_000), -1),
    "64 x 100,000": ((64, 100_000), -1),
    "4096 x 1024": ((4096, 1024), -1),
    "100,000 x 64": ((100_000, 64), -1),
    "(1024, 4096) axis 0": ((1024, 4096), 0),
    "(1,000,000, 32) axis 0": ((1_000_000, 32), 0),
    "(4096, 8192) axis 0": ((4096, 8192), 0),
    "(64, 1000, 100) axis 1": ((64, 1000, 100), 1),
}
OPERATIONS = ("discounted_cumsum", "linear_recurrence")
LINE = Case("discounted_cumsum", (1, 10_000_000), "float32")
GATED_LINE = replace(LINE, operation="linear_recurrence")
# One list, and not operations x variants: asv skips a combination only in a setup, which there is none of.
VARIANTS = {
    "discounted_cumsum, reverse": replace(LINE, reverse=True),
    "discounted_cumsum, exclusive": replace(LINE, exclusive=True),
    "discounted_cumsum, reset": replace(LINE, reset=True),
    "discounted_cumsum, impulse then zeros": replace(LINE, data="impulse", metric="of normal data"),
    "discounted_cumsum, gamma 0.9999": replace(LINE, gamma=0.9999),
    "discounted_cumsum, gamma 1": replace(LINE, gamma=1.0),
    "discounted_cumsum, window 1000": replace(LINE, window=1000),
    "discounted_cumsum, float16": replace(LINE, dtype="float16"),
    "linear_recurrence, reverse": replace(GATED_LINE, reverse=True),
    "linear_recurrence, exclusive": replace(GATED_LINE, exclusive=True),
    "linear_recurrence, reset": replace(GATED_LINE, reset=True),
    "linear_recurrence, impulse then zeros": replace(GATED_LINE, data="impulse", metric="of normal data"),
    "linear_recurrence, float16": replace(GATED_LINE, dtype="float16"),
}
SMALL = np.linspace(0, 1, 128, dtype=np.float32)


def layout_case(operation: str, dtype: str, layout: str) -> Case:
    shape, axis = LAYOUTS[layout]
    return Case(operation, shape, dtype, axis=axis)


@cache
def call(case: Case) -> Call:
    arrays = case.arrays()
    return partial(arrays.call(case.function(arrays)), 0)


def fraction(case: Case) -> float:
    """Of the fastest copy (a + b -> c with gates); for an impulse, normal data's time over its own."""
    return compare.measure_case(case, rounds=4)[0].value


class Layouts:
    params = (OPERATIONS, ("float32", "float64"), tuple(LAYOUTS))
    param_names = ("operation", "dtype", "layout")
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_scan(self, operation: str, dtype: str, layout: str) -> None:
        call(layout_case(operation, dtype, layout))()

    def track_fraction_of_copy(self, operation: str, dtype: str, layout: str) -> float:
        return fraction(layout_case(operation, dtype, layout))

    track_fraction_of_copy.unit = "of the fastest copy"  # type: ignore[attr-defined]  # where asv looks


class Variants:
    """One line of 10 million elements, float32 unless it says otherwise."""

    params = (tuple(VARIANTS),)
    param_names = ("variant",)
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_scan(self, variant: str) -> None:
        call(VARIANTS[variant])()

    def track_fraction_of_copy(self, variant: str) -> float:
        return fraction(VARIANTS[variant])

    track_fraction_of_copy.unit = "of the fastest copy"  # type: ignore[attr-defined]  # where asv looks


class Memory:
    """The peak of a process that makes its inputs and calls; ``peakmem_inputs`` is what all of them have."""

    params = (("one line", "64 x 100,000", "(1024, 4096) axis 0", "(64, 1000, 100) axis 1"),)
    param_names = ("layout",)

    @staticmethod
    def _inputs(layout: str) -> tuple[np.ndarray, np.ndarray, int]:
        shape, axis = LAYOUTS[layout]
        return np.ones(shape, np.float32), np.ones(shape, np.float32), axis

    def peakmem_inputs(self, layout: str) -> None:
        self._inputs(layout)

    def peakmem_discounted_cumsum(self, layout: str) -> None:
        x, _, axis = self._inputs(layout)
        upsweep.discounted_cumsum(x, 0.99, axis=axis)

    def peakmem_discounted_cumsum_window(self, layout: str) -> None:
        x, _, axis = self._inputs(layout)
        upsweep.discounted_cumsum(x, 0.99, axis=axis, window=1000)

    def peakmem_linear_recurrence(self, layout: str) -> None:
        x, gates, axis = self._inputs(layout)
        upsweep.linear_recurrence(gates, x, axis=axis)


class SmallCalls:
    """128 elements: what the Python layers cost."""

    def time_discounted_cumsum(self) -> None:
        upsweep.discounted_cumsum(SMALL, 0.99)

    def time_linear_recurrence(self) -> None:
        upsweep.linear_recurrence(SMALL, SMALL)

    def time_cumulative_sum(self) -> None:
        upsweep.cumulative_sum(SMALL)

    def time_discounted_cumsum_keywords(self) -> None:
        upsweep.discounted_cumsum(SMALL, 0.99, initial=1.0, reverse=True)

    def track_more_than_np_cumsum(self) -> float:
        methods = {"np": lambda: np.cumsum(SMALL), "ours": lambda: upsweep.discounted_cumsum(SMALL, 0.99)}
        times = microseconds(methods, rounds=9)
        return times["ours"] - times["np"]

    track_more_than_np_cumsum.unit = "us"  # type: ignore[attr-defined]  # where asv looks


class Peers:
    """How many times upsweep's time the others take, on one line of float32."""

    def _ratio(self, peer: str, case: Case) -> float:
        return next(
            (row.value for row in compare.measure_case(replace(case, peers=((peer, None),)))[1:] if row.value),
            float("nan"),  # not installed
        )

    @attributes(unit="times upsweep", version="b312933a07b70ca08e5591a40af57a948a05c786e67b6c9331f212a7d8fe2432")
    def track_lfilter(self) -> float:
        return self._ratio("scipy lfilter", LINE)

    @attributes(unit="times upsweep", version="648974b8f99137fcb76b79a81406e4fa7ee451bc6822e11c2ac2823c44d1842e")
    def track_np_cumsum(self) -> float:
        return self._ratio("np.cumsum, out=", replace(LINE, operation="cumulative_sum"))


def track_import() -> float:
    """What ``import upsweep`` adds to numpy's import."""
    code = "import time, numpy; t = time.perf_counter(); import upsweep; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    runs = (subprocess.run(command, capture_output=True, check=True) for _ in range(5))
    return min(float(run.stdout) for run in runs) * 1e3


track_import.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
