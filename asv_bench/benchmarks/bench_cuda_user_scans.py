"""User-defined scans of CUDA tensors and programs of te, compared with a copy and known scans.

The cases, their checks and their timing are those of ``python asv_bench/run.py userscan --device cuda``.
"""

from . import attributes
from .cuda_benchmark import CudaBenchmark, cases, peer_table, ratio_to_peer, value

ALL = cases("userscan")
UPDATES = {label: case for label, case in ALL.items() if not hasattr(case, "program")}
PEERS = peer_table({name: tuple(label for label, case in ALL.items() if name in dict(case.peers))
                    for name in ("a loop in torch", "torch.nn.LSTM")}, ALL)  # fmt: skip
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


class Peers(CudaBenchmark):
    """How many times the time of a program of te torch takes; nan where it fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)

    @attributes(unit="times upsweep", version="77c6ef1fda394418742f7696e715e8ec2462f4e3feaad8d56153bb96d3825f4b")
    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(*PEERS[peer])
