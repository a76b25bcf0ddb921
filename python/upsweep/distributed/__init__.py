r"""Scans and counts of arrays that are sharded over the processes of a torch.distributed group.

`cumulative_sum`, `discounted_cumsum` and `linear_recurrence` scan along an axis of which each rank holds a shard,
of any length, in the order of the ranks; `bincount` counts keys that are sharded. ``import upsweep`` does not
import this package, because it needs torch: use ``import upsweep.distributed``.

All ranks of the group have to call the same function, and if one rank differentiates its result, all have to. If
one rank raises, or the shards do not fit together, all raise. If a rank does not call at all, or fails later, the
ranks that wait for it raise after the group's time-out.

The result is that of one scan of the whole, within its rounding, with the same bits on each run. Ranks exchange
one to three numbers per row.

How it works
------------
::

    cumulative_sum, discounted_cumsum, linear_recurrence
      -> scan                  checks the call, asks for consensus, runs the scan
           communicator        consensus of all ranks: all-gather of metadata, or of the error of one rank
             mailbox           memory that the processes of one host share, for metadata
           shard               this rank's part: scans and reductions of rows, decay of the state before it
             shard_cache       checked shards, for arrays of the same layout
           strategies          which rows are scanned from which state, and what is sent
             transport         messages of torch.distributed          \  one interface: all-gathers and channels
             p2p_transport     memory of the other GPUs of one host   /
      -> autograd              the derivative, a scan over ranks in the other direction
    bincount -> communicator, autograd

1. Each rank checks its arguments and starts what it can do alone (`strategies.SpeculativeStart`): a device has
   work before anything is exchanged.
2. The consensus exchanges the metadata: shape of the state, dtypes, whether the state before the shard decays, how
   many groups of rows are worth a message. From these all ranks choose the same strategy.
3. The strategy runs: `local_with_fixup`, `pipelined` or `two_pass`; `strategies` says when each is chosen.
4. On a device, a decay that was assumed from earlier calls is compared with the factors when all work is queued,
   in a second consensus. After a wrong guess the shards are scanned again.

Processes of one host exchange metadata through memory that they share (Linux; two all-gathers of 4 KB per rank set
it up in the first call of a group), others by an all-gather.

The GPUs of one host write states into each other's memory. That is set up when a group first scans: it takes 1.5
seconds once, and 1.25 MiB for each rank of the group on each device, as long as the group lives. Where it cannot
be set up, NCCL carries the states. Start to read in `scan`, then `strategies`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from upsweep import bincounts
from upsweep._torch import scan as torch_scan
from upsweep.distributed import autograd
from upsweep.distributed.communicator import Communicator, Meta, PendingConsensus
from upsweep.distributed.scan import ScanCall, scan

__all__ = ["bincount", "cumulative_sum", "discounted_cumsum", "linear_recurrence"]


def cumulative_sum(
    x: Tensor, *, axis: int = -1, reverse: bool = False, initial: Any = None, reset: Tensor | None = None,
    dtype: torch.dtype | None = None, exclusive: bool = False, return_final: bool = False,
    n_threads: int | None = None, group: Any = None,
) -> Any:  # fmt: skip
    """Cumulative sum along an axis that is sharded over ranks.

    Parameters
    ----------
    x : torch.Tensor
        This rank's shard. Other axes are the same on all ranks.
    axis, reverse, reset, dtype, exclusive, n_threads
        As in `upsweep.cumulative_sum`, of the shard.
    initial : tensor or number, optional
        The state before the first step of all ranks. It is read on the first rank in the order of the scan (the
        last rank if `reverse`), which alone has its gradient.
    return_final : bool
        Also return the state after the last step of all ranks, on every rank.
    group : torch.distributed.ProcessGroup, optional
        Default: the default group.

    Returns
    -------
    y : torch.Tensor
        This rank's shard of the result.
    final : torch.Tensor
        Only with `return_final`.

    Raises
    ------
    TypeError, ValueError
        As `upsweep.cumulative_sum`; on every rank if the shards do not fit together.
    RuntimeError
        Another rank has raised, or torch.distributed is not initialised.

    Examples
    --------
    Each process of a group calls it with its shard; here the group has one process.

    >>> import torch, upsweep.distributed
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> upsweep.distributed.cumulative_sum(torch.arange(4.0))
    tensor([0., 1., 3., 6.])
    >>> torch.distributed.destroy_process_group()
    """
    return scan(ScanCall(
        "cumulative_sum", lambda state: torch_scan.prepare_sum(x, dtype, axis, reset, state),
        (x, None, None) if initial is reset is dtype is n_threads is None else None, axis, bool(reverse),
        initial, bool(exclusive), bool(return_final), n_threads, False, group,
    ))  # fmt: skip


def discounted_cumsum(
    x: Tensor, gamma: Any, *, axis: int = -1, reverse: bool = False, initial: Any = None,
    reset: Tensor | None = None, exclusive: bool = False, return_final: bool = False,
    n_threads: int | None = None, group: Any = None,
) -> Any:  # fmt: skip
    """Discounted sum along an axis that is sharded over ranks: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x, gamma
        This rank's shard, and the discount of its steps: a number, or what broadcasts with the shard. The gradient
        of gamma is the part that comes from this rank's steps.
    axis, reverse, initial, reset, exclusive, return_final, n_threads, group
        As in `cumulative_sum`.

    Returns
    -------
    y, final
        As `cumulative_sum`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cumulative_sum`.

    Examples
    --------
    >>> import torch, upsweep.distributed
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> upsweep.distributed.discounted_cumsum(torch.ones(3), 0.5, reverse=True)
    tensor([1.7500, 1.5000, 1.0000])
    >>> torch.distributed.destroy_process_group()
    """
    return scan(ScanCall(
        "discounted_cumsum", lambda state: torch_scan.prepare_discounted(x, gamma, axis, reset, state),
        (x, None, gamma) if initial is reset is n_threads is None else None, axis, bool(reverse), initial,
        bool(exclusive), bool(return_final), n_threads, True, group,
    ))  # fmt: skip


def linear_recurrence(
    gates: Any, tokens: Any, *, axis: int = -1, reverse: bool = False, initial: Any = None,
    reset: Tensor | None = None, exclusive: bool = False, return_final: bool = False,
    n_threads: int | None = None, group: Any = None,
) -> Any:  # fmt: skip
    """Gated recurrence along an axis that is sharded over ranks: y[t] = gates[t] * y[t-1] + tokens[t].

    Parameters
    ----------
    gates, tokens
        This rank's shards. They broadcast together.
    axis, reverse, initial, reset, exclusive, return_final, n_threads, group
        As in `cumulative_sum`.

    Returns
    -------
    y, final
        As `cumulative_sum`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cumulative_sum`.

    Examples
    --------
    >>> import torch, upsweep.distributed
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> gates, tokens = torch.tensor([0.5, 0.5, 0.0]), torch.ones(3)
    >>> upsweep.distributed.linear_recurrence(gates, tokens, return_final=True)
    (tensor([1.0000, 1.5000, 1.0000]), tensor(1.))
    >>> torch.distributed.destroy_process_group()
    """
    return scan(ScanCall(
        "linear_recurrence", lambda state: torch_scan.prepare_gated(gates, tokens, axis, reset, state),
        (tokens, gates, None) if initial is reset is n_threads is None else None, axis, bool(reverse), initial,
        bool(exclusive), bool(return_final), n_threads, True, group,
    ))  # fmt: skip


def bincount(
    x: Tensor, weights: Tensor | None = None, minlength: int = 0, *, length: int | None = None,
    axis: int | None = None, dtype: torch.dtype | None = None, invalid: Literal["raise", "drop"] = "raise",
    return_invalid: bool = False, n_threads: int | None = None, group: Any = None,
) -> Any:  # fmt: skip
    """Count keys that are sharded over ranks, or sum their weights; every rank has the result.

    Parameters
    ----------
    x, weights
        This rank's keys and weights, any number of them.
    minlength, length, axis, dtype, invalid, return_invalid, n_threads
        As in `upsweep.bincount`, the same on all ranks.
    group : torch.distributed.ProcessGroup, optional
        Default: the default group.

    Returns
    -------
    counts : torch.Tensor
        Of the keys of all ranks, with as many bins as the rank with the largest key needs. Sums are computed in 64
        bits and rounded once.
    n_invalid : torch.Tensor
        Of all ranks; only with `return_invalid`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `upsweep.bincount` on the rank whose keys are bad, RuntimeError on the others. ValueError on every rank
        if the results of the ranks have other shapes or dtypes.

    Examples
    --------
    >>> import torch, upsweep.distributed
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> upsweep.distributed.bincount(torch.tensor([1, 2, 2]), length=4)
    tensor([0, 1, 2, 0])
    >>> torch.distributed.destroy_process_group()
    """
    comm = Communicator(group)
    meta: Meta | None = None
    error, counts, n_invalid, bin_axis = None, None, None, 0
    try:
        if not isinstance(x, Tensor):
            raise TypeError(f"x: expected a tensor, got {type(x).__name__}")
        sum_dtype, result_dtype = _sum_dtypes(weights, dtype)
        counts = bincounts.bincount(
            x, weights, minlength, length=length, axis=axis, dtype=sum_dtype, invalid=invalid,
            return_invalid=return_invalid, n_threads=n_threads,
        )  # fmt: skip
        if return_invalid:
            counts, n_invalid = counts
        bin_axis = 0 if axis is None else axis % x.ndim
        rows = list(counts.shape)
        n_bins = rows.pop(bin_axis)
        meta = {
            "rows": tuple(rows), "dtype": str(result_dtype), "summed in": str(sum_dtype),
            "length": None if length is None else int(length), "n_bins": n_bins,
            "requires_grad": torch.is_grad_enabled() and isinstance(weights, Tensor) and weights.requires_grad,
            "return_invalid": bool(return_invalid),
        }  # fmt: skip
    except Exception as raised:  # raised by the consensus, on all ranks
        error = raised
    same = ("rows", "dtype", "summed in", "length", "return_invalid")
    all_meta = PendingConsensus(comm, meta, error).wait(same)
    assert counts is not None
    n_missing = max(meta["n_bins"] for meta in all_meta) - n_bins
    if n_missing:
        shape = (*counts.shape[:bin_axis], n_missing, *counts.shape[bin_axis + 1 :])
        counts = torch.cat((counts, counts.new_zeros(shape)), bin_axis)
    track = any(meta["requires_grad"] for meta in all_meta)
    total = autograd.all_reduce(comm, counts, track).to(result_dtype)
    return total if n_invalid is None else (total, comm.messages.all_reduce(n_invalid))


def _sum_dtypes(weights: Tensor | None, dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype that sums are computed in, and that of the result."""
    if weights is None:
        return torch.int64, dtype or torch.int64
    if weights.is_complex():
        return torch.complex128, dtype or weights.dtype
    integers = not (weights.is_floating_point() or dtype is None or dtype.is_floating_point or dtype.is_complex)
    default = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return torch.int64 if integers else torch.float64, dtype or default
