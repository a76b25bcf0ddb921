"""``python -m upsweep bench distributed --ranks N``: weak scaling of scans over the ranks of one machine.

Every rank holds `--elements` of float32. A figure is the time in which the ranks scan their shards each by itself,
all at once, over the time in which they scan them as one: what it costs to be one scan, the memory that they share
left out. A time is that of the slowest rank, from a barrier to its own end; the best of many rounds, in turns.
Bars are on one call. Behind each is the same of calls one behind another, as in training: no barrier between them.

Before that each answer is checked on all ranks: every step has to follow from the one before it, the first of a
shard from the last of the shard before it.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import multiprocessing
import platform
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
from upsweep.bench.harness import Samples
from upsweep.bench.report import Row

__all__ = ["Case", "add_arguments", "cases", "check", "given", "run"]

_FLAGS = ("ranks", "backend", "elements")
_TIMEOUT = datetime.timedelta(seconds=120)
_PIECE = 1 << 24  # elements that are checked at a time
_IN_A_ROW = 8  # calls
_BARRED = 1 << 24  # elements of a rank from which on there are bars: with fewer, messages are what takes time


@dataclass(frozen=True)
class Case:
    """One scan of a shard: rows x steps. Its gates "keep" states or "decay"; without: the number `gamma`."""

    operation: str
    rows: int
    bar: float
    gates: str = ""
    gamma: float = 1.0

    @property
    def name(self) -> str:
        how = f", gates {self.gates}" if self.gates else "" if self.gamma == 1 else f" by {self.gamma}"
        return f"{self.operation}{how}, {self.rows} row{'s' if self.rows > 1 else ''}"

    @property
    def item_bytes(self) -> int:
        """What is read and written of an element, at least."""
        return 12 if self.gates else 8


def cases() -> list[Case]:
    """Every case, with its bar: what a pass for the carry leaves, and nearly all where states are forgotten."""
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


def given(options: argparse.Namespace) -> list[str]:
    """The flags of this family among the options."""
    return [f"--{name}" for name in _FLAGS if getattr(options, name) is not None]


def why_not(backend: str, n_ranks: int) -> str | None:
    """What keeps the benchmark from running here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "needs torch, which is not installed"
    import torch

    if backend == "nccl" and torch.cuda.device_count() < n_ranks:
        return f"--backend nccl --ranks {n_ranks} needs as many devices, there are {torch.cuda.device_count()}"
    return None


def run(options: argparse.Namespace) -> int:
    """Check, measure, print; returns the exit code."""
    backend, n_ranks, elements = options.backend or "gloo", options.ranks or 2, options.elements or 1 << 24
    reason = why_not(backend, n_ranks)
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
    report.print_table(rows)
    if options.json:
        report.write_json(options.json, {**described, "ranks": n_ranks, "backend": backend}, rows)
    if options.plot:
        report.write_plot(options.plot, machine.text(described), rows)
    return 0


def _in_processes(n_ranks: int, task: tuple[Any, ...]) -> tuple[Any, str]:
    """What the first rank found; or None, and what went wrong in the rank that says most about it."""
    context = multiprocessing.get_context("spawn")  # a fork would share the device's context
    pipes = [context.Pipe(duplex=False) for _ in range(n_ranks)]
    processes = [
        context.Process(target=_serve, args=(theirs, rank, *task), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    answers: list[tuple[Any, str]] = []
    try:
        for process, (_, theirs) in zip(processes, pipes):
            process.start()
            theirs.close()
        for rank, (ours, _) in enumerate(pipes):
            try:
                answers.append(ours.recv())
            except EOFError:
                processes[rank].join()
                answers.append((None, f"rank {rank} ended with code {processes[rank].exitcode}"))
    finally:
        for process, (ours, _) in zip(processes, pipes):
            process.join(timeout=10)
            process.kill()
            ours.close()
    wrong = [reason for _, reason in answers if reason]
    # Those that waited for another rank only say so.
    wrong.sort(key=lambda reason: "WrongResult" not in reason)
    return (None, wrong[0]) if wrong else answers[0]


def _serve(connection: Connection, rank: int, *task: Any) -> None:
    answer: tuple[Any, str]
    try:
        answer = (_measure_all(rank, *task), "")
    except Exception as error:  # told to the other side, which ends all
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
        _keep_memory()
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


def _keep_memory() -> None:
    """Let the C library keep what is freed: fresh pages of large results cost several times what a scan does."""
    if platform.libc_ver()[0] == "glibc":
        mmap_max, trim_threshold = -4, -1
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def _shard(case: Case, elements: int, device: Any) -> tuple[Any, Any]:
    """The factors of this rank's steps, a tensor or a number, and what is added."""
    import torch
    import torch.distributed as dist

    rows = min(case.rows, elements)
    random = torch.Generator(device).manual_seed(dist.get_rank())
    x, gates = (torch.rand((rows, elements // rows), generator=random, device=device) for _ in range(2))
    if case.gates == "keep":  # so that products of many stay numbers of an ordinary size
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
        {**methods, "alone in a row": _in_a_row(alone), "together in a row": _in_a_row(together)}, rounds, device
    )
    bar, n_bytes, rows = case.bar if elements >= _BARRED else None, case.item_bytes * x.numel(), []
    for how, n_calls in (("", 1), (" in a row", _IN_A_ROW)):
        by_itself, whole = (samples.best(name + how) / n_calls for name in ("alone", "together"))
        note = f"alone {by_itself * 1e3:.3f} ms"
        if not how:
            note += f", copy {samples.best('copy') * 1e3:.3f} ms"
        row = Row(
            case.name + how, "float32", whole, by_itself / whole, "of one rank", None if how else bar, n_bytes,
            median=samples.median_ratio("alone" + how, "together" + how), note=note,
        )  # fmt: skip
        rows.append(row)
    return rows


def _in_a_row(call: Callable[[], object]) -> Callable[[], object]:
    """The last result of several calls, each let go when the next is there."""

    def calls() -> object:
        result = call()
        for _ in range(_IN_A_ROW - 1):
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
        kept = torch.cat((first, now[:, :-1]), 1)
        kept *= factors[:, of_piece].double() if isinstance(factors, torch.Tensor) else factors
        error = (now - kept - added).abs() / (now.abs() + kept.abs() + added.abs() + 1e-30)
        worst = max(worst, float(error.nan_to_num(nan=1.0).max()))
        before = now[:, -1]
    found = torch.tensor([worst], device=x.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if not float(found) <= 2.0**-23:
        raise WrongResult(f"a step is off by {float(found):.2g} of its own size")


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
