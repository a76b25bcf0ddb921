"""Checks the arguments of `upsweep.scan` and normalises them into a `Problem`.

The arguments of every library pass through `check`: arrays of numpy, views of arrays on a device, and arrays
without data that stand for tensors and dask arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import DeviceView, Operand
from upsweep._compiler.recurrences.associative import Monoid
from upsweep._compiler.recurrences.symbols import floating
from upsweep._compiler.recurrences.trace import Structure, Traced, cached_trace
from upsweep._core.checks import Shape
from upsweep._core.user_scan import Explanation, ScanSpec, choose_path, with_host_numbers
from upsweep._utils.integers import as_integer, as_size

Update = Callable[[Any, Any], Any]


@dataclass
class Problem:
    """A checked call of `scan`.

    `user_inputs` and `user_states` are the arguments as they were passed; `inputs` are broadcast together and in
    scan order, `states` are broadcast to the columns.
    """

    spec: ScanSpec
    traced: Traced
    inputs: list[Operand]
    user_inputs: list[Operand]
    states: list[Operand]
    user_states: list[Operand]
    input_structure: Structure
    state_structure: Structure
    placement: _arrays.Placement | None = None  # None: in the host's memory

    def named(self) -> dict[str, Operand]:
        """The arguments by their names."""
        return {
            **{label("xs", self.input_structure, n): x for n, x in enumerate(self.user_inputs)},
            **{label("init", self.state_structure, n): s for n, s in enumerate(self.user_states)},
        }

    def path(self) -> tuple[Monoid | None, Explanation]:
        """How the call runs."""
        if self.placement is None:
            return choose_path(self.spec)
        spec = replace(self.spec, recurrence=with_host_numbers(self.spec.recurrence, self.inputs))
        results = {*self.traced.output_dtypes, *self.traced.state_dtypes}
        are_plain = results <= {np.dtype(np.float32), np.dtype(np.float64)} and all(
            x.dtype.kind not in "biu" for x in (*self.user_inputs, *self.user_states) if x.ndim
        )
        return choose_path(spec, on_device=True, are_plain=are_plain)

    def like(self) -> Operand | None:
        """The input whose layout outputs take: the first that has their shape and no broadcast axis."""
        return next((x for x in self.user_inputs if x.shape == self.spec.shape and 0 not in x.strides), None)


def flatten(value: Any, name: str) -> tuple[list[Any], Structure]:
    """The items of an argument, and how they are arranged."""
    if value is None:
        return [], None
    if not isinstance(value, tuple):
        return [value], -1
    for place, item in enumerate(value):
        if item is None or isinstance(item, tuple):
            what = "None" if item is None else "a tuple"
            raise TypeError(f"{name}: element {place} of the tuple has to be an array or a number, not {what}")
    return list(value), len(value)


def label(name: str, structure: Structure, place: int) -> str:
    """The name of an item of an argument."""
    return name if structure == -1 else f"{name}[{place}]"


def as_real(value: Any, name: str) -> Operand:
    """An argument as an array of real numbers."""
    array = _arrays.as_operand(value, name)
    if isinstance(array, DeviceView) and _arrays.is_bfloat16(array.dtype):
        return array
    return check_real(array.dtype.kind in "biuf", name, array)


def check_real(is_real: bool, name: str, array: Any) -> Any:
    """Return the array; raise unless it has real numbers."""
    if not is_real:
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    return array


def check_callable(update: object) -> None:
    """Raise unless the update can be called."""
    if not callable(update):
        raise TypeError(f"update: expected a function of a state and an input, got {type(update).__qualname__}")


def check(update: Update, init: Any, xs: Any, axis: Any, reverse: Any, length: Any) -> Problem:
    """Check a call, broadcast its arrays together and trace the update; errors name the argument."""
    check_callable(update)
    raw_states, state_structure = flatten(init, "init")
    if not raw_states:
        raise TypeError("init: expected a number, an array or a tuple of them, got None or ()")
    raw_inputs, input_structure = flatten(xs, "xs")
    inputs = [as_real(x, label("xs", input_structure, n)) for n, x in enumerate(raw_inputs)]
    states = [as_real(s, label("init", state_structure, n)) for n, s in enumerate(raw_states)]
    shape = _common_shape("xs", inputs, input_structure) if inputs else None
    columns = _common_shape("init", states, state_structure) if shape is None else ()
    axis, length, columns = to_extent(shape, columns, axis, length)
    without = f", the shape of xs without axis {axis}"
    broadcast_states = [
        broadcast(array, columns, label("init", state_structure, n), without) for n, array in enumerate(states)
    ]
    default = _default_dtype(raw_inputs, inputs)
    input_dtypes = tuple(default if type(v) in _WEAK else _own_dtype(x) for v, x in zip(raw_inputs, inputs))
    state_dtypes = tuple(
        np.dtype(bool) if isinstance(v, bool) else default if type(v) in _WEAK else _own_dtype(s)
        for v, s in zip(raw_states, states)
    )
    traced = cached_trace(update, state_dtypes, state_structure, input_dtypes, input_structure)
    spec = ScanSpec(traced.recurrence, traced.dtype, length, columns, axis, bool(reverse))
    in_order = [spec.in_scan_order(x if x.shape == shape else np.broadcast_to(x, shape or ())) for x in inputs]
    problem = Problem(spec, traced, in_order, inputs, broadcast_states, states, input_structure, state_structure)
    if any(isinstance(array, DeviceView) for array in (*inputs, *states)):
        problem.placement = _arrays.common_placement({**problem.named()})
    return problem


_WEAK = (int, float)  # Python's own numbers, which take the dtype of the other inputs


def _own_dtype(array: Operand) -> np.dtype[Any]:
    return floating(array.dtype.newbyteorder("="))


def _default_dtype(values: list[Any], arrays: list[Operand]) -> np.dtype[Any]:
    """The dtype of Python's own numbers among the arguments."""
    dtypes = {_own_dtype(x) for value, x in zip(values, arrays) if type(value) not in _WEAK}
    common = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    return common if common.kind == "f" else np.dtype(np.float64)


def _common_shape(name: str, arrays: list[Operand], structure: Structure) -> Shape:
    if len(arrays) == 1:
        return arrays[0].shape
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = ", ".join(f"{label(name, structure, n)} {x.shape}" for n, x in enumerate(arrays))
        raise ValueError(f"{name}: shapes do not broadcast together: {shapes}") from None


def to_axis(axis: Any, ndim: int) -> int:
    """The axis counted from the front."""
    place = as_integer(axis, "axis")
    if not -ndim <= place < ndim:
        raise ValueError(f"axis: {place} is out of range for {ndim} dimension{'s' * (ndim != 1)}")
    return place % ndim


def to_extent(shape: Shape | None, columns: Shape, axis: Any, length: Any) -> tuple[int, int, Shape]:
    """The axis, the number of steps and the columns of a scan.

    `shape` is that of the inputs; None if there are none, and then `columns` are those of the states. Sizes may be
    symbolic.
    """
    if shape is None:
        axis = to_axis(axis, len(columns) + 1)
        if length is None:
            raise ValueError("length: is needed where xs is None")
        return axis, as_size(length, "length"), columns
    if not shape:
        raise ValueError("xs: expected at least one axis, along which the scan runs, got numbers")
    axis = to_axis(axis, len(shape))
    n_steps = shape[axis]
    if length is not None and as_size(length, "length") != n_steps:
        raise ValueError(f"length: {length} is not the length of xs along axis, {n_steps}")
    return axis, n_steps, shape[:axis] + shape[axis + 1 :]


def check_checkpoint(checkpoint: Any) -> int | None:
    """A number of steps, at least 1, or None."""
    if checkpoint is None:
        return None
    return as_size(checkpoint, "checkpoint", 1, unit="step", expected="expected an integer or None")


def rounded(array: Operand, dtype: np.dtype[Any]) -> Operand:
    """The array in the dtype of a result; overflow of a narrower float becomes infinity without a warning."""
    if array.dtype == dtype:
        return array
    if isinstance(array, np.ndarray):
        return _backends.cpu_user_scan.converted(array, dtype)
    return array.astype(dtype)  # on a device


def broadcast(array: Operand, shape: Shape, name: str, what: str = "") -> Operand:
    """An argument in a shape; `what` ends the error."""
    if array.shape == shape:
        return array
    if type(array) is np.ndarray and not array.ndim:  # in a third of the time of np.broadcast_to
        return np.ndarray(shape, array.dtype, array, 0, (0,) * len(shape))
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: shape {array.shape} does not broadcast to {shape}{what}") from None
