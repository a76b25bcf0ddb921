"""Reductions of random formulas over pairs, against dense numpy; gradients against differences."""

import numpy as np
import upsweep
from helpers import flat, same_bits
from upsweep import LazyTensor, Pm, Vi, Vj

from .driver import Case
from .operands import THREADS, chance, pick

# Each operation on a LazyTensor, and the same on arrays whose last axis holds the features.
UNARY = {
    "exp": (lambda a: (-a.abs()).exp(), lambda a: np.exp(-np.abs(a))),
    "sin": (lambda a: a.sin(), np.sin),
    "cos": (lambda a: a.cos(), np.cos),
    "tanh": (lambda a: a.tanh(), np.tanh),
    "atan": (lambda a: a.atan(), np.arctan),
    "square": (lambda a: a.sin().square(), lambda a: np.sin(a) ** 2),
    "sqrt": (lambda a: (a.square() + 0.5).sqrt(), lambda a: np.sqrt(a**2 + 0.5)),
    "rsqrt": (lambda a: (a.square() + 0.5).rsqrt(), lambda a: 1 / np.sqrt(a**2 + 0.5)),
    "log": (lambda a: (a.square() + 1).log(), lambda a: np.log(a**2 + 1)),
    "abs": (lambda a: a.abs(), np.abs),
    "relu": (lambda a: a.relu(), lambda a: np.maximum(a, 0)),
    "neg": (lambda a: -a, np.negative),
    "scaled": (lambda a: 0.3 * a - 1.5, lambda a: 0.3 * a - 1.5),
    "clamp": (lambda a: a.clamp(-1, 0.5), lambda a: np.clip(a, -1, 0.5)),
    "sum": (lambda a: a.sum(-1) if a.ndim > 1 else a, lambda a: a.sum(-1, keepdims=True)),
    "norm2": (lambda a: (a.sqnorm2() + 0.1).sqrt(), lambda a: np.sqrt((a**2).sum(-1, keepdims=True) + 0.1)),
    "first": (lambda a: a[0], lambda a: a[..., :1]),
    "step": (lambda a: a.step(), lambda a: (a >= 0).astype(float)),
    "sign": (lambda a: a.sign(), np.sign),
}
BINARY = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "div": (lambda a, b: a / (b.square() + 0.5), lambda a, b: a / (b**2 + 0.5)),
    "sqdist": (lambda a, b: a.sqdist(b), lambda a, b: ((a - b) ** 2).sum(-1, keepdims=True)),
    "scalprod": (lambda a, b: (a * b) | (a - b), lambda a, b: (a * b * (a - b)).sum(-1, keepdims=True)),
    # Less 0.25, since a value that is 0 or 1 may be a comparison, whose ifelse is another one.
    "ifelse": (lambda a, b: (a - 0.25).ifelse(b, a * b), lambda a, b: np.where(a - 0.25 >= 0, b, a * b)),
    "choice": (lambda a, b: (a < b).ifelse(b, a * b), lambda a, b: np.where(a < b, b, a * b)),
    "atan2": (lambda a, b: a.atan2(b.square() + 0.5), lambda a, b: np.arctan2(a, b**2 + 0.5)),
    "less": (lambda a, b: a < b, lambda a, b: (a < b).astype(float)),
}
REDUCTIONS = ("sum", "sum", "logsumexp", "min", "max", "argmin", "argmax", "Kmin", "sumsoftmaxweight")


def draw(rng):
    """One reduction of one formula, at times over ranges, at times with gradients."""
    n_i, n_j, dim = (int(pick(rng, *sizes)) for sizes in ((1, 2, 5, 17, 70), (1, 3, 16, 33, 200), (1, 2, 3, 5)))
    batch = pick(rng, (), (), (), (2,))
    gradient = not batch and n_i * n_j <= 600 and chance(rng, 0.25)  # of sums
    dtype = np.dtype(np.float64 if gradient or chance(rng, 0.5) else np.float32)
    arrays = [
        rng.normal(size=size).astype(dtype)
        for size in ((*batch, n_i, dim), (*batch, n_j, dim), (*batch, n_j, 1), (dim,))
    ]
    steps = _steps(rng)
    name = pick(rng, *REDUCTIONS[:2]) if gradient else pick(rng, *REDUCTIONS)
    axis = int(rng.integers(2))
    ranges = None if batch or gradient or chance(rng, 0.7) else _ranges(rng, n_i, n_j)
    text = f"{name} over axis {axis} of {steps}, {dtype}, {batch} {n_i} x {n_j} x {dim}, ranges={ranges}"

    def test():
        _check(steps, arrays, name, axis, ranges)
        if gradient:
            _check_gradient(rng, steps, arrays, axis)

    return Case(text, test)


def _steps(rng):
    """Operations by name, with the places of their operands: 0 to 3 are the arrays, then the results."""
    result = []
    names = sorted({*UNARY, *BINARY})
    for place in range(4, 4 + int(rng.integers(2, 8))):
        name = pick(rng, *names)
        places = [int(rng.integers(max(0, place - 4), place)) for _ in range(2 if name in BINARY else 1)]
        result.append((name, *places))
    return result


def _evaluate(steps, pool, which):
    """The formula of LazyTensors (which=0) or of arrays (which=1); it reads all of the four operands."""
    pool = list(pool)
    for name, *places in steps:
        pool.append((UNARY | BINARY)[name][which](*(pool[place] for place in places)))
    first = UNARY["first"][which]
    x, y, b, p = map(first, pool[:4])
    return UNARY["sum"][which](pool[-1] + 0.5 * pool[4]) + 0.01 * (x * b + y * p)


def _operands(arrays):
    x, y, b, p = arrays
    if x.ndim == 2:
        return Vi(x), Vj(y), Vj(b), Pm(p)
    return LazyTensor(x[..., :, None, :]), LazyTensor(y[..., None, :, :]), LazyTensor(b[..., None, :, :]), Pm(p)


def _dense(steps, arrays):
    x, y, b, p = (array.astype(np.float64) for array in arrays)
    return _evaluate(steps, (x[..., :, None, :], y[..., None, :, :], b[..., None, :, :], p), 1)[..., 0]


def _ranges(rng, n_i, n_j):
    """Blocks of rows and columns, and which of them are combined, as KeOps' six arrays."""
    rows, columns = (np.unique([0, *rng.integers(0, n + 1, 3), n]) for n in (n_i, n_j))
    blocks = [np.stack([cuts[:-1], cuts[1:]], 1).astype(np.int32) for cuts in (rows, columns)]
    mask = rng.random((len(blocks[0]), len(blocks[1]))) < 0.6
    return (*_triple(mask, *blocks), *_triple(mask.T, *blocks[::-1]))


def _triple(mask, rows, columns):
    return rows, np.cumsum(mask.sum(1)).astype(np.int32), columns[np.nonzero(mask)[1]].astype(np.int32)


def _mask(ranges, n_i, n_j):
    mask = np.zeros((n_i, n_j), bool)
    begin = 0
    for (first, last), end in zip(ranges[0], ranges[1]):
        for low, high in ranges[2][begin:end]:
            mask[first:last, low:high] = True
        begin = end
    return mask


def _reduce(lazy, name, axis, weight):
    axis += lazy.nbatchdims
    if name == "Kmin":
        return lazy.Kmin(3, axis=axis)
    if name == "sumsoftmaxweight":
        return lazy.sumsoftmaxweight(weight, axis=axis)
    return getattr(lazy, name)(axis=axis)


def _check(steps, arrays, name, axis, ranges):
    operands = _operands(arrays)
    lazy, values = _evaluate(steps, operands, 0), _dense(steps, arrays)
    n_i, n_j = values.shape[-2:]
    if ranges is not None:
        lazy.ranges = ranges
        mask = _mask(ranges, n_i, n_j)
    else:
        mask = np.ones((n_i, n_j), bool)
    result = _reduce(lazy, name, axis, operands[2])
    for n_threads in THREADS[:2]:
        upsweep.set_num_threads(n_threads)
        assert all(same_bits(*pair) for pair in zip(flat(_reduce(lazy, name, axis, operands[2])), flat(result)))
    axis -= 2
    tolerance = 2e-11 if arrays[0].dtype == np.float64 else 2e-3
    size = np.abs(values).max(initial=1.0)
    if name == "sum":
        expected, size = np.where(mask, values, 0).sum(axis), np.where(mask, np.abs(values), 0).sum(axis) + size
    elif name == "logsumexp":
        expected = np.logaddexp.reduce(np.where(mask, values, -np.inf), axis)
    elif name == "sumsoftmaxweight":
        powers = np.where(mask, np.exp(values - np.max(values, axis, keepdims=True, initial=-np.inf)), 0)
        weights = np.broadcast_to(arrays[2][..., None, :, 0], values.shape)
        total = powers.sum(axis)
        expected = np.where(total > 0, (powers * weights).sum(axis) / np.where(total > 0, total, 1), 0)
        size = np.abs(weights).max(initial=1.0) * (1 + size)
        if (mask.any(axis) & (total < 1e-200)).any():
            return
    else:
        _check_order(values, mask, name, axis, result, tolerance * size)
        return
    result = result[..., 0]
    same = (result == expected) | (np.abs(result - expected) <= tolerance * size)
    assert same.all(), (result[~same], expected[~same])


def _check_order(values, mask, name, axis, result, allowed):
    """Extremes; of an index, the value there is compared, as equal values may differ in the last place."""
    sign = -1 if "max" in name else 1
    ordered = np.where(mask, sign * values, np.inf)
    n = 3 if name == "Kmin" else 1
    best = np.sort(ordered, axis)
    best = np.moveaxis(best, axis, -1)[..., :n]
    best = np.concatenate([best, np.full((*best.shape[:-1], n - best.shape[-1]), np.inf)], -1)
    if name.startswith("arg"):
        has_any = np.isfinite(best[..., 0])
        place = np.where(has_any, result[..., 0], 0).astype(int)
        result = sign * np.take_along_axis(np.moveaxis(ordered, axis, -1), place[..., None], -1)
        result = np.where(has_any[..., None], result, sign * best)
    same = (sign * result == best) | (np.abs(sign * result - best) <= allowed)
    assert same.all(), (result[~same], sign * best[~same])


def _check_gradient(rng, steps, arrays, axis):
    """The derivative into a random direction, of all arrays at once."""
    directions = [rng.normal(size=array.shape) for array in arrays]
    operands = _operands(arrays)
    reduction = _evaluate(steps, operands, 0).sum(axis=axis, call=False)
    _, gradients = reduction.value_and_grad(wrt=list(operands))
    result = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions))

    def loss(step):
        return _dense(steps, [a + step * d for a, d in zip(arrays, directions)]).sum()

    expected, rougher = ((loss(step) - loss(-step)) / (2 * step) for step in (1e-6, 2e-6))
    size = (
        1 + np.abs(_dense(steps, arrays)).sum() + sum(np.abs(g * d).sum() for g, d in zip(gradients, directions))
    )
    if abs(rougher - expected) <= 1e-7 * size:  # else there is a jump or a kink between
        assert abs(result - expected) <= 1e-6 * size, (result, expected)
