"""Scans of CUDA tensors: fractions of a copy, ratios to peers, latency, host cost; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python asv_bench/run.py scans --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, milliseconds, peer_table, ratio_to_peer, run_once, value

ALL = cases("scans")
FRACTIONS = {name: case for name, case in ALL.items() if case.metric == "of copy"}
LENGTHS = {name: case for name, case in ALL.items() if case.metric == "per element"}
CALLS = {name: case for name, case in ALL.items() if case.metric in ("us", "us host")}
MODELS = (
    *(f"linear_recurrence 8 x 1,536 x {length}, float32" for length in ("512", "2,048", "8,192", "32,768")),
    *(f"linear_recurrence 8 x 1,536 x {length}, bfloat16" for length in ("512", "2,048")),
)
# A part of the command's table.
PEERS = peer_table(
    {
        "fpscan": (
            "linear_recurrence 2 x 256 x 4,096, float32",
            "linear_recurrence 2 x 256 x 65,536, float32",
            *MODELS,
            "linear_recurrence 8 x 1,536 x 8,192, bfloat16",
            "linear_recurrence 8 x 1,536 x 8,192 forward and backward, float32",
        ),
        "accelerated-scan": MODELS,
        "accelerated-scan Triton": (
            *MODELS,
            "linear_recurrence 8 x 1,536 x 8,192 forward and backward, float32",
        ),
        "associative_scan": MODELS,
        "torch-discounted-cumsum": (
            "discounted_cumsum 4,096 x 1,024, float32",
            "discounted_cumsum 1,024 x 65,536, float32",
        ),
        "torch.cumsum": (
            "cumulative_sum 1 x 100,000, float32",
            "cumulative_sum 4,096 x 1,024, float32",
            "cumulative_sum 1 x 268,435,456, float32",
        ),
    },
    ALL,
)


class Fractions(CudaBenchmark):
    """Every case as a fraction of a copy of the same minimal bytes; its time with a launch and on the device."""

    params = (tuple(FRACTIONS),)
    number = 1
    repeat = (5, 20, 0.5)
    rounds = 1

    @attributes(version="d83f129c9a419b20b10d35bbfde3874c4a93388817e73afbccc46acadc588470")
    def time_scan(self, case: str) -> None:
        run_once(FRACTIONS[case])

    @attributes(unit="of copy", version="a1a821162e8fbd875cef58bbdc6533586f657f6af5c91d6d3d58b99e33b7658e")
    def track_fraction_of_copy(self, case: str) -> float:
        return value(FRACTIONS[case])

    @attributes(unit="ms", version="device time by CUDA events")
    def track_milliseconds(self, case: str) -> float:
        return milliseconds(FRACTIONS[case])


class Lengths(CudaBenchmark):
    """The time of an element at a length that is a power of two, over that at one that is not."""

    params = (tuple(LENGTHS),)

    @attributes(unit="x", version="b9e87f784d1951e8f926d9dd9cc78304b5df51b8a9c2a9c8315354ba88abe7ad")
    def track_power_of_two_over_odd(self, case: str) -> float:
        return value(LENGTHS[case])


class Calls(CudaBenchmark):
    """Microseconds of device time of short scans, and of host time of small calls."""

    params = (tuple(CALLS),)

    @attributes(unit="us", version="e090c0b48cba9ad3af473566fdb6d54cd9871eb17c97a8755338122a7aae7151")
    def track_microseconds(self, case: str) -> float:
        return value(CALLS[case])


class Peers(CudaBenchmark):
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    @attributes(unit="times upsweep", version="77c6ef1fda394418742f7696e715e8ec2462f4e3feaad8d56153bb96d3825f4b")
    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(*PEERS[peer])
