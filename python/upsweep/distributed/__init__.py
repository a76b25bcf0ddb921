"""Scans and counts of what is sharded over the processes of a torch.distributed group.

Each rank holds a shard of the axis, of any length, the ranks' shards following each other in the order of ranks,
and calls the same function. Where the state before a shard is soon forgotten, or rows are many, a shard is read
and written once; else it is read twice. The result is that of one scan of the whole, within its rounding, with the
same bits on each run; what travels is one number for each row, two or three where a shard is read twice.

All ranks of the group have to call, and all have to differentiate something of their result if one does. Before
anything else, ranks tell each other what each is about to do: if one raises, or shapes disagree, all raise. A rank
that does not call at all, or fails later, makes those that wait for it raise after the group's time-out.

On the GPUs of one host, a device writes what it tells into memory of the others'. That is set up when a group
first scans: about two seconds once, and 1.25 MiB for each rank of the group on each device, for as long as the
group lives. Where it cannot be, NCCL carries it.

Import it by name: ``import upsweep.distributed`` needs torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upsweep import bincounts
from upsweep._torch import scan as torch_scan
from upsweep.distributed import autograd_collectives, scan
from upsweep.distributed.communicator import Ranks

__all__ = ["bincount", "cumulative_sum", "discounted_cumsum", "linear_recurrence"]


def cumulative_sum(
    x: Tensor,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: Any = None,
    reset: Tensor | None = None,
    dtype: torch.dtype | None = None,
    exclusive: bool = False,
    return_final: bool = False,
    n_threads: int | None = None,
    group: Any = None,
) -> Any:
    """Cumulative sum along an axis that is sharded over ranks.

    Parameters
    ----------
    x : torch.Tensor
        This rank's shard. Other axes are the same on all ranks.
    axis, reverse, reset, dtype, exclusive, n_threads
        As in `upsweep.cumulative_sum`, of the shard.
    initial : tensor or number, optional
        The state before the first step of all; read on the rank that comes first in the order of the scan (in
        reverse: the last rank), which alone has its gradient.
    return_final : bool
        Return also the state after the last step of all, on every rank.
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
        As `upsweep.cumulative_sum`; on every rank, where shards disagree.
    RuntimeError
        Another rank has raised; torch.distributed is not initialised.

    Examples
    --------
    In each process, after ``torch.distributed.init_process_group``::

        y = upsweep.distributed.cumulative_sum(shard)
    """
    return scan.scan(
        "cumulative_sum", lambda state: torch_scan.prepare_sum(x, dtype, axis, reset, state), reverse=reverse,
        initial=initial, exclusive=exclusive, return_final=return_final, n_threads=n_threads, flush=False,
        group=group, axis=axis,
        plain=(x, None, None) if initial is reset is dtype is n_threads is None else None,
    )  # fmt: skip


def discounted_cumsum(
    x: Tensor,
    gamma: Any,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: Any = None,
    reset: Tensor | None = None,
    exclusive: bool = False,
    return_final: bool = False,
    n_threads: int | None = None,
    group: Any = None,
) -> Any:
    """Discounted sum along an axis that is sharded over ranks: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x, gamma
        This rank's shard, and the discount of its steps: a number, or what broadcasts with the shard. The gradient
        of a gamma is that of this rank's steps.
    axis, reverse, initial, reset, exclusive, return_final, n_threads, group
        As in `cumulative_sum`.

    Returns
    -------
    y, final
        As of `cumulative_sum`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cumulative_sum`.

    Examples
    --------
    In each process::

        returns = upsweep.distributed.discounted_cumsum(rewards, 0.99, reverse=True, reset=ends)
    """
    return scan.scan(
        "discounted_cumsum", lambda state: torch_scan.prepare_discounted(x, gamma, axis, reset, state),
        reverse=reverse, initial=initial, exclusive=exclusive, return_final=return_final, n_threads=n_threads,
        flush=True, group=group, axis=axis,
        plain=(x, None, gamma) if initial is None and reset is None and n_threads is None else None,
    )  # fmt: skip


def linear_recurrence(
    gates: Any,
    tokens: Any,
    *,
    axis: int = -1,
    reverse: bool = False,
    initial: Any = None,
    reset: Tensor | None = None,
    exclusive: bool = False,
    return_final: bool = False,
    n_threads: int | None = None,
    group: Any = None,
) -> Any:
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
        As of `cumulative_sum`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cumulative_sum`.

    Examples
    --------
    In each process::

        y, state = upsweep.distributed.linear_recurrence(gates, tokens, return_final=True)
    """
    return scan.scan(
        "linear_recurrence", lambda state: torch_scan.prepare_gated(gates, tokens, axis, reset, state),
        reverse=reverse, initial=initial, exclusive=exclusive, return_final=return_final, n_threads=n_threads,
        flush=True, group=group, axis=axis,
        plain=(tokens, gates, None) if initial is None and reset is None and n_threads is None else None,
    )  # fmt: skip


def bincount(
    x: Tensor,
    weights: Tensor | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    axis: int | None = None,
    dtype: torch.dtype | None = None,
    invalid: str = "raise",
    return_invalid: bool = False,
    n_threads: int | None = None,
    group: Any = None,
) -> Any:
    """Count keys that are sharded over ranks, or sum their weights; every rank has the result.

    Parameters
    ----------
    x, weights
        This rank's keys and weights: any number of them.
    minlength, length, axis, dtype, invalid, return_invalid, n_threads
        As in `upsweep.bincount`, the same on all ranks.
    group : torch.distributed.ProcessGroup, optional
        Default: the default group.

    Returns
    -------
    counts : torch.Tensor
        Of all ranks' keys; as many bins as the largest of them asks for. Added in 64 bits a part, rounded once.
    n_invalid : torch.Tensor
        Only with `return_invalid`: of all ranks.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `upsweep.bincount` on the rank whose keys are bad, RuntimeError on the others; ValueError on every rank
        where the ranks' results have other shapes or dtypes.

    Examples
    --------
    In each process::

        counts = upsweep.distributed.bincount(keys, length=1000)
    """
    ranks = Ranks(group)
    tracked = torch.is_grad_enabled() and isinstance(weights, Tensor) and weights.requires_grad
    facts, error, counted, n_invalid = None, None, None, None
    at = 0
    try:
        if not isinstance(x, Tensor):
            raise TypeError(f"x: expected a tensor, got {type(x).__name__}")
        wide, wanted = _sum_dtypes(weights, dtype)
        counted = bincounts.bincount(
            x,
            weights,
            minlength,
            length=length,
            axis=axis,
            dtype=wide,
            invalid=invalid,
            return_invalid=return_invalid,
            n_threads=n_threads,
        )  # type: ignore[call-overload]  # of tensors, which the annotations do not know
        if return_invalid:
            counted, n_invalid = counted
        at = 0 if axis is None else axis % x.ndim
        rows = [size for i, size in enumerate(counted.shape) if i != at]
        facts = {
            "rows": rows, "dtype": str(wanted), "summed in": str(wide),
            "length": None if length is None else int(length), "bins": counted.shape[at], "tracked": tracked,
            "return_invalid": bool(return_invalid),
        }  # fmt: skip
    except Exception as raised:  # to be raised when the others know of it
        error = raised
    heard = ranks.agree(facts, error)
    scan.check_same(heard, ("rows", "dtype", "summed in", "length", "return_invalid"))
    assert counted is not None
    missing = max(its["bins"] for its in heard) - counted.shape[at]
    if missing:
        shape = (*counted.shape[:at], missing, *counted.shape[at + 1 :])
        counted = torch.cat((counted, counted.new_zeros(shape)), at)
    total = autograd_collectives.total(ranks, counted, any(its["tracked"] for its in heard)).to(wanted)
    return (total, ranks.sum(n_invalid)) if n_invalid is not None else total


def _sum_dtypes(weights: Tensor | None, dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """What is summed in, and the result's dtype."""
    if weights is None:
        return torch.int64, dtype or torch.int64
    if weights.is_complex():
        return torch.complex128, dtype or weights.dtype
    integers = not (weights.is_floating_point() or dtype is None or dtype.is_floating_point or dtype.is_complex)
    default = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return torch.int64 if integers else torch.float64, dtype or default
