"""Timing on a GPU: medians of samples by CUDA events, methods in turns.

A sample is many calls between two events. Calls of more than a fraction of a millisecond follow each other on
the stream, which waits a little first, so that the host is ahead of it when the first event passes. Shorter
ones, a few microseconds even, whose launches would cost more than they do, are captured in a CUDA graph of many
repetitions and replayed, and so are those with derivatives, which cost the host more than the device: a figure
is then the device's time alone, with what lies between the kernels of a graph. What cannot be captured is timed
in a row, with what its launches cost, and its row says so.

Where a call's arrays are small, it walks through several sets of them, inputs and outputs, so that they are
three times the L2 cache together and it cannot hold all of them (of the smallest arrays there are 256 sets).
The copy, a plain device-to-device memcpy of the minimal bytes (half read, half written), is timed alike.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from upsweep.bench.harness import Samples

__all__ = ["Prepared", "Subject", "copy_of", "host_seconds", "measure", "n_sets", "prepare"]

_L2_MULTIPLE = 3
_MOST_SETS = 256
_SAMPLE = 1.5e-3  # seconds that a sample should take
_MOST_CALLS = 1024
_VECTOR, _PAGE = 16, 1 << 16  # bytes
_SHORT = 3e-4  # seconds; shorter calls go into a graph, as launches and derivatives cost up to that
_TRIALS = 5
_AHEAD = 200_000  # clock cycles that the stream waits, about 0.1 ms, while the host launches the first calls

_failed: list[Any] = []  # graphs whose capture failed: the allocator may still ask them about a stream


@dataclass(frozen=True)
class Subject:
    """Something to time: `call` takes the number of a set of arrays and returns what it made.

    `launches_cost`: the host needs about as long to launch it as the device to run it.
    """

    call: Callable[[int], object]
    n_sets: int = 1
    capturable: bool = True
    launches_cost: bool = False


@dataclass(frozen=True)
class Prepared:
    """`run` starts `n_calls` calls."""

    run: Callable[[], object]
    n_calls: int
    note: str


@cache
def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def n_sets(n_bytes: int, l2_bytes: int | None = None) -> int:
    """How many sets of arrays of `n_bytes` each the cache cannot hold."""
    l2_bytes = _l2_bytes() if l2_bytes is None else l2_bytes
    return max(1, min(_MOST_SETS, math.ceil(_L2_MULTIPLE * l2_bytes / max(n_bytes, 1))))


def copy_of(n_bytes: int) -> Subject:
    """A copy that reads half of `n_bytes` and writes half, rotated as calls on that many are.

    Rounded up to whole vectors, and large ones to whole pages: a copy of some bytes more takes up to 1.5 times as
    long.
    """
    whole = _PAGE if n_bytes > 512 * _PAGE else _VECTOR
    count, half = n_sets(n_bytes), max(1, math.ceil(n_bytes / 2 / whole)) * whole
    random = torch.Generator("cuda").manual_seed(0)

    def block() -> Any:
        return torch.empty(half, dtype=torch.uint8, device="cuda").random_(generator=random)

    pairs = [(block(), block()) for _ in range(count)]
    return Subject(lambda i: pairs[i][0].copy_(pairs[i][1]), count)


def _in_a_row(subject: Subject, n_calls: int) -> None:
    results: deque[object] = deque(maxlen=subject.n_sets)  # outputs are rotated as inputs are
    for i in range(n_calls):
        results.append(subject.call(i % subject.n_sets))


def _elapsed(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_AHEAD)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def calls_for(seconds: float, count: int) -> int:
    """So many calls of `seconds` each that a sample is long enough, in whole rounds of the sets."""
    wanted = min(_MOST_CALLS, math.ceil(_SAMPLE / max(seconds, 1e-9)))
    return max(count, math.ceil(wanted / count) * count)


def _captured(subject: Subject, n_calls: int) -> Callable[[], object]:
    """The calls as a graph; RuntimeError where something in them cannot be captured."""
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(before)
    with torch.cuda.stream(side):  # what happens at a first call only must not be captured
        _in_a_row(subject, subject.n_sets)
    before.wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(graph, pool=pool):
            _in_a_row(subject, n_calls)
    except BaseException:
        torch.cuda.set_stream(before)  # the capture's own is left behind
        _abandon(graph, pool)
        raise

    def replay() -> Subject:
        graph.replay()
        return subject  # whose arrays are the graph's: they must live as long as it may be replayed

    return replay


def _abandon(graph: Any, pool: Any) -> None:
    """End what torch's allocator began for a capture that failed: until 2.12 torch leaves it, and fails later."""
    _failed.append(graph)
    with contextlib.suppress(RuntimeError):  # torch has ended it
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


def prepare(subject: Subject) -> Prepared:
    """Warm up, find out how long a call takes, and capture it if it is short."""
    _in_a_row(subject, max(subject.n_sets, 3))
    seconds = _elapsed(lambda: _in_a_row(subject, _TRIALS)) / _TRIALS
    n_calls, note = calls_for(seconds, subject.n_sets), ""
    if seconds < _SHORT or subject.launches_cost:
        if subject.capturable:
            try:
                return Prepared(_captured(subject, n_calls), n_calls, "")
            except RuntimeError as error:
                note = f"in a row, launches included: no graph of it ({_first_line(error)})"
        else:
            note = "in a row, launches included"
    return Prepared(lambda: _in_a_row(subject, n_calls), n_calls, note)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:100]


def measure(methods: Mapping[str, Prepared], rounds: int, warmup: int = 2) -> Samples:
    """Time the methods in turns: seconds a call, one sample a round, after `warmup` rounds that do not count."""
    samples = Samples({name: [] for name in methods})
    for turn in range(-warmup, rounds):
        for name, method in methods.items():
            seconds = _elapsed(method.run) / method.n_calls
            if turn >= 0:
                samples.seconds[name].append(seconds)
    return samples


def host_seconds(call: Callable[[], object], rounds: int, loops: int = 1000) -> list[float]:
    """What a call costs the thread that makes it: means over `loops` calls, the device left to itself."""
    found = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(loops):
            call()
        found.append((time.perf_counter() - begin) / loops)
    torch.cuda.synchronize()
    return found[1:]


def quantile(seconds: list[float], share: float) -> float:
    """The sample below which that share of the others lies."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))]


def median(seconds: list[float]) -> float:
    return float(statistics.median(seconds))
