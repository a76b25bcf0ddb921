"""Compiled scans of CUDA tensors, with their first derivative.

The kernels read tensors in place, in their own dtype, and write results as the user gets them; torch only
allocates these. Derivatives of higher order, and traced derivatives, run through `user_scan_autograd`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from upsweep import _backends
from upsweep._compiler.recurrences.recurrence import adjoint, inputs_read, with_constants
from upsweep._core.user_scan import with_host_numbers
from upsweep._torch import executors
from upsweep._torch import scan as torch_scan
from upsweep._torch.operations import is_batched
from upsweep._torch.user_scan_autograd import gradients_of_any_order
from upsweep._user_scan.cached_calls import DeviceScan
from upsweep._user_scan.problem import Problem
from upsweep._utils.lru_cache import LRUCache

_MAX_PLANS = 16  # of combinations of cotangents and their layouts


def layout_key(value: Any) -> Hashable:
    """Equal for tensors that differ in their addresses alone; None for arguments that each call has to check."""
    if (
        type(value) not in (Tensor, torch.nn.Parameter)
        or value.dtype not in executors.NAMES
        or value.is_complex()
        or value.is_neg()
    ):
        return None
    if value.layout is not torch.strided or value.is_nested:  # the check refuses them
        return None
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def _operand(value: Any) -> int | float | None:
    if isinstance(value, Tensor):
        return int(value.data_ptr())
    number: int | float | None = value
    return number


class TensorScan(DeviceScan):
    """A call of `scan` on CUDA tensors and numbers; `half` is its 16-bit dtype."""

    def __init__(
        self, problem: Problem, states: Sequence[Any], inputs: Sequence[Any], half: torch.dtype,
        return_final: bool,
    ) -> None:  # fmt: skip
        self.n_outputs = len(problem.traced.output_dtypes)
        self._are_tensors = [isinstance(s, Tensor) for s in states]
        self._numbers = [None if isinstance(x, Tensor) else x for x in inputs]  # constants of the formula
        self._spec, self._derivative = problem.spec, None
        has_results = return_final or self.n_outputs > 0
        if torch.is_grad_enabled() and has_results and any(map(_needs_gradient, (*states, *inputs))):
            self._derivative = Derivative(problem, states, inputs)
        saved = self._derivative.saved_states if self._derivative is not None else ()
        super().__init__(problem, return_final, saved, executors.NAMES[half])

    _operand = staticmethod(_operand)

    def run(self, states: Sequence[Any], inputs: Sequence[Any], out: None = None) -> Any:
        """The result for other tensors."""
        if self._derivative is None:
            return super().run(states, inputs)
        tensors = [value for value in (*states, *inputs) if isinstance(value, Tensor)]
        numbers = [value for value in states if not isinstance(value, Tensor)]
        results = _CompiledRun.apply(self, numbers, *tensors)
        return self._arranged(list(results[: self.n_outputs]), list(results[self.n_outputs :]))

    def arguments(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> tuple[list[Any], list[Any]]:
        """The states and inputs of a call, from its tensors and the states that are numbers."""
        next_tensor, next_number = iter(tensors).__next__, iter(numbers).__next__
        states = [next_tensor() if is_tensor else next_number() for is_tensor in self._are_tensors]
        return states, [next_tensor() if number is None else number for number in self._numbers]

    def gradients(
        self, states: Sequence[Any], inputs: Sequence[Any], saved: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """The gradients by states, then by inputs; `cotangents` are those of outputs, then of final states."""
        is_plain = all(c is None or (layout_key(c) is not None and not is_batched(c)) for c in cotangents)
        if self._derivative is None or not is_plain or torch.is_grad_enabled() or torch_scan.is_traced():
            return gradients_of_any_order(self._spec, states, inputs, cotangents)
        of_finals = cotangents[self.n_outputs :] or [None] * len(states)
        return self._derivative.run(self.plan, inputs, saved, cotangents[: self.n_outputs], of_finals)


class _CompiledRun(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """A compiled scan of the user's tensors."""

    @staticmethod
    def forward(ctx: Any, scan: TensorScan, numbers: Sequence[float], *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, finals = scan.start(*scan.arguments(tensors, numbers))
        ctx.scan, ctx.numbers, ctx.n_tensors = scan, numbers, len(tensors)
        ctx.save_for_backward(*tensors, *outputs[scan.n_outputs :])
        ctx.set_materialize_grads(False)
        return (*outputs[: scan.n_outputs], *(s for s in finals if s is not None))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        states, inputs = ctx.scan.arguments(saved[: ctx.n_tensors], ctx.numbers)
        gradients = ctx.scan.gradients(states, inputs, saved[ctx.n_tensors :], cotangents)
        return (None, None, *(g for g, v in zip(gradients, (*states, *inputs)) if isinstance(v, Tensor)))


def _needs_gradient(value: Any) -> bool:
    """Whether an argument is a tensor that requires a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


class Derivative:
    """The adjoint scan of a call, which computes the gradients by the tensors that require them.

    `saved_states` are the states that it reads before each step, which the scan has to output.
    """

    def __init__(self, problem: Problem, states: Sequence[Any], inputs: Sequence[Any]) -> None:
        spec, self._n_inputs, self._n_states = problem.spec, len(inputs), len(states)

        def dtypes(values: Sequence[Any], shape: tuple[int, ...]) -> list[str | None]:
            """The dtypes that kernels write: that of the computation if torch sums the gradient over an axis."""
            wide, tracked = spec.dtype.name, [value if _needs_gradient(value) else None for value in values]
            return [v if v is None else executors.NAMES[v.dtype] if v.shape == shape else wide for v in tracked]

        self._input_dtypes, self._state_dtypes = dtypes(inputs, spec.shape), dtypes(states, spec.columns)
        whole = adjoint(spec.recurrence)
        outputs = tuple(y for y, dtype in zip(whole.outputs, self._input_dtypes) if dtype is not None)
        recurrence = with_host_numbers(replace(whole, outputs=outputs), problem.inputs)
        self._spec = replace(spec, recurrence=recurrence, reverse=not spec.reverse)
        read = inputs_read(recurrence)
        self.saved_states = [p for p in range(self._n_states) if self._n_inputs + p in read]
        self._plans: LRUCache[Any, Any] = LRUCache(_MAX_PLANS)

    def run(
        self, forward: Any, inputs: Sequence[Any], saved: Sequence[Tensor], of_outputs: Sequence[Tensor | None],
        of_finals: Sequence[Tensor | None],
    ) -> list[Tensor | None]:  # fmt: skip
        """Return the gradients by states and inputs, which torch sums to their shapes.

        `forward` is the plan of the scan. Cotangents of one layout share a launch plan.
        """
        key = tuple(None if c is None else (c.stride(), c.dtype) for c in (*of_outputs, *of_finals))
        plan = self._plans.get_or_build(key, lambda: self._prepare(forward, of_outputs, of_finals))
        operands = [*inputs, *self._by_state(saved), *of_outputs]
        with contextlib.closing(plan.context()) as context:
            outputs, finals = plan.run(
                context, [*map(_operand, operands)], [0.0 if c is None else _operand(c) for c in of_finals]
            )
        by_inputs = iter(outputs)
        return [*finals, *(None if dtype is None else next(by_inputs) for dtype in self._input_dtypes)]

    def _by_state(self, saved: Sequence[Any]) -> list[Any]:
        states: list[Any] = [None] * self._n_states
        for position, value in zip(self.saved_states, saved):
            states[position] = value
        return states

    def _prepare(
        self, forward: Any, of_outputs: Sequence[Tensor | None], of_finals: Sequence[Tensor | None]
    ) -> Any:
        cuda, first = _backends.cuda_user_scan, self._n_inputs + self._n_states
        zeros = {first + n: 0.0 for n, c in enumerate(of_outputs) if c is None}
        spec = replace(self._spec, recurrence=with_constants(self._spec.recurrence, zeros))
        saved = self._by_state([new.layout for new in forward.layouts.outputs[len(of_outputs) :]])

        def layouts(cotangents: Sequence[Tensor | None], is_state: bool) -> list[Any]:
            described = map(executors.describe, cotangents)
            return [d and cuda.layout_of(spec, d.strides, d.dtype, is_state=is_state) for d in described]

        arrays = cuda.ScanArrays(
            [
                *(None if x is None else x.reversed() for x in (*forward.layouts.inputs, *saved)),
                *layouts(of_outputs, False),
            ],
            [cuda.output_spec(spec, dtype) for dtype in self._input_dtypes if dtype is not None],
            layouts(of_finals, True),
            [None if dtype is None else cuda.final_spec(spec, dtype) for dtype in self._state_dtypes],
        )
        return cuda.LaunchPlan(spec, forward.placement, arrays)
