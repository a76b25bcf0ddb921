"""The description of one call of a distributed scan, and the comparison of the calls of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from upsweep._torch import aggregates
from upsweep.distributed.communicator import Communicator, Meta
from upsweep.distributed.shard_cache import Operands

__all__ = ["ScanCall", "check_same"]


@dataclass(frozen=True)
class ScanCall:
    """One call of a public scan on one rank.

    Attributes
    ----------
    name : str
        The public function.
    prepare : callable
        Checks the arguments with the initial state that it is passed; returns a `_torch.scan.TensorScan`.
    operands : tuple or None
        What is scanned, gates and factor, if the arguments are nothing but these, `axis` and the flags.
    flush : bool
        Whether subnormal states may become 0.
    """

    name: str
    prepare: Callable[[Any], Any]
    operands: Operands | None
    axis: Any
    reverse: bool
    initial: Any
    exclusive: bool
    return_final: bool
    n_threads: int | None
    flush: bool
    group: Any

    def meta(self, scan: Any, comm: Communicator) -> Meta:
        """Return what the other ranks have to know of the checked scan before anything is computed."""
        dtype = aggregates.wide_dtype(scan.dtype)
        return {
            "scan": self.name, "reverse": self.reverse, "state": list(scan.state_shape), "dtype": str(dtype),
            "factors": str(aggregates.factor_dtype(scan, dtype)), "has_reset": scan.reset is not None,
            "empty": scan.shape[scan.axis] == 0 and scan.initial is None, "return_final": self.return_final,
            "requires_grad": False, "is_eager": False,
            "exchanged on": comm.messages.comm_device(scan.x.device).type,
        }  # fmt: skip


def check_same(all_meta: list[Meta], names: tuple[str, ...]) -> None:
    """Raise ValueError on every rank if metadata that have to agree do not."""
    for name in names:
        values = [meta[name] for meta in all_meta]
        if any(value != values[0] for value in values):
            differ = ", ".join(f"rank {rank} {value}" for rank, value in enumerate(values))
            raise ValueError(f"shards: the ranks' {name} differ: {differ}")
