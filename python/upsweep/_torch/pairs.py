"""Reductions over pairs of torch tensors, with gradients of every order.

Sums are functions of autograd whose derivatives are sums over pairs again; minima and maxima are their formula at
the pairs that were chosen. Tensors on the CPU are read where they are, as numpy's arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from upsweep import _backends
from upsweep._compiler.formulas import adjoint
from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.formulas.reduction import PairReduction, outputs
from upsweep._torch import executors, scan

__all__ = ["numbers", "reduce", "solve", "value_and_grad"]


@dataclass(frozen=True)
class _Job:
    """A reduction of tensors of these sizes."""

    reduction: PairReduction
    n_i: int
    n_j: int
    batch: tuple[int, ...]
    triples: Callable[[str], Any]  # of the rows that remain: what engines are told of `ranges`
    n_threads: int | None
    mask: int | None = (
        None  # the place of a tensor that is 0 for rows whose derivatives are to be 0, whatever they are
    )

    def of(self, reduction: PairReduction) -> _Job:
        return replace(self, reduction=reduction)

    def masked(self, rows: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """A derivative by rows, 0 where the mask is."""
        return rows if self.mask is None else torch.where(tensors[self.mask] > 0, rows, torch.zeros_like(rows))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, without gradients, where the tensors are."""
        triple = self.triples(self.reduction.rows)
        tensors = [executors._resolved(tensor) for tensor in tensors]
        if tensors[0].is_cuda:
            return self._run_on_cuda(tensors, triple)
        results = _backends.run_pairs(
            self.reduction, [tensor.detach().numpy() for tensor in tensors], self.n_i, self.n_j, self.batch,
            triple, n_threads=self.n_threads,
        )  # fmt: skip
        return tuple(torch.from_numpy(part) for part in results)

    def _run_on_cuda(self, tensors: Sequence[Tensor], triple: Any) -> tuple[Tensor, ...]:
        device, n_rows = tensors[0].device, self.n_i if self.reduction.rows == "i" else self.n_j
        results = tuple(
            torch.empty(
                (*self.batch, n_rows, dim),
                dtype=tensors[0].dtype if kind == "float" else torch.int64,
                device=device,
            )
            for dim, kind in outputs(self.reduction)
        )
        _backends.run_cuda_pairs(
            self.reduction, [executors._described(tensor) for tensor in tensors],
            [executors._described(result) for result in results], self.n_i, self.n_j, self.batch, triple,
            device=device.index, stream=torch._C._cuda_getCurrentRawStream(device.index),
            allocate=lambda n_bytes: executors._workspace(n_bytes, device),
        )  # fmt: skip
        return results


def reduce(call: Any, arrays: Sequence[Any], ranges: Any, n_threads: int | None) -> tuple[Tensor, ...]:
    """The results of a call on tensors.

    Raises
    ------
    TypeError
        Arrays of another library, of two dtypes, or of a dtype that is not reduced.
    ValueError
        Tensors of two devices, or of sizes that do not go together.
    """
    scan.reject_jit_trace("reductions over pairs")
    call.check_number(len(arrays))
    tensors = [_tensor(call, place, array) for place, array in enumerate(arrays)]
    dtype = call.check_dtypes([str(tensor.dtype).removeprefix("torch.") for tensor in tensors])
    for each, tensor in zip(call.inputs, tensors):
        if tensor.device != tensors[0].device:
            raise ValueError(f"{each.name}: is on {tensor.device}, {call.inputs[0].name} on {tensors[0].device}")
    if tensors[0].device.type not in ("cpu", "cuda"):
        raise TypeError(f"{call.inputs[0].name}: expected tensors on the CPU or on CUDA, got {tensors[0].device}")
    if dtype in ("float16", "bfloat16") and not tensors[0].is_cuda:
        raise TypeError(f"{call.inputs[0].name}: {dtype} is reduced on CUDA only; convert to float32")
    sizes, ready = call.measure(tensors)
    job = _Job(
        call.of(dtype), sizes.n_i, sizes.n_j, sizes.batch, lambda rows: call.triple(ranges, sizes, rows), n_threads
    )  # fmt: skip
    if call.reduction in adjoint.SUMS or call.reduction not in adjoint.DIFFERENTIABLE or not _is_watched(ready):
        return _reduced(job, ready)
    return _chosen(job, ready, call)


def _tensor(call: Any, place: int, value: Any) -> Tensor:
    return scan._tensor(value, call.inputs[place].name, None)


# ---- sums ------------------------------------------------------------------------------------------------------


def _is_watched(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd, or a transform of functions, has to know what is done."""
    return (
        (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def _reduced(job: _Job, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if _is_watched(tensors):
        results: tuple[Tensor, ...] = _Reduction.apply(job, *tensors)
        return results
    return job.run(tensors)


class _Reduction(torch.autograd.Function):  # type: ignore[misc]  # torch is not read by the type checker
    """A reduction; the derivatives of a sum are of the same kind, others have none here."""

    @staticmethod
    def forward(job: _Job, *tensors: Tensor) -> tuple[Tensor, ...]:
        return job.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.job, *tensors = inputs
        if ctx.job.reduction.reduction in adjoint.SUMS:
            ctx.save_for_backward(*tensors, *output)
            ctx.save_for_forward(*tensors, *output)
        else:
            ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        job, (*tensors, result) = ctx.job, ctx.saved_tensors
        extras: list[Tensor] | None = None
        gradients: list[Tensor | None] = [None]
        for place, tensor in enumerate(tensors):
            wanted = _variable(job, place)
            if wanted is None or not ctx.needs_input_grad[place + 1]:
                gradients.append(None)
                continue
            if extras is None:
                extras = _extras(job, tensors, result)
            pulled = adjoint.pullback(job.reduction, wanted, len(tensors))
            (gradient,) = _reduced(job.of(pulled), [*tensors, cotangent, *extras])
            gradients.append(_collected(job.masked(gradient, tensors), tensor))
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        job, (*tensors, result) = ctx.job, ctx.saved_tensors
        moving = [
            (_variable(job, place), tangent) for place, tangent in enumerate(tangents) if tangent is not None
        ]
        known = [(wanted, tangent) for wanted, tangent in moving if wanted is not None]
        pushed = adjoint.pushforward(job.reduction, [wanted for wanted, _ in known], len(tensors))
        given = [*tensors, *[tangent for _, tangent in known], *_extras(job, tensors, result)]
        (change,) = _reduced(job.of(pushed), given)
        return (job.masked(change, tensors),)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], job: _Job, *tensors: Tensor) -> Any:
        """One batch dimension more, in front."""
        wide = [_moved(tensor, dim, len(job.batch)) for tensor, dim in zip(tensors, in_dims[1:])]

        def triples(rows: str) -> Any:
            each = job.triples(rows)
            return each * info.batch_size if isinstance(each, list) else each

        results = _reduced(replace(job, batch=(info.batch_size, *job.batch), triples=triples), wide)
        return results, (0,) * len(results)


def _variable(job: _Job, place: int) -> Node | None:
    return next((v for v in job.reduction.variables if v.static[0] == place), None)


def _moved(tensor: Tensor, dim: int | None, n_batch: int) -> Tensor:
    """The tensor with a batch dimension of vmap in front: 1 if it has none; plain parameters need none."""
    if dim is None:
        return tensor if tensor.ndim == 1 else tensor[None]
    tensor = tensor.movedim(dim, 0)
    if tensor.ndim > 2:
        return tensor
    return tensor.reshape(tensor.shape[0], *(1,) * (n_batch + 1), tensor.shape[1])


def _extras(job: _Job, tensors: Sequence[Tensor], result: Tensor) -> list[Tensor]:
    """What pullbacks read behind the cotangent."""
    if job.reduction.reduction == "logsumexp":
        return [_finite(result)]
    if job.reduction.reduction == "sumsoftmaxweight":
        (log_totals,) = _reduced(job.of(adjoint.log_total(job.reduction)), tensors)
        return [_finite(log_totals), result]
    return []


def _finite(log_totals: Tensor) -> Tensor:
    """With +inf for the -inf of rows that sum to nothing, so that their pairs have no share: exp(F - inf) = 0."""
    return torch.where(torch.isneginf(log_totals), torch.full_like(log_totals, torch.inf), log_totals)


def _collected(gradient: Tensor, tensor: Tensor) -> Tensor:
    """The gradient (batch, n, dim) summed over what the tensor was broadcast along; parameters have one row."""
    wide = tensor if tensor.ndim > 1 else tensor[(None,) * (gradient.ndim - 1)]
    axes = [axis for axis in range(gradient.ndim - 1) if wide.shape[axis] == 1 and gradient.shape[axis] != 1]
    if axes:
        gradient = gradient.sum(axes, keepdim=True, dtype=torch.float64).to(gradient.dtype)
    return gradient.reshape(tensor.shape)


# ---- extremes --------------------------------------------------------------------------------------------------


class _Attached(torch.autograd.Function):  # type: ignore[misc]  # the same
    """The first argument's values with the second's derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, tracked: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        return None, cotangent

    @staticmethod
    def jvp(ctx: Any, _: Tensor, tangent: Tensor) -> Tensor:
        return tangent.clone()


def _chosen(job: _Job, tensors: Sequence[Tensor], call: Any) -> tuple[Tensor, ...]:
    """Extremes and their places, whose derivatives are those of the formula at these places."""
    quiet = [tensor.detach() for tensor in tensors]
    results = _reduced(job, quiet)
    if len(results) > 1:
        values, places = results
    else:
        arg = replace(job.reduction, reduction=f"arg{job.reduction.reduction}")
        values, (places,) = results[0], _reduced(job.of(arg), quiet)
    n_rows, n_columns = (job.n_i, job.n_j) if job.reduction.rows == "i" else (job.n_j, job.n_i)
    if n_columns == 0 or n_rows == 0:
        return results
    k, dim = max(job.reduction.k, 1), job.reduction.formula.dim
    places = places.reshape(*job.batch, n_rows, k, dim)
    tracked = []
    for feature in range(dim):
        chosen = places[..., feature].reshape(*job.batch, n_rows * k)
        paired = [_paired(job, call.inputs[n].kind, tensor, chosen, k) for n, tensor in enumerate(tensors)]
        formula = adjoint.at_selected_pairs(job.reduction, feature)
        # Where nothing was chosen the formula and its derivatives may be anything.
        mask = (chosen >= 0).to(values.dtype)[..., None]
        here = _Job(formula, n_rows * k, 1, job.batch, lambda rows: None, job.n_threads, mask=len(paired))
        (part,) = _reduced(here, [*paired, mask])
        tracked.append(here.masked(part, [*paired, mask])[..., 0])
    stacked = torch.stack(tracked, dim=-1).reshape(values.shape)
    return (_Attached.apply(values, stacked), *results[1:])


def _paired(job: _Job, kind: str, tensor: Tensor, chosen: Tensor, k: int) -> Tensor:
    """A tensor with the row or the column of each chosen pair."""
    if kind == "p":
        return tensor
    wide = tensor.expand(*job.batch, *tensor.shape[-2:])
    if kind == job.reduction.rows:
        return wide.repeat_interleave(k, dim=-2) if k > 1 else wide
    # By an index over the whole batch: its derivative is added up in a fixed order, gather's on CUDA is not.
    entries = torch.arange(math.prod(job.batch), device=chosen.device).reshape(*job.batch, 1)
    places = (chosen.clamp(min=0) + entries * wide.shape[-2]).reshape(-1)
    return wide.reshape(-1, wide.shape[-1])[places].reshape(*chosen.shape, wide.shape[-1])


# ---- numbers ---------------------------------------------------------------------------------------------------

_numbers: dict[Any, Tensor] = {}
_MOST_NUMBERS = 256


def numbers(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Parameters that are plain numbers. On a device they are kept: a copy from the host would wait for it."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    key = values, dtype, device
    known = _numbers.get(key)
    if known is None:
        # Made by kernels and not by a copy, so that a graph that is being captured takes them too.
        with torch.inference_mode(False), torch.no_grad():
            known = torch.cat([torch.full((1,), value, dtype=dtype, device=device) for value in values])
        if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            if len(_numbers) >= _MOST_NUMBERS:
                _numbers.clear()
            _numbers[key] = known  # a graph's own memory is its own
    return known


# ---- explicit gradients, linear systems ------------------------------------------------------------------------


def value_and_grad(
    call: Any, arrays: Sequence[Any], cotangent: Any, places: Sequence[int], ranges: Any, n_threads: int | None
) -> tuple[Any, tuple[Tensor, ...]]:
    """The result, and its gradients in the tensors at these places."""
    leaves = [_tensor(call, place, array).detach().requires_grad_() for place, array in enumerate(arrays)]
    with torch.enable_grad():
        result = call.shaped(reduce(call, leaves, ranges, n_threads))
    values = result[0] if isinstance(result, tuple) else result
    cotangent = torch.ones_like(values) if cotangent is None else cotangent
    if values.requires_grad:
        found = torch.autograd.grad(values, [leaves[place] for place in places], cotangent, allow_unused=True)
    else:
        found = (None,) * len(places)
    gradients = tuple(
        torch.zeros_like(leaves[place]) if part is None else part for place, part in zip(places, found)
    )
    detached = tuple(part.detach() for part in result) if isinstance(result, tuple) else result.detach()
    return detached, gradients


class _Inverse(torch.autograd.Function):  # type: ignore[misc]  # the same
    """What a symmetric matrix takes to the argument; the matrix itself is taken as constant."""

    @staticmethod
    def forward(ctx: Any, solver: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
        ctx.solver = solver
        with torch.no_grad():
            return solver(right.detach())

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        return None, _Inverse.apply(ctx.solver, cotangent)


def solve(apply: Callable[[Tensor], Tensor], b: Tensor, solver: Callable[[Tensor], Tensor]) -> Tensor:
    """The solution of ``apply(a) = b``, with gradients in b and in all that `apply` reads, to second order.

    A step of Newton's method from a solution, a + inverse(b - apply(a)), does not change its value and gives it
    the right first derivative; from there, another gives it the right second one.
    """
    with torch.no_grad():
        a = solver(b.detach())
    if not torch.is_grad_enabled():
        return a
    for _ in range(2):
        residual = b - apply(a)
        if not residual.requires_grad:
            return a
        a = a + _Inverse.apply(solver, residual)
    return a
