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
from upsweep.distributed import autograd, shard_cache
from upsweep.distributed.autograd import AutogradScan
from upsweep.distributed.communicator import Communicator, Meta, PendingConsensus
from upsweep.distributed.shard import Shard
from upsweep.distributed.strategies import DistributedScan, SpeculativeStart


@dataclass(slots=True)
class ScanCall:
    """One call of a public scan on one rank."""

    name: str  # of the public function
    prepare: Callable[
        [Any], torch_scan.TensorScan
    ]  # checks the arguments with the initial state that it is passed
    operands: shard_cache.Operands | None  # if the arguments are nothing but these, `axis` and the flags
    axis: Any
    reverse: bool
    initial: Any
    exclusive: bool
    return_final: bool
    n_threads: int | None
    flush: bool  # whether subnormal states may become 0
    group: Any

    def describe(self, scan: Any) -> Meta:
        """Return what the other ranks have to know of the checked scan, whatever its tensors contain."""
        dtype, tensors = aggregates.wide_dtype(scan.dtype), _tensors_of(scan)
        is_eager = not torch_scan.needs_dispatcher(tensors)
        return {
            "scan": self.name, "reverse": self.reverse, "state": tuple(scan.state_shape), "dtype": str(dtype),
            "factors": str(aggregates.factor_dtype(scan, dtype)), "has_reset": scan.reset is not None,
            "empty": scan.shape[scan.axis] == 0 and scan.initial is None, "is_eager": is_eager,
            "requires_grad": not is_eager and torch_scan.requires_autograd(tensors),
            "is_differentiable": not self.exclusive and autograd.is_differentiable(scan, tensors),
        }  # fmt: skip


def _tensors_of(scan: Any) -> tuple[Any, ...]:
    return scan.x, scan.gates, scan.gamma, scan.reset, scan.initial


def scan(call: ScanCall) -> Any:
    """Scan the shards of all ranks; return this rank's shard of the result, and the final state if asked for.

    An error of this rank before the consensus is raised on all ranks.
    """
    comm = Communicator(call.group)
    meta, error, aggregate, shard, start = None, None, None, None, None
    try:
        key = shard_cache.cache_key(call.name, call.operands, call.axis, call.reverse, call.exclusive)
        cached = shard_cache.find(key, call.operands)
        if cached is not None:
            shard, meta = cached
            checked = shard.scan
        else:
            checked = call.prepare(call.initial if comm.rank == comm.order(call.reverse)[0] else None)
            _backends.check_threads(call.n_threads)
            torch_scan.reject_jit_trace()
            torch_scan.reject_forward_ad(_tensors_of(checked))
            meta = call.describe(checked)
            if meta["is_eager"]:
                shard = Shard(checked, call.reverse, call.exclusive, call.flush, call.n_threads)
                shard_cache.store(key, call.operands, shard, meta)
            elif not meta["is_differentiable"]:
                aggregate = autograd.aggregate(call, checked)
        exchanged_on = comm.messages.comm_device(checked.x.device).type
        meta = {**meta, "return_final": call.return_final, "exchanged on": exchanged_on}
        if shard is not None:
            start = SpeculativeStart(shard, comm)
            meta = {**meta, **start.meta, "transport_epoch": comm.transport_epoch(shard.out.device)}
    except Exception as raised:  # raised by the consensus, on all ranks
        error = raised
    consensus = PendingConsensus(comm, meta, error)
    if start is not None:
        try:
            start.start_deferred_work()
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
