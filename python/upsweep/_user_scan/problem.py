"""From a call of `scan` to its arrays, its recurrence, and the way that it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import Operand as Array
from upsweep._compiler.recurrences.associative import Monoid, find_monoid
from upsweep._compiler.recurrences.linear_update import find_linear
from upsweep._compiler.recurrences.recurrence import Recurrence
from upsweep._compiler.recurrences.trace import Structure, Traced, Traces
from upsweep._utils.integers import as_integer, as_size

__all__ = [
    "Explanation",
    "Problem",
    "arranged",
    "as_real",
    "broadcast",
    "check",
    "check_checkpoint",
    "choose_path",
    "choose_path_on_device",
    "device_scans",
    "flatten",
    "in_place",
    "in_scan_order",
    "label",
    "moved",
    "rounded",
    "run_into",
    "run_recurrence",
    "to_axis",
    "to_length",
]

Update = Callable[[Any, Any], Any]

# Fewer columns than these leave a vector's lanes empty, and then time is worth cutting, if there is enough of it.
_FEW_COLUMNS = 8
_LONG = 4096  # steps

# A device is full with some tens of thousands of columns. From so many on, one reading of the inputs by a thread
# a column is as fast as two by chunks of time, of which the second one writes. Cutting costs three kernels.
_FEW_COLUMNS_ON_DEVICE = 8192
_LONG_ON_DEVICE = 1024  # steps

_MOST_FORMS = 512  # remembered
_traces = Traces()
_forms: dict[Recurrence, tuple[Monoid | None, str]] = {}


class Explanation(NamedTuple):
    """How a scan runs: `path` is "parallel in time" or "sequential in time"."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass
class Problem:
    """A checked call: arrays with time on the first axis, in the scan's order."""

    traced: Traced
    inputs: list[Array]  # of the shape (time, *columns)
    given: list[Array]  # as the user gave them
    states: list[Array]  # of the shape columns
    initial: list[Array]  # as the user gave them
    state_structure: Structure
    input_structure: Structure
    axis: int
    reverse: bool
    length: int
    columns: tuple[int, ...]
    placement: _arrays.Placement | None  # where the arrays are; None: in the host's memory

    def named(self) -> dict[str, Array]:
        """The arrays as the user gave them, by their names."""
        return {
            **{label("xs", self.input_structure, n): x for n, x in enumerate(self.given)},
            **{label("init", self.state_structure, n): s for n, s in enumerate(self.initial)},
        }

    def path(self) -> tuple[Monoid | None, Explanation]:
        """How the call runs."""
        recurrence = self.traced.recurrence
        if self.placement is None:
            return choose_path(recurrence, self.length, self.columns)
        recurrence = _backends.cuda_user_scan().with_numbers(recurrence, self.inputs)
        results = {*self.traced.output_dtypes, *self.traced.state_dtypes}
        are_plain = results <= {np.dtype(np.float32), np.dtype(np.float64)} and all(
            x.dtype.kind not in "biu" for x in (*self.given, *self.initial) if x.ndim
        )
        return choose_path_on_device(recurrence, self.length, self.columns, are_plain)


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


def arranged(items: list[Any], structure: Structure) -> Any:
    """Items as the user has them: one, a tuple, or nothing."""
    if structure is None:
        return None
    return items[0] if structure == -1 else tuple(items)


def label(name: str, structure: Structure, place: int) -> str:
    """The name of an item of an argument."""
    return name if structure == -1 else f"{name}[{place}]"


def as_real(value: Any, name: str) -> Array:
    """An argument as an array of real numbers."""
    array = _arrays.as_operand(value, name)
    if isinstance(array, _arrays.DeviceView) and _arrays.is_bfloat16(array.dtype):
        return array
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise TypeError(f"{name}: expected at most 64 bits, got dtype {array.dtype}")
    return array


def _own_dtype(array: Array) -> np.dtype[Any]:
    """What a number of an array is calculated as: integers are float64."""
    return np.dtype(np.float64) if array.dtype.kind in "iu" else array.dtype.newbyteorder("=")


def check(update: Update, init: Any, xs: Any, axis: Any, reverse: Any, length: Any) -> Problem:
    """The call with its arrays broadcast together; what does not fit is refused by name."""
    if not callable(update):
        raise TypeError(f"update: expected a function of a state and an input, got {type(update).__qualname__}")
    raw_states, state_structure = flatten(init, "init")
    if not raw_states:
        raise TypeError("init: expected a number, an array or a tuple of them, got None or ()")
    raw_inputs, input_structure = flatten(xs, "xs")
    given = [as_real(x, label("xs", input_structure, n)) for n, x in enumerate(raw_inputs)]
    initial = [as_real(s, label("init", state_structure, n)) for n, s in enumerate(raw_states)]
    shape = _common_shape(given, input_structure)
    if shape is None:
        columns = _columns_of_states(initial)
        place = to_axis(axis, len(columns) + 1)
        n_steps = to_length(length, None)
    else:
        if not shape:
            raise ValueError("xs: expected at least one axis, along which the scan runs, got numbers")
        place = to_axis(axis, len(shape))
        columns = shape[:place] + shape[place + 1 :]
        n_steps = to_length(length, shape[place])
    states = []
    for n, array in enumerate(initial):
        try:
            states.append(_spread(array, columns))
        except ValueError:
            name = label("init", state_structure, n)
            raise ValueError(
                f"{name}: shape {array.shape} does not broadcast to {columns}, "
                f"the shape of xs without axis {place}"
            ) from None
    order = slice(None, None, -1 if reverse else None)
    inputs = []
    for x in given:
        whole = x if x.shape == shape else np.broadcast_to(x, shape or ())
        whole = moved(whole, place, 0)
        inputs.append(whole[order] if reverse else whole)
    default = _default_dtype(raw_inputs, given)
    input_dtypes = tuple(default if type(value) in _WEAK else _own_dtype(x) for value, x in zip(raw_inputs, given))
    dtypes = tuple(
        np.dtype(bool)
        if value is True or value is False
        else default
        if type(value) in _WEAK
        else _own_dtype(array)
        for value, array in zip(raw_states, initial)
    )
    traced = _traces.get(update, dtypes, state_structure, input_dtypes, input_structure)
    problem = Problem(
        traced,
        inputs,
        given,
        states,
        initial,
        state_structure,
        input_structure,
        place,
        bool(reverse),
        n_steps,
        columns,
        None,
    )
    if any(isinstance(array, _arrays.DeviceView) for array in (*given, *initial)):
        problem.placement = _arrays.common_placement({**problem.named()})
    return problem


def moved(array: Array, source: int, target: int) -> Array:
    """The array with an axis in another place; arrays of a device too."""
    if source == target:
        return array
    axes = [d for d in range(array.ndim) if d != source]
    axes.insert(target, source)
    return array.transpose(axes)


def _spread(array: Array, columns: tuple[int, ...]) -> Array:
    """A state broadcast to the columns; a number, as most are, in a third of the time."""
    if array.shape == columns:
        return array
    if type(array) is np.ndarray and not array.ndim:
        return np.ndarray(columns, array.dtype, array, 0, (0,) * len(columns))
    return np.broadcast_to(array, columns)


_WEAK = (int, float)  # Python's own numbers, which take the dtype of the other inputs


def _default_dtype(values: list[Any], arrays: list[Array]) -> np.dtype[Any]:
    own = {_own_dtype(x) for value, x in zip(values, arrays) if type(value) not in _WEAK}
    if len(own) == 1:
        (common,) = own
    else:
        common = np.result_type(*own) if own else np.dtype(np.float64)
    return common if common.kind == "f" else np.dtype(np.float64)


def _common_shape(arrays: list[Array], structure: Structure) -> tuple[int, ...] | None:
    if not arrays:
        return None
    if len(arrays) == 1:
        return arrays[0].shape
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = ", ".join(f"{label('xs', structure, n)} {x.shape}" for n, x in enumerate(arrays))
        raise ValueError(f"xs: shapes do not broadcast together: {shapes}") from None


def _columns_of_states(initial: list[Array]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(s.shape for s in initial))
    except ValueError:
        shapes = ", ".join(str(s.shape) for s in initial)
        raise ValueError(f"init: shapes do not broadcast together: {shapes}") from None


def to_axis(axis: Any, ndim: int) -> int:
    """The axis counted from the front."""
    place = as_integer(axis, "axis")
    if not -ndim <= place < ndim:
        raise ValueError(f"axis: {place} is out of range for {ndim} dimension{'s' * (ndim != 1)}")
    return place % ndim


def to_length(length: Any, known: int | None) -> int:
    """A number of steps; `known` is what the arrays say."""
    if length is None:
        if known is None:
            raise ValueError("length: is needed where xs is None")
        return known
    n = as_size(length, "length")
    if known is not None and n != known:
        raise ValueError(f"length: {n} is not the length of xs along axis, {known}")
    return n


def check_checkpoint(checkpoint: Any) -> int | None:
    """A number of steps, at least 1, or None."""
    if checkpoint is None:
        return None
    return as_size(checkpoint, "checkpoint", 1, unit="step", expected="expected an integer or None")


# ---- paths -----------------------------------------------------------------------------------------------------


def monoid_of(recurrence: Recurrence) -> tuple[Monoid | None, str]:
    """The recurrence's parallel form, looked for once."""
    found = _forms.get(recurrence)
    if found is None:
        while len(_forms) >= _MOST_FORMS:
            _forms.pop(next(iter(_forms)), None)
        found = _forms[recurrence] = find_monoid(recurrence)
    return found


def choose_path(
    recurrence: Recurrence, length: int, columns: tuple[int, ...]
) -> tuple[Monoid | None, Explanation]:
    """How to run: by the update and the shape alone, so that results do not depend on the machine's load."""
    n_columns = math.prod(columns)
    form, why = monoid_of(recurrence)
    if form is None:
        return None, Explanation("sequential in time", why)
    if n_columns >= _FEW_COLUMNS:
        few = f"but {n_columns} columns are enough to run side by side ({_FEW_COLUMNS} are)"
        return None, Explanation("sequential in time", f"{why}, {few}")
    if length < _LONG:
        return None, Explanation("sequential in time", f"{why}, but {length} steps are few (below {_LONG})")
    return form, Explanation("parallel in time", f"{why}, and columns are few ({n_columns})")


def choose_path_on_device(
    recurrence: Recurrence, length: int, columns: tuple[int, ...], are_plain: bool = True
) -> tuple[Monoid | None, Explanation]:
    """How to run on a CUDA device: by the update and the shape alone, too.

    `are_plain`: the arrays are of dtypes that linear_recurrence takes and gives as a scan would.
    """
    n_columns = math.prod(columns)
    form, why = monoid_of(recurrence)
    if form is None:
        return None, Explanation("sequential in time", why)
    enough = n_columns >= _FEW_COLUMNS_ON_DEVICE
    is_short = length < _LONG_ON_DEVICE
    if are_plain and find_linear(recurrence) is not None:
        why = "the update is gates * state + tokens, a linear_recurrence, whose kernels run it"
        return None if enough or is_short else form, Explanation("parallel in time", why)
    if enough:
        few = f"but {n_columns} columns fill a device ({_FEW_COLUMNS_ON_DEVICE} do)"
        return None, Explanation("sequential in time", f"{why}, {few}")
    if is_short:
        return None, Explanation(
            "sequential in time", f"{why}, but {length} steps are few (below {_LONG_ON_DEVICE} on a device)"
        )
    return form, Explanation("parallel in time", f"{why}, and columns are few for a device ({n_columns})")


def device_scans(named: Mapping[str, Array]) -> Any:
    """The scans of a call on arrays of a device, to be closed at its end."""
    return _backends.cuda_user_scan().DeviceScans(named)


def run_into(
    scans: Any, recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], outputs: list[Array],
    states: list[Array], finals: Sequence[Array | None], length: int, columns: tuple[int, ...],
) -> None:  # fmt: skip
    """A scan of arrays of a device into others."""
    plain = _backends.cuda_user_scan().with_numbers(recurrence, inputs)
    form, _ = choose_path_on_device(plain, length, columns)
    scans.run(plain, dtype, inputs, outputs, states, finals, length, columns, form)


def in_scan_order(array: Array, problem: Problem) -> Array:
    """An array of the whole shape with time on the first axis, in the order of the steps."""
    first = moved(array, problem.axis, 0)
    return first[::-1] if problem.reverse else first


def run_recurrence(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], states: list[Array], length: int,
    columns: tuple[int, ...], axis: int, n_threads: int | None = None, *, targets: Sequence[Array] = (),
    on_device: Any = None,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """The outputs, with time where the user has it but in the scan's order, and the last states, in `dtype`.

    `targets` are memory that outputs go to, in the scan's order and of any dtype; they may be inputs.
    `on_device` are the `DeviceScans` of arrays that are on one; time is the first axis of their outputs.
    """
    shape = (length, *columns)
    if on_device is not None:
        made = [on_device.empty(shape, dtype) for _ in recurrence.outputs]
        after = [on_device.empty(columns, dtype) for _ in states]
        run_into(on_device, recurrence, dtype, inputs, made, states, after, length, columns)
        return made, after
    like = next((x for x in inputs if 0 not in x.strides and x.size), None)
    form, _ = choose_path(recurrence, length, columns)
    outputs = []
    for place in range(len(recurrence.outputs)):
        if targets and _takes(targets[place], dtype, inputs, form):
            out = targets[place]
        elif like is not None:
            out = np.empty_like(like, dtype=dtype, order="K", subok=False)
        else:
            out = np.moveaxis(np.empty(columns[:axis] + (length,) + columns[axis:], dtype), axis, 0)
        outputs.append(out)
    last = _backends.cpu_user_scan().run(
        recurrence, dtype, inputs, outputs, states, length, columns, form, n_threads
    )  # fmt: skip
    for target, out in zip(targets, outputs):
        if out is not target:
            with np.errstate(over="ignore"):
                np.copyto(target, out, casting="unsafe")
    return outputs, last


def _takes(target: Array, dtype: np.dtype[Any], inputs: list[Array], form: Monoid | None) -> bool:
    """Whether outputs can be written there at once: parallel in time, inputs are read a second time."""
    if target.dtype != dtype or not target.flags.aligned:
        return False
    return form is None or not any(np.may_share_memory(target, x) for x in inputs)


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array of what was calculated, in the dtype that it is to have."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def in_place(out: Array, axis: int, reverse: bool, dtype: np.dtype[Any]) -> Array:
    """An output in time's own order, with the axis where it was."""
    ordered = out[::-1] if reverse else out
    return rounded(np.moveaxis(ordered, 0, axis) if axis else ordered, dtype)


def broadcast(array: Array, shape: tuple[int, ...], name: str) -> Array:
    """An argument in a shape."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: shape {array.shape} does not broadcast to {shape}") from None
