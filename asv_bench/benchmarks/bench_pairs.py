"""Reductions over pairs: times, pairs a second and core, block-sparse against dense, the cost of a call."""

import numpy as np
import upsweep
from upsweep.bench import pairs
from upsweep.bench.harness import measure, microseconds

N = 10_000
CASES = {f"{case.name}, {case.dtype}": case for case in pairs.cases()}
DENSE = [name for name, case in CASES.items() if case.block is None]
SPARSE = [name for name, case in CASES.items() if case.block is not None]


class Dense:
    params = (DENSE,)
    param_names = ("case",)

    def track_rate(self, name: str) -> float:
        """Pairs a second and thread, in 1e9."""
        row = pairs.measure_case(CASES[name], N, None, rounds=3, peers=False)
        return float("nan") if row.figure is None else row.figure

    track_rate.unit = "1e9 pairs/s/thread"  # type: ignore[attr-defined]  # where asv looks


class Sparse:
    params = (SPARSE,)
    param_names = ("case",)

    def track_share_of_dense(self, name: str) -> float:
        """The rate on the pairs that are kept over the dense reduction's."""
        row = pairs.measure_case(CASES[name], N, None, rounds=3, peers=False)
        return float("nan") if row.figure is None else row.figure

    track_share_of_dense.unit = "of dense"  # type: ignore[attr-defined]  # where asv looks


class Calls:
    def track_genred(self) -> float:
        """A call on 5 x 5 pairs, in microseconds."""
        x, y = np.random.default_rng(0).random((2, 5, 3)).astype(np.float32)
        reduce = upsweep.Genred("Exp(-SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)"], axis=1)
        reduce(x, y)
        return microseconds({"ours": lambda: reduce(x, y)}, rounds=7)["ours"]

    track_genred.unit = "us"  # type: ignore[attr-defined]  # where asv looks

    def track_ratio_to_numpy(self) -> float:
        """numpy's time for a Gaussian sum, with a matrix of distances, over upsweep's."""
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 2000, 3)).astype(np.float32)
        kernel = (-upsweep.Vi(x).sqdist(upsweep.Vj(y))).exp()
        methods = {
            "np": lambda: np.exp(2 * (x @ y.T) - (x * x).sum(1)[:, None] - (y * y).sum(1)).sum(1),
            "ours": lambda: kernel.sum(axis=1),
        }
        samples = measure(methods, rounds=3)
        return samples.best("np") / samples.best("ours")

    track_ratio_to_numpy.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks
