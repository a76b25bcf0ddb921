"""Scans over the ranks of one machine: ``python asv_bench/run.py distributed --ranks N`` measures weak scaling.

Every rank holds `--elements` of float32. The value is the time in which the ranks scan their shards separately,
all at once, over the time in which they scan them as one: the cost of being one scan, without the memory that
the ranks share. A time is that of the slowest rank, from a barrier to its own end, the best of many rounds.
Thresholds apply to one call; a second row has the same of consecutive calls without a barrier in between, as in
training.

First every answer is checked on all ranks: every step must follow from the one before it, the first of a shard
from the last of the previous shard.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import upsweep
from upsweep.bench import machine, report
from upsweep.bench.report import Row
from upsweep.bench.timing import Samples

from upsweep_bench import figures, threshold_table

__all__ = ["Case", "add_arguments", "cases", "check", "flags_used", "run"]

_FLAGS = ("ranks", "backend", "elements")
_TIMEOUT = datetime.timedelta(seconds=120)
_PIECE = 1 << 24  # elements that are checked at a time
_CONSECUTIVE = 8  # calls
_LARGE = 1 << 24  # elements of a rank from which thresholds apply: with fewer, messages take most of the time


@dataclass(frozen=True)
class Case:
    """One scan of a shard, rows x steps. Gates "keep" states or "decay"; without gates the factor is `gamma`."""

    operation: str
    rows: int
    threshold: float
    gates: str = ""
    gamma: float = 1.0

    @property
    def name(self) -> str:
        factors = f", gates {self.gates}" if self.gates else "" if self.gamma == 1 else f" by {self.gamma}"
        return f"{self.operation}{factors}, {self.rows} row{'s' if self.rows > 1 else ''}"

    @property
    def item_bytes(self) -> int:
        """The fewest bytes that are read and written of an element."""
        return 12 if self.gates else 8


def cases() -> list[Case]:
    """Every case: the threshold leaves time for a pass over the shard for the carry, unless states decay."""
    return [
        case
        for rows in (256, 1)
        for case in (
            Case("linear_recurrence", rows, 0.55, "keep"),
            Case("linear_recurrence", rows, 0.85, "decay"),
            Case("cumulative_sum", rows, 0.60),
            Case("discounted_cumsum", rows, 0.85, gamma=0.9),
        )
    ]


def _count(text: str) -> int:
    """A number such as 1000 or 2**28."""
    base, power, exponent = text.partition("**")
    number = int(base) ** int(exponent) if power else int(base)
    if number < 1:
        raise ValueError(text)
    return number


_count.__name__ = "count"  # as argparse calls it in its message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this family."""
    parser.add_argument("--ranks", type=_count, metavar="N", help="distributed: processes (2)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="distributed: nccl is a device a rank (gloo)")
    parser.add_argument("--elements", type=_count, metavar="N", help="distributed: of a rank, e.g. 2**28 (2**24)")


def flags_used(options: argparse.Namespace) -> list[str]:
    """The flags of this family among the options."""
    return [f"--{name}" for name in _FLAGS if getattr(options, name) is not None]


def reason_not_to_run(backend: str, n_ranks: int) -> str | None:
    """Why the benchmark cannot run on this machine, or None."""
    if importlib.util.find_spec("torch") is None:
        return "needs torch, which is not installed"
    import torch

    if backend == "nccl" and torch.cuda.device_count() < n_ranks:
        return f"--backend nccl --ranks {n_ranks} needs as many devices, there are {torch.cuda.device_count()}"
    return None


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    backend, n_ranks, elements = options.backend or "gloo", options.ranks or 2, options.elements or 1 << 24
    reason = reason_not_to_run(backend, n_ranks)
    if reason is not None:
        print(f"bench distributed: {reason}", file=sys.stderr)
        return 2
    chosen = [case for case in cases() if options.only in f"{case.name}, float32"]
    if not chosen:
        print(f"no case contains {options.only!r}")
        return 2
    print(f"{n_ranks} ranks, {backend}, {elements:,} elements a rank", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        task = (n_ranks, backend, str(Path(folder) / "store"), chosen, elements, options.quick, options.threads)
        answer, reason = _in_processes(n_ranks, task)
    if answer is None:
        print(f"no speed is reported: {reason}")
        return 1
    described, rows = answer
    print(f"correctness: every step follows from the one before it\n{machine.text(described)}")
    print(f"messages: {described['messages']}\n")
    threshold_table.print_table(rows)
    if options.json:
        report.write_json(options.json, {**described, "ranks": n_ranks, "backend": backend}, rows)
    if options.plot:
        figures.write_fractions(options.plot, machine.text(described), rows)
    return 0


def _in_processes(n_ranks: int, task: tuple[Any, ...]) -> tuple[Any, str]:
    """The result of the first rank; or None and the most informative failure."""
    context = multiprocessing.get_context("spawn")  # a fork would share the device's context
    pipes = [context.Pipe(duplex=False) for _ in range(n_ranks)]
    processes = [
        context.Process(target=_serve, args=(sender, rank, *task), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    answers: list[tuple[Any, str]] = []
    try:
        for process, (_, sender) in zip(processes, pipes):
            process.start()
            sender.close()
        for rank, (receiver, _) in enumerate(pipes):
            try:
                answers.append(receiver.recv())
            except EOFError:
                processes[rank].join()
                answers.append((None, f"rank {rank} ended with code {processes[rank].exitcode}"))
    finally:
        for process, (receiver, _) in zip(processes, pipes):
            process.join(timeout=10)
            process.kill()
            receiver.close()
    wrong = [reason for _, reason in answers if reason]
    # Ranks that waited for a failed one report only that.
    wrong.sort(key=lambda reason: "WrongResult" not in reason)
    return (None, wrong[0]) if wrong else answers[0]


def _serve(connection: Connection, rank: int, *task: Any) -> None:
    answer: tuple[Any, str]
    try:
        answer = (_measure_all(rank, *task), "")
    except Exception as error:  # reported to the parent, which ends all ranks
        answer = (None, f"rank {rank}: {type(error).__name__}: {error}")
    connection.send(answer)


class WrongResult(Exception):
    """A step does not follow from the one before it."""


# ---- in each process -------------------------------------------------------------------------------------------


def _measure_all(
    rank: int, size: int, backend: str, store: str, chosen: list[Case], elements: int, quick: bool,
    threads: int | None,
) -> tuple[dict[str, Any], list[Row]]:  # fmt: skip
    import torch
    import torch.distributed as dist
    from upsweep.distributed.communicator import Communicator

    on_cuda = backend == "nccl"
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    else:
        _reuse_freed_memory()
        threads = threads or max(1, upsweep.get_num_threads() // size)
    if threads is not None:
        upsweep.set_num_threads(threads)
        torch.set_num_threads(threads)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=_TIMEOUT,
    )  # fmt: skip
    rows = []
    try:
        for case in chosen:
            rows += _measure(case, elements, device, rounds=4 if quick else 20)
        described = machine.describe_cuda() if on_cuda else machine.describe()
        described["messages"] = Communicator(None).describe_transport(device)
    finally:
        dist.destroy_process_group()
    return described, rows


def _reuse_freed_memory() -> None:
    """Let the C library keep freed memory: new pages of large results cost several times as much as a scan."""
    if platform.libc_ver()[0] == "glibc":
        mmap_max, trim_threshold = -4, -1
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def _shard(case: Case, elements: int, device: Any) -> tuple[Any, Any]:
    """The factors of this rank's steps, a tensor or a number, and its tokens."""
    import torch
    import torch.distributed as dist

    rows = min(case.rows, elements)
    random = torch.Generator(device).manual_seed(dist.get_rank())
    x, gates = (torch.rand((rows, elements // rows), generator=random, device=device) for _ in range(2))
    if case.gates == "keep":  # so that products of many neither overflow nor underflow
        return gates.mul_(1e-3).add_(1 - 5e-4), x
    return (gates, x) if case.gates else (case.gamma, x)


def _measure(case: Case, elements: int, device: Any, rounds: int) -> list[Row]:
    import torch
    import upsweep.distributed as sharded

    factors, x = _shard(case, elements, device)
    arguments = (factors, x) if case.gates else (x,) if case.gamma == 1 else (x, factors)
    check(factors, x, getattr(sharded, case.operation)(*arguments))
    target = torch.empty_like(x)

    def alone() -> object:
        return getattr(upsweep, case.operation)(*arguments)

    def together() -> object:
        return getattr(sharded, case.operation)(*arguments)

    methods = {"alone": alone, "together": together, "copy": lambda: target.copy_(x)}
    samples = _measure_methods(
        {**methods, "alone in a row": _consecutive(alone), "together in a row": _consecutive(together)},
        rounds,
        device,
    )
    threshold, n_bytes, rows = case.threshold if elements >= _LARGE else None, case.item_bytes * x.numel(), []
    for variant, n_calls in (("", 1), (" in a row", _CONSECUTIVE)):
        by_itself, whole = (samples.best(name + variant) / n_calls for name in ("alone", "together"))
        note = f"alone {by_itself * 1e3:.3f} ms"
        if not variant:
            note += f", copy {samples.best('copy') * 1e3:.3f} ms"
        of_rounds = (a / b for a, b in zip(*(samples.seconds[name + variant] for name in ("alone", "together"))))
        row = Row(
            case.name + variant, "float32", whole, by_itself / whole, "of one rank",
            None if variant else threshold, n_bytes, median=statistics.median(of_rounds), note=note,
        )  # fmt: skip
        rows.append(row)
    return rows


def _consecutive(call: Callable[[], object]) -> Callable[[], object]:
    """The last result of several calls; each result is freed when the next is returned."""

    def calls() -> object:
        result = call()
        for _ in range(_CONSECUTIVE - 1):
            result = call()
        return result

    return calls


def check(factors: Any, x: Any, y: Any) -> None:
    """Raise WrongResult, on all ranks of the default group, unless all of their shards are one scan.

    y[t] and factors[t] * y[t-1] + x[t] may differ by the rounding of both states.
    """
    import torch
    import torch.distributed as dist

    last = y[:, -1].contiguous()
    lasts = [torch.empty_like(last) for _ in range(dist.get_world_size())]
    dist.all_gather(lasts, last)
    rank = dist.get_rank()
    before = lasts[rank - 1].double() if rank else None
    step, worst = max(1, _PIECE // len(x)), 0.0
    for begin in range(0, x.shape[1], step):
        of_piece = slice(begin, begin + step)
        now, added = y[:, of_piece].double(), x[:, of_piece].double()
        first = torch.zeros_like(now[:, :1]) if before is None else before[:, None]
        previous = torch.cat((first, now[:, :-1]), 1)
        previous *= factors[:, of_piece].double() if isinstance(factors, torch.Tensor) else factors
        error = (now - previous - added).abs() / (now.abs() + previous.abs() + added.abs() + 1e-30)
        worst = max(worst, float(error.nan_to_num(nan=1.0).max()))
        before = now[:, -1]
    largest = torch.tensor([worst], device=x.device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if not float(largest) <= 2.0**-23:
        raise WrongResult(f"a step is off by {float(largest):.2g} of its own size")


def _measure_methods(methods: dict[str, Callable[[], object]], rounds: int, device: Any) -> Samples:
    import torch
    import torch.distributed as dist

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    samples = Samples({name: [] for name in methods})
    for turn in range(-2, rounds):
        for name, call in methods.items():
            wait()
            dist.barrier()
            wait()
            begin = time.perf_counter()
            result = call()
            wait()
            seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64, device=device)
            del result
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if turn >= 0:
                samples.seconds[name].append(float(seconds))
    return samples
