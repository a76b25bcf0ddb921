"""Reductions over pairs of torch tensors, with derivatives of every order by autograd, and vmap.

A sum is an autograd function whose derivatives are sums over pairs again. Extremes are differentiated through
their formula at the selected pairs. `pairs.function.PairFunction` checks the arguments; a problem here is its
`PairProblem`. Tensors on the CPU are read in place, as numpy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from upsweep import _backends
from upsweep._compiler.cuda.pairs.sizes import FLOAT16, FLOAT16_VALUES
from upsweep._compiler.formulas import adjoint
from upsweep._compiler.formulas.reduction import outputs
from upsweep._torch import executors, operations, scan
from upsweep._torch.graph_breaks import graph_break
from upsweep._utils.lru_cache import LRUCache

MAX_SAVED_FEATURES = 8  # of gradients that are computed with a sum: more take as long as a sum of their own
Problem = Any  # upsweep.pairs.function.PairProblem
Function = Any  # upsweep.pairs.function.PairFunction


@graph_break("reductions over pairs compile kernels of their own, and run in Python")
def reduce(function: Function, arrays: Sequence[Any], ranges: Any, n_threads: int | None) -> tuple[Tensor, ...]:
    """The results of a call on tensors, after the checks of their devices."""
    if torch.compiler.is_dynamo_compiling():
        from upsweep._torch import compiler_disabled

        return compiler_disabled.reduce(function, arrays, ranges, n_threads)
    scan.reject_jit_trace("reductions over pairs")
    tensors = _tensors(function, arrays)
    name, device = function.inputs[0].name, tensors[0].device
    for each, tensor in zip(function.inputs, tensors):
        if tensor.device != device:
            raise scan.device_error(each.name, tensor, tensors[0], name)
    executors.check_device(tensors[0], name)
    dtypes = [executors.NAMES[tensor.dtype] for tensor in tensors]
    problem, padded = function.problem(tensors, dtypes, tensors[0].is_cuda, ranges, n_threads)
    is_sum = function.reduction in adjoint.SUMS or function.reduction not in adjoint.DIFFERENTIABLE
    if is_sum or not (_is_transformed() or scan.requires_autograd(padded)):
        return _reduced(problem, padded)
    return _extremes(problem, padded, [each.kind for each in function.inputs])


def _tensors(function: Function, arrays: Sequence[Any]) -> list[Tensor]:
    return [scan.as_tensor(array, each.name, None) for each, array in zip(function.inputs, arrays)]


def _run(problem: Problem, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results, without derivatives, on the device of the tensors."""
    tensors = [executors.resolve(tensor) for tensor in tensors]
    if not tensors[0].is_cuda:
        return tuple(map(torch.from_numpy, problem.run([tensor.detach().numpy() for tensor in tensors])))
    reduction, (n_i, n_j, batch), device = problem.reduction, problem.sizes, tensors[0].device
    shape = (*batch, n_i if reduction.rows == "i" else n_j)
    results = tuple(
        torch.empty((*shape, dim), dtype=tensors[0].dtype if kind == "float" else torch.int64, device=device)
        for dim, kind in outputs(reduction)
    )
    _backends.cuda_pairs_launch.run(
        reduction, [*map(executors.describe, tensors)], [*map(executors.describe, results)], n_i, n_j, batch,
        problem.intervals(reduction.rows), **executors.TensorContext(tensors[0]).resources,
    )  # fmt: skip
    return results


def _is_transformed() -> bool:
    """Whether a function transform, or forward-mode differentiation, has to record the call."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _reduced(problem: Problem, tensors: Sequence[Tensor], mask: int | None = None) -> tuple[Tensor, ...]:
    """The results with derivatives; these are 0 for rows where the tensor at position `mask` is 0."""
    results: tuple[Tensor, ...]
    if _is_transformed():
        results = _Reduction.apply(problem, mask, *tensors)
    elif scan.requires_autograd(tensors):
        results = _eager(problem, mask, *tensors)
    else:
        results = _run(problem, tensors)
    return results


def _masked(rows: Tensor, tensors: Sequence[Tensor], mask: int | None) -> Tensor:
    return rows if mask is None else torch.where(tensors[mask] > 0, rows, torch.zeros_like(rows))


class _Reduction(torch.autograd.Function):  # type: ignore[misc]  # torch is not read by the type checker
    """A reduction. The derivatives of sums are sums; other reductions have none here."""

    @staticmethod
    def forward(problem: Problem, mask: int | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _run(problem, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.problem, ctx.mask, *tensors = inputs
        if ctx.problem.reduction.reduction in adjoint.SUMS:
            # Derivatives of plain sums do not read the result, which may be changed in place then.
            read = () if ctx.problem.reduction.reduction == "sum" else output
            ctx.save_for_backward(*tensors, *read)
            ctx.save_for_forward(*tensors, *read)
        else:
            ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        problem, mask, n_arrays = ctx.problem, ctx.mask, len(ctx.needs_input_grad) - 2
        tensors, saved = ctx.saved_tensors[:n_arrays], ctx.saved_tensors[n_arrays:]
        # With create_graph=True, a gradient needs the derivatives of its formula.
        row_gradients = {} if torch.is_grad_enabled() else dict(zip(getattr(ctx, "row_positions", ()), saved))
        positions = tuple([n for n in range(len(tensors)) if ctx.needs_input_grad[n + 2]])
        pullbacks = dict(adjoint.pullbacks(problem.reduction, positions, len(tensors)))
        operands = [*tensors, cotangent, *_residuals(problem, tensors, saved)] if pullbacks else []
        gradients: list[Tensor | None] = [None] * (2 + len(tensors))
        for position in positions:
            tensor = tensors[position]
            if position not in pullbacks:
                # 0, so that torch.autograd.grad takes an input that drops out of the formula.
                gradients[position + 2] = torch.zeros_like(tensor)
                continue
            if position in row_gradients:
                gradient = cotangent * row_gradients[position]
            else:
                (gradient,) = _reduced(problem.with_reduction(pullbacks[position]), operands, mask)
            gradient = _masked(gradient, tensors, mask)
            axes = adjoint.broadcast_axes(gradient.shape, tensor.shape)
            if axes:
                gradient = gradient.sum(axes, keepdim=True, dtype=torch.float64).to(gradient.dtype)
            gradients[position + 2] = gradient.reshape(tensor.shape)
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        problem, n_arrays = ctx.problem, len(tangents) - 2
        tensors, saved = ctx.saved_tensors[:n_arrays], ctx.saved_tensors[n_arrays:]
        moving = tuple([n for n, tangent in enumerate(tangents[2:]) if tangent is not None])
        pushed = adjoint.pushforward(problem.reduction, moving, len(tensors))
        read = {v.static[0] for v in problem.reduction.variables}
        of_read = [tangents[n + 2] for n in moving if n in read]
        operands = [*tensors, *of_read, *_residuals(problem, tensors, saved)]
        (change,) = _reduced(problem.with_reduction(pushed), operands, ctx.mask)
        return (_masked(change, tensors, ctx.mask),)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], problem: Problem, mask: int | None, *tensors: Tensor
    ) -> Any:
        """The same reduction with one more batch dimension, the first."""
        n_batch = len(problem.sizes.batch)
        wide = [_with_vmap_batch(tensor, dim, n_batch) for tensor, dim in zip(tensors, in_dims[2:])]

        def intervals(rows: str) -> Any:
            each = problem.intervals(rows)
            return each * info.batch_size if isinstance(each, list) else each

        sizes = problem.sizes._replace(batch=(info.batch_size, *problem.sizes.batch))
        results = _reduced(replace(problem, sizes=sizes, intervals=intervals), wide, mask)
        return results, (0,) * len(results)


def _forward(ctx: Any, problem: Problem, mask: int | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results; a backward pass is likely, so they come with gradients that take little more then."""
    dims = _row_gradients(problem, ctx.needs_input_grad[2:])
    if not dims:
        results = _run(problem, tensors)
        _Reduction.setup_context(ctx, (problem, mask, *tensors), results)
        return results
    (both,) = _run(problem.with_reduction(adjoint.with_gradients(problem.reduction, tuple(dims))), tensors)
    total, *saved_gradients = both.split([1, *dims.values()], -1)
    ctx.problem, ctx.mask, ctx.row_positions = problem, mask, tuple(dims)
    ctx.save_for_backward(*tensors, *saved_gradients)
    return (total.clone(memory_format=torch.contiguous_format),)


def _row_gradients(problem: Problem, needed: Sequence[bool]) -> dict[int, int]:
    """The dims, by position, of the row variables whose gradients are computed with the result.

    Both together take little more time than the gradients alone. Results of half precision would be rounded twice.
    Precisions of `FLOAT16` have kernels of few results: with more, the sum itself would be computed by others.
    """
    reduction = problem.reduction
    if reduction.reduction != "sum" or reduction.formula.dim != 1 or reduction.dtype not in ("float32", "float64"):
        return {}
    dims = {
        v.static[0]: v.dim for v in reduction.variables if v.static[1] == reduction.rows and needed[v.static[0]]
    }
    most = FLOAT16_VALUES[0] - 1 if reduction.precision in FLOAT16 else MAX_SAVED_FEATURES
    return dims if sum(dims.values()) <= most else {}


_eager = operations.differentiable(forward=_forward, backward=_Reduction.backward).apply


def _with_vmap_batch(tensor: Tensor, dim: int | None, n_batch: int) -> Tensor:
    """The tensor with vmap's batch dimension in front: of size 1 if it has none; parameters need none."""
    if dim is None:
        return tensor if tensor.ndim == 1 else tensor[None]
    tensor = tensor.movedim(dim, 0)
    if tensor.ndim > 2:
        return tensor
    return tensor.reshape(tensor.shape[0], *(1,) * (n_batch + 1), tensor.shape[1])


def _residuals(problem: Problem, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """What pullbacks of exponential sums, which save their result, read after the cotangent."""
    if problem.reduction.reduction == "logsumexp":
        return [_finite(saved[0])]
    if problem.reduction.reduction == "sumsoftmaxweight":
        (log_totals,) = _reduced(problem.with_reduction(adjoint.log_total(problem.reduction)), tensors)
        return [_finite(log_totals), saved[0]]
    return []


def _finite(log_totals: Tensor) -> Tensor:
    """+inf instead of the -inf of rows without pairs, so that exp(F - inf) = 0."""
    return torch.where(torch.isneginf(log_totals), torch.full_like(log_totals, torch.inf), log_totals)


class _Attached(torch.autograd.Function):  # type: ignore[misc]  # the same
    """The values of the first argument with the derivative of the second."""

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


def _extremes(problem: Problem, tensors: Sequence[Tensor], kinds: Sequence[str]) -> tuple[Tensor, ...]:
    """Extremes and their indices. The derivatives of the values are those of the formula at the selected pairs."""
    reduction, (n_i, n_j, batch) = problem.reduction, problem.sizes
    detached = [tensor.detach() for tensor in tensors]
    results = _reduced(problem, detached)
    if len(results) > 1:
        values, indices = results
    else:
        arg = problem.with_reduction(replace(reduction, reduction=f"arg{reduction.reduction}"))
        values, (indices,) = results[0], _reduced(arg, detached)
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    if n_columns == 0 or n_rows == 0:
        return results
    k, dim = max(reduction.k, 1), reduction.formula.dim
    indices = indices.reshape(*batch, n_rows, k, dim)
    at_pairs = replace(problem, sizes=problem.sizes._replace(n_i=n_rows * k, n_j=1), intervals=lambda rows: None)
    tracked = []
    for feature in range(dim):
        columns = indices[..., feature].reshape(*batch, n_rows * k)
        operands = [
            tensor if kind == "p" else _gathered(tensor, batch, None if kind == reduction.rows else columns, k)
            for kind, tensor in zip(kinds, tensors)
        ]
        # 0 where no pair was selected: the formula and its derivatives may be anything there.
        operands.append((columns >= 0).to(values.dtype)[..., None])
        formula = at_pairs.with_reduction(adjoint.at_selected_pairs(reduction, feature))
        (part,) = _reduced(formula, operands, mask=len(tensors))
        tracked.append(_masked(part, operands, len(tensors))[..., 0])
    stacked = torch.stack(tracked, dim=-1).reshape(values.shape)
    return (_Attached.apply(values, stacked), *results[1:])


def _gathered(tensor: Tensor, batch: tuple[int, ...], columns: Tensor | None, k: int) -> Tensor:
    """A tensor gathered at the columns of the selected pairs, or (None) at their rows."""
    wide = tensor.expand(*batch, *tensor.shape[-2:])
    if columns is None:
        return wide.repeat_interleave(k, dim=-2) if k > 1 else wide
    # One index over the whole batch: its derivative is summed in a fixed order, that of gather on CUDA is not.
    entries = torch.arange(math.prod(batch), device=columns.device).reshape(*batch, 1)
    positions = (columns.clamp(min=0) + entries * wide.shape[-2]).reshape(-1)
    return wide.reshape(-1, wide.shape[-1])[positions].reshape(*columns.shape, wide.shape[-1])


_numbers: LRUCache[Any, Tensor] = LRUCache(256)


def numbers(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Parameters that are plain numbers. Those on a device are cached: a copy from the host would wait for it."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    key = values, dtype, device
    tensor = _numbers.get(key)
    if tensor is None:
        # By kernels and not by a copy, so that a CUDA graph can capture it.
        with torch.inference_mode(False), torch.no_grad():
            tensor = torch.cat([torch.full((1,), value, dtype=dtype, device=device) for value in values])
        if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            _numbers[key] = tensor  # the memory of a captured tensor belongs to the graph
    return tensor


def value_and_grad(
    function: Function, arrays: Sequence[Any], ranges: Any, n_threads: int | None, positions: Sequence[int],
    cotangent: Any = None,
) -> tuple[Any, tuple[Tensor, ...]]:  # fmt: skip
    """The result, and its gradients in the tensors at these positions."""
    tensors = _tensors(function, arrays)
    leaves = [tensor.detach().requires_grad_(n in positions) for n, tensor in enumerate(tensors)]
    with torch.enable_grad():
        results = reduce(function, leaves, ranges, n_threads)
    values = function.shaped(results[:1])
    cotangent = torch.ones_like(values) if cotangent is None else cotangent
    gradients: Sequence[Any] = (None,) * len(positions)
    if values.requires_grad:
        gradients = torch.autograd.grad(values, [leaves[n] for n in positions], cotangent, allow_unused=True)
    return function.shaped(tuple(part.detach() for part in results)), tuple(
        torch.zeros_like(leaves[n]) if gradient is None else gradient for n, gradient in zip(positions, gradients)
    )


class _Inverse(torch.autograd.Function):  # type: ignore[misc]  # the same
    """The solution of a symmetric linear system, differentiated in the right-hand side only."""

    @staticmethod
    def forward(ctx: Any, solver: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
        ctx.solver = solver
        with torch.no_grad():
            return solver(right.detach())

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        # The solver's accuracy is absolute: it takes a cotangent below it for 0.
        scale = cotangent.detach().abs().sum() / max(cotangent.numel(), 1)
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
        return None, scale * _Inverse.apply(ctx.solver, cotangent / scale)


def solve(apply: Callable[[Tensor], Tensor], b: Tensor, solver: Callable[[Tensor], Tensor]) -> Tensor:
    """The solution of ``apply(a) = b``, with gradients in b and in all that `apply` reads, to second order.

    A step of Newton's method from a solution, a + inverse(b - apply(a)), does not change its value and gives it
    the correct first derivative; another step gives it the correct second derivative.
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
