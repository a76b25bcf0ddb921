"""Runs updates of the form ``gates * state + tokens`` through the CUDA kernels of `linear_recurrence`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._backends.cuda import abi, driver, library, scan_launch
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor, ScanArrays
from upsweep._compiler.recurrences.associative import LinearUpdate, find_linear
from upsweep._core.user_scan import ScanSpec

# The library computes states of 16-bit results in float32, and rounds these once; an update rounds to its own
# dtype.
_INPUT_DTYPES = ("float16", "bfloat16", "float32", "float64")
_RESULT_DTYPES = ("float32", "float64")
_VECTOR = 16  # bytes, to which elements are loaded together


class LinearLaunch:
    """A prepared call of the library; `fields` are the operands of its arrays, `state` is the initial state's."""

    def __init__(
        self, linear: LinearUpdate, template: abi.ScanProblem, fields: dict[str, int], state: int
    ) -> None:
        self._linear, self._template, self._fields, self._state = linear, template, fields, state
        # Bytes of the workspace, by all that a plan reads of a call's operands: how they are aligned.
        self._workspace_bytes: dict[tuple[int, ...], int] = {}

    def start(self, operands: Sequence[Any], stream: int, allocate: Allocate) -> None:
        """Start the scan; the parameters are those of `driver.PreparedCall.start`."""
        problem, owner = abi.ScanProblem.from_buffer_copy(self._template), None
        problem.stream = stream
        for field, operand in self._fields.items():
            getattr(problem, field).data = operands[operand]
        number = operands[self._state]
        if "initial" not in self._fields and not self._is_neutral(number):
            pointer, owner = allocate(8)
            for n, word in enumerate(struct.unpack("2I", struct.pack("d", number))):
                driver.device(problem.device).fill(pointer + 4 * n, word, 1, stream)
            problem.initial.data, problem.initial.dtype = pointer, abi.DTYPES["float64"]
        alignment = (owner is not None, *(operands[operand] % _VECTOR for operand in self._fields.values()))
        n_bytes = self._workspace_bytes.get(alignment)
        if n_bytes is None:
            n_bytes = self._workspace_bytes[alignment] = scan_launch.prepare_scan(problem).workspace_bytes
        problem.workspace_bytes = n_bytes
        scan_launch.start_scan(problem, allocate)
        del owner

    def _is_neutral(self, number: float) -> bool:
        """Whether an initial state can be omitted: 0 times a finite factor is 0, times a gate it may be NaN."""
        return number == 0 and self._linear.gates is None and abs(self._linear.factor) < np.inf


def prepare(spec: ScanSpec, arrays: ScanArrays, device: int) -> LinearLaunch | None:
    """Prepare the scan; None if its update has another form, or the library does not take it."""
    linear = find_linear(spec.recurrence)
    if linear is None or library.find() is None or len(spec.columns) + 1 > abi.MAX_DIMS:
        return None
    (state,), (final,) = arrays.states, arrays.finals
    x, gates = arrays.inputs[linear.tokens], None if linear.gates is None else arrays.inputs[linear.gates]
    initial = state if isinstance(state, ArrayDescriptor) else None
    out = arrays.outputs[0] if arrays.outputs else None
    results = [array for array in (out, final) if array is not None]
    reads = [array for array in (x, gates, initial) if array is not None]
    if (
        not results
        or any(array.dtype not in _INPUT_DTYPES for array in reads)
        or any(array.dtype not in _RESULT_DTYPES for array in results)
    ):
        return None
    problem = scan_launch.problem(
        x, gates, linear.factor if gates is None else None, initial, None, out, final, axis=0, reverse=False,
        exclusive=False, device=device, stream=0,
    )  # fmt: skip
    n, first_state = len(arrays.inputs), len(arrays.inputs) + len(arrays.outputs)
    operands = {
        "x": (x, linear.tokens), "gates": (gates, linear.gates), "initial": (initial, first_state), "out": (out,
        n), "final_state": (final, first_state + 1),
    }  # fmt: skip
    fields = {field: n for field, (array, n) in operands.items() if array is not None and n is not None}
    return LinearLaunch(linear, problem, fields, first_state)
