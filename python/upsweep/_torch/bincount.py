"""`bincount` for torch tensors: argument rules in torch's terms, then the operation of `count_ops`.

As with the scans the operation is skipped where nothing is to be differentiated, compiled, transformed or watched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upsweep._backends import cpu
from upsweep._core import bincount as bincount_problem
from upsweep._core import scan as scan_problem
from upsweep._torch import bincount_ops, executors
from upsweep._torch import scan as torch_scan
from upsweep._torch.graph_breaks import graph_break

__all__ = ["bincount"]


@graph_break("bincount looks at its keys, unless both the number of bins (length=) and invalid='drop' are given")
def bincount(
    x: Any, weights: Any, out: Any, minlength: Any, length: Any, axis: Any, accumulate: bool, dtype: Any,
    invalid: Any, deterministic: bool, return_invalid: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.bincount` of tensors."""
    if length is axis is out is dtype is None and invalid == "raise" and not (accumulate or return_invalid):
        y = _plain(x, weights, minlength, n_threads)
        if y is not None:
            return y
    drop = bincount_problem.check_keywords(invalid, return_invalid, accumulate, out)
    if torch.compiler.is_compiling() and not (drop and (length is not None or out is not None)):
        from upsweep._torch import compiler_disabled

        return compiler_disabled.bincount(
            x, weights, out, minlength, length=length, axis=axis, accumulate=accumulate, dtype=dtype,
            invalid=invalid, deterministic=deterministic, return_invalid=return_invalid, n_threads=n_threads,
        )  # fmt: skip
    keys = _as_keys(x, weights if isinstance(weights, Tensor) else out, axis)
    at = 0 if axis is None else scan_problem.check_axis(axis, keys.ndim)
    summands = None if weights is None else _as_weights(weights, keys)
    least = bincount_problem.as_size(minlength, "minlength")
    n_bins = None if length is None else bincount_problem.as_size(length, "length")
    if n_bins is not None and n_bins < least:
        raise ValueError(f"length: {n_bins} is smaller than minlength={least}")
    result = _result_dtype(keys, summands, dtype)
    if out is not None:
        n_bins = _check_out(out, keys, summands, at, n_bins, least, result)
    threads = 0 if n_threads is None else cpu.check_threads(n_threads)
    torch_scan.reject_jit_trace("counts")
    torch_scan.reject_forward_ad((summands,), "counts")
    # Without keys there is nothing to sum, and torch answers with integers.
    request = bincount_ops.Request(
        keys, summands if keys.numel() or dtype is not None else None, at, n_bins, least, drop, result,
        bool(return_invalid), bool(deterministic) or torch.are_deterministic_algorithms_enabled(), threads,
        None if summands is None or summands.ndim == keys.ndim else summands.shape[-1],
    )  # fmt: skip
    y, n_invalid = _run(request, out, bool(accumulate))
    return (y, n_invalid) if return_invalid else y


_INTEGERS = {torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8}
_FLOATS = {torch.float32, torch.float64}


def _is_plain(value: Any, dtypes: set[torch.dtype]) -> bool:
    return (
        isinstance(value, Tensor) and value.dtype in dtypes and value.device.type == "cpu"
        and value.layout is torch.strided and value.ndim == 1
    )  # fmt: skip


def _plain(x: Any, weights: Any, minlength: Any, n_threads: int | None) -> Tensor | None:
    """The plainest calls on the CPU, at a fraction of what the layers cost; None where this is no such call."""
    if not _is_plain(x, _INTEGERS):
        return None
    if weights is None:
        if torch_scan.needs_dispatcher((x,)) or not x.numel():
            return None
        counted = cpu.bincounts.plain(x.numpy(), None, minlength, cpu.threads(n_threads))
        return None if counted is None else torch.from_numpy(counted)
    if not _is_plain(weights, _FLOATS) or weights.is_neg() or torch_scan.needs_dispatcher((x, weights)):
        return None
    if not x.numel():
        return None
    summed = cpu.bincounts.plain(x.numpy(), weights.detach().numpy(), minlength, cpu.threads(n_threads))
    return None if summed is None else torch.from_numpy(summed).to(weights.dtype)


def _run(request: bincount_ops.Request, out: Any, accumulate: bool) -> tuple[Tensor, Tensor | None]:
    tensors = (request.keys, request.weights)
    if not torch_scan.is_traced() and all(map(torch_scan.is_plain_tensor, (*tensors, out))):
        if request.dtype.is_floating_point or request.dtype.is_complex:  # noqa: SIM102
            if torch_scan.requires_autograd(tensors):
                return bincount_ops.EagerCount.apply(*tensors, request)
        with torch.no_grad():
            y, n_invalid = executors.count(request, out, accumulate)
        if out is not None:
            torch.autograd.graph.increment_version(out)  # so that a backward which saved it notices
        return y, n_invalid
    if request.n_bins is None or not request.drop:
        request = request.with_bins(_looked_at(request))
    y, n_invalid = bincount_ops.count.form()(*request.arguments())
    if out is not None:
        y = out.add_(y) if accumulate else out.copy_(y)
    return y, n_invalid


def _looked_at(request: bincount_ops.Request) -> int:
    """The number of bins, where the keys have to be looked at first."""
    if not torch_scan._are_in_memory(request.keys):
        raise NotImplementedError(
            "x: its values cannot be looked at while torch transforms or traces the call; give length= and "
            "invalid='drop'"
        )
    counted, _ = executors.count(request.of_keys(), None, False)
    return int(counted.shape[request.axis])


# ---- argument rules ------------------------------------------------------------------------------------------


def _as_keys(x: Any, other: Any, axis: Any) -> Tensor:
    keys = torch_scan._tensor(x, "x", None)
    if axis is None and keys.ndim != 1:
        depth = "small" if keys.ndim == 0 else "large"
        raise ValueError(
            f"x: object of too {depth} depth for desired array: expected 1-D without axis=, got {keys.ndim}-D"
        )
    if keys.is_floating_point() or keys.is_complex():
        raise TypeError(f"x: Cannot cast keys of dtype {keys.dtype} to integers: bincount takes integers and bool")
    return keys


def _as_weights(weights: Any, keys: Tensor) -> Tensor:
    summands = torch_scan._tensor(weights, "weights", None)
    if summands.device != keys.device:
        raise ValueError(f"weights: is on {summands.device}, x on {keys.device}")
    shape = tuple(keys.shape)
    if summands.shape != keys.shape and (summands.ndim != keys.ndim + 1 or summands.shape[:-1] != keys.shape):
        raise ValueError(
            f"weights: The weights and list don't have the same length: expected x's shape {shape}, or one axis "
            f"more behind it, got {tuple(summands.shape)}"
        )
    return summands


def _result_dtype(keys: Tensor, weights: Tensor | None, dtype: Any) -> torch.dtype:
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype: expected a torch.dtype, got {dtype!r}")
        torch_scan.check_sum_dtype(dtype, "weights", weights)
        if dtype == torch.bool:
            raise TypeError("dtype: expected integers, real or complex numbers, got torch.bool")
        if weights is not None and weights.is_complex() and not dtype.is_complex:
            raise TypeError(f"dtype: sums of {weights.dtype} weights would lose their imaginary part in {dtype}")
        return dtype
    if weights is None or keys.numel() == 0:
        return torch.int64
    if weights.is_complex():
        return weights.dtype
    return torch.float32 if weights.dtype == torch.float32 else torch.float64


def _check_out(
    out: Any, keys: Tensor, weights: Tensor | None, axis: int, n_bins: int | None, least: int, dtype: torch.dtype
) -> int:
    """The number of bins, which `out` fixes."""
    sums = () if weights is None or weights.ndim == keys.ndim else weights.shape[-1:]
    given = tuple(out.shape) if isinstance(out, Tensor) else ()
    if n_bins is None:
        if isinstance(out, Tensor) and out.ndim != keys.ndim + len(sums):
            raise ValueError(bincount_problem.axes_message((*keys.shape, *sums), axis, given))
        n_bins = given[axis] if given else least
    shape = torch.Size((*keys.shape[:axis], n_bins, *keys.shape[axis + 1 :], *sums))
    torch_scan.check_target(out, shape, dtype, keys.device, {"x": keys, "weights": weights})
    if n_bins < least:
        raise ValueError(f"out: has {n_bins} bins, fewer than minlength={least}")
    return n_bins
