"""``python -m upsweep bench scans --device cuda``: what has to be there, the gate, the table, the pictures.

The gate is part of each case: its answer is compared with float64 before it is timed. Once one was wrong, the
others are checked only, and no speed is reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from upsweep._progress import Progress
from upsweep.bench import cuda_cases, figures, machine, report, sweep
from upsweep.bench.cuda_cases import Case
from upsweep.bench.report import Row

__all__ = ["run", "why_not"]


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
        print(f"bench scans --device cuda: {reason}", file=sys.stderr)
        return 2
    if sweep.given(options):
        chosen = sweep.Sweep.of(options)
        cases, rounds, warmup = chosen.cases(), chosen.iters, chosen.warmup
    else:
        cases, rounds, warmup = cuda_cases.cases(options.quick), 5 if options.quick else 15, 2
    cases = [case for case in cases if options.only in f"{case.name}, {case.dtype}"]
    if not cases:
        print(f"no case contains {options.only!r}")
        return 2
    from upsweep.bench import cuda_peers

    described = machine.describe_cuda()
    absent = cuda_peers.missing()
    print(machine.text(described) + (f"\nnot installed: {', '.join(absent)}" if absent else ""), flush=True)
    rows, wrong, lost = measure(cases, rounds, warmup)
    if wrong:
        print("results are wrong: no speed is reported", *wrong, sep="\n")
        return 1
    print("correctness: every answer was within rounding of float64\n")
    report.print_table(rows)
    if lost:
        print(f"the device can no longer be used, the table ends here: {lost}")
    _write(options, described, rows)
    return 1 if lost else 0


def measure(cases: Sequence[Case], rounds: int, warmup: int) -> tuple[list[Row], list[str], str]:
    """The rows of the cases; what was wrong; why the device was lost, if it was."""
    from upsweep.bench import cuda_scans

    rows: list[Row] = []
    wrong: list[str] = []
    with Progress("measuring") as progress:
        # All of its own first: a peer may take the device with it.
        own = [replace(case, peers=()) for case in cases]
        against = [case for case in cases if case.peers]
        for done, case in enumerate((*own, *against)):
            try:
                if wrong:
                    cuda_scans.check(case, cuda_scans.Tensors(case, 1))
                else:
                    measured = cuda_scans.measure_case(case, rounds, warmup)
                    rows += measured[1:] if case.peers else measured
            except NotImplementedError as error:
                if case.peers:
                    continue  # said with its own row
                rows.append(Row(case.name, case.dtype, None, None, "", case.bar, note=str(error)))
            except cuda_scans.WrongResult as error:
                wrong.append(str(error))
            except cuda_scans.ContextLost as error:
                return rows, wrong, str(error)
            progress.update(done + 1, len(own) + len(against))
    return rows, wrong, ""


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
