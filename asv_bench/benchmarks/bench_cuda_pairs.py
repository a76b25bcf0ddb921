"""Reductions over pairs of CUDA tensors: milliseconds of device time; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python asv_bench/run.py pairs --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, value

ALL = cases("pairs")


class Reductions(CudaBenchmark):
    """Every case, and the first use of a formula."""

    params = (tuple(ALL),)

    @attributes(unit="ms", version="555e147cae62e3a6b5bb9b0b3566cf73555d22a76c84d6941a125fb74606fdcc")
    def track_milliseconds(self, case: str) -> float:
        return value(ALL[case])
