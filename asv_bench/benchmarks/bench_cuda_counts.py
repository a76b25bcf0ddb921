"""Counts of CUDA tensors: fractions of a copy, ratios to uniform keys and to peers; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python -m upsweep bench counts --device cuda``.
"""

from upsweep.bench.cuda_count_cases import cases

from .on_device import DeviceView, figure, ratio_to_peer, run_once

BENCH = "cuda_counts"
ALL = {f"{case.name}, {case.dtype}": case for case in cases()}
FRACTIONS = {name: case for name, case in ALL.items() if case.figure == "of copy" and case.bar is not None}
RATIOS = {name: case for name, case in ALL.items() if case.figure != "of copy"}
# Some of the table that the command prints.
PEERS = {
    f"{peer}: {name}": (peer, ALL[name])
    for peer in ("torch.bincount", "cupy")
    for name in (
        "bincount 134,217,728 in 256 bins uniform, int64",
        "bincount 134,217,728 in 256 bins all equal, int64",
        "bincount 134,217,728 in 6,143 bins uniform, int64",
        "bincount 134,217,728 in 65,536 bins uniform, int64",
        "bincount 134,217,728 in 1,000,000 bins all equal, int64",
        "bincount 134,217,728 in 4,096 bins float32 weights uniform, int64",
    )
}


class Fractions(DeviceView):
    """Every case that has a bar as a fraction of a copy of the same minimal bytes."""

    params = (tuple(FRACTIONS),)
    param_names = ("case",)
    number = 1
    repeat = (5, 20, 0.5)
    rounds = 1

    def time_count(self, case: str) -> None:
        run_once(BENCH, FRACTIONS[case])

    def track_fraction_of_copy(self, case: str) -> float:
        return figure(BENCH, FRACTIONS[case])

    track_fraction_of_copy.unit = "of copy"  # type: ignore[attr-defined]  # where asv looks


class Ratios(DeviceView):
    """The time of uniform keys over that of others, and that of sums in any order over that in a fixed one."""

    params = (tuple(RATIOS),)
    param_names = ("case",)

    def track_easier_over_this(self, case: str) -> float:
        return figure(BENCH, RATIOS[case])

    track_easier_over_this.unit = "x"  # type: ignore[attr-defined]  # where asv looks


class Peers(DeviceView):
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(BENCH, *PEERS[peer])

    track_ratio_to_peer.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks
