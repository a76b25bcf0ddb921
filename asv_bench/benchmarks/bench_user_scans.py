"""User-defined scans: times, fractions of a copy, ratios to numba, scipy and numpy, small calls, first uses.

Loops are numba's where it is installed; without it those ratios are missing.
"""

import subprocess
import sys
import tempfile
from functools import cache, partial

import numpy as np
import upsweep
from upsweep.bench.timing import copiers, measure
from upsweep_bench import peers, user_scans

from . import attributes

CASES = {case.name: case for case in user_scans.updates()}


@cache
def arrays(name: str) -> user_scans.Arrays:
    return CASES[name].arrays()


@cache
def numba_loop(name: str):
    loop = peers.bind("numba", CASES[name])
    return None if loop is None else partial(loop, *arrays(name).inputs[0])


@cache
def ours(name: str):
    """The scan into existing memory, like the calls it is compared with."""
    return partial(arrays(name).call(CASES[name].function(arrays(name))), 0)


class Updates:
    params = (tuple(CASES),)
    param_names = ("case",)
    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_scan(self, case: str) -> None:
        ours(case)()

    @attributes(
        unit="of the fastest copy", version="c478fa30083b2b12e8b879b9cb2d047f36599bb24e82bf976a2279e32c21e025"
    )
    def track_of_copy(self, case: str) -> float:
        """The time of the fastest copy of the same bytes over that of the scan."""
        (x,) = arrays(case).inputs[0]
        copies = copiers(x, np.empty_like(x), upsweep.get_num_threads())
        samples = measure({**copies, "ours": ours(case)}, rounds=3, burst=3)
        return min(samples.best(name) for name in copies) / samples.best("ours")

    def track_ratio_to_numba(self, case: str) -> float:
        """A numba loop's time over the scan's, measured in turns."""
        loop = numba_loop(case)
        if loop is None:
            return float("nan")
        samples = measure({"numba": loop, "ours": ours(case)}, rounds=2, burst=2)
        return samples.best("numba") / samples.best("ours")

    track_ratio_to_numba.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks


class Calls:
    """Of arrays so small that the call is all: what a later call of its kind costs."""

    number = 200
    repeat = (3, 12, 0.2)
    warmup_time = 0.01

    def setup(self) -> None:
        self.x = np.zeros((4, 8), np.float32)
        self.out = np.empty_like(self.x)
        self.time_scan()
        self.time_scan_into_out()
        self.time_lfilter()

    def time_scan(self) -> None:
        upsweep.scan(user_scans.average, 0.0, self.x)

    def time_scan_into_out(self) -> None:
        upsweep.scan(user_scans.average, 0.0, self.x, out=self.out)

    def time_lfilter(self) -> None:
        upsweep.lfilter([0.5, 0.1], [1.0, -0.2], self.x)


class Averages:
    """The largest line of the cases, by an update of its own and by discounted_cumsum."""

    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    case = "average of a line of 10,000,000"

    @attributes(unit="times upsweep", version="9819e4bf14f7f7c57eab0a2dc322d4ad50e43e64917482434981722cad7ff0db")
    def track_ratio_to_discounted_cumsum(self) -> float:
        (x,) = arrays(self.case).inputs[0]
        y = np.zeros_like(x)
        methods = {"theirs": lambda: upsweep.discounted_cumsum(x, 0.9, out=y), "ours": ours(self.case)}
        samples = measure(methods, rounds=3, burst=3)
        return samples.best("theirs") / samples.best("ours")


class Filters:
    """One line of 10 million numbers; float64."""

    number = 1
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01
    b, a = (0.06745527, 0.13491055, 0.06745527), (1.0, -1.1429805, 0.4128016)

    @staticmethod
    @cache
    def line() -> np.ndarray:
        return np.random.default_rng(0).standard_normal(10_000_000)

    def time_lfilter_of_order_2(self) -> None:
        upsweep.lfilter(self.b, self.a, self.line())

    def time_ewm_mean(self) -> None:
        upsweep.ewm_mean(self.line(), alpha=0.1)

    def time_gradient(self) -> None:
        x = self.line()[:1_000_000]
        upsweep.scan.gradient(user_scans.average, 0.0, x, x)

    def track_lfilter_ratio_to_scipy(self) -> float:
        from scipy import signal

        x = self.line()
        methods = {
            "scipy": lambda: signal.lfilter(self.b, self.a, x),
            "ours": lambda: upsweep.lfilter(self.b, self.a, x),
        }
        samples = measure(methods, rounds=2, burst=2)
        return samples.best("scipy") / samples.best("ours")

    track_lfilter_ratio_to_scipy.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks


class FirstUse:
    """A new process' first scan, less what a second update of the same form takes; milliseconds."""

    PROGRAM = """
import time
import numpy as np, upsweep, llvmlite.binding
x = np.ones((64, 64), np.float32)
upsweep.scan(lambda s, x: s * s, 1.0, x)
begin = time.perf_counter()
upsweep.scan(lambda s, x: np.tanh(s + x), 0.0, x)
print(1e3 * (time.perf_counter() - begin))
"""

    @staticmethod
    def _milliseconds(folder: str) -> float:
        import os

        environment = {**os.environ, "UPSWEEP_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", FirstUse.PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    def track_compiled(self) -> float:
        return min(self._milliseconds("") for _ in range(3))

    def track_from_the_disk(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return min(self._milliseconds(folder) for _ in range(4))

    track_compiled.unit = track_from_the_disk.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
