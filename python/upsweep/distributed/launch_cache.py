"""Fills of pieces of shards on a device, described once: the next shard that lies alike gives its addresses alone.

A description takes the host some 20 us, before the first launch of a call and between one group of rows and the
next, where the device waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from upsweep import _backends
from upsweep._torch import executors

if TYPE_CHECKING:
    from upsweep.distributed.shard import Rows, Shard

__all__ = ["fills_of"]

_MOST_SHARDS, _MOST_PIECES = 64, 64
_known: dict[Any, Fills] = {}


def fills_of(shard: Shard) -> Fills | None:
    """The fills of shards such as this one, which is on a device; None where tensors are not as they lie."""
    scan = shard.scan
    tensors = (scan.x, scan.gates, scan.gamma, scan.reset, shard.out)
    if any(t is not None and (t.is_conj() or t.is_neg()) for t in tensors) or not shard.out.numel():
        return None
    key = (
        scan.shape, scan.axis, shard.reverse, shard.exclusive, repr(scan.factor), shard.out.device,
        tuple([None if t is None else (t.dtype, t.stride()) for t in tensors]),
    )  # fmt: skip
    fills = _known.get(key)
    if fills is None:
        if len(_known) >= _MOST_SHARDS:
            _known.clear()
        fills = _known.setdefault(key, Fills())
    return fills


class Fills:
    """The pieces that were filled of shards that lie alike."""

    def __init__(self) -> None:
        self._pieces: dict[Any, _Piece] = {}

    def run(
        self, shard: Shard, x: Tensor, rows: Rows, initial: Tensor | None, steps: int, out: Tensor | None,
        final: Tensor,
    ) -> None:  # fmt: skip
        """Start to fill a piece, of the shard's tokens or of others."""
        addresses = _addresses(shard, x, initial, out, final)
        # The library goes by how addresses are aligned, too.
        aligned = tuple([0 if at is None else at & 255 for at in addresses])
        begins = None if initial is None else (initial.dtype, initial.stride())
        reads = x is shard.scan.x or (x.dtype, x.stride())
        key = (rows.begin, rows.end, steps, begins, reads, out is None, aligned)
        # Taken out while it is used: another thread has its own made.
        piece = self._pieces.pop(key, None)
        if piece is None:
            if len(self._pieces) >= _MOST_PIECES:
                self._pieces.clear()
            piece = _Piece(shard, x, rows, initial, steps, out, final, addresses)
        piece.start(addresses, shard.out.device)
        self._pieces[key] = piece


def _addresses(
    shard: Shard, x: Tensor, initial: Tensor | None, out: Tensor | None, final: Tensor
) -> list[int | None]:
    """Where arrays begin, in the order of `_NAMES`."""
    scan = shard.scan
    tensors = (x, scan.gates, scan.reset, scan.gamma, out, initial, final)
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


_NAMES = ("x", "gates", "reset", "gamma", "out", "initial", "final_state")


class _Piece:
    """A described fill, and how far its arrays begin behind those of the shard."""

    def __init__(
        self, shard: Shard, x: Tensor, rows: Rows, initial: Tensor | None, steps: int, out: Tensor | None,
        final: Tensor, addresses: list[int | None],
    ):  # fmt: skip
        scan = shard.scan
        described = executors._described
        self._problem = _backends.prepare_cuda_scan(
            _backends.cuda_problem(
                described(shard.piece(x, rows, steps)), described(shard.piece(scan.gates, rows, steps)),
                scan.factor if scan.gamma is None else described(shard.of_state(scan.gamma, rows)),
                described(initial), described(shard.piece(scan.reset, rows, steps)),
                described(shard.piece(out, rows, steps)), described(final), axis=scan.axis, reverse=shard.reverse,
                exclusive=shard.exclusive, device=shard.out.get_device(), stream=0,
            )
        )  # fmt: skip
        self._arrays = [
            (which, array, (array.data or 0) - at)
            for which, (array, at) in enumerate(
                (getattr(self._problem, name), at) for name, at in zip(_NAMES, addresses)
            )
            if at is not None
        ]

    def start(self, addresses: list[int | None], device: torch.device) -> None:
        problem = self._problem
        problem.stream = torch._C._cuda_getCurrentRawStream(device.index)
        for which, array, behind in self._arrays:
            array.data = addresses[which] + behind  # type: ignore[operator]  # one that is there
        _backends.start_cuda_scan(problem, lambda n_bytes: executors._workspace(n_bytes, device))
