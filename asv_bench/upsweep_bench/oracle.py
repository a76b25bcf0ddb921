"""Float64 references of scans on the tensors' own device, and the relative error of results.

All data of these benchmarks are positive: nothing cancels, so errors can be relative to the reference itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["carry_error", "gradient_error", "hillis_steele", "scan_error"]

_LEAST = 1e-290  # products above this are normal numbers, in whatever order they are computed
_PIECE = 1 << 26  # elements at a time: in float64, with temporaries, about 4 GB


def hillis_steele(gates: Any, tokens: Any) -> Any:
    """Gated recurrence along the last axis in ceil(log2(n)) passes of plain torch operations.

    Before a pass every step holds the aggregate of the last `span` steps; the pass combines it with the
    aggregate of the `span` steps before those (W. D. Hillis and G. L. Steele, Data parallel algorithms, 1986).
    The first gate of a line has no effect. Computes in the tensors' own dtype: float64 for the reference, others
    for the baseline.

    Parameters
    ----------
    gates, tokens : torch.Tensor
        Of one shape, dtype and device.

    Returns
    -------
    torch.Tensor
        y[t] = gates[t] * y[t-1] + tokens[t].

    Examples
    --------
    >>> import torch
    >>> from upsweep_bench.oracle import hillis_steele
    >>> hillis_steele(torch.full((5,), 0.5), torch.ones(5))
    tensor([1.0000, 1.5000, 1.7500, 1.8750, 1.9375])
    """
    length, span, y = tokens.shape[-1], 1, tokens
    while span < length:
        y = torch.cat((y[..., :span], torch.addcmul(y[..., span:], gates[..., span:], y[..., :-span])), -1)
        if 2 * span < length:
            gates = torch.cat((gates[..., :span], gates[..., span:] * gates[..., :-span]), -1)
        span *= 2
    return y


def _lines(tensor: Any, axis: int) -> Any:
    return tensor.detach().movedim(axis, -1).reshape(-1, tensor.shape[axis])


def _pieces(*tensors: Any) -> Iterator[list[Any]]:
    """Whole lines of each, as float64, a few at a time."""
    n_lines, length = len(tensors[0]), max(tensor.shape[-1] for tensor in tensors)
    step = max(1, _PIECE // max(length, 1))
    for begin in range(0, n_lines, step):
        yield [tensor[begin : begin + step].double() for tensor in tensors]


def _worst(actual: Any, expected: Any) -> float:
    """The largest relative error; NaN where there is one that is not expected."""
    error = (actual - expected).abs() / expected.abs()
    return float(torch.where(actual == expected, 0, error).max())


def _larger(a: float, b: float) -> float:
    return a if a != a or a >= b else b  # NaN stays


def _factors(factor: Any, tokens: Any) -> Any:
    return torch.full_like(tokens, factor) if isinstance(factor, float) else factor


def scan_error(y: Any, factor: Any, tokens: Any, axis: int = -1, window: int | None = None) -> float:
    """The largest relative error of a scan of `tokens` with gates, or a number, as its `factor`."""
    y, tokens = _lines(y, axis), _lines(tokens, axis)
    gates = [] if isinstance(factor, float) else [_lines(factor, axis)]
    worst = 0.0
    for actual, x, *pieces in _pieces(y, tokens, *gates):
        expected = hillis_steele(pieces[0] if pieces else _factors(factor, x), x)
        if window is not None and window < x.shape[-1]:
            # Tokens older than the window were decayed `window` times; float64 has the digits to subtract them.
            expected[..., window:] -= factor**window * expected[..., :-window].clone()
        worst = _larger(worst, _worst(actual, expected))
    return worst


def carry_error(carry: Any, factor: Any, tokens: Any, axis: int = -1) -> float:
    """The largest relative error of the aggregate of a block; products below float64's range are not examined."""
    tokens = _lines(tokens, axis)
    gates = [] if isinstance(factor, float) else [_lines(factor, axis)]
    worst = 0.0
    states = (part.reshape(-1, 1) for part in (carry.multiplier, carry.value))
    for multiplier, value, x, *pieces in _pieces(*states, tokens, *gates):
        by = pieces[0] if pieces else _factors(factor, x)
        worst = _larger(worst, _worst(value, hillis_steele(by, x)[..., -1:]))
        product = by.prod(-1, keepdim=True)
        normal = (product.abs() > _LEAST) | ~(multiplier.abs() <= _LEAST)
        worst = _larger(worst, _worst(multiplier[normal], product[normal]) if normal.any() else 0.0)
    return worst


def gradient_error(gradients: Any, gates: Any, tokens: Any, upstream: Any) -> float:
    """The largest relative error of the gradients of (gates, tokens), when that of y is `upstream`."""
    worst = 0.0
    lines = (_lines(tensor, -1) for tensor in (*gradients, gates, tokens, upstream))
    for g_gates, g_tokens, a, x, g in _pieces(*lines):
        # The gradient of tokens runs the other way, each step with the gate of the one after it.
        expected = hillis_steele(a.flip(-1).roll(1, -1), g.flip(-1)).flip(-1)
        worst = _larger(worst, _worst(g_tokens, expected))
        expected[..., 1:] *= hillis_steele(a, x)[..., :-1]
        expected[..., 0] = 0  # no state before the first step
        worst = _larger(worst, _worst(g_gates, expected))
    return worst
