"""Programs of te: times, fractions of a copy, ratios to numpy's steps and numba's loop, builds.

Loops are numba's where it is installed; without it those ratios are missing.
"""

from functools import cache, partial

import numpy as np
import upsweep
from upsweep.bench import te_programs
from upsweep.bench.harness import copiers, measure

# The tanh recurrence is there twice, with other peers.
PROGRAMS = {each.name: each for each in te_programs.PROGRAMS if each.peer != "numpy" or each.n_gates}
OF_COLUMNS = tuple(name for name, program in PROGRAMS.items() if not program.n_gates)


@cache
def call(name: str):
    """A built program with its arrays."""
    program = PROGRAMS[name]
    return partial(program.make(), *program.inputs(), *program.results())


def ratio(name: str, peers: dict) -> float:
    """The fastest of the peers' times over the program's, measured in turns."""
    samples = measure({**peers, "ours": call(name)}, rounds=3, burst=3)
    return min(samples.best(peer) for peer in peers) / samples.best("ours")


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

    def track_ratio_to_numpy(self, name: str) -> float:
        """The time of numpy, step by step (of sums: np.cumsum), over the program's."""
        program = PROGRAMS[name]
        return ratio(name, {"numpy": partial(program.steps, *program.results(), *program.inputs())})

    track_ratio_to_numpy.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks


class Columns:
    params = (OF_COLUMNS,)
    param_names = ("program",)

    def track_of_copy(self, name: str) -> float:
        """The time of the fastest copy of the same bytes over the program's."""
        (x,) = PROGRAMS[name].inputs()
        return ratio(name, copiers(x, np.zeros_like(x), upsweep.get_num_threads()))

    track_of_copy.unit = "of the fastest copy"  # type: ignore[attr-defined]  # where asv looks

    def track_ratio_to_numba(self, name: str) -> float:
        """A numba loop's time over the tanh recurrence's."""
        (x,) = PROGRAMS[name].inputs()
        loop = te_programs.numba_loop(np.zeros_like(x), x) if PROGRAMS[name].peer == "numba" else None
        return float("nan") if loop is None else ratio(name, {"numba": loop})

    track_ratio_to_numba.unit = "times upsweep"  # type: ignore[attr-defined]  # where asv looks


class Builds:
    """`te.build` in a new process; milliseconds."""

    params = (("cumulative_sum", "lstm"),)
    param_names = ("program",)

    def track_new(self, name: str) -> float:
        return te_programs.build_milliseconds(name, from_disk=False)

    def track_from_the_disk(self, name: str) -> float:
        return te_programs.build_milliseconds(name, from_disk=True)

    track_new.unit = track_from_the_disk.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
