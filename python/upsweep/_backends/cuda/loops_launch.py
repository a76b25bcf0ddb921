"""Loop nests on a device: kernels compiled once, launched in order on the caller's stream.

Nothing here synchronises. The first call of a nest compiles; a later one can be captured in a graph.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.program import Launch, Plan, Program

__all__ = ["Prepared", "compile_ahead", "prepare", "run", "start"]

_MOST_PLANS = 64  # of a nest, one for each set of sizes

_lock = threading.Lock()
_kernels: weakref.WeakKeyDictionary[Program, dict[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()
_plans: weakref.WeakKeyDictionary[Program, dict[Any, Plan]] = weakref.WeakKeyDictionary()


def _loaded(program: Program, device: int, in_shared: frozenset[Any], dense: frozenset[Any]) -> dict[str, Any]:
    """The kernels of a nest on a device, for the buffers that lie in shared memory, and those with neighbours."""
    key = (device, in_shared, dense)
    with _lock:
        known = _kernels.setdefault(program, {})
        found = known.get(key)
    if found is None:
        gpu = driver.device(device)
        text = program.render(in_shared, dense)
        module = gpu.load(nvrtc.fetch_or_compile(text, (), gpu.capability))
        found = {kernel.name: module.function(kernel.name) for kernel in program.kernels}
        with _lock:
            known[key] = found
    return found


def _planned(program: Program, device: int, sizes: dict[str, int], names: Sequence[str]) -> Plan:
    key = (device, *(sizes[name] for name in names))
    with _lock:
        known = _plans.setdefault(program, {})
        found = known.get(key)
    if found is None:
        found = program.plan(sizes, names, driver.device(device).shared_bytes)
        with _lock:
            while len(known) >= _MOST_PLANS:
                known.pop(next(iter(known)))
            known[key] = found
    return found


def compile_ahead(program: Program, device: int) -> None:
    """Compile for a device what a call with plain arrays of small sizes needs, so that the first call does not.

    Raises
    ------
    RuntimeError
        There is no driver or no run-time compiler; the message says what to install.
    """
    _loaded(program, device, program.blocks_buffers(), frozenset(program.buffers))


class Prepared(NamedTuple):
    """A call but for where its arrays lie."""

    kernels: dict[str, Any]
    plan: Plan
    numbers: list[int]  # with 0 in the place of addresses
    places: list[int]  # of the arrays' addresses
    in_workspace: list[int]  # places of numbers that are offsets in the workspace


def prepare(
    program: Program, arrays: Sequence[ArrayDescriptor], sizes: dict[str, int], names: Sequence[str], device: int
) -> Prepared:
    """All that arrays of the same shapes and strides have in common; the first one compiles.

    Parameters
    ----------
    arrays : sequence of ArrayDescriptor
        One for each of the program's buffers, of any strides.
    sizes : dict
        The values of symbolic sizes; `names` are their keys in the program's order.
    """
    plan = _planned(program, device, sizes, names)
    items = program.item_sizes
    dense = [
        buffer
        for buffer, array, item in zip(program.buffers, arrays, items, strict=True)
        if not array.shape or array.shape[-1] <= 1 or array.strides[-1] == item
    ]
    kernels = _loaded(program, device, plan.in_shared, frozenset(dense)) if plan.launches else {}
    numbers: list[int] = []
    places: list[int] = []
    for array, item in zip(arrays, items, strict=True):
        places.append(len(numbers))
        numbers += [0, *(stride // item for stride in array.strides)]
    in_workspace = [len(numbers) + n for n in range(len(plan.scratch))]
    numbers += [*plan.scratch, *plan.sizes]
    in_workspace += [len(numbers) + n for n, (_, is_offset) in enumerate(plan.rest) if is_offset]
    numbers += [number for number, _ in plan.rest]
    return Prepared(kernels, plan, numbers, places, in_workspace)


def start(call: Prepared, pointers: Sequence[int], *, stream: int, allocate: Allocate) -> None:
    """Start a nest's kernels on arrays that lie there; `allocate` as that of `run_scan`."""
    plan = call.plan
    if not plan.launches:
        return
    structure = _structure(len(call.numbers))()
    structure.numbers[:] = call.numbers
    for place, pointer in zip(call.places, pointers, strict=True):
        structure.numbers[place] = pointer
    keep = None
    if plan.workspace_bytes:
        workspace, keep = allocate(plan.workspace_bytes)
        for place in call.in_workspace:
            structure.numbers[place] += workspace
    for launch in _in_order(plan.launches, structure.numbers, 0):
        call.kernels[launch.kernel].launch(
            launch.n_blocks, launch.n_threads, stream, structure, shared_bytes=launch.shared_bytes
        )
    del keep


def run(
    program: Program, arrays: Sequence[ArrayDescriptor], sizes: dict[str, int], names: Sequence[str], *,
    device: int, stream: int, allocate: Allocate,
) -> None:  # fmt: skip
    """`prepare` and `start`."""
    call = prepare(program, arrays, sizes, names, device)
    start(call, [array.pointer for array in arrays], stream=stream, allocate=allocate)


def _in_order(launches: Sequence[Launch], numbers: Any, depth: int) -> Iterator[Launch]:
    """Launches one after the other; those in a loop of the host, step by step with its index among the numbers."""
    for loop, each in itertools.groupby(launches, lambda launch: launch.loops[depth : depth + 1]):
        if not loop:
            yield from each
            continue
        inside = list(each)
        (place, n_steps), *_ = loop
        for numbers[place] in range(n_steps):
            yield from _in_order(inside, numbers, depth + 1)


_structures: dict[int, type[Any]] = {}


def _structure(n_numbers: int) -> Any:
    """`Call` of the text."""
    if n_numbers not in _structures:
        fields = {"_fields_": [("numbers", ctypes.c_int64 * n_numbers)]}
        _structures[n_numbers] = type("NestCall", (ctypes.Structure,), fields)
    return _structures[n_numbers]
