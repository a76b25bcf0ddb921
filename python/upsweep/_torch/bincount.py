"""`bincount` of torch tensors: dtype and device rules of torch, then the executor or the operation.

`_core.checks` has the checks that arrays of all libraries share. As for scans, the operation of `bincount_ops` is
skipped where nothing is differentiated, compiled, transformed or watched by a mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upsweep._arrays.dispatch import plain_counts
from upsweep._backends import cpu
from upsweep._core import checks
from upsweep._core.bincount import CHECK_ABOVE
from upsweep._torch import bincount_ops, executors
from upsweep._torch import scan as torch_scan
from upsweep._torch.graph_breaks import graph_break


@graph_break("bincount looks at its keys, unless both the number of bins (length=) and invalid='drop' are given")
def bincount(
    x: Any, weights: Any, out: Any, minlength: Any, length: Any, axis: Any, accumulate: bool, dtype: Any,
    invalid: Any, deterministic: bool, return_invalid: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.bincount` of tensors."""
    if length is axis is out is dtype is None and invalid == "raise" and not (accumulate or return_invalid):
        y = _run_plain(x, weights, minlength, n_threads)
        if y is not None:
            return y
    if axis is out is dtype is n_threads is None and not (accumulate or return_invalid):
        y = _run_on_device(x, weights, minlength, length, invalid, deterministic)
        if y is not None:
            plain_counts[type(x)] = _run_on_device
            return y
    drop = checks.check_count_keywords(invalid, return_invalid, accumulate, out)
    if torch.compiler.is_dynamo_compiling() and not (drop and (length is not None or out is not None)):
        from upsweep._torch import compiler_disabled

        return compiler_disabled.bincount(
            x, weights, out, minlength, length=length, axis=axis, accumulate=accumulate, dtype=dtype,
            invalid=invalid, deterministic=deterministic, return_invalid=return_invalid, n_threads=n_threads,
        )  # fmt: skip
    keys = torch_scan.as_tensor(x, "x", None)
    is_integral = not (keys.is_floating_point() or keys.is_complex())
    at = checks.check_keys(keys, is_integral, axis)
    summands = None if weights is None else torch_scan.as_tensor(weights, "weights", None)
    n_sums = checks.check_weights(summands, keys)
    if summands is not None and summands.device != keys.device:
        raise torch_scan.device_error("weights", summands, keys, "x")
    minimum, n_bins = checks.check_bins(minlength, length)
    result = _result_dtype(keys, summands, dtype)
    if out is not None:
        sums = () if n_sums is None else (n_sums,)
        shape = (*keys.shape, *sums)
        tensor = out if isinstance(out, Tensor) else None
        n_bins = checks.bins_of_out(tensor, n_bins, shape, at, minimum)
        shape = torch.Size((*keys.shape[:at], n_bins, *keys.shape[at + 1 :], *sums))
        checks.check_count_out(tensor, result, dtype)
        torch_scan.check_target(out, shape, result, keys.device, {"x": keys, "weights": summands})
    threads = 0 if n_threads is None else cpu.check_threads(n_threads)
    torch_scan.reject_jit_trace("counts")
    torch_scan.reject_forward_ad((summands,), "counts")
    # Without keys there is nothing to sum, and torch answers with integers.
    request = bincount_ops.Request(
        keys, summands if keys.numel() or dtype is not None else None, at, n_bins,
        -1 if n_sums is None else n_sums, result, bool(return_invalid),
        bool(deterministic) or torch.are_deterministic_algorithms_enabled(), threads, minimum, drop,
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


def _run_plain(x: Any, weights: Any, minlength: Any, n_threads: int | None) -> Tensor | None:
    """Count 1-D tensors on the CPU without the layers below, which cost four times as much; None for others."""
    if not _is_plain(x, _INTEGERS):
        return None
    if weights is not None and (not _is_plain(weights, _FLOATS) or weights.is_neg()):
        return None
    if torch_scan.needs_dispatcher((x, weights)) or not x.numel():
        return None
    summands = None if weights is None else weights.detach().numpy()
    counts = cpu.bincounts.plain(x.numpy(), summands, minlength, cpu.threads(n_threads))
    if counts is None:
        return None
    y = torch.from_numpy(counts)
    return y if weights is None else y.to(weights.dtype)


def _run_on_device(
    x: Any, weights: Any, minlength: Any, length: Any, invalid: Any, deterministic: bool
) -> Tensor | None:
    """Count 1-D CUDA tensors; None for other arguments."""
    if torch.compiler.is_dynamo_compiling() or not (isinstance(x, Tensor) and x.is_cuda):
        return None
    if weights is not None and torch.are_deterministic_algorithms_enabled():
        deterministic = True
    y: Tensor | None = executors.calls.count(x, weights, minlength, length, invalid, deterministic, CHECK_ABOVE)
    return y


def _run(request: bincount_ops.Request, out: Any, accumulate: bool) -> tuple[Tensor, Tensor | None]:
    tensors = (request.keys, request.weights)
    if not (torch_scan.is_traced() or request.keys.is_meta) and all(
        map(torch_scan.is_plain_tensor, (*tensors, out))
    ):
        is_inexact = request.dtype.is_floating_point or request.dtype.is_complex
        if is_inexact and torch_scan.requires_autograd(tensors):
            return bincount_ops.count.eager(*request)
        with torch.no_grad():
            y, n_invalid = executors.count(request, out, accumulate)
        if out is not None:
            torch.autograd.graph.increment_version(out)  # a backward that saved it raises then
        return y, n_invalid
    if request.n_bins is None or not request.drop:
        request = request._replace(n_bins=_n_bins_of_keys(request), drop=True)
    y, n_invalid = bincount_ops.count.form()(*request[:-2])
    if out is not None:
        y = out.add_(y) if accumulate else out.copy_(y)
    return y, n_invalid


def _n_bins_of_keys(request: bincount_ops.Request) -> int:
    """Return the number of bins, and check the keys, by a count without weights."""
    if not torch_scan.are_in_memory(request.keys):
        raise NotImplementedError(
            "x: its values cannot be looked at while torch transforms or traces the call; give length= and "
            "invalid='drop'"
        )
    counts, _ = executors.count(request.of_keys(), None, False)
    return int(counts.shape[request.axis])


def _result_dtype(keys: Tensor, weights: Tensor | None, dtype: Any) -> torch.dtype:
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype: expected a torch.dtype, got {dtype!r}")
        torch_scan.check_sum_dtype(dtype, "weights", weights)
        if dtype == torch.bool:
            raise TypeError("dtype: expected integers, real or complex numbers, got torch.bool")
        if weights is not None:
            checks.check_imaginary(weights, dtype.is_complex or not weights.is_complex(), dtype)
        return dtype
    if weights is None or keys.numel() == 0:
        return torch.int64
    if weights.is_complex():
        return weights.dtype
    return torch.float32 if weights.dtype == torch.float32 else torch.float64
