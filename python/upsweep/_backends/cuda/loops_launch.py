"""Launches of compiled loop nests on the caller's stream, in order.

Nothing here synchronises. The first call of a nest compiles; a later one can be captured in a graph. The kernels
of a program are cached by device and by the buffers in shared memory, its plans by the sizes; both live as long as
the program. `_backends.cuda.loops` and `_torch.loops` call this module.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from upsweep._backends.cuda import driver
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.loops.launch_plan import Launch, Plan
from upsweep._compiler.cuda.loops.program import Program
from upsweep._utils.lru_cache import LRUCache

__all__ = ["PreparedCall", "compile_ahead", "prepare", "run", "start"]

Allocate = Callable[[int], tuple[int, object]]


class _Caches(NamedTuple):
    """The caches of one program."""

    kernels: LRUCache[Any, dict[str, Any]]
    plans: LRUCache[Any, Plan]


_caches: weakref.WeakKeyDictionary[Program, _Caches] = weakref.WeakKeyDictionary()


def _caches_of(program: Program) -> _Caches:
    caches = _caches.get(program)
    # setdefault is one step under the interpreter's lock; without it two threads may build a cache each.
    return caches or _caches.setdefault(program, _Caches(LRUCache(64), LRUCache(64)))


def _load(program: Program, device: int, in_shared: frozenset[Any], dense: frozenset[Any]) -> dict[str, Any]:
    """The kernels of a nest on a device, for the buffers in shared memory and those with contiguous rows."""

    def compile_kernels() -> dict[str, Any]:
        gpu = driver.device(device)
        module = gpu.load(nvrtc.fetch_or_compile(program.render(in_shared, dense), (), gpu.capability))
        return {kernel.name: module.function(kernel.name) for kernel in program.kernels}

    return _caches_of(program).kernels.get_or_build((device, in_shared, dense), compile_kernels)


def compile_ahead(program: Program, device: int) -> None:
    """Compile for a device the kernels that a call with contiguous arrays of small sizes needs.

    Raises
    ------
    RuntimeError
        There is no driver or no run-time compiler; the message says what to install.
    """
    _load(program, device, program.blocks_buffers(), frozenset(program.buffers))


class PreparedCall(NamedTuple):
    """A call without the addresses of its arrays."""

    kernels: dict[str, Any]
    plan: Plan
    numbers: list[int]  # with 0 in the place of addresses
    addresses: list[int]  # the positions of the arrays' addresses
    in_workspace: list[int]  # the positions of offsets in the workspace


def prepare(
    program: Program, arrays: Sequence[DeviceArray], sizes: dict[str, int], names: Sequence[str], device: int
) -> PreparedCall:
    """The part of a call that arrays of the same shapes and strides share; the first one compiles.

    Parameters
    ----------
    arrays : sequence of DeviceArray
        One for each of the program's buffers, of any strides.
    sizes : dict
        The values of symbolic sizes; `names` are their keys in the program's order.
    """
    plan = _caches_of(program).plans.get_or_build(
        (device, *(sizes[name] for name in names)),
        lambda: program.plan(sizes, names, driver.device(device).shared_bytes),
    )
    items = program.item_sizes
    dense = [
        buffer
        for buffer, array, item in zip(program.buffers, arrays, items, strict=True)
        if not array.shape or array.shape[-1] <= 1 or array.strides[-1] == item
    ]
    kernels = _load(program, device, plan.in_shared, frozenset(dense)) if plan.launches else {}
    numbers: list[int] = []
    addresses: list[int] = []
    for array, item in zip(arrays, items, strict=True):
        addresses.append(len(numbers))
        numbers += [0, *(stride // item for stride in array.strides)]
    in_workspace = [len(numbers) + n for n in range(len(plan.scratch))]
    numbers += [*plan.scratch, *plan.sizes]
    in_workspace += [len(numbers) + n for n, (_, is_offset) in enumerate(plan.rest) if is_offset]
    numbers += [number for number, _ in plan.rest]
    return PreparedCall(kernels, plan, numbers, addresses, in_workspace)


def start(call: PreparedCall, pointers: Sequence[int], *, stream: int, allocate: Allocate) -> None:
    """Launch a nest's kernels on arrays at these addresses; `allocate` as that of `run_scan`."""
    plan = call.plan
    if not plan.launches:
        return
    structure = _call_structure(len(call.numbers))()
    structure.numbers[:] = call.numbers
    for position, pointer in zip(call.addresses, pointers, strict=True):
        structure.numbers[position] = pointer
    workspace_owner = None
    if plan.workspace_bytes:
        workspace, workspace_owner = allocate(plan.workspace_bytes)
        for position in call.in_workspace:
            structure.numbers[position] += workspace
    for launch in _in_order(plan.launches, structure.numbers, 0):
        call.kernels[launch.kernel].launch(
            launch.n_blocks, launch.n_threads, stream, structure, shared_bytes=launch.shared_bytes
        )
    del workspace_owner  # not before the launches


def run(
    program: Program, arrays: Sequence[DeviceArray], sizes: dict[str, int], names: Sequence[str], *, device: int,
    stream: int, allocate: Allocate,
) -> None:  # fmt: skip
    """`prepare` and `start`."""
    call = prepare(program, arrays, sizes, names, device)
    start(call, [array.pointer for array in arrays], stream=stream, allocate=allocate)


def _in_order(launches: Sequence[Launch], numbers: Any, depth: int) -> Iterator[Launch]:
    """Launches in sequence; those in a loop of the host step by step, with its index among the numbers."""
    for loop, each in itertools.groupby(launches, lambda launch: launch.loops[depth : depth + 1]):
        if not loop:
            yield from each
            continue
        inside = list(each)
        (position, n_steps), *_ = loop
        for numbers[position] in range(n_steps):
            yield from _in_order(inside, numbers, depth + 1)


@functools.lru_cache(maxsize=256)
def _call_structure(n_numbers: int) -> Any:
    """The C structure `Call` of the kernels' text."""
    return type("NestCall", (ctypes.Structure,), {"_fields_": [("numbers", ctypes.c_int64 * n_numbers)]})
