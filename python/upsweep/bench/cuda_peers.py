"""What users of a GPU would call instead, where it is installed: each a function of the case's own tensors.

A package that is not there is left out; one that is there and fails to import, refuses the case, raises or
answers wrongly is not timed, and the row says why.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from upsweep.bench.cuda_cases import BASELINE, Case
from upsweep.bench.cuda_oracle import hillis_steele

__all__ = ["PEERS", "Peer", "Refused", "bind", "missing"]

Function = Callable[..., Any]


class Refused(Exception):
    """The peer cannot do the case, and why."""


@dataclass(frozen=True)
class Peer:
    """`package` is what has to be installed, `bind` makes a function of a case's inputs."""

    package: str
    bind: Callable[[Any], Function]
    capturable: bool = True


def _powers_of_two(case: Case) -> None:
    length = case.length
    if not 32 <= length <= 65536 or length & (length - 1):
        raise Refused("takes powers of two from 32 to 65,536")


def _attribute(module: str, name: str) -> Function:
    function: Function = getattr(importlib.import_module(module), name)
    return function


def _fpscan(case: Case) -> Function:
    _powers_of_two(case)
    return _attribute("fpscan", "pscan" if case.gradients else "scan_forward")


def _accelerated_scan_warp(case: Case) -> Function:
    _powers_of_two(case)
    return _attribute("accelerated_scan.warp", "scan")  # compiled when it is imported: a minute


def _accelerated_scan_triton(case: Case) -> Function:
    return _attribute("accelerated_scan.scalar", "scan")


def _combine(earlier: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
    (gate_a, token_a), (gate_b, token_b) = earlier, later
    return gate_a * gate_b, gate_b * token_a + token_b


def _associative_scan(case: Case) -> Function:
    associative_scan = _attribute("torch._higher_order_ops", "associative_scan")

    def scan(gates: Any, tokens: Any) -> Any:
        return associative_scan(_combine, (gates, tokens), dim=-1, combine_mode="pointwise")[1]

    torch._dynamo.reset()  # else one function's limit of recompilations ends the list of shapes early
    compiled: Function = torch.compile(scan, dynamic=False)
    return compiled


def _torch_discounted_cumsum(case: Case) -> Function:
    if case.shape[0] > 65535:
        raise Refused("its launch fails unnoticed above 65,535 rows")
    function = _attribute("torch_discounted_cumsum", "discounted_cumsum_left")
    gamma = torch.full((1,), case.gamma, device="cuda")  # a number would be copied to the device at each call
    return lambda x: function(x, gamma)


def _torch_cumsum(case: Case) -> Function:
    return lambda x: torch.cumsum(x, case.axis)


def _hillis_steele(case: Case) -> Function:
    return hillis_steele


# ---- counts: functions of (keys, weights) --------------------------------------------------------------------


def _torch_bincount(case: Any) -> Function:
    return lambda x, weights: torch.bincount(x, weights, case.n_bins)


def _scatter_add(case: Any) -> Function:
    if case.dtype != "int64":
        raise Refused("takes int64 keys")
    dtype = torch.int64 if case.weights is None else getattr(torch, case.weights)
    one = torch.ones((), dtype=dtype, device="cuda")

    def scatter_add(x: Any, weights: Any) -> Any:
        sums = torch.zeros(case.n_bins, dtype=dtype, device=x.device)
        return sums.scatter_add_(0, x, one.expand(x.shape) if weights is None else weights)

    return scatter_add


def _cupy_bincount(case: Any, accelerators: tuple[str, ...]) -> Function:
    cupy = importlib.import_module("cupy")
    cupy._core.set_routine_accelerators(list(accelerators))  # of this process, which no other peer shares
    cupy._core.set_reduction_accelerators(list(accelerators))

    def bincount(x: Any, weights: Any) -> Any:
        given = None if weights is None else cupy.from_dlpack(weights)
        return torch.from_dlpack(cupy.bincount(cupy.from_dlpack(x), given, case.n_bins))

    return bincount


def _torch_histc(case: Any) -> Function:
    return lambda x, _: torch.histc(x, case.n_bins, 0, 1)


PEERS = {
    "fpscan": Peer("fpscan", _fpscan),
    "accelerated-scan": Peer("accelerated_scan", _accelerated_scan_warp),
    "accelerated-scan Triton": Peer("accelerated_scan", _accelerated_scan_triton),
    "associative_scan": Peer("torch", _associative_scan),
    # Launches on the default stream whatever the current one is.
    "torch-discounted-cumsum": Peer("torch_discounted_cumsum", _torch_discounted_cumsum, capturable=False),
    "torch.cumsum": Peer("torch", _torch_cumsum),
    BASELINE: Peer("torch", _hillis_steele),
    # They look at the keys, and wait for it.
    "torch.bincount": Peer("torch", _torch_bincount, capturable=False),
    "scatter_add_": Peer("torch", _scatter_add),
    "cupy": Peer("cupy", partial(_cupy_bincount, accelerators=()), capturable=False),
    "cupy with CUB": Peer("cupy", partial(_cupy_bincount, accelerators=("cub",)), capturable=False),
    "torch.histc": Peer("torch", _torch_histc),
}


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def missing() -> list[str]:
    """The names of the peers that are not installed."""
    return [name for name, peer in PEERS.items() if not _installed(peer.package)]


def bind(name: str, case: Any) -> Function | None:
    """The peer's function for a case, or None where it is not installed.

    Raises
    ------
    Refused
        Where the peer cannot do the case.
    Exception
        Whatever the import of the peer raises.
    """
    peer = PEERS[name]
    return peer.bind(case) if _installed(peer.package) else None
