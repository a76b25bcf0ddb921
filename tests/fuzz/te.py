"""Loop nests and recurrences of `upsweep.te` under random schedules, against their definitions."""

import hypothesis
import numpy as np
from helpers import flat, same_bits
from hypothesis import strategies as some
from te_programs import Program
from te_reference import Reference
from upsweep import te

from .driver import Case
from .operands import THREADS, chance, pick


def draw(rng):
    """A random recurrence, or a nest."""
    return _recurrences(int(rng.integers(2**31))) if chance(rng, 0.4) else _nest(rng)


def _recurrences(seed):
    """Two random recurrences of the tests' own, which hypothesis draws."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=3, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(some.data())
    def test(data):
        program = Program(data.draw)
        function = te.build(program.schedule(data.draw), program.args())
        x, expected = program.case(data.draw)
        _compare(function, [x], expected, 1e-9)

    return Case(f"the recurrences of hypothesis.seed({seed})", test)


def _compare(function, inputs, expected, tolerance):
    result = flat(function(*inputs))
    for got, want in zip(result, expected, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    for n_threads in THREADS:
        again = flat(function(*inputs, n_threads=n_threads))
        assert all(same_bits(*pair) for pair in zip(again, result)), f"n_threads={n_threads}"


FORMS = {
    "a * 0.5 + b": lambda a, b: a * 0.5 + b,
    "a - b * 0.75": lambda a, b: a - b * 0.75,
    "max(a, b)": lambda a, b: te.max(a, b),
    "select(a > b, a, -b)": lambda a, b: te.select(a > b, a, -b),
    "tanh(a) * b": lambda a, b: te.tanh(a) * b,
    "exp(-abs(a))": lambda a, b: te.exp(-te.abs(a)) + b,
    "sigmoid(a)": lambda a, b: te.sigmoid(a) - b,
    "sqrt(abs(a))": lambda a, b: te.sqrt(te.abs(a) + 1) + b,
    "floor(a)": lambda a, b: te.floor(a * 2.0) + b,
}
REDUCTIONS = {"sum": te.sum, "max": te.max, "min": te.min}


def _nest(rng):
    """An element-wise tensor, a reduction of it or a product of matrices, and one more of that."""
    dtype = pick(rng, "float32", "float64")
    m, n, k = (te.var(name) for name in "mnk")
    sizes = {size: int(pick(rng, 1, 2, 3, 7, 8, 16, 17, 31, 33)) for size in (m, n, k)}
    A, B = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    form, other, reduction = (pick(rng, *names) for names in (FORMS, FORMS, REDUCTIONS))
    first = te.compute((m, k), lambda i, j: FORMS[form](A[i, j], A[i, 0]), name="first")
    axis = te.reduce_axis((0, k), "r")
    reduced = te.compute(
        (m, n), lambda i, j: REDUCTIONS[reduction](first[i, axis] * B[axis, j], axis=axis), name="reduced"
    )
    last = te.compute((m, n), lambda i, j: FORMS[other](reduced[i, j], te.cast(dtype, i + j)), name="last")
    s = te.create_schedule(last.op)
    done = [_scheduled(rng, s[tensor]) for tensor in (first, reduced, last)]
    if chance(rng, 0.3):
        s[first].compute_inline()
        done[0] = "inline"
    elif chance(rng, 0.3) and done[2]:
        s[reduced].compute_at(s[last], s[last].leaves[0])
        done.append("reduced at the outermost loop of last")
    function = te.build(s, [A, B, last])
    inputs = [rng.normal(size=[sizes[size] for size in tensor.shape]).astype(dtype) for tensor in (A, B)]
    shape = tuple(sizes.values())

    def test():
        expected = Reference(sizes, dict(zip((A, B), inputs)))[last]
        _compare(function, inputs, [expected], 1e-9 if dtype == "float64" else 1e-3)

    return Case(f"{form}, {reduction}, {other}: {dtype} m, n, k = {shape}, schedule {done}", test)


def _scheduled(rng, stage):
    """Split, reorder and mark loops; return what was done."""
    done = []
    x, y = stage.op.axis
    if chance(rng, 0.4):
        factor = int(pick(rng, 1, 3, 4, 8, 16))
        outer, inner = stage.split(y, factor=factor)
        done.append(f"split {factor}")
        if chance(rng, 0.5):
            stage.vectorize(inner)
            done.append("vectorize")
        elif chance(rng, 0.5):
            stage.reorder(outer, x, inner)
            done.append("reorder")
    elif chance(rng, 0.3):
        stage.reorder(y, x)
        done.append("reorder")
    if chance(rng, 0.4):
        stage.parallel(stage.leaves[0])
        done.append("parallel")
    if stage.op.reduce_axis and chance(rng, 0.3):
        stage.split(stage.op.reduce_axis[0], factor=int(pick(rng, 2, 5)))
        done.append("split the reduction")
    return done
