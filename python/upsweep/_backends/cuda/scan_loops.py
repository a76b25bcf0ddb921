"""CUDA executor of loop nests that are a scan by an update, through the kernels of `scan(update)`.

`prepare` is called by `loops` for each set of shapes and strides. Updates of the form gates * state + tokens run
through the kernels of `linear_recurrence`. Of others, where columns are too many or steps too few for time to run
in parallel, the nest's own kernel is faster, and it returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from upsweep._arrays import Operand
from upsweep._backends.cuda import library, user_scan_launch
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor, ScanArrays
from upsweep._compiler.cuda.loops.scan_form import ScanAccess, ScanForm
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Buffer
from upsweep._compiler.recurrences.associative import find_linear
from upsweep._core.user_scan import ScanSpec, choose_path

# From so many steps on `linear_recurrence` is faster than the nest's own kernel, which takes 10 microseconds and
# 50 nanoseconds a step for 1,024 columns (H200, November 2026).
LEAST_STEPS = 64

Arrays = Mapping[Buffer, Operand | ArrayDescriptor]


class ScanCall:
    """A prepared call: the first steps, if they are computed apart, and the scan.

    `places` are, for each operand of the scan, the position of an array of the call and an offset in bytes, or a
    number.
    """

    def __init__(self, first: Any, scan: Any, places: Sequence[tuple[int, int] | float]) -> None:
        self._first, self._scan, self._places = first, scan, places

    def start(self, operands: Sequence[int], stream: int, allocate: Allocate) -> None:
        """Start the kernels; the parameters are those of `driver.PreparedCall.start`."""
        if self._first is not None:
            self._first.start(operands, stream, allocate)
        addresses = [each if isinstance(each, float) else operands[each[0]] + each[1] for each in self._places]
        self._scan.start(addresses, stream, allocate)


def prepare(
    form: ScanForm, arrays: Arrays, sizes: Sizes, first: Callable[[], Any] | None, device: int
) -> ScanCall | None:
    """Prepare calls on arrays of the same layout; None where the nest's own kernel is to run.

    `first` prepares the first steps; None where the step before them gives these.
    """
    n_steps, columns = evaluator(form.length)(sizes), tuple(evaluator(each)(sizes) for each in form.columns)
    spec = ScanSpec(form.recurrence, form.dtype, n_steps + 1, columns)
    monoid, _ = choose_path(spec, on_device=True)
    is_linear = n_steps >= LEAST_STEPS and find_linear(form.recurrence) is not None and library.find() is not None
    if 0 in columns or (monoid is None and not is_linear):
        return None
    spec = spec if form.neutral else replace(spec, length=n_steps)
    positions = {buffer: n for n, buffer in enumerate(arrays)}
    places: list[tuple[int, int] | float] = []

    def described(access: ScanAccess, *, is_state: bool = False) -> ArrayDescriptor:
        buffer, array = access.buffer, arrays[access.buffer]
        offset, strides = access.layout(array.strides, sizes, -1 if form.neutral else 0)
        places.append((positions[buffer], offset))
        shape = (spec.length, *columns)[is_state:]
        return ArrayDescriptor(0, shape, strides[is_state:], buffer.dtype)

    inputs, outputs = [list(map(described, group)) for group in (form.inputs, form.outputs)]
    if form.neutral:
        states: list[ArrayDescriptor | float] = [*form.neutral]
        places += form.neutral
    else:
        states = [described(access, is_state=True) for access in form.initial]
    finals = [None] * len(states)
    launch = user_scan_launch.prepare(spec, ScanArrays(inputs, outputs, states, finals), monoid, device)
    return ScanCall(first and first(), launch, places)
