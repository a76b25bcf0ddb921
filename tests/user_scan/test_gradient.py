"""Gradients of scans against differences, and their shapes, dtypes and errors."""

import numpy as np
import pytest
import upsweep
from helpers import random
from upsweep import reference

UPDATES = {
    "cell": (lambda s, x: np.tanh(0.5 * s * x[1] + x[0]), 1),
    "choice": (lambda s, x: (np.where(x[0] > 0, s * x[1], s - x[0]), np.exp(-s * s) + x[0]), 1),
    "extremes": (lambda s, x: (np.maximum(0.8 * s, x[0]), np.logaddexp(s, x[1]) / (1 + x[0] * x[0])), 1),
    "two": (lambda s, x: ((s[0] * 0.5 + s[1] * x[0], s[0] - s[1] * x[1]), (s[0] * s[1], s[1])), 2),
    "states": (lambda s, x: (s[1] * x[0], 0.5 * s[0] + x[1]), 2),
    "functions": (
        lambda s, x: np.sqrt(1 + s * s) * np.sin(x[0]) + np.log(2 + np.cos(s)) + np.tanh(s) ** 3 + 2.0 ** x[1], 1
    ),
    "exponentials": (
        lambda s, x: np.log1p(s * s) * np.expm1(0.1 * x[0]) + np.log2(2 + np.cos(s)) + np.exp2(x[1]) * 0.1
        + np.log10(1 + x[0] * x[0]) + upsweep.sigmoid(s) + upsweep.silu(x[1]) + upsweep.softplus(s), 1
    ),
    "hyperbolic": (
        lambda s, x: np.tanh(np.sinh(0.3 * s) + np.cosh(0.2 * x[0]) + np.arcsinh(s) + np.arccosh(1.5 + x[1] * x[1])
        - np.arctanh(0.5 * np.tanh(s)) - np.tan(0.5 * np.tanh(x[0])) - upsweep.scan.erf(s)), 1
    ),
    "pairs": (
        lambda s, x: 0.2 * np.hypot(s, x[0]) + np.copysign(s, x[1]) * 0.5 + np.fmod(s + 3, 1.5 + x[0] * x[0])
        + np.fmin(s, x[0]) * 0.1 + np.fmax(x[1], x[0]), 1
    ),
}  # fmt: skip


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def loss(update, init, xs, cotangent, last, **keywords):
    ys, final = reference.scan(update, init, xs, return_final=True, **keywords)
    pairs = [*zip(as_tuple(cotangent), as_tuple(ys)), *zip(as_tuple(last), as_tuple(final))]
    return sum(np.sum(c * y) for c, y in pairs)


def check(update, init, xs, cotangent, last, checkpoint=None, **keywords):
    results = upsweep.scan.gradient(
        update, init, xs, cotangent, final_cotangent=last, checkpoint=checkpoint, **keywords
    )
    generator, step = np.random.default_rng(0), 1e-6
    for which, arguments in enumerate((init, xs)):
        for place, (array, gradient) in enumerate(zip(as_tuple(arguments), as_tuple(results[which]))):
            assert gradient.shape == array.shape and gradient.dtype == array.dtype
            for _ in range(3):
                at = tuple(generator.integers(n) for n in array.shape)
                values = []
                for shift in (step, -step):
                    moved = [a.copy() for a in as_tuple(arguments)]
                    moved[place][at] += shift
                    moved = tuple(moved) if isinstance(arguments, tuple) else moved[0]
                    values.append(
                        loss(update, *((moved, xs) if which == 0 else (init, moved)), cotangent, last, **keywords)
                    )
                expected = (values[0] - values[1]) / (2 * step)
                assert abs(gradient[at] - expected) <= 1e-5 * (1 + abs(expected)), (which, place, at)


@pytest.mark.parametrize("keywords", [{}, {"reverse": True}, {"axis": 1}, {"axis": 1, "reverse": True}])
@pytest.mark.parametrize("checkpoint", [None, 4, 100])
@pytest.mark.parametrize("name", UPDATES)
def test_gradients(name, checkpoint, keywords):
    update, n_outputs = UPDATES[name]
    columns = 5 if keywords.get("axis") else 18
    shape = (columns, 18) if keywords.get("axis") else (18, columns)
    init = random(columns, seed=1)
    if name in ("two", "states"):
        init = (init, random(columns, seed=2))
    cotangent = tuple(random(shape, seed=3 + n) for n in range(n_outputs))
    last = tuple(random(columns, seed=6 + n) for n in range(len(as_tuple(init))))
    check(
        update, init, (random(shape), random((1, 18), seed=9)), cotangent if n_outputs > 1 else cotangent[0],
        last if isinstance(init, tuple) else last[0], checkpoint, **keywords,
    )  # fmt: skip


def test_gradients_of_long_lines_are_parallel_in_time():
    x, cotangent = random(50_000), random(50_000, seed=1)
    results = upsweep.scan.gradient(lambda s, x: 0.9 * s + 0.1 * x, 0.0, x, cotangent)
    expected = upsweep.discounted_cumsum(cotangent, 0.9, reverse=True)
    np.testing.assert_allclose(results.xs, 0.1 * expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(results.init, 0.9 * expected[0], rtol=1e-9)


def test_only_the_final_state_counts():
    x = random((7, 3)) + 2
    results = upsweep.scan.gradient(lambda s, x: s * x, np.ones(3), x, None, final_cotangent=1.0)
    np.testing.assert_allclose(results.xs, x.prod(0) / x)
    np.testing.assert_allclose(results.init, x.prod(0))


def test_dtypes_of_gradients():
    x = random((6, 3), np.float32)
    results = upsweep.scan.gradient(lambda s, x: s + x[0] * x[1], 0.0, (x, np.arange(3)), np.ones((6, 3)))
    assert [g.dtype for g in results.xs] == [np.float32, np.float64]
    assert results.init.dtype == np.float64 and results.init.shape == ()  # a Python number is of the dtype of xs
    assert results.init == 18


def test_cotangents_that_do_not_fit():
    x, gradient = random((6, 3)), upsweep.scan.gradient
    with pytest.raises(ValueError, match=r"cotangent: shape \(5,\) does not broadcast to \(6, 3\)"):
        gradient(lambda s, x: s + x, 0.0, x, np.ones(5))
    with pytest.raises(TypeError, match="cotangent: expected a single array"):
        gradient(lambda s, x: s + x, 0.0, x, (x, x))
    with pytest.raises(TypeError, match="final_cotangent: expected a tuple of 1"):
        gradient(lambda s, x: (s[0] + x,), (0.0,), x, None, final_cotangent=1.0)
    with pytest.raises(TypeError, match="checkpoint: expected an integer or None"):
        gradient(lambda s, x: s + x, 0.0, x, x, checkpoint=1.5)


# Updates whose untaken branch has an infinite derivative or NaN at x = 0 or -1; and d/ds and d/dx of one step.
SELECTS = {
    "sqrt": (
        lambda s, x: 0.5 * s + np.where(x > 0, np.sqrt(x), x * x),
        lambda s, x: (0.5, 0.5 / x**0.5 if x > 0 else 2 * x),
    ),
    "log": (
        lambda s, x: 0.5 * s + np.where(x < 0.25, 0.5 * x, np.log(x)),
        lambda s, x: (0.5, 0.5 if x < 0.25 else 1 / x),
    ),
    "inverse": (
        lambda s, x: np.where(x == 0, 0.5 * s, 0.25 * s / x),
        lambda s, x: (0.25 / x, -0.25 * s / x**2) if x else (0.5, 0),
    ),
    "maximum": (
        lambda s, x: 0.5 * s + np.maximum(np.log(x * x), -3.0),
        lambda s, x: (0.5, 2 / x if x and np.log(x * x) >= -3 else 0),
    ),
    "clip": (
        lambda s, x: 0.5 * s + np.clip(1 / x, -0.75, 0.75),
        lambda s, x: (0.5, -1 / x**2 if x and abs(1 / x) < 0.75 else 0),
    ),
    "nested": (
        lambda s, x: np.where(x > 0, 0.5 * s + x, np.where(x == 0, 0.5 * s, s * x / np.sqrt(-x))),
        lambda s, x: (0.5, 1) if x > 0 else (0.5, 0) if x == 0 else (-((-x) ** 0.5), 0.5 * s / (-x) ** 0.5),
    ),
    "of the state": (
        lambda s, x: np.where(s > 0.5, np.sqrt(s - 0.5) + x, 0.25 * s * s + x),
        lambda s, x: (0.5 / (s - 0.5) ** 0.5 if s > 0.5 else 0.5 * s, 1),
    ),
}


@pytest.mark.parametrize("length", [9, 30_000])  # the second is parallel in time where the adjoint can be
@pytest.mark.parametrize("name", SELECTS)
def test_a_branch_that_is_not_taken_contributes_nothing(name, length):
    update, derivatives = SELECTS[name]
    x = np.resize([0.0, -1.0, 4.0, 0.5, 0.0, 2.0, -0.25], length)
    with np.errstate(all="ignore"):
        states = np.append(0.3, reference.scan(update, 0.3, x))
    expected, back = np.empty(length), 0.0
    for t in reversed(range(length)):
        of_state, of_input = derivatives(float(states[t]), float(x[t]))
        expected[t], back = (back + 1) * of_input, (back + 1) * of_state
    results = upsweep.scan.gradient(update, 0.3, x, np.ones(length))
    np.testing.assert_allclose(results.xs, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(results.init, back, rtol=1e-9, atol=1e-12)


def test_powers_with_an_exponent_of_0():
    """The derivative of a constant is 0, also at 0, where 0 * x**-1 is not a number."""
    x = np.array([0.0, 2.0, np.inf])
    for update, xs in (
        (lambda s, x: 0.5 * s + x**0, x), (lambda s, x: 0.5 * s + x[0] ** x[1], (x, np.zeros(3))),
        (lambda s, x: 0.5 * s + s**0 + 0 * x, np.zeros(3)),
    ):  # fmt: skip
        result = upsweep.scan.gradient(update, 0.0, xs, np.ones(3))
        assert result.init == 0.875
        np.testing.assert_array_equal(as_tuple(result.xs)[0], np.zeros(3))
