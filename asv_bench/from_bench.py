"""Write the rows of ``python asv_bench/run.py ... --json`` as a result of asv, for a machine whose time is short.

    python asv_bench/from_bench.py FILE.json --benchmark bench_cuda_pairs.Reductions.track_milliseconds
        --machine h200 --commit HEAD --environment existing-py3.12-torch2.11-cuda13.0

A benchmark of asv that tracks a case's value measures it in the same way. This program names the cases as asv does
and writes them under the commit that was measured. Cases that the file does not have stay empty.
"""

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from publishable import arguments_of

RESULTS = Path(__file__).parent / "results"


def values(parameters: list[str], rows: list[dict[str, Any]], part: bool = False) -> list[float | None]:
    """The value of each of a benchmark's parameters, as asv writes these: cases, with their dtype or without.

    Raises ValueError for a row of no parameter, unless the rows are a `part` of other benchmarks' too.
    """
    names: list[str] = [ast.literal_eval(parameter) for parameter in parameters]
    by_name: dict[str, float] = {}
    for row in rows:
        label = f"{row['case']}, {row['dtype']}"
        name = next((name for name in names if label == name or label.startswith(f"{name}, ")), None)
        if name is not None:
            by_name[name] = row["value"]
        elif not part:
            raise ValueError(f"the benchmark has no case {label!r}")
    return [by_name.get(name) for name in names]


def main(arguments: list[str] | None = None) -> Path:
    from asv.results import Results
    from asv.runner import BenchmarkResult

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="written by --json")
    parser.add_argument("--benchmark", required=True, metavar="NAME", help="one of results/benchmarks.json")
    parser.add_argument("--machine", required=True, metavar="NAME", help="a folder of results/")
    parser.add_argument("--part", action="store_true", help="the file has cases of other benchmarks, too")
    options, commit, date = arguments_of(parser, arguments)
    benchmark = json.loads((RESULTS / "benchmarks.json").read_text())[options.benchmark]
    numbers = values(benchmark["params"][0], json.loads(options.file.read_text())["rows"], options.part)
    machine = json.loads((RESULTS / options.machine / "machine.json").read_text())
    machine.pop("version", None)
    target = RESULTS / options.machine / f"{commit[:8]}-{options.environment}.json"
    if target.exists():
        result = Results.load(str(target))
    else:
        result = Results(
            {**machine, "python": options.python}, {}, commit, date, options.python, options.environment, {}
        )
    empty = [None] * len(numbers)
    result.add_result(benchmark, BenchmarkResult(numbers, empty, empty, 0, "", None), record_samples=False)
    result.save(str(RESULTS))
    return target


if __name__ == "__main__":
    print(main())
