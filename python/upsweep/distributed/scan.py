"""A scan over ranks: the checks, the consensus of all ranks, and the choice between eager and recorded execution.

Plain tensors are scanned by `strategies`. If autograd needs a gradient on any rank, all ranks run one autograd
operation whose derivative is a scan over ranks again (`autograd_scan`). Everything else that records tensors, and
derivatives of complex numbers, gets a two-pass scan in operations that can be recorded.
"""

from __future__ import annotations

from typing import Any

import torch

from upsweep._backends import cpu
from upsweep._torch import executors
from upsweep._torch import scan as torch_scan
from upsweep.distributed import autograd_scan, shard_cache
from upsweep.distributed.autograd_scan import AutogradScan
from upsweep.distributed.call import ScanCall, check_same
from upsweep.distributed.communicator import Communicator
from upsweep.distributed.shard import Shard
from upsweep.distributed.strategies import DistributedScan, SpeculativeStart

__all__ = ["scan"]


def scan(call: ScanCall) -> Any:
    """Scan the shards of all ranks; return this rank's shard of the result, and the final state if asked for.

    An error of this rank before the consensus is raised on all ranks.
    """
    comm = Communicator(call.group)
    meta, error, aggregate, shard, start = None, None, None, None, None
    try:
        key = shard_cache.cache_key(call.name, call.operands, call.axis, call.reverse, call.exclusive)
        if call.operands is not None:
            shard = shard_cache.lookup(key, call.operands)
        if shard is not None:
            checked, needs_dispatcher = shard.scan, False
            tensors = (checked.x, checked.gates, None, None, None)
        else:
            checked = call.prepare(call.initial if comm.rank == comm.order(call.reverse)[0] else None)
            n_threads = 0 if call.n_threads is None else cpu.check_threads(call.n_threads)
            tensors = (checked.x, checked.gates, checked.gamma, checked.reset, checked.initial)
            torch_scan.reject_jit_trace()
            torch_scan.reject_forward_ad(tensors)
            needs_dispatcher = torch_scan.needs_dispatcher(tensors)
        if needs_dispatcher:
            meta = call.meta(checked, comm)
            meta["requires_grad"] = torch_scan.requires_autograd(tensors)
        else:
            if shard is None:
                shard = Shard(checked, call.reverse, call.exclusive, call.flush, n_threads)
                if key is not None and call.operands is not None:
                    shard_cache.store(key, call.operands, shard)
            start = SpeculativeStart(shard, comm)  # first of all, so that a device has work
            meta = {**call.meta(checked, comm), **start.meta, "is_eager": True}
            meta["transport_epoch"] = comm.transport_epoch(shard.out.device)
        meta["is_differentiable"] = not call.exclusive and autograd_scan.is_differentiable(checked, tensors)
        if needs_dispatcher and not meta["is_differentiable"]:
            aggregate = autograd_scan.aggregate(call, checked)
    except Exception as raised:  # raised by the consensus, on all ranks
        error = raised
    consensus = comm.start_consensus(meta, error)
    if start is not None:
        try:
            start.start_on_host()
        except Exception:
            consensus.wait()  # else its messages would be taken for those of the next call
            raise
    all_meta = consensus.wait()
    check_same(all_meta, ("scan", "reverse", "state", "dtype", "factors", "exchanged on"))
    if not all(each["is_eager"] for each in all_meta):
        recorded = AutogradScan(call, comm, checked, all_meta, scan)
        if any(each["requires_grad"] for each in all_meta) and all(e["is_differentiable"] for e in all_meta):
            return autograd_scan.differentiable(recorded)
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
