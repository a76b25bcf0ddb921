"""Counts of CUDA tensors: fractions of a copy, ratios to uniform keys and to peers; skipped where there is no GPU.

The cases, their checks and their timing are those of ``python asv_bench/run.py counts --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, milliseconds, peer_table, ratio_to_peer, run_once, value

ALL = cases("counts")
FRACTIONS = {name: case for name, case in ALL.items() if case.metric == "of copy" and case.threshold is not None}
RATIOS = {name: case for name, case in ALL.items() if case.metric != "of copy"}
# A part of the command's table.
PEERS = peer_table(
    {
        "torch.bincount": (
            *(f"bincount 134,217,728 in {n} bins uniform, int64" for n in
              ("256", "4,096", "6,143", "12,287", "50,000", "65,536", "1,000,000", "100,000,000")),
            *(f"bincount 134,217,728 in {n} bins all equal, int64" for n in
              ("256", "4,096", "12,287", "1,000,000")),
            *(f"bincount 134,217,728 in {n} bins uniform, int32" for n in ("256", "4,096")),
            "bincount 134,217,728 in 256 bins uniform, uint8",
            "bincount 134,217,728 in 4,096 bins float32 weights uniform, int64",
        ),
        "cupy": (
            *(f"bincount 134,217,728 in {n} bins uniform, int64" for n in ("256", "6,143", "65,536")),
            *(f"bincount 134,217,728 in {n} bins all equal, int64" for n in ("256", "1,000,000")),
            "bincount 134,217,728 in 4,096 bins float32 weights uniform, int64",
        ),
        "torch.histc": ("histc 134,217,728 in 100 bins uniform, float32",),
    },
    ALL,
)  # fmt: skip


class Fractions(CudaBenchmark):
    """Every case with a threshold as a fraction of a copy of the same bytes; its time, also on the device."""

    params = (tuple(FRACTIONS),)
    number = 1
    repeat = (5, 20, 0.5)
    rounds = 1

    @attributes(version="c49d8efd69dca52226009f57996396f1fd74ea302a19cac22fd1eb9d81983377")
    def time_count(self, case: str) -> None:
        run_once(FRACTIONS[case])

    @attributes(unit="of copy", version="a1a821162e8fbd875cef58bbdc6533586f657f6af5c91d6d3d58b99e33b7658e")
    def track_fraction_of_copy(self, case: str) -> float:
        return value(FRACTIONS[case])

    @attributes(unit="ms", version="device time by CUDA events")
    def track_milliseconds(self, case: str) -> float:
        return milliseconds(FRACTIONS[case])


class Ratios(CudaBenchmark):
    """The time of uniform keys over that of others, and that of sums in any order over that in a fixed one."""

    params = (tuple(RATIOS),)

    @attributes(unit="x", version="b63fc341f5e22311373f5ba96f8f1dc0ffaad3bd4d29d4c309990b79adbdecae")
    def track_easier_over_this(self, case: str) -> float:
        return value(RATIOS[case])


class Peers(CudaBenchmark):
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    @attributes(unit="times upsweep", version="77c6ef1fda394418742f7696e715e8ec2462f4e3feaad8d56153bb96d3825f4b")
    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(*PEERS[peer])
