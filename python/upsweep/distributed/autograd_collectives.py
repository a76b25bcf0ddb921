"""Collectives that autograd records: an all-gather of aggregates and an all-reduce, with derivatives of any order.

Derivatives are collectives too. Each rank whose result is differentiated takes part in them, whether its own
tensors have gradients or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from upsweep._torch.aggregates import Parts
from upsweep.distributed.communicator import Communicator
from upsweep.distributed.shard import pack_aggregate, unpack_aggregates

__all__ = ["all_reduce", "exchange", "joined"]


def exchange(
    comm: Communicator, carry: Parts, has_reset: bool, track: bool, inputs: Sequence[Any] = ()
) -> tuple[list[Parts], Tensor]:
    """Gather the aggregates of all ranks by one all-gather; return them and the tensor that they are parts of."""
    packed = pack_aggregate(carry, False, has_reset)
    if track:
        # A rank without elements or without parameters takes part in the derivatives of the others all the same.
        packed = packed if packed.requires_grad else packed.detach().requires_grad_()
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.numel() == 0:
                packed = _Join.apply(packed, tensor)
    gathered: Tensor = _AllGather.apply(packed, comm) if track else comm.all_gather(packed)
    multipliers, values, resets = unpack_aggregates(gathered, False, has_reset, carry[0].dtype)
    assert multipliers is not None
    resets = torch.zeros_like(values, dtype=torch.bool) if resets is None else resets
    return list(zip(multipliers, values, resets)), gathered


def all_reduce(comm: Communicator, tensor: Tensor, track: bool) -> Tensor:
    """Return the sum over all ranks."""
    if not track:
        return comm.messages.all_reduce(tensor)
    total: Tensor = _AllReduce.apply(tensor if tensor.requires_grad else tensor.detach().requires_grad_(), comm)
    return total


def joined(tensors: Sequence[Tensor], gathered: Tensor) -> list[Tensor]:
    """Return the results so that their derivatives lead every rank to the all-gather, even if it ignored it."""
    return [_Join.apply(tensor, gathered) for tensor in tensors]


class _AllGather(Function):  # type: ignore[misc]  # mypy does not read torch
    """The stack of the tensors of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return comm.all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _AllReduce.apply(gradients[0], ctx.comm)[ctx.comm.rank], None


class _AllReduce(Function):  # type: ignore[misc]  # mypy does not read torch
    """The sum of the tensors of all ranks. Each rank has it, so its derivative sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return comm.messages.all_reduce(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _AllReduce.apply(gradients[0], ctx.comm), None


class _Join(Function):  # type: ignore[misc]  # mypy does not read torch
    """The first tensor, with a gradient of zeros for the second one, which autograd then computes too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(other)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (other,) = ctx.saved_tensors
        return _Join.apply(gradients[0], other), _Zeros.apply(gradients[0], other.shape, other.dtype, other.device)


class _Zeros(Function):  # type: ignore[misc]  # mypy does not read torch
    """Zeros that depend on a tensor, so that higher derivatives reach all ranks too."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        ctx.like = source.shape, source.dtype, source.device
        return torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Zeros.apply(gradients[0], *ctx.like), None, None, None
