"""Scans by a user's update against the loop that they stand for: functions, layouts, structures, dtypes."""

import math

import dask.array as da
import numpy as np
import pytest
import upsweep
from helpers import random, same_bits
from upsweep import reference
from upsweep._compiler.recurrences.functions import FUNCTIONS

UPDATES = {
    "sum": lambda s, x: s + x,
    "leak": lambda s, x: 0.9 * s + x,
    "tanh": lambda s, x: np.tanh(0.5 * s + x),
    "largest": np.maximum,
    "gate": lambda s, x: np.where(x > 0, 0.3 * s * x + x, 0.5),
    "garch": lambda s, x: 0.1 + 0.2 * x * x + 0.7 * s,
    "counter": lambda s, x: np.where((x > 0) & (s < 3) | (x < -0.9), s + 1, 0.0),
    "logarithm": lambda s, x: np.log(1 + np.abs(s)) - np.sqrt(np.abs(x)) + np.exp(-s * s),
    "angle": lambda s, x: np.sin(s) + np.cos(x) * np.arctan2(x, 2.0),
    "power": lambda s, x: np.tanh(s) ** 2 + abs(x) ** 0.5 - x**3 + 2.0**-x % 0.7,
    "sigmoid": lambda s, x: upsweep.scan.sigmoid(s) - upsweep.scan.clip(x, -0.2, 0.4) // 0.3,
}
LAYOUTS = [
    ((0,), 0), ((1,), 0), ((33,), -1), ((5, 0), 0), ((0, 5), 0), ((7, 1), 0), ((40, 7), 0), ((9, 70), 1),
    ((70, 65), 1), ((33, 130), 0), ((3, 50, 17), 1), ((2, 3, 4, 5), 2), ((4097, 3), 0), ((2, 5000), 1),
    ((9000,), 0),
]  # fmt: skip
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def check(update, init, xs, rtol=None, **keywords):
    result = upsweep.scan(update, init, xs, return_final=True, **keywords)
    reference_result = reference.scan(update, init, xs, return_final=True, **keywords)
    for got, expected in zip(result, reference_result):
        got, expected = (v if isinstance(v, tuple) else (v,) for v in (got, expected))
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            assert isinstance(a, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
            tolerance = rtol or TOLERANCE.get(a.dtype.name, 0)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return result


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UPDATES)
def test_updates(name, dtype):
    check(UPDATES[name], 0.25, random((50, 37), dtype))
    check(UPDATES[name], 0.25, random((19, 40), dtype), axis=1, reverse=True)


SPECIAL = [0.0, np.inf, np.nan, 0.5, 1.0, 1.5, 2.5, 3.0, 1e-9, 20.0, 1e10]
SPECIAL += [-number for number in SPECIAL]
# Whose results differ from numpy's: at zeros of both signs, beside infinity, and those that return no number.
UNLIKE = {"minimum", "maximum", "fmin", "fmax", "remainder", "floor_divide", "divmod", "select", "where", "clip"}
UNLIKE |= {"bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"}  # of integers


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_special_values(dtype):
    """NaN, infinities, the sign of zero and the rounding of halves are numpy's."""
    x, y = (part.ravel().astype(dtype) for part in np.meshgrid(SPECIAL, SPECIAL))
    for name in sorted(FUNCTIONS.keys() - UNLIKE):
        function = getattr(np, name, None)
        if function is None:
            continue
        n_args = getattr(function, "nin", 1)
        result = upsweep.scan(lambda s, v, f=function, n=n_args: (s, f(*v[:n])), 0.0, (x, y))
        with np.errstate(all="ignore"):
            expected = function(*(x, y)[:n_args]).astype(result.dtype)
        np.testing.assert_array_max_ulp(*(np.nan_to_num(v.astype(dtype)) for v in (result, expected)), 4)
        for same in (np.isnan, np.isinf, lambda v: np.signbit(v) & ~np.isnan(v)):
            np.testing.assert_array_equal(same(result.astype(dtype)), same(expected.astype(dtype)), err_msg=name)


def test_functions_with_parameters():
    x = np.array([-1.55, -0.5, 0.0, 0.25, 2.5, np.nan, np.inf, -np.inf])
    for function in (
        lambda x: np.round(x, 1), lambda x: x.round(1), lambda x: np.around(x), lambda x: np.clip(x, -1, 1),
        lambda x: x.clip(-1, None), lambda x: np.clip(x, a_min=None, a_max=1), lambda x: np.fmax(x, 0.5),
        lambda x: np.fmin(0.5, x), lambda x: np.nan_to_num(x, nan=2.0, posinf=3.0), lambda x: np.fix(x),
        lambda x: np.select([x < 0, x < 1], [x, 1 - x], 5.0), lambda x: np.select([x < 0, x < 1], [x, 1 - x]),
        lambda x: np.divmod(x, 0.75)[0] + divmod(x, 0.75)[1], lambda x: np.heaviside(x, 0.25),
        lambda x: np.where(x > 0, np.positive(x), abs(x)), lambda x: np.degrees(np.radians(x)),
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            expected = function(x)
        np.testing.assert_array_equal(upsweep.scan(lambda s, x, f=function: (s, f(x)), 0.0, x), expected)
    rounded = upsweep.scan(lambda s, x: (s, (round(x), round(x, 1), math.floor(x), math.ceil(x))), 0.0, x[:5])
    expected = [np.round(x[:5]), np.round(x[:5], 1), np.floor(x[:5]), np.ceil(x[:5])]
    np.testing.assert_array_equal(rounded, expected)


def test_public_functions_are_those_of_updates():
    x = np.array([-800.0, -40.0, 0.0, 1.5, 800.0])
    for function in (upsweep.sigmoid, upsweep.silu, upsweep.softplus, lambda x: upsweep.logaddexp(x, 0.0)):
        np.testing.assert_allclose(
            upsweep.scan(lambda s, x, f=function: (s, f(x)), 0.0, x), function(x), rtol=1e-15
        )
        assert function(x.astype(np.float32)).dtype == np.float32
        gradient = upsweep.scan.gradient(lambda s, x, f=function: (s, f(x)), 0.0, x, np.ones(5))
        assert np.isfinite(gradient.xs).all()
    assert upsweep.softplus(-40.0) == pytest.approx(np.exp(-40.0), rel=1e-15)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
def test_layouts(shape, axis, reverse):
    for dtype in (np.float32, np.float64):
        check(UPDATES["leak"], 0.0, random(shape, dtype), axis=axis, reverse=reverse)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_strides(axis):
    x = random((40, 36, 44), np.float32)
    for view in (x[::2, ::-1, 1:], x.T, x[:, ::3].transpose(1, 0, 2), np.asfortranarray(x), x[::-1, :, ::-2]):
        check(UPDATES["tanh"], 0.0, view, axis=axis)
        check(UPDATES["tanh"], 0.0, view, axis=axis, reverse=True)


def test_unaligned_foreign_and_read_only_arrays():
    x = random((70, 20), np.float32)
    packed = np.zeros(x.shape, np.dtype([("a", "i1"), ("x", "f4")]))
    packed["x"] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    expected = upsweep.scan(UPDATES["leak"], 0.0, x)
    for other in (packed["x"], x.astype(">f4"), frozen):
        assert same_bits(upsweep.scan(UPDATES["leak"], 0.0, other), expected)


def test_inputs_broadcast_together():
    x, per_step, per_column = random((60, 33)), random((60, 1), seed=1), random(33, seed=2)
    check(lambda s, x: s * x[1] + x[0] * x[2], random(33), (x, per_step, per_column))
    check(lambda s, x: s * x[1] + x[0] * x[2], random(60), (x, per_step, per_column), axis=1)
    check(lambda s, x: s * x[0] + x[1], 0.5, (random((50, 1)), random((1, 9))))


def test_several_states_and_outputs():
    x = random((64, 21))

    def holt(state, x):
        level, trend = state
        new = 0.3 * x + 0.7 * (level + trend)
        return (new, 0.9 * trend + 0.1 * (new - level)), level + trend

    check(holt, (0.0, 0.0), x)
    check(holt, (random(21), 1.0), x, reverse=True)
    check(lambda s, x: (s[1], s[0] + x), (0.0, 1.0), x)  # both states are the output
    check(lambda s, x: (s + x, (s, x * 2, x > s)), 0.0, x)
    check(lambda s, x: ((s[0] + x,), s[0]), (0.0,), x)
    ys, final = upsweep.scan(lambda s, x: (s + x, None), 0.0, x, return_final=True)
    assert ys is None
    np.testing.assert_allclose(final, x.sum(0))


def test_without_inputs():
    ys, final = upsweep.scan(lambda s, _: (s[1], s[0] + s[1]), (0.0, 1.0), None, length=10, return_final=True)
    assert ys[0].tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    assert final[1] == 89
    powers = upsweep.scan(lambda s, _: s * 2, np.array([1.0, 3.0, 5.0]), None, length=4, axis=1)
    assert powers.tolist() == [[2, 4, 8, 16], [6, 12, 24, 48], [10, 20, 40, 80]]
    _, last = upsweep.scan(lambda s, _: (s * 2, None), np.ones(3), length=5, return_final=True)
    assert last.tolist() == [32, 32, 32]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint16", "uint64", "bool"])
def test_integers_among_floats(dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (50, 9)).astype(dtype)
    y = upsweep.scan(lambda s, x: np.where(x, s + 0.5, 0.25), 0.0, x)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, reference.scan(lambda s, x: np.where(x, s + 0.5, 0.25), 0.0, x))
    if dtype != "bool":
        np.testing.assert_array_equal(upsweep.scan(lambda s, x: s + x, 0, x, axis=1), np.cumsum(x, 1))


def test_dtypes_follow_numpy():
    single, double = random((20, 5), np.float32), random((20, 5))
    assert upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, single).dtype == np.float32
    assert upsweep.scan(lambda s, x: (s + x[0], x[0] * x[1]), np.zeros(5), (single, double)).dtype == np.float64
    y = upsweep.scan(lambda s, x: (s + x[1], x[0] * 2), np.zeros(5), (single, double))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, single * 2)
    half = random((40, 6), np.float16)
    y, final = upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, half, return_final=True)
    assert y.dtype == final.dtype == np.float16
    exact = reference.scan(lambda s, x: 0.5 * s + x, 0.0, half.astype(float))
    np.testing.assert_allclose(y, exact, rtol=1e-3, atol=1e-4)
    state = np.array([True, False])
    y, final = upsweep.scan(lambda s, x: s ^ (x > 0), state, random((9, 2)), return_final=True)
    assert y.dtype == final.dtype == np.bool_


def test_the_state_keeps_its_dtype():
    with pytest.raises(TypeError, match="the state is float32 and becomes float64"):
        upsweep.scan(lambda s, x: s + x, np.zeros(5, np.float32), random((20, 5)))


def test_nan_and_infinity_travel_as_in_the_loop():
    x = random((200, 18))
    x[20, 3], x[40, 5], x[60, 7] = np.nan, np.inf, -np.inf
    for name in ("sum", "leak", "largest", "gate"):
        check(UPDATES[name], 0.0, x)
        check(UPDATES[name], 0.0, x, axis=1)
    check(np.minimum, 0.0, x)
    check(np.logaddexp, 0.0, x)
    check(lambda s, x: 0 * s * x + 1, 0.0, x)  # 0 * NaN is NaN
    check(lambda s, x: np.where(np.isnan(x), s, x), 0.0, x)  # fill forward


def test_a_decorated_update():
    @upsweep.scan(axis=1)
    def leaky(s, x):
        """Leaks."""
        return 0.5 * s + x

    @upsweep.scan
    def total(s, x):
        return s + x

    x = random((3, 20))
    assert leaky.__doc__ == "Leaks."
    np.testing.assert_allclose(leaky(0.0, x), reference.scan(lambda s, x: 0.5 * s + x, 0.0, x, axis=1))
    np.testing.assert_allclose(total(0.0, x, reverse=True, axis=1), x[:, ::-1].cumsum(1)[:, ::-1])


def test_the_bits_do_not_depend_on_threads(n_threads_restored):
    tensor = random((700, 3, 70), np.float32)
    line = random(300_000, np.float32)
    results = []
    for n_threads in (1, 2, 5):
        upsweep.set_num_threads(n_threads)
        results.append(
            (
                *(upsweep.scan(UPDATES["tanh"], 0.0, tensor, axis=axis) for axis in range(3)),
                upsweep.scan(UPDATES["leak"], 0.0, line),
            )
        )
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_a_decayed_tail_is_zero_and_not_slow():
    x = np.zeros((3000, 4), np.float32)
    x[0] = 1
    y = upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, x)
    assert y[126:130, 0].tolist() == [2.0**-126, 0, 0, 0]


def test_several_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def run(seed):
        factor = 0.5 + seed / 100
        x = random((400, 30), np.float32, seed)
        return upsweep.scan(lambda s, x: np.tanh(factor * s + x), 0.0, x), upsweep.scan(
            lambda s, x: factor * s + x, 0.0, x.ravel()
        )

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(24)))
    for seed, results in enumerate(together):
        assert same_bits(results, run(seed))


def test_after_a_fork():
    from helpers import run_python

    code = """
    import os
    import numpy as np, upsweep

    def run():
        x = np.ones((3000, 300), np.float32)
        return [float(upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, y).sum()) for y in (x, x.ravel())]

    before = run()
    child = os.fork()
    if child == 0:
        os._exit(0 if run() == before else 1)
    assert os.waitpid(child, 0)[1] == 0 and run() == before
    print("same")
    """
    assert run_python(code) == "same\n"


def test_without_the_compiler():
    from helpers import run_python

    code = """
    import sys
    sys.modules["llvmlite"] = None
    import upsweep
    try:
        upsweep.scan(lambda s, x: s + x, 0.0, [1.0])
    except ImportError as error:
        print(error)
    """
    assert 'pip install "upsweep[expr]"' in run_python(code)


def test_a_reset_drops_the_state_as_in_the_other_scans():
    x, drops = random((40, 3)), np.random.default_rng(1).random((40, 3)) < 0.2
    for reverse in (False, True):
        keywords = {"reset": drops, "reverse": reverse, "return_final": True}
        result = upsweep.scan(lambda s, x: 0.5 * s + x, np.ones(3), x, **keywords)
        other = upsweep.discounted_cumsum(x, 0.5, axis=0, initial=np.ones(3), **keywords)
        for y, expected in zip(result, other, strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-12)
        assert same_bits(result, reference.scan(lambda s, x: 0.5 * s + x, np.ones(3), x, **keywords))
    assert upsweep.scan(lambda s, _: s + 1, 5, reset=[False, True, False]).tolist() == [6, 1, 2]
    first = np.array([True, False, False])
    ys = upsweep.scan(
        lambda s, x: (s[0] + x[0], s[1] | x[1]), (0, False), (np.arange(3), first), reset=first[::-1]
    )
    assert [y.tolist() for y in ys] == [[0, 1, 2], [True, True, False]]
    decorated = upsweep.scan(reset=drops[:, 0])(lambda s, x: s + x)
    np.testing.assert_allclose(decorated(0.0, x[:, 0]), upsweep.cumulative_sum(x[:, 0], reset=drops[:, 0]))
    long = np.zeros(9000)
    with pytest.raises(TypeError, match="reset: expected an array of bool, got dtype float64"):
        upsweep.scan(lambda s, x: s + x, 0.0, long, reset=long)
    with pytest.raises(TypeError, match=r"reset: .* got dtype int64; .*np.isin\(np.arange\(n\), cu_seqlens"):
        upsweep.scan(lambda s, x: s + x, 0.0, long, reset=np.array([0, 3, 9000]))
    with pytest.raises(TypeError, match=r"test_scan.py, line.*update\(state, x\)"):
        upsweep.scan(lambda s: s, 0.0, long, reset=long > 0)


def test_a_reset_of_related_functions():
    x, drops = random((40, 3)), np.random.default_rng(1).random((40, 3)) < 0.2
    update, keywords = lambda s, x: 0.5 * s + x, {"reset": drops, "reverse": True}
    _, final = upsweep.scan(update, 1.0, x, return_final=True, **keywords)
    carry = upsweep.scan.carry(update, 0.0, x, **keywords)
    np.testing.assert_allclose(carry.apply(1.0), final, rtol=1e-12)
    assert "where" in repr(carry)
    assert "factors that vary" in upsweep.scan.explain(update, 0.0, x, **keywords).why
    gradient = upsweep.scan.gradient(update, 1.0, x, np.ones_like(x), **keywords)
    by_hand = upsweep.scan.gradient(
        lambda s, x: np.where(x[1], 0.0, 0.5) * s + x[0], 1.0, (x, drops), np.ones_like(x), reverse=True
    )
    np.testing.assert_allclose(gradient.init, by_hand.init, rtol=1e-12)
    np.testing.assert_allclose(gradient.xs, by_hand.xs[0], rtol=1e-12)
    drops, last = [False, True, False], np.array([0.0, 0.0, 1.0])
    gradient = upsweep.scan.gradient(lambda s, _: 2 * s + 1, 1.0, None, last, reset=drops[::-1])
    assert gradient.init == 0 and gradient.xs is None


def test_a_reset_of_dask():
    x, drops = random((40, 3)), np.random.default_rng(1).random((40, 3)) < 0.2
    chunked = (da.from_array(a, chunks=(11, 2)) for a in (x, drops))
    result = upsweep.scan(lambda s, x: 0.5 * s + x, 1.0, next(chunked), reset=next(chunked))
    np.testing.assert_array_equal(np.asarray(result), upsweep.scan(lambda s, x: 0.5 * s + x, 1.0, x, reset=drops))
