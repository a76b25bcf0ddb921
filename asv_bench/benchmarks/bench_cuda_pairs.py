"""Reductions over pairs of CUDA tensors: milliseconds of device time; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python -m upsweep bench pairs --device cuda``.
"""

from upsweep.bench.cuda_pair_cases import cases

from .on_device import DeviceView, figure

ALL = {f"{case.name}, {case.dtype}": case for case in cases()}


class Reductions(DeviceView):
    """Every case, and the first use of a formula."""

    params = (tuple(ALL),)
    param_names = ("case",)

    def track_milliseconds(self, case: str) -> float:
        return figure("cuda_pairs", ALL[case])

    track_milliseconds.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
