"""The problem class of scans, and the checks of their arguments.

`normalise` broadcasts the operands and classifies the factor; `check_out` validates a user's output array. All
checks that need no element happen here, before any work, and their errors name the argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand, Placement
from upsweep._core.layout import broadcast_shapes, check_axis, have_same_memory, overlap, overlaps_itself

__all__ = ["Scan", "check_axis", "check_out", "normalise", "overlap", "overlaps_itself"]


@dataclass
class Scan:
    """A checked scan. `x`, `gates` and `reset` have the result's shape; the others lack `axis`.

    With a `placement` the operands are descriptors of arrays on its device, except for numbers, which are host
    arrays. `name` and `factor_name` are the user's names of x and of the factor (gates or gamma).
    """

    x: Operand
    gates: Operand | None
    gamma: Operand | None
    reset: Operand | None
    initial: Operand | None
    axis: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    placement: Placement | None = None
    name: str = "x"
    factor_name: str = "gamma"

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def factor(self) -> Operand | None:
        """The gates, or gamma repeated along the axis, in the result's shape."""
        if self.gamma is None:
            return self.gates
        return np.broadcast_to(self.gamma[(slice(None),) * self.axis + (np.newaxis,)], self.shape)

    @property
    def accumulator(self) -> np.dtype[Any]:
        return _arrays.accumulator_dtype(self.dtype)

    @property
    def factor_dtype(self) -> np.dtype[Any]:
        """The dtype of products of factors: float64 for real factors of complex states, which do not mix parts."""
        factor = self.gamma if self.gates is None else self.gates
        if self.accumulator.kind == "c" and (factor is None or factor.dtype.kind != "c"):
            return np.dtype(np.float64)
        return self.accumulator


def _as_state(array: Operand, name: str, state_shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operand:
    if array.ndim > len(state_shape):
        raise ValueError(
            f"{name}: expected the state's shape {state_shape} (the result's without its axis) or one that "
            f"broadcasts to it, got {array.shape}"
        )
    if not _arrays.can_hold(dtype, array.dtype):
        raise TypeError(f"{name}: {array.dtype} cannot be held by a state of dtype {dtype}")
    try:
        return np.broadcast_to(array, state_shape)
    except ValueError:
        raise ValueError(f"{name}: shape {array.shape} does not broadcast to the state's {state_shape}") from None


def _without_axis(array: Operand, axis: int, shape: tuple[int, ...]) -> Operand:
    """Broadcast `array`, which is constant along `axis`, to `shape`, and remove the axis."""
    whole = np.broadcast_to(array, shape[:axis] + (1,) + shape[axis + 1 :])
    return whole[(slice(None),) * axis + (0, ...)]


def normalise(
    name: str,
    x: Operand,
    factor_name: str | None,
    factor: Operand | None,
    dtype: np.dtype[Any],
    *,
    axis: object,
    reset: object,
    initial: object,
) -> Scan:
    """Broadcast x, its factor (gamma or gates) and reset without copies.

    A factor that is constant along the axis becomes `gamma`; any other one is `gates`.
    """
    named = {name: x}
    if factor is not None and factor_name is not None:
        named[factor_name] = factor
    flags: Operand | None = None
    if reset is not None:
        flags = _arrays.as_operand(reset, "reset")
        if flags.dtype != np.bool_:
            raise TypeError(f"reset: expected an array of bool, got dtype {flags.dtype}")
        named["reset"] = flags
    state = None if initial is None else _arrays.as_operand(initial, "initial")
    placement = _arrays.common_placement({**named, "initial": state})
    shape = broadcast_shapes(named)
    if not shape:
        raise ValueError(f"{name}: expected at least one axis to scan along, got a 0-d array")
    index = check_axis(axis, len(shape))
    scan = Scan(np.broadcast_to(x, shape), None, None, None, None, index, shape, dtype, placement, name)
    scan.factor_name = factor_name or scan.factor_name
    if flags is not None:
        scan.reset = np.broadcast_to(flags, shape)
    if factor is not None:
        padded = factor[(np.newaxis,) * (len(shape) - factor.ndim) + (...,)]
        if padded.shape[index] == 1 or (padded.strides[index] == 0 and padded.size):
            scan.gamma = _without_axis(padded[(slice(None),) * index + (slice(0, 1),)], index, shape)
        else:
            scan.gates = np.broadcast_to(factor, shape)
    if state is not None:
        scan.initial = _as_state(state, "initial", scan.state_shape, scan.accumulator)
    return scan


def _as_target(
    out: object, inputs: dict[str, Operand | None], placement: Placement | None, called: str
) -> Operand:
    if placement is None:
        if not isinstance(out, np.ndarray) or isinstance(out, (np.ma.MaskedArray, np.matrix)):
            raise TypeError(f"{called}: expected a numpy.ndarray, got {_arrays.type_name(out)}")
        return out.view(np.ndarray)  # of np.memmap and other subclasses
    target = _arrays.as_operand(out, called)
    if not isinstance(target, DeviceView):
        raise TypeError(f"{called}: expected a {placement.library.name}, got {_arrays.type_name(out)}")
    # Numbers go with any device. Inputs of the host are numbers, though broadcast to other shapes by now.
    _arrays.common_placement({**{k: a for k, a in inputs.items() if isinstance(a, DeviceView)}, called: target})
    return target


def check_out(
    out: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: dict[str, Operand | None],
    in_place: tuple[str, ...] = (),
    placement: Placement | None = None,
    *,
    called: str = "out",
) -> Operand:
    """Return `out` as a plain ndarray or a descriptor, if the result may be written to it.

    `inputs` are all arrays that are read; of these, `in_place` may be `out` itself, element for element. Errors
    call it `called`.
    """
    target = _as_target(out, inputs, placement, called)
    if target.shape != shape:
        raise ValueError(f"{called}: expected shape {shape}, got {target.shape}")
    if target.dtype != dtype:
        raise TypeError(f"{called}: expected dtype {dtype}, got {target.dtype}")
    if not target.flags.writeable:
        raise ValueError(f"{called}: is read-only")
    if overlaps_itself(target):
        raise ValueError(f"{called}: several of its elements share memory (strides of {target.strides} bytes)")
    for name, array in inputs.items():
        if array is None or array.size == 0:
            continue
        if name in in_place and have_same_memory(target, array):
            continue
        if overlap(target, array):
            raise ValueError(f"{called}: overlaps {name} in memory without being the same array")
    return target
