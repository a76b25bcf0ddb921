"""Reductions over pairs on a device: kernels made from a formula, kept, and launched on the caller's stream.

Nothing here synchronises, but for the first call of a formula, which compiles, and the first of a set of ranges,
whose plan is sent to the device. Both are kept, so that a later call can be captured in a graph.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._backends.cuda.pairs_plan import Ranges, as_bytes, deal_dense, deal_ranges, fitting_rows
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.pairs.render import MAX_BATCH, Kernels, render
from upsweep._compiler.cuda.request import Request
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._compiler.lowering.lower import lower
from upsweep._utils.lru_cache import LRUCache

__all__ = ["Prepared", "prepare", "results_of", "run"]

KEPT = 512  # kernels of formulas in memory
FEW_ROWS = 128  # for which a thread owns one row
# What beginning an item costs, in blocks of columns: those that seek the K smallest insert most in the beginning.
OVERHEAD, OVERHEAD_SMALLEST = 0.5, 48.0
MOST_BLOCKS = 2**31 - 1  # of a launch


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("component_stride", ctypes.c_int64),
        ("batch_strides", ctypes.c_int64 * MAX_BATCH),
    ]  # fmt: skip


class Call(ctypes.Structure):
    """`Call` of kernels/call.cuh; the arrays follow."""

    _fields_ = [
        ("n_rows", ctypes.c_int64), ("n_columns", ctypes.c_int64), ("n_items", ctypes.c_int64),
        ("n_tiles", ctypes.c_int64), ("n_parts", ctypes.c_int64), ("n_batch", ctypes.c_int64),
        ("batch_shape", ctypes.c_int64 * MAX_BATCH), ("items", ctypes.c_void_p), ("pieces", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p), ("partial", ctypes.c_void_p), ("values", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
    ]  # fmt: skip


class Prepared(NamedTuple):
    """A formula's kernels on a device."""

    kernels: Kernels
    device: Any
    reduce: Any
    combine: Any
    n_slots: int  # blocks that the device runs at a time
    structure: type[ctypes.Structure]
    kinds: dict[int, str]  # of the variables, by position
    fields: tuple[str, ...]  # where results go


class _Plan(NamedTuple):
    """A set of ranges on a device."""

    n_items: int
    n_tiles: int
    is_cut: bool
    memory: Any
    items: int
    pieces: int
    tiles: int


_prepared: LRUCache[Any, Prepared] = LRUCache(KEPT)


def prepare(reduction: PairReduction, device: int, *, rows: int = 0, wide_index: bool = False) -> Prepared:
    """The kernels of a reduction, compiled and loaded by the first call.

    Raises
    ------
    RuntimeError
        There is no driver or no run-time compiler; the message says what to install.
    """
    key = (reduction, device, rows, wide_index)
    return _prepared.get_or_build(key, lambda: _make(reduction, device, rows, wide_index))


def _make(reduction: PairReduction, device: int, rows: int, wide_index: bool) -> Prepared:
    gpu = driver.device(device)
    kinds = {variable.static[0]: variable.static[1] for variable in reduction.variables}
    n_arrays = max(kinds, default=0) + 1
    request = Request(
        reduction.reduction, reduction.k, reduction.rows, reduction.dtype, reduction.dtype_acc, n_arrays, rows,
        wide_index,
        gpu.shared_bytes,
    )  # fmt: skip
    kernels = render(lower(reduction), request)
    module = gpu.load(nvrtc.fetch_or_compile(kernels.text, kernels.options, gpu.capability))
    reduce, combine = module.function("reduce_pairs"), module.function("combine_parts")
    if kernels.shared_bytes:
        reduce.use_shared(kernels.shared_bytes)
    structure = type("PairCall", (Call,), {"_fields_": [("arrays", Array * n_arrays)]})
    fields = tuple("values" if kind == "float" else "indices" for _, kind in outputs(reduction))
    n_slots = reduce.blocks_at_once(kernels.threads)
    return Prepared(kernels, gpu, reduce, combine, n_slots, structure, kinds, fields)


def run(
    reduction: PairReduction,
    arrays: Sequence[ArrayDescriptor],
    outs: Sequence[ArrayDescriptor],
    n_i: int,
    n_j: int,
    batch: tuple[int, ...],
    ranges: Ranges | list[Ranges] | None,
    *,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Start a reduction over pairs.

    Parameters
    ----------
    arrays : sequence of ArrayDescriptor
        By position: (*batch or 1s, n_i or n_j, dim) of variables of kind "i" and "j", (*batch or 1s, 1, dim) or
        (dim,) of parameters; any strides.
    outs : sequence of ArrayDescriptor
        One for each of `outputs(reduction)`, contiguous: (*batch, rows, dim).
    ranges : Ranges, optional
        Which columns each block of rows meets, the same in each entry of the batch, or a list of one an entry.
        Default: all.
    allocate : callable
        As that of `run_scan`.
    """
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    n_batch = math.prod(batch)
    if n_rows == 0 or n_batch == 0:
        return
    if isinstance(ranges, list):
        for entry, of_entry in zip(itertools.product(*map(range, batch)), ranges, strict=True):
            of_arrays = [_entry(array, batch, entry) for array in arrays]
            of_outs = [_entry(out, batch, entry) for out in outs]
            run(
                reduction,
                of_arrays,
                of_outs,
                n_i,
                n_j,
                (),
                of_entry,
                device=device,
                stream=stream,
                allocate=allocate,
            )
        return
    rows = 1 if n_rows <= FEW_ROWS else fitting_rows(ranges) if ranges is not None else 0
    made = prepare(reduction, device, rows=rows, wide_index=n_columns >= 2**31)
    kernels, call = made.kernels, made.structure()
    call.n_rows, call.n_columns, call.n_batch = n_rows, n_columns, n_batch
    _describe(call, made.kinds, arrays, batch)
    for out, field in zip(outs, made.fields, strict=True):
        setattr(call, field, out.pointer)
    plan = None
    if ranges is None:
        overhead = OVERHEAD_SMALLEST if reduction.k else OVERHEAD
        call.n_tiles, call.n_parts = -(-n_rows // kernels.tile), deal_dense(
            n_rows, n_columns, n_batch, kernels.tile, kernels.block, kernels.partial_bytes, made.n_slots,
            made.device.n_processors, overhead,
        )  # fmt: skip
        call.n_items, is_cut = call.n_tiles * call.n_parts, call.n_parts > 1
    else:
        plan = _planned(made, ranges, n_rows)
        call.n_tiles, call.n_items, call.n_parts, is_cut = plan.n_tiles, plan.n_items, 1, plan.is_cut
        call.items, call.pieces, call.tiles = plan.items, plan.pieces, plan.tiles
    keep = None
    n_blocks = n_batch * call.n_items
    if n_blocks > MOST_BLOCKS:
        raise ValueError(f"{n_batch} batch entries of {n_rows} rows are too many for one call")
    if is_cut:
        call.partial, keep = allocate(n_blocks * kernels.tile * kernels.partial_bytes)
    made.reduce.launch(n_blocks, kernels.threads, stream, call)
    if is_cut:
        share = -(-kernels.tile // kernels.combiners)
        made.combine.launch(n_batch * call.n_tiles * share, kernels.combiners, stream, call)
    del keep


def results_of(
    reduction: PairReduction, n_i: int, n_j: int, batch: tuple[int, ...], dtype: np.dtype[Any]
) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shape and the dtype of each result of arrays of this dtype."""
    n_rows = n_i if reduction.rows == "i" else n_j
    return [
        ((*batch, n_rows, dim), dtype if kind == "float" else np.dtype(np.int64))
        for dim, kind in outputs(reduction)
    ]


def _entry(array: ArrayDescriptor, batch: tuple[int, ...], entry: tuple[int, ...]) -> ArrayDescriptor:
    """One entry of the batch, of an array that may be repeated along its axes."""
    n = max(len(array.shape) - 2, 0)
    steps = _aligned(array.shape[:n], array.strides[:n], len(batch))
    offset = sum(step * index for step, index in zip(steps, entry))
    return array._replace(pointer=array.pointer + offset, shape=array.shape[n:], strides=array.strides[n:])


def _describe(call: Any, kinds: dict[int, str], arrays: Sequence[ArrayDescriptor], batch: tuple[int, ...]) -> None:
    """Fill in addresses and strides; the axes of the batch that can be walked as one become one."""
    shape: list[int] = []
    strides: dict[int, list[int]] = {}
    if batch:
        for position, kind in kinds.items():
            array = arrays[position]
            n = len(array.shape) - (1 if kind == "p" and len(array.shape) == 1 else 2)
            strides[position] = _aligned(array.shape[:n], array.strides[:n], len(batch))
        shape, strides = _joined(batch, strides)
    call.batch_shape[:] = [*shape, *[1] * (MAX_BATCH - len(shape))]
    for position, kind in kinds.items():
        array, target = arrays[position], call.arrays[position]
        target.data, target.component_stride = array.pointer, array.strides[-1]
        target.row_stride = 0 if kind == "p" else array.strides[-2]
        if shape:
            target.batch_strides[: len(shape)] = strides[position]


def _aligned(shape: tuple[int, ...], strides: tuple[int, ...], n_batch: int) -> list[int]:
    """Strides of the batch's axes: 0 where the array is repeated along one."""
    known = [0 if size == 1 else stride for size, stride in zip(shape, strides)]
    return [0] * (n_batch - len(known)) + known


def _joined(batch: tuple[int, ...], strides: dict[int, list[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """The batch with neighbouring axes made one where every array allows it."""
    shape: list[int] = []
    found: dict[int, list[int]] = {position: [] for position in strides}
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        steps = {position: each[axis] for position, each in strides.items()}
        if shape and all(found[position][-1] == step * size for position, step in steps.items()):
            shape[-1] *= size
            for position, step in steps.items():
                found[position][-1] = step
        else:
            shape.append(size)
            for position, step in steps.items():
                found[position].append(step)
    if len(shape) > MAX_BATCH:
        raise ValueError(f"batch dimensions {batch}: more than {MAX_BATCH} that cannot be walked as one")
    return shape, found


def _planned(made: Prepared, ranges: Any, n_rows: int) -> _Plan:
    """The plan of ranges on this device, kept with them if they keep plans."""
    tile, n_slots, device = made.kernels.tile, made.n_slots, made.device
    key = ("cuda", device.ordinal, tile, n_slots, n_rows)

    def build(of: Ranges) -> _Plan:
        deal = deal_ranges(of, n_rows, tile, n_slots)
        memory = device.memory(as_bytes(deal.items, deal.pieces, deal.tiles))
        pieces = memory.pointer + deal.items.nbytes
        return _Plan(
            len(deal.items),
            len(deal.tiles),
            deal.is_cut,
            memory,
            memory.pointer,
            pieces,
            pieces + deal.pieces.nbytes,
        )

    plan: _Plan = ranges.plan(key, build) if hasattr(ranges, "plan") else build(ranges)
    return plan
