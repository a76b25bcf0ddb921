"""When an update is traced again: other signatures, captured values that change, updates that are not pure."""

import functools
import itertools
import logging
import os
import random as random_
import time
import types

import captured_numbers
import numpy as np
import pytest
import upsweep
from helpers import random
from upsweep._compiler.recurrences import trace as tracing

X, FACTOR = random((20, 3)), 2.0


@pytest.fixture
def traced(monkeypatch):
    """The signatures of all that is traced."""
    observed, trace = [], tracing._trace_of_pure

    def counting(update, signature):
        observed.append(signature)
        return trace(update, signature)

    monkeypatch.setattr(tracing, "_trace_of_pure", counting)
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


def test_captured_numbers_are_part_of_the_signature(monkeypatch):
    updates, set_closed = captured_numbers.updates()

    def results():
        return [upsweep.scan(update, 0.0, [1.0])[0] for update in updates]

    assert results() == [3, 2, 4]
    set_closed(5.0)
    monkeypatch.setattr(captured_numbers, "FACTOR", 6.0)
    updates[2].__defaults__ = (7.0,)
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


def test_an_array_is_compared_in_place_of_another_trace(monkeypatch):
    table, large = np.arange(200), np.arange(2**16)
    calls = []
    original = tracing.trace
    monkeypatch.setattr(tracing, "trace", lambda *args: calls.append(1) or original(*args))
    for array, expected in ((table, [False, False, True]), (large, [True, True, True])):
        update = lambda s, x, array=array: s + array[3] * x  # noqa: E731
        upsweep.scan(update, 0, [1, 1])
        for number, is_traced in zip((3, 3, 5), expected):
            array[3] = number
            del calls[:]
            assert upsweep.scan(update, 0, [1, 1]).tolist() == [number, 2 * number]
            assert bool(calls) == is_traced


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


NUMBER = 0


def _impure_updates():
    generator, legacy, own = np.random.default_rng(), np.random.RandomState(), random_.Random()
    items, table, unique, array, counter = [], {}, set(), np.zeros(2), itertools.count()
    place, local = types.SimpleNamespace(n=0), 0

    def counts(s, x):
        nonlocal local
        local += 1
        return s + local * x

    def counts_globally(s, x):
        global NUMBER
        NUMBER += 1
        return s + NUMBER * x

    def sets_an_attribute(s, x):
        place.n += 1
        return s + place.n * x

    class Model:
        n = 0

        def __call__(self, s, x):
            self.n += 1
            return s + x

    return {
        "np.random": lambda s, x: s + np.random.normal(),  # noqa: NPY002  # the global generator
        "in a function": lambda s, x: s + _draw(),
        "Generator": lambda s, x: s + generator.normal(),
        "few values": lambda s, x: s + generator.integers(0, 2),
        "a bound method": functools.partial(lambda draw, s, x: s + draw(), generator.normal),
        "RandomState": lambda s, x: s + legacy.rand(),
        "random": lambda s, x: s + random_.random(),
        "gauss": lambda s, x: s + random_.gauss(0, 1),
        "Random": lambda s, x: s + own.random(),
        "nonlocal": counts, "global": counts_globally, "attribute": sets_an_attribute, "object": Model(),
        "append": lambda s, x: (items.append(s), s + x)[1],
        "dict": lambda s, x: s + table.setdefault(len(table), 1.0) * x,
        "set": lambda s, x: (unique.add(len(unique)), s + x)[1],
        "array": lambda s, x: (array.__iadd__(1), s + x)[1],
        "iterator": lambda s, x: s + next(counter) * x,
        "a new Generator": lambda s, x: s + np.random.default_rng().normal(),
        "a new coin": lambda s, x: s + x * (np.random.default_rng().random() < 0.8),
        "a new Random": functools.partial(lambda reset, s, x: s + random_.Random().random(), None),
        "urandom": lambda s, x: s + os.urandom(9)[0] + os.urandom(8)[1] / 256,
        "clock": lambda s, x: s + time.perf_counter(),
        "by a flag": _noisy_by_a_flag(),
    }  # fmt: skip


def _noisy_by_a_flag():
    """An update that was traced before without its noise."""
    is_noisy = False

    def update(s, x):
        return s + (random_.SystemRandom().random() if is_noisy else 0.0)

    upsweep.scan(update, 0.0, X)
    is_noisy = True
    return update


def _draw():
    return np.random.uniform()  # noqa: NPY002  # the global generator


@pytest.mark.parametrize("name", _impure_updates())
def test_an_update_that_draws_or_counts_is_refused_at_every_call(name):
    update = _impure_updates()[name]
    for _ in range(2):
        with pytest.raises(TypeError, match=r"changes .*\n.*drawn once for all steps") as caught:
            upsweep.scan(update, 0.0, X)
        assert "pass the noise in xs" in str(caught.value)


def test_an_update_that_reads_caches_or_logs_is_not_refused():
    table, config, large, cache = np.arange(3.0), {"gains": [2.0]}, np.zeros(10**5), {}
    logger, memory = logging.getLogger("quiet"), functools.cache(lambda n: n + 1.0)

    def update(s, x):
        logger.debug("traced")
        if "gain" not in cache:
            cache["gain"] = config["gains"][0]
        fixed = np.random.default_rng(0).normal()
        return s + table[1] * memory(3.0) * cache["gain"] * x + large[7] + 0 * fixed

    for _ in range(2):
        np.testing.assert_array_equal(upsweep.scan(update, 0.0, X[:1]), 8 * X[:1])
