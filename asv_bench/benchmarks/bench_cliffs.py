"""Cliffs: the slowest layout, option, dtype or data of each operation, relative to its plain neighbour."""

from functools import cache

from upsweep.bench.report import Row
from upsweep_bench import cliffs, compare


@cache
def rows(operation: str) -> list[Row]:
    """The rows of the quick cases of an operation; a wrong result raises."""
    chosen = [case for case in cliffs.cases(quick=True) if case.operation == operation and case.neighbour]
    return [row for case in chosen for row in compare.measure_case(case, rounds=2)]


class Worst:
    params = (cliffs.OPERATIONS,)
    param_names = ("operation",)
    timeout = 120

    def track_slowest(self, operation: str) -> float:
        """The time over that of the neighbour; layouts may reach 3, data 2."""
        return max(1 / row.value for row in cliffs.worst(rows(operation)) if row.value)

    track_slowest.unit = "times the neighbour"  # type: ignore[attr-defined]  # where asv looks
