"""A scan over ranks: the checks, the consensus of all ranks, and the choice between eager and recorded execution.

Plain tensors are scanned by `strategies`. If autograd needs a gradient on any rank, all ranks run one autograd
operation whose derivative is a scan over ranks again (`autograd`). Everything else that records tensors, and
derivatives of complex numbers, gets a two-pass scan in operations that can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from upsweep import _backends
from upsweep._torch import aggregates, executors
from upsweep._torch import scan as torch_scan
from upsweep.distributed import autograd, caches
from upsweep.distributed.autograd import AutogradScan
from upsweep.distributed.communicator import Communicator, Meta, PendingConsensus
from upsweep.distributed.shard import Shard
from upsweep.distributed.strategies import DistributedScan, SpeculativeStart


@dataclass(frozen=True)
class ScanCall:
    """One call of a public scan on one rank."""

    name: str  # of the public function
    prepare: Callable[
        [Any], torch_scan.TensorScan
    ]  # checks the arguments with the initial state that it is passed
    operands: caches.Operands | None  # if the arguments are nothing but these, `axis` and the flags
    axis: Any
    reverse: bool
    initial: Any
    exclusive: bool
    return_final: bool
    n_threads: int | None
    flush: bool  # whether subnormal states may become 0
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


def scan(call: ScanCall) -> Any:
    """Scan the shards of all ranks; return this rank's shard of the result, and the final state if asked for.

    An error of this rank before the consensus is raised on all ranks.
    """
    comm = Communicator(call.group)
    meta, error, aggregate, shard, start = None, None, None, None, None
    try:
        key = caches.cache_key(call.name, call.operands, call.axis, call.reverse, call.exclusive)
        shard = caches.find_shard(key, call.operands)
        if shard is not None:
            checked, needs_dispatcher = shard.scan, False
            tensors = (checked.x, checked.gates, None, None, None)
        else:
            checked = call.prepare(call.initial if comm.rank == comm.order(call.reverse)[0] else None)
            _backends.check_threads(call.n_threads)
            tensors = (checked.x, checked.gates, checked.gamma, checked.reset, checked.initial)
            torch_scan.reject_jit_trace()
            torch_scan.reject_forward_ad(tensors)
            needs_dispatcher = torch_scan.needs_dispatcher(tensors)
        if needs_dispatcher:
            meta = call.meta(checked, comm)
            meta["requires_grad"] = torch_scan.requires_autograd(tensors)
        else:
            if shard is None:
                shard = Shard(checked, call.reverse, call.exclusive, call.flush, call.n_threads)
                caches.store_shard(key, call.operands, shard)
            start = SpeculativeStart(shard, comm)  # first of all, so that a device has work
            meta = {**call.meta(checked, comm), **start.meta, "is_eager": True}
            meta["transport_epoch"] = comm.transport_epoch(shard.out.device)
        meta["is_differentiable"] = not call.exclusive and autograd.is_differentiable(checked, tensors)
        if needs_dispatcher and not meta["is_differentiable"]:
            aggregate = autograd.aggregate(call, checked)
    except Exception as raised:  # raised by the consensus, on all ranks
        error = raised
    consensus = PendingConsensus(comm, meta, error)
    if start is not None:
        try:
            start.start_on_host()
        except Exception:
            consensus.wait()  # else its messages would be taken for those of the next call
            raise
    all_meta = consensus.wait(same=("scan", "reverse", "state", "dtype", "factors", "exchanged on"))
    if not all(each["is_eager"] for each in all_meta):
        recorded = AutogradScan(call, comm, checked, all_meta, scan)
        if any(each["requires_grad"] for each in all_meta) and all(e["is_differentiable"] for e in all_meta):
            return autograd.differentiable(recorded)
        results = recorded.run_recorded(checked, call.return_final, aggregate)
        return tuple(results) if call.return_final else results[0]
    assert shard is not None and start is not None
    final = DistributedScan(shard, comm, all_meta, start).run()
    if not call.return_final:
        return shard.out
    dtype = executors.state_dtype(checked.dtype)
    if final is None:
        return shard.out, torch.zeros_like(shard.empty_state(shard.rows), dtype=dtype)
    return shard.out, final.to(dtype, copy=True)  # later calls overwrite the memory of the transport
