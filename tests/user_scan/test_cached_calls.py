"""Hazard: calls that were prepared once, and find something else the next time.

Arrays of a device are stand-ins over the host's memory, its kernels are compiled by the C++ compiler.
"""

import gc
import threading
import weakref

import captured_numbers
import host_device
import numpy as np
import pytest
import upsweep
from devices import FakeCupyArray
from helpers import in_threads, random
from upsweep._user_scan import cached_calls
from upsweep._user_scan.cached_calls import compiled_scans


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture
def device_array(fake_cupy, monkeypatch, folder):
    if not host_device.has_compiler:
        pytest.skip("no C++ compiler")
    host_device.install(monkeypatch, folder)
    return lambda array, ordinal=0: FakeCupyArray(array, ordinal)


@pytest.fixture
def checked(monkeypatch):
    """How often a call was looked at."""
    calls, check = [], cached_calls.check
    monkeypatch.setattr(cached_calls, "check", lambda *a, **k: (calls.append(a), check(*a, **k))[1])
    return calls


def cell(s, x):
    return np.tanh(0.5 * s + x)


def host(value):
    return tuple(map(host, value)) if isinstance(value, tuple) else value.host


def same(result, reference_result):
    for got, expected in zip(result, reference_result, strict=True):
        np.testing.assert_allclose(got.host, expected, rtol=1e-5, atol=1e-6)


def test_a_later_call_is_not_looked_at_again(device_array, checked):
    for seed in range(4):
        x, start = random((30, 5), np.float32, seed), random(5, np.float32, seed + 9)
        same(
            upsweep.scan(cell, device_array(start), device_array(x), reverse=True, return_final=True),
            upsweep.scan(cell, start, x, reverse=True, return_final=True),
        )
    assert len([each for each in checked if isinstance(each[2], FakeCupyArray)]) == 1


def test_what_makes_another_call(device_array, checked):
    x = random((12, 12), np.float32)
    calls = [
        (x, {}), (x, {"axis": 1}), (x, {"reverse": True}), (x.T, {}), (x[::2], {}), (x.astype(float), {}),
        (x.astype(np.float16), {}), (x[:, :1], {}),
    ]  # fmt: skip
    for _ in range(2):
        for array, keywords in calls:
            result = upsweep.scan(cell, 0.5, device_array(array), **keywords)
            np.testing.assert_allclose(
                result.host, upsweep.scan(cell, 0.5, array, **keywords), rtol=1e-3, atol=1e-3
            )
            final = upsweep.scan(cell, 0.5, device_array(array), return_final=True, **keywords)
            assert isinstance(final, tuple)
    assert upsweep.scan(cell, 0.5, device_array(x, 3)).device.id == 3
    assert len([each for each in checked if isinstance(each[2], FakeCupyArray)]) == 2 * len(calls) + 1


def test_numbers_that_change(device_array):
    def quotient(s, x):
        return x[0] / x[1] + s

    x = device_array(np.ones(4, np.float32))
    assert [upsweep.scan(quotient, 0.0, (x, by)).host[0] for by in (2.0, 0.0, 4.0, -0.0, 2.0)] == [
        0.5, np.inf, 0.25, -np.inf, 0.5,
    ]  # fmt: skip
    assert [upsweep.scan(quotient, start, (x, 1.0)).host[0] for start in (1.0, 2, -3.0)] == [2, 3, -2]
    with pytest.raises(ValueError, match="init: an integer of 2001 bits"):
        upsweep.scan(quotient, 2**2000, (x, 1.0))


def test_an_update_that_takes_something_else_from_around_it(device_array, monkeypatch):
    updates, set_closed = captured_numbers.updates()
    x = device_array(np.ones(3, np.float32))

    def results():
        return [upsweep.scan(update, 0.0, x).host[0] for update in updates]

    for _ in range(2):
        assert results() == [3, 2, 4]
    set_closed(5.0)
    monkeypatch.setattr(captured_numbers, "FACTOR", 6.0)
    updates[2].__defaults__ = (7.0,)
    for _ in range(2):
        assert results() == [5, 6, 7]
    set_closed(3.0)
    assert results()[0] == 3


def test_the_stream_of_each_call(device_array, fake_cupy, monkeypatch):
    streams = []
    monkeypatch.setattr(host_device.HostFunction, "launch", lambda self, *a: streams.append(a[2]))
    x = device_array(random((20, 3)))
    for fake_cupy.stream in (77, 78, 77):
        upsweep.scan(cell, 0.5, x)
    assert streams == [77, 78, 77]


def test_what_would_be_refused_is_refused_later_too(device_array):
    x = random((6, 6), np.float32)
    upsweep.scan(cell, 0.5, device_array(x), axis=1)
    with pytest.raises(TypeError, match=r"axis: expected an integer, got 1\.0"):
        upsweep.scan(cell, 0.5, device_array(x), axis=1.0)
    upsweep.scan(cell, device_array(x[0]), device_array(x))
    with pytest.raises(TypeError, match="init: is an array in the host's memory"):
        upsweep.scan(cell, x[0], device_array(x))
    memory = np.zeros(37, np.uint8)
    first = -memory.ctypes.data % 4
    off = memory[first + 1 : first + 25].view(np.float32)
    upsweep.scan(cell, 0.5, device_array(np.zeros(6, np.float32)))
    with pytest.raises(ValueError, match="xs: not all of its elements are at multiples of their size"):
        upsweep.scan(cell, 0.5, device_array(off))


def test_arrays_of_one_number_of_the_host_are_read_each_time(device_array):
    x, number = device_array(np.ones(3, np.float32)), np.array(2.0, np.float32)
    assert upsweep.scan(lambda s, x: s + x[0] * x[1], 0.0, (x, number)).host[0] == 2

    def update(s, x):
        return s + x[0] * x[1]

    assert upsweep.scan(update, 0.0, (x, number)).host[0] == 2
    number[...] = 3
    assert upsweep.scan(update, 0.0, (x, number)).host[0] == 3


def test_so_many_and_no_more(device_array):
    namespace = {"np": np}
    exec("def update(s, x): return s + np.tanh(x)", namespace)
    update = namespace.pop("update")  # code that nothing else holds
    for n in range(1, 100):
        upsweep.scan(update, 0.0, device_array(np.zeros(n, np.float32)))
    cache = compiled_scans._functions[update.__code__]
    assert len(cache._values) == 64
    gone = weakref.ref(update.__code__)
    del update, cache
    gc.collect()
    assert gone() is None


def test_an_update_of_which_nothing_can_be_known(device_array):
    class Slotted:
        __slots__ = ("factor",)

        def __call__(self, s, x):
            return self.factor * x

    update, x = Slotted(), device_array(np.ones(3, np.float32))
    for update.factor in (2.0, 3.0):
        assert upsweep.scan(update, 0.0, x).host[0] == update.factor


def test_several_threads_at_once(device_array, monkeypatch):
    """Each has arguments of its own, though the kernels of this stand-in run one at a time."""
    lock, launch = threading.Lock(), host_device.HostFunction.launch

    def one_at_a_time(self, *arguments):
        with lock:
            launch(self, *arguments)

    monkeypatch.setattr(host_device.HostFunction, "launch", one_at_a_time)
    arrays = [random((50, 4), np.float32, seed) for seed in range(4)]
    expected = [upsweep.scan(cell, 0.5, x) for x in arrays]
    upsweep.scan(cell, 0.5, device_array(arrays[0]))
    failed = []

    def run(n):
        for _ in range(50):
            if not np.allclose(upsweep.scan(cell, 0.5, device_array(arrays[n])).host, expected[n], atol=1e-6):
                failed.append(n)

    in_threads(run, *range(4))
    assert not failed


# ---- arrays of numpy --------------------------------------------------------------------------------------------


def loop(x, start=0.5):
    """`cell` over the first axis."""
    return upsweep.reference.scan(cell, start, x)


def test_numpys_arrays_are_not_looked_at_again(checked):
    def update(s, x):
        return cell(s, x)

    for seed in range(4):
        x, start = random((30, 5), np.float32, seed), random(5, np.float64, seed + 9).astype(np.float32)
        got, last = upsweep.scan(update, start, x, return_final=True)
        np.testing.assert_allclose(got, loop(x, start), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(last, got[-1])
        turned = upsweep.scan(update, 0.25 * seed, x.T, axis=1, reverse=True)
        np.testing.assert_allclose(turned, loop(x[::-1], np.float32(0.25 * seed))[::-1].T, rtol=1e-5, atol=1e-6)
        halves = upsweep.scan(update, np.float16(0.5), x.astype(np.float16))
        assert halves.dtype == np.float16
        expected = loop(x.astype(np.float16).astype(np.float32))  # halves are converted at each call
        np.testing.assert_allclose(halves, expected, rtol=1e-3, atol=1e-4)
        upsweep.scan(update, 0.5, x[:, ::-2].astype(">f4"), out=got[:, :3])
        np.testing.assert_allclose(got[:, :3], loop(x[:, ::-2]), rtol=1e-5, atol=1e-6)
    assert len(checked) == 1 + 1 + 1 + 1


def test_axes_and_numbers_of_numpys_arrays():
    def update(s, x):
        return s * 0.5 + x[0] * x[1], (s > 0, s)

    x = random((4, 5, 6), np.float64)
    for axis in range(3):
        for reverse in (False, True):
            for number in (2.0, -1.5, np.float64(0.5), np.array(3.0)):
                for start in (0.25, random(np.delete(x.shape, axis), np.float64)):
                    first = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
                    (flags, ys), last = upsweep.scan(
                        update, start, (x, number), axis=axis, reverse=reverse, return_final=True
                    )
                    state = np.broadcast_to(start, first.shape[1:])
                    before = np.empty_like(first)
                    for t, each in enumerate(first):
                        before[t], state = state, state * 0.5 + each * number
                    expected = np.moveaxis(before[:: -1 if reverse else 1], 0, axis)
                    np.testing.assert_allclose(ys, expected, rtol=1e-12)
                    np.testing.assert_allclose(last, state, rtol=1e-12)
                    assert flags.dtype == bool and np.array_equal(flags, expected > 0)


def test_out_of_later_calls():
    memory = np.zeros(400, np.float32)
    x = random((10, 8), np.float32)
    expected = loop(x)
    for _ in range(2):
        for out in (memory[:80].reshape(10, 8), memory[100:180].reshape(10, 8)):
            out[...] = 0
            assert upsweep.scan(cell, 0.5, x, out=out) is out
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        same = x.copy()
        assert upsweep.scan(cell, 0.5, same, out=same) is same
        np.testing.assert_allclose(same, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="out: overlaps xs in memory without being the same array"):
            upsweep.scan(cell, 0.5, memory[:80].reshape(10, 8), out=memory[40:120].reshape(10, 8))
        with pytest.raises(ValueError, match="out: is read-only"):
            read_only = np.zeros((10, 8), np.float32)
            read_only.flags.writeable = False
            upsweep.scan(cell, 0.5, x, out=read_only)
        with pytest.raises(ValueError, match=r"out\[1\]: overlaps out\[0\]"):
            upsweep.scan(lambda s, x: (s, (s + x, x)), np.float32(0.5), x, out=(memory[:80].reshape(10, 8),) * 2)


def test_time_in_parallel_in_place_later_too():
    def update(s, x):
        return 0.9 * s + 0.1 * x

    for seed in range(3):
        x = random(100_000, np.float32, seed)
        apart = upsweep.scan(update, 0.5, x)
        within = x.copy()
        upsweep.scan(update, 0.5, within, out=within)
        np.testing.assert_array_equal(apart, within)
        separate = np.empty_like(x)
        upsweep.scan(update, 0.5, x, out=separate)
        np.testing.assert_array_equal(apart, separate)


def test_interleaved_memory_and_misaligned_arrays():
    pairs = np.zeros((10, 2), np.float32)
    pairs[:, 0] = random(10, np.float32)
    raw = np.zeros(41, np.uint8)
    off = raw[1:].view(np.float32)
    for _ in range(3):
        upsweep.scan(cell, 0.5, pairs[:, 0], out=pairs[:, 1])  # apart, though their spans are not
        np.testing.assert_allclose(pairs[:, 1], loop(pairs[:, 0]), rtol=1e-5, atol=1e-6)
        off[...] = pairs[:, 0]
        np.testing.assert_allclose(upsweep.scan(cell, 0.5, off), loop(pairs[:, 0]), rtol=1e-5, atol=1e-6)
        swapped = pairs[:, 0].astype(">f4")
        np.testing.assert_allclose(upsweep.scan(cell, 0.5, swapped), loop(pairs[:, 0]), rtol=1e-5, atol=1e-6)


def test_numpys_arrays_in_several_threads_at_once():
    arrays = [random((5000, 8), np.float64, seed) for seed in range(4)]
    expected = [upsweep.scan(cell, 0.5, x) for x in arrays]
    failed = []

    def run(n):
        for _ in range(30):
            if not np.array_equal(upsweep.scan(cell, 0.5, arrays[n]), expected[n]):
                failed.append(n)

    in_threads(run, *range(4))
    assert not failed
