"""CUDA executor of loop nests: the functions that `te` builds for a device.

The kernels of a program are compiled once, by the first call, and started in order on the caller's stream. Nothing
waits for the device, except that results for numpy arrays are copied back; a CUDA graph can capture later calls.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import DeviceView, Operand, user_array
from upsweep._backends.cuda import driver, scan_loops
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._backends.cuda.staging import open_context
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.launch_plan import Plan
from upsweep._compiler.cuda.loops.program import Program
from upsweep._compiler.cuda.loops.scan_form import ScanForm
from upsweep._compiler.loops.expressions import ITEM_BYTES
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


def compile_ahead(program: Program, device: int) -> None:
    """Compile the kernels for calls with contiguous arrays of small sizes, so that the first call does not.

    Without a driver or a run-time compiler, a RuntimeError says what to install.
    """
    in_shared = program.blocks_buffers(driver.device(device).shared_bytes)
    _load(program, device, in_shared, frozenset(program.buffers))


def prepare(
    program: Program, arrays: Sequence[Operand | ArrayDescriptor], sizes: dict[str, int], names: Sequence[str],
    device: int, form: ScanForm | None = None, first: Program | None = None,
) -> driver.PreparedCall | scan_loops.ScanCall:  # fmt: skip
    """Prepare calls on arrays of the same shapes and strides, whose operands are the addresses of the arrays.

    The first call compiles. `arrays` are one for each of the program's buffers, of any strides; `sizes` are the
    values of symbolic sizes, and `names` are their keys in the program's order. With a `form` the program is a
    scan, of which time may run in parallel; the program `first` then computes its first steps.
    """
    if form is not None:
        steps = None if first is None else lambda: prepare(first, arrays, sizes, names, device)
        scan = scan_loops.prepare(form, dict(zip(program.buffers, arrays)), sizes, steps, device)
        if scan is not None:
            return scan
    key = (device, *(sizes[name] for name in names))
    plan = _caches_of(program)[1].get_or_build(
        key, lambda: program.plan(sizes, names, driver.device(device).shared_bytes)
    )
    dense = set()
    numbers: list[int] = []  # the kernels' argument, with 0 for each address
    addresses: list[int] = []
    for buffer, array in zip(program.buffers, arrays, strict=True):
        itemsize = ITEM_BYTES[buffer.dtype]
        if not array.shape or array.shape[-1] <= 1 or array.strides[-1] == itemsize:
            dense.add(buffer)
        addresses.append(len(numbers))
        numbers += [0, *(stride // itemsize for stride in array.strides)]
    in_workspace = [len(numbers) + n for n, (_, is_offset) in enumerate(plan.numbers) if is_offset]
    numbers += [number for number, _ in plan.numbers]
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
    sequence.has_loops = any(each.loops for each in plan.launches)
    return driver.PreparedCall([sequence], plan.workspace_bytes)


def run_nest(
    program: Program, named: Sequence[tuple[str, Operand | None]],
    shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], is_output: Sequence[bool], sizes: dict[str, int],
    names: Sequence[str], device: int, form: ScanForm | None = None, first: Program | None = None,
) -> list[Any]:  # fmt: skip
    """Run a nest and return the results that the caller did not pass, which are of the library of the inputs.

    Numpy arrays are copied to `device` and back.
    """
    on_device = any(isinstance(array, DeviceView) for _, array in named)
    with open_context(dict(named), None if on_device else device) as context:
        arrays = [context.empty(*shape) if array is None else array for (_, array), shape in zip(named, shapes)]
        descriptors = [
            context.output(array) if is_result else context.input(array)
            for array, is_result in zip(arrays, is_output)
        ]
        call = prepare(program, descriptors, sizes, names, context.device, form, first)
        call.start([array.pointer for array in descriptors], context.stream, context.allocate)
    return [user_array(array) for array, (_, operand) in zip(arrays, named) if operand is None]
