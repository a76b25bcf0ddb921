"""The first derivative of a scan over ranks: a scan over ranks the other way, and no more passes than that.

With g the gradient of y, over all shards:

    gx[t] = g[t] + a[t+1] * gx[t+1],    ga[t] = gx[t] * y[t-1]

At its ends a shard needs the first factor of the next one, and the last result of the one before: one exchange.
What differentiates them again does so of a scan that looks twice, in operations that autograd follows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from upsweep._torch import scan, scan_ops
from upsweep.distributed.communicator import Ranks

__all__ = ["Call", "differentiable"]


@dataclass
class Call:
    """A scan of real numbers over ranks, as all of them know it."""

    name: str
    checked: Any  # `scans._Scan` of this rank's shard
    ranks: Ranks
    order: range  # of the ranks in the scan; each has steps
    reverse: bool
    with_reset: bool  # on some rank
    with_final: bool
    run: Callable[..., Any]  # scans shards over the ranks: name, checked, reverse, with the final state or not
    follow: Callable[[Any, Tensor], list[Tensor]]  # this scan, in operations that autograd follows

    @property
    def place(self) -> int:
        return self.order.index(self.ranks.rank)

    def neighbour(self, told: Tensor, by: int) -> Tensor | None:
        """What the shard before this one (-1) or behind it (1) told; None where there is none."""
        at = self.place + by
        return told[self.order[at]] if 0 <= at < len(self.order) else None


def differentiable(call: Call) -> list[Tensor]:
    """The result, and the final state where one wants it; differentiable on all ranks if on one."""
    checked = call.checked
    # From it every rank's result leads to the others', whether the rank has parameters or not.
    anchor = checked.x.new_zeros((0,), dtype=checked.dtype).requires_grad_()
    return list(_ShardedScan.apply(call, anchor, checked.x, checked.gates, checked.gamma, checked.initial))


class _ShardedScan(Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor, *tensors: Tensor | None) -> Any:
        y, final = call.run(call.name, call.checked, call.reverse, call.with_final)
        ctx.call = call
        ctx.save_for_backward(anchor, *tensors, y)
        return (y, final) if call.with_final else (y,)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        anchor, *tensors, y = ctx.saved_tensors
        return None, None, *_Gradients.apply(ctx.call, anchor, *tensors, y.detach(), *gradients)


class _Gradients(Function):  # type: ignore[misc]  # torch is not followed
    """The gradients as one operation: the exchanges of its own derivative are in one order on all ranks."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, anchor: Tensor, x: Tensor, gates: Any, gamma: Any, initial: Any, y: Tensor,
        *gradients: Tensor,
    ) -> Any:  # fmt: skip
        ctx.call = call
        ctx.save_for_backward(anchor, x, gates, gamma, initial, *gradients)
        return _gradients(_of(call, x, gates, gamma, initial), y, *gradients)

    @staticmethod
    def backward(ctx: Any, *seconds: Any) -> Any:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            saved = [None if t is None else t if again and t.requires_grad else t.detach().requires_grad_()
                     for t in ctx.saved_tensors]  # fmt: skip
            anchor, *operands = saved[:5]
            given = [t for t in saved[1:] if t is not None]
            results = ctx.call.follow(_of(ctx.call, *operands).checked, anchor)
            firsts = torch.autograd.grad(
                results, [t for t in operands if t is not None], saved[5:], create_graph=True, allow_unused=True
            )
            wanted = [h for t, h in zip(operands, seconds) if t is not None]
            pairs = [(first, h) for first, h in zip(firsts, wanted) if first is not None and h is not None]
            found = iter(
                torch.autograd.grad(
                    [first for first, _ in pairs],
                    given,
                    [h for _, h in pairs],
                    create_graph=again,
                    allow_unused=True,
                )
            )
        of_operands, of_gradients = ([None if t is None else next(found) for t in some]
                                     for some in (operands, saved[5:]))  # fmt: skip
        return None, None, *of_operands, None, *of_gradients


def _of(call: Call, x: Tensor, gates: Any, gamma: Any, initial: Any) -> Call:
    """The call with these operands."""
    checked = copy(call.checked)
    checked.x, checked.gates, checked.gamma, checked.initial = x, gates, gamma, initial
    return replace(call, checked=checked)


def _factor_at(checked: Any, step: int) -> Tensor:
    """The factor of a step, of the state's shape, in float64."""
    if checked.gates is not None:
        return checked.gates.select(checked.axis, step).double()
    if checked.gamma is not None:
        return checked.gamma.double()
    number = complex(checked.factor).real
    return torch.full(checked.state_shape, number, dtype=torch.float64, device=checked.x.device)


def _gradients(call: Call, y: Tensor, g: Tensor, g_final: Tensor | None = None) -> tuple[Tensor | None, ...]:
    """Of x, gates, gamma and initial."""
    checked, axis, length = call.checked, call.checked.axis, y.shape[call.checked.axis]
    first, last = (length - 1, 0) if call.reverse else (0, length - 1)
    ahead = -1 if call.reverse else 1
    dropped = torch.zeros(checked.state_shape, dtype=torch.float64, device=y.device)
    if checked.reset is not None:
        dropped += checked.reset.select(axis, first)
    heard = call.ranks.gather(torch.stack((_factor_at(checked, first), y.select(axis, last).double(), dropped)))
    if g_final is not None:  # each rank has the state, and adds to its gradient
        g_final = call.ranks.sum(g_final)
        if call.place == len(call.order) - 1:
            at_last = scan_ops._only(last, length, axis, g)
            g = g + torch.where(at_last, g_final.to(g.dtype).unsqueeze(axis), 0)
    name, turned = _turned(call, g, heard, ahead)
    gx = call.run(name, turned, not call.reverse, False)[0]

    before, initial = call.neighbour(heard[:, 1], -1), checked.initial
    g_gates = g_gamma = g_initial = None
    if checked.gates is not None or checked.gamma is not None:
        edge = before if before is not None else y.new_zeros(()) if initial is None else initial
        terms = gx * scan_ops._shifted(y, edge, axis, -ahead)
        unread = checked.reset
        if before is None and initial is None:
            at_first = scan_ops._only(first, length, axis, g)
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


def _turned(call: Call, g: Tensor, heard: Tensor, ahead: int) -> tuple[str, Any]:
    """The scan of g with the factors of the steps behind: its name and what it scans."""
    checked, axis = call.checked, call.checked.axis
    reset, dropped = checked.reset, call.neighbour(heard[:, 2], 1)
    if call.with_reset:
        reset = torch.zeros(checked.shape, dtype=torch.bool, device=g.device) if reset is None else reset
        edge = reset.new_zeros(()) if dropped is None else dropped != 0
        reset = scan_ops._shifted(reset, edge, axis, ahead)
    if call.name == "cumulative_sum":
        return call.name, scan.prepare_sum(g, None, axis, reset, None)
    gates, behind = checked.gates, call.neighbour(heard[:, 0], 1)
    if gates is None:
        mine = _factor_at(checked, 0)
        if behind is None or torch.equal(behind, mine):
            factor = checked.factor if checked.gamma is None else checked.gamma.unsqueeze(axis)
            return "linear_recurrence", scan.prepare_discounted(g, factor, axis, reset, None)
        gates = mine.unsqueeze(axis).expand(checked.shape)
    gates = scan_ops._shifted(gates, gates.new_ones(()) if behind is None else behind, axis, ahead)
    return "linear_recurrence", scan.prepare_gated(gates, g, axis, reset, None)
