"""Transports: how a rank sends tensors to the other ranks while it goes on.

A transport gathers a tensor from all ranks, or opens a channel: the messages of one call from one rank to another.
Receiving and gathering return tensors for work that follows on the current stream; they may lie in memory that a
later call overwrites. `ProcessGroupTransport` sends the messages with torch.distributed and works everywhere;
`p2p_transport.SymmetricMemoryTransport` lets the GPUs of one host write into each other's memory. `strategies`
uses either through the same three protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from upsweep.distributed import streams

_TAG = 1813  # keeps these messages apart from those of the caller


class Channel(Protocol):
    """The messages of one call from one rank to another, in order: one of them sends, the other one receives."""

    def send(self, tensor: Tensor) -> None:
        """Send a tensor after the work that the current stream has."""

    def recv(self) -> Tensor:
        """Return the next message, which is valid until the channel is closed."""

    def close(self) -> None:
        """Wait until all sent tensors may be reused, or let the sender reuse its memory, in stream order."""


class Transport(Protocol):
    """A way to exchange tensors with the other ranks."""

    def start_all_gather(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Start to gather the tensors of all ranks; return a function that waits and returns them stacked."""

    def open_send(self, rank: int) -> Channel:
        """Open a channel to a rank, which calls `open_recv`."""

    def open_recv(
        self, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> Channel:
        """Open the channel from a rank for messages of these shapes."""


class ProcessGroupTransport(Transport):
    """Messages and collectives of torch.distributed.

    `group` may be None, the default group; `global_ranks` are those of its ranks. Its backends take tensors of the
    `device_types` as they are.
    """

    def __init__(self, group: Any, global_ranks: Sequence[int], device_types: set[str]):
        self.group, self.global_ranks, self._device_types = group, global_ranks, device_types

    def comm_device(self, device: torch.device) -> torch.device:
        """Return `device` if a backend takes its tensors, else the device that they are copied to first."""
        if device.type in self._device_types:
            return device
        on_host = "cpu" in self._device_types
        return torch.device("cpu") if on_host else torch.device("cuda", torch.cuda.current_device())

    def start_all_gather(self, tensor: Tensor) -> Callable[[], Tensor]:
        real, device = as_real(tensor), self.comm_device(tensor.device)
        sent = real.contiguous().to(device)
        stacked = torch.empty((len(self.global_ranks), *real.shape), dtype=real.dtype, device=device)
        if device.type == "cuda":  # avoids the copies from one tensor per rank; not all backends have it
            work = dist.all_gather_into_tensor(stacked.view(-1), sent.view(-1), group=self.group, async_op=True)
        else:
            work = dist.all_gather(list(stacked), sent, group=self.group, async_op=True)
        return partial(_finish_all_gather, work, sent, stacked, tensor)

    def open_send(self, rank: int) -> Channel:
        return _MessageChannel(self, rank)

    def open_recv(
        self, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> Channel:
        return _MessageChannel(self, rank, [torch.empty(tuple(s), dtype=dtype, device=device) for s in shapes])

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks."""
        total = as_real(tensor).detach().clone(memory_format=torch.contiguous_format)
        total = total.to(self.comm_device(tensor.device))
        dist.all_reduce(total, group=self.group)
        total = total.to(tensor.device)
        return torch.view_as_complex(total) if tensor.is_complex() else total


def _finish_all_gather(work: Any, sent: Tensor, stacked: Tensor, like: Tensor) -> Tensor:
    """Wait for an all-gather; `sent` is an argument so that its memory lives until then."""
    work.wait()
    stacked = stacked.to(like.device)
    return torch.view_as_complex(stacked) if like.is_complex() else stacked


class _MessageChannel(Channel):
    """Messages to a rank, or from it into `targets`: posted at once on the CPU, on a device when needed."""

    def __init__(self, transport: ProcessGroupTransport, rank: int, targets: Sequence[Tensor] = ()):
        self._transport = transport
        self._where: dict[str, Any] = {"group": transport.group, "tag": _TAG}
        self._rank = transport.global_ranks[rank]
        self._sent: list[tuple[Any, Tensor]] = []  # the tensors live until they are sent
        messages = map(self._post, targets)
        is_async = bool(targets) and streams.is_async(targets[0].device)
        self._messages = messages if is_async else iter(list(messages))

    def send(self, tensor: Tensor) -> None:
        message = as_real(tensor).contiguous().to(self._transport.comm_device(tensor.device))
        work = dist.isend(message, self._rank, **self._where)
        if streams.is_async(tensor.device):
            # The kernel that sends would otherwise start only after the next group of rows. Waiting delays that
            # group by some microseconds.
            work.wait()
        else:
            self._sent.append((work, message))

    def _post(self, target: Tensor) -> tuple[Any, Tensor, Tensor]:
        real, device = as_real(target), self._transport.comm_device(target.device)
        buffer = real if real.device == device else torch.empty_like(real, device=device)
        return dist.irecv(buffer, self._rank, **self._where), buffer, target

    def recv(self) -> Tensor:
        work, buffer, target = next(self._messages)
        work.wait()
        if buffer.device != target.device:
            as_real(target).copy_(buffer)
        return target

    def close(self) -> None:
        for work, _ in self._sent:
            work.wait()


def as_real(tensor: Tensor) -> Tensor:
    """View a complex tensor as pairs of real numbers; return a real tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
