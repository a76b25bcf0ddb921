"""The reference implementation of every operation, in plain numpy: one loop over time, and nothing else.

These functions define the results of the compiled ones. They have the same names, and the keywords that affect
the result. A loop runs over the axis step by step, vectorised over all other axes. The state is float64 or
complex128 (integers stay integers in `cumulative_sum`), and each result is rounded once, on the store. Real
factors of complex states stay real.

The keywords that several functions share:

- `axis`: the axis that the scan runs along, counted after all arrays are broadcast together;
- `reverse`: run from the end to the start;
- `initial`: the state before the first step, broadcast to the result's shape without `axis`. Without it
  the first result is the first element itself, and the first gate is not read;
- `reset`: where true, the state before that step is dropped: a choice, never a multiplication by zero;
- `exclusive`: return the state before each step, not the state after it; 0 where there is none;
- `return_final`: return ``(result, final)``, with `final` the state after the last step;
- `precision`: "extended" calculates in ``numpy.longdouble`` and does not round: the oracle of the tests.

The compiled kernels differ in one respect: except in sums, they count subnormal numbers as zero."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]
Maybe = ArrayLike | None
MaybeDType = DTypeLike | None


class Carry(NamedTuple):
    """What a block of steps does to the state: ``value`` where reset, else ``multiplier * state + value``."""

    multiplier: Array
    value: Array
    reset: Array

    def apply(self, state: Maybe) -> Array:
        """Return the state after the block, from the state before it (None: there is none)."""
        if state is None:
            return self.value
        with np.errstate(all="ignore"):
            return np.where(self.reset, self.value, _times(self.multiplier, np.asarray(state)) + self.value)


def combine(a: Carry, b: Carry) -> Carry:
    """Return the carry of block `a` followed, in scan order, by block `b`."""
    reset = a.reset | b.reset
    with np.errstate(all="ignore"):
        product = a.multiplier * b.multiplier
    return Carry(np.where(reset, 0, product).astype(product.dtype), b.apply(a.value), reset)


def linear_recurrence(
    gates: ArrayLike, tokens: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: Maybe = None,
    reset: Maybe = None, exclusive: bool = False, return_final: bool = False, precision: str = "double",
) -> Any:  # fmt: skip
    """Return ``y[t] = gates[t] * y[t-1] + tokens[t]``; in reverse ``y[t] = gates[t] * y[t+1] + tokens[t]``.

    >>> linear_recurrence([9.0, 2.0, 3.0], [1.0, 10.0, 100.0])
    array([  1.,  12., 136.])
    """
    scan = _Scan(gates, tokens, reset, _gated_dtype(gates, tokens), axis, reverse, precision)
    return scan.results(initial, exclusive, return_final)


def discounted_cumsum(
    x: ArrayLike, gamma: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: Maybe = None,
    reset: Maybe = None, window: int | None = None, exclusive: bool = False, return_final: bool = False,
    precision: str = "double",
) -> Any:  # fmt: skip
    """Return ``y[t] = x[t] + gamma * y[t-1]``; with `window`, the sum of its last `window` terms only.

    >>> discounted_cumsum([1.0, 1.0, 1.0], 0.5)
    array([1.  , 1.5 , 1.75])
    >>> discounted_cumsum([1.0, 1.0, 1.0], 0.5, window=2)
    array([1. , 1.5, 1.5])
    """
    scan = _Scan(gamma, x, reset, _discounted_dtype(x, gamma), axis, reverse, precision)
    return scan.results(initial, exclusive, return_final) if window is None else scan.windows(window)


def cumulative_sum(
    x: ArrayLike, *, axis: int = -1, reverse: bool = False, initial: Maybe = None, reset: Maybe = None,
    dtype: MaybeDType = None, include_initial: bool = False, exclusive: bool = False,
    return_final: bool = False, precision: str = "double",
) -> Any:  # fmt: skip
    """Return ``y[t] = x[t] + y[t-1]``, in the dtype that `numpy.cumsum` would give.

    With `include_initial` the result is one longer, and begins (in scan order) with the initial state.

    >>> cumulative_sum([1, 2, 3], reverse=True)
    array([6, 5, 3])
    >>> cumulative_sum([1, 2, 3], include_initial=True)
    array([0, 1, 3, 6])
    """
    scan = _Scan(1, x, reset, _sum_dtype(x, dtype), axis, reverse, precision)
    return scan.results(initial, exclusive, return_final, include_initial)


def scan(
    update: Any, init: Any, xs: Any = None, *, axis: int = 0, reverse: bool = False, reset: Maybe = None,
    return_final: bool = False, length: int | None = None,
) -> Any:  # fmt: skip
    """Return ``update(state, x)`` of all steps: numpy's own functions on one row of `xs` after the other.

    Where `reset` is true, the state before the step is replaced by 0.

    >>> scan(lambda s, x: np.maximum(s - 1, x), 0.0, [3.0, 0.0, 0.0, 5.0])
    array([3., 2., 1., 5.])
    """
    several, single = isinstance(xs, tuple), not isinstance(init, tuple)
    operands = (*(xs if several else () if xs is None else (xs,)), *(() if reset is None else (reset,)))
    arrays = np.broadcast_arrays(*operands)
    starts = (init,) if single else init
    columns = tuple(np.delete(arrays[0].shape, axis)) if arrays else np.broadcast_shapes(*map(np.shape, starts))
    # Python's own numbers take the dtype of xs, if that is a float; large integers do where the update does.
    wide = np.result_type(*(x.dtype for x in arrays)) if arrays else np.dtype(bool)
    weak = {float: np.dtype(float), int: np.dtype(np.uint64 if wide == np.uint64 else np.int64)}
    exact = 2**53 if wide.itemsize == 8 else 2**24
    large = [wide.kind == "f" and type(start) is int and exact <= abs(start) < 2**64 for start in starts]
    states = []
    for start, is_large in zip(starts, large):
        is_weak = type(start) in weak and not is_large
        dtype = np.asarray(start).dtype if not is_weak else wide if wide.kind == "f" else weak[type(start)]
        states.append(np.full(columns, start, dtype))
    rows = [np.moveaxis(x, axis, 0) for x in arrays]
    n_steps = len(rows[0]) if rows else int(length or 0)

    def step(states: list[Array], t: int) -> tuple[list[Array], Any]:
        x = tuple(row[t] for row in rows)
        if reset is not None:
            states = [np.where(x[-1], s.dtype.type(0), s) for s in states]
            x = x[:-1]
        result = update(states[0] if single else tuple(states), x if several else x[0] if x else None)
        if isinstance(result, np.ndarray) and not single:
            result = tuple(result)
        is_pair = isinstance(result, tuple) and (single or isinstance(result[0], tuple))
        new, output = result if is_pair else (result, result)
        return [*map(np.asarray, (new,) if single else new)], output

    collected: list[Any] = [None] * n_steps
    output: Any = None
    with np.errstate(all="ignore"):
        while n_steps:  # integers that the update makes floats, or larger integers, begin as these
            new, _ = step(states, 0)
            dtypes = [np.result_type(n, s) if s.dtype.kind in "iu" else s.dtype for n, s in zip(new, states)]
            dtypes = [wide if is_one and n.dtype.kind == "f" else d for d, n, is_one in zip(dtypes, new, large)]
            if dtypes == [s.dtype for s in states]:
                break
            states = [s.astype(dtype) for s, dtype in zip(states, dtypes)]
        for t in range(n_steps)[:: -1 if reverse else None]:
            new, output = step(states, t)
            states = [np.broadcast_to(n.astype(s.dtype), s.shape) for n, s in zip(new, states)]
            collected[t] = tuple(output) if isinstance(output, tuple) else (output,)

    def stacked(items: Any) -> Array:
        return np.moveaxis(np.stack([np.broadcast_to(item, columns) for item in items]), 0, axis)

    ys = tuple(stacked(items) for items in zip(*collected))
    is_tuple = n_steps > 0 and isinstance(output, tuple)
    default = wide if wide.kind == "f" else np.dtype(float)
    place = axis % (len(columns) + 1)
    empty = np.zeros((*columns[:place], 0, *columns[place:]), default)
    result = ys if is_tuple else ys[0] if ys else empty
    return (result, states[0] if single else tuple(states)) if return_final else result


def discounted_cumsum_right(x: ArrayLike, gamma: ArrayLike) -> Any:
    """Return ``y[t] = x[t] + gamma * y[t+1]`` along the last axis; one gamma, or one for each row of `x`."""
    return discounted_cumsum(x, _per_row(x, gamma), reverse=True)


def discounted_cumsum_left(x: ArrayLike, gamma: ArrayLike) -> Any:
    """Return ``y[t] = x[t] + gamma * y[t-1]`` along the last axis; one gamma, or one for each row of `x`."""
    return discounted_cumsum(x, _per_row(x, gamma))


def scan_forward(gates: ArrayLike, tokens: ArrayLike, reverse: bool = False) -> Any:
    """Return ``linear_recurrence(gates, tokens, reverse=reverse)``, along the last axis."""
    return linear_recurrence(gates, tokens, reverse=reverse)


def pscan(gates: ArrayLike, tokens: ArrayLike) -> Any:
    """Return ``scan_forward(gates, tokens)``."""
    return scan_forward(gates, tokens)


def linear_recurrence_carry(gates: ArrayLike, tokens: ArrayLike, *, reset: Maybe = None, **order: Any) -> Carry:
    """Return what this block of a recurrence does to the state."""
    return _Scan(gates, tokens, reset, _gated_dtype(gates, tokens), **order).carry()


def discounted_cumsum_carry(x: ArrayLike, gamma: ArrayLike, *, reset: Maybe = None, **order: Any) -> Carry:
    """Return what this block of a discounted sum does to the state."""
    return _Scan(gamma, x, reset, _discounted_dtype(x, gamma), **order).carry()


def cumulative_sum_carry(x: ArrayLike, *, reset: Maybe = None, dtype: MaybeDType = None, **order: Any) -> Carry:
    """Return what this block of a sum does to the state."""
    return _Scan(1, x, reset, _sum_dtype(x, dtype), **order).carry()


def bincount(
    x: ArrayLike, weights: Maybe = None, minlength: int = 0, *, length: int | None = None,
    axis: int | None = None, dtype: MaybeDType = None, invalid: str = "raise",
) -> Array:  # fmt: skip
    """Return how often each key of `x` occurs, or the sum of its weights, in the order of the keys.

    There are ``max(x.max() + 1, minlength)`` bins, or exactly `length`. A key that has no bin raises
    ValueError, or is left out with ``invalid="drop"``. Along an `axis`, every line of `x` is counted on its own,
    in as many bins. Each key has a weight, or a row of them, which is summed on its own.

    >>> bincount([1, 3, 3], minlength=5)
    array([0, 1, 0, 2, 0])
    >>> bincount([1, 3, 3], [0.5, 1.0, 2.0])
    array([0. , 0.5, 0. , 3. ])
    >>> bincount([[1, 0], [1, 1]], axis=0)
    array([[0, 1],
           [2, 1]])
    """
    at = 0 if axis is None else axis % np.ndim(x)  # from the front: weights may have one axis more
    keys = np.moveaxis(np.asarray(x), at, -1)
    valid = keys[keys >= 0]
    n_bins = max([minlength, *(int(key) + 1 for key in valid.reshape(-1))]) if length is None else length
    terms = np.ones(keys.shape, np.intp)
    if weights is not None:
        terms = np.moveaxis(np.asarray(weights), at, keys.ndim - 1)
    result = np.zeros((*keys.shape[:-1], n_bins, *terms.shape[keys.ndim :]), _sums_dtype(keys, weights, dtype))
    for *row, t in np.ndindex(keys.shape):
        key = int(keys[*row, t])
        if 0 <= key < n_bins:
            result[*row, key] += terms[*row, t].astype(result.dtype)
        elif invalid == "raise":
            raise ValueError(f"x has the key {key}, outside of the {n_bins} bins")
    whole = np.moveaxis(result, keys.ndim - 1, at)
    return whole if dtype is None else whole.astype(dtype)


def _sums_dtype(keys: Array, weights: Maybe, dtype: MaybeDType) -> np.dtype[Any]:
    if weights is None or keys.size == 0:
        return np.dtype(np.intp)
    kind = np.asarray(weights).dtype.kind
    if kind in "biu" and dtype is not None and np.dtype(dtype).kind in "iu":
        return np.dtype(np.int64)
    return np.dtype(np.complex128 if kind == "c" else np.float64)


def histogram(
    x: ArrayLike, bins: Any = 10, range: Any = None, *, weights: Maybe = None, density: bool = False
) -> tuple[Array, Array]:
    """Return how many elements lie between each two edges, or the sum of their weights; and the edges.

    A bin has its lower edge and not its upper one, the last has both. That is also what numpy's rule for bins of
    equal width comes to, unless the bins are about as narrow as the roundings of its arithmetic.

    >>> histogram([1, 2, 1, 4], bins=3)[0]
    array([2, 1, 1])
    >>> histogram([1.0, 2.0, 2.5], bins=[1, 2, 3], weights=[0.5, 1.0, 2.0])[0]
    array([0.5, 3. ])
    """
    numbers = np.ravel(x)
    edges = np.histogram_bin_edges(numbers, bins, range)
    terms = np.ones(numbers.size, np.intp) if weights is None else np.ravel(weights)
    result = np.zeros(edges.size - 1, terms.dtype)
    for number, term in zip(numbers, terms):
        if edges[0] <= number <= edges[-1]:
            result[min(np.searchsorted(edges, number, "right"), result.size) - 1] += term
    if density:
        return result / np.diff(edges).astype(float) / result.sum(), edges
    return result, edges


def histc(x: ArrayLike, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    """Return how many elements each of the bins of equal width has: the bin is ``(x - min) * bins / (max - min)``,
    calculated in x's dtype (exactly for integers) and cut to an integer; `max` is in the last.

    >>> histc([1.0, 2.0, 1.0], bins=4, min=0, max=3)
    array([0., 2., 1., 0.])
    """
    numbers = np.ravel(x)
    kind = Fraction if numbers.dtype.kind in "iu" else numbers.dtype.type  # exact: ends may be fractions
    low, high, n_bins = (kind(np.asarray(number).item()) for number in (min, max, bins))
    if low == high and numbers.size:
        low, high = kind(numbers.min().item()), kind(numbers.max().item())
    if low == high:
        low, high = _widened(low, -1), _widened(high, 1)
    result = np.zeros(bins, np.intp)
    for number in map(kind, numbers.tolist()):
        if low <= number <= high:
            distance = (number - low) * n_bins
            place = distance / (high - low)  # infinite where the distance overflows
            result[int(place) if place < bins else -1] += 1
    return result.astype(numbers.dtype)


def _widened(end: Any, by: int) -> Any:
    """Return the end of a range moved by 1, or to the next number of float32 or float64 where that is farther."""
    moved = end + type(end)(by)
    return np.nextafter(end, by * np.inf) if moved == end and end.dtype.itemsize > 2 else moved


class _Scan:
    """One recurrence with its arrays broadcast together, time on their first axis, and in scan order."""

    def __init__(
        self, gates: ArrayLike, tokens: ArrayLike, reset: Maybe, dtype: np.dtype[Any], axis: int = -1,
        reverse: bool = False, precision: str = "double",
    ) -> None:  # fmt: skip
        self.dtype, self.axis, self.reverse, self.extended = dtype, axis, reverse, precision == "extended"
        self.work = _working_dtype(dtype, self.extended)
        arrays = np.broadcast_arrays(gates, tokens, np.asarray(False if reset is None else reset, bool))
        order = slice(None, None, -1 if reverse else None)
        gates, tokens, self.reset = (np.moveaxis(array, axis, 0)[order] for array in arrays)
        real = gates.dtype.kind != "c"
        self.factor = self.work.type(0).real.dtype if real else self.work
        self.gates = gates.astype(self.factor)
        self.tokens = tokens.astype(self.work)

    def states(self, initial: Maybe = None) -> tuple[Array, Array]:
        """Return the state entering each step, and the states: the first, then one after each step."""
        shape = self.tokens.shape[1:]
        states = np.zeros((len(self.tokens) + 1, *shape), self.work)
        if initial is not None:
            states[0] = np.broadcast_to(np.asarray(initial), shape)
        with np.errstate(all="ignore"):
            for t, token in enumerate(self.tokens):
                dropped = self.reset[t] | (initial is None and t == 0)
                states[t + 1] = np.where(dropped, token, _times(self.gates[t], states[t]) + token)
        return np.where(self.reset, 0, states[:-1]).astype(self.work), states

    def results(self, initial: Maybe, exclusive: bool, final: bool, include_initial: bool = False) -> Any:
        entering, states = self.states(initial)
        y = self.store(entering if exclusive else states if include_initial else states[1:])
        return (y, self.round(states[-1, ...], state=True)) if final else y

    def windows(self, window: int) -> Array:
        """Sum each window on its own, from its oldest element to its newest."""
        y, n = np.zeros_like(self.tokens), len(self.tokens)
        oldest = min(window, n) - 1
        with np.errstate(all="ignore"):
            for lag in range(oldest, -1, -1):  # y[t] takes its element t - lag in
                tokens, dropped = self.tokens[: n - lag], self.reset[: n - lag] | (lag == oldest)
                dropped[:1] = True
                y[lag:] = np.where(dropped, tokens, _times(self.gates[: n - lag], y[lag:]) + tokens)
        return self.store(y)

    def carry(self) -> Carry:
        reset = np.asarray(self.reset.any(axis=0))
        with np.errstate(all="ignore"):
            multiplier = np.where(reset, 0, self.gates.prod(axis=0)).astype(self.factor)
        return Carry(multiplier, self.states()[1][-1, ...], reset)

    def store(self, y: Array) -> Array:
        return self.round(np.moveaxis(y[::-1] if self.reverse else y, 0, self.axis))

    def round(self, y: Array, state: bool = False) -> Array:
        half = self.dtype.name in ("float16", "bfloat16")
        with np.errstate(all="ignore"):
            return y if self.extended else y.astype(np.float32 if state and half else self.dtype)


def _times(factor: Array, state: Array) -> Array:
    """Multiply; a real factor multiplies both parts of a complex state, and is not made complex before."""
    if state.dtype.kind != "c" or factor.dtype.kind == "c":
        return np.asarray(factor * state)
    product = np.empty(np.broadcast_shapes(factor.shape, state.shape), state.dtype)
    product.real, product.imag = factor * state.real, factor * state.imag
    return product


def _gated_dtype(*operands: Any) -> np.dtype[Any]:
    weak = (int, float, complex)  # Python's own numbers do not widen an array's dtype
    dtype = np.result_type(*(x if isinstance(x, weak) else np.asarray(x) for x in operands))
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")


def _discounted_dtype(x: ArrayLike, gamma: ArrayLike) -> np.dtype[Any]:
    dtype = _gated_dtype(x)
    return np.result_type(dtype, np.complex64) if np.iscomplexobj(gamma) else dtype


def _sum_dtype(x: ArrayLike, dtype: MaybeDType) -> np.dtype[Any]:
    smallest = np.add.reduce(np.empty(0, np.asarray(x).dtype)).dtype
    return (smallest if dtype is None else np.dtype(dtype)).newbyteorder("=")


def _working_dtype(dtype: np.dtype[Any], extended: bool) -> np.dtype[Any]:
    wide = {"i": "int64", "u": "uint64", "c": "clongdouble" if extended else "complex128"}
    return np.dtype(wide.get(dtype.kind, "longdouble" if extended else "float64"))


def _per_row(x: ArrayLike, gamma: ArrayLike) -> ArrayLike:
    x, gamma = np.asarray(x), np.asarray(gamma)
    return gamma[:, np.newaxis] if x.ndim == 2 and gamma.shape == x.shape[:1] else gamma


def pair_reduction(*args: Any, **kwargs: Any) -> tuple[Array, ...]:
    """Reduction over pairs in float64; see `upsweep._compiler.formulas.reference`."""
    from upsweep._compiler.formulas import reference  # with the whole of formulas: only who asks for it pays

    return reference.pair_reduction(*args, **kwargs)
