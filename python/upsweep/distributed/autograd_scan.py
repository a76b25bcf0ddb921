"""Scans over ranks that autograd records.

The first derivative of a scan of real numbers is a scan over ranks in the other direction, with no more passes
than that. With g the gradient of y, over all shards:

    gx[t] = g[t] + a[t+1] * gx[t+1],    ga[t] = gx[t] * y[t-1]

At its ends a shard needs the first factor of the next shard, and the last result of the one before: one
all-gather. Higher derivatives, derivatives of complex numbers and whatever else records tensors use
`AutogradScan.run_recorded`, a two-pass scan in operations that torch records.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from upsweep._torch import aggregates, scan, scan_ops
from upsweep.distributed.autograd_collectives import exchange, joined
from upsweep.distributed.call import ScanCall
from upsweep.distributed.communicator import Communicator, Meta

__all__ = ["AutogradScan", "aggregate", "differentiable", "is_differentiable"]


def is_differentiable(checked: Any, tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether this is a scan of real numbers, with at least one step, that nothing but autograd records."""
    return (
        checked.dtype.is_floating_point and checked.real_factor and checked.shape[checked.axis] > 0
        and all(t is None or t is checked.reset or t.is_floating_point() for t in tensors)
        and not scan.is_traced() and all(map(scan.is_plain_tensor, tensors))
    )  # fmt: skip


def aggregate(call: ScanCall, checked: Any) -> aggregates.Parts:
    """Return the aggregate of a shard, in operations that torch records; its value includes the initial state."""
    multiplier, value, reset = aggregates.reduce(checked, call.reverse, call.flush, call.n_threads)
    if checked.initial is not None:
        value = aggregates.apply(multiplier, value, reset, checked.initial)
    return multiplier, value, reset


@dataclass(frozen=True)
class AutogradScan:
    """A checked scan with the metadata of all ranks; `run` scans shards eagerly over the ranks."""

    call: ScanCall
    comm: Communicator
    checked: Any
    all_meta: list[Meta]
    run: Callable[[ScanCall], Any]

    @property
    def order(self) -> range:
        return self.comm.order(self.call.reverse)

    @property
    def position(self) -> int:
        return self.order.index(self.comm.rank)

    @property
    def has_reset(self) -> bool:
        """Whether any rank has resets."""
        return any(meta["has_reset"] for meta in self.all_meta)

    @property
    def returns_final(self) -> bool:
        """Whether any rank returns the final state."""
        return any(meta["return_final"] for meta in self.all_meta)

    def neighbour(self, gathered: Tensor, offset: int) -> Tensor | None:
        """Return what the shard before this one (-1) or after it (1) sent; None if there is none."""
        position = self.position + offset
        return gathered[self.order[position]] if 0 <= position < len(self.order) else None

    def run_eagerly(self, checked: Any, return_final: bool, **changes: Any) -> Any:
        """Scan the shards of all ranks without recording; changes: other fields of the call."""
        call = replace(self.call, prepare=lambda _: checked, operands=None, return_final=return_final, **changes)
        return self.run(call)

    def run_recorded(
        self, checked: Any, return_final: bool, carry: aggregates.Parts | None, anchor: Tensor | None = None
    ) -> list[Tensor]:
        """Scan in two passes, in operations that autograd, the compiler and modes record.

        The derivative is a collective of all ranks; `anchor` is one more tensor that it leads to.
        """
        call, comm, final = self.call, self.comm, None
        track = any(meta["requires_grad"] for meta in self.all_meta)
        inputs = (checked.x, checked.gates, checked.gamma, checked.initial, anchor)
        carry = carry or aggregate(call, checked)
        carries, gathered = exchange(comm, carry, self.has_reset, track, inputs)
        for rank in self.order:
            if rank == comm.rank and checked.initial is None and final is not None:
                checked.initial = final
            if not self.all_meta[rank]["empty"]:
                final = carries[rank][1] if final is None else aggregates.apply(*carries[rank], final)
        results = checked.run(None, call.reverse, call.exclusive, call.flush, 0, return_final, call.n_threads)
        results = list(results) if return_final else [results]
        if return_final:
            results[1] = torch.zeros_like(results[1]) if final is None else final.to(results[1].dtype)
        return joined(results, gathered) if track else results


def differentiable(recorded: AutogradScan) -> Any:
    """Return the result of the call; differentiable on all ranks if it is on one."""
    checked = recorded.checked
    # Every rank's result depends on this tensor, so that every rank takes part in the derivative of the others.
    anchor = checked.x.new_zeros((0,), dtype=checked.dtype).requires_grad_()
    results = _Scan.apply(recorded, anchor, checked.x, checked.gates, checked.gamma, checked.initial)
    return results if recorded.call.return_final else results[0]


class _Scan(Function):  # type: ignore[misc]  # mypy does not read torch
    @staticmethod
    def forward(ctx: Any, recorded: AutogradScan, anchor: Tensor, *tensors: Tensor | None) -> Any:
        results = recorded.run_eagerly(recorded.checked, recorded.returns_final)
        results = results if recorded.returns_final else (results,)
        ctx.recorded = recorded
        ctx.save_for_backward(anchor, *tensors, results[0])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        anchor, *tensors, y = ctx.saved_tensors
        return None, None, *_Gradients.apply(ctx.recorded, anchor, *tensors, y.detach(), *gradients)


class _Gradients(Function):  # type: ignore[misc]  # mypy does not read torch
    """The gradients as one operation, so that the collectives of its derivative have one order on all ranks."""

    @staticmethod
    def forward(
        ctx: Any, recorded: AutogradScan, anchor: Tensor, x: Tensor, gates: Any, gamma: Any, initial: Any,
        y: Tensor, *gradients: Tensor,
    ) -> Any:  # fmt: skip
        ctx.recorded = recorded
        ctx.save_for_backward(anchor, x, gates, gamma, initial, *gradients)
        checked = _with_operands(recorded.checked, x, gates, gamma, initial)
        return _gradients(replace(recorded, checked=checked), y, *gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        create_graph, recorded = torch.is_grad_enabled(), ctx.recorded
        with torch.enable_grad():
            saved = [None if t is None else t if create_graph and t.requires_grad else t.detach().requires_grad_()
                     for t in ctx.saved_tensors]  # fmt: skip
            anchor, *operands = saved[:5]
            inputs = [t for t in saved[1:] if t is not None]
            checked = _with_operands(recorded.checked, *operands)
            results = recorded.run_recorded(checked, recorded.returns_final, None, anchor)
            firsts = torch.autograd.grad(
                results, [t for t in operands if t is not None], saved[5:], create_graph=True, allow_unused=True
            )
            cotangents = [h for t, h in zip(operands, gradients) if t is not None]
            pairs = [(first, h) for first, h in zip(firsts, cotangents) if first is not None and h is not None]
            outputs, cotangents = [first for first, _ in pairs], [h for _, h in pairs]
            seconds = iter(
                torch.autograd.grad(outputs, inputs, cotangents, create_graph=create_graph, allow_unused=True)
            )
        of_operands, of_gradients = ([None if t is None else next(seconds) for t in some]
                                     for some in (operands, saved[5:]))  # fmt: skip
        return None, None, *of_operands, None, *of_gradients


def _with_operands(checked: Any, x: Tensor, gates: Any, gamma: Any, initial: Any) -> Any:
    checked = copy(checked)
    checked.x, checked.gates, checked.gamma, checked.initial = x, gates, gamma, initial
    return checked


def _factor_at(checked: Any, step: int) -> Tensor:
    """Return the factor of a step, of the state's shape, in float64."""
    if checked.gates is not None:
        return checked.gates.select(checked.axis, step).double()
    if checked.gamma is not None:
        return checked.gamma.double()
    number = complex(checked.factor).real
    return torch.full(checked.state_shape, number, dtype=torch.float64, device=checked.x.device)


def _gradients(
    recorded: AutogradScan, y: Tensor, g: Tensor, g_final: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, gates, gamma and initial."""
    checked, reverse, comm = recorded.checked, recorded.call.reverse, recorded.comm
    axis, length = checked.axis, y.shape[checked.axis]
    first, last = (length - 1, 0) if reverse else (0, length - 1)
    ahead = -1 if reverse else 1
    first_reset = torch.zeros(checked.state_shape, dtype=torch.float64, device=y.device)
    if checked.reset is not None:
        first_reset += checked.reset.select(axis, first)
    ends = torch.stack((_factor_at(checked, first), y.select(axis, last).double(), first_reset))
    gathered = comm.all_gather(ends)
    if g_final is not None:  # every rank returns the final state, and adds to its gradient
        g_final = comm.messages.all_reduce(g_final)
        if recorded.position == comm.size - 1:
            at_last = scan_ops.only(last, length, axis, g)
            g = g + torch.where(at_last, g_final.to(g.dtype).unsqueeze(axis), 0)
    name, transposed = _transposed(recorded, g, gathered, ahead)
    gx = recorded.run_eagerly(transposed, False, name=name, reverse=not reverse)

    before, initial = recorded.neighbour(gathered[:, 1], -1), checked.initial
    g_gates = g_gamma = g_initial = None
    if checked.gates is not None or checked.gamma is not None:
        edge = before if before is not None else y.new_zeros(()) if initial is None else initial
        terms = gx * scan_ops.shifted(y, edge, axis, -ahead)
        unread = checked.reset
        if before is None and initial is None:
            at_first = scan_ops.only(first, length, axis, g)
            unread = at_first if unread is None else unread | at_first
        if unread is not None:
            terms = torch.where(unread, 0, terms)
        if checked.gates is not None:
            g_gates = terms.to(checked.gates.dtype)
        else:
            g_gamma = terms.sum(axis, dtype=torch.float64).to(checked.gamma.dtype)
    if initial is not None:
        g_initial = _factor_at(checked, first) * gx.select(axis, first)
        if checked.reset is not None:
            g_initial = torch.where(checked.reset.select(axis, first), 0, g_initial)
        g_initial = g_initial.to(initial.dtype)
    return gx.to(checked.x.dtype), g_gates, g_gamma, g_initial


def _transposed(recorded: AutogradScan, g: Tensor, gathered: Tensor, ahead: int) -> tuple[str, Any]:
    """Return the scan of g with the factors of the steps after: its name and the checked scan."""
    checked, axis = recorded.checked, recorded.checked.axis
    reset, reset_after = checked.reset, recorded.neighbour(gathered[:, 2], 1)
    if recorded.has_reset:
        reset = torch.zeros(checked.shape, dtype=torch.bool, device=g.device) if reset is None else reset
        edge = reset.new_zeros(()) if reset_after is None else reset_after != 0
        reset = scan_ops.shifted(reset, edge, axis, ahead)
    if recorded.call.name == "cumulative_sum":
        return "cumulative_sum", scan.prepare_sum(g, None, axis, reset, None)
    gates, factor_after = checked.gates, recorded.neighbour(gathered[:, 0], 1)
    if gates is None:
        own_factor = _factor_at(checked, 0)
        if factor_after is None or torch.equal(factor_after, own_factor):
            factor = checked.factor if checked.gamma is None else checked.gamma.unsqueeze(axis)
            return "linear_recurrence", scan.prepare_discounted(g, factor, axis, reset, None)
        gates = own_factor.unsqueeze(axis).expand(checked.shape)
    gates = scan_ops.shifted(gates, gates.new_ones(()) if factor_after is None else factor_after, axis, ahead)
    return "linear_recurrence", scan.prepare_gated(gates, g, axis, reset, None)
