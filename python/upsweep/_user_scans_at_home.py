"""Scans by a user's update of arrays that are on a device. Imported by the first call that needs it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upsweep._arrays import Array, OnDevice, common_home
from upsweep._at_home import Call, described
from upsweep._cuda import DeviceArray, user_scans
from upsweep._expr.nodes import Node, constant, substitute
from upsweep._expr.parallel_forms import Form
from upsweep._expr.recurrence import Recurrence, input_

__all__ = ["DeviceScans", "with_numbers"]


@functools.lru_cache(512)
def _substituted(recurrence: Recurrence, numbers: tuple[tuple[int, str], ...]) -> Recurrence:
    values: dict[Node, Node] = {input_(place): constant(float.fromhex(text)) for place, text in numbers}
    new = [substitute(root, values) for root in (*recurrence.states, *recurrence.outputs)]
    k = recurrence.n_states
    return Recurrence(tuple(new[:k]), tuple(new[k:]), recurrence.n_inputs)


def with_numbers(recurrence: Recurrence, inputs: Sequence[Array]) -> Recurrence:
    """The recurrence with what the host has of its inputs, which is one number each, in its formulas."""
    # By their text, which tells -0.0 from 0.0, and of which NaN is equal to itself.
    numbers = tuple(
        (place, (_number(x) if x.size else 0.0).hex())
        for place, x in enumerate(inputs)
        if not isinstance(x, OnDevice)
    )
    return _substituted(recurrence, numbers) if numbers else recurrence


def _number(array: Array) -> float:
    """The number that an array of the host repeats."""
    assert all(n == 1 or stride == 0 for n, stride in zip(array.shape, array.strides))
    return float(array[(0,) * array.ndim])


class DeviceScans:
    """Scans of one call of the user's, on its stream, with memory from its library."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        common_home({**arrays})  # which says what does not go together
        self.call = Call({**arrays})
        if not self.call.library.allocates:
            self.call.close()
            name = next(name for name, array in arrays.items() if isinstance(array, OnDevice))
            raise TypeError(
                f"{name}: is a {self.call.library.name}, of which upsweep does not know how to allocate another "
                "for the result; convert it explicitly"
            )

    def close(self) -> None:
        self.call.close()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None) -> OnDevice:
        """An uninitialised array; laid out as `like` is where that has its shape and repeats nothing."""
        return self.call.empty(shape, dtype, like)

    def run(
        self, recurrence: Recurrence, dtype: np.dtype[Any], inputs: Sequence[Array], outputs: Sequence[Array],
        states: Sequence[Array], finals: Sequence[Array | None], length: int, columns: tuple[int, ...],
        form: Form | None,
    ) -> None:  # fmt: skip
        """Start a scan over the first axis of `inputs` and `outputs`.

        Inputs of the host are in its formulas, by `with_numbers`; states of the host are a number each. `finals`
        are in C order, of as many elements as `columns`.
        """
        if 0 in columns:
            return
        user_scans.run(
            recurrence, dtype.name, [described(x) if isinstance(x, OnDevice) else None for x in inputs],
            [described(out) for out in outputs],
            [described(s) if isinstance(s, OnDevice) else _number(s) for s in states],
            [None if s is None else _in_order(s, columns) for s in finals], length, columns, form,
            allocate=self.call.allocate, **self.call.on_stream,
        )  # fmt: skip


def _in_order(array: Array, shape: tuple[int, ...]) -> DeviceArray:
    """An array that was made in C order, in another shape of as many elements."""
    strides, n_bytes = list[int](), array.itemsize
    for n in reversed(shape):
        strides.insert(0, n_bytes)
        n_bytes *= n
    return described(array)._replace(shape=shape, strides=tuple(strides))
