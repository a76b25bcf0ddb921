"""C interface of the scans and of aggregates of blocks: requests from array descriptors, plans and launches.

Nothing here synchronises, and nothing knows an array library: callers pass descriptors, a stream and an allocator.
"""

from __future__ import annotations

from typing import Any

from upsweep._backends.cuda import abi, library
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor


def accumulator_of(dtype: str) -> int:
    """Return the upsweep_accumulator of results of this dtype."""
    return abi.ACCUMULATORS.get(dtype.rstrip("0123456789"), abi.REAL)


def problem(
    x: ArrayDescriptor, gates: ArrayDescriptor | None, gamma: ArrayDescriptor | complex | None,
    initial: ArrayDescriptor | None, reset: ArrayDescriptor | None, out: ArrayDescriptor | None,
    final: ArrayDescriptor | None, *, axis: int, reverse: bool, exclusive: bool, device: int, stream: int,
    window: int = 0,
) -> abi.ScanProblem:  # fmt: skip
    """Return the request for a scan. x, gates, reset and out have one shape; gamma, initial and final lack `axis`.

    Without `out` the library computes only the final state, in final's dtype.
    """
    result = final if out is None else out
    assert result is not None
    p = abi.ScanProblem()
    p.device, p.stream, p.reverse, p.exclusive = device, stream, reverse, exclusive
    p.accumulator = accumulator_of(result.dtype)
    p.length, p.window = x.shape[axis], window
    batch = x.shape[:axis] + x.shape[axis + 1 :]
    p.n_batch = len(batch)
    p.batch_shape[: len(batch)] = batch
    abi.fill_array(p.x, x, axis)
    if out is not None:
        abi.fill_array(p.out, out, axis)
    if gates is not None:
        abi.fill_array(p.gates, gates, axis)
    elif isinstance(gamma, ArrayDescriptor):
        abi.fill_array(p.gamma, gamma)
    else:
        number = complex(1 if gamma is None else gamma)
        p.gamma_re, p.gamma_im = number.real, number.imag
    if reset is not None:
        abi.fill_array(p.reset, reset, axis)
    if initial is not None:
        abi.fill_array(p.initial, initial)
    if final is not None:
        abi.fill_array(p.final_state, final)
    return p


def reduction(
    x: ArrayDescriptor, gates: ArrayDescriptor | None, gamma: ArrayDescriptor | complex | None,
    initial: ArrayDescriptor | None, reset: ArrayDescriptor | None, multiplier: ArrayDescriptor | None,
    value: ArrayDescriptor, dropped: ArrayDescriptor | None, **options: Any,
) -> abi.Reduction:  # fmt: skip
    """Return the request for the aggregate of a block of steps; its parts lack the block's `axis`.

    The options are those of `problem`: the axis, the direction, the device and the stream.
    `value` is the final state from zero or from `initial`; `multiplier` is the product of the factors, 0 if the
    block resets; `dropped` is whether a reset in the block drops the state before it. These two are optional.
    """
    r = abi.Reduction()
    r.scan = problem(x, gates, gamma, initial, reset, None, value, exclusive=False, **options)
    for target, array in ((r.multiplier, multiplier), (r.dropped, dropped)):
        if array is not None:
            abi.fill_array(target, array)
    return r


def plan(p: abi.ScanProblem, n_processors: int = 0) -> abi.Plan:
    """Return how the library will run the scan; with `n_processors` it queries no device."""
    return abi.ask(library.load().plan_scan, p, n_processors, answer=abi.Plan())


def plan_reduction(r: abi.Reduction) -> abi.Plan:
    """Return how the library will reduce; it queries no device."""
    return abi.ask(library.load().plan_reduce, r, answer=abi.Plan())


def run_scan(p: abi.ScanProblem, allocate: Allocate) -> None:
    """Start a scan on its stream."""
    start_scan(prepare_scan(p), allocate)


def prepare_scan(p: abi.ScanProblem) -> abi.ScanProblem:
    """Set the size of the workspace that the scan needs."""
    library.check_device(p.device)
    p.workspace_bytes = plan(p).workspace_bytes
    return p


def start_scan(p: abi.ScanProblem, allocate: Allocate) -> None:
    """Start a prepared scan; its arrays may have been replaced by others of the same layout and alignment."""
    abi.call_with_workspace(library.load().scan, p, p, allocate)


def reduce(*arrays: Any, allocate: Allocate, **options: Any) -> None:
    """Start one pass over a block of steps that writes its aggregate; the other arguments are `reduction`'s."""
    r = reduction(*arrays, **options)
    if 0 in r.scan.batch_shape[: r.scan.n_batch]:
        return
    library.check_device(r.scan.device)
    r.scan.workspace_bytes = plan_reduction(r).workspace_bytes
    abi.call_with_workspace(library.load().reduce, r, r.scan, allocate)


def advance(
    multiplier: ArrayDescriptor | None, value: ArrayDescriptor, dropped: ArrayDescriptor | None,
    state: ArrayDescriptor, result: ArrayDescriptor, *, device: int, stream: int, allocate: Allocate,
) -> None:  # fmt: skip
    """Write `value` where dropped, else ``multiplier * state + value``, to `result`; all are of one shape.

    No other function converts or adds device arrays, so every library that allocates memory can have them.
    """
    # One step whose output is the result: a final state would have to have 32 or 64 bits.
    if 0 in result.shape:
        return
    if accumulator_of(result.dtype) == abi.INTEGER:
        multiplier = None  # integers are only added: it is 1, or the state is dropped
    steps = [
        array and array._replace(shape=(*array.shape, 1), strides=(*array.strides, 0))
        for array in (value, multiplier, dropped, result)
    ]
    p = problem(
        steps[0] or value, steps[1], None, state, steps[2], steps[3], None, axis=len(result.shape), reverse=False,
        exclusive=False, device=device, stream=stream,
    )  # fmt: skip
    run_scan(p, allocate)
