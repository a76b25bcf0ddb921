"""Numpy functions of the operations for which numpy has none with KeOps' conventions.

They take arrays of shape (..., dim) and the static arguments. The table in `ops` names them, and numpy's own
functions where those fit. `reference.evaluate` and constant folding call them, so that compiled code, folded
constants and the reference implementation share one definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any  # ndarray: numpy types most of these results as Any
Ints = tuple[int, ...]


def sign(x: Array) -> Array:
    """1, 0 or -1; 0 for NaN too."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def round_half_away(x: Array, digits: int) -> Array:
    """x rounded to `digits` decimals, halves away from zero."""
    scale = x.dtype.type(10.0**digits)
    magnitude = np.abs(x * scale)
    whole = np.floor(magnitude)
    return np.copysign(whole + (magnitude - whole >= 0.5), x) / scale


def erf(x: Any) -> Array:
    """The error function, which numpy lacks, by C's."""
    x = np.asarray(x)
    return np.fromiter(map(math.erf, x.ravel().tolist()), x.dtype, x.size).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def clamp(x: Array, low: Any, high: Any) -> Array:
    """x limited to [low, high]; NaN stays NaN."""
    return np.where(x < low, low, np.where(x > high, high, x)).astype(x.dtype)


def comparison(compare: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison whose result is 1 or 0 in the operands' dtype."""
    return lambda a, b: np.asarray(compare(a, b)).astype(np.result_type(a, b))


def over_features(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy reduction over the features, as an array of one feature."""
    return lambda x: reduce(x, -1)[..., None].astype(x.dtype)


def extract_t(x: Array, start: int, dim: int) -> Array:
    """A vector of `dim` features: x from feature `start` on, 0 elsewhere."""
    result = np.zeros((*x.shape[:-1], dim), x.dtype)
    result[..., start : start + x.shape[-1]] = x
    return result


def concat(a: Array, b: Array) -> Array:
    pairs = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    return np.concatenate([np.broadcast_to(part, (*pairs, part.shape[-1])) for part in (a, b)], axis=-1)


def matvec(matrix: Array, vector: Array) -> Array:
    rows = matrix.reshape(*matrix.shape[:-1], -1, vector.shape[-1])
    return (rows * vector[..., None, :]).sum(-1)


def vecmat(vector: Array, matrix: Array) -> Array:
    rows = matrix.reshape(*matrix.shape[:-1], vector.shape[-1], -1)
    return (vector[..., :, None] * rows).sum(-2)


def outer(a: Array, b: Array) -> Array:
    product = a[..., :, None] * b[..., None, :]
    return product.reshape(*product.shape[:-2], -1)


class TensordotLoops(NamedTuple):
    """The loop nest of a tensordot: over the axes of the result, in their order, and over the contracted axes.

    `extents` and `strides` are those of the result's axes. `strides_a` and `strides_b` have one entry for each
    loop, the contracted ones last; it is 0 where the loop does not move in the operand.
    """

    extents: list[int]
    contracted: list[int]
    strides: list[int]
    strides_a: list[int]
    strides_b: list[int]


def tensordot_loops(
    shape_a: Ints, shape_b: Ints, axes_a: Ints, axes_b: Ints, permute: Ints | None = None
) -> TensordotLoops:
    """The loop nest of `tensordot` with these static arguments."""
    strides_a, strides_b = _strides(shape_a), _strides(shape_b)
    free = [(shape_a[n], strides_a[n], 0) for n in range(len(shape_a)) if n not in axes_a]
    free += [(shape_b[n], 0, strides_b[n]) for n in range(len(shape_b)) if n not in axes_b]
    if permute is not None:
        free = [free[permute.index(n)] for n in range(len(free))]
    contracted = [(shape_a[m], strides_a[m], strides_b[n]) for m, n in zip(axes_a, axes_b)]
    extents, loops = [extent for extent, _, _ in free], free + contracted
    in_a, in_b = [a for _, a, _ in loops], [b for _, _, b in loops]
    return TensordotLoops(extents, [extent for extent, _, _ in contracted], _strides(extents), in_a, in_b)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def tensordot(
    a: Array, b: Array, shape_a: Ints, shape_b: Ints, axes_a: Ints, axes_b: Ints, permute: Ints | None = None
) -> Array:
    """The tensors' product contracted over pairs of axes; free axis n, a's first, becomes axis ``permute[n]``."""
    names_a = list(range(len(shape_a)))
    names_b = list(range(len(shape_a), len(shape_a) + len(shape_b)))
    for axis_a, axis_b in zip(axes_a, axes_b):
        names_b[axis_b] = axis_a
    free = [n for n in names_a if n not in axes_a] + [n for n in names_b if n >= len(shape_a)]
    result = free if permute is None else [free[permute.index(n)] for n in range(len(free))]
    a, b = a.reshape((*a.shape[:-1], *shape_a)), b.reshape((*b.shape[:-1], *shape_b))
    product = np.einsum(a, [Ellipsis, *names_a], b, [Ellipsis, *names_b], [Ellipsis, *result])
    pairs = product.shape[: product.ndim - len(result)]
    return product.reshape(*pairs, math.prod(product.shape[len(pairs) :]))


def lookup(place: Array, *words: int) -> Array:
    """The entries of a table, given as its bits, at places."""
    result: Array = np.array(words, np.int64).view(np.float64)[place.astype(int)]
    return result
