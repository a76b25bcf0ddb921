"""Other packages on the CPU: their times over upsweep's, in cases of ``python asv_bench/run.py``.

Packages that other files of this folder compare with (numpy, scipy, numba) are not repeated.
"""

from upsweep_bench import cli

from . import attributes
from .cuda_benchmark import peer_table, ratio_to_peer

CASES = {
    case.label: case
    for family in ("counts", "pairs", "userscan")
    for case in cli.cases(family, quick=False, device="cpu")
}
HISTOGRAM = ("histogram 20,000,000 in 100 bins uniform, float32",)
REDUCTIONS = (
    "Gaussian sum, D=3, float32", "logsumexp, D=3, float32", "argKmin(10), D=3, float32",
    "Gaussian sum, D=3, float64", "Gaussian sum, D=64, float32",
)  # fmt: skip
PEERS = peer_table(
    {
        "torch.bincount": (
            *(f"bincount 20,000,000 in {n} bins uniform, int64"
              for n in ("2", "256", "10,000", "1,000,000", "16,000,000")),
            "bincount 20,000,000 in 256 bins all equal, int64",
            "bincount 20,000,000 in 256 bins uniform, int32",
            "bincount 20,000,000 in 256 bins uniform, uint8",
            "bincount 20,000,000 in 256 bins float64 weights uniform, int64",
        ),
        "torch.histc": HISTOGRAM,
        "boost-histogram": HISTOGRAM,
        "fast-histogram": HISTOGRAM,
        "numpy, a tenth of the rows": REDUCTIONS,
        "KeOps": REDUCTIONS,
        "scikit-learn": ("argKmin(10), D=3, float32",),
        "pandas": tuple(label for label, case in CASES.items() if "pandas" in dict(case.peers)),
    },
    CASES,
)  # fmt: skip


class Peers:
    """How many times upsweep's time the others take; nan where one is not installed, fails or is wrong."""

    params = (tuple(PEERS),)
    param_names = ("peer",)
    timeout = 120

    @attributes(unit="times upsweep", version="77c6ef1fda394418742f7696e715e8ec2462f4e3feaad8d56153bb96d3825f4b")
    def track_ratio_to_peer(self, peer: str) -> float:
        return ratio_to_peer(*PEERS[peer])
