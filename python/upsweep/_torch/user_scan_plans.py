"""Scans by an update of tensors on a device that were prepared before, with their first derivative.

Kernels read tensors where they are, in their own dtype, and write results as their user has them; torch does
nothing but make memory for these. Derivatives of higher order, and whoever follows a derivative, go the way of
`user_scan`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from upsweep._torch import scan as torch_scan
from upsweep._torch.user_scan_derivatives import Derivative, is_wanted
from upsweep._user_scan.cached_calls import prepare_on_device
from upsweep._user_scan.problem import Problem, arranged

__all__ = ["TensorPlan", "kind"]

_DTYPES = frozenset((torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64))

LongWay = Callable[[Sequence[Any], Sequence[Any], Sequence[Tensor | None]], list[Tensor]]


def kind(value: Any) -> Hashable:
    """Equal for tensors that differ in nothing but where they are; None for what has to be looked at."""
    if type(value) not in (Tensor, torch.nn.Parameter) or value.dtype not in _DTYPES or value.is_neg():
        return None
    if value.layout is not torch.strided or value.is_nested:  # refused where it is looked at
        return None
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def _operand(value: Any) -> int | float | None:
    if isinstance(value, Tensor):
        return int(value.data_ptr())
    return None if value is None else float(value)


class TensorPlan:
    """A call of `scan` on tensors of a device.

    Parameters
    ----------
    states, inputs : sequence of Tensor or number
        What the call is given.
    half : torch.dtype
        What its halves of 16 bits are.
    is_tracked : bool
        Whether results have derivatives, by the tensors that require them.
    long_way : callable
        Finds gradients where a plan cannot: by states and inputs, of these and the cotangents.
    """

    def __init__(
        self, problem: Problem, states: Sequence[Any], inputs: Sequence[Any], half: torch.dtype,
        return_final: bool, is_tracked: bool, long_way: LongWay,
    ) -> None:  # fmt: skip
        traced = problem.traced
        self._structures = traced.output_structure, problem.state_structure
        self._returns_final, self.n_outputs = return_final, len(traced.output_dtypes)
        has_results = return_final or self.n_outputs > 0
        self._are_tensors = [isinstance(s, Tensor) for s in states]
        self._numbers = [None if isinstance(x, Tensor) else float(x) for x in inputs]  # in the formulas
        self.long_way, self.derivative = long_way, None
        if is_tracked and has_results and any(map(is_wanted, (*states, *inputs))):
            self.derivative = Derivative(problem, states, inputs)
        kept = self.derivative.kept if self.derivative is not None else ()
        self._scan = prepare_on_device(problem, return_final, keeps=kept, half=str(half).removeprefix("torch."))

    def run(self, states: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result of such a call on other tensors."""
        if self.derivative is not None:
            tensors = [value for value in (*states, *inputs) if isinstance(value, Tensor)]
            numbers = [value for value in states if not isinstance(value, Tensor)]
            results = _PlannedRun.apply(self, numbers, *tensors)
            made, last = results[: self.n_outputs], results[self.n_outputs :]
        else:
            made, last = self.start(states, inputs)
        ys = arranged(list(made), self._structures[0])
        return (ys, arranged(list(last), self._structures[1])) if self._returns_final else ys

    def start(self, states: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs with the states that are kept behind them, and last states."""
        with contextlib.closing(self._scan.again()) as call:
            return self._scan.run(call, [_operand(x) for x in inputs], [_operand(s) for s in states])

    def filled(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> tuple[list[Any], list[Any]]:
        """The states and inputs of a call, of its tensors and those of its states that are numbers."""
        given, rest = iter(tensors), iter(numbers)
        states = [next(given) if is_tensor else next(rest) for is_tensor in self._are_tensors]
        return states, [next(given) if number is None else number for number in self._numbers]

    def gradients(
        self, states: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """The gradients by states, then by inputs; `cotangents` are of outputs, then of last states."""
        is_plain = all(c is None or kind(c) is not None for c in cotangents)
        if self.derivative is None or not is_plain or torch.is_grad_enabled() or torch_scan.is_traced():
            return self.long_way(states, inputs, cotangents)
        of_outputs = cotangents[: self.n_outputs]
        last = cotangents[self.n_outputs :] or [None] * len(states)
        scan = self.derivative.prepared(self._scan, of_outputs, last)
        operands = self.derivative.arranged(inputs, kept, of_outputs)
        with contextlib.closing(scan.again()) as call:
            made, first = scan.run(
                call, [_operand(x) for x in operands], [0.0 if c is None else _operand(c) for c in last]
            )
        return self.derivative.of_arguments(made, first)


class _PlannedRun(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """A scan that was prepared, of tensors as their user gave them."""

    @staticmethod
    def forward(ctx: Any, plan: TensorPlan, numbers: Sequence[float], *tensors: Tensor) -> tuple[Tensor, ...]:
        made, last = plan.start(*plan.filled(tensors, numbers))
        ctx.plan, ctx.numbers, ctx.n_tensors = plan, numbers, len(tensors)
        ctx.save_for_backward(*tensors, *made[plan.n_outputs :])
        ctx.set_materialize_grads(False)
        return (*made[: plan.n_outputs], *(s for s in last if s is not None))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        states, inputs = ctx.plan.filled(saved[: ctx.n_tensors], ctx.numbers)
        found = ctx.plan.gradients(states, inputs, saved[ctx.n_tensors :], cotangents)
        return (None, None, *(g for g, v in zip(found, (*states, *inputs)) if isinstance(v, Tensor)))
