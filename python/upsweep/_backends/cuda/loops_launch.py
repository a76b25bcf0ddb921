"""Launches of loop nests: compiles the kernels of a program once, and starts them in order on the caller's stream.

Nothing here synchronises. The first call of a nest compiles; a CUDA graph can capture later calls.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.launch_plan import Plan
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


def prepare(
    program: Program, arrays: Sequence[ArrayDescriptor], sizes: dict[str, int], names: Sequence[str], device: int
) -> driver.PreparedCall:
    """Prepare calls on arrays of the same shapes and strides, whose operands are the addresses of the arrays.

    The first call compiles. `arrays` are one for each of the program's buffers, of any strides; `sizes` are the
    values of symbolic sizes, and `names` are their keys in the program's order.
    """
    plan = _plan(program, device, sizes, names)
    itemsizes = program.item_sizes
    dense = [
        buffer
        for buffer, array, itemsize in zip(program.buffers, arrays, itemsizes, strict=True)
        if not array.shape or array.shape[-1] <= 1 or array.strides[-1] == itemsize
    ]
    numbers: list[int] = []  # the kernels' argument, with 0 for each address
    addresses: list[int] = []
    for array, itemsize in zip(arrays, itemsizes, strict=True):
        addresses.append(len(numbers))
        numbers += [0, *(stride // itemsize for stride in array.strides)]
    in_workspace = [len(numbers) + n for n in range(len(plan.scratch))]
    numbers += [*plan.scratch, *plan.sizes]
    in_workspace += [len(numbers) + n for n, (_, is_offset) in enumerate(plan.rest) if is_offset]
    numbers += [number for number, _ in plan.rest]
    if not plan.launches:
        return driver.PreparedCall([], 0)
    sequence = driver.KernelSequence((ctypes.c_int64 * len(numbers))(*numbers))  # `Call` of the generated source
    sequence.addresses += [(word, operand) for operand, word in enumerate(addresses)]
    sequence.in_memory += in_workspace
    kernels = _load(program, device, plan.in_shared, frozenset(dense))
    sequence.launches += [
        driver.Launch(kernels[each.kernel], each.n_blocks, each.n_threads, each.shared_bytes, loops=each.loops)
        for each in plan.launches
    ]
    return driver.PreparedCall([sequence], plan.workspace_bytes)
