"""Hazard: keys outside the bins, in every way of counting; and more bins than there is memory for."""

import numpy as np
import pytest
import upsweep
from helpers import run_python, same_bits

# One case for each way: n, bins.
SIZES = [(100, 10), (5000, 10), (500_000, 10), (500_000, 5000), (500_000, 30_000), (500_000, 100_000),
        (1_200_000, 280_000), (600_000, 600_000), (600_000, 3_000_000), (9_000_000, 2_200_000)]  # fmt: skip


def keys_with(n, n_bins, at, value, dtype="int64"):
    keys = np.random.default_rng(0).integers(0, n_bins, n).astype(dtype)
    for position in at:
        keys[position] = value
    return keys


@pytest.mark.parametrize("n, n_bins", SIZES)
def test_the_first_bad_key_is_named_and_out_is_untouched(n, n_bins):
    for value, at in ((-3, (n // 2, n - 1)), (n_bins, (n - 1,)), (2**62, (n // 3, n // 2))):
        keys = keys_with(n, n_bins, at, value)
        for weights in (None, np.ones(n)):
            out = np.full(n_bins, 77, np.intp if weights is None else np.float64)
            with pytest.raises(ValueError, match=rf"^x: element {at[0]} is {value}"):
                upsweep.bincount(keys, weights, out=out)
            assert (out == 77).all()
            with pytest.raises(ValueError, match=rf"^x: element {at[0]} is {value}"):
                upsweep.bincount(keys, weights, length=n_bins)
    with pytest.raises(ValueError, match=rf"^x: element {n // 2} is -1, keys must not be negative"):
        upsweep.bincount(keys_with(n, n_bins, (n // 2,), -1))


def test_keys_that_are_no_line_of_integers_are_refused_with_a_remedy():
    with pytest.raises(
        ValueError, match=r"^x: expected 1-D keys, got shape \(4, 5\); use \.ravel\(\) .* or axis="
    ):
        upsweep.bincount(np.zeros((4, 5), np.uint8))
    with pytest.raises(ValueError, match=r"^x: expected 1-D keys, got a single number$"):
        upsweep.bincount(3)
    with pytest.raises(TypeError, match=r"^x: expected keys of integers .* float64; .* by histogram$"):
        upsweep.bincount([0.5, 1.0])


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64"])
@pytest.mark.parametrize("n, n_bins", SIZES)
def test_bad_keys_are_dropped_and_counted(n, n_bins, dtype):
    keys = np.random.default_rng(0).integers(0, n_bins + n_bins // 4 + 1, n).astype(dtype)
    keys[::7] = np.iinfo(dtype).max
    if dtype != "uint64":
        keys[::11] = -1
    inside = (keys >= 0) & (keys < n_bins)
    weights = np.arange(n) % 5
    counts = np.bincount(keys[inside].astype(np.int64), minlength=n_bins)
    sums = np.bincount(keys[inside].astype(np.int64), weights[inside], minlength=n_bins)
    for n_threads in (1, 3):
        keywords = {"length": n_bins, "invalid": "drop", "return_invalid": True, "n_threads": n_threads}
        result, n_invalid = upsweep.bincount(keys, **keywords)
        assert same_bits(result, counts)
        assert isinstance(n_invalid, np.int64) and n_invalid == n - inside.sum()
        result, n_invalid = upsweep.bincount(keys, weights, **keywords)
        assert same_bits(result, sums) and n_invalid == n - inside.sum()


@pytest.mark.parametrize("n, n_bins", SIZES)
def test_negative_keys_are_dropped_where_the_bins_are_those_of_the_largest(n, n_bins):
    keys = keys_with(n, n_bins, range(0, n, 3), -5)
    inside = keys >= 0
    assert same_bits(upsweep.bincount(keys, invalid="drop"), np.bincount(keys[inside]))
    weights = np.arange(n) % 5
    assert same_bits(upsweep.bincount(keys, weights, invalid="drop"), np.bincount(keys[inside], weights[inside]))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint16", "bool"])
def test_narrow_keys(dtype):
    keys = np.arange(1 << 16).astype(dtype)
    keys = np.tile(keys, 3)
    inside = (keys >= 0) & (keys < 100)
    expected = np.bincount(keys[inside].astype(np.int64), minlength=100)
    assert same_bits(upsweep.bincount(keys, length=100, invalid="drop"), expected)
    largest = int(keys.max())
    if keys.min() < 0:
        with pytest.raises(ValueError, match="negative"):
            upsweep.bincount(keys)
        assert upsweep.bincount(keys, invalid="drop").size == largest + 1
    else:
        assert same_bits(upsweep.bincount(keys), np.bincount(keys.astype(np.int64)))


def test_no_bins_at_all():
    assert upsweep.bincount([3, 1], length=0, invalid="drop").shape == (0,)
    result, n_invalid = upsweep.bincount(np.arange(500_000), length=0, invalid="drop", return_invalid=True)
    assert result.shape == (0,) and n_invalid == 500_000


def test_a_largest_key_that_no_place_tells_of():
    """Sampling finds few bins; one key in the middle needs many."""
    for far in (30_000, 200_000, 1_000_000, 3_000_000):
        keys = np.zeros(2_000_000, np.int64)
        keys[1_234_567] = far
        weights = np.ones(2_000_000, np.float32)
        assert same_bits(upsweep.bincount(keys), np.bincount(keys))
        assert same_bits(upsweep.bincount(keys, weights), np.bincount(keys, weights))


@pytest.mark.parametrize("weights", [None, "float64", "complex128"])
def test_memory_that_the_machine_does_not_have_is_not_asked_for(weights):
    """Such arrays can be had, since their pages are not; the process ends when these are written to."""
    n_bins = 2**41
    for n in (2, 300_000):
        terms = None if weights is None else np.ones(n, weights)
        keys = np.zeros(n, np.int64)
        keys[-1] = n_bins
        with pytest.raises(MemoryError, match=r"^x: the largest key asks for 2199023255553 bins, .* bytes"):
            upsweep.bincount(keys, terms)
        with pytest.raises(MemoryError, match=r"^length: it asks for"):
            upsweep.bincount([1], terms if terms is None else terms[:1], length=n_bins)
        with pytest.raises(MemoryError, match=r"^minlength: it asks for"):
            upsweep.bincount([1], minlength=n_bins)
    with pytest.raises(MemoryError, match=r"^x: the largest key"):
        upsweep.bincount(np.array([2**64 - 1], np.uint64))
    with pytest.raises(MemoryError, match=r"^x: the largest key"):
        upsweep.bincount(np.array([[2**63 - 1], [3]]), axis=0)


def test_rows_count_for_the_memory_too():
    x = np.broadcast_to(np.int32(10**7), (10**6, 1))
    with pytest.raises(MemoryError, match=r"^x: the largest key"):
        upsweep.bincount(x, axis=1)


def test_results_without_rows_or_sums_have_no_more_bins_than_others():
    nothing, none_of_each = np.zeros((0, 2), int), np.ones((1, 0))
    for name in ("minlength", "length"):
        with pytest.raises(MemoryError, match=f"^{name}: it asks for"):
            upsweep.bincount(nothing, axis=1, **{name: 2**70})
        with pytest.raises(MemoryError, match=f"^{name}: it asks for"):
            upsweep.bincount([1], none_of_each, **{name: 2**62})
    with pytest.raises(MemoryError, match=r"^x: the largest key"):
        upsweep.bincount(np.array([2**63 - 1]), none_of_each)
    assert upsweep.bincount(nothing, axis=1, length=7).shape == (0, 7)


def test_the_memory_limit_is_the_machines():
    from upsweep._backends import cpu

    limit = cpu.memory_limit()
    assert limit is None or 2**20 < limit < 2**50


def test_return_invalid_needs_keys_that_may_be_dropped():
    with pytest.raises(ValueError, match=r"^return_invalid: "):
        upsweep.bincount([1], return_invalid=True)


def test_more_keys_than_32_bits_count():
    """Without the memory for them: one key, repeated."""
    n = 2**32 + 5
    keys = np.broadcast_to(np.uint16(3), n)
    assert upsweep.bincount(keys, n_threads=1).tolist() == [0, 0, 0, n]


@pytest.mark.parametrize("weights", [False, True])
def test_an_error_with_several_threads_leaves_none_waiting(weights):
    code = f"""
        import numpy as np, upsweep
        keys = np.zeros(3_000_000, np.int64)
        keys[1_500_000] = -1
        for n_threads in (1, 2, 5, 8):
            try:
                upsweep.bincount(keys, np.ones(keys.size) if {weights} else None, n_threads=n_threads)
            except ValueError as error:
                print(str(error)[:2])
    """
    assert run_python(code, timeout=60).split() == ["x:"] * 4


NARROW = [
    (dtype, length, n)
    for dtype in ("int8", "int16")
    for top in [np.iinfo(dtype).max]
    for length in (1, 2, 5, top // 2, top, top + 1, top + 2, 2 * top + 1, 2 * top + 2, 2 * top + 3, 300_000)
    for n in (100, 5000, 200_000)
] + [("int8", 256, 2_000_000), ("int16", 65_536, 2_000_000), ("int16", 300_000, 2_000_000)]


@pytest.mark.parametrize("dtype, length, n", NARROW)
def test_negative_keys_of_narrow_types_are_in_no_bin(dtype, length, n):
    """Read as unsigned, -1 is 255 or 65,535, which may be below the number of bins."""
    limits = np.iinfo(dtype)
    keys = np.random.default_rng(0).integers(limits.min, limits.max, n, dtype, endpoint=True)
    inside = (keys >= 0) & (keys < length)
    for weights in (None, np.arange(n) % 5, np.arange(n) % 3 * 0.5):
        summed = None if weights is None else weights[inside]
        expected = np.bincount(keys[inside], summed, minlength=length)
        for n_threads in (1, 2):
            keywords = {"invalid": "drop", "n_threads": n_threads}
            counts, n_invalid = upsweep.bincount(keys, weights, length=length, return_invalid=True, **keywords)
            assert (counts == expected).all() and n_invalid == n - inside.sum()
            out = np.ones(length, np.intp if weights is None else np.float64)
            upsweep.bincount(keys, weights, out=out, accumulate=True, **keywords)
            assert (out == expected + 1).all()
            counts = upsweep.bincount(keys, weights, minlength=length, **keywords)
            summed = None if weights is None else weights[keys >= 0]
            assert (counts == np.bincount(keys[keys >= 0], summed, minlength=length)).all()
    if length <= 1000 and n < 2_000_000:
        columns = np.stack([keys, keys[::-1]], axis=1)
        counts = upsweep.bincount(columns, axis=0, length=length, invalid="drop")
        assert (counts == np.bincount(keys[inside], minlength=length)[:, None]).all()


@pytest.mark.parametrize("dtype, n_bins", [("int8", 128), ("int16", 1000), ("int32", 5), ("int64", 40)])
def test_out_may_lie_at_any_address(dtype, n_bins):
    keys = np.random.default_rng(0).integers(0, n_bins, 300_000).astype(dtype)
    for weights, kind in ((None, np.intp), (np.full(keys.shape, 0.5), np.float64)):
        expected = np.bincount(keys, weights, minlength=n_bins)
        memory = np.zeros(8 * n_bins + 1, np.uint8)
        out = memory[1:].view(kind)
        assert not out.flags.aligned
        upsweep.bincount(keys, weights, out=out)
        assert (out == expected).all() and memory[0] == 0


def test_keys_that_change_while_they_are_counted_stay_inside_the_result():
    """Results of such calls mean nothing, but no memory of others is written to."""
    code = """
    import threading, time
    import numpy as np, upsweep
    def race(n, call, seconds=0.3):
        x = np.ones(n, np.int64)
        done = threading.Event()
        def change():
            while not done.is_set():
                x[...] = 2**40
                x[...] = 1
        thread = threading.Thread(target=change)
        thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                call(x)
            except (ValueError, MemoryError) as error:
                assert str(error).startswith("x: "), error
        done.set()
        thread.join()
    n = 300_000
    weights = np.full(n, 0.5)
    matrix = weights.reshape(100, -1)
    for keywords in ({}, {"length": 5}, {"length": 5, "invalid": "drop"}, {"length": 200_000}, {"length": 10**6}):
        race(n, lambda x: upsweep.bincount(x, **keywords))
        race(n, lambda x: upsweep.bincount(x, weights, **keywords))
    for size in (3000, 90_000):
        race(n, lambda x: upsweep.bincount(x[:size]))
        race(n, lambda x: upsweep.bincount(x[:size], weights[:size]))
    for axis in (0, 1):
        race(n, lambda x: upsweep.bincount(x.reshape(100, -1), axis=axis, length=3))
        race(n, lambda x: upsweep.bincount(x.reshape(100, -1), matrix, axis=axis, length=3))
    race(1_200_000, lambda x: upsweep.bincount(x, length=5_000_001, n_threads=2), 1)
    print("ok")
    """
    assert run_python(code).strip() == "ok"


def test_largest_keys_do_not_overflow_what_is_calculated_from_them():
    for value in (2**63 - 1, 2**63 - 2, 2**62, 2**61 + 1):
        with pytest.raises(MemoryError, match=r"^x: the largest key"):
            upsweep.bincount(np.full(10_000, value))
