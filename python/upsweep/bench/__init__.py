"""``python -m upsweep bench``: how fast this installation is on this machine, beside a copy and the peers.

First the correctness checks of ``upsweep.selftest``; where one is red, no speed is reported. With
``--device cuda`` each case is checked on the device instead (``upsweep.bench.cuda``), and of what is sharded over
ranks each by all of them (``upsweep.bench.distributed``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from upsweep import selftest
from upsweep._utils.progress import Progress
from upsweep.bench import counts, distributed, histograms, machine, pairs, peers, report, scans, sweep, user_scans

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("family", choices=("scans", "counts", "pairs", "userscan", "distributed"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (matplotlib)")
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of upsweep and of the copies")
    parser.add_argument("--only", default="", metavar="SUBSTR", help="cases that contain this")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: of CUDA tensors")
    distributed.add_arguments(parser)
    sweep.add_arguments(parser)
    parser.set_defaults(refuse=parser.error)


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    _check_options(options)
    if options.family == "distributed":
        return distributed.run(options)
    if options.device == "cuda":
        from upsweep.bench import cuda

        return cuda.run(options)
    is_scans = options.family == "scans"
    if not selftest.run(counts=options.family == "counts", verbose=False):
        print("results are wrong: no speed is reported")
        return 1
    described = machine.describe()
    if options.threads is not None:
        described["threads"] = options.threads
    print(f"correctness: every check passed\n{machine.text(described)}, {described['threads']} threads\n")
    families = {"scans": scans, "counts": counts, "pairs": pairs, "userscan": user_scans}
    family = families[options.family]
    with Progress("measuring") as progress:
        rows = family.run(options.only, options.quick, options.threads, progress.update)
        if options.family == "counts":
            rows += histograms.run(options.only, options.quick, options.threads, progress.update)
    if is_scans:
        rows += _selected(peers.small_calls(options.quick), options.only)
        rows += _selected(peers.peers(options.quick), options.only)
    if not rows:
        print(f"no case contains {options.only!r}")
        return 2
    report.print_table(rows)
    if options.json:
        report.write_json(options.json, described, rows)
    if options.plot:
        report.write_plot(options.plot, machine.text(described), rows)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Leave with argparse's message where options do not go together."""
    flags = sweep.given(options)
    if options.device == "cpu" and flags:
        options.refuse(f"argument {flags[0]}: needs scans --device cuda")
    if options.family != "scans" and flags:
        options.refuse(f"argument {flags[0]}: is about scans")
    of_ranks = distributed.given(options)
    if options.family != "distributed" and of_ranks:
        options.refuse(f"argument {of_ranks[0]}: is about distributed")
    if options.device == "cuda" and options.family == "distributed":
        options.refuse("argument --device: of distributed, --backend nccl is of CUDA tensors")
    if options.device == "cuda" and options.threads is not None:
        options.refuse("argument --threads: is about the CPU, and --device is cuda")


def _selected(rows: Sequence[report.Row], only: str) -> list[report.Row]:
    return [row for row in rows if only in f"{row.case}, {row.dtype}"]
