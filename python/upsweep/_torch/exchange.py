"""What ranks tell each other: what each is about to do, carries, states, sums; with derivatives of every order.

A collective is entered by all ranks of a group or by none: first all learn what each of them found (`ask`), and
raise together. Derivatives are collectives too, in which each rank takes part whose result is differentiated.
What is asked, gathered or handed on is on its way while the rank goes on, and waited for where it is needed.

On a device what is sent waits for the work that it comes from, and nothing else (`mark`): messages, questions
and copies to the host have streams of their own, and work is queued before it is known what is sent of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

__all__ = [
    "FEW",
    "Answers",
    "Gathering",
    "Message",
    "Ranks",
    "are_finite",
    "as_real",
    "beside",
    "fetch",
    "joined",
    "mark",
    "runs_behind",
]

Parts = tuple[Tensor, Tensor, Tensor]  # multiplier, value, reset

_N_BYTES = 4096  # of what a rank says: an error's first words, or a few facts
_TAG = 1813  # of messages, so that none of the caller's is taken for one


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

    @cached_property
    def _kinds(self) -> set[str]:
        """The kinds of devices whose tensors are exchanged where they are."""
        # Such as "cpu:gloo,cuda:nccl". What others than NCCL take of a device goes over the host in any case.
        pairs = (pair.partition(":") for pair in str(dist.get_backend_config(self.group)).split(","))
        return {kind for kind, _, backend in pairs if kind == "cpu" or backend == "nccl"}

    def way(self, device: torch.device) -> torch.device:
        """Where tensors of a device have to be to be exchanged: there, if the group has a backend for it."""
        if device.type in self._kinds:
            return device
        return torch.device("cpu") if "cpu" in self._kinds else torch.device("cuda", torch.cuda.current_device())

    def ask(self, facts: dict[str, Any] | None, error: Exception | None = None) -> Answers:
        """Tell all ranks what this one found, and ask what they did."""
        return Answers(self, facts, error)

    def agree(self, facts: dict[str, Any] | None, error: Exception | None = None) -> list[dict[str, Any]]:
        """What all ranks found, as `Answers.wait` gives it."""
        return self.ask(facts, error).wait()

    def gather(self, tensor: Tensor) -> Tensor:
        """Those of all ranks, stacked."""
        return self.start_gather(tensor).wait()

    def start_gather(self, tensor: Tensor) -> Gathering:
        """The same, without waiting for it."""
        return Gathering(self, tensor)

    def hand_on(self, tensor: Tensor, rank: int, after: Any) -> Message:
        """Start to send the tensor to a rank, which calls `take_over` for it; `after` is a `mark` behind it."""
        return _Sent(self, tensor, rank, after)

    def take_over(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, rank: int) -> Message:
        """Start to receive a tensor like this, which a rank hands on."""
        return _Received(self, torch.Size(shape), dtype, device, rank)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        real = as_real(tensor)
        total = real.detach().clone(memory_format=torch.contiguous_format).to(self.way(tensor.device))
        dist.all_reduce(total, group=self.group)
        total = total.to(tensor.device)
        return torch.view_as_complex(total) if tensor.is_complex() else total

    def exchange(
        self, carry: Parts, with_reset: bool, track: bool, inputs: Sequence[Any] = ()
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

    def _global(self, rank: int) -> int:
        """A rank of the group as one of all processes, which is how messages are addressed."""
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))


class Answers:
    """What all ranks found, while it is on its way: over the host, if the group has a backend for it.

    Else it has a stream of its own, and waits neither for the work before it nor the host for the work after it.
    """

    def __init__(self, ranks: Ranks, facts: dict[str, Any] | None, error: Exception | None):
        said = {"error": f"{type(error).__name__}: {error}"[:500]} if error is not None else facts
        data = json.dumps(said).encode().ljust(_N_BYTES)
        if len(data) > _N_BYTES:
            raise AssertionError(f"{len(data)} bytes of facts")
        self._error, self._way = error, ranks.way(torch.device("cpu"))
        with beside(self._way):
            mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._way)
            self._gathering = ranks.start_gather(mine)

    def wait(self) -> list[dict[str, Any]]:
        """What all ranks found; raises on all of them if one of them failed.

        Raises
        ------
        Exception
            This rank's own error.
        RuntimeError
            Another rank has failed.
        """
        with beside(self._way):
            rows = self._gathering.wait().cpu().numpy()
        heard = [json.loads(row.tobytes()) for row in rows]
        if self._error is not None:
            raise self._error
        for rank, its in enumerate(heard):
            if "error" in its:
                raise RuntimeError(f"rank {rank} of the group raised {its['error']}")
        return heard


def runs_behind(device: torch.device) -> bool:
    """Whether a call only starts work there, which is done while the host goes on."""
    return bool(device.type == "cuda")


def mark(device: torch.device) -> Any:
    """The end of what has been started on the current stream, to be waited for; None where nothing runs behind."""
    return torch.cuda.current_stream(device).record_event() if runs_behind(device) else None


def beside(device: torch.device, after: Any = None, what: str = "look") -> Any:
    """A context whose work on a device runs beside the caller's, and before it, but `after` a mark.

    Each kind of work has a stream: a message that is sent would wait for one that is received.
    """
    if not runs_behind(device):
        return contextlib.nullcontext()
    stream = _stream_beside(device, what)
    if after is not None:
        stream.wait_event(after)
    return torch.cuda.stream(stream)


@cache
def _stream_beside(device: torch.device, what: str) -> Any:
    return torch.cuda.Stream(device, priority=-1)


def fetch(tensor: Tensor) -> Callable[[], Any]:
    """Start to copy a tensor to the host; what is returned waits for it, and for no work that is started later."""
    if not runs_behind(tensor.device):
        return lambda: tensor.numpy()
    with beside(tensor.device, mark(tensor.device), "fetch"):
        there = tensor.to("cpu", non_blocking=True)
        done = mark(tensor.device)
        _keep(tensor)

    def wait() -> Any:
        done.synchronize()
        return there.numpy()

    return wait


def _keep(tensor: Tensor) -> None:
    """Let memory of another stream be handed out again only behind what the current one does with it."""
    if runs_behind(tensor.device):
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


FEW = 1 << 16  # numbers that are rather copied to the host than looked at on a device


def are_finite(values: Tensor) -> Callable[[], list[bool]]:
    """Start to find out which of stacked tensors are finite; what is returned waits for the answer."""
    if values.numel() <= FEW:
        numbers = fetch(values)
        return lambda: [bool(np.isfinite(one).all()) for one in numbers()]
    with beside(values.device, mark(values.device), "fetch"):
        answers = fetch(torch.isfinite(values).reshape(len(values), -1).all(1))
        _keep(values)
    return lambda: list(map(bool, answers()))


class Gathering:
    """The tensors of all ranks, stacked, while they are on their way."""

    def __init__(self, ranks: Ranks, tensor: Tensor):
        real, way = as_real(tensor), ranks.way(tensor.device)
        self._like = tensor
        self._sent = real.contiguous().to(way)
        self._stacked = torch.empty((ranks.size, *real.shape), dtype=real.dtype, device=way)
        if way.type == "cuda":  # without the copies from one tensor a rank, which not all backends can do
            self._work = dist.all_gather_into_tensor(
                self._stacked.view(-1), self._sent.view(-1), group=ranks.group, async_op=True
            )
        else:
            self._work = dist.all_gather(list(self._stacked), self._sent, group=ranks.group, async_op=True)

    def wait(self) -> Tensor:
        """The stack, for work that follows on the current stream."""
        self._work.wait()
        stacked = self._stacked.to(self._like.device)
        return torch.view_as_complex(stacked) if self._like.is_complex() else stacked


class Message:
    """A tensor on its way from one rank to another."""

    _tensor: Tensor
    _there: Tensor  # the same numbers where they are sent from, or arrive
    _work: Any

    def wait(self) -> Tensor:
        """What was sent, for work that follows on the current stream."""
        self._work.wait()
        if self._there.device != self._tensor.device:
            self._arrive()
        _keep(self._tensor)
        if self._there is not self._tensor:
            _keep(self._there)
        return self._tensor

    def _arrive(self) -> None:
        pass


class _Sent(Message):
    def __init__(self, ranks: Ranks, tensor: Tensor, rank: int, after: Any):
        self._tensor = tensor
        with beside(tensor.device, after, "send"):
            self._there = as_real(tensor).contiguous().to(ranks.way(tensor.device))
            self._work = dist.isend(self._there, ranks._global(rank), group=ranks.group, tag=_TAG)


class _Received(Message):
    def __init__(self, ranks: Ranks, shape: torch.Size, dtype: torch.dtype, device: torch.device, rank: int):
        way = ranks.way(device)
        with beside(device, None, "receive"):  # its memory too: in the caller's, work may be going on until then
            self._tensor = torch.empty(shape, dtype=dtype, device=device)
            real = as_real(self._tensor)
            self._there = real if real.device == way else torch.empty_like(real, device=way)
            self._work = dist.irecv(self._there, ranks._global(rank), group=ranks.group, tag=_TAG)

    def _arrive(self) -> None:
        as_real(self._tensor).copy_(self._there)


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of numbers, a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


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
