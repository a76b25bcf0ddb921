"""Reads the results of asv in ``asv_bench/results``: of each case the newest value, with its commit.

Results of an earlier version of a benchmark are left out, as asv leaves them out. Used by ``performance_page.py``
and ``publish.py``; needs neither asv nor a built upsweep.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Measurement", "Results", "result_files"]

RESULTS = Path(__file__).parents[1] / "results"
_SECONDS = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class Measurement:
    """A value, in seconds where it is a time, and the commit that was measured, with its date."""

    value: float
    commit: str
    day: date


def result_files(folder: Path = RESULTS) -> Iterator[Path]:
    """The results of all machines, one file for each commit and environment."""
    return (path for path in sorted(folder.glob("*/*.json")) if path.name != "machine.json")


def _text(parameter: str) -> str:
    """A parameter as a benchmark names it, from its repr."""
    return str(ast.literal_eval(parameter))


class Results:
    """The newest value of each case of each benchmark, on each machine."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._benchmarks = json.loads((folder / "benchmarks.json").read_text())
        self._values: dict[tuple[str, str], dict[tuple[str, ...], Measurement]] = {}
        loaded = ((path.parent.name, json.loads(path.read_text())) for path in result_files(folder))
        for machine, result in sorted(loaded, key=lambda pair: int(pair[1]["date"])):
            for name, row in result["results"].items():
                self._add(machine, name, dict(zip(result["result_columns"], row)), result)

    def _add(self, machine: str, name: str, row: dict[str, Any], result: dict[str, Any]) -> None:
        benchmark = self._benchmarks.get(name)
        if benchmark is None or row.get("version") != benchmark["version"] or row["result"] is None:
            return
        day = datetime.fromtimestamp(result["date"] / 1000, UTC).date()
        values = self._values.setdefault((machine, name), {})
        scale = _SECONDS.get(benchmark["unit"], 1.0)
        for case, value in zip(product(*row["params"]), row["result"]):
            if value is not None and not math.isnan(value):
                names = tuple(map(_text, case))
                values[names] = Measurement(value * scale, result["commit_hash"][:7], day)

    def get(self, machine: str, benchmark: str, *case: str) -> Measurement | None:
        """The newest value of a case, or None."""
        return self._values.get((machine, benchmark), {}).get(case)

    def cases(self, machine: str, *benchmarks: str) -> list[tuple[str, ...]]:
        """The cases of which one of the benchmarks has a value, in the order of the benchmarks' parameters."""
        measured = {case for name in benchmarks for case in self._values.get((machine, name), {})}
        known = [name for name in benchmarks if name in self._benchmarks]
        order = (tuple(map(_text, case)) for name in known for case in product(*self._benchmarks[name]["params"]))
        return [case for case in dict.fromkeys(order) if case in measured]
