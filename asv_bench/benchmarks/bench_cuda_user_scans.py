"""User-defined scans of CUDA tensors and programs of te, compared with a copy and known scans.

The cases, their checks and their timing are those of ``python asv_bench/run.py userscan --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, value

ALL = cases("userscan")
UPDATES = {label: case for label, case in ALL.items() if not hasattr(case, "program")}
PROGRAMS = {case.name: case for case in ALL.values() if hasattr(case, "program")}


class Updates(CudaBenchmark):
    """A fraction of a copy of the same minimal bytes; of affine updates, of the speed of a known scan."""

    params = (tuple(UPDATES),)

    @attributes(unit="of copy or scan", version="220d9442ea602a3be2b86453d10798df8265f91374981f3bd2e8c2998f17c855")
    def track_ratio(self, case: str) -> float:
        return value(UPDATES[case])


class Programs(CudaBenchmark):
    """Sums over columns as a fraction of a copy; of an LSTM, microseconds a step."""

    params = (tuple(PROGRAMS),)
    param_names = ("program",)

    @attributes(
        unit="of copy, or us a step", version="24fa892b192dddcef5623ef2fdae532a42e171b29db5f057cd03145f381cd0be"
    )
    def track_figure(self, program: str) -> float:
        return value(PROGRAMS[program])
