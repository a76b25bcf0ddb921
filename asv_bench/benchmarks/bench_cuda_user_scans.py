"""Scans by an update of CUDA tensors, and programs of te, beside a copy and known scans; skipped without a GPU.

The cases, their checks and their timing are those of ``python -m upsweep bench userscan --device cuda``.
"""

from upsweep.bench import cuda_te_cases, cuda_userscan_cases

from .on_device import DeviceView, figure

UPDATES = {f"{case.name}, {case.dtype}": case for case in cuda_userscan_cases.cases()}
PROGRAMS = {case.name: case for case in cuda_te_cases.cases()}


class Updates(DeviceView):
    """A fraction of a copy of the same minimal bytes; of affine updates, of the speed of a known scan."""

    params = (tuple(UPDATES),)
    param_names = ("case",)

    def track_ratio(self, case: str) -> float:
        return figure("cuda_userscan", UPDATES[case])

    track_ratio.unit = "of copy or scan"  # type: ignore[attr-defined]  # where asv looks


class Programs(DeviceView):
    """Sums over columns as a fraction of a copy; of an LSTM, microseconds a step."""

    params = (tuple(PROGRAMS),)
    param_names = ("program",)

    def track_figure(self, program: str) -> float:
        return figure("cuda_te", PROGRAMS[program])

    track_figure.unit = "of copy, or us a step"  # type: ignore[attr-defined]  # where asv looks
