"""Aggregates of blocks of steps, as tensors: `Carry.apply`, `combine` and the functions that make carries.

With gradients, under the compiler and under transforms, an aggregate is made of final states of scans, which torch
differentiates: the value is the final state of the block in float64, and the multiplier is the final state of a
scan of zeros that starts at 1, which is the product of the factors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upsweep._backends import cpu
from upsweep._core import checks
from upsweep._torch import executors, scan_ops
from upsweep._torch import scan as torch_scan

Parts = tuple[Tensor, Tensor, Tensor]  # multiplier, value, reset


def cumulative_sum_carry(x: Any, reset: Any, axis: int, reverse: bool, dtype: Any, n_threads: int | None) -> Parts:
    """Return the parts of `upsweep.cumulative_sum_carry` of a tensor."""
    return reduce(torch_scan.prepare_sum(x, dtype, axis, reset, None), reverse, False, n_threads)


def discounted_cumsum_carry(
    x: Any, gamma: Any, reset: Any, axis: int, reverse: bool, n_threads: int | None
) -> Parts:
    """Return the parts of `upsweep.discounted_cumsum_carry` of tensors."""
    return reduce(torch_scan.prepare_discounted(x, gamma, axis, reset, None), reverse, True, n_threads)


def linear_recurrence_carry(
    gates: Any, tokens: Any, reset: Any, axis: int, reverse: bool, n_threads: int | None
) -> Parts:
    """Return the parts of `upsweep.linear_recurrence_carry` of tensors."""
    return reduce(torch_scan.prepare_gated(gates, tokens, axis, reset, None), reverse, True, n_threads)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a carry's value: int64 for all integers, because torch has few unsigned operations."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def factor_dtype(scan: Any, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a carry's multiplier: real factors stay real under complex states."""
    return torch.float64 if dtype.is_complex and scan.real_factor else dtype


def reduce(scan: Any, reverse: bool, flush: bool, n_threads: int | None) -> Parts:
    """Return the parts of the aggregate of a checked scan (`scan.prepare_*`), with gradients where they are on."""
    threads = 0 if n_threads is None else cpu.check_threads(n_threads)
    if torch_scan.needs_dispatcher((scan.x, scan.gates, scan.gamma, scan.reset)):
        return _reduce_by_scans(scan, bool(reverse), flush, threads)
    dtype = wide_dtype(scan.dtype)
    dtypes = (factor_dtype(scan, dtype), dtype, torch.bool)
    multiplier, value, dropped = (torch.empty(scan.state_shape, dtype=d, device=scan.x.device) for d in dtypes)
    with torch.no_grad():
        executors.reduce(
            scan.x, scan.gates, scan.factor if scan.gamma is None else scan.gamma, scan.reset, multiplier, value,
            dropped, axis=scan.axis, reverse=bool(reverse), flush=flush, n_threads=threads or None,
        )  # fmt: skip
    return multiplier, value, dropped


def _reduce_by_scans(scan: Any, reverse: bool, flush: bool, threads: int) -> Parts:
    tensors = (scan.x, scan.gates, scan.gamma, scan.reset)
    torch_scan.reject_forward_ad(tensors)
    eager = not torch_scan.is_traced() and all(map(torch_scan.is_plain_tensor, tensors))
    operation = scan_ops.scan.eager if eager else scan_ops.scan.form()

    def final(x: Tensor, initial: Tensor | None, reset: Tensor | None, dtype: torch.dtype) -> Tensor:
        gates = scan.gates
        if gates is not None:
            gates = gates.real if gates.is_complex() and scan.real_factor else gates
            gates = gates.to(dtype if gates.is_complex() else torch.float64)
        result: Tensor = operation(
            x, gates, scan.gamma, scan.factor, initial, reset, scan.axis, reverse, flush, 0, threads, dtype
        )[1]
        return result

    dtype = wide_dtype(scan.dtype)
    factors = factor_dtype(scan, dtype)
    value = final(scan.x.to(dtype), None, scan.reset, dtype)
    one = scan.x.new_ones((), dtype=factors)
    multiplier = final(torch.zeros_like(one).expand(scan.shape), one.expand(scan.state_shape), None, factors)
    if scan.reset is None:
        return multiplier, value, torch.zeros_like(value, dtype=torch.bool)
    dropped = scan.reset.any(scan.axis)
    return torch.where(dropped, torch.zeros_like(one), multiplier), value, dropped


def apply(multiplier: Any, value: Any, reset: Any, state: Any) -> Tensor:
    """Return `upsweep.Carry.apply` of tensors."""
    value = torch_scan.as_tensor(value, "carry", None)
    if isinstance(state, torch_scan.Number):
        state = torch_scan.tensor_of_number(state, "state", value.device)
    state = torch_scan.as_tensor(state, "state", value)
    checks.check_carry_state(state, value, torch_scan.can_hold, torch.broadcast_shapes)
    return _advance(multiplier, value, reset, state.to(value.dtype))


def combine(carry_a: Any, carry_b: Any) -> Parts:
    """Return the parts of `upsweep.combine` of two carries of tensors, whose shapes have been checked."""
    for name, carry in (("carry_a", carry_a), ("carry_b", carry_b)):
        for part in carry:
            if torch_scan.as_tensor(part, name, carry_a.value).device != carry_a.value.device:
                raise ValueError(f"{name}: is on {part.device}, carry_a's value on {carry_a.value.device}")
    reset = carry_a.reset | carry_b.reset
    product = _times(carry_a.multiplier, carry_b.multiplier)
    value = _advance(carry_b.multiplier, carry_b.value, carry_b.reset, carry_a.value)
    return torch.where(reset, product.new_zeros(()), product), value, reset


def _advance(multiplier: Tensor, value: Tensor, reset: Tensor, state: Tensor) -> Tensor:
    # A reset replaces the state by 0 before the product is formed: infinity times 0 would be NaN.
    state = torch.where(reset, state.new_zeros(()), state).to(torch.promote_types(state.dtype, value.dtype))
    return torch.where(reset, value, _times(multiplier, state) + value)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return the product, in which a real number multiplies both parts of a complex one."""
    if a.is_complex():
        a, b = b, a
    if a.is_complex() or not b.is_complex():
        return a * b
    return torch.complex(a * b.real, a * b.imag)
