"""A rank's shard of a scan: scans and reductions of parts of it, and the decay of the state before it.

A part is a range of rows (neighbours along the longest axis of the state) and the first steps of the shard.
Nothing here tracks gradients or communicates; `strategies` decides which parts are scanned from which states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upsweep._torch import aggregates, executors, scan_ops
from upsweep.distributed import streams

# A state has decayed if a state this large has become exactly 0. What is left of any finite state, also of one
# near 2**1024, is below the smallest normal number then.
_LARGE = 2.0**1000
_HALVINGS_TO_ZERO = 1000 + 1075

# Where the factors are data, a probe scans the first steps of the shard: up to 1/256, then 1/32 of it. To scan the
# last one again costs 3 % of a pass, and to probe it less. Shards that decay later are not worth a longer probe.
_PROBE_SHARES = (256, 32)
_SHORT_PROBE = 4096  # steps of the first probe; after so many, most gates leave nothing
_MIN_PROBE_STEPS = 32
_MIN_PROBED_ELEMENTS = 1 << 16  # of a shard; probing a smaller one costs as much as a pass

# Elements of a group of rows. A group has to take longer than the message after it (CPU), and than the host needs
# to receive the state before the group and to start it (CUDA).
_GROUP_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
_MAX_GROUPS = 8


class Rows(NamedTuple):
    """A range along the axis of the state that rows are cut along; (0, 1) if the state is a single number."""

    begin: int
    end: int


@lru_cache(maxsize=256)
def _split_rows(n_rows: int, n_groups: int) -> tuple[Rows, ...]:
    """Split rows into groups of about one size, of whole cache lines where lines are interleaved."""
    step = 32 if n_rows >= 64 * n_groups else 1
    ends = [n_rows * i // n_groups // step * step for i in range(n_groups)] + [n_rows]
    return tuple(Rows(begin, end) for begin, end in pairwise(ends))


class Shard:
    """A checked scan (`_torch.scan.prepare_*`) of the steps of this rank, and its result `out`."""

    def __init__(self, scan: Any, reverse: bool, exclusive: bool, flush: bool, n_threads: int | None):
        self.scan, self.reverse, self.exclusive, self.flush = scan, reverse, exclusive, flush
        self.n_threads = n_threads
        executors.check_device(scan.x, scan.name)
        self.out = scan_ops.allocate_out(scan.x, scan.dtype)
        self.length = int(scan.shape[scan.axis])
        self.compute_dtype = aggregates.wide_dtype(scan.dtype)
        shape = scan.state_shape
        self.row_axis = max(range(len(shape)), key=lambda axis: shape[axis]) if shape else None
        self.n_rows = 1 if self.row_axis is None else int(shape[self.row_axis])
        self.rows = Rows(0, self.n_rows)
        # As many groups of rows as are worth a message between them.
        size = _GROUP_ELEMENTS[self.out.device.type]
        self.n_groups = max(1, min(self.n_rows, _MAX_GROUPS, int(self.out.numel()) // size))
        self._has_one_factor = scan.gates is None and scan.gamma is None and scan.reset is None
        self._known_decay = self._decay_steps(scan.factor) if self._has_one_factor else None

    def without_tensors(self) -> Shard:
        """Return a copy that keeps no tensor."""
        return self._copy_with(None, None, None)

    def with_tensors(self, x: Tensor, gates: Tensor | None) -> Shard:
        """Return the shard of tensors of the same layout, and memory for its result."""
        return self._copy_with(x, gates, scan_ops.allocate_out(x, self.scan.dtype))

    def _copy_with(self, x: Tensor | None, gates: Tensor | None, out: Tensor | None) -> Shard:
        shard = object.__new__(Shard)  # copy.copy takes several times as long
        scan = object.__new__(type(self.scan))
        scan.__dict__.update(self.scan.__dict__, x=x, gates=gates)
        shard.__dict__.update(self.__dict__, scan=scan, out=out)
        return shard

    def row_groups(self, n_groups: int) -> tuple[Rows, ...]:
        """Split all rows into groups."""
        return _split_rows(self.n_rows, n_groups)

    def state_shape(self, rows: Rows) -> list[int]:
        """Return the shape of the state of these rows."""
        shape = list(self.scan.state_shape)
        if self.row_axis is not None:
            shape[self.row_axis] = rows.end - rows.begin
        return shape

    def empty_state(self, rows: Rows) -> Tensor:
        """Allocate the state of these rows, in the dtype that states are computed in."""
        return torch.empty(self.state_shape(rows), dtype=self.compute_dtype, device=self.out.device)

    def narrow_state(self, tensor: Tensor, rows: Rows) -> Tensor:
        """Return these rows of a tensor whose last axes are those of the state."""
        if self.row_axis is None or rows == self.rows:
            return tensor
        axis = tensor.ndim - len(self.scan.state_shape) + self.row_axis
        return tensor.narrow(axis, rows.begin, rows.end - rows.begin)

    def concat_states(self, states: list[Tensor]) -> Tensor:
        """Concatenate the states of groups of rows."""
        return states[0] if len(states) == 1 or self.row_axis is None else torch.cat(states, self.row_axis)

    def initial(self, rows: Rows) -> Tensor | None:
        """Return these rows of the caller's initial state."""
        return None if self.scan.initial is None else self.narrow_state(self.scan.initial, rows)

    def _narrow(self, tensor: Tensor | None, rows: Rows, steps: int) -> Any:
        """Return these rows and the first steps, in the order of the scan, of a tensor of the shard's shape."""
        if tensor is None:
            return None
        axis = self.scan.axis
        if self.row_axis is not None and rows != self.rows:
            row_axis = self.row_axis + (self.row_axis >= axis)
            tensor = tensor.narrow(row_axis, rows.begin, rows.end - rows.begin)
        if steps == self.length:
            return tensor
        return tensor.narrow(axis, self.length - steps if self.reverse else 0, steps)

    def _factor(self, rows: Rows) -> Any:
        return self.scan.factor if self.scan.gamma is None else self.narrow_state(self.scan.gamma, rows)

    def scan_rows(self, rows: Rows, initial: Tensor | None, steps: int | None = None) -> Tensor:
        """Write these rows of the result, or their first steps; return the state after them."""
        steps, final = self.length if steps is None else steps, self.empty_state(rows)
        self._run(self.scan.x, rows, initial, steps, self.out, final)
        return final

    def _run(
        self, x: Tensor, rows: Rows, initial: Tensor | None, steps: int, out: Tensor | None, final: Tensor
    ) -> None:
        scan = self.scan
        x_part, gates, reset, out_part = (
            self._narrow(tensor, rows, steps) for tensor in (x, scan.gates, scan.reset, out)
        )
        executors.run(
            x_part, gates, self._factor(rows), initial, reset, out_part, final, axis=scan.axis,
            reverse=self.reverse, exclusive=self.exclusive, flush=self.flush, n_threads=self.n_threads,
        )  # fmt: skip

    def reduce_rows(self, rows: Rows) -> aggregates.Parts:
        """Return the aggregate of these rows: multiplier, value, reset."""
        value = self.empty_state(rows)
        multiplier = torch.empty_like(value, dtype=aggregates.factor_dtype(self.scan, self.compute_dtype))
        reset = torch.empty_like(value, dtype=torch.bool)
        self._reduce(rows, multiplier, value, reset, None)
        return multiplier, value, reset

    def _reduce(
        self, rows: Rows, multiplier: Tensor | None, value: Tensor, reset: Tensor | None, initial: Tensor | None
    ) -> None:
        scan = self.scan
        x, gates, resets = (self._narrow(tensor, rows, self.length) for tensor in (scan.x, scan.gates, scan.reset))
        executors.reduce(
            x, gates, self._factor(rows), resets, multiplier, value, reset, initial=initial, axis=scan.axis,
            reverse=self.reverse, flush=self.flush, n_threads=self.n_threads,
        )  # fmt: skip

    def final_state(self, rows: Rows, initial: Tensor | None) -> Tensor:
        """Return the state after these rows without writing the result."""
        if self.out.is_cuda:
            value = self.empty_state(rows)
            self._reduce(rows, None, value, None, initial)
            return value
        parts = self.reduce_rows(rows)
        return parts[1] if initial is None else aggregates.apply(*parts, initial)

    @property
    def needs_probe(self) -> bool:
        """Whether only a look at the factors tells where the state before the shard has decayed."""
        return not self._has_one_factor and self.out.numel() >= _MIN_PROBED_ELEMENTS

    def start_decay_probe(self) -> Callable[[], int | None]:
        """Start to find the number of steps after which nothing is left of the state before the shard.

        Returns a function that waits for it. It returns None if that is late or not known.
        """
        if not self.needs_probe:
            return lambda: self._known_decay
        longest = [
            min(self.length, max(_MIN_PROBE_STEPS, math.ceil(self.length / share))) for share in _PROBE_SHARES
        ]
        probes = sorted({min(_SHORT_PROBE, longest[-1]), *longest})
        first = self._start_probe(probes[0])

        def wait() -> int | None:
            needed = 0.0
            for steps in probes:
                if steps < needed and steps < probes[-1]:
                    continue
                left = (first if steps == probes[0] else self._start_probe(steps))()
                if left == 0:
                    return steps
                needed = steps * _repeats_to_zero(left)
                if needed > probes[-1]:
                    break
            return None

        return wait

    def _start_probe(self, steps: int) -> Callable[[], float]:
        """Start to find the largest part of a large state that is left after so many steps."""
        # On the CPU the probe writes into the result, which is overwritten later.
        left = self._probe_state(steps, None if self.out.is_cuda else self.out)
        wait = streams.start_copy_to_host(left if left.numel() <= streams.MAX_HOST_CHECK else left.abs().max())
        return lambda: float(np.abs(wait()).max(initial=0))

    def _decay_steps(self, factor: complex) -> int | None:
        magnitude = math.hypot(factor.real, factor.imag)  # `abs` of a large one raises
        if not magnitude < 1:  # also NaN
            return None
        steps = 1 if magnitude == 0 else math.floor(_HALVINGS_TO_ZERO / -math.log2(magnitude)) + 1
        return steps if 4 * steps <= self.length else None

    def _probe_state(self, steps: int, out: Tensor | None) -> Tensor:
        """Return the state after a scan of zeros from a large state."""
        device, dtype = self.out.device, self.compute_dtype
        zeros = _constant(0.0, self.scan.dtype, device, self.scan.shape)
        # Integers are only reset, never multiplied.
        large = _constant(1.0 if dtype == torch.int64 else _LARGE, dtype, device, self.scan.state_shape)
        final = self.empty_state(self.rows)
        self._run(zeros, self.rows, large, steps, out, final)
        return final


@lru_cache(maxsize=64)
def _constant(value: float, dtype: torch.dtype, device: torch.device, shape: torch.Size) -> Tensor:
    """A read-only tensor of one number that any stream may use."""
    number = torch.full((), value, dtype=dtype, device=device).expand(shape)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return number


def _repeats_to_zero(left: float) -> float:
    """Return how often the steps that left so much of `_LARGE` have to be repeated until nothing is left."""
    if not left < math.inf:  # an overflow or NaN says nothing about the decay
        return 0.0
    return _HALVINGS_TO_ZERO / math.log2(_LARGE / left) if left < _LARGE else math.inf


def pack_aggregate(aggregate: aggregates.Parts, is_sum: bool, has_reset: bool) -> Tensor:
    """Stack value, multiplier (1 in a sum, and left out) and reset (if any rank has some) in the value's dtype."""
    multiplier, value, reset = aggregate
    if is_sum and not has_reset:
        return value.unsqueeze(0)
    return torch.stack([value, *[multiplier.to(value.dtype)] * (not is_sum), *[reset.to(value.dtype)] * has_reset])


def unpack_aggregates(
    packed: Tensor, is_sum: bool, has_reset: bool, factor_dtype: torch.dtype
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Return multipliers, values and resets of the stack of all ranks' packed aggregates."""
    resets = packed[:, -1].detach() != 0 if has_reset else None
    if is_sum:
        return None, packed[:, 0], resets
    return packed[:, 1] if factor_dtype.is_complex else packed[:, 1].real, packed[:, 0], resets
