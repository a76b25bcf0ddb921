"""Collectives and scans over ranks that autograd records.

The first derivative of a scan of real numbers is a scan over ranks in the other direction, with no more passes
than that. With g the gradient of y, over all shards:

    gx[t] = g[t] + a[t+1] * gx[t+1],    ga[t] = gx[t] * y[t-1]

At its ends a shard needs the first factor of the next shard, and the last result of the one before: one
all-gather. Higher derivatives, derivatives of complex numbers and whatever else records tensors use
`AutogradScan.run_recorded`, a two-pass scan in operations that torch records.

Derivatives of collectives are collectives too. Each rank whose result is differentiated takes part in them,
whether its own tensors have gradients or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from upsweep._torch import aggregates, scan, scan_ops
from upsweep.distributed.communicator import Communicator, Meta
from upsweep.distributed.shard import pack_aggregate, unpack_aggregates

# ---- collectives -----------------------------------------------------------------------------------------------


def exchange(
    comm: Communicator, carry: aggregates.Parts, has_reset: bool, track: bool, inputs: Sequence[Any]
) -> tuple[list[aggregates.Parts], Tensor]:
    """Gather the aggregates of all ranks by one all-gather; return them and the tensor that they are parts of."""
    packed = pack_aggregate(carry, False, has_reset)
    if track:
        # A rank without elements or without parameters takes part in the derivatives of the others all the same.
        packed = packed if packed.requires_grad else packed.detach().requires_grad_()
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.numel() == 0:
                packed = _Join.apply(packed, tensor)
    gathered: Tensor = _AllGather.apply(packed, comm) if track else comm.all_gather(packed)
    multipliers, values, resets = unpack_aggregates(gathered, False, has_reset, carry[0].dtype)
    assert multipliers is not None
    resets = torch.zeros_like(values, dtype=torch.bool) if resets is None else resets
    return list(zip(multipliers, values, resets)), gathered


def all_reduce(comm: Communicator, tensor: Tensor, track: bool) -> Tensor:
    """Return the sum over all ranks."""
    if not track:
        return comm.messages.all_reduce(tensor)
    total: Tensor = _AllReduce.apply(tensor if tensor.requires_grad else tensor.detach().requires_grad_(), comm)
    return total


class _AllGather(Function):  # type: ignore[misc]  # mypy does not read torch
    """The stack of the tensors of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return comm.all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _AllReduce.apply(gradients[0], ctx.comm)[ctx.comm.rank], None


class _AllReduce(Function):  # type: ignore[misc]  # mypy does not read torch
    """The sum of the tensors of all ranks. Each rank has it, so its derivative sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return comm.messages.all_reduce(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _AllReduce.apply(gradients[0], ctx.comm), None


class _Join(Function):  # type: ignore[misc]  # mypy does not read torch
    """The first tensor, with a gradient of zeros for the second one, which autograd then computes too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(other)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (other,) = ctx.saved_tensors
        return _Join.apply(gradients[0], other), _Zeros.apply(gradients[0], other.shape, other.dtype, other.device)


class _Zeros(Function):  # type: ignore[misc]  # mypy does not read torch
    """Zeros that depend on a tensor, so that higher derivatives reach all ranks too."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        ctx.like = source.shape, source.dtype, source.device
        return torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Zeros.apply(gradients[0], *ctx.like), None, None, None


# ---- scans -----------------------------------------------------------------------------------------------------


def is_differentiable(checked: Any, tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether this is a scan of real numbers, with at least one step, that nothing but autograd records."""
    return (
        checked.dtype.is_floating_point and checked.real_factor and checked.shape[checked.axis] > 0
        and all(t is None or t is checked.reset or t.is_floating_point() for t in tensors)
        and not scan.is_traced() and all(map(scan.is_plain_tensor, tensors))
    )  # fmt: skip


def aggregate(call: Any, checked: Any) -> aggregates.Parts:
    """Return the aggregate of a shard, in operations that torch records; its value includes the initial state."""
    multiplier, value, reset = aggregates.reduce(checked, call.reverse, call.flush, call.n_threads)
    if checked.initial is not None:
        value = aggregates.apply(multiplier, value, reset, checked.initial)
    return multiplier, value, reset


@dataclass(frozen=True)
class AutogradScan:
    """A checked scan with the metadata of all ranks; `run` scans shards eagerly over the ranks."""

    call: Any  # scan.ScanCall
    comm: Communicator
    checked: Any
    all_meta: list[Meta]
    run: Callable[[Any], Any]

    @property
    def order(self) -> range:
        return self.comm.order(self.call.reverse)

    @property
    def position(self) -> int:
        return self.order.index(self.comm.rank)

    def on_any_rank(self, name: str) -> bool:
        """Whether the metadata of any rank have this flag."""
        return any(meta[name] for meta in self.all_meta)

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
        track = self.on_any_rank("requires_grad")
        inputs = (checked.x, checked.gates, checked.gamma, checked.initial, anchor)
        carry = carry or aggregate(call, checked)
        carries, gathered = exchange(comm, carry, self.on_any_rank("has_reset"), track, inputs)
        for rank in self.order:
            if rank == comm.rank and checked.initial is None and final is not None:
                checked.initial = final
            if not self.all_meta[rank]["empty"]:
                final = carries[rank][1] if final is None else aggregates.apply(*carries[rank], final)
        results = checked.run(None, call.reverse, call.exclusive, call.flush, 0, return_final, call.n_threads)
        results = list(results) if return_final else [results]
        if return_final:
            results[1] = torch.zeros_like(results[1]) if final is None else final.to(results[1].dtype)
        # Derivatives lead every rank to the all-gather, even if its results ignore it.
        return [_Join.apply(result, gathered) for result in results] if track else results


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
        results = recorded.run_eagerly(recorded.checked, recorded.on_any_rank("return_final"))
        results = results if recorded.on_any_rank("return_final") else (results,)
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
            results = recorded.run_recorded(checked, recorded.on_any_rank("return_final"), None, anchor)
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
        state = initial if before is None else before
        terms = scan_ops.factor_terms(gx, y, state, checked.reset, axis, reverse)
        if checked.gates is not None:
            g_gates = terms.to(checked.gates.dtype)
        else:
            g_gamma = terms.sum(axis, dtype=torch.float64).to(checked.gamma.dtype)
    if initial is not None:
        factor = _factor_at(checked, first)
        g_initial = scan_ops.initial_gradient(gx, factor, initial, checked.reset, axis, reverse)
    return gx.to(checked.x.dtype), g_gates, g_gamma, g_initial


def _transposed(recorded: AutogradScan, g: Tensor, gathered: Tensor, ahead: int) -> tuple[str, Any]:
    """Return the scan of g with the factors of the steps after: its name and the checked scan."""
    checked, axis = recorded.checked, recorded.checked.axis
    reset, reset_after = checked.reset, recorded.neighbour(gathered[:, 2], 1)
    if recorded.on_any_rank("has_reset"):
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
