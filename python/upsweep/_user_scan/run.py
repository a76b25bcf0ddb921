"""Runs scans on arrays wherever they are: whole scans for gradients, blocks of steps for block-wise and dask
scans.

`scans_on` returns the executor of a call: `HostScans` of the CPU backend or `DeviceScans` of the CUDA backend,
which have one interface. `run_block` passes the states between blocks as one array (states, *columns) of the
library and on the device of the block, in float64, or int64 if all are integers; as a list of arrays if some are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Array, DeviceView
from upsweep._core.user_scan import ScanSpec
from upsweep._user_scan.problem import as_real, broadcast, rounded

_FLOAT, _INTEGER = np.dtype(np.float64), np.dtype(np.int64)


def scans_on(named: Mapping[str, Array], n_threads: int | None = None) -> contextlib.AbstractContextManager[Any]:
    """The executor of the scans of one call, entered for the time of the call.

    `named` has the arrays of the call by the names in error messages. Broadcast numbers of the host go with any
    device.
    """
    views = {name: array for name, array in named.items() if any(array.strides) or isinstance(array, DeviceView)}
    if any(isinstance(array, DeviceView) for array in views.values()):
        return _backends.cuda_user_scan.DeviceScans(views)
    return contextlib.nullcontext(_backends.cpu_user_scan.HostScans(n_threads))


def run_block(
    spec: ScanSpec, inputs: Sequence[Array], states: Sequence[Any], dtypes: Sequence[np.dtype[Any]] = (),
    n_threads: int | None = None,
) -> tuple[list[Any], Any]:  # fmt: skip
    """Run a block of steps: its outputs, in user order and in the block's library, and the states after it.

    The `inputs` are in scan order. The `states` before the first step are those of the user or of another block;
    each broadcasts to the columns. Those after it are one array, or a list. `dtypes` are those of the outputs.
    """
    state_dtypes = [_INTEGER if flag else _FLOAT for flag in spec.recurrence.integer_states]
    are_alike = len({*state_dtypes}) == 1
    named = {f"init[{n}]": as_real(state, f"init[{n}]") for n, state in enumerate(states)}
    before = [broadcast(state, spec.columns, name) for name, state in named.items()]
    arrays = {**{f"xs[{n}]": x for n, x in enumerate(inputs)}, **named}
    with scans_on(arrays, n_threads) as scans:
        if not any(isinstance(array, DeviceView) for array in arrays.values()):
            outputs, after = scans.run(spec, inputs, before)
            ys = [rounded(y, dtype) for y, dtype in zip(outputs, dtypes, strict=True)]
            states = [np.asarray(state, dtype) for state, dtype in zip(after, state_dtypes)]
            return ys, np.stack(states) if are_alike else states
        # Kernels on a device write outputs in their own dtype, and states in float64.
        views = (spec.in_user_order(x) for x in inputs if isinstance(x, DeviceView))
        like = next((x for x in views if 0 not in x.strides), None)
        outputs = [scans.empty(spec.shape, dtype, like) for dtype in dtypes]
        last = [scans.empty((len(before), *spec.columns), state_dtypes[0])] if are_alike else []
        finals = [scans.empty(spec.columns, dtype) for dtype in state_dtypes if not are_alike]
        scans.run(spec, inputs, before, outputs, finals or [last[0][n] for n in range(len(before))])
    owners = [array.origin.owner for array in (last or finals)]
    return [y.origin.owner for y in outputs], owners[0] if are_alike else owners


def stacked(states: Any, columns: tuple[int, ...], like: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers and arrays that broadcast to the columns, as an array of the library that `like` is of."""
    shape = (len(states), *columns)
    if getattr(states, "shape", None) == shape:
        return states
    with _arrays.on_device_of(like):
        whole = np.empty_like(like, shape=shape, dtype=dtype)
        for n, state in enumerate(states):
            is_unsigned = dtype == _INTEGER and isinstance(state, (int, np.unsignedinteger))
            whole[n] = np.asarray(state).astype(dtype)[()] if is_unsigned else state  # keeps the bits
    return whole
