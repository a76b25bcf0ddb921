"""The command line ``python asv_bench/run.py FAMILY [--device cuda]``: checks, measures, prints, draws.

On the CPU ``upsweep.selftest`` runs first. On both devices each case's answer is compared with a reference
before it is timed. Once one is wrong, the others are only checked, and no speed is reported. On CUDA every peer
runs in a separate process, since some break the CUDA context or crash.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import upsweep
from upsweep import selftest
from upsweep._utils.progress import Progress
from upsweep.bench import add_arguments, machine, reason_not_to_run, report
from upsweep.bench.report import Row

from upsweep_bench import (
    cliffs,
    compare,
    counts,
    distributed,
    figures,
    histograms,
    isolated,
    pairs,
    peers,
    scaling,
    scans,
    sweep,
    te_programs,
    threshold_table,
    user_scans,
)
from upsweep_bench.case import Case

__all__ = ["cases", "main", "measure", "parser", "reason_not_to_run", "run"]

FAMILIES: dict[str, tuple[Any, ...]] = {
    "scans": (scans,),
    "counts": (counts, histograms),
    "pairs": (pairs,),
    "userscan": (user_scans, te_programs),
    "cliffs": (cliffs,),
    "scaling": (scaling,),
}


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog="python asv_bench/run.py", description=(__doc__ or "").partition("\n")[0]
    )
    add_arguments(options, (*FAMILIES, "distributed"))
    options.add_argument("--plot", type=Path, metavar="FILE", help="write a figure (matplotlib)")
    distributed.add_arguments(options)
    sweep.add_arguments(options)
    options.set_defaults(refuse=options.error)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run(parser().parse_args(arguments))


def cases(family: str, quick: bool, device: str, only: str = "") -> list[Case]:
    """The cases of a family whose labels contain `only`."""
    every = (case for module in FAMILIES[family] for case in module.cases(quick, device))
    return [case for case in every if only in case.label]


def _check_options(options: argparse.Namespace) -> None:
    """Exit with argparse's message if options do not go together."""
    on_cuda = options.device == "cuda"
    for flag in sweep.flags_used(options):
        if not on_cuda:
            options.refuse(f"argument {flag}: needs scans --device cuda")
        if options.family != "scans":
            options.refuse(f"argument {flag}: is about scans")
    for flag in distributed.flags_used(options):
        if options.family != "distributed":
            options.refuse(f"argument {flag}: is about distributed")
    if on_cuda and options.family == "distributed":
        options.refuse("argument --device: of distributed, --backend nccl is of CUDA tensors")
    if on_cuda and options.family == "scaling":
        options.refuse("argument --device: scaling is about threads of the CPU")
    if on_cuda and options.threads is not None:
        options.refuse("argument --threads: is about the CPU, and --device is cuda")


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    _check_options(options)
    if options.family == "distributed":
        return distributed.run(options)
    on_cuda = options.device == "cuda"
    reason = reason_not_to_run() if on_cuda else None
    if reason is None and (options.plot or options.outdir) and not figures.can_draw():
        reason = "--plot and --outdir need matplotlib, which is not installed"
    if reason is not None:
        print(f"bench {options.family} --device {options.device}: {reason}", file=sys.stderr)
        return 2
    rounds, warmup = (5 if options.quick else 15) if on_cuda else (2 if options.quick else 5), 2
    if sweep.flags_used(options):
        lengths = sweep.Sweep.of(options)
        rounds, warmup = lengths.iters, lengths.warmup
        chosen: list[Case] = [case for case in lengths.cases() if options.only in case.label]
    else:
        chosen = cases(options.family, options.quick, options.device, options.only)
    if not chosen:
        print(f"no case contains {options.only!r}")
        return 2
    if not on_cuda and not selftest.run(counts=options.family == "counts", verbose=False):
        print("results are wrong: no speed is reported")
        return 1
    before = upsweep.get_num_threads()
    try:
        if options.threads is not None:
            upsweep.set_num_threads(options.threads)
        described = machine.describe_cuda() if on_cuda else machine.describe()
        requested = {name for case in chosen for name, _ in case.peers}
        absent = [name for name in peers.missing() if name in requested]
        threads = "" if on_cuda else f", {upsweep.get_num_threads()} threads"
        print(f"{machine.text(described)}{threads}")
        print(f"not installed: {', '.join(absent)}\n" if absent else "", flush=True)
        rows, wrong = (measure_scaling if options.family == "scaling" else measure)(chosen, rounds, warmup)
    finally:
        upsweep.set_num_threads(before)
    if wrong:
        print("results are wrong: no speed is reported", *wrong, sep="\n")
        return 1
    print("correctness: every answer was within rounding of the reference\n")
    (cliffs.print_rows if options.family == "cliffs" else threshold_table.print_table)(rows)
    _write(options, described, rows)
    return 0


def measure(chosen: Sequence[Case], rounds: int, warmup: int) -> tuple[list[Row], list[str]]:
    """The rows of the cases; or what was wrong."""
    rows: dict[Case, list[Row]] = {}
    wrong: list[str] = []
    # On CUDA peers run later, each in a separate process.
    isolate = by_peer([case for case in chosen if case.on_cuda])
    n_steps = len(chosen) + sum(map(len, isolate.values()))
    with Progress("measuring") as progress:
        for done, case in enumerate(chosen, 1):
            rows[case] = _measure_own(without_peers(case) if case.on_cuda else case, rounds, warmup, wrong)
            progress.update(done, n_steps)
        if wrong:
            return [], wrong
        compare.release_memory(chosen[0])
        done = len(chosen)
        of_peers: dict[tuple[Case, str], list[Row]] = {}
        for name, items in isolate.items():
            results = isolated.each(partial(_measure_peer, rounds=rounds, warmup=warmup), items)
            for item, (measured, reason) in zip(items, results):
                first_line = reason.strip().partition("\n")[0][:160]
                failed = [compare.not_timed(name, item, f"not timed: {first_line}")]
                of_peers[without_peers(item), name] = failed if measured is None else measured
                done += 1
                progress.update(done, n_steps)
    of_cases = [row for case in chosen for row in rows[case]]
    peer_rows = (of_peers.get((without_peers(case), name), []) for case in chosen for name, _ in case.peers)
    return of_cases + [row for measured in peer_rows for row in measured], []


def measure_scaling(chosen: Sequence[Case], rounds: int, warmup: int) -> tuple[list[Row], list[str]]:
    """The rows of the cases with 1, 2, 4, ... threads up to the present number, each beside that of one thread."""
    by_threads: dict[int, list[Row]] = {}
    for n in scaling.thread_counts(upsweep.get_num_threads()):
        upsweep.set_num_threads(n)
        by_threads[n], wrong = measure(chosen, rounds, warmup)
        if wrong:
            return [], wrong
    return scaling.rows(by_threads), []


def without_peers(case: Any) -> Any:
    return replace(case, peers=())


def by_peer(chosen: Sequence[Any]) -> dict[str, list[Any]]:
    """For each installed peer its cases, without the other peers."""
    absent = peers.missing()
    items: dict[str, list[Any]] = {}
    for case in chosen:
        for name, threshold in case.peers:
            if name not in absent:
                items.setdefault(name, []).append(replace(case, peers=((name, threshold),)))
    return items


def _measure_own(case: Any, rounds: int, warmup: int, wrong: list[str]) -> list[Row]:
    """The rows of a case; once something was wrong, cases are only checked."""
    try:
        if not wrong:
            return compare.measure_case(case, rounds, warmup)
        if not hasattr(case, "run"):
            compare.check(case, case.arrays(count=1))
    except NotImplementedError as error:
        return [Row(case.name, case.dtype, None, None, "", case.threshold, note=str(error))]
    except compare.WrongResult as error:
        wrong.append(str(error))
    return []


def _measure_peer(case: Case, rounds: int, warmup: int) -> list[Row]:
    """The peer's row alone, from a run in turn with upsweep's own."""
    return compare.measure_case(case, rounds, warmup)[1:]


def _write(options: argparse.Namespace, described: dict[str, Any], rows: Sequence[Row]) -> None:
    title = machine.text(described)
    if options.json:
        report.write_json(options.json, described, rows)
    if sweep.flags_used(options):
        if not figures.can_draw():
            print("the figures need matplotlib, which is not installed")
            return
        for path in sweep.write_figures(sweep.Sweep.of(options).outdir, title, rows):
            print(f"wrote {path}")
    if options.plot:
        draw: Callable[..., None] = figures.write_fractions
        if options.device == "cuda":
            draw = figures.write_against_length
        draw(options.plot, title, rows)
