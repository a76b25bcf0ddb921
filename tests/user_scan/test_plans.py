"""Hazard: calls that were prepared once, and find something else the next time.

Arrays of a device are stand-ins over the host's memory, its kernels are compiled by the C++ compiler.
"""

import gc
import shutil
import threading
import weakref

import host_device
import numpy as np
import pytest
import upsweep
from devices import FakeCupyArray
from helpers import random
from upsweep import user_scan
from upsweep._scan_plans import known_plans


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture
def there(fake_cupy, monkeypatch, folder):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    host_device.install(monkeypatch, folder)
    return lambda array, ordinal=0: FakeCupyArray(array, ordinal)


@pytest.fixture
def checked(monkeypatch):
    """How often a call was looked at."""
    calls, check = [], user_scan.check
    monkeypatch.setattr(user_scan, "check", lambda *a: (calls.append(a), check(*a))[1])
    return calls


def cell(s, x):
    return np.tanh(0.5 * s + x)


def host(value):
    return tuple(map(host, value)) if isinstance(value, tuple) else value.host


def same(mine, theirs):
    for got, expected in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(got.host, expected, rtol=1e-5, atol=1e-6)


def test_a_later_call_is_not_looked_at_again(there, checked):
    for seed in range(4):
        x, start = random((30, 5), np.float32, seed), random(5, np.float32, seed + 9)
        same(
            upsweep.scan(cell, there(start), there(x), reverse=True, return_final=True),
            upsweep.scan(cell, start, x, reverse=True, return_final=True),
        )
    assert len([each for each in checked if isinstance(each[2], FakeCupyArray)]) == 1


def test_what_makes_another_call(there, checked):
    x = random((12, 12), np.float32)
    calls = [
        (x, {}), (x, {"axis": 1}), (x, {"reverse": True}), (x.T, {}), (x[::2], {}), (x.astype(float), {}),
        (x.astype(np.float16), {}), (x[:, :1], {}),
    ]  # fmt: skip
    for _ in range(2):
        for array, keywords in calls:
            mine = upsweep.scan(cell, 0.5, there(array), **keywords)
            np.testing.assert_allclose(mine.host, upsweep.scan(cell, 0.5, array, **keywords), rtol=1e-3, atol=1e-3)
            final = upsweep.scan(cell, 0.5, there(array), return_final=True, **keywords)
            assert isinstance(final, tuple)
    assert upsweep.scan(cell, 0.5, there(x, 3)).device.id == 3
    assert len([each for each in checked if isinstance(each[2], FakeCupyArray)]) == 2 * len(calls) + 1


def test_numbers_that_change(there):
    def quotient(s, x):
        return x[0] / x[1] + s

    x = there(np.ones(4, np.float32))
    assert [upsweep.scan(quotient, 0.0, (x, by)).host[0] for by in (2.0, 0.0, 4.0, -0.0, 2.0)] == [
        0.5, np.inf, 0.25, -np.inf, 0.5,
    ]  # fmt: skip
    assert [upsweep.scan(quotient, start, (x, 1.0)).host[0] for start in (1.0, 2, -3.0)] == [2, 3, -2]
    with pytest.raises(ValueError, match="init: an integer of 2001 bits"):
        upsweep.scan(quotient, 2**2000, (x, 1.0))


FACTOR = 2.0


def test_an_update_that_takes_something_else_from_around_it(there, monkeypatch):
    factor = 3.0

    def closed(s, x):
        return factor * x

    def globally(s, x):
        return FACTOR * x

    def by_default(s, x, factor=4.0):
        return factor * x

    x = there(np.ones(3, np.float32))

    def results():
        return [upsweep.scan(update, 0.0, x).host[0] for update in (closed, globally, by_default)]

    for _ in range(2):
        assert results() == [3, 2, 4]
    factor = 5.0
    monkeypatch.setitem(globals(), "FACTOR", 6.0)
    by_default.__defaults__ = (7.0,)
    for _ in range(2):
        assert results() == [5, 6, 7]
    factor = 3.0
    assert results()[0] == 3


def test_an_update_that_counts_its_calls_is_known_by_the_count_before(there):
    count = 0.0

    def counting(s, x):
        nonlocal count
        count += 1.0
        return s + count * x

    x = there(np.ones(3, np.float32))
    assert [upsweep.scan(counting, 0.0, x).host[0] for _ in range(3)] == [1, 2, 3]
    count = 0.0
    assert upsweep.scan(counting, 0.0, x).host[0] == 1


def test_the_stream_of_each_call(there, fake_cupy, monkeypatch):
    streams = []
    monkeypatch.setattr(host_device.HostFunction, "launch", lambda self, *a: streams.append(a[2]))
    x = there(random((20, 3)))
    for fake_cupy.stream in (77, 78, 77):
        upsweep.scan(cell, 0.5, x)
    assert streams == [77, 78, 77]


def test_what_would_be_refused_is_refused_later_too(there):
    x = random((6, 6), np.float32)
    upsweep.scan(cell, 0.5, there(x), axis=1)
    with pytest.raises(TypeError, match=r"axis: expected an integer, got 1\.0"):
        upsweep.scan(cell, 0.5, there(x), axis=1.0)
    upsweep.scan(cell, there(x[0]), there(x))
    with pytest.raises(TypeError, match="init: is an array in the host's memory"):
        upsweep.scan(cell, x[0], there(x))
    memory = np.zeros(37, np.uint8)
    first = -memory.ctypes.data % 4
    off = memory[first + 1 : first + 25].view(np.float32)
    upsweep.scan(cell, 0.5, there(np.zeros(6, np.float32)))
    with pytest.raises(ValueError, match="xs: not all of its elements are at multiples of their size"):
        upsweep.scan(cell, 0.5, there(off))


def test_arrays_of_one_number_of_the_host_are_read_each_time(there):
    x, number = there(np.ones(3, np.float32)), np.array(2.0, np.float32)
    assert upsweep.scan(lambda s, x: s + x[0] * x[1], 0.0, (x, number)).host[0] == 2

    def update(s, x):
        return s + x[0] * x[1]

    assert upsweep.scan(update, 0.0, (x, number)).host[0] == 2
    number[...] = 3
    assert upsweep.scan(update, 0.0, (x, number)).host[0] == 3


def test_so_many_and_no_more(there):
    def update(s, x):
        return s + np.tanh(x)

    for n in range(1, 100):
        upsweep.scan(update, 0.0, there(np.zeros(n, np.float32)))
    kept = known_plans._functions[update]
    assert len(kept._values) == 64
    gone = weakref.ref(update)
    del update, kept
    gc.collect()
    assert gone() is None


def test_an_update_of_which_nothing_can_be_known(there):
    class Slotted:
        __slots__ = ("factor",)

        def __call__(self, s, x):
            return self.factor * x

    update, x = Slotted(), there(np.ones(3, np.float32))
    for update.factor in (2.0, 3.0):
        assert upsweep.scan(update, 0.0, x).host[0] == update.factor


def test_several_threads_at_once(there, monkeypatch):
    """Each has arguments of its own, though the kernels of this stand-in run one at a time."""
    lock, launch = threading.Lock(), host_device.HostFunction.launch

    def one_at_a_time(self, *arguments):
        with lock:
            launch(self, *arguments)

    monkeypatch.setattr(host_device.HostFunction, "launch", one_at_a_time)
    arrays = [random((50, 4), np.float32, seed) for seed in range(4)]
    expected = [upsweep.scan(cell, 0.5, x) for x in arrays]
    upsweep.scan(cell, 0.5, there(arrays[0]))
    failed = []

    def run(n):
        for _ in range(50):
            if not np.allclose(upsweep.scan(cell, 0.5, there(arrays[n])).host, expected[n], atol=1e-6):
                failed.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
