"""The first derivative of a scan by an update of tensors on a device: the adjoint scan, prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upsweep._backends import cuda_user_scan
from upsweep._compiler.formulas.nodes import order
from upsweep._compiler.recurrences.adjoint import adjoint
from upsweep._user_scan.problem import Problem, choose_path_on_device

__all__ = ["Derivative", "is_wanted"]

_MOST_PREPARED = 16  # which cotangents there are, and how they lie


class _Gradient(NamedTuple):
    """What a gradient is to be: as its tensor is."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def written_in(self, shape: tuple[int, ...], calculated: str) -> str:
        """The dtype in which a kernel writes it: its own, unless torch is to sum it over what was broadcast."""
        return _name(self.dtype) if self.shape == shape else calculated


def is_wanted(value: Any) -> bool:
    """Whether a derivative by this is asked for."""
    return isinstance(value, Tensor) and value.requires_grad


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _strides(tensor: Tensor) -> tuple[int, ...]:
    size = tensor.element_size()
    return tuple(size * step for step in tensor.stride())


class Derivative:
    """The adjoint scan of a call: its gradients by the tensors that require them.

    `kept` says which of the states before each step it reads.
    """

    def __init__(self, problem: Problem, states: Sequence[Any], inputs: Sequence[Any]) -> None:
        self._dtype, self._axis, self._reverse = problem.traced.dtype, problem.axis, not problem.reverse
        self._length, self._columns, axis = problem.length, problem.columns, problem.axis
        self._whole = self._columns[:axis] + (self._length,) + self._columns[axis:]
        self._n, self._k = len(inputs), len(states)
        self._by_states, self._by_inputs = (
            [_Gradient(tuple(v.shape), v.dtype) if is_wanted(v) else None for v in values]
            for values in (states, inputs)
        )
        whole = adjoint(problem.traced.recurrence)
        wanted = tuple(y for y, gradient in zip(whole.outputs, self._by_inputs) if gradient is not None)
        recurrence = replace(whole, outputs=wanted)
        self._recurrence = cuda_user_scan().with_numbers(recurrence, problem.inputs)
        nodes = order(*recurrence.states, *recurrence.outputs)
        read = {node.static[0] for node in nodes if node.op == "variable" and node.static[1] == "j"}
        self.kept = [p for p in range(self._k) if self._n + p in read]
        self._prepared: dict[Any, Any] = {}

    def prepared(
        self, forward: Any, of_outputs: Sequence[Tensor | None], last: Sequence[Tensor | None]
    ) -> Any:  # fmt: skip
        """The adjoint of a prepared scan for these cotangents, and others that lie so."""
        key = tuple(None if c is None else (c.stride(), c.dtype) for c in (*of_outputs, *last))
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            found = self._prepared[key] = self._prepare(forward, of_outputs, last)
        return found

    def arranged(
        self, inputs: Sequence[Any], kept: Sequence[Tensor], of_outputs: Sequence[Tensor | None]
    ) -> list[Any]:  # fmt: skip
        """What the adjoint reads, in its order; None where it does not."""
        states: list[Tensor | None] = [None] * self._k
        for place, tensor in zip(self.kept, kept):
            states[place] = tensor
        return [*inputs, *states, *of_outputs]

    def of_arguments(self, made: Sequence[Tensor], first: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What it put out as gradients by states and by inputs, in shapes that torch sums to theirs."""
        found = iter(made)
        return [*first, *(None if to is None else next(found) for to in self._by_inputs)]

    def _prepare(
        self, forward: Any, of_outputs: Sequence[Tensor | None], last: Sequence[Tensor | None]
    ) -> Any:  # fmt: skip
        cuda, calculated = cuda_user_scan(), self._dtype.name
        kept: list[Any] = [None] * self._k
        for place, result in zip(self.kept, forward.outputs[len(of_outputs) :]):
            kept[place] = result.place
        inputs = [None if place is None else place.reversed() for place in (*forward.inputs, *kept)]
        inputs += [
            c
            if c is None
            else cuda.in_scan_order(self._whole, _strides(c), _name(c.dtype), self._axis, self._reverse)
            for c in of_outputs
        ]
        zeros = {self._n + self._k + n: 0.0 for n, c in enumerate(of_outputs) if c is None}
        recurrence = cuda.with_constants(self._recurrence, zeros)
        form, _ = choose_path_on_device(recurrence, self._length, self._columns)
        outputs = [
            cuda.new_result(
                self._whole, to.written_in(self._whole, calculated), axis=self._axis, reverse=self._reverse
            )
            for to in self._by_inputs
            if to is not None
        ]
        finals = [
            None if to is None else cuda.new_result(self._columns, to.written_in(self._columns, calculated))
            for to in self._by_states
        ]
        states = [None if c is None else cuda.lying(self._columns, _strides(c), _name(c.dtype)) for c in last]
        return cuda.ScanPlan(
            forward.placement, recurrence, self._dtype, inputs, outputs, states, finals, self._length,
            self._columns, form,
        )  # fmt: skip
