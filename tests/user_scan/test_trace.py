"""What an update may do with symbolic values, the error messages otherwise, and when it is traced again."""

import functools
import math
import types

import numpy as np
import pytest
import upsweep
from helpers import random
from upsweep._compiler.recurrences import trace as tracing

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


def test_what_is_not_symbolic_is_refused():
    assert "np.tanh" in refused(lambda s, x: math.tanh(x), "a symbolic value as a Python number")
    refused(lambda s, x: float(x), "as a Python number")
    refused(lambda s, x: [1, 2][x], "as a Python number")
    refused(lambda s, x: s + x[0], "an index of a symbolic number in test_trace.py, line.*\n.*single numbers")
    refused(lambda s, x: s + sum(x), "a symbolic number is iterated over")
    refused(lambda s, x: np.sinh(x), "np.sinh is not known for symbolic values")
    refused(lambda s, x: np.add.reduce(x), "np.add.reduce is not known")
    refused(lambda s, x: np.sum(x), "is not known")
    refused(lambda s, x: s + np.arange(3), r"an array of shape \(3,\) beside symbolic values")
    refused(lambda s, x: s + "a", "expected a number, got str")
    refused(lambda s, x: round(s), "a symbolic value is rounded in test_trace.py, line.*\n.*np.floor")
    refused(lambda s, x: s.clip(0, 1), "no attribute 'clip' in test_trace.py, line.*\n.*clip")
    refused(lambda s, x: s + np.float32(x), r"as an array in test_trace.py, line.*\n.*x\.astype")
    refused(lambda s, x: x.astype("much"), r"astype\('much'\) in test_trace.py, line")
    refused(
        lambda s, x: x.astype(complex), r"astype\(.*complex.*\) in test_trace.py, line.*\n.*a float, an integer"
    )


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
    refused(lambda s, x: s[0] + x, "expected the new state, a tuple of 2 numbers", init=(0.0, 0.0))
    refused(lambda s, x: (s, (x, (x, x))), "returned")
    refused(lambda s, x: (s, "a"), "returned str")


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
    refused(total, r"xs\[1\]: expected real numbers", xs=(X, X * 1j))
    refused(total, r"xs: element 1 of the tuple", xs=(X, None))
    refused(total, "xs: expected at least one axis", xs=1.0, error=ValueError)
    refused(total, r"xs: shapes do not broadcast together: xs\[0\] \(20, 3\)", xs=(X, X[:7]), error=ValueError)
    refused(total, r"init: shape \(4,\) does not broadcast to \(3,\)", init=np.zeros(4), error=ValueError)
    refused(total, r"init\[1\]: shape", init=(0.0, np.zeros(4)), error=ValueError)
    refused(total, "axis: 2 is out of range for 2 dimensions", axis=2, error=ValueError)
    refused(total, "axis: expected an integer", axis=0.5)
    refused(total, "length: 7 is not the length of xs", length=7, error=ValueError)
    refused(total, "length: is needed where xs is None", xs=None, error=ValueError)
    refused(total, "length: expected at least 0", xs=None, length=-1, error=ValueError)
    refused(total, "length: expected an integer", xs=None, length=2.5)
    refused(total, "checkpoint: expected at least 1", checkpoint=0, error=ValueError)
    with pytest.raises(TypeError, match="init: is needed"):
        upsweep.scan(total, xs=X)
    with pytest.raises(AttributeError, match="no function 'sinh'"):
        _ = upsweep.scan.sinh


@pytest.fixture
def traced(monkeypatch):
    """The signatures of all that is traced."""
    observed, trace = [], tracing.trace

    def counting(update, *signature):
        observed.append(signature)
        return trace(update, *signature)

    monkeypatch.setattr(tracing, "trace", counting)
    return observed


def test_traced_once_for_each_signature(traced):
    def update(s, x):
        return 0.5 * s + x

    for _ in range(3):
        upsweep.scan(update, 0.0, X)
        upsweep.scan(update, 0.0, X[:, 0], reverse=True)
    assert len(traced) == 1
    upsweep.scan(update, 0.0, X.astype(np.float32))
    assert len(traced) == 2


def test_functions_of_the_same_code_are_one(traced):
    for rate in (0.25, 0.25, 0.75, 0.25):
        y = upsweep.scan(lambda s, x, r=rate: r * np.abs(s) + x, 0.0, [1.0, 1.0])
        assert y[1] == 1 + rate
    assert len(traced) == 2


FACTOR = 2.0


def test_captured_numbers_are_part_of_the_signature(monkeypatch):
    factor = 3.0

    def closed(s, x):
        return factor * x

    def globally(s, x):
        return FACTOR * x

    def by_default(s, x, factor=4.0):
        return factor * x

    def results():
        return [upsweep.scan(update, 0.0, [1.0])[0] for update in (closed, globally, by_default)]

    assert results() == [3, 2, 4]
    factor = 5.0
    monkeypatch.setitem(globals(), "FACTOR", 6.0)
    by_default.__defaults__ = (7.0,)
    assert results() == [5, 6, 7]


RATES = types.SimpleNamespace(now=0.5)


def rated(s):
    return FACTOR * s


class Rate:
    now = 0.5

    def __call__(self, s, x):
        return self.now * s + x

    def method(self, s, x):
        return self.now * s + x


@pytest.mark.parametrize(
    "kind",
    [
        "object", "method", "attribute", "class", "helper", "partial", "array", "record", "dict", "bound",
        "inside", "module",
    ],
)  # fmt: skip
def test_what_changes_around_an_update_is_seen(monkeypatch, kind):
    rate, array, table, module = Rate(), np.array([0.5]), {"now": 0.5}, types.ModuleType("settings")
    module.now, get = 0.5, table.get
    record = np.zeros(1, [("now", np.float64)])[0]
    update = {
        "object": rate,
        "method": rate.method,
        "attribute": lambda s, x: RATES.now * s + x,
        "class": lambda s, x: Rate.now * s + x,
        "helper": lambda s, x: rated(s) + x,
        "partial": functools.partial(lambda unit, s, x: FACTOR * s + unit * x, 1.0),
        "array": lambda s, x: array[0] * s + x,
        "record": lambda s, x: record["now"] * s + x,
        "dict": lambda s, x: table["now"] * s + x,
        "bound": lambda s, x: get("now") * s + x,
        "inside": lambda s, x: sum([FACTOR for _ in range(1)]) * s + x,
        "module": lambda s, x: module.now * s + x,
    }[kind]
    for number in (0.5, 0.25):
        monkeypatch.setitem(globals(), "FACTOR", number)
        monkeypatch.setattr(Rate, "now", number)
        monkeypatch.setattr(RATES, "now", number)
        array[0] = record["now"] = table["now"] = module.now = number
        assert upsweep.scan(update, 0.0, [1.0, 1.0])[1] == 1 + number


def test_other_numbers_need_no_other_code():
    from upsweep._backends.cpu import user_scan

    def run(factor):
        return upsweep.scan(lambda s, x: factor * s + x * 0.125, 0.0, X)

    run(0.3)
    before = user_scan._kernel.cache_info().misses
    np.testing.assert_allclose(run(0.7)[1], X[0] * 0.7 / 8 + X[1] / 8)
    assert user_scan._kernel.cache_info().misses == before


def test_the_same_functions_work_on_arrays():
    x = random(9)
    np.testing.assert_array_equal(upsweep.scan.where(x > 0, x, 0), np.where(x > 0, x, 0))
    np.testing.assert_allclose(upsweep.scan.sigmoid(np.array([-800.0, 0.0, 800.0])), [0, 0.5, 1])


def test_a_choice_of_python_numbers_is_one():
    x = random((20, 5), np.float32)
    y = upsweep.scan(lambda s, x: s + np.where(x > 0, 1.0, 0.0) * 2, 0.0, x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.cumsum(x > 0, axis=0) * 2)


def test_a_helper_that_is_exchanged():
    def make(power):
        return lambda x: x**power

    def shared(s, x):
        return helper(x)

    for power in (4, 5, 6):
        helper = None  # the next one may lie where this one lay
        helper = make(power)
        assert upsweep.scan(shared, 0.0, [2.0])[0] == 2**power
