"""The CPU's vector mathematics: within 2 units in the last place over the whole range, with C's special values.

float32 is compared with numpy's float64 at every few thousandth bit pattern, float64 with numpy's long double
on random bits and where arguments are reduced; each instruction set that this machine runs is taken in turn.
"""

import numpy as np
import pytest
import upsweep

pytest.importorskip("llvmlite")
from compiled import units_off, vector_function
from upsweep._compiler.llvm.target import TARGETS

LEVELS = [level for level in upsweep.show_config()["isa_usable"] if level in TARGETS]
EXACT = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "rint", "abs")},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
EXACT2 = {"atan2": np.arctan2, "pow": np.power, "hypot": np.hypot, "copysign": np.copysign}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 0.25, 1e-30, -1e-30]
wide_enough = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double is no wider than float64")


def edges(dtype):
    """Special values, the ends of the range and of what exp takes, subnormals."""
    info = np.finfo(dtype)
    ends = [info.max, -info.max, info.tiny, -info.tiny, info.smallest_subnormal, -info.smallest_subnormal]
    exponents = [info.maxexp, info.minexp, info.minexp - info.nmant, info.minexp - info.nmant - 1]
    exponents += [e * np.log(2) for e in exponents]
    ends += [np.nextafter(dtype(e), dtype(to)) for e in exponents for to in (-np.inf, np.inf)] + exponents
    return np.array([*SPECIAL, *ends], dtype)


def samples(dtype, step):
    rng = np.random.default_rng(0)
    if dtype == np.float32:
        bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        bits = rng.integers(0, 2**64, 100_000, dtype=np.uint64).view(np.float64)
    quarters = np.arange(1, 5000) * (np.pi / 2)
    parts = [rng.uniform(-3, 3, 100_000), rng.uniform(-1, 1, 50_000), rng.uniform(-750, 720, 50_000),
             rng.uniform(-1.2e6, 1.2e6, 50_000), quarters, np.exp(rng.uniform(-300, 80, 20_000))]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.concatenate([edges(dtype), bits, *(part.astype(dtype) for part in parts)])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", EXACT)
def test_float32_at_every_few_thousandth_bit_pattern(name, level):
    x = samples(np.float32, 4099)
    with np.errstate(all="ignore"):
        off = units_off(vector_function(name, "float32", level)(x), EXACT[name](x.astype(np.float64)))
    assert off.max() <= 2, (x[off.argmax()], off.max())


@wide_enough
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", EXACT)
def test_float64_on_random_bits_and_at_the_edges(name, level):
    x = samples(np.float64, 0)
    with np.errstate(all="ignore"):
        off = units_off(vector_function(name, "float64", level)(x), EXACT[name](x.astype(np.longdouble)))
    assert off.max() <= 2, (x[off.argmax()], off.max())


@wide_enough
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXACT2)
def test_functions_of_two_numbers(name, dtype, level):
    rng = np.random.default_rng(1)
    grid = np.concatenate([edges(np.dtype(dtype).type), [4, 5, 7, -7, 16777217.0, 1e10]]).astype(dtype)
    x, y = (part.ravel() for part in np.meshgrid(grid, grid))
    near = rng.standard_normal((2, 50_000))
    far = np.exp(3 * rng.standard_normal((2, 50_000))) * rng.choice([-1, 1], (2, 50_000))
    x, y = (np.concatenate([*parts]).astype(dtype) for parts in ((x, near[0], abs(far[0])), (y, near[1], far[1])))
    wider = np.float64 if dtype == "float32" else np.longdouble
    with np.errstate(all="ignore"):
        exact = EXACT2[name](x.astype(wider), y.astype(wider))
        off = units_off(vector_function(name, dtype, level, 2)(x, y), exact)
    assert off.max() <= 2, (x[off.argmax()], y[off.argmax()], off.max())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_arguments_of_sine_and_cosine(dtype, level):
    x = np.exp(np.linspace(np.log(1e5), np.log(np.finfo(dtype).max) - 1e-3, 5000)).astype(dtype)
    wider = np.float64 if dtype == "float32" else np.longdouble
    for name in ("sin", "cos"):
        off = units_off(vector_function(name, dtype, level)(x), EXACT[name](x.astype(wider)))
        assert off.max() <= 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_knows_what_its_caller_promises(dtype, level):
    """Of what is never positive: the same as exp; with flush: 0 where exp is subnormal, else as exact as exp."""
    x = -np.abs(samples(np.dtype(dtype).type, 40009))
    plain = vector_function("exp", dtype, level)(x)
    promised = vector_function("exp", dtype, level, never_positive=True)(x)
    np.testing.assert_array_equal(promised, plain)
    negated = vector_function("exp", dtype, level, never_positive=True, negated=True)(-x)
    np.testing.assert_array_equal(negated, plain)
    flushed = vector_function("exp", dtype, level, never_positive=True, flush=True)(x)
    normal = ~(plain < np.finfo(dtype).tiny)  # NaN too
    np.testing.assert_array_equal(flushed[normal], plain[normal])
    flushed = vector_function("exp", dtype, level, never_positive=True, flush=True, table=True)(x)
    wider = np.float64 if dtype == "float32" else np.longdouble
    assert units_off(flushed[normal], np.exp(x[normal].astype(wider))).max() <= 1.5
    assert (flushed[~normal] <= np.finfo(dtype).tiny).all()
    assert (flushed[x == -np.inf] == 0).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_what_is_never_large(dtype, level):
    """Up to 80 within 2.5 units, 0 where exp is subnormal; infinity and NaN as they are."""
    x = np.minimum(samples(np.dtype(dtype).type, 40009), 80).astype(dtype)
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], dtype)])
    result = vector_function("exp", dtype, level, never_large=True, flush=True, table=True)(x)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64 if dtype == "float32" else np.longdouble))
    normal = ~(exact < np.finfo(dtype).tiny)  # NaN too
    assert units_off(result[normal], exact[normal]).max() <= 2.5
    assert (np.abs(result[~normal]) <= np.finfo(dtype).tiny).all()


def test_units_off_sees_a_wrong_digit_sign_and_value():
    one, exact = np.ones(3, np.float32), np.ones(3)
    assert units_off(one, exact).max() == 0
    assert units_off(np.nextafter(one, np.float32(2)), exact).max() == 1
    for bad, good in ((np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf), (0.0, -0.0), (1.0, np.nan)):
        assert units_off(np.array([bad], np.float32), np.array([good])).max() > 2
