"""What an update may do with symbolic values, and the error messages otherwise."""

import dataclasses
import math
import operator
import pickle
import traceback
from typing import NamedTuple

import dask.array as da
import numpy as np
import pytest
import upsweep
import xarray as xr
from helpers import random
from upsweep._compiler.formulas.nodes import order
from upsweep._compiler.recurrences import trace as tracing
from upsweep._compiler.recurrences.functions import ALIASES, FUNCTIONS

X = random((20, 3))


def refused(update, match, init=0.0, xs=X, error=TypeError, **keywords):
    with pytest.raises(error, match=match) as caught:
        upsweep.scan(update, init, xs, **keywords)
    return str(caught.value)


def test_a_branch_names_its_line_and_the_remedy():
    def update(s, x):
        if x > 0:  # the line that is named
            return s
        return s + 1

    message = refused(update, "a Python branch on a symbolic value")
    assert "test_trace.py, line" in message
    assert "the line that is named" in message
    assert "np.where(condition, a, b)" in message
    refused(lambda s, x: s + 1 if x > 0 else s, "Python branch")
    refused(lambda s, x: max(s, x), "Python branch.*\n.*np.maximum")
    refused(lambda s, x: s and x, "Python branch")
    refused(lambda s, x: s * (0 < x < 1), "Python branch.*\n.*chains")
    refused(lambda s, x: s + (1 if not x else 2), "Python branch")


def test_a_refusal_that_an_update_catches_is_raised():
    """Else the update would take the path of the exception at every step."""

    def branches(s, x):
        try:
            if x > 0:
                return s + 1
        except TypeError:
            pass
        return s - 1

    def converts(s, x):
        try:
            return s + math.exp(x)
        except Exception:
            return math.inf

    refused(branches, "a Python branch on a symbolic value in test_trace.py, line .*: if x > 0:")
    refused(lambda s, x: [branches(s, x), x][x], "a Python branch")  # with a table
    refused(converts, "a symbolic value as a Python number in test_trace.py")
    with pytest.raises(AttributeError, match="no attribute 'size'"):
        upsweep.scan(lambda s, x: s * x.size, 0.0, X)
    assert upsweep.scan(lambda s, x: s + getattr(x, "size", 1), 0.0, [1.0, 1.0]).tolist() == [1, 2]


def test_what_is_not_symbolic_is_refused():
    assert "np.tanh" in refused(lambda s, x: math.tanh(x), "a symbolic value as a Python number")
    refused(lambda s, x: float(x), "as a Python number")
    refused(lambda s, x: s + x[0], "an index of a symbolic number in test_trace.py, line.*\n.*single numbers")
    refused(lambda s, x: s + sum(x), r"a symbolic number is iterated over.*\n.*xs=tuple\(x\.T\)")
    refused(lambda s, x: np.max([s, x]), r"Python branch.*\n.*np\.max\(np\.stack\(\[a, b\]\)\)")
    refused(
        lambda s, x: np.random.default_rng().normal(s),
        "as an array.*\n.*random numbers are drawn before the scan, into xs",
    )
    refused(lambda s, x: operator.setitem(s, 0, x), "an assignment to one of several.*\nreturn", init=(0.0, 0.0))
    refused(lambda s, x: upsweep.scan(np.add, s, [x]), "xs: .* no scan is possible inside of it")
    refused(lambda s, x: s + (x in {1.0, 2.0}), r"as a key of a dict or a set.*\n.*write \(x == 1\)")
    refused(lambda s, x: {0.0: 5.0}.get(x, s), "as a key of a dict or a set")
    refused(lambda s, x: np.i0(x), "as a Python number in test_trace.py, line")  # in Python code of numpy
    refused(
        lambda s, x: np.cbrt(x), r"np\.cbrt is not known for symbolic values in test_trace.py, line.*\n.*copysign"
    )
    refused(lambda s, x: x.log1q(), "no attribute 'log1q'; did you mean log1p in test_trace.py")
    refused(lambda s, x: np.add.reduce(x), r"np\.add\.reduce is not known")
    refused(lambda s, x: np.sum(x), r"np\.sum is not known.*\n.*reduce xs before the scan")
    refused(
        lambda s, x: np.isclose(x, s),
        r"np\.isclose is not .*\nwrite abs\(a - b\) <= tolerance; help\(upsweep.scan\)",
    )
    assert len(refused(lambda s, x: x.detach(), r"no attribute 'detach' in .*\n.*; help\(upsweep\.scan\)")) < 300
    refused(lambda s, x: (np.mean(s), x), r"as an array.*\n.*np\.sum\(s\) / len\(s\)", init=(0.0, 0.0))
    refused(lambda s, x: pow(s, 2, 7), r"pow of three numbers.*\nwrite base \*\* exponent % modulus")
    refused(lambda s, x: np.linalg.inv(np.stack([s, x])), r"np\.linalg\.inv is not known")
    refused(lambda s, x: np.add(s, x, dtype=float), r"np\.add with other arguments .*\n.*it takes \(x1, x2\)")
    refused(lambda s, x: np.clip(s, low=0), r"np\.clip with other arguments .*\n.*a_min=None")
    refused(lambda s, x: s + np.ones(100), r"an array of shape \(100,\) beside symbolic values")
    refused(
        lambda s, x: s + np.arange(3), "returned an array of 3 numbers; .*with a number for each column.* in xs"
    )
    refused(lambda s, x: s + np.arange(2), "returned an array of 2 numbers")  # no state and output
    refused(lambda s, x: np.eye(2) @ s, r"np\.matmul is not .*\n.*init=tuple\(init\): A @ np\.stack\(state\)")
    refused(lambda s, x: s @ x, r"a matrix product with a symbolic number.*\n.*A @ np\.stack\(state\)")
    refused(lambda s, x: s + "a", "expected a number, got str in test_trace")
    refused(lambda s, x: s.add_(x), r"no attribute 'add_' in test_trace.py, line.*\n.*x = x\.add\(\.\.\.\)")
    refused(lambda s, x: s + np.float32(x), r"as an array in test_trace.py, line.*\n.*x\.astype")
    assert "'symbolic number'" in refused(lambda s, x: len(s), "has no len")
    refused(lambda s, x: x.astype("much"), r"astype\('much'\) in test_trace.py, line")
    refused(
        lambda s, x: x.astype(complex), r"astype\(.*complex.*\) in test_trace.py, line.*\n.*a float, an integer"
    )


def test_functions_of_pandas_are_refused():
    pd = pytest.importorskip("pandas")
    for test in (pd.isna, pd.notna, lambda x: pd.isna([x, x])):
        refused(lambda s, x, test=test: np.where(test(x), s, s + x),
                r"in a function of pandas in test_trace.py, line.*\n.*np\.isnan\(x\), with np\.where")  # fmt: skip


def test_tables_are_indexed_by_states_and_inputs():
    """Of any kind; what is no index of them gives NaN, and no memory is read by an index."""
    nested = ((0, 1), (2, 1), (0, 2))
    rows, array = [list(row) for row in nested], np.array(nested)
    x = np.random.default_rng(0).integers(0, 2, (50, 3))
    expected, state = [], np.zeros(3, int)
    for row in x:
        state = array[state, row]
        expected.append(state)
    for update in (
        lambda s, x: nested[s][x], lambda s, x: rows[s][x] + 0.0, lambda s, x: array[s, x] * 1.0,
        lambda s, x: array[s][x] + 0 * s, lambda s, x: array[s.astype(int), x.astype(int)],
        lambda s, x: array.T[x, s], lambda s, x: (array[s, x], s, [True, False][x])[0],
    ):  # fmt: skip
        np.testing.assert_array_equal(upsweep.scan(update, 0.0, x), expected)
    entries = [10.0, 20.0, 30.0]
    ys = upsweep.scan(lambda s, x: (s + 0.5, entries[s]), -1.0, np.zeros(10))
    np.testing.assert_array_equal(ys, [np.nan, np.nan, 10, np.nan, 20, np.nan, 30, np.nan, np.nan, np.nan])
    for index in (np.nan, np.inf, -np.inf, 1e300):
        assert np.isnan(upsweep.scan(lambda s, x: (s, entries[x]), 0.0, [index]))
        assert upsweep.scan(lambda s, x: (s, [True, False][x]), 0.0, [index]).tolist() == [False]
    # What does not depend on the entry stays as it is, and derivatives go to the chosen entries.
    both = upsweep.scan(lambda s, x: (s + 1.0, (entries[x] * s, s)), 0.0, np.array([7.0, 1.0]))
    np.testing.assert_array_equal(both[1], [0, 1])
    gradient = upsweep.scan.gradient(lambda s, x: entries[x[1]] * s + x[0], 1.0, (np.ones(2), [1, 2]), [0.0, 1.0])
    assert gradient.init == 600 and gradient.xs[0].tolist() == [30, 1] and gradient.xs[1].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [1, 30])
def test_large_tables_are_arrays_in_memory(n_columns, dtype):
    rng = np.random.default_rng(0)
    table, keys = rng.normal(size=(30, 20)).astype(dtype), rng.integers(0, 20, (40, n_columns))
    moves, state, total = rng.integers(0, 30, (30, 20)), np.full(n_columns, 5), dtype(0)
    for row in keys:
        state = moves[state, row]
        total = dtype(0.5) * total + table[state, row]
    update = lambda s, x: (moves[s[0], x], dtype(0.5) * s[1] + table[moves[s[0], x], x])  # noqa: E731
    signature = (np.dtype(int), np.dtype(dtype)), 2, (np.dtype(int),), -1
    assert len(order(*tracing.trace(update, *signature).recurrence.roots)) < 100
    _, last = upsweep.scan(update, (5, dtype(0)), keys, return_final=True)
    np.testing.assert_array_equal(last[0], state)
    np.testing.assert_allclose(last[1], total, rtol=1e-5 if dtype is np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_memory_outside_of_a_table_is_read(dtype):
    rng = np.random.default_rng(0)
    values, flags, whole = rng.normal(size=20).astype(dtype), np.arange(20) > 0, np.arange(100, 120)
    inputs = [np.nan, np.inf, -np.inf, 1e30, -1e30, -1, -0.5, 0.5, 18.75, 20, 1e6, -0.0, 19]
    numbers, truths, integers = upsweep.scan(
        lambda s, x: (s, (values[x], flags[x], whole[x])), dtype(0), np.array(inputs, dtype)
    )[:3]
    np.testing.assert_array_equal(numbers, [*[np.nan] * 11, *values[[0, -1]]])
    assert truths.tolist() == [*[False] * 12, True]
    assert integers[1:].tolist() == [119, 100, 119, 100, 100, 100, 101, 119, 119, 119, 100, 119]


def test_tables_of_which_runs_differ_in_more_than_numbers():
    table = np.random.default_rng(0).normal(size=(20, 20))
    values = table[0].copy()
    values[3], table[7] = np.inf, 2.0  # no literal of CUDA C++; a row that does not depend on the index
    keys = np.arange(20)
    for update in (
        lambda s, x: (s, values[x] + s), lambda s, x: (s, table[x, x]), lambda s, x: (s, (2 + s) ** [*keys][x]),
    ):  # fmt: skip
        expected = [update(0.0, n)[1] for n in keys]
        np.testing.assert_allclose(upsweep.scan(update, 0.0, keys), expected, rtol=1e-12)


def test_tables_are_differentiated_and_indexed_by_narrow_integers():
    factors, entries = np.random.default_rng(0).normal(size=20), np.arange(200.0)
    gradient = upsweep.scan.gradient(
        lambda s, x: factors[x[1]] * s + x[0], 1.0, (np.ones(3), np.array([1.0, 2.0, 3.0])), [0.0, 0.0, 1.0]
    )
    np.testing.assert_allclose(gradient.init, factors[1:4].prod(), rtol=1e-12)
    assert gradient.xs[1].tolist() == [0, 0, 0]
    for dtype in (np.int8, np.uint8, np.uint64):
        assert upsweep.scan(lambda s, x: (s, entries[x]), 0.0, np.array([0, 100], dtype)).tolist() == [0, 100]
    explanation = upsweep.scan.explain(lambda s, x: factors[x] * s + 1.0, 0.0, np.zeros(10_000))
    assert explanation.path == "parallel in time"


def test_the_largest_table():
    table = np.random.default_rng(0).permutation(256)
    keys = np.array([0, 255, 7])
    np.testing.assert_array_equal(upsweep.scan(lambda s, x: table[x], 0, keys), table[keys])


@pytest.mark.parametrize("n", [5, 16, 17, 200])
def test_negative_integers_count_from_the_end_of_a_table(n):
    table = (np.arange(n) * 37 % 101).astype(np.int16)
    for dtype in (np.int16, np.int64):
        places = np.arange(-n, n, dtype=dtype)
        for entries in (table, table * 0.5, table % 2 > 0, tuple(table.tolist())):
            ys = upsweep.scan(lambda s, x, entries=entries: (s, entries[x]), 0, places)
            np.testing.assert_array_equal(ys, np.array(entries)[places])
    changes = upsweep.scan(lambda s, t: (s + 1, table[t] - table[t - 1]), 0, np.arange(n))
    np.testing.assert_array_equal(changes, table - np.roll(table, 1))
    square = np.arange(12).reshape(3, 4)
    places = np.arange(-3, 3), np.array([-4, -1, 0, 1, 2, 3])
    np.testing.assert_array_equal(upsweep.scan(lambda s, x: (s, square[x[0], x[1]]), 0, places), square[places])
    outside = [-n - 1, n, n + 300]  # the nearest entry of integers, NaN of floats
    ys = upsweep.scan(lambda s, x: (s, (table[x], table[x] * 0.5)), 0, outside)
    assert ys[0].tolist() == table[[0, -1, -1]].tolist() and np.isnan(ys[1]).all()
    short = table[:4]  # an index of tables of two lengths does not count from either end
    ys = upsweep.scan(lambda s, x: (s, (table[x], short[x])), 0, [-1, 2])
    assert ys[0].tolist() == ys[1].tolist() == table[[0, 2]].tolist()


def test_tables_that_are_refused():
    with pytest.raises(IndexError, match="out of range"):
        upsweep.scan(lambda s, x: [][x], 0.0, X)
    refused(lambda s, x: [0.0] * 257 and [0.0] * x, "as a size, or as an index .* in test_trace.py, line")
    refused(lambda s, x: np.zeros(257)[x], "of more than 256 entries.*\n.*data of each step belongs in xs")
    refused(lambda s, x: sum(x for _ in range(s)), "as a size, or as an index.*\n.*loops take Python's integers")
    refused(lambda s, x: [s, (s, x)][x], "results have other forms for other indices")
    refused(lambda s, x: (s, [None, x][x]), "results have other forms for other indices")
    with pytest.raises(ZeroDivisionError):
        upsweep.scan(lambda s, x: [1, 0][x] / [1, 0][x] * s, 0.0, X)


def test_small_vectors_and_matrices():
    """Products with captured matrices are unrolled; an array that an update returns is a tuple of states."""
    x, A, b = random((20, 3)), np.array([[0.9, 0.1], [-0.2, 0.8]]), np.array([1.0, 0.5])
    rows = A.tolist()

    def looped(update):
        state, ys = np.zeros((2, 3)), []
        for row in x:
            state = update(state, row)
            ys.append(state)
        return [*np.stack(ys, 1)]

    linear = looped(lambda s, x: A @ s + b[:, None] * x)
    for update in (
        lambda s, x: A @ s + b * x, lambda s, x: np.dot(A, s) + x * b, lambda s, x: A @ np.array(s) + b * x,
        lambda s, x: (A * np.stack(s)).sum(1) + b * x, lambda s, x: np.einsum("ij,j", A, np.stack(s)) + b * x,
        lambda s, x: np.array([A[0] @ s + x, rows[1][0] * s[0] + rows[1][1] * s[1] + 0.5 * x]),
        lambda s, x: (np.reshape(np.concatenate([s, s]), (2, 2)) * A).sum(axis=-1) + b * x,
        lambda s, x: ((A @ s + b * x), A @ s + b * x), lambda s, x: [*(A @ s + b * x)],
    ):  # fmt: skip
        np.testing.assert_allclose(upsweep.scan(update, (0.0, 0.0), x), linear, rtol=1e-13)
    curved = looped(lambda s, x: np.tanh(np.maximum(A @ s + b[:, None] * x, -0.5)) + np.where(s > 0.1, s, 0.5))
    ys = upsweep.scan(
        lambda s, x: np.tanh(np.maximum(A @ s + b * x, -0.5)) + np.where(np.stack(s) > 0.1, s, 0.5), (0.0, 0.0), x
    )
    np.testing.assert_allclose(ys, curved, rtol=1e-13)
    assert upsweep.scan(lambda s, x: A @ s, (np.float32(1), np.float32(1)), x.astype(np.float32))[0].dtype == "f4"
    explanation = upsweep.scan.explain(lambda s, x: A @ s + b * x, (0.0, 0.0), np.ones(10_000))
    assert explanation.why.startswith("the update is affine in its 2 states, with constant factors")


def test_the_documentation_lists_the_functions():
    listed = upsweep.scan.__doc__.partition("these functions of numpy: ")[2].partition(".")[0]
    names = listed.replace("; and of torch:", ",").replace("\n", " ").split(",")
    assert sorted(name.strip() for name in names) == sorted(FUNCTIONS)
    assert not set(ALIASES) & set(FUNCTIONS) and set(ALIASES.values()) <= set(FUNCTIONS)


def test_casts():
    x = np.array([1.5, -2.25, 0.0, -0.5, np.inf, 3.75])
    cases = {
        "integers": lambda s, x: np.where(x < 1e9, x, 0.0).astype(int),
        "bool": lambda s, x: s + x.astype(bool),
        "of bool": lambda s, x: s + (x > 0).astype(np.float64),
        "of bool to int": lambda s, x: s + (x > 0).astype(np.int8),
        "float": lambda s, x: 0.5 * s + x.astype(np.float64),
    }
    for name, update in cases.items():
        expected, state = [], np.float64(0)
        for each in x:
            state = np.float64(update(state, each))
            expected.append(state)
        np.testing.assert_array_equal(upsweep.scan(update, 0.0, x), expected, err_msg=name)
    # The state stays of the dtype that it is given, beside inputs of a wider one.
    narrow = upsweep.scan(lambda s, x: (s + x).astype(s.dtype), np.float32(0), x)
    assert narrow.dtype == np.float32 and narrow.tolist() == [1.5, -0.75, -0.75, -1.25, np.inf, np.inf]
    assert upsweep.scan(lambda s, x: (s, x.astype("float16")), 0.0, x)[1].dtype == np.float16
    gradient = upsweep.scan.gradient(lambda s, x: s + x * x.astype(int), 0.0, x[:4], np.ones(4))
    assert gradient.xs.tolist() == [4.0, -6.0, 0.0, 0.0]


def test_results_that_are_no_state():
    refused(lambda s, x: None, "returned NoneType; expected the new state, a number")
    refused(lambda s, x: (s, x, x), r"returned \(a number, a number, a number\)")
    refused(lambda s, x: s[0] + x, "expected the new state, a tuple or array of 2 numbers", init=(0.0, 0.0))
    refused(lambda s, x: (s, (x, (x, x))), "returned")
    refused(lambda s, x: (s, "a"), "returned str")


def test_a_state_that_becomes_a_wider_float_names_the_cause():
    x, done, rate = X.astype(np.float32), X > 0.5, np.float64(0.9)
    remedy = r"test_trace.py, line.*\n.*x\.astype\(np\.float(32|16)\), and float\(x\) of.*np\.where\(done, 0"
    for update, init, cause in (
        (lambda s, x: x[0] + 0.9 * s * (1 - x[1]), 0.0, "the state is .*number of int64 in "),
        (lambda s, x: x[0] + 0.9 * s * (1.0 - x[1]), 0.0, "the state is .*number of float64 in "),
        (lambda s, x: (s[0] + x[0], s[1] + rate * s[0]), (0.0, 0.0), "state 1 is .*number of float64 in "),
        (lambda s, x: s + x[0], np.zeros(3, np.float16), "the state is float16 .*number of float32 in "),
    ):
        refused(update, cause + remedy, init=init, xs=(x, done))
    # One that no operation has made wider.
    refused(lambda s, x: x, "the state is float32 and becomes float64 in .*give init as", init=np.float32(0))
    refused(lambda s, x: s + x, "the state is bool and becomes float64 in .*give init as", init=False)


class Level(NamedTuple):
    level: float
    trend: float


class Step(NamedTuple):
    x: np.ndarray
    done: np.ndarray


def test_namedtuples_are_arguments_and_results():
    def update(s, x):
        return s._replace(level=np.where(x.done, 0.0, s.level + s.trend) + x.x, trend=0.5 * s.trend + x.x)

    def plain(s, x):
        return np.where(x[1], 0.0, s[0] + s[1]) + x[0], 0.5 * s[1] + x[0]

    init, xs = Level(0.5, 1.0), Step(X, X > 1)
    ys, final = upsweep.scan(update, init, xs, return_final=True)
    expected = upsweep.scan(plain, (0.5, 1.0), (X, X > 1), return_final=True)
    assert type(ys) is type(final) is Level
    for result, like in zip((ys, final), expected):
        assert type(like) is tuple
        np.testing.assert_array_equal(result, like)
    for array in (da.from_array, xr.DataArray):
        lazy = upsweep.scan(
            update, init, Step(array(X), array(X > 1)), axis=0 if array is da.from_array else "dim_0"
        )
        assert type(lazy) is Level
        np.testing.assert_array_equal(lazy, ys)
    trend = upsweep.scan(lambda s, x: (s, s.trend * x.done), init, Step(X, X < 9), reset=X > 0)
    np.testing.assert_array_equal(trend[0], X[0] <= 0)
    gradient = upsweep.scan.gradient(update, init, xs, (X, X))
    assert type(gradient.init) is Level and type(gradient.xs) is Step
    out = np.empty_like(X), np.empty_like(X)
    assert upsweep.scan(update, init, xs, out=out) is out
    np.testing.assert_array_equal(out, ys)
    decay = lambda s, x: Level(0.5 * s.level + x, s.trend)  # noqa: E731
    assert type(upsweep.scan.carry(decay, init, X).apply(init)) is Level
    with pytest.raises(TypeError, match="cotangent: expected a tuple of 2"):
        upsweep.scan.gradient(update, init, xs, X)
    with pytest.raises(TypeError, match="out: expected a tuple of 2 arrays"):
        upsweep.scan(update, init, xs, out=X.copy())


def test_other_records_are_refused():
    record = dataclasses.make_dataclass("Record", ["level", "trend"])
    for value, name in (({"level": 0.0}, "dict"), (record(0.0, 0.0), "Record")):
        refused(lambda s, x: s, f"init: expected .* got {name}; .*NamedTuple", init=value)
        refused(lambda s, x: s, f"xs: expected .* got {name}; .*NamedTuple", xs=value)
        refused(lambda s, x: s, f"init: expected .* got {name}; .*NamedTuple", init=value, xs=da.from_array(X))
        refused(lambda s, x, value=value: value, f"returned {name} where a number was expected; .*NamedTuple")


def test_a_missing_attribute_is_a_type_error():
    with pytest.raises(TypeError) as caught:
        upsweep.scan(lambda s, x: s.nope, 0.0, X)
    error = caught.value
    assert traceback.format_exception_only(error)[0].startswith("TypeError: update: a symbolic number has no")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args) == (TypeError, error.args)


def test_arguments():
    total = lambda s, x: s + x  # noqa: E731
    refused(3, "update: expected a function")
    with pytest.raises(TypeError, match="update: expected a function of a state and an input, got int"):
        upsweep.scan(axis=0)(3)
    refused(lambda s: s, r"update: .*is called as update\(state, x\): too many positional arguments")
    refused(lambda s, x, y: s, r"is called as update\(state, x\): missing a required argument: 'y'")
    refused(total, "xs: element 0 of the tuple has to be an array or a number, not a tuple$", xs=((X, X), X))
    refused(total, "init: expected a number, an array or a tuple", init=())
    refused(total, "init: expected real numbers", init=1j)
    refused(total, r"xs\[1\]: expected real numbers, .* linear_recurrence .* complex", xs=(X, X * 1j))
    refused(total, r"xs: element 1 of the tuple", xs=(X, None))
    refused(total, "xs: expected at least one axis", xs=1.0, error=ValueError)
    refused(total, r"xs: shapes do not broadcast together: xs\[0\] \(20, 3\)", xs=(X, X[:7]), error=ValueError)
    of_steps = "; for one number at each index of "
    first = np.zeros(20, bool)
    remedy = rf"xs \(20, 3\), reset \(20,\){of_steps}axis 0, pass reset\[:, None\]$"
    refused(total, remedy, reset=first, error=ValueError)
    remedy = rf"{of_steps}axes \(0, 1\), pass reset\[:, :, None, None\]$"
    refused(total, remedy, xs=np.ones((5, 20, 3, 2)), axis=1, reset=np.ones((5, 20), bool), error=ValueError)
    remedy = r"init: shape \(20, 2\) .* to \(3, 2\), the shape of xs without axis 0: .*; it would fit axis=1$"
    refused(total, remedy, init=np.zeros((20, 2)), xs=np.ones((20, 3, 2)), error=ValueError)
    refused(
        total,
        rf"{of_steps}axis 1, pass xs\[0\]\[:, None, None\]$",
        xs=(first, np.ones((5, 20, 3, 2))),
        axis=1,
        error=ValueError,
    )
    remedy = r"; if xs\[0\] has one number .* the others have no steps, pass xs\[0\]\[:, None, None\]$"
    refused(total, remedy, xs=(first, np.ones((15, 16)), np.ones((15, 16))), error=ValueError)
    upsweep.scan(lambda s, x: s + x[0] * x[1], 0.0, (X[:, :1][:, :, None], np.ones((15, 16))))
    refused(total, r"xs \(20, 3\), reset \(7,\)$", reset=first[:7], error=ValueError)
    refused(total, r"xs \(3, 20\), reset \(3,\)$", xs=X.T, axis=1, reset=first[:3], error=ValueError)
    refused(total, "reset: expected real numbers, got dtype complex128", reset=X * 1j)
    refused(total, "expected a number, got None in test_trace.*\n.*x is None", xs=None, length=3)
    refused(
        total, r"init: shape \(4,\) .* to \(3,\).*: a state is one number for", init=np.zeros(4), error=ValueError
    )
    refused(total, r"init: shape \(2,\) .* init=tuple\(init\)", init=np.zeros(2), xs=X[0], error=ValueError)
    refused(total, r"init: shape .*; it would fit axis=1$", init=X[:, 0], error=ValueError)
    refused(total, r"init\[1\]: shape", init=(0.0, np.zeros(4)), error=ValueError)
    refused(total, "axis: axis 2 is out of bounds for array of dimension 2", axis=2, error=ValueError)
    refused(total, "axis: expected an integer", axis=0.5)
    refused(total, "unexpected keyword argument 'dim'; dim is called axis here", dim=0)
    refused(total, r"length: 7 is not the .*broadcast_to\(x, \(7, \*x\.shape\)\)", length=7, error=ValueError)
    refused(total, r"\*x\.shape\[1:\]\)\), which takes no memory", xs=X[:1], length=7, error=ValueError)
    refused(total, r"got numbers; pass np\.full\(length, x\)", xs=1.0, length=7, error=ValueError)
    refused(total, r"xs: .*got dict; .*class Inputs\(NamedTuple\)", xs={"price": X})
    refused(total, r"dtype \|S3; .* np\.frombuffer\(x, np\.uint8\)", xs=b"abc")
    refused(total, r"dtype datetime64\[D\]; .* xs\.astype\('int64'\)", xs=X.astype("M8[D]"))
    refused(total, "argument 'final'; final is called return_final here", final=True)
    refused(total, "length: is needed where xs is None", xs=None, error=ValueError)
    refused(total, "length: expected at least 0", xs=None, length=-1, error=ValueError)
    refused(total, "length: expected an integer", xs=None, length=2.5)
    refused(total, "checkpoint: expected at least 1", checkpoint=0, error=ValueError)
    with pytest.raises(TypeError, match="init: is needed"):
        upsweep.scan(total, xs=X)
    refused(total, "argument 'dones'; dones is called reset here", dones=X > 0)
    refused(total, "argument 'axes'; did you mean axis", axes=0)
    with pytest.raises(AttributeError, match=r"no function 'sinhh'; did you mean sinh; help\(upsweep\.scan\)"):
        _ = upsweep.scan.sinhh
