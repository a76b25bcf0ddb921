"""Checks a case's answer and times it in turn with a memory copy, another call of upsweep, and the peers.

A wrong answer of upsweep raises `WrongResult`, and nothing is timed. A peer that raises or answers wrongly is not
timed; its row says why. CPU rows are of the fastest samples, CUDA rows of the medians.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from upsweep.bench import timing
from upsweep.bench.report import Row
from upsweep.bench.timing import Samples

from upsweep_bench import peers
from upsweep_bench.case import Arrays, Case, Direct, n_threads

__all__ = ["OURS", "ContextLost", "WrongResult", "check", "measure_case", "rows_from_samples", "title"]

OURS = "upsweep"
CUDA_ROUNDS, CPU_ROUNDS = 15, 5
_BURST = 2  # calls of a CPU sample


class WrongResult(Exception):
    """A result of upsweep is wrong."""


class ContextLost(Exception):
    """A peer left the device in a state in which nothing more can be run."""


def check(case: Case, arrays: Arrays) -> None:
    """Raise WrongResult unless upsweep's answer is right to rounding."""
    error, allowed = arrays.error(arrays.answer(case.function(arrays))), arrays.allowed()
    if not error <= allowed:
        raise WrongResult(f"{case.label}: error {error:.2g}, at most {allowed:.2g} allowed")


def measure_case(case: Case, rounds: int | None = None, warmup: int = 2) -> list[Row]:
    """Check and time one case: its own row, then one for each peer.

    Raises
    ------
    WrongResult
        If upsweep's own answer is wrong.
    NotImplementedError
        If upsweep has no such call on the device.
    ContextLost
        If a peer has made the device unusable.
    """
    if isinstance(case, Direct):
        seconds, value, note = case.run()
        return [_own_row(case, seconds, value, note=note)]
    arrays = case.arrays()
    check(case, arrays)
    if case.metric == "us host":
        call = partial(case.function(arrays), *arrays.inputs[0])
        return rows_from_samples(case, {OURS: graph_timing().host_seconds(call, rounds or CUDA_ROUNDS)}, {})
    versus = case.versus(arrays)
    if versus is not None and versus[0] is not arrays:
        other, function = versus
        error = other.error(other.answer(function))
        if not error <= other.allowed():
            raise WrongResult(f"{case.label}: the call to compare with has an error of {error:.2g}")
    samples, notes, scale = _measure(case, arrays, versus, rounds, warmup)
    return rows_from_samples(case, samples.seconds, notes, scale, None if samples.quiet else samples.others)


def _measure(
    case: Case, arrays: Arrays, versus: tuple[Arrays, Callable[..., Any]] | None, rounds: int | None, warmup: int
) -> tuple[Samples, dict[str, str], float]:
    """Samples of upsweep, of what its metric is relative to, and of the peers; notes; the scale of the pass."""
    prepare = _prepare_cuda if case.on_cuda else _prepare_cpu
    passes, scale = ({}, 1.0) if case.on_cuda else arrays.passes(n_threads())
    methods: dict[str, Any] = {OURS: prepare(arrays, case.function(arrays)), **passes}
    if case.on_cuda and case.pass_name is not None:
        methods["copy"] = graph_timing().prepare(graph_timing().copy_of(case.n_bytes or 1))
    if versus is not None:
        methods["versus"] = prepare(*versus)
    notes: dict[str, str] = {}
    for name, _ in case.peers:
        peer = prepare_peer(name, case, arrays)
        if isinstance(peer, str):
            notes[name] = peer
        elif peer is not None:
            methods[name] = peer
    if not case.on_cuda:
        samples = timing.measure(methods, rounds or CPU_ROUNDS, _BURST)
        for prefix in ("copy", "add"):
            samples.merge(prefix)
        return samples, notes, scale
    notes.update({name: method.note for name, method in methods.items() if method.note})
    return graph_timing().measure(methods, rounds or CUDA_ROUNDS, warmup), notes, scale


def graph_timing() -> Any:
    """The module, which imports torch."""
    return importlib.import_module("upsweep_bench.graph_timing")


def _prepare_cpu(arrays: Arrays, function: Callable[..., Any], capturable: bool = True) -> Callable[[], object]:
    return partial(arrays.call(function), 0)


def _prepare_cuda(arrays: Arrays, function: Callable[..., Any], capturable: bool = True) -> Any:
    call = arrays.call(function)
    return graph_timing().prepare(
        graph_timing().Subject(call, arrays.n_sets, capturable, launches_cost=arrays.launches_cost)
    )


def prepare_peer(name: str, case: Case, arrays: Arrays) -> Any:
    """The peer ready to be timed once its answer is right, or why it is not; None: not installed."""
    try:
        function = peers.bind(name, case)
        if function is None:
            return None
        # Peers may sum in float32 or bfloat16; only what nobody would call an answer is refused.
        error, allowed = arrays.error(arrays.answer(function)), max(1e-3, 8 * arrays.allowed())
        if not error <= allowed:
            return f"wrong, not timed: relative error {error:.2g}"
        prepare = _prepare_cuda if case.on_cuda else _prepare_cpu
        return prepare(arrays, function, peers.PEERS[name].capturable)
    except peers.Refused as error_:
        return f"not timed: {error_}"
    except Exception as error_:  # whatever another package raises must not end the run; its row says it
        reason = f"raised, not timed: {type(error_).__name__}: {str(error_).strip().partition(chr(10))[0][:120]}"
        if case.on_cuda:
            _synchronize(name, reason)
        return reason


def _synchronize(name: str, reason: str) -> None:
    """Collect pending errors of the device; raise ContextLost if they persist."""
    import torch

    for _ in range(2):
        try:
            torch.cuda.synchronize()
            return
        except RuntimeError as error:
            reason = str(error)
    raise ContextLost(f"{name}: {reason}")


def release_memory(case: Case) -> None:
    """Return the memory that torch caches to the device, for other processes."""
    if case.on_cuda:
        import torch

        torch.cuda.empty_cache()


def title(peer: str, case: Case) -> str:
    """The case column of a peer's row."""
    return f"{peer} against {case.name}"


def not_timed(peer: str, case: Case, reason: str) -> Row:
    """The row of a peer that failed."""
    return Row(
        title(peer, case), case.dtype, None, None, "x", dict(case.peers)[peer], note=reason, method=peer,
        length=case.length, family=case.family,
    )  # fmt: skip


def _own_row(case: Case, seconds: float, value: float | None, **fields: Any) -> Row:
    return Row(
        case.name, case.dtype, seconds, value, case.unit, case.threshold, case.n_bytes, method=OURS,
        length=case.length, family=case.family, **fields,
    )  # fmt: skip


def rows_from_samples(
    case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str], scale: float = 1.0,
    contention: float | None = None,
) -> list[Row]:  # fmt: skip
    """A case's row and those of its peers, from seconds a call; `notes` say what was not timed, and why.

    `scale` is the number of bytes of the case over that of the pass it is compared with.
    """
    typical: Callable[[list[float]], float] = statistics.median if case.on_cuda else min

    def ratio(others: list[float], scale: float = 1.0) -> dict[str, Any]:
        """The ratio of the times, and the median of the rounds' own ratios."""
        of_rounds = [a / b * scale for a, b in zip(others, seconds[OURS])]
        return {"value": typical(others) / typical(seconds[OURS]) * scale, "median": statistics.median(of_rounds)}

    def quantiles(samples: list[float]) -> dict[str, Any]:
        return {"p90": sorted(samples)[min(len(samples) - 1, int(0.9 * len(samples)))], "contention": contention}

    ours = typical(seconds[OURS])
    fields: dict[str, Any] = {"value": case.value(ours)}
    words = [case.note(ours), notes.get(OURS, "")]
    if case.pass_name is not None:
        name = case.pass_name if case.pass_name in seconds else "copy"
        fields = ratio(seconds[name], scale)
        words.insert(0, f"{name} {typical(seconds[name]) * 1e3:.4f} ms")
    elif "versus" in seconds:
        fields = ratio(seconds["versus"], case.versus_scale)
        words.insert(0, f"{case.versus_label} {typical(seconds['versus']) * 1e3:.4f} ms")
    note = "; ".join(filter(None, words))
    rows = [_own_row(case, ours, note=note, **fields, **quantiles(seconds[OURS]))]
    for name, threshold in case.peers:
        if name in seconds:
            row = not_timed(name, case, notes.get(name, ""))
            share = peers.PEERS[name].share
            rows.append(replace(
                row, threshold=threshold, seconds=typical(seconds[name]) / share, **quantiles(seconds[name]),
                **ratio(seconds[name], 1 / share),
            ))  # fmt: skip
        elif name in notes:
            rows.append(not_timed(name, case, notes[name]))
    return rows
