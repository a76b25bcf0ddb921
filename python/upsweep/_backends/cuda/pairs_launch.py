"""Launches of pair reductions: compiles the kernels of a formula, fills in their arguments, starts them.

The columns of a tile of rows are split into items, so that few rows fill the device (`pairs_plan`); a second
kernel combines the partial results. Nothing here synchronises, except that the first call of a formula compiles it
and the first call with a set of ranges copies its plan to the device. Both are cached, so that a CUDA graph can
capture later calls.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._backends.cuda.pairs_plan import Ranges, fitting_rows, plan_ranges, split_columns
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.pairs.render import MAX_BATCH, Kernels, render
from upsweep._compiler.cuda.pairs.sizes import FLOAT16, LONG_FLOAT16, Request
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._compiler.lowering.lower import lower
from upsweep._core.layout import merge_axes
from upsweep._utils.lru_cache import LRUCache

FEW_ROWS = 128  # up to which a thread has one row
# The cost of starting an item, in blocks of columns: the K smallest are mostly inserted at the start.
OVERHEAD, OVERHEAD_SMALLEST = 0.5, 48.0
MAX_BLOCKS = 2**31 - 1  # of a launch


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
        ("tiles", ctypes.c_void_p), ("prepared", ctypes.c_void_p), ("partial", ctypes.c_void_p),
        ("values", ctypes.c_void_p), ("indices", ctypes.c_void_p),
    ]  # fmt: skip


class PairKernels(NamedTuple):
    """The compiled kernels of a formula on a device."""

    kernels: Kernels
    device: Any
    prepare: Any  # None where the formula takes no prepared columns
    reduce: Any
    combine: Callable[[], Any]  # compiled by the first call whose columns are cut
    n_slots: int  # blocks that the device runs at a time
    structure: type[ctypes.Structure]
    kinds: dict[int, str]  # of the variables, by position
    fields: tuple[str, ...]  # of the structure, for the addresses of the results


_prepared: LRUCache[Any, PairKernels] = LRUCache(512)


def prepare(reduction: PairReduction, device: int, *, rows: int = 0, wide_index: bool = False) -> PairKernels:
    """Return the kernels of a formula, which the first call compiles.

    A thread has `rows` rows, or with 0 as many as the generator chooses; `wide_index` is for 2**31 columns or
    more. Without a driver or a run-time compiler, a RuntimeError says what to install.
    """
    key = (reduction, device, rows, wide_index)
    return _prepared.get_or_build(key, lambda: _compile(reduction, device, rows, wide_index))


def _compile(reduction: PairReduction, device: int, rows: int, wide_index: bool) -> PairKernels:
    gpu = driver.device(device)
    kinds = {variable.static[0]: variable.static[1] for variable in reduction.variables}
    n_arrays = max(kinds, default=0) + 1
    request = Request(
        reduction.reduction, reduction.k, reduction.rows, reduction.dtype, reduction.dtype_acc, n_arrays, rows,
        wide_index, gpu.shared_bytes, reduction.precision, gpu.capability == 90,
    )  # fmt: skip
    options = {"long": LONG_FLOAT16 - 1} if reduction.precision in FLOAT16 else {}
    kernels = render(lower(reduction, **options), request)

    def load(text: str) -> Any:
        return gpu.load(nvrtc.fetch_or_compile(text, kernels.options, gpu.capability))

    module = load(kernels.text)
    reduce = module.function("reduce_pairs")
    combine = cache(lambda: load(kernels.combining_text).function("combine_parts"))
    is_prepared = kernels.product and kernels.product.prepared_bytes(1, 1)
    prepare = module.function("prepare_columns") if is_prepared else None
    if kernels.shared_bytes:
        reduce.use_shared(kernels.shared_bytes)
    structure = type("PairCall", (Call,), {"_fields_": [("arrays", Array * n_arrays)]})
    fields = tuple("values" if kind == "float" else "indices" for _, kind in outputs(reduction))
    n_slots = reduce.blocks_at_once(kernels.threads)
    return PairKernels(kernels, gpu, prepare, reduce, combine, n_slots, structure, kinds, fields)


def run(
    reduction: PairReduction, arrays: Sequence[ArrayDescriptor], outs: Sequence[ArrayDescriptor], n_i: int,
    n_j: int, batch: tuple[int, ...], ranges: Ranges | list[Ranges] | None, *, device: int, stream: int,
    allocate: Allocate,
) -> None:  # fmt: skip
    """Start a reduction over pairs.

    `arrays`, by position and of any strides, are (*batch or 1s, n_i or n_j, dim) of variables of kind "i" and
    "j", (*batch or 1s, 1, dim) or (dim,) of parameters. `outs`, one for each of `outputs(reduction)`, are
    contiguous: (*batch, rows, dim). `ranges` are the columns that are paired with each block of rows, the same
    in each entry of the batch or a list with one for each entry; None: all columns.
    """
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    n_batch = math.prod(batch)
    if n_rows == 0 or n_batch == 0:
        return
    if isinstance(ranges, list):
        for index, entry_ranges in zip(itertools.product(*map(range, batch)), ranges, strict=True):
            entry_arrays, entry_outs = ([_entry(a, batch, index) for a in group] for group in (arrays, outs))
            run(
                reduction, entry_arrays, entry_outs, n_i, n_j, (), entry_ranges, device=device, stream=stream,
                allocate=allocate,
            )  # fmt: skip
        return
    rows = 1 if n_rows <= FEW_ROWS else fitting_rows(ranges) if ranges is not None else 0
    prepared = prepare(reduction, device, rows=rows, wide_index=n_columns >= 2**31)
    kernels, call = prepared.kernels, prepared.structure()
    call.n_rows, call.n_columns, call.n_batch = n_rows, n_columns, n_batch
    _describe(call, prepared.kinds, arrays, batch)
    for out, field in zip(outs, prepared.fields, strict=True):
        setattr(call, field, out.pointer)
    # Of the ranges' plan, of partial results and of prepared columns, while the kernels are started.
    memory = keep_alive = prepared_alive = None
    if ranges is None:
        overhead = OVERHEAD_SMALLEST if reduction.k else OVERHEAD
        call.n_tiles, call.n_parts = -(-n_rows // kernels.tile), split_columns(
            n_rows, n_columns, n_batch, kernels.tile, kernels.block, kernels.partial_bytes, prepared.n_slots,
            prepared.device.n_processors, overhead,
        )  # fmt: skip
        call.n_items, is_split = call.n_tiles * call.n_parts, call.n_parts > 1
    else:
        fields, is_split, memory = _range_plan(prepared, ranges, n_rows)
        for field, value in fields.items():
            setattr(call, field, value)
    n_blocks = n_batch * call.n_items
    if n_blocks > MAX_BLOCKS:
        raise ValueError(f"{n_batch} batch entries of {n_rows} rows are too many for one call")
    if is_split:
        call.partial, keep_alive = allocate(n_blocks * kernels.tile * kernels.partial_bytes)
    if prepared.prepare is not None and kernels.product is not None:
        call.prepared, prepared_alive = allocate(kernels.product.prepared_bytes(n_batch, n_columns))
        blocks_per_entry = -(-n_columns // kernels.block)
        prepared.prepare.launch(n_batch * blocks_per_entry, kernels.threads, stream, call)
    prepared.reduce.launch(n_blocks, kernels.threads, stream, call)
    if is_split:
        blocks_per_tile = -(-kernels.tile // kernels.combiners)
        prepared.combine().launch(n_batch * call.n_tiles * blocks_per_tile, kernels.combiners, stream, call)
    del memory, keep_alive, prepared_alive


def _entry(array: ArrayDescriptor, batch: tuple[int, ...], index: tuple[int, ...]) -> ArrayDescriptor:
    """Return one entry of the batch of an array that may be repeated along the batch's axes."""
    n = max(len(array.shape) - 2, 0)
    strides = _batch_strides(array, n, len(batch))
    offset = sum(stride * i for stride, i in zip(strides, index))
    return array._replace(pointer=array.pointer + offset, shape=array.shape[n:], strides=array.strides[n:])


def _describe(
    call: Any, kinds: dict[int, str], arrays: Sequence[ArrayDescriptor], batch: tuple[int, ...]
) -> None:  # fmt: skip
    """Fill in addresses and strides, with as few axes of the batch as possible."""
    shape: list[int] = []
    strides: list[list[int]] = []
    if batch:
        for position, kind in kinds.items():
            array = arrays[position]
            n = len(array.shape) - (1 if kind == "p" and len(array.shape) == 1 else 2)
            strides.append(_batch_strides(array, n, len(batch)))
        shape, strides = merge_axes(batch, strides)
        if len(shape) > MAX_BATCH:
            raise ValueError(f"batch dimensions {batch}: more than {MAX_BATCH} that cannot be walked as one")
    call.batch_shape[:] = [*shape, *[1] * (MAX_BATCH - len(shape))]
    for n, (position, kind) in enumerate(kinds.items()):
        array, target = arrays[position], call.arrays[position]
        target.data, target.component_stride = array.pointer, array.strides[-1]
        target.row_stride = 0 if kind == "p" else array.strides[-2]
        if shape:
            target.batch_strides[: len(shape)] = strides[n]


def _batch_strides(array: ArrayDescriptor, n: int, n_batch: int) -> list[int]:
    """Return the strides of the batch's axes, of which the array has the last n: 0 where it is repeated."""
    strides = [0 if size == 1 else stride for size, stride in zip(array.shape[:n], array.strides)]
    return [0] * (n_batch - n) + strides


_RangePlan = tuple[dict[str, int], bool, Any]  # fields of a call; whether tiles are split; memory on the device


def _range_plan(prepared: PairKernels, ranges: Any, n_rows: int) -> _RangePlan:
    """Return the plan of ranges on this device, which ranges that cache plans cache."""
    tile, n_slots, device = prepared.kernels.tile, prepared.n_slots, prepared.device

    def build(ranges: Ranges) -> _RangePlan:
        plan = plan_ranges(ranges, n_rows, tile, n_slots)
        arrays = (plan.items, plan.pieces, plan.tiles)
        memory = device.memory(b"".join(np.ascontiguousarray(array, np.int64).tobytes() for array in arrays))
        pieces = memory.pointer + plan.items.nbytes
        fields = {
            "n_items": len(plan.items), "n_tiles": len(plan.tiles), "n_parts": 1, "items": memory.pointer,
            "pieces": pieces, "tiles": pieces + plan.pieces.nbytes,
        }  # fmt: skip
        return fields, plan.is_split, memory

    key = ("cuda", device.ordinal, tile, n_slots, n_rows)
    result: _RangePlan = ranges.plan(key, build) if hasattr(ranges, "plan") else build(ranges)
    return result
