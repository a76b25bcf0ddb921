"""What ranks tell each other: what each is about to do, carries, sums; with derivatives of every order.

A collective is entered by all ranks of a group or by none: first all learn what each of them found (`agree`), and
raise together. Derivatives are collectives too, in which each rank takes part whose result is differentiated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

__all__ = ["Ranks", "joined"]

Parts = tuple[Tensor, Tensor, Tensor]  # multiplier, value, reset

_N_BYTES = 4096  # of what a rank says: an error's first words, or a few facts


class Ranks:
    """The processes of a group, in the order of their ranks in it."""

    def __init__(self, group: Any):
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError("group: torch.distributed is not initialised; call init_process_group() first")
        self.group = group
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process is not in it")
        self.size = dist.get_world_size(group)
        on_cuda = "nccl" in str(dist.get_backend(group)).lower()
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    def agree(self, facts: dict[str, Any] | None, error: Exception | None = None) -> list[dict[str, Any]]:
        """What all ranks found; raises on all of them if one of them failed.

        Raises
        ------
        Exception
            This rank's own error.
        RuntimeError
            Another rank has failed.
        """
        said = {"error": f"{type(error).__name__}: {error}"[:500]} if error is not None else facts
        data = json.dumps(said).encode().ljust(_N_BYTES)
        if len(data) > _N_BYTES:
            raise AssertionError(f"{len(data)} bytes of facts")
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        heard = [json.loads(bytes(row.tolist())) for row in self.gather(mine).cpu()]
        if error is not None:
            raise error
        for rank, its in enumerate(heard):
            if "error" in its:
                raise RuntimeError(f"rank {rank} of the group raised {its['error']}")
        return heard

    def gather(self, tensor: Tensor) -> Tensor:
        """Those of all ranks, stacked."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        rows = [torch.empty_like(real, device=self.device, memory_format=torch.contiguous_format)
                for _ in range(self.size)]  # fmt: skip
        dist.all_gather(rows, real.contiguous().to(self.device), group=self.group)
        stacked = torch.stack(rows).to(tensor.device)
        return torch.view_as_complex(stacked) if tensor.is_complex() else stacked

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total = real.detach().clone(memory_format=torch.contiguous_format).to(self.device)
        dist.all_reduce(total, group=self.group)
        total = total.to(tensor.device)
        return torch.view_as_complex(total) if tensor.is_complex() else total

    def exchange(
        self, carry: Parts, with_reset: bool, track: bool, inputs: Sequence[Any] = ()
    ) -> tuple[list[Parts], Tensor]:
        """The parts of all ranks' carries, by one exchange, and the tensor that they lie in."""
        multiplier, value, reset = carry
        parts = [_as_real(multiplier), _as_real(value), *([reset.to(value.real.dtype)] if with_reset else [])]
        packed = torch.cat([part.reshape(-1) for part in parts])
        if track:
            # Without elements, or parameters, this rank takes part in the others' derivatives nevertheless.
            packed = packed if packed.requires_grad else packed.detach().requires_grad_()
            for tensor in inputs:
                if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.numel() == 0:
                    packed = _Join.apply(packed, tensor)
        gathered: Tensor = _Gather.apply(packed, self) if track else self.gather(packed)
        carries = []
        for row in gathered:
            pieces = row.split([part.numel() for part in parts])
            its = [_as_kind(piece, like) for piece, like in zip(pieces, (multiplier, value))]
            flags = pieces[2].detach().reshape(reset.shape) != 0 if with_reset else torch.zeros_like(reset)
            carries.append((its[0], its[1], flags))
        return carries, gathered

    def differentiable_sum(self, tensor: Tensor, track: bool) -> Tensor:
        if not track:
            return self.sum(tensor)
        mine = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        total: Tensor = _Sum.apply(mine, self)
        return total


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _as_kind(piece: Tensor, like: Tensor) -> Tensor:
    """The numbers of `_as_real` again as those of `like`."""
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
    """The first tensor, from which a derivative also reaches the second: zero, but it is there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, other: Tensor) -> Tensor:
        ctx.like = other.shape, other.dtype, other.device
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], _Zeros.apply(gradients[0], *ctx.like)


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
