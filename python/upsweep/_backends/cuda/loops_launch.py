"""Launches of loop nests: compiles the kernels of a program once, and starts them in order on the caller's stream.

Nothing here synchronises. The first call of a nest compiles; a CUDA graph can capture later calls.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.launch_plan import Launch, Plan
from upsweep._compiler.cuda.loops.program import Program
from upsweep._utils.lru_cache import LRUCache

_lock = threading.Lock()


_Caches = tuple[LRUCache[Any, dict[str, Any]], LRUCache[Any, Plan]]  # kernels; plans, one for each set of sizes
_caches: weakref.WeakKeyDictionary[Program, _Caches] = weakref.WeakKeyDictionary()


def _caches_of(program: Program) -> _Caches:
    with _lock:
        return _caches.setdefault(program, (LRUCache(64), LRUCache(64)))


def _load(program: Program, device: int, in_shared: frozenset[Any], dense: frozenset[Any]) -> dict[str, Any]:
    """Return the kernels of a nest, given the buffers in shared memory and those with contiguous elements."""

    def build() -> dict[str, Any]:
        gpu = driver.device(device)
        module = gpu.load(nvrtc.fetch_or_compile(program.render(in_shared, dense), (), gpu.capability))
        return {kernel.name: module.function(kernel.name) for kernel in program.kernels}

    return _caches_of(program)[0].get_or_build((device, in_shared, dense), build)


def _plan(program: Program, device: int, sizes: dict[str, int], names: Sequence[str]) -> Plan:
    key = (device, *(sizes[name] for name in names))
    plans = _caches_of(program)[1]
    return plans.get_or_build(key, lambda: program.plan(sizes, names, driver.device(device).shared_bytes))


def compile_ahead(program: Program, device: int) -> None:
    """Compile the kernels for calls with contiguous arrays of small sizes, so that the first call does not.

    Without a driver or a run-time compiler, a RuntimeError says what to install.
    """
    _load(program, device, program.blocks_buffers(), frozenset(program.buffers))


class PreparedNest(NamedTuple):
    """A call except for the addresses of its arrays."""

    kernels: dict[str, Any]
    plan: Plan
    numbers: list[int]  # the kernels' arguments, with 0 for each address
    addresses: list[int]  # positions of the arrays' addresses
    in_workspace: list[int]  # positions of numbers that are offsets in the workspace


def prepare(
    program: Program, arrays: Sequence[ArrayDescriptor], sizes: dict[str, int], names: Sequence[str], device: int
) -> PreparedNest:
    """Prepare calls on arrays of the same shapes and strides; the first one compiles.

    `arrays` are one for each of the program's buffers, of any strides; `sizes` are the values of symbolic sizes,
    and `names` are their keys in the program's order.
    """
    plan = _plan(program, device, sizes, names)
    itemsizes = program.item_sizes
    dense = [
        buffer
        for buffer, array, itemsize in zip(program.buffers, arrays, itemsizes, strict=True)
        if not array.shape or array.shape[-1] <= 1 or array.strides[-1] == itemsize
    ]
    kernels = _load(program, device, plan.in_shared, frozenset(dense)) if plan.launches else {}
    numbers: list[int] = []
    addresses: list[int] = []
    for array, itemsize in zip(arrays, itemsizes, strict=True):
        addresses.append(len(numbers))
        numbers += [0, *(stride // itemsize for stride in array.strides)]
    in_workspace = [len(numbers) + n for n in range(len(plan.scratch))]
    numbers += [*plan.scratch, *plan.sizes]
    in_workspace += [len(numbers) + n for n, (_, is_offset) in enumerate(plan.rest) if is_offset]
    numbers += [number for number, _ in plan.rest]
    return PreparedNest(kernels, plan, numbers, addresses, in_workspace)


def start(nest: PreparedNest, pointers: Sequence[int], *, stream: int, allocate: Allocate) -> None:
    """Start a nest's kernels on arrays at these addresses."""
    plan = nest.plan
    if not plan.launches:
        return
    structure = _structure(len(nest.numbers))()
    structure.numbers[:] = nest.numbers
    for position, pointer in zip(nest.addresses, pointers, strict=True):
        structure.numbers[position] = pointer
    keep_alive = None
    if plan.workspace_bytes:
        workspace, keep_alive = allocate(plan.workspace_bytes)
        for position in nest.in_workspace:
            structure.numbers[position] += workspace
    for launch in _in_order(plan.launches, structure.numbers, 0):
        nest.kernels[launch.kernel].launch(
            launch.n_blocks, launch.n_threads, stream, structure, shared_bytes=launch.shared_bytes
        )
    del keep_alive


def run(
    program: Program, arrays: Sequence[ArrayDescriptor], sizes: dict[str, int], names: Sequence[str], *,
    device: int, stream: int, allocate: Allocate,
) -> None:  # fmt: skip
    """Prepare and start a nest."""
    nest = prepare(program, arrays, sizes, names, device)
    start(nest, [array.pointer for array in arrays], stream=stream, allocate=allocate)


def _in_order(launches: Sequence[Launch], numbers: Any, depth: int) -> Iterator[Launch]:
    """Iterate over launches; those in a loop of the host once for each value of its index, set in `numbers`."""
    for loop, group in itertools.groupby(launches, lambda launch: launch.loops[depth : depth + 1]):
        if not loop:
            yield from group
            continue
        inside = list(group)
        (position, n_steps), *_ = loop
        for numbers[position] in range(n_steps):
            yield from _in_order(inside, numbers, depth + 1)


@functools.lru_cache(64)
def _structure(n_numbers: int) -> Any:
    """Return the type of the kernels' argument, `Call` of the generated source."""
    fields = {"_fields_": [("numbers", ctypes.c_int64 * n_numbers)]}
    return type("NestCall", (ctypes.Structure,), fields)
