"""Programs of te: times, fractions of a copy, ratios to numpy's steps and numba's loop, builds.

Loops are numba's where it is installed; without it those ratios are missing.
"""

from functools import cache, partial

import numpy as np
import upsweep
from upsweep.bench.timing import copiers, measure
from upsweep_bench import peers, te_programs

from . import attributes

PROGRAMS = {each.name: each for each in te_programs.PROGRAMS}
OF_COLUMNS = tuple(name for name, program in PROGRAMS.items() if not program.n_gates)


@cache
def arrays(name: str) -> te_programs.Arrays:
    return PROGRAMS[name].arrays()


@cache
def call(name: str):
    """A built program with its arrays."""
    return partial(arrays(name).call(PROGRAMS[name].function(arrays(name))), 0)


def ratio(name: str, methods: dict) -> float:
    """The fastest of the peers' times over the program's, measured in turns."""
    samples = measure({**methods, "ours": call(name)}, rounds=3, burst=3)
    return min(samples.best(peer) for peer in methods) / samples.best("ours")


class Programs:
    params = (tuple(PROGRAMS),)
    param_names = ("program",)
    # Samples of one call would be of cold caches, and of timers, where calls take microseconds.
    number = 5
    repeat = (3, 12, 0.2)
    rounds = 1
    warmup_time = 0.01

    def time_call(self, name: str) -> None:
        call(name)()

    @attributes(unit="times upsweep", version="f43ad3910422ffde460d99662a7e93b10ebf2241ed2830a6307086b05c56527d")
    def track_ratio_to_numpy(self, name: str) -> float:
        """The time of numpy, step by step (of sums: np.cumsum), over the program's."""
        results, inputs = arrays(name).new_results(), arrays(name).inputs[0]
        return ratio(name, {"numpy": partial(PROGRAMS[name].steps, *results, *inputs)})


class Columns:
    params = (OF_COLUMNS,)
    param_names = ("program",)

    @attributes(
        unit="of the fastest copy", version="07bde6cfeb8b2fefc5625a03a4a751eeefccdb3e83c4369269b503497a85ae8c"
    )
    def track_of_copy(self, name: str) -> float:
        """The time of the fastest copy of the same bytes over the program's."""
        (x,) = arrays(name).inputs[0]
        return ratio(name, copiers(x, np.zeros_like(x), upsweep.get_num_threads()))

    @attributes(unit="times upsweep", version="c35c2dd1e15f2fb7a042ceefabc678ee5ccfb6a87d8d229d8942b91a818bb541")
    def track_ratio_to_numba(self, name: str) -> float:
        """A numba loop's time over the tanh recurrence's."""
        is_compared = any(peer == "numba" for peer, _ in PROGRAMS[name].peers)
        loop = peers.bind("numba", PROGRAMS[name]) if is_compared else None
        return float("nan") if loop is None else ratio(name, {"numba": partial(loop, *arrays(name).inputs[0])})


class Builds:
    """`te.build` in a new process; milliseconds."""

    params = (("cumulative_sum", "lstm"),)
    param_names = ("program",)

    def track_new(self, name: str) -> float:
        return te_programs.build_milliseconds(name, from_disk=False)

    def track_from_the_disk(self, name: str) -> float:
        return te_programs.build_milliseconds(name, from_disk=True)

    track_new.unit = track_from_the_disk.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
