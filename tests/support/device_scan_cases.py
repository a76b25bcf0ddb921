"""Updates and arrays of scans by a user's update, for tests of the kernels of devices."""

import numpy as np
from upsweep import reference
from upsweep._backends.cuda import user_scan_launch
from upsweep._backends.cuda.descriptor import ScanArrays
from upsweep._compiler.recurrences.associative import find_monoid, find_product
from upsweep._compiler.recurrences.trace import trace
from upsweep._core.user_scan import ScanSpec


class DevicePlace:
    """Copies on the device with the strides of the host arrays; results hold 77 before."""

    def __init__(self, memory):
        self.memory, self.allocate = memory, memory.allocate

    def send(self, array):
        if 0 in array.shape or array.ndim == 0 or 0 in array.strides:
            return self.memory.to_device(array)
        # Laid out as on the host: axes from the farthest to the nearest, then turned round again.
        order = in_memory(array)
        flip = tuple(slice(None, None, -1 if stride < 0 else None) for stride in array.strides)
        sent = self.memory.to_device(np.ascontiguousarray(array[flip].transpose(order)))
        pointer, strides = sent.pointer, [0] * array.ndim
        for place, d in enumerate(order):
            strides[d] = sent.strides[place]
            if array.strides[d] < 0:
                pointer += strides[d] * (array.shape[d] - 1)
                strides[d] = -strides[d]
        return sent._replace(pointer=pointer, shape=array.shape, strides=tuple(strides))

    def poisoned(self, like, shape, dtype):
        if like is None or like.shape != shape or 0 in like.strides:
            result = np.full(shape, 77, dtype)
        else:
            result = np.full_like(like, 77, dtype=dtype)
        return self.send(result), result

    def fetch(self, array, result):
        if result.size:
            self.memory.to_host(array, result.transpose(in_memory(result)))
        return result


def in_memory(array):
    """The axes from the farthest to the nearest."""
    return sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def scan(place, update, init, xs, parallel=False, dtypes=None):
    """The outputs and the last states of a scan along the first axis, through the kernels of `place`.

    `place` sends arrays, makes poisoned ones, fetches them, and allocates; `dtypes` are those of results, if they
    are not those of the update.
    """
    inits, arrays = as_tuple(init), as_tuple(xs)
    default = np.result_type(*(x.dtype for x in arrays))
    states = [np.asarray(s, default) if isinstance(s, float) else s for s in inits]
    traced = trace(
        update, tuple(s.dtype for s in states), len(inits) if isinstance(init, tuple) else -1,
        tuple(x.dtype for x in arrays), len(arrays) if isinstance(xs, tuple) else -1,
    )  # fmt: skip
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    length, columns = shape[0], shape[1:]
    sent = [place.send(np.broadcast_to(x, shape)) for x in arrays]
    outputs = [place.poisoned(arrays[0], shape, dtype) for dtype in dtypes or traced.output_dtypes]
    finals = [place.poisoned(None, columns, dtype) for dtype in traced.state_dtypes]
    monoid = None
    if parallel:
        monoid = find_monoid(traced.recurrence)[0] or find_product(traced.recurrence)[0]
    assert (monoid is not None) == parallel
    operands = ScanArrays(
        sent, [array for array, _ in outputs],
        [s if isinstance(s, float) else place.send(np.broadcast_to(s, columns)) for s in inits],
        [array for array, _ in finals],
    )  # fmt: skip
    spec = ScanSpec(traced.recurrence, traced.dtype, length, columns)
    launch = user_scan_launch.prepare(spec, operands, monoid, 0)
    launch.start([getattr(each, "pointer", each) for each in operands.operands], 0, place.allocate)
    return [place.fetch(*result) for result in (*outputs, *finals)]


def expected(update, init, xs):
    """The same by the reference implementation."""
    ys, last = reference.scan(update, init, xs, return_final=True)
    return [*as_tuple(ys), *as_tuple(last)]


def check(place, update, init, xs, parallel=False, tolerance=None):
    results = scan(place, update, init, xs, parallel)
    reference_result = expected(update, init, xs)
    assert len(results) == len(reference_result)
    for got, other in zip(results, reference_result):
        assert got.dtype == other.dtype and got.shape == other.shape
        close = tolerance or {2: 2e-3, 4: 1e-4}.get(got.dtype.itemsize, 1e-10)
        np.testing.assert_allclose(got.astype(float), other.astype(float), rtol=close, atol=close)
    return results


def cell(s, x):
    return np.tanh(0.5 * s + x)


def mixed(s, x):
    """Several states, an output, inputs of any dtype, one that is the same at each step and one in each column."""
    a, b = s
    new = np.where(x[1] > 0, 0.5 * a + x[0], b) * x[2]
    return (new, 0.25 * b + x[3] * a), (new + b, new > 0)


AFFINE = {
    "constant": (lambda s, x: 0.9 * s + 0.1 * x, 0.5),
    "dropped": (lambda s, x: np.where(x > 1.5, 0.0, -0.9 * s) + x, 0.5),
    "two": (lambda s, x: ((0.5 * s[0] - 0.3 * x * s[1], 0.5 * s[0] + x), s[0] * s[1]), (0.5, -1.0)),
    "rotated": (lambda s, x: (0.8 * s[0] - 0.6 * s[1] + x, 0.6 * s[0] + 0.8 * s[1]), (0.5, -1.0)),
}
OTHERS = {
    "moving min": (lambda s, x: np.minimum(s + 0.5 * x, 1.0), 0.5),
    "logaddexp": (lambda s, x: np.logaddexp(s - 0.1, x), 0.5),
    "max with resets": (lambda s, x: np.where(x > 0.97, -x, np.maximum(s - 0.01, x)), 0.5),
    "argmax": (lambda s, x: (np.where(s[0] < x[0], x[0], s[0]), np.where(s[0] < x[0], x[1], s[1])), (-9.0, -1.0)),
    "last argmin": (
        lambda s, x: (np.where(x[0] <= s[0], x[0], s[0]), np.where(x[0] <= s[0], x[1], s[1])), (9.0, -1.0)
    ),
}  # fmt: skip


def argmax_with_resets(s, x):
    reset, beats = x[0] > 0.97, s[0] < x[0]
    return tuple(np.where(reset, first, np.where(beats, new, old)) for first, new, old in zip((-x[0], -1.0), x, s))


def argmin_after_resets(s, x):
    """The states are dropped before the step, as by ``reset=``; the last of equal keys is kept."""
    a, b = (np.where(x[0] > 0.97, 0.0, each) for each in s)
    return np.where(x[0] <= a, x[0], a), np.where(x[0] <= a, x[1], b)


INDEPENDENT = {
    "max and min": (lambda s, x: (np.maximum(s[0], x), np.minimum(s[1] + 0.01, x)), (0.25, -0.5)),
    "four states": (
        lambda s, x: (
            (s[0] + x, np.maximum(s[1] - 0.01, x), 0.9 * s[2] + 0.1 * s[3] + x, 0.5 * s[3] - 0.2 * s[2]),
            s[0] * s[1] + s[2],
        ),
        (0.25, -0.5, 1.0, 2.0),
    ),
    "argmax with resets": (argmax_with_resets, (-9.0, -1.0)),
    "argmin after resets": (argmin_after_resets, (9.0, -1.0)),
}

ALL_STATES = {
    "kept": lambda s, x: np.where(x > 0, 0.5 * s + x, s),
    "dropped": lambda s, x: np.where(x > 1.9, 0.0, (0.5 + 0.4 * x) * s) + x,
    "gated": lambda s, x: (0.5 + 0.4 * x) * s + x,
    "constant": lambda s, x: -0.9 * s + 0.1 * x,
    "no state": lambda s, x: 0.5 * x,
    "growing": lambda s, x: np.where(x > 1.9, x, 4.0 * s - x),
    "sum scaled": lambda s, x: 0.5 * x * (s + 1.0),
    "sums scaled": lambda s, x: np.where(x > -0.5, 0.25 * x * (1.0 - (s - x)), np.where(x > -1.9, s + x, 0.0)),
}


KINDS = ("both infinities", "mostly infinite", "one infinity", "NaN", "finite")


def not_finite(kind, dtype, n=5000):
    """Numbers of which each tile has some that are not finite, or none that the states stay finite with."""
    x = np.random.default_rng(3).uniform(-2, 2, n).astype(dtype)
    at = slice(0, n, 97) if kind != "mostly infinite" else slice(1, n, 2)
    if "infinit" in kind:
        x[at] = np.where(np.arange(len(x[at])) % 2, -np.inf, np.inf)
    if kind == "one infinity":
        x[at] = np.inf
    if kind == "NaN":
        x[at] = np.nan
    return x


def check_not_finite(place, name, dtype, columns):
    """Scan a line of each kind from a number and from an infinite state, and an array of several columns."""
    with np.errstate(all="ignore"):
        for kind in KINDS:
            for init in (0.5, -np.inf):
                check(place, ALL_STATES[name], init, not_finite(kind, dtype), parallel=True, tolerance=1e-3)
        check(place, ALL_STATES[name], 0.25, columns, parallel=True, tolerance=1e-3)


def with_places(name, x):
    """The numbers, and for extremes that remember where they were found their places."""
    if "arg" not in name:
        return x
    places = np.arange(len(x), dtype=x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    return x, np.broadcast_to(places, x.shape).copy()
