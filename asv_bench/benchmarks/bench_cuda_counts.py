"""Counts of CUDA tensors: fractions of a copy, ratios to uniform keys and to peers; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python -m upsweep bench counts --device cuda``. torch is
imported when a benchmark runs and not with this file: see bench_cuda_scans.py.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from upsweep.bench import cuda
from upsweep.bench.cuda_count_cases import Case, cases

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


def skip_without_device() -> None:
    reason = cuda.why_not()
    if reason is not None:
        raise NotImplementedError(reason)  # how asv is told to skip


def figure(case: Case) -> float:
    """The case's own figure, after its answer was checked; nan where upsweep has no such call."""
    from upsweep.bench.cuda_counts import measure_case

    return measure_case(replace(case, peers=()))[0].figure or float("nan")


@cache
def call(name: str) -> Any:
    from upsweep.bench import cuda_counts

    tensors = cuda_counts.Tensors(FRACTIONS[name], 1)
    return tensors.call(cuda_counts.function_of(FRACTIONS[name]))


class Fractions:
    """Every case that has a bar as a fraction of a copy of the same minimal bytes."""

    params = (tuple(FRACTIONS),)
    param_names = ("case",)
    number = 1
    repeat = (5, 20, 0.5)
    rounds = 1
    timeout = 300

    def setup(self, case: str) -> None:
        skip_without_device()

    def time_count(self, case: str) -> None:
        """With a launch and the wait for its end; the first call, which makes the arrays, is asv's warm-up."""
        import torch

        call(case)(0)
        torch.cuda.synchronize()

    def track_fraction_of_copy(self, case: str) -> float:
        return figure(FRACTIONS[case])

    track_fraction_of_copy.unit = "of copy"  # type: ignore[attr-defined]  # where asv looks


class Ratios:
    """The time of uniform keys over that of others, and that of sums in any order over that in a fixed one."""

    params = (tuple(RATIOS),)
    param_names = ("case",)
    timeout = 300

    def setup(self, case: str) -> None:
        skip_without_device()

    def track_easier_over_this(self, case: str) -> float:
        return figure(RATIOS[case])

    track_easier_over_this.unit = "x"  # type: ignore[attr-defined]  # where asv looks


class Peers:
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)
    timeout = 300

    def setup(self, peer: str) -> None:
        skip_without_device()

    def track_ratio_to_peer(self, peer: str) -> float:
        from upsweep.bench.cuda_counts import measure_case

        name, case = PEERS[peer]
        rows = measure_case(replace(case, peers=((name, None),)))
        return next((row.figure for row in rows if row.method == name and row.figure), float("nan"))

    track_ratio_to_peer.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks
