"""Scans of CUDA tensors: fractions of a copy, ratios to peers, latency, host cost; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python -m upsweep bench scans --device cuda``.
"""

from upsweep.bench.cuda_cases import cases

from .on_device import DeviceView, figure, ratio_to_peer, run_once

BENCH = "cuda_scans"
ALL = {f"{case.name}, {case.dtype}": case for case in cases()}
FRACTIONS = {name: case for name, case in ALL.items() if case.figure == "of copy" and case.bar is not None}
LENGTHS = {name: case for name, case in ALL.items() if case.figure == "per element"}
CALLS = {name: case for name, case in ALL.items() if case.figure in ("us", "us host")}
# Some of the table that the command prints, as each of them takes a process of its own.
PEERS = {
    f"{peer}: {name}": (peer, ALL[name])
    for peer, names in {
        "fpscan": (
            "linear_recurrence 2 x 256 x 4,096, float32",
            "linear_recurrence 2 x 256 x 65,536, float32",
            "linear_recurrence 8 x 1,536 x 8,192, float32",
            "linear_recurrence 8 x 1,536 x 8,192, bfloat16",
            "linear_recurrence 8 x 1,536 x 8,192 forward and backward, float32",
        ),
        "accelerated-scan Triton": (
            "linear_recurrence 8 x 1,536 x 8,192, float32",
            "linear_recurrence 8 x 1,536 x 8,192 forward and backward, float32",
        ),
        "torch-discounted-cumsum": (
            "discounted_cumsum 4,096 x 1,024, float32",
            "discounted_cumsum 1,024 x 65,536, float32",
        ),
        "torch.cumsum": (
            "cumulative_sum 1 x 100,000, float32",
            "cumulative_sum 4,096 x 1,024, float32",
            "cumulative_sum 1 x 268,435,456, float32",
        ),
    }.items()
    for name in names
}


class Fractions(DeviceView):
    """Every case that has a bar as a fraction of a copy of the same minimal bytes."""

    params = (tuple(FRACTIONS),)
    param_names = ("case",)
    number = 1
    repeat = (5, 20, 0.5)
    rounds = 1

    def time_scan(self, case: str) -> None:
        run_once(BENCH, FRACTIONS[case])

    def track_fraction_of_copy(self, case: str) -> float:
        return figure(BENCH, FRACTIONS[case])

    track_fraction_of_copy.unit = "of copy"  # type: ignore[attr-defined]  # where asv looks


class Lengths(DeviceView):
    """The time of an element at a length that is a power of two, over that at one that is not."""

    params = (tuple(LENGTHS),)
    param_names = ("case",)

    def track_power_of_two_over_odd(self, case: str) -> float:
        return figure(BENCH, LENGTHS[case])

    track_power_of_two_over_odd.unit = "x"  # type: ignore[attr-defined]  # where asv looks


class Calls(DeviceView):
    """Microseconds of device time of short scans, and of host time of small calls."""

    params = (tuple(CALLS),)
    param_names = ("case",)

    def track_microseconds(self, case: str) -> float:
        return figure(BENCH, CALLS[case])

    track_microseconds.unit = "us"  # type: ignore[attr-defined]  # where asv looks


class Peers(DeviceView):
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(BENCH, *PEERS[peer])

    track_ratio_to_peer.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks
