"""A rank's shard of a scan: pieces of it, by rows and by steps, and where the state before it is forgotten.

Nothing here tracks gradients, and nothing but the shard itself is known: `sharded` knows the other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upsweep._torch import aggregates, executors, scan_ops
from upsweep.distributed.communicator import FEW, fetch
from upsweep.distributed.launch_cache import fills_of

__all__ = ["Rows", "Shard"]

# A state is forgotten where so large a one has become exactly 0: what is left there of any finite state is below
# the smallest normal number, also of those near 2**1024.
_LARGE = 2.0**1000
_LARGE_TO_NOTHING = 1000 + 1075  # halvings

# Where factors are data, they are looked at up to these shares of the shard. To scan the last one again costs 3 %
# of a pass, and to look at it less; a shard that forgets later is not worth more looks.
_LOOKS = (256, 32)
_SHORT_LOOK = 4096  # steps that are looked at before those, as many gates leave nothing after them
_LEAST_STEPS = 32  # of a look
_LEAST_ELEMENTS = 1 << 16  # of a shard that is looked at: below, a look costs as much as a pass

# Elements of a group of rows. A group has to take longer than the message that follows it (CPU), and than the host
# needs to receive the state before it and to start it (CUDA).
_GROUP = {"cpu": 1 << 20, "cuda": 1 << 26}
_MOST_GROUPS = 8


@dataclass(frozen=True)
class Rows:
    """Some neighbours along the axis of the state that rows are cut along; of a single state, that one."""

    begin: int
    end: int


class Shard:
    """A checked scan (`scans.prepare_*`) of steps that this rank holds, and its result."""

    def __init__(self, scan: Any, reverse: bool, exclusive: bool, flush: bool, n_threads: int):
        self.scan, self.reverse, self.exclusive, self.flush = scan, reverse, exclusive, flush
        self.n_threads = n_threads
        if scan.x.device.type not in _GROUP:
            raise TypeError(f"{scan.name}: expected a tensor on the CPU or on CUDA, got one on {scan.x.device}")
        self.out = scan_ops.allocate_out(scan.x, scan.dtype)
        self.length = int(scan.shape[scan.axis])
        self.wide = aggregates.wide_dtype(scan.dtype)
        shape = scan.state_shape
        self.row_axis = max(range(len(shape)), key=lambda axis: shape[axis]) if shape else None
        self.n_rows = 1 if self.row_axis is None else int(shape[self.row_axis])
        self.rows = Rows(0, self.n_rows)
        self._groups: dict[int, list[Rows]] = {}
        # How many groups of rows are worth the messages between them.
        least = _GROUP[self.out.device.type]
        self.n_groups = max(1, min(self.n_rows, _MOST_GROUPS, int(self.out.numel()) // least))
        self.ways: dict[Any, str | None] = {}  # that shards such as this one go, for `ways`
        self._fills = fills_of(self) if self.out.is_cuda else None

    # ---- pieces -------------------------------------------------------------------------------------------------

    def groups(self, count: int) -> list[Rows]:
        """All rows, in so many groups of about one size, of whole cache lines where columns are neighbours."""
        groups = self._groups.get(count)
        if groups is None:
            step = 32 if self.n_rows >= 64 * count else 1
            ends = [self.n_rows * i // count // step * step for i in range(count)] + [self.n_rows]
            groups = self._groups[count] = [Rows(begin, end) for begin, end in pairwise(ends)]
        return groups

    def state_shape(self, rows: Rows) -> list[int]:
        """The shape of the state of these rows."""
        shape = list(self.scan.state_shape)
        if self.row_axis is not None:
            shape[self.row_axis] = rows.end - rows.begin
        return shape

    def state(self, rows: Rows) -> Tensor:
        """Memory for the state of these rows, in the dtype that states are computed in."""
        return torch.empty(self.state_shape(rows), dtype=self.wide, device=self.out.device)

    def of_state(self, tensor: Tensor, rows: Rows) -> Tensor:
        """These rows of what has the state's axes, as its last ones, and the first rows at least."""
        if self.row_axis is None or rows == self.rows:
            return tensor
        at = tensor.ndim - len(self.scan.state_shape) + self.row_axis
        return tensor.narrow(at, rows.begin, rows.end - rows.begin)

    def joined(self, states: list[Tensor]) -> Tensor:
        """The states of groups of rows as one."""
        return states[0] if len(states) == 1 or self.row_axis is None else torch.cat(states, self.row_axis)

    def piece(self, tensor: Tensor | None, rows: Rows, steps: int) -> Any:
        """These rows and the first of the steps, in the order of the scan, of what has the shard's axes."""
        if tensor is None:
            return None
        axis = self.scan.axis
        if self.row_axis is not None and rows != self.rows:
            at = self.row_axis + (self.row_axis >= axis)
            tensor = tensor.narrow(at, rows.begin, rows.end - rows.begin)
        if steps == self.length:
            return tensor
        return tensor.narrow(axis, self.length - steps if self.reverse else 0, steps)

    # ---- work ---------------------------------------------------------------------------------------------------

    def initial(self, rows: Rows) -> Tensor | None:
        """The state that the caller gave."""
        return None if self.scan.initial is None else self.of_state(self.scan.initial, rows)

    def fill(self, rows: Rows, initial: Tensor | None, steps: int | None = None) -> Tensor:
        """Fill these rows of the result, or their first steps; returns the state after them."""
        return self._run(self.scan.x, rows, initial, self.length if steps is None else steps, self.out)

    def _run(self, x: Tensor, rows: Rows, initial: Tensor | None, steps: int, out: Tensor | None) -> Tensor:
        scan, final = self.scan, self.state(rows)
        if self._fills is not None and (initial is None or not (initial.is_conj() or initial.is_neg())):
            self._fills.run(self, x, rows, initial, steps, out, final)
            return final
        gamma = scan.factor if scan.gamma is None else self.of_state(scan.gamma, rows)
        with torch.no_grad():
            executors.run(
                self.piece(x, rows, steps), self.piece(scan.gates, rows, steps), gamma, initial,
                self.piece(scan.reset, rows, steps), self.piece(out, rows, steps), final, axis=scan.axis,
                reverse=self.reverse, exclusive=self.exclusive, flush=self.flush, n_threads=self.n_threads or None,
            )  # fmt: skip
        return final

    def reduce(self, rows: Rows) -> aggregates.Parts:
        """What these rows do to the state before them."""
        value = self.state(rows)
        multiplier = torch.empty_like(value, dtype=aggregates.factor_dtype(self.scan, self.wide))
        dropped = torch.empty_like(value, dtype=torch.bool)
        self._reduce(rows, multiplier, value, dropped, None)
        return multiplier, value, dropped

    def _reduce(
        self, rows: Rows, multiplier: Tensor | None, value: Tensor, dropped: Tensor | None, initial: Tensor | None
    ) -> None:
        scan = self.scan
        gamma = scan.factor if scan.gamma is None else self.of_state(scan.gamma, rows)
        x, gates, reset = (self.piece(tensor, rows, self.length) for tensor in (scan.x, scan.gates, scan.reset))
        with torch.no_grad():
            executors.reduce(
                x, gates, gamma, reset, multiplier, value, dropped, initial=initial, axis=scan.axis,
                reverse=self.reverse, flush=self.flush, n_threads=self.n_threads or None,
            )  # fmt: skip

    def leave(self, rows: Rows, initial: Tensor | None) -> Tensor:
        """The state after these rows."""
        if self.out.is_cuda:
            value = self.state(rows)
            self._reduce(rows, None, value, None, initial)
            return value
        parts = self.reduce(rows)
        return parts[1] if initial is None else aggregates.apply(*parts, initial)

    # ---- where the state before the shard is forgotten ----------------------------------------------------------

    @property
    def _has_one_factor(self) -> bool:
        scan = self.scan
        return scan.gates is None and scan.gamma is None and scan.reset is None

    @property
    def has_to_look(self) -> bool:
        """Whether only its factors tell where a state is forgotten."""
        return not self._has_one_factor and self.out.numel() >= _LEAST_ELEMENTS

    def start_look(self) -> Callable[[], int | None]:
        """Begin to find out after how many steps nothing is left of the state before the shard.

        What is returned waits for it. None: late, or not known.
        """
        if not self.has_to_look:
            known = self._forgets_after(abs(self.scan.factor)) if self._has_one_factor else None
            return lambda: known
        late = [min(self.length, max(_LEAST_STEPS, math.ceil(self.length / share))) for share in _LOOKS]
        looks = sorted({min(_SHORT_LOOK, late[-1]), *late})
        first = self._start_to_look_at(looks[0])

        def wait() -> int | None:
            needed = 0.0
            for steps in looks:
                if steps < needed and steps < looks[-1]:
                    continue
                left = (first if steps == looks[0] else self._start_to_look_at(steps))()
                if left == 0:
                    return steps
                needed = steps * _times_to_nothing(left)
                if needed > looks[-1]:
                    break
            return None

        return wait

    def _start_to_look_at(self, steps: int) -> Callable[[], float]:
        """Begin to find out how much so many steps leave of a large state, at most."""
        # On the CPU, what is written here is written again.
        left = self._left_of_a_large_state(steps, None if self.out.is_cuda else self.out)
        numbers = fetch(left if left.numel() <= FEW else left.abs().max())
        return lambda: float(np.abs(numbers()).max(initial=0))

    def _forgets_after(self, factor: float) -> int | None:
        if not factor < 1:  # NaN too
            return None
        steps = 1 if factor == 0 else math.floor(_LARGE_TO_NOTHING / -math.log2(factor)) + 1
        return steps if 4 * steps <= self.length else None

    def _left_of_a_large_state(self, steps: int, out: Tensor | None) -> Tensor:
        """The state after a scan of nothing, of so many steps."""
        zeros = _number(0.0, self.scan.dtype, self.out.device, self.scan.shape)
        # Integers are not multiplied.
        large = _number(
            1.0 if self.wide == torch.int64 else _LARGE, self.wide, self.out.device, self.scan.state_shape
        )
        return self._run(zeros, self.rows, large, steps, out)


@lru_cache(maxsize=64)
def _number(value: float, dtype: torch.dtype, device: torch.device, shape: torch.Size) -> Tensor:
    """A number as a tensor of some shape that is only read, from any stream."""
    number = torch.full((), value, dtype=dtype, device=device).expand(shape)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return number


def _times_to_nothing(left: float) -> float:
    """How many times the steps that left this of a large state will leave nothing, if they are alike."""
    if not left < math.inf:  # nor is it known of what has left the range of numbers
        return 0.0
    return _LARGE_TO_NOTHING / math.log2(_LARGE / left) if left < _LARGE else math.inf
