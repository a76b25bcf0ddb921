"""Timing on a GPU: medians of samples by CUDA events, with the methods in turn.

A sample is many calls between two events. Calls of more than a fraction of a millisecond follow each other on
the stream. Shorter ones, whose launches would cost more than the calls, are captured in a CUDA graph of many
repetitions and replayed, and so are calls with derivatives, which cost the host more than the device: the sample
is then the device's time alone, including the gaps between the kernels of a graph. What cannot be captured is
launched call by call, includes the cost of launches, and its row says so.

Small inputs rotate through several sets, inputs and outputs, that together are three times the size of the L2
cache (at most 256 sets). The copy, a device-to-device memcpy of the minimal bytes (half read, half written), is
timed alike.
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
from upsweep.bench.timing import Samples, event_seconds

__all__ = ["Prepared", "Subject", "copy_of", "host_seconds", "measure", "n_sets", "prepare"]

_L2_MULTIPLE = 3
_MOST_SETS = 256
_SAMPLE = 1.5e-3  # seconds that a sample should take
_MOST_CALLS = 1024
_VECTOR, _PAGE = 16, 1 << 16  # bytes
_SHORT = 3e-4  # seconds; shorter calls go into a graph, as launches and derivatives cost up to that
_TRIALS = 5

_failed: list[Any] = []  # graphs whose capture failed; torch's allocator may still query them


@dataclass(frozen=True)
class Subject:
    """Something to time: `call` takes the number of a set of inputs and returns the result.

    `launches_cost`: the host needs about as long to launch the call as the device to run it.
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
    """How many sets of `n_bytes` each exceed the L2 cache."""
    l2_bytes = _l2_bytes() if l2_bytes is None else l2_bytes
    return max(1, min(_MOST_SETS, math.ceil(_L2_MULTIPLE * l2_bytes / max(n_bytes, 1))))


def copy_of(n_bytes: int) -> Subject:
    """A copy that reads half of `n_bytes` and writes half, over as many sets as a call on `n_bytes`.

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


def _run_calls(subject: Subject, n_calls: int) -> None:
    results: deque[object] = deque(maxlen=subject.n_sets)  # outputs are rotated as inputs are
    for i in range(n_calls):
        results.append(subject.call(i % subject.n_sets))


def calls_for(seconds: float, count: int) -> int:
    """How many calls of `seconds` each make a sample long enough, a multiple of the number of sets."""
    n_calls = min(_MOST_CALLS, math.ceil(_SAMPLE / max(seconds, 1e-9)))
    return max(count, math.ceil(n_calls / count) * count)


def _captured(subject: Subject, n_calls: int) -> Callable[[], object]:
    """The calls as a CUDA graph; RuntimeError if something in them cannot be captured."""
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(before)
    with torch.cuda.stream(side):  # one-time work of a first call must not be captured
        _run_calls(subject, subject.n_sets)
    before.wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(graph, pool=pool):
            _run_calls(subject, n_calls)
    except BaseException:
        torch.cuda.set_stream(before)  # the failed capture leaves its own stream current
        _abandon(graph, pool)
        raise

    def replay() -> Subject:
        graph.replay()
        return subject  # keeps the inputs alive as long as the graph may be replayed

    return replay


def _abandon(graph: Any, pool: Any) -> None:
    """End the allocation to the pool of a failed capture: torch before 2.12 leaves it open and fails later."""
    _failed.append(graph)
    with contextlib.suppress(RuntimeError):  # torch has ended it already
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


def prepare(subject: Subject) -> Prepared:
    """Warm up, estimate the time of a call, and capture it if it is short."""
    _run_calls(subject, max(subject.n_sets, 3))
    seconds = event_seconds(lambda: _run_calls(subject, _TRIALS)) / _TRIALS
    n_calls, note = calls_for(seconds, subject.n_sets), ""
    if seconds < _SHORT or subject.launches_cost:
        if subject.capturable:
            try:
                return Prepared(_captured(subject, n_calls), n_calls, "")
            except RuntimeError as error:
                note = f"call by call, launches included: no graph of it ({_first_line(error)})"
        else:
            note = "call by call, launches included"
    return Prepared(lambda: _run_calls(subject, n_calls), n_calls, note)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:100]


def measure(methods: Mapping[str, Prepared], rounds: int, warmup: int = 2) -> Samples:
    """Time the methods in turn: seconds a call, one sample a round, after `warmup` rounds that do not count."""
    samples = Samples({name: [] for name in methods})
    for turn in range(-warmup, rounds):
        for name, method in methods.items():
            seconds = event_seconds(method.run) / method.n_calls
            if turn >= 0:
                samples.seconds[name].append(seconds)
    return samples


def host_seconds(call: Callable[[], object], rounds: int, loops: int = 1000) -> list[float]:
    """Seconds of the calling thread: means over `loops` calls, without waiting for the device."""
    means = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(loops):
            call()
        means.append((time.perf_counter() - begin) / loops)
    torch.cuda.synchronize()
    return means[1:]


def median(seconds: list[float]) -> float:
    return float(statistics.median(seconds))
