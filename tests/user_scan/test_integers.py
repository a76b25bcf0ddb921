"""Scans of integers are exact: they wrap around and promote as numpy's, in every library and on every path."""

import dask.array as da
import host_device
import numpy as np
import pytest
import upsweep
from devices import FakeCupyArray
from helpers import flat, same_bits
from upsweep import reference

DTYPES = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]

UPDATES = {
    "sum": lambda s, x: s + x,
    "affine": lambda s, x: s * 3 - x,
    "reset": lambda s, x: np.where(x % 7 == 0, 0, s) + x,
    "generator": lambda s, x: (s ^ (s << 5) ^ (s >> 3)) + (x << 70),
    "division": lambda s, x: s // x + x % s + s // 3 - s % 7,
    "extremes": lambda s, x: np.maximum(np.minimum(s + 1, x), np.clip(s, 3, 50)),
    "bits": lambda s, x: (s & 85) | (x << 2) ^ ~s,
    "absolute": lambda s, x: abs(-s) + np.sign(x) + s**3,
    "comparisons": lambda s, x: np.where((x > s) & (x != 3) | (s <= 1), s + 1, x),
    "counts": lambda s, x: s + (x > 50),
}
TUPLES = {
    "coupled": lambda s, x: (s[0] + s[1] * x, s[1] * 5 + s[0]),
    "mixed": lambda s, x: ((s[0] + x, s[1] * 0.5 + x), (s[0] > x, s[1])),
}


def integers(shape, dtype=np.int64, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def on(array):
    return FakeCupyArray(array, 0)


def same(result, expected):
    result, expected = flat(result), flat(expected)
    assert [np.asarray(y).dtype for y in result] == [y.dtype for y in expected]
    assert same_bits(tuple(map(np.asarray, result)), tuple(expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UPDATES)
def test_every_dtype(name, dtype):
    x, init = integers((40, 9), dtype), integers(9, dtype, 1)
    for keywords in ({}, {"reverse": True, "return_final": True}):
        same(upsweep.scan(UPDATES[name], init, x, **keywords), reference.scan(UPDATES[name], init, x, **keywords))


@pytest.mark.parametrize("name", TUPLES)
def test_several_states(name):
    x = integers((60, 5))
    init = (integers(5, seed=1), integers(5, seed=2)) if name == "coupled" else (2**53 + 1, 0.25)
    for columns in (x, x[:, 0]):
        own = tuple(s[0] if columns.ndim == 1 and np.ndim(s) else s for s in init)
        arguments = TUPLES[name], own, columns
        same(upsweep.scan(*arguments, return_final=True), reference.scan(*arguments, return_final=True))


def test_above_the_digits_of_float64():
    ones = np.ones(4, np.int64)
    assert upsweep.scan(lambda s, x: s + x, 2**53, ones).tolist() == [2**53 + n for n in (1, 2, 3, 4)]
    assert upsweep.scan(lambda s, x: s + x, 2**63, ones.astype(np.uint64))[-1] == 2**63 + 4
    assert upsweep.scan(lambda s, _: s * 3 + (2**53 + 1), 1, length=2).tolist() == [2**53 + 4, 4 * 2**53 + 13]
    y, final = upsweep.scan(lambda s, x: (s, s + x), np.int64(2**62 + 1), ones, return_final=True)
    assert (y[-1], final) == (2**62 + 2, 2**62 + 1)


@pytest.mark.parametrize("name", ["sum", "affine", "reset", "coupled", "generator", "extremes"])
def test_long_lines_are_parallel_in_time_where_a_sum_is(name):
    update, x = {**UPDATES, **TUPLES}[name], integers(20_000)
    init = (3, 2**60) if name == "coupled" else 2**60
    is_parallel = upsweep.scan.explain(update, init, x).path == "parallel in time"
    assert is_parallel == (name not in ("generator", "extremes"))
    for keywords in ({}, {"reverse": True}):
        same(upsweep.scan(update, init, x, return_final=True, **keywords),
             reference.scan(update, init, x, return_final=True, **keywords))  # fmt: skip


def test_the_modulus_of_a_generator_may_be_the_range_of_its_dtype():
    for bits, a in ((32, 1664525), (64, 6364136223846793005)):
        y = upsweep.scan(
            lambda s, _, bits=bits, a=a: (s * a + 1) % 2**bits, np.dtype(f"u{bits // 8}").type(42), length=9
        )
        expected = [42]
        for _ in range(9):
            expected.append((expected[-1] * a + 1) % 2**bits)
        assert y.tolist() == expected[1:]
    assert upsweep.scan(lambda s, _: (s + 1, s / 2**64), np.uint64(2**63), length=1) == 0.5
    assert upsweep.scan(lambda s, x: s + x, 2**64, np.ones(1)) == 2.0**64


def test_a_large_init_beside_floats_is_an_integer_where_it_remains_one():
    x, start = np.ones(3), 1_700_000_000_000_000_000  # nanoseconds
    for dtype in (np.float32, np.float64):
        for update, init in (
            (lambda s, x: s + 1, 2**53),
            (lambda s, x: s + 1, 2**24),
            (lambda s, x: (s + 1, s * x), 20_000_001),
            (lambda s, x: np.where(x > 0, s + 7, s), -(2**53) - 1),
            (lambda s, x: ((s[0] + 1, s[1] + x), s[0]), (start, 0)),
            (lambda s, x: s + x, 2**53),
            (lambda s, x: s + 1, 0),
            (lambda s, x: np.maximum(s, x), -(2**60)),
            (lambda s, x: s ^ 5, 2**63 + 1),
        ):
            for _ in range(2):
                arguments = update, init, x.astype(dtype)
                same(upsweep.scan(*arguments, return_final=True), reference.scan(*arguments, return_final=True))
    # As integers, the states would make the float32 of the other one float64.
    scaled = lambda s, x: (s[0] + 1, s[1] + s[0] * x)  # noqa: E731
    assert upsweep.scan(scaled, (2**60, 0.0), x.astype(np.float32))[1].dtype == np.float32
    count = lambda s, x: s + 1  # noqa: E731
    assert [upsweep.scan(count, init, x).dtype.kind for init in (0, 2**53, 1, -(2**53))] == [*"fifi"]
    narrow = x.astype(np.float32)
    assert [upsweep.scan(count, init, narrow).dtype.kind for init in (0, 2**24, 2**24 - 1, -(2**24))] == [*"fifi"]


def test_promotion_is_that_of_numpy():
    small, large, single = (np.ones(3, dtype) for dtype in (np.int8, np.int64, np.float32))
    sums = [(0, small), (np.int8(0), large), (0.0, small), (np.int32(0), single)]
    for init, x in sums:
        same(upsweep.scan(lambda s, x: s + x, init, x), reference.scan(lambda s, x: s + x, init, x))
    assert upsweep.scan(lambda s, x: s / 2 + x, 0, large).dtype == np.float64
    assert upsweep.scan(lambda s, x: s + (x > 0), 0, single > 0).dtype == np.int64
    assert upsweep.scan(lambda s, x: (s + x, x * 2), 0, small)[0].dtype == np.int8
    assert (
        upsweep.scan(lambda s, x: np.where(x > 0, s, 0) + (x > 0) * 1, np.float64(0), single).dtype == np.float64
    )


def test_outputs_have_the_dtype_of_their_values():
    done, x = np.array([True, False]), np.ones(2)
    for update, init, xs in (
        (lambda c, d: (c + 1, c), 2**53 + 1, done),
        (lambda c, d: (c + 1, d.astype(int)), 0, done),
        (lambda s, x: (s + x, (x > 0).astype(int) + (2**53 + 1)), 0.0, x),
        (lambda s, x: (s + x, (x > 0).astype(int) + (2**53 + 1)), 0.0, x.astype(np.float32)),
        (lambda s, d: (s + 1, (1, 1.0, s)), 0, done),
    ):
        same(upsweep.scan(update, init, xs), reference.scan(update, init, xs))


def test_bool_is_as_in_numpy():
    d, e, x = np.array([True, True, False]), np.array([True, False, False]), np.array([1.0, 2.0, 3.0])
    small = np.full(3, 100, np.int8)
    for output in (
        lambda d, e, x, _: d + e, lambda d, e, x, _: d * e, lambda d, e, x, _: d + True, lambda d, e, x, _: d + 1,
        lambda d, e, x, _: np.maximum(d, e), lambda d, e, x, _: np.minimum(d, e), lambda d, e, x, _: abs(d),
        lambda d, e, x, _: (np.floor(d), np.ceil(d), np.trunc(d), np.nan_to_num(d)),
        lambda d, e, x, _: (~d, d ^ e, d & 1, 1 - d, x - d, x * d, d / e),
        lambda d, e, x, _: (*divmod(d, e), d // 2, 2 % d),
        lambda d, e, x, _: (np.stack([d, e]).sum(), np.stack([d, x]).sum(), np.stack([d, e]) @ np.stack([d, e])),
        lambda d, e, x, small: (np.sum(np.stack([small, small])), *np.cumprod(np.stack([small, small]))),
    ):  # fmt: skip
        arguments = lambda s, xs, output=output: (s, output(*xs)), 0.0, (d, e, x, small)
        same(upsweep.scan(*arguments), reference.scan(*arguments))


@pytest.mark.parametrize(
    ("update", "init", "dtype", "match"),
    [
        (lambda s, x: s + x, np.int64(1), np.uint64, r"int64 and uint64 together.*\n.*np\.uint64\(seed\).*astype"),
        (lambda s, x: s + x, -1, np.uint64, "init, xs: -1 is out of bounds for uint64"),
        (lambda s, x: s + 300, np.int8(1), np.int8, "300, which is out of bounds for int8"),
        (lambda s, x: s**x, np.int64(2), np.int64, "an integer to a power.*\n.*astype"),
        (lambda s, x: s**-1, np.int64(2), np.int64, "an integer to a power.*\n.*astype"),
        (lambda s, x: (s * 0.5) << x, np.int64(2), np.int64, "a shift of a float.*\n.*astype"),
        (
            lambda s, x: s * 5 % 2**64,
            42,
            np.int64,
            r"beside 18446744073709551616, .*64 bits.*\n.*init as np\.uint64",
        ),
        (lambda s, x: s % 2**128, np.uint64(2), np.uint64, "an integer beside .*more than 64 bits"),
        (lambda s, x: np.where(s < 2**64, s, 0), 42, np.uint64, "an integer beside .*more than 64 bits"),
        (lambda s, x: s ^ 2**64, 42, np.uint64, r"an integer beside .*\n.*for floats write 2\.0\*\*64"),
        (lambda s, x: s + x, 2**64, np.int64, "init, xs: 18446744073709551616 has more than 64 bits"),
        (lambda s, x: (s, -x), 0, np.bool_, "a minus sign of bool .*\n.*~d for not d"),
        (lambda s, x: (s, True - x), 0, np.bool_, r"a minus sign of bool .*\n.*d\.astype\(int\)"),
        (lambda s, x: ~x, 0.0, np.float64, r"a bit operation of a float .*\n.*\(x > 0\) & d"),
        (lambda s, x: s & 1, 0.0, np.float64, r"a bit operation of a float .*\n.*astype\(int\)"),
        (lambda s, x: s + x, 2**24 + 1, np.float32, r"init, xs: 16777217 is not exact in float32.*np\.int64"),
        (lambda s, x: s + x, 2**53 + 1, np.float64, r"init, xs: 9007199254740993 is not exact.*np\.int64"),
    ],
)
def test_what_would_not_be_exact_is_refused(update, init, dtype, match):
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=match):
            upsweep.scan(update, init, np.ones(3, dtype))


def test_a_number_of_another_sign_is_checked_in_a_later_call():
    x = np.ones(3, np.uint64)
    assert upsweep.scan(lambda s, x: s + x, 5, x)[-1] == 8
    with pytest.raises(ValueError, match="init, xs: -5 is out of bounds"):
        upsweep.scan(lambda s, x: s + x, -5, x)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int16"])
def test_out(dtype):
    x = integers((30, 4), dtype)
    expected = reference.scan(UPDATES["affine"], np.dtype(dtype).type(3), x)
    out = np.empty_like(x)
    for target in (out, x):
        assert upsweep.scan(UPDATES["affine"], np.dtype(dtype).type(3), x, out=target) is target
        same(target, expected)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_carries(dtype):
    x = integers((50, 3), dtype)
    init, final = integers(3, dtype, 1), np.zeros(3, dtype)
    first, second = (upsweep.scan.carry(UPDATES["affine"], init, part) for part in (x[:20], x[20:]))
    same(upsweep.combine(first, second).apply(init), upsweep.scan(UPDATES["affine"], init, x)[-1] + final)
    with pytest.raises(TypeError, match=f"state: float64 cannot be held by a carry of dtype {dtype}"):
        first.apply(0.5)
    other = {"int64": np.uint64, "uint64": np.int64}[dtype](0)
    with pytest.raises(TypeError, match=rf"carry_b: is integers of {other.dtype}, .* they do not combine"):
        upsweep.combine(first, upsweep.scan.carry(lambda s, x: s + x, other, x.astype(other.dtype)))
    with pytest.raises(ValueError, match="a state is an integer"):
        upsweep.scan.carry(UPDATES["extremes"], init, x)


def test_gradients_pass_by_integers():
    x, n = np.array([2.0, 3.0, 5.0]), np.array([1, 0, 2])
    update = lambda s, x: (s[0] * x[0] + x[1], s[1] + x[1])  # noqa: E731
    result = upsweep.scan.gradient(update, (1.0, np.int64(3)), (x, n), (np.array([0.0, 0.0, 1.0]), np.ones(3)))
    assert result.init[0] == 30
    np.testing.assert_array_equal(result.init[1], 0)
    with pytest.raises(TypeError, match="integers, which have no gradient"):
        upsweep.scan.gradient(lambda s, x: s + x, 0, n, np.ones(3))


@pytest.mark.parametrize("method", ["sequential", "tree"])
@pytest.mark.parametrize("name", ["affine", "extremes", "coupled", "mixed"])
def test_dask(name, method):
    update, x = {**UPDATES, **TUPLES}[name], integers((50, 4))
    init = (2**53 + 1, 0.25) if name == "mixed" else (3, 2**60) if name == "coupled" else integers(4, seed=1)
    results = upsweep.scan(update, init, da.from_array(x, chunks=(12, 3)), return_final=True, method=method)
    same(tuple(y.compute() for y in flat(results)), upsweep.scan(update, init, x, return_final=True))


@pytest.mark.parametrize("init", [2**63 + 5, np.uint64(2**64 - 1)])
def test_dask_of_large_unsigned_integers(init):
    x = integers(50, np.uint64)
    for name in ("affine", "extremes"):
        results = upsweep.scan(UPDATES[name], init, da.from_array(x, chunks=12), return_final=True)
        same(tuple(y.compute() for y in results), upsweep.scan(UPDATES[name], init, x, return_final=True))


@host_device.needs_compiler
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int16", "uint8"])
def test_on_a_device(monkeypatch, fake_cupy, tmp_path, dtype):
    host_device.install(monkeypatch, tmp_path)
    x = integers((40, 5), dtype)
    init = (integers(5, dtype, 1), integers(5, dtype, 2))

    def update(s, x):
        a, b = s
        a = (a ^ (a << 5)) + np.where(x % 7 == 0, 0, b // x) + x % 5
        b = np.maximum(b >> 2, x) * 3 - abs(a) + (a > b) + ~x
        return (a, b), (a & b, a * 0.5, a < b)

    results = upsweep.scan(update, tuple(map(on, init)), on(x), return_final=True)
    expected = upsweep.scan(update, init, x, return_final=True)
    same(tuple(y.host for y in flat(results)), expected)
    numbers = tuple(int(s[0]) for s in init)
    if dtype in ("int64", "uint64"):
        same(upsweep.scan(update, numbers, on(x))[0].host, upsweep.scan(update, numbers, x)[0])


@host_device.needs_compiler
def test_long_lines_on_a_device(monkeypatch, fake_cupy, tmp_path):
    host_device.install(monkeypatch, tmp_path)
    x, update = integers((3000, 2)), UPDATES["reset"]
    assert upsweep.scan.explain(update, 2**60, on(x)).path == "parallel in time"
    result = upsweep.scan(update, 2**60, on(x), return_final=True)
    same(tuple(y.host for y in result), upsweep.scan(update, 2**60, x, return_final=True))
