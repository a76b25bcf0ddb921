"""``python -m upsweep bench FAMILY --device cuda``: what has to be there, the gate, the table, pictures.

The gate is part of each case: its answer is compared with that of a sure way in float64 before it is timed. Once
one was wrong, the others are checked only, and no speed is reported.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from upsweep._utils.progress import Progress
from upsweep.bench import (
    cuda_cases,
    cuda_count_cases,
    cuda_pair_cases,
    cuda_te_cases,
    cuda_userscan_cases,
    figures,
    isolated,
    machine,
    report,
    sweep,
)
from upsweep.bench.report import Row

__all__ = ["run", "why_not"]

_CASES: dict[str, tuple[Any, ...]] = {
    "scans": (cuda_cases,),
    "counts": (cuda_count_cases,),
    "pairs": (cuda_pair_cases,),
    "userscan": (cuda_userscan_cases, cuda_te_cases),
}
# These import torch.
_MEASURED_BY = {
    cuda_cases.Case: "cuda_scans",
    cuda_count_cases.Case: "cuda_counts",
    cuda_pair_cases.Case: "cuda_pairs",
    cuda_userscan_cases.Case: "cuda_userscan",
    cuda_te_cases.Case: "cuda_te",
}


def why_not() -> str | None:
    """What keeps the benchmarks from running here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "needs torch, which is not installed"
    import torch

    import upsweep

    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        upsweep.cumulative_sum(torch.ones(2, device="cuda"))
    except (ImportError, RuntimeError) as error:
        return f"upsweep cannot use the device: {error}"
    return None


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    reason = why_not()
    wants_picture = options.plot is not None or options.outdir is not None
    if reason is None and wants_picture and not figures.can_draw():
        reason = "--plot and --outdir need matplotlib, which is not installed"
    if reason is not None:
        print(f"bench {options.family} --device cuda: {reason}", file=sys.stderr)
        return 2
    cases: list[Any]
    rounds, warmup = 5 if options.quick else 15, 2
    if sweep.given(options):
        chosen = sweep.Sweep.of(options)
        cases, rounds, warmup = list(chosen.cases()), chosen.iters, chosen.warmup
    else:
        cases = [case for module in _CASES[options.family] for case in module.cases(options.quick)]
    cases = [case for case in cases if options.only in f"{case.name}, {case.dtype}"]
    if not cases:
        print(f"no case contains {options.only!r}")
        return 2
    from upsweep.bench import cuda_peers

    described = machine.describe_cuda()
    wanted = {name for case in cases for name, _ in case.peers}
    absent = [name for name in cuda_peers.missing() if name in wanted]
    print(machine.text(described) + (f"\nnot installed: {', '.join(absent)}" if absent else ""), flush=True)
    rows, wrong = measure(cases, rounds, warmup)
    if wrong:
        print("results are wrong: no speed is reported", *wrong, sep="\n")
        return 1
    print("correctness: every answer was within rounding of float64\n")
    report.print_table(rows)
    _write(options, described, rows)
    return 0


def _measuring(case: Any) -> Any:
    """The module that checks and times a case; all have the same functions."""
    return importlib.import_module(f"upsweep.bench.{_MEASURED_BY[type(case)]}")


def measure(cases: Sequence[Any], rounds: int, warmup: int) -> tuple[list[Row], list[str]]:
    """The rows of the cases, those of upsweep before those of its peers; or what was wrong."""
    rows: list[Row] = []
    wrong: list[str] = []
    against = by_peer(cases)
    with Progress("measuring") as progress:
        n_steps = len(cases) + sum(len(items) for items in against.values())
        for done, case in enumerate(cases):
            _measure_own(_measuring(case), replace(case, peers=()), rounds, warmup, rows, wrong)
            progress.update(done + 1, n_steps)
        if wrong:
            return [], wrong
        _measuring(cases[0]).release_memory()
        done = len(cases)
        found: dict[tuple[Any, str], list[Row]] = {}
        for name, items in against.items():
            # Each peer in a process of its own: some take the device, or the interpreter, with them.
            results = isolated.each(partial(_measure_peer, rounds=rounds, warmup=warmup), items)
            for item, (measured, reason) in zip(items, results):
                failed = report.Row(
                    _measuring(item).title(name, item), item.dtype, None, None, "x", item.peers[0][1],
                    note=f"not timed: {reason.strip().partition(chr(10))[0][:160]}", method=name,
                    length=item.length, family=item.family,
                )  # fmt: skip
                found[replace(item, peers=()), name] = [failed] if measured is None else measured
                done += 1
                progress.update(done, n_steps)
    for case in cases:
        for name, _ in case.peers:
            rows += found.get((replace(case, peers=()), name), [])
    return rows, []


def by_peer(cases: Sequence[Any]) -> dict[str, list[Any]]:
    """For each installed peer its cases, with no other peer."""
    from upsweep.bench import cuda_peers

    absent = cuda_peers.missing()
    found: dict[str, list[Any]] = {}
    for case in cases:
        for name, bar in case.peers:
            if name not in absent:
                found.setdefault(name, []).append(replace(case, peers=((name, bar),)))
    return found


def _measure_own(measuring: Any, case: Any, rounds: int, warmup: int, rows: list[Row], wrong: list[str]) -> None:
    """Append the case's row; once something was wrong, only check it."""
    try:
        if wrong:
            measuring.check(case, measuring.Tensors(case, 1))
        else:
            rows += measuring.measure_case(case, rounds, warmup)
    except NotImplementedError as error:
        rows.append(Row(case.name, case.dtype, None, None, "", case.bar, note=str(error)))
    except measuring.WrongResult as error:
        wrong.append(str(error))


def _measure_peer(case: Any, rounds: int, warmup: int) -> list[Row]:
    """The peer's row alone, from a run in turns with upsweep's own."""
    rows: list[Row] = _measuring(case).measure_case(case, rounds, warmup)
    return rows[1:]


def _write(options: argparse.Namespace, described: dict[str, Any], rows: Sequence[Row]) -> None:
    title = machine.text(described)
    if options.json:
        report.write_json(options.json, described, rows)
    if sweep.given(options):
        if not figures.can_draw():
            print("the figures need matplotlib, which is not installed")
            return
        for path in sweep.write_figures(sweep.Sweep.of(options).outdir, title, rows):
            print(f"wrote {path}")
    if options.plot:
        figures.write_against_length(options.plot, title, rows)
