"""``python -m upsweep bench``: the main operations on this machine, compared with a memory copy and other
packages.

First the results are checked: on the CPU by ``upsweep.selftest``, and of every case against a numpy reference.
Where one is wrong, no speed is reported. A line of the table has a case's speed as a fraction of that of a copy of
as many bytes, and a peer's time over upsweep's. Every benchmark case, with thresholds, more peers, sweeps, figures
and ranks, is in ``asv_bench`` of the source distribution.

    __init__ (command)  ->  cases      the inputs, calls, references and peers
                        ->  timing     interleaved samples, memory copies, CUDA events
                        ->  report     rows as a table or JSON;  machine: what they were measured on
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import upsweep
from upsweep import selftest
from upsweep._utils.progress import Progress
from upsweep.bench import machine, report, timing
from upsweep.bench.cases import FAMILIES, LARGE, SMALL, SMALLEST, Case, cases, to_device
from upsweep.bench.report import Row

__all__ = ["add_arguments", "reason_not_to_run", "run"]

_CALLS = 20  # of a CUDA sample


def add_arguments(parser: argparse.ArgumentParser, families: Sequence[str] = FAMILIES) -> None:
    """Declare the options of the command."""
    parser.add_argument("family", choices=families, nargs="?", default=families[0], help=f"default: {families[0]}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and rows to this file")
    parser.add_argument("--quick", action="store_true", help="fewer or smaller cases, fewer rounds")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of upsweep and of the copies")
    parser.add_argument("--only", default="", metavar="SUBSTR", help="cases that contain this")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: of CUDA tensors")


def reason_not_to_run() -> str | None:
    """Why the CUDA benchmarks cannot run on this machine, or None."""
    if importlib.util.find_spec("torch") is None:
        return "needs torch, which is not installed"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        upsweep.cumulative_sum(torch.ones(2, device="cuda"))
    except (ImportError, RuntimeError) as error:
        return f"upsweep cannot use the device: {error}"
    return None


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    on_cpu = options.device == "cpu"
    reason = None if on_cpu else reason_not_to_run()
    if reason is not None:
        print(f"bench {options.family} --device {options.device}: {reason}", file=sys.stderr)
        return 2
    if on_cpu and not selftest.run(counts=options.family == "counts", verbose=False):
        print("results are wrong: no speed is reported")
        return 1
    before = upsweep.get_num_threads()
    try:
        if options.threads is not None:
            upsweep.set_num_threads(options.threads)
        described = machine.describe() if on_cpu else machine.describe_cuda()
        print(f"{machine.text(described)}\n", flush=True)
        rows, wrong = _measure_all(options)
    finally:
        upsweep.set_num_threads(before)
    if wrong:
        print("results are wrong: no speed is reported", *wrong, sep="\n")
        return 1
    if not rows:
        print(f"no case contains {options.only!r}")
        return 2
    report.print_cases(rows)
    if options.json:
        report.write_json(options.json, described, rows)
    return 0


def _measure_all(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """The rows, and what was wrong; once something was wrong, cases are only checked."""
    rows: list[Row] = []
    wrong: list[str] = []
    n = SMALL if options.quick else LARGE
    total = sum(1 for _ in cases(options.family, options.device, SMALLEST))
    with Progress("measuring") as progress:
        for done, case in enumerate(cases(options.family, options.device, n)):
            progress.update(done, total)
            if options.only not in f"{case.name}, {case.dtype}":
                continue
            inputs = tuple(to_device(x, options.device) for x in case.inputs)
            error = case.error(case.call(*inputs))
            if not error <= case.tolerance:
                wrong.append(f"{case.name}, {case.dtype}: error {error:.2g}, at most {case.tolerance:.2g} allowed")
            elif not wrong:
                rows += _measure(case, inputs, options.device, rounds=3 if options.quick else 7)
    return rows, wrong


def _measure(case: Case, inputs: tuple[Any, ...], device: str, rounds: int) -> list[Row]:
    """The row of a case and those of its peers."""
    peers = {name: partial(peer, *inputs) for name, peer in case.peers.items() if peer is not None}
    methods: dict[str, Callable[[], object]] = {"upsweep": partial(case.call, *inputs), **peers}
    half = np.ones(case.n_bytes // 2, np.uint8)
    target = to_device(np.zeros_like(half), device)
    if device == "cpu":
        copies = timing.copiers(half, target, upsweep.get_num_threads()) if case.n_bytes else {}
        samples = timing.measure({**methods, **copies}, rounds)
        samples.merge("copy")
        seconds = {name: min(times) for name, times in samples.seconds.items()}
    else:
        source = to_device(half, device)
        samples = _measure_cuda(
            {**methods, **({"copy": partial(target.copy_, source)} if case.n_bytes else {})}, rounds
        )
        seconds = {name: statistics.median(times) for name, times in samples.seconds.items()}
    ours = seconds["upsweep"]
    value = seconds["copy"] / ours if "copy" in seconds else case.n_pairs / ours / 1e9
    unit = "of copy" if "copy" in seconds else "Gpairs/s"
    fields: dict[str, Any] = {"contention": None if samples.quiet else samples.others}
    n_bytes = case.n_bytes or None
    rows = [Row(case.name, case.dtype, ours, value, unit, n_bytes=n_bytes, method="upsweep", **fields)]
    for name in peers:
        title = f"{name} against {case.name}"
        rows.append(Row(title, case.dtype, seconds[name], seconds[name] / ours, "x", method=name, **fields))
    return rows


def _measure_cuda(methods: dict[str, Callable[[], object]], rounds: int) -> timing.Samples:
    """Seconds a call of consecutive launches, the methods in turn, after one round that does not count."""

    def launch(call: Callable[[], object]) -> None:
        for _ in range(_CALLS):
            call()

    samples = timing.Samples({name: [] for name in methods})
    for turn in range(-1, rounds):
        for name, call in methods.items():
            seconds = timing.event_seconds(partial(launch, call)) / _CALLS
            if turn >= 0:
                samples.seconds[name].append(seconds)
    return samples
