"""Checks the arguments of `upsweep.scan` and normalises them into a `Problem`.

The arguments of every library pass through `check`: arrays of numpy, views of arrays on a device, and arrays
without data that stand for tensors and dask arrays.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._arrays import DeviceView, Operand
from upsweep._compiler.recurrences.associative import Monoid, Product
from upsweep._compiler.recurrences.operations import apply
from upsweep._compiler.recurrences.recurrence import with_parameters
from upsweep._compiler.recurrences.trace import Structure, Traced, as_argument, cached_trace, structure_of
from upsweep._core.checks import Shape, check_axis, check_reset, fitting_axis, missing_axes
from upsweep._core.user_scan import Explanation, ScanSpec, choose_path, with_host_numbers
from upsweep._utils.integers import as_size

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
    parameters: tuple[float, ...] = ()

    def named(self) -> dict[str, Operand]:
        """The arguments by their names."""
        return {
            **{label("xs", self.input_structure, n): x for n, x in enumerate(self.user_inputs)},
            **{label("init", self.state_structure, n): s for n, s in enumerate(self.user_states)},
        }

    def path(self) -> tuple[Monoid | Product | None, Explanation]:
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
    return list(value), len(value) if type(value) is tuple else structure_of(value)


def label(name: str, structure: Structure, place: int) -> str:
    """The name of an item of an argument."""
    return name if structure == -1 else f"{name}[{place}]"


def as_real(value: Any, name: str) -> Operand:
    """An argument as an array of real numbers."""
    refuse_record(value, name)
    array = _arrays.as_operand(value, name)
    if isinstance(array, DeviceView) and _arrays.is_bfloat16(array.dtype):
        return array
    return check_real(array.dtype.kind in "biuf", name, array)


def refuse_record(value: object, name: str) -> None:
    """Raise for what has named items but is no tuple."""
    if isinstance(value, dict) or hasattr(value, "__dataclass_fields__"):
        fields = "Inputs(NamedTuple): price: float; volume: float"
        if name.startswith("init"):
            fields = "State(NamedTuple): level: float; trend: float"
        raise TypeError(
            f"{name}: expected an array, a number or a tuple of them, got {type(value).__qualname__}; items with "
            f"names are a NamedTuple: class {fields}"
        )


COMPLEX = "; linear_recurrence and discounted_cumsum take complex numbers"


def check_real(is_real: bool, name: str, array: Any) -> Any:
    """Return the array; raise unless it has real numbers."""
    if not is_real:
        hint = COMPLEX if "complex" in str(array.dtype) else ""  # torch's dtypes have no kind
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}{hint}")
    return array


def with_reset(update: Update, xs: Any, reset: Any) -> tuple[Update, Any]:
    """The update that begins with a state of zeros where the last of its inputs is true, and its inputs."""
    if reset is None:
        return update, xs
    check_callable(update)
    inputs, structure = flatten(xs, "xs")
    return functools.partial(_from_reset, update, structure), (*inputs, reset)


def _from_reset(update: Update, structure: Structure, state: Any, inputs: tuple[Any, ...]) -> Any:
    *xs, reset = inputs
    check_reset(reset.dtype, np.bool_)
    states, state_structure = flatten(state, "init")
    after = [apply("where", reset, s.dtype.type(0), s) for s in states]
    return update(as_argument(after, state_structure), as_argument(xs, structure))


def input_names(update: Update, structure: Structure, n_inputs: int) -> list[str]:
    """The names of inputs in errors."""
    if isinstance(update, functools.partial) and update.func is _from_reset:
        return [*input_names(update.args[0], update.args[1], n_inputs - 1), "reset"]
    return [label("xs", structure, n) for n in range(n_inputs)]


def check_callable(update: object) -> None:
    """Raise unless the update can be called."""
    if not callable(update):
        raise TypeError(f"update: expected a function of a state and an input, got {type(update).__qualname__}")


def check(
    update: Update, init: Any, xs: Any, axis: Any, reverse: Any, length: Any,
    of_integers: np.dtype[Any] | None = None, parameters: tuple[float, ...] = (),
) -> Problem:  # fmt: skip
    """Check a call, broadcast its arrays together and trace the update; errors name the argument.

    `of_integers` is the dtype of integers as floats, if dtypes are promoted as in torch. The update takes
    `parameters`, in the dtype of the states, as further inputs.
    """
    check_callable(update)
    raw_states, state_structure = flatten(init, "init")
    if not raw_states:
        raise TypeError("init: expected a number, an array or a tuple of them, got None or ()")
    raw_inputs, input_structure = flatten(xs, "xs")
    names = input_names(update, input_structure, len(raw_inputs))
    state_names = [label("init", state_structure, n) for n in range(len(raw_states))]
    inputs = [*map(as_real, raw_inputs, names)]
    states = [*map(as_real, raw_states, state_names)]
    if names[-1:] == ["reset"]:  # before the shapes: that of positions does not broadcast
        check_reset(inputs[-1].dtype, np.bool_)
    shape = _common_shape("xs", inputs, names, axis) if inputs else None
    columns = _common_shape("init", states, state_names) if shape is None else ()
    axis, length, columns = to_extent(shape, columns, axis, length)
    broadcast_states = [
        broadcast(array, columns, name, functools.partial(_of_columns, array.shape, shape, axis))
        for name, array in zip(state_names, states)
    ]
    defaults = _default_dtypes(raw_inputs, inputs, of_integers)

    def dtype_of(value: Any, array: Operand) -> np.dtype[Any]:
        if type(value) is float:
            return defaults[0]
        if type(value) is int:
            return _dtype_of_integer(value, defaults[1])
        own: np.dtype[Any] = array.dtype
        return own if own.isnative else own.newbyteorder("=")

    input_dtypes = tuple(map(dtype_of, raw_inputs, inputs))
    count, traced_structure = len(parameters), input_structure
    if count:
        input_dtypes += (np.result_type(*(state.dtype for state in states)),) * count
        traced_structure = len(input_dtypes)

    def traced_from(state_dtypes: Iterable[np.dtype[Any]]) -> Traced:
        signature = tuple(state_dtypes), state_structure, input_dtypes, traced_structure
        return cached_trace(update, *signature, of_integers=of_integers)

    large = [defaults[1].kind == "f" and _is_large(s, defaults[1]) for s in raw_states]
    traced = None
    if any(large):
        # An error is raised by the update of floats, too, or is one of integers only.
        with contextlib.suppress(TypeError):
            traced = traced_from(
                _dtype_of_integer(s, np.dtype(np.int64)) if is_large else dtype_of(s, array)
                for s, array, is_large in zip(raw_states, states, large)
            )
    if traced is None or any(dtype.kind == "f" for dtype, is_one in zip(traced.state_dtypes, large) if is_one):
        traced = traced_from(map(dtype_of, raw_states, states))
    recurrence = with_parameters(traced.recurrence, count) if count else traced.recurrence
    spec = ScanSpec(recurrence, traced.dtype, length, columns, axis, bool(reverse))
    in_order = [spec.in_scan_order(x if x.shape == shape else np.broadcast_to(x, shape or ())) for x in inputs]
    problem = Problem(
        spec, traced, in_order, inputs, broadcast_states, states, input_structure, state_structure,
        parameters=parameters,
    )  # fmt: skip
    if any(isinstance(array, DeviceView) for array in (*inputs, *states)):
        problem.placement = _arrays.common_placement({**problem.named()})
    return problem


def _is_large(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number is one of Python's own integers that steps of a float dtype cannot count on from."""
    exact = EXACT if dtype.itemsize == 8 else EXACT_SINGLE
    return type(value) is int and not -exact < value < exact and -(2**63) <= value < 2**64


EXACT, EXACT_SINGLE = 2**53, 2**24  # below it, all integers are numbers in float64, in float32
_WEAK = (int, float)  # Python's own numbers, which take the dtype of the other inputs


def _default_dtypes(
    values: list[Any], arrays: list[Operand], of_integers: np.dtype[Any] | None
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtypes of Python's own floats and integers among the arguments: both that of `xs`, if it is a float."""
    dtypes = {x.dtype.newbyteorder("=") for value, x in zip(values, arrays) if type(value) not in _WEAK}
    floats = [dtype for dtype in dtypes if dtype.kind == "f"]
    if floats:
        common = np.result_type(*(dtypes if of_integers is None else floats))
        return common, common
    return of_integers or np.dtype(np.float64), np.dtype(np.uint64 if np.dtype(np.uint64) in dtypes else np.int64)


def _dtype_of_integer(value: int, default: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of one of Python's own integers, which has to hold it exactly."""
    if default.kind == "f":
        if (float(value) if default.itemsize == 8 else float(np.float32(value))) == value:
            return default
        raise ValueError(f"init, xs: {value} is not exact in {default}; pass it as np.int64({value})")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"init, xs: {value} has more than 64 bits; pass it as a float")
    if value >= 0:
        return default if value < 2**63 else np.dtype(np.uint64)
    if default.kind == "i":
        return default
    raise ValueError(f"init, xs: {value} is out of bounds for {default}, the dtype of xs; cast xs")


def _common_shape(argument: str, arrays: list[Operand], names: list[str], axis: Any = None) -> Shape:
    if len(arrays) == 1:
        return arrays[0].shape
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        named = dict(zip(names, arrays))
        shapes = ", ".join(f"{name} {x.shape}" for name, x in named.items())
        ndim = max(x.ndim for x in arrays)
        steps = axis % ndim if isinstance(axis, int) and -ndim <= axis < ndim else None
        remedy = missing_axes(named, steps) or _of_line(arrays, names, axis)
        raise ValueError(f"{argument}: shapes do not broadcast together: {shapes}{remedy}") from None


def _of_line(arrays: list[Operand], names: list[str], axis: Any) -> str:
    """What to write for one array that has one number for each step, beside others that have no steps."""
    largest = max(arrays, key=lambda x: x.ndim)
    lines = [name for name, x in zip(names, arrays) if x.ndim == 1 and name != "reset"]
    if axis == 0 and len(lines) == 1 and len({x.shape for x in arrays if x.ndim > 1}) == 1:
        index = f"[:{', None' * largest.ndim}]"
        return f"; if {lines[0]} has one number for each step and the others have no steps, pass {lines[0]}{index}"
    return ""


def _of_columns(own: Shape, shape: Shape | None, axis: int) -> str:
    """What to do with a state of a shape that does not broadcast to `shape`, that of the inputs, without axis."""
    of_lines = f", the shape of xs without axis {axis}: a state is one number for each line of xs"
    if fits := fitting_axis(own, shape or ()):
        return of_lines + fits
    return f"{of_lines}, and several states are a tuple, init=tuple(init), on which A @ state works"


def to_extent(shape: Shape | None, columns: Shape, axis: Any, length: Any) -> tuple[int, int, Shape]:
    """The axis, the number of steps and the columns of a scan.

    `shape` is that of the inputs; None if there are none, and then `columns` are those of the states. Sizes may be
    symbolic.
    """
    if shape is None:
        axis = check_axis(axis, len(columns) + 1)
        if length is None:
            raise ValueError("length: is needed where xs is None")
        return axis, as_size(length, "length"), columns
    if not shape:
        raise ValueError(
            "xs: expected at least one axis, along which the scan runs, got numbers; pass np.full(length, x), or "
            "let the update take the number from around it, with xs=None and length="
        )
    axis = check_axis(axis, len(shape))
    n_steps = shape[axis]
    if length is not None and as_size(length, "length") != n_steps:
        same = f"np.broadcast_to(x, ({length}, *x.shape{'[1:]' * (n_steps == 1)}))"
        remedy = f"; numbers that are the same at all steps are xs={same}, which takes no memory"
        raise ValueError(f"length: {length} is not the length of xs along axis, {n_steps}{remedy * (axis == 0)}")
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
        if array.dtype == np.int64 and dtype == np.uint64:
            return array.view(dtype)
        return _backends.cpu_user_scan.converted(array, dtype)
    return array.astype(dtype)  # on a device


def broadcast(array: Operand, shape: Shape, name: str, remedy: Callable[[], str] = str) -> Operand:
    """An argument in a shape; `remedy` ends the error."""
    if array.shape == shape:
        return array
    if type(array) is np.ndarray and not array.ndim:  # in a third of the time of np.broadcast_to
        return np.ndarray(shape, array.dtype, array, 0, (0,) * len(shape))
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: shape {array.shape} does not broadcast to {shape}{remedy()}") from None
