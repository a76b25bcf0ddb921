"""Hazard: time in parallel. Which updates are recognised, and that they give what the loop gives."""

from fractions import Fraction

import numpy as np
import pytest
import upsweep
from helpers import random
from upsweep import reference
from upsweep._compiler.recurrences.associative import matrix_powers

LENGTHS = (4096, 4097, 30_011, 300_001)


def side_by_side(update, init, xs, **keywords):
    """The same with enough equal columns that time is sequential."""
    several = xs if isinstance(xs, tuple) else (xs,)
    wide = tuple(np.broadcast_to(x[..., None], (*x.shape, 9)) for x in several)
    wide = wide if isinstance(xs, tuple) else wide[0]
    assert upsweep.scan.explain(update, init, wide, **keywords).path == "sequential in time"
    ys, final = upsweep.scan(update, init, wide, return_final=True, **keywords)
    return tuple(as_tuple(y)[k][..., 4] for y in (ys, final) for k in range(len(as_tuple(y))))


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def check(update, init, xs, tolerance=1e-10, **keywords):
    assert upsweep.scan.explain(update, init, xs, **keywords).path == "parallel in time"
    ys, final = upsweep.scan(update, init, xs, return_final=True, **keywords)
    result, reference_result = (*as_tuple(ys), *as_tuple(final)), side_by_side(update, init, xs, **keywords)
    assert len(result) == len(reference_result)
    for got, expected in zip(result, reference_result):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return ys


def test_the_loop_itself():
    """The sequential result, which the others are compared with, is that of the reference implementation."""
    x = random(5000)
    for update, init in (AFFINE["two gated"], AFFINE["reset"], (OTHERS["forward"], 0.5)):
        ys, final = reference.scan(update, init, x, return_final=True)
        for got, expected in zip(side_by_side(update, init, x), (*as_tuple(ys), *as_tuple(final))):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


AFFINE = {
    "constant": (lambda s, x: 0.99 * s + 0.01 * x, 0.5),
    "gated": (lambda s, x: (0.5 + 0.5 * x) * s - x, 0.5),
    "divided": (lambda s, x: (s + x) / (2 + x), 0.5),
    "reset": (lambda s, x: np.where(x > 0.9, 0.0, -s) + x, 0.5),
    "fill forward": (lambda s, x: np.where(x > 0.9, x, s), 0.5),
    "product": (lambda s, x: s * (1 + 0.001 * x), 0.5),
    "two states": (lambda s, x: (0.9 * s[0] - 0.2 * s[1] + x, 0.3 * s[0] + 0.8 * s[1]), (0.5, -1.0)),
    "two gated": (lambda s, x: ((0.9 * s[0] - x * s[1], 0.5 * s[0] * x + x), s[0] * s[1]), (0.5, -1.0)),
    "three states": (lambda s, x: (0.5 * s[2] + x, s[0], s[1]), (1.0, 2.0, 3.0)),
    "four gated": (lambda s, x: (0.2 * x * (s[0] + s[1] + s[2] - s[3]) + x, *s[:3]), (1.0, 2.0, 3.0, 4.0)),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_updates(name):
    update, init = AFFINE[name]
    for length in LENGTHS[: 3 if "four" in name else 4]:
        check(update, init, random(length))
    check(update, init, random(30_011), reverse=True)
    check(update, init, random((20_000, 3))[::2], axis=0)
    check(update, init, random((2, 10_000)), axis=1, reverse=True)


OTHERS = {
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
    "leaking max": lambda s, x: np.maximum(s - 0.01, x),
    "moving max": lambda s, x: np.maximum(x + s, 0.0),
    "moving min": lambda s, x: np.minimum(np.minimum(s, 3.0) + x, 1.0),
    "forward": lambda s, x: np.logaddexp(s + x, -1.0),
    "max with resets": lambda s, x: np.where(x > 0.97, -x, np.maximum(s - 0.01, x)),
    "min by regime": lambda s, x: np.where(x > 0.5, np.minimum(s, x), np.minimum(s + 0.01, 2.0) + 0.001 * x),
    "logaddexp with resets": lambda s, x: np.where(x < 0.97, np.logaddexp(s, x), x),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["max with resets", "logaddexp with resets"])
def test_a_reset_drops_what_is_not_finite(name, value):
    """Many chunks after it have resets, and so a shift that drops the state, whatever that is."""
    for where in (0, 3000, 20_000):
        x = random(30_011)
        x[where] = value
        ys = check(OTHERS[name], 0.5, x)
        assert np.isfinite(ys[-2000:]).all()
        check(OTHERS[name], value, random(30_011))


@pytest.mark.parametrize("name", OTHERS)
def test_other_associative_updates(name):
    for length in LENGTHS:
        x = random(length)
        for data in (x, np.sort(x), np.sort(x)[::-1]):
            check(OTHERS[name], -0.5, data)
    check(OTHERS[name], -np.inf if name == "max" else 0.25, random((2, 10_000)), axis=1, reverse=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("most", [True, False])
def test_argmax(most, strict):
    def update(state, x):
        place, best = state
        value, index = x
        pair = (best, value) if most else (value, best)
        better = pair[0] < pair[1] if strict else pair[0] <= pair[1]
        return np.where(better, index, place), np.where(better, value, best)

    worst = -np.inf if most else np.inf
    for data in (random(50_000), np.round(random(50_000) * 3), np.full(50_000, worst)):
        check(update, (-1.0, worst), (data, np.arange(50_000)), 0)
    assert "state 1 is beaten" in upsweep.scan.explain(update, (0.0, 0.0), (data, data)).why


def test_what_is_not_finite_travels_as_in_the_loop():
    for where in (0, 5000, 40_000):
        x = random(50_000)
        x[where] = np.nan
        check(AFFINE["constant"][0], 0.5, x)
        check(AFFINE["fill forward"][0], 0.5, x)
        check(AFFINE["reset"][0], 0.5, x)
        for name in ("max", "min", "logaddexp"):
            check(OTHERS[name], 0.0, x)
        x[where] = np.inf
        check(AFFINE["reset"][0], 0.5, x)
        check(OTHERS["max"], 0.0, x)
        check(OTHERS["min"], 0.0, -x)


def test_states_that_grow_beyond_numbers():
    """The products of a block overflow where the state does not, or not yet."""
    x = random(30_000)
    check(lambda s, x: 1.5 * s, 0.0, x)
    check(lambda s, x: 1.5 * s + x, 0.0, x)
    check(lambda s, x: np.where(x > 0.95, 0.0, 3.0 * s) + x, 0.0, x)
    check(lambda s, x: 1.01 * s, 1e-300, x[:50_000])
    check(lambda s, x: (2.0 * s[0] - 3.0 * s[1] + x, 0.5 * s[0]), (0.0, 0.0), x)


def test_the_state_before_a_block_underflows():
    check(lambda s, x: 1e-30 * s + x, 1e300, random(5000))
    check(lambda s, x: np.where(x > 0.5, 1e30, 1e-30) * s + x, 1e10, random(20_000))


def test_inputs_of_every_order_and_none():
    """Sums of chunks are of inputs that lie in one order; others go through tiles."""

    def update(s, x):
        return 0.9 * s + x[0] - 0.5 * x[1]

    x, y = random(30_011), random(30_011)[::-1].copy()
    for xs in (
        (x, y), (x[::-1], y[::-1]), (x, y[::-1]), (x, np.repeat(y, 2)[::2]), (x, np.broadcast_to(y[:1], x.shape)),
        (x[::-1], np.broadcast_to(y[:1], x.shape)), (x, (8 * y).astype(np.int8)), (x, 0.25 * (y > 0)),
    ):  # fmt: skip
        check(update, 0.5, xs)
        check(update, 0.5, xs, reverse=True)


def test_float32():
    for length in LENGTHS:
        check(AFFINE["constant"][0], 0.5, random(length, np.float32), 1e-5)
        check(AFFINE["gated"][0], 0.5, random(length, np.float32), 2e-4)


def test_more_numbers_than_caches_hold():
    x = random(3_000_000, np.float32)
    y = upsweep.scan(lambda s, x: 0.9 * s + 0.1 * x, 0.0, x)
    np.testing.assert_allclose(y, upsweep.discounted_cumsum(0.1 * x, 0.9), rtol=2e-5, atol=2e-6)
    y = upsweep.scan(lambda s, x: 0.9 * s + 0.1 * x, 0.0, x[1:], reverse=True)
    np.testing.assert_allclose(y, upsweep.discounted_cumsum(0.1 * x[1:], 0.9, reverse=True), rtol=2e-5, atol=2e-6)


def test_explanations():
    explain, x = upsweep.scan.explain, random(10_000)
    leak = AFFINE["constant"][0]
    assert str(explain(leak, 0.0, x)) == (
        "parallel in time: the update is affine in its state, with constant factors, and columns are few (1)"
    )
    assert "with factors that vary in time" in explain(AFFINE["gated"][0], 0.0, x).why
    assert explain(leak, 0.0, x[:100]) == (
        "sequential in time",
        "the update is affine in its state, with constant factors, but 100 steps are few (below 4096)",
    )  # fmt: skip
    assert "1000 columns are enough" in explain(leak, 0.0, x.reshape(10, 1000)).why
    assert explain(lambda s, x: np.tanh(s + x), 0.0, x).path == "sequential in time"
    assert explain(lambda s, x: s * s + x, 0.0, x).path == "sequential in time"
    assert explain(lambda s, x: x / s, 1.0, x).path == "sequential in time"
    assert explain(lambda s, x: np.where(s > 0, x, s), 0.0, x).path == "sequential in time"
    assert explain(lambda s, x: np.maximum(np.minimum(s + x, 1.0), 0.0), 0.0, x).path == "sequential in time"
    five = lambda s, x: tuple(0.1 * v + x for v in s)  # noqa: E731
    assert "it has 5 states" in explain(five, (0.0,) * 5, x).why


def test_nothing_to_read_or_write():
    _, final = upsweep.scan(lambda s, _: (0.5 * s + 1, None), 0.0, None, length=10_000, return_final=True)
    assert final == 2
    ys = upsweep.scan(lambda s, _: (s[1], s[0] - 0.5 * s[1]), (1.0, 1.0), None, length=9000)
    few = upsweep.scan(lambda s, _: (s[1], s[0] - 0.5 * s[1]), (1.0, 1.0), None, length=60)
    np.testing.assert_allclose(ys[0][:60], few[0], rtol=1e-12)
    empty, final = upsweep.scan(lambda s, x: 0.5 * s + x, 3.0, np.zeros((10_000, 0)), return_final=True)
    assert empty.shape == (10_000, 0) and final.shape == (0,)


def test_powers_of_matrices_are_exact_to_the_last_bits():
    """Four poles at almost the same place: powers of powers in double lose half of their digits."""
    step = (3.9, 1.0, 0.0, 0.0, -5.7038, 0.0, 1.0, 0.0, 3.7075, 0.0, 0.0, 1.0, -0.9037, 0.0, 0.0, 0.0)
    exact = np.array([Fraction(number) for number in step], object).reshape(4, 4)
    for n in (0, 1, 5, 64, 300):
        expected = np.linalg.matrix_power(exact, n).astype(float)
        np.testing.assert_allclose(matrix_powers(step, n)[0], expected, rtol=4e-16)
    assert matrix_powers((2.0,), 5000) == np.inf and matrix_powers((-2.0,), 5001) == -np.inf
    # A factor that is too small for a number is none of 0, which would drop a state that is not finite.
    assert matrix_powers((-0.5,), 5001) == -5e-324 and matrix_powers((0.0,), 3) == 0
    assert np.isnan(matrix_powers((np.nan,), 3))


@pytest.mark.parametrize("length", [5000, 140_000])
def test_updates_without_inputs(length):
    """Chunks of an affine update are summed, where there is nothing to read."""
    decay = 1 - 0.9 ** np.arange(1, length + 1)
    np.testing.assert_allclose(upsweep.scan(lambda s, _: 0.9 * s + 0.1, 0.0, length=length), decay, rtol=1e-12)
    cosine, sine = upsweep.scan(
        lambda s, _: (0.8 * s[0] - 0.6 * s[1], 0.6 * s[0] + 0.8 * s[1]), (1.0, 0.0), length=length
    )
    angle = np.arctan2(0.6, 0.8) * np.arange(1, length + 1)
    np.testing.assert_allclose(cosine + 1j * sine, np.exp(1j * angle), atol=1e-8)
