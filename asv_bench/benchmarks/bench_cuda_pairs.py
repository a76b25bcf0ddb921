"""Reductions over pairs of CUDA tensors: milliseconds of device time, ratios to KeOps; skipped without a GPU.

The cases, their checks and their timing are those of ``python asv_bench/run.py pairs --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, peer_table, ratio_to_peer, value

ALL = cases("pairs")
PEERS = peer_table({"KeOps": tuple(name for name, case in ALL.items() if case.peers)}, ALL)


class Reductions(CudaBenchmark):
    """Every case, and the first use of a formula."""

    params = (tuple(ALL),)

    @attributes(unit="ms", version="555e147cae62e3a6b5bb9b0b3566cf73555d22a76c84d6941a125fb74606fdcc")
    def track_milliseconds(self, case: str) -> float:
        return value(ALL[case])


class Peers(CudaBenchmark):
    """How many times upsweep's time KeOps takes; nan where it is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    @attributes(unit="times upsweep", version="77c6ef1fda394418742f7696e715e8ec2462f4e3feaad8d56153bb96d3825f4b")
    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(*PEERS[peer])
