"""The first derivative of a compiled scan of CUDA tensors: the adjoint scan, with a launch plan of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from upsweep._backends import cuda_user_scan
from upsweep._compiler.recurrences.adjoint import adjoint
from upsweep._compiler.recurrences.recurrence import inputs_read, with_constants
from upsweep._core.user_scan import with_host_numbers
from upsweep._user_scan.problem import Problem
from upsweep._utils.lru_cache import LRUCache

__all__ = ["Derivative", "needs_gradient"]

_MAX_PLANS = 16  # of combinations of cotangents and their layouts


def needs_gradient(value: Any) -> bool:
    """Whether an argument is a tensor that requires a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _strides(tensor: Tensor) -> tuple[int, ...]:
    size = tensor.element_size()
    return tuple(size * step for step in tensor.stride())


class Derivative:
    """The adjoint scan of a call, which computes the gradients by the tensors that require them.

    `kept_states` are the states that it reads before each step, which the scan has to output.
    """

    def __init__(self, problem: Problem, states: Sequence[Any], inputs: Sequence[Any]) -> None:
        spec, self._n_inputs, self._n_states = problem.spec, len(inputs), len(states)

        def dtypes(values: Sequence[Any], shape: tuple[int, ...]) -> list[str | None]:
            """The dtypes that kernels write: that of the computation if torch sums the gradient over an axis."""
            return [
                (_name(v.dtype) if tuple(v.shape) == shape else spec.dtype.name) if needs_gradient(v) else None
                for v in values
            ]

        self._input_dtypes, self._state_dtypes = dtypes(inputs, spec.shape), dtypes(states, spec.columns)
        whole = adjoint(spec.recurrence)
        outputs = tuple(y for y, dtype in zip(whole.outputs, self._input_dtypes) if dtype is not None)
        recurrence = with_host_numbers(replace(whole, outputs=outputs), problem.inputs)
        self._spec = replace(spec, recurrence=recurrence, reverse=not spec.reverse)
        read = inputs_read(recurrence)
        self.kept_states = [p for p in range(self._n_states) if self._n_inputs + p in read]
        self._plans: LRUCache[Any, Any] = LRUCache(_MAX_PLANS)

    def plan(
        self, forward: Any, of_outputs: Sequence[Tensor | None], of_finals: Sequence[Tensor | None]
    ) -> Any:  # fmt: skip
        """The launch plan for these cotangents and others of their layout; `forward` is the plan of the scan."""
        key = tuple(None if c is None else (c.stride(), c.dtype) for c in (*of_outputs, *of_finals))
        return self._plans.get_or_build(key, lambda: self._prepare(forward, of_outputs, of_finals))

    def operands(
        self, inputs: Sequence[Any], kept: Sequence[Tensor], of_outputs: Sequence[Tensor | None]
    ) -> list[Any]:  # fmt: skip
        """The inputs of the adjoint scan; None for those that it does not read."""
        return [*inputs, *self._by_state(kept), *of_outputs]

    def gradients(self, outputs: Sequence[Tensor], finals: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The results of the adjoint scan as gradients by states and inputs, which torch sums to their shapes."""
        by_inputs = iter(outputs)
        return [*finals, *(None if dtype is None else next(by_inputs) for dtype in self._input_dtypes)]

    def _by_state(self, kept: Sequence[Any]) -> list[Any]:
        states: list[Any] = [None] * self._n_states
        for position, value in zip(self.kept_states, kept):
            states[position] = value
        return states

    def _prepare(
        self, forward: Any, of_outputs: Sequence[Tensor | None], of_finals: Sequence[Tensor | None]
    ) -> Any:  # fmt: skip
        cuda, first = cuda_user_scan(), self._n_inputs + self._n_states
        zeros = {first + n: 0.0 for n, c in enumerate(of_outputs) if c is None}
        spec = replace(self._spec, recurrence=with_constants(self._spec.recurrence, zeros))
        kept = self._by_state([new.layout for new in forward.layouts.outputs[len(of_outputs) :]])

        def layouts(cotangents: Sequence[Tensor | None], is_state: bool) -> list[Any]:
            return [
                None if c is None else cuda.layout_of(spec, _strides(c), _name(c.dtype), is_state=is_state)
                for c in cotangents
            ]

        arrays = cuda.ScanArrays(
            [
                *(None if x is None else x.reversed() for x in (*forward.layouts.inputs, *kept)),
                *layouts(of_outputs, False),
            ],
            [cuda.output_spec(spec, dtype) for dtype in self._input_dtypes if dtype is not None],
            layouts(of_finals, True),
            [None if dtype is None else cuda.final_spec(spec, dtype) for dtype in self._state_dtypes],
        )
        return cuda.LaunchPlan(spec, forward.placement, arrays)
