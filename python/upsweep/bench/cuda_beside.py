"""Calls on CUDA tensors in turns with what is beside them: a copy, another case's call, the peers.

`cuda_scans` and `cuda_counts` bring arrays and calls, and make the rows. A peer that raises or answers wrongly
gets a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from upsweep.bench import cuda_harness as harness
from upsweep.bench import cuda_peers
from upsweep.bench.cuda_harness import Prepared
from upsweep.bench.report import Row

__all__ = [
    "OURS",
    "ContextLost",
    "WrongResult",
    "measure",
    "peer_rows",
    "peer_subject",
    "ratio",
    "release_memory",
    "title",
]

OURS = "upsweep"

Call = tuple[Any, Callable[..., Any]]
"""The arrays of a case, checked, and the function that is called on them."""


class WrongResult(Exception):
    """What upsweep computed is wrong."""


class ContextLost(Exception):
    """A peer left the device in a state in which nothing more can be run."""


def measure(
    case: Any, ours: Call, versus: Call | None, rounds: int, warmup: int
) -> tuple[Mapping[str, list[float]], dict[str, str]]:
    """Seconds a call of upsweep, of what its figure is relative to, and of the case's peers, which take turns.

    That is a copy of the same bytes, or `versus`, a call of another case. Notes say of them what there is to say,
    why they were not timed among it.
    """
    tensors, function = ours
    methods = {OURS: harness.prepare(tensors.subject(function))}
    if case.figure == "of copy":
        methods["copy"] = harness.prepare(harness.copy_of(case.n_bytes))
    if versus is not None:
        others, other_function = versus
        methods["versus"] = harness.prepare(others.subject(other_function))
    notes: dict[str, str] = {}
    for name, _ in case.peers:
        peer = peer_subject(name, case, tensors)
        if isinstance(peer, Prepared):
            methods[name] = peer
        elif peer is not None:
            notes[name] = peer
    samples = harness.measure(methods, rounds, warmup)
    notes.update({name: method.note for name, method in methods.items() if method.note})
    return samples.seconds, notes


def peer_subject(name: str, case: Any, tensors: Any) -> Prepared | str | None:
    """The peer ready to be timed, or why it is not; None: not installed."""
    try:
        function = cuda_peers.bind(name, case)
        if function is None:
            return None
        call = tensors.call(function)
        error = tensors.error(call(0))
        # Other people's sums are in float32, or in bfloat16; what is refused is what nobody would call an answer.
        allowed = max(1e-3, 8 * tensors.eps())
        if not error <= allowed:
            return f"wrong, not timed: relative error {error:.2g}"
        return harness.prepare(tensors.subject(function, cuda_peers.PEERS[name].capturable))
    except cuda_peers.Refused as error_:
        return f"not timed: {error_}"
    except Exception as error_:  # whatever another package raises must not end the run; its row says it
        reason = f"raised, not timed: {type(error_).__name__}: {str(error_).strip().partition(chr(10))[0][:120]}"
        _settle(name, reason)
        return reason


def _settle(name: str, reason: str) -> None:
    """Take errors of the device that are still to be told; raise ContextLost where they do not end."""
    for _ in range(2):
        try:
            torch.cuda.synchronize()
            return
        except RuntimeError as error:
            reason = str(error)
    raise ContextLost(f"{name}: {reason}")


def title(peer: str, case: Any) -> str:
    """What the row of a peer is called."""
    return f"{peer} against {case.name}"


def release_memory() -> None:
    """Give the memory that torch keeps back to the device, for other processes."""
    torch.cuda.empty_cache()


def ratio(theirs: list[float], ours: list[float], scale: float = 1.0) -> dict[str, Any]:
    """The ratio of medians, and the median of the rounds' own ratios."""
    each = [a / b * scale for a, b in zip(theirs, ours)]
    return {"figure": harness.median(theirs) / harness.median(ours) * scale, "median": harness.median(each)}


def peer_rows(
    case: Any, seconds: Mapping[str, list[float]], notes: Mapping[str, str], about: dict[str, Any]
) -> Iterator[Row]:
    """The rows of a case's peers."""
    for name, bar in case.peers:
        about.update(unit="x", bar=bar, note=notes.get(name, ""), method=name)
        if name in seconds:
            yield Row(
                title(name, case), seconds=harness.median(seconds[name]),
                p90=harness.quantile(seconds[name], 0.9), **about, **ratio(seconds[name], seconds[OURS]),
            )  # fmt: skip
        elif name in notes:
            yield Row(title(name, case), seconds=None, figure=None, **about)
