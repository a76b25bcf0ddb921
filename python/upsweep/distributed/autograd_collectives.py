"""What ranks tell each other where something is differentiated: carries and sums, with derivatives of every order.

Derivatives are collectives too, in which each rank takes part whose result is differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from upsweep.distributed.communicator import Ranks, as_real

__all__ = ["exchange", "joined", "total"]

Parts = tuple[Tensor, Tensor, Tensor]  # multiplier, value, reset


def exchange(
    ranks: Ranks, carry: Parts, with_reset: bool, track: bool, inputs: Sequence[Any] = ()
) -> tuple[list[Parts], Tensor]:
    """The parts of all ranks' carries, by one exchange, and the tensor that they lie in."""
    multiplier, value, reset = carry
    parts = [as_real(multiplier), as_real(value), *([reset.to(value.real.dtype)] if with_reset else [])]
    packed = torch.cat([part.reshape(-1) for part in parts])
    if track:
        # Without elements, or parameters, this rank takes part in the others' derivatives nevertheless.
        packed = packed if packed.requires_grad else packed.detach().requires_grad_()
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.numel() == 0:
                packed = _Join.apply(packed, tensor)
    gathered: Tensor = _Gather.apply(packed, ranks) if track else ranks.gather(packed)
    carries = []
    for row in gathered:
        pieces = row.split([part.numel() for part in parts])
        its = [_as_kind(piece, like) for piece, like in zip(pieces, (multiplier, value))]
        flags = pieces[2].detach().reshape(reset.shape) != 0 if with_reset else torch.zeros_like(reset)
        carries.append((its[0], its[1], flags))
    return carries, gathered


def total(ranks: Ranks, tensor: Tensor, track: bool) -> Tensor:
    """The sum over all ranks."""
    if not track:
        return ranks.sum(tensor)
    mine = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    found: Tensor = _Sum.apply(mine, ranks)
    return found


def _as_kind(piece: Tensor, like: Tensor) -> Tensor:
    """The numbers of `as_real` again as those of `like`."""
    if like.is_complex():
        pairs = piece.reshape(*like.shape, 2)
        return torch.complex(pairs[..., 0], pairs[..., 1])
    return piece.reshape(like.shape).to(like.dtype)


class _Gather(Function):  # type: ignore[misc]  # torch is not followed
    """The stack of all ranks' tensors."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Sum.apply(gradients[0], ctx.ranks)[ctx.ranks.rank], None


class _Sum(Function):  # type: ignore[misc]  # torch is not followed
    """The sum of all ranks' tensors: each has it, so that the derivative is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Sum.apply(gradients[0], ctx.ranks), None


class _Join(Function):  # type: ignore[misc]  # torch is not followed
    """The first tensor, from which a derivative also reaches the second, and theirs too: zero, but it is there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(other)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (other,) = ctx.saved_tensors
        return _Join.apply(gradients[0], other), _Zeros.apply(gradients[0], other.shape, other.dtype, other.device)


class _Zeros(Function):  # type: ignore[misc]  # torch is not followed
    """Zeros that count as computed from a tensor, so that derivatives of higher order pass here too."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        ctx.like = source.shape, source.dtype, source.device
        return torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Zeros.apply(gradients[0], *ctx.like), None, None, None


def joined(tensors: Sequence[Tensor], gathered: Tensor) -> list[Tensor]:
    """The results, whose derivatives lead every rank to the exchange, whether it needed what it heard or not."""
    return [_Join.apply(tensor, gathered) for tensor in tensors]
