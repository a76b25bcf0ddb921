"""What operations mean, on numpy arrays of shape (..., dim): what compiled formulas are compared with.

Where numpy's own function has KeOps' conventions, the table of operations names it; these are the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any  # ndarray: numpy types most of these results as Any


def sign(x: Array) -> Array:
    """1, 0 or -1; 0 for NaN too."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def step(x: Array) -> Array:
    """0 below 0, else 1."""
    return np.where(x < 0, 0, 1).astype(x.dtype)


def relu(x: Array) -> Array:
    return np.where(x < 0, 0, x)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x), and 0 where x is 0."""
    return np.where(x == 0, 0, 1 / np.sqrt(x))


def integer_power(x: Array, exponent: int) -> Array:
    return np.power(x, x.dtype.type(exponent))


def sinxdivx(x: Array) -> Array:
    """sin(x) / x, and 1 where x is 0."""
    return np.where(x == 0, 1, np.sin(x) / x)


def xlogx(x: Array) -> Array:
    """x * log(x), and 0 where x is 0."""
    return np.where(x == 0, 0, x * np.log(x))


def round_away(x: Array, digits: int) -> Array:
    """To `digits` decimals, halves away from zero."""
    scale = x.dtype.type(10.0**digits)
    magnitude = np.abs(x * scale)
    whole = np.floor(magnitude)
    return np.copysign(whole + (magnitude - whole >= 0.5), x) / scale


def clamp(x: Array, low: Any, high: Any) -> Array:
    """`low` below `low`, `high` above `high`, else x; NaN stays."""
    return np.where(x < low, low, np.where(x > high, high, x)).astype(x.dtype)


def inside(x: Array, low: float, high: float) -> Array:
    """1 where x is in [low, high] or NaN, else 0: the derivative of `clamp`."""
    return (~((x < low) | (x > high))).astype(x.dtype)


def if_else(condition: Array, a: Array, b: Array) -> Array:
    """`a` where the condition is at least 0, else `b`."""
    return np.where(condition >= 0, a, b)


def modulo(x: Array, modulus: Array, offset: Array) -> Array:
    """x shifted by a multiple of the modulus to [offset, offset + modulus)."""
    return x - modulus * np.floor((x - offset) / modulus)


def comparison(compare: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison as numbers 1 and 0."""

    def meaning(a: Array, b: Array) -> Array:
        return np.asarray(compare(a, b)).astype(np.result_type(a, b))

    return meaning


def total(x: Array) -> Array:
    return x.sum(-1, keepdims=True)


def scalar_product(a: Array, b: Array) -> Array:
    return (a * b).sum(-1, keepdims=True)


def squared_distance(a: Array, b: Array) -> Array:
    return np.square(a - b).sum(-1, keepdims=True)


def largest(x: Array) -> Array:
    """The largest feature; NaN if there is one."""
    return x.max(-1, keepdims=True)


def smallest(x: Array) -> Array:
    """The smallest feature; NaN if there is one."""
    return x.min(-1, keepdims=True)


def place_of_largest(x: Array) -> Array:
    """Where the largest feature is: the first of several, the first NaN if there is one."""
    return x.argmax(-1)[..., None].astype(x.dtype)


def place_of_smallest(x: Array) -> Array:
    return x.argmin(-1)[..., None].astype(x.dtype)


def spread(x: Array, dim: int) -> Array:
    return np.repeat(x, dim, axis=-1)


def elem(x: Array, index: int) -> Array:
    return x[..., index : index + 1]


def elem_t(x: Array, dim: int, index: int) -> Array:
    return extract_t(x, index, dim)


def extract(x: Array, start: int, dim: int) -> Array:
    return x[..., start : start + dim]


def extract_t(x: Array, start: int, dim: int) -> Array:
    """x from feature `start` on, in a vector of `dim` features that are else 0."""
    result = np.zeros((*x.shape[:-1], dim), x.dtype)
    result[..., start : start + x.shape[-1]] = x
    return result


def concat(a: Array, b: Array) -> Array:
    pairs = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    parts = [np.broadcast_to(part, (*pairs, part.shape[-1])) for part in (a, b)]
    return np.concatenate(parts, axis=-1)


def one_hot(x: Array, dim: int) -> Array:
    """1 at the feature whose index is x, rounded; all 0 where there is none."""
    return (np.floor(x + 0.5) == np.arange(dim)).astype(x.dtype)


def matvec(matrix: Array, vector: Array) -> Array:
    rows = matrix.reshape(*matrix.shape[:-1], -1, vector.shape[-1])
    return (rows * vector[..., None, :]).sum(-1)


def vecmat(vector: Array, matrix: Array) -> Array:
    rows = matrix.reshape(*matrix.shape[:-1], vector.shape[-1], -1)
    return (vector[..., :, None] * rows).sum(-2)


def outer(a: Array, b: Array) -> Array:
    product = a[..., :, None] * b[..., None, :]
    return product.reshape(*product.shape[:-2], -1)


class TensordotAxes(NamedTuple):
    """The loops of a tensordot: over the axes of the result, in their order, and over those that are summed.

    `strides` are the result's, one for each axis of it; `strides_a` and `strides_b` have one for each loop, 0
    where the loop does not move in the argument.
    """

    kept: list[int]
    summed: list[int]
    strides: list[int]
    strides_a: list[int]
    strides_b: list[int]


def tensordot_axes(
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    axes_a: tuple[int, ...],
    axes_b: tuple[int, ...],
    permute: tuple[int, ...] | None = None,
) -> TensordotAxes:
    """The loops of `tensordot`."""
    strides_a, strides_b = _strides(shape_a), _strides(shape_b)
    kept = [(shape_a[n], strides_a[n], 0) for n in range(len(shape_a)) if n not in axes_a]
    kept += [(shape_b[n], 0, strides_b[n]) for n in range(len(shape_b)) if n not in axes_b]
    if permute is not None:
        kept = [kept[permute.index(n)] for n in range(len(kept))]
    summed = [(shape_a[m], strides_a[m], strides_b[n]) for m, n in zip(axes_a, axes_b)]
    extents = [extent for extent, _, _ in kept]
    both = kept + summed
    return TensordotAxes(
        extents,
        [extent for extent, _, _ in summed],
        _strides(extents),
        [a for _, a, _ in both],
        [b for _, _, b in both],
    )


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def tensordot(
    a: Array,
    b: Array,
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    axes_a: tuple[int, ...],
    axes_b: tuple[int, ...],
    permute: tuple[int, ...] | None = None,
) -> Array:
    """The tensors' product, summed over pairs of axes; kept axis n, a's first, becomes axis ``permute[n]``."""
    names_a = list(range(len(shape_a)))
    names_b = list(range(len(shape_a), len(shape_a) + len(shape_b)))
    for axis_a, axis_b in zip(axes_a, axes_b):
        names_b[axis_b] = axis_a
    kept = [n for n in names_a if n not in axes_a] + [n for n in names_b if n >= len(shape_a)]
    result = kept if permute is None else [kept[permute.index(n)] for n in range(len(kept))]
    summed = np.einsum(
        a.reshape((*a.shape[:-1], *shape_a)),
        [Ellipsis, *names_a],
        b.reshape((*b.shape[:-1], *shape_b)),
        [Ellipsis, *names_b],
        [Ellipsis, *result],
    )
    pairs = summed.shape[: summed.ndim - len(result)]
    return summed.reshape(*pairs, math.prod(summed.shape[len(pairs) :]))
