"""Write the rows of ``python asv_bench/run.py ... --json`` as a result of asv, for a machine whose time is short.

    python asv_bench/from_bench.py FILE.json --benchmark bench_cuda_scans
        --machine h200 --commit HEAD --environment existing-py3.12-torch2.11-cuda13.0

A benchmark of asv that tracks a case's value, its milliseconds or its ratio to a peer measures it in the same way.
This program names the cases as asv does and writes them under the commit that was measured, for all benchmarks
whose names begin with the given one. Cases that the file does not have stay empty.
"""

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

from publishable import arguments_of

RESULTS = Path(__file__).parent / "results"
OURS = "upsweep"


def label(row: dict[str, Any]) -> str:
    """The case of a row as the benchmarks name it; with the peer before it in a peer's row."""
    peer = row.get("method") or OURS
    case = f"{row['case'].removeprefix(f'{peer} against ')}, {row['dtype']}"
    return case if peer == OURS else f"{peer}: {case}"


def values(benchmark: dict[str, Any], rows: list[dict[str, Any]]) -> list[float | None]:
    """The value of each of a benchmark's parameters, as asv writes these: cases, with their dtype or without."""
    names: list[str] = [ast.literal_eval(parameter) for parameter in benchmark["params"][0]]
    of_cases: dict[str, float | None] = {}
    for row in rows:
        name = next((name for name in names if f"{label(row)}, ".startswith(f"{name}, ")), None)
        if name is not None:
            in_ms = benchmark["unit"] == "ms" and row["seconds"] is not None
            of_cases[name] = row["seconds"] * 1e3 if in_ms else row["value"]
    return [of_cases.get(name) for name in names]


def main(arguments: list[str] | None = None) -> Path:
    from asv.results import Results
    from asv.runner import BenchmarkResult

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="written by --json")
    parser.add_argument(
        "--benchmark", required=True, metavar="NAME", help="how names in results/benchmarks.json begin"
    )
    parser.add_argument("--machine", required=True, metavar="NAME", help="a folder of results/")
    options, commit, date = arguments_of(parser, arguments)
    benchmarks = json.loads((RESULTS / "benchmarks.json").read_text())
    rows = json.loads(options.file.read_text())["rows"]
    machine = json.loads((RESULTS / options.machine / "machine.json").read_text())
    machine.pop("version", None)
    target = RESULTS / options.machine / f"{commit[:8]}-{options.environment}.json"
    if target.exists():
        result = Results.load(str(target))
    else:
        result = Results(
            {**machine, "python": options.python}, {}, commit, date, options.python, options.environment, {}
        )
    written = 0
    for name, benchmark in benchmarks.items():
        is_list = (
            name.startswith(options.benchmark) and benchmark["type"] == "track" and len(benchmark["params"]) == 1
        )
        numbers = values(benchmark, rows) if is_list else []
        n_values = sum(number is not None for number in numbers)
        if n_values:
            empty = [None] * len(numbers)
            measured = BenchmarkResult(numbers, empty, empty, 0, "", None)
            result.add_result(benchmark, measured, record_samples=False)
            written += n_values
    if not written:
        parser.error(f"no benchmark {options.benchmark}* has a case of the {len(rows)} rows")
    print(f"{written} values of {len(rows)} rows", file=sys.stderr)
    result.save(str(RESULTS))
    return target


if __name__ == "__main__":
    print(main())
