"""Counts and sums by key as registered torch operations, with their derivatives.

    y[b] = sum of weights[i] where x[i] = b

The derivative of the sums is a look-up: the gradient of weights[i] is that of y at x[i], and 0 where x[i] is no
bin. The derivative of a look-up is the sum again, so the two operations give derivatives of every order. Keys have
no derivative. The operations drop keys outside the bins; callers that raise an error check the keys before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from upsweep._torch import executors
from upsweep._torch.operations import Operation


class Request(NamedTuple):
    """A checked count: the arguments of the operation, and what only its eager form takes.

    keys : in any layout; the bins replace their axis `axis`.
    n_bins : None for those that the largest key asks for, at least `least`.
    n_sums : -1 for weights of the keys' shape, else the size of one axis more.
    drop : whether keys outside the bins are left out.
    """

    keys: Tensor
    weights: Tensor | None
    axis: int
    n_bins: int | None
    n_sums: int
    dtype: torch.dtype
    count_invalid: bool
    deterministic: bool
    n_threads: int
    least: int = 0
    drop: bool = True

    def result_shape(self, n_bins: int) -> tuple[int, ...]:
        shape, sums = self.keys.shape, () if self.n_sums < 0 else (self.n_sums,)
        return (*shape[: self.axis], n_bins, *shape[self.axis + 1 :], *sums)

    def of_keys(self) -> Request:
        """Return the count without its weights."""
        return self._replace(weights=None, n_sums=-1, dtype=torch.int64, count_invalid=False)


def _no_number(x: Tensor) -> Tensor:
    """Return the result that stands for the number of dropped keys, where it is not counted."""
    return x.new_empty((0,), dtype=torch.int64)


def _count(*arguments: Any) -> tuple[Tensor, Tensor]:
    request = Request(*arguments)
    y, n_invalid = executors.count(request, None, False)
    return y, _no_number(request.keys) if n_invalid is None else n_invalid


def _fake_count(*arguments: Any) -> tuple[Tensor, Tensor]:
    request = Request(*arguments)
    x = request.keys
    assert request.n_bins is not None
    y = x.new_empty(request.result_shape(request.n_bins), dtype=request.dtype)
    return y, x.new_empty((), dtype=torch.int64) if request.count_invalid else _no_number(x)


def _look_up(
    g: Tensor, x: Tensor, axis: int, dtype: torch.dtype, deterministic: bool, n_threads: int, drop: bool = True,
) -> Tensor:  # fmt: skip
    n_bins, sums = g.shape[axis], g.shape[x.ndim :]
    if n_bins == 0 or x.numel() == 0:
        return g.new_zeros((*x.shape, *sums), dtype=dtype)
    keys = x.to(torch.int64)  # uint64 keys from 2**63 on become negative, which is outside too
    if drop:
        inside = (keys >= 0) & (keys < n_bins)
        keys = keys.where(inside, 0)
    if x.ndim == 1:
        gradient = g.index_select(0, keys)  # half the time of gather
    else:
        gradient = g.gather(axis, keys.unsqueeze(-1).expand(*x.shape, *sums) if sums else keys)
    if drop:
        gradient = gradient.where(inside.unsqueeze(-1) if sums else inside, 0)
    if gradient.is_complex() and not dtype.is_complex:
        gradient = gradient.real
    return gradient.to(dtype).contiguous()


def _fake_look_up(g: Tensor, x: Tensor, axis: int, dtype: torch.dtype, *_: Any) -> Tensor:
    return g.new_empty((*x.shape, *g.shape[x.ndim :]), dtype=dtype)


def _save_count(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weights, ctx.axis, _, _, _, _, ctx.deterministic, ctx.n_threads, *_ = inputs
    ctx.drop = Request(*inputs).drop  # the eager form has looked at the keys unless it drops them
    ctx.save_for_backward(x)
    ctx.dtype = None if weights is None else weights.dtype
    y, n_invalid = output
    ctx.mark_non_differentiable(n_invalid, *([] if y.is_floating_point() or y.is_complex() else [y]))
    ctx.set_materialize_grads(False)


def _count_backward(ctx: Any, g: Tensor | None, _: Any) -> tuple[Any, ...]:
    if g is None or not ctx.needs_input_grad[1]:
        return ()
    (x,) = ctx.saved_tensors
    return (None, look_up.form()(g, x, ctx.axis, ctx.dtype, ctx.deterministic, ctx.n_threads, ctx.drop))


def _save_look_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, x, ctx.axis, _, ctx.deterministic, ctx.n_threads, *_ = inputs
    ctx.save_for_backward(x)
    ctx.shape, ctx.dtype = g.shape, g.dtype
    ctx.set_materialize_grads(False)


def _look_up_backward(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
    if g is None or not ctx.needs_input_grad[0]:
        return ()
    (x,) = ctx.saved_tensors
    n_sums = -1 if len(ctx.shape) == x.ndim else ctx.shape[-1]
    sums, _ = count.form()(
        x, g, ctx.axis, ctx.shape[ctx.axis], n_sums, ctx.dtype, False, ctx.deterministic, ctx.n_threads
    )
    return (sums,)


def _check_vmap(*arguments: Any) -> None:
    if Request(*arguments).count_invalid:
        raise NotImplementedError("return_invalid: keys are counted all together, not for each of vmap's calls")


count = Operation(
    "bincount(Tensor x, Tensor? weights, int axis, SymInt n_bins, SymInt n_sums, ScalarType dtype, "
    "bool count_invalid, bool deterministic, int n_threads) -> (Tensor, Tensor)",
    _count, _fake_count, _save_count, _count_backward, out_dims=(0, None), check_vmap=_check_vmap,
)  # fmt: skip
look_up = Operation(
    "look_up_bins(Tensor g, Tensor x, int axis, ScalarType dtype, bool deterministic, int n_threads, "
    "bool drop=True) -> Tensor",
    _look_up, _fake_look_up, _save_look_up, _look_up_backward, out_dims=0,
)  # fmt: skip
