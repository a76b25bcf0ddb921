"""Reductions over pairs: times, pairs a second and core, block-sparse against dense, the cost of a call."""

from dataclasses import replace

import numpy as np
import upsweep
from upsweep.bench.timing import measure
from upsweep_bench import compare, pairs
from upsweep_bench.case import microseconds

from . import attributes

N = 10_000
CASES = {case.label: replace(case, n_rows=N, n_columns=N, peers=()) for case in pairs.cases() if case.unit != "us"}
DENSE = [name for name, case in CASES.items() if case.block is None]
SPARSE = [name for name, case in CASES.items() if case.block is not None]


class Dense:
    params = (DENSE,)
    param_names = ("case",)

    @attributes(
        unit="1e9 pairs/s/thread", version="8a7a88c306cc0dcaa9606cd16c971335b6eb03c698026e344c3a8d3d618262b8"
    )
    def track_rate(self, name: str) -> float:
        """Pairs a second and thread, in 1e9."""
        return compare.measure_case(CASES[name], rounds=3)[0].value


class Sparse:
    params = (SPARSE,)
    param_names = ("case",)

    @attributes(unit="of dense", version="17b8d87ac47cb9123d003e8f39c199ec942514abce0cb3324614ce9113b56386")
    def track_share_of_dense(self, name: str) -> float:
        """The rate on the selected pairs over the dense reduction's."""
        return compare.measure_case(CASES[name], rounds=3)[0].value


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
