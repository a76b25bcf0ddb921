"""What ranks tell each other: what each is about to do, states, sums.

A collective is entered by all ranks of a group or by none: first all learn what each of them found (`ask`), and
raise together. What is asked, gathered or handed on is on its way while the rank goes on, and waited for where it
is needed.

On a device all of it is in the order of the caller's stream, but questions where no backend of the group is for
the host. Devices of one host send small tensors by `wires`, which all ranks set up together when they first could
use them; else, and between others, it is torch.distributed that does.
"""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from upsweep.distributed import p2p_transport

__all__ = [
    "FEW",
    "Answers",
    "Gathering",
    "LineFrom",
    "LineTo",
    "Ranks",
    "are_finite",
    "as_real",
    "beside",
    "fetch",
    "runs_behind",
]

_N_BYTES = 4096  # of what a rank says: an error's first words, or a few facts
_TAG, _ASK_TAG = 1813, 1814  # of messages, so that none of the caller's is taken for one

# Of so few ranks each asks each other by a message, which gloo's calling thread sends; a gathering is handed to
# another thread first. Of two ranks 33 us against 80.
_FEW_RANKS = 4


class _Group:
    """What is known of a group for as long as it lives."""

    def __init__(self, group: Any):
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process is not in it")
        self.size = dist.get_world_size(group)
        # Such as "cpu:gloo,cuda:nccl". What others than NCCL take of a device goes over the host in any case.
        pairs = [pair.partition(":")[::2] for pair in str(dist.get_backend_config(group)).split(",")]
        self.kinds = {kind for kind, backend in pairs if kind == "cpu" or backend == "nccl"}
        self.asks_each = ("cpu", "gloo") in pairs and self.size <= _FEW_RANKS
        self.global_ranks = (
            range(self.size) if group is None else [int(dist.get_global_rank(group, r)) for r in range(self.size)]
        )
        self.wires: dict[torch.device, tuple[int, p2p_transport.Wires]] = {}  # and which time they were set up
        self.n_connected = 0
        self.why_no_wires: str | None = None


# Without the groups themselves, which end when their users let them.
_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
_groups_lock = threading.Lock()


class Ranks:
    """The processes of a group, in the order of their ranks in it."""

    def __init__(self, group: Any):
        world = dist.GroupMember.WORLD if dist.is_available() else None
        key = world if group is None else group
        is_kept = world is not None and isinstance(key, dist.ProcessGroup)
        known = _groups.get(key) if is_kept else None
        if known is None:
            if not (dist.is_available() and dist.is_initialized()):
                raise RuntimeError("group: torch.distributed is not initialised; call init_process_group() first")
            known = _Group(group)
            if is_kept:
                with _groups_lock:
                    known = _groups.setdefault(key, known)
        self.group, self._known = group, known
        self.rank, self.size = known.rank, known.size

    def way(self, device: torch.device) -> torch.device:
        """Where tensors of a device have to be to be exchanged: there, if the group has a backend for it."""
        kinds = self._known.kinds
        if device.type in kinds:
            return device
        return torch.device("cpu") if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())

    # ---- questions ----------------------------------------------------------------------------------------------

    def ask(self, facts: dict[str, Any] | None, error: Exception | None = None) -> Answers:
        """Tell all ranks what this one found, and ask what they did."""
        return Answers(self, facts, error)

    def agree(self, facts: dict[str, Any] | None, error: Exception | None = None) -> list[dict[str, Any]]:
        """What all ranks found, as `Answers.wait` gives it."""
        return self.ask(facts, error).wait()

    # ---- tensors ------------------------------------------------------------------------------------------------

    def gather(self, tensor: Tensor) -> Tensor:
        """Those of all ranks, stacked."""
        return self.start_gather(tensor).wait()

    def start_gather(self, tensor: Tensor) -> Gathering:
        """The same, without waiting for it."""
        return Gathering(self, tensor)

    def to(self, rank: int) -> LineTo:
        """Messages to a rank, which calls `come_from` for them."""
        return LineTo(self, rank)

    def come_from(
        self, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> LineFrom:
        """Messages from a rank, of these shapes."""
        return LineFrom(self, rank, shapes, dtype, device)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        real = as_real(tensor)
        total = real.detach().clone(memory_format=torch.contiguous_format).to(self.way(tensor.device))
        dist.all_reduce(total, group=self.group)
        total = total.to(tensor.device)
        return torch.view_as_complex(total) if tensor.is_complex() else total

    # ---- wires --------------------------------------------------------------------------------------------------

    def wired(self, device: torch.device) -> int:
        """What the others have to know: the number of the wires that are there, 0 for none yet, -1 for never."""
        if self.size == 1 or not runs_behind(device) or self._known.why_no_wires is not None:
            return -1
        there = self._known.wires.get(device)
        return 0 if there is None else there[0]

    def wires(self, device: torch.device, heard: Sequence[int]) -> p2p_transport.Wires | None:
        """The wires of this rank's device to the others', who all said `wired`; set up if they can be."""
        if min(heard) < 0:
            return None
        if not heard[0] or any(number != heard[0] for number in heard):
            self._connect(device)
        there = self._known.wires.get(device)
        return None if there is None else there[1]

    def how(self, device: torch.device) -> str:
        """What carries states between devices such as this one, in words."""
        if not runs_behind(device) or self.size == 1:
            return "torch.distributed"
        if self._known.why_no_wires is not None:
            return f"torch.distributed, as {self._known.why_no_wires}"
        return "memory of each other's devices" if device in self._known.wires else "not known yet"

    def unwire(self, device: torch.device) -> None:
        """Forget the wires: of some message it is not known whether it was taken. All set them up anew."""
        self._known.wires.pop(device, None)

    def _connect(self, device: torch.device) -> None:
        """Set up wires; all ranks do so, or none of them has any.

        One group at a time: where a rank has another thread that does so, this group does without, for now.
        """
        self._known.wires.pop(device, None)
        self._known.n_connected += 1
        is_first = p2p_transport.connecting.acquire(blocking=False)
        try:
            heard = self.agree({"first": is_first, "number": self._known.n_connected})
            # A rank that was stopped on its way to an earlier one counts on with the others.
            self._known.n_connected = max(its["number"] for its in heard)
            if all(its["first"] for its in heard):
                self._connect_alone(device)
        finally:
            if is_first:
                p2p_transport.connecting.release()

    def _connect_alone(self, device: torch.device) -> None:
        known = self._known
        places = self.agree(p2p_transport.place_of(device, self.size))
        reasons = [its["why not"] for its in self.agree({"why not": p2p_transport.why_apart(places, self.rank)})]
        made = None
        if not any(reasons):
            problem = None
            try:
                made = p2p_transport.connect(self.group or dist.group.WORLD, device, self.size)
            except Exception as error:  # all ranks do without, and that is no error
                problem = f"rank {self.rank}: {type(error).__name__}: {error}"[:500]
            reasons = [its["why not"] for its in self.agree({"why not": problem})]
        if any(reasons):
            known.why_no_wires = next(filter(None, reasons))
        elif made is not None:
            known.wires[device] = known.n_connected, made


class Answers:
    """What all ranks found, while it is on its way: over the host, if the group has a backend for it.

    Else it has a stream of its own, and waits neither for the work before it nor the host for the work after it.
    """

    def __init__(self, ranks: Ranks, facts: dict[str, Any] | None, error: Exception | None):
        said = facts or {}
        if error is not None:
            said = {"error": f"{type(error).__name__}: {error}"[:500]}
        data = json.dumps(said).encode().ljust(_N_BYTES)
        if len(data) > _N_BYTES:
            raise AssertionError(f"{len(data)} bytes of facts")
        self._error, self._way, self._rank, self._said = error, ranks.way(torch.device("cpu")), ranks.rank, said
        self._gathering: Gathering | None = None
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if self._way.type == "cpu" and ranks._known.asks_each:
            self._mine = mine  # until it is sent
            self._rows = np.empty((ranks.size, _N_BYTES), np.uint8)
            self._works = []
            others = [rank for rank in range(ranks.size) if rank != ranks.rank]
            for rank in others:
                there = ranks._known.global_ranks[rank]
                self._works.append(dist.isend(mine, there, group=ranks.group, tag=_ASK_TAG))
            for rank in others:
                there, row = ranks._known.global_ranks[rank], torch.from_numpy(self._rows[rank])
                self._works.append(dist.irecv(row, there, group=ranks.group, tag=_ASK_TAG))
            return
        with beside(self._way):
            self._gathering = ranks.start_gather(mine.to(self._way))

    def wait(self) -> list[dict[str, Any]]:
        """What all ranks found; raises on all of them if one of them failed.

        Raises
        ------
        Exception
            This rank's own error.
        RuntimeError
            Another rank has failed.
        """
        if self._gathering is None:
            for work in self._works:
                work.wait()
            rows = self._rows
        else:
            with beside(self._way):
                rows = self._gathering.wait().cpu().numpy()
        heard = [self._said if rank == self._rank else json.loads(row.tobytes()) for rank, row in enumerate(rows)]
        if self._error is not None:
            raise self._error
        for rank, its in enumerate(heard):
            if "error" in its:
                raise RuntimeError(f"rank {rank} of the group raised {its['error']}")
        return heard


# ---- what runs behind ------------------------------------------------------------------------------------------


def runs_behind(device: torch.device) -> bool:
    """Whether a call only starts work there, which is done while the host goes on."""
    return bool(device.type == "cuda")


def beside(device: torch.device, after: Any = None) -> Any:
    """A context whose work on a device runs beside the caller's, and before it, but after an event."""
    if not runs_behind(device):
        return contextlib.nullcontext()
    stream = _stream_beside(device)
    if after is not None:
        stream.wait_event(after)
    return torch.cuda.stream(stream)


@cache
def _stream_beside(device: torch.device) -> Any:
    return torch.cuda.Stream(device, priority=-1)


def fetch(tensor: Tensor) -> Callable[[], Any]:
    """Start to copy a tensor to the host; what is returned waits for it, and for no work that is started later."""
    if not runs_behind(tensor.device):
        return lambda: tensor.numpy()
    there = tensor.to("cpu", non_blocking=True)
    done = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Any:
        done.synchronize()
        return there.numpy()

    return wait


FEW = 1 << 16  # numbers that are rather copied to the host than looked at on a device


def are_finite(values: Tensor) -> Callable[[], list[bool]]:
    """Start to find out which of stacked tensors are finite; what is returned waits for the answer."""
    if values.numel() <= FEW:
        numbers = fetch(values)

        def wait() -> list[bool]:
            found = np.isfinite(numbers())
            return [True] * len(found) if found.all() else [bool(one.all()) for one in found]

        return wait
    answers = fetch(torch.isfinite(values).reshape(len(values), -1).all(1))
    return lambda: list(map(bool, answers()))


# ---- tensors on their way --------------------------------------------------------------------------------------


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


class LineTo:
    """Messages of one call to a rank."""

    def __init__(self, ranks: Ranks, rank: int):
        self._ranks, self._rank = ranks, ranks._known.global_ranks[rank]
        self._going: list[tuple[Any, Tensor]] = []

    def put(self, tensor: Tensor) -> None:
        """Send a tensor."""
        there = as_real(tensor).contiguous().to(self._ranks.way(tensor.device))
        work = dist.isend(there, self._rank, group=self._ranks.group, tag=_TAG)
        if runs_behind(tensor.device):
            # What sends runs on the device too, and there it would begin when the next rows are through: they wait
            # for it, for some microseconds.
            work.wait()
        else:
            self._going.append((work, there))

    def end(self) -> None:
        """Wait until all is sent."""
        for work, _ in self._going:
            work.wait()


class LineFrom:
    """Messages of one call from a rank: all on their way at once, where the host has nothing better to do."""

    def __init__(
        self, ranks: Ranks, rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ):  # fmt: skip
        self._ranks, self._rank, self._dtype, self._device = ranks, ranks._known.global_ranks[rank], dtype, device
        messages = map(self._start, shapes)
        self._coming = messages if runs_behind(device) else iter(list(messages))

    def _start(self, shape: Sequence[int]) -> tuple[Any, Tensor, Tensor]:
        tensor = torch.empty(tuple(shape), dtype=self._dtype, device=self._device)
        real, way = as_real(tensor), self._ranks.way(self._device)
        there = real if real.device == way else torch.empty_like(real, device=way)
        return dist.irecv(there, self._rank, group=self._ranks.group, tag=_TAG), there, tensor

    def take(self) -> Tensor:
        """The next message, for work that follows on the current stream."""
        work, there, tensor = next(self._coming)
        work.wait()
        if there.device != tensor.device:
            as_real(tensor).copy_(there)
        return tensor

    def end(self) -> None:
        """Nothing is left to be done."""


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of numbers, a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
