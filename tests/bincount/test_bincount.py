"""Counting: numpy's results, dtypes and errors, for any number of threads."""

import re
import sys

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, poisoned, run_python, same_bits
from upsweep import reference
from upsweep._backends import cpu

KEYS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def keys_and_weights(n, n_bins, dtype="int64", seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, n_bins, n).astype(dtype), generator.standard_normal(n)


@pytest.mark.parametrize("dtype", KEYS)
def test_keys_of_every_dtype(dtype):
    for n in (0, 1, 2, 31, 33, 1000, 100_000):
        keys, weights = keys_and_weights(n, 2 if dtype == "bool" else 120, dtype)
        plain = keys.astype(np.intp)
        for layout in (slice(None), slice(None, None, 2), slice(None, None, -1)):
            assert same_bits(upsweep.bincount(keys[layout]), np.bincount(plain[layout]))
            result = upsweep.bincount(keys[layout], weights[layout])
            assert same_bits(result, np.bincount(plain[layout], weights[layout]))
            # With length= there is no way past the layers, and nothing is copied.
            assert same_bits(upsweep.bincount(keys[layout], length=120), np.bincount(plain[layout], minlength=120))


@pytest.mark.parametrize("n_bins", [1, 2, 256, 10_000, 1_000_000, 5_000_000])
def test_numbers_of_bins(n_bins):
    keys, weights = keys_and_weights(1_000_000, n_bins)
    assert same_bits(upsweep.bincount(keys), np.bincount(keys))
    np.testing.assert_allclose(upsweep.bincount(keys, weights), np.bincount(keys, weights), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pattern", ["sorted", "all equal", "two alternating", "descending"])
def test_skewed_keys(pattern):
    keys = keys_and_weights(500_000, 1000)[0]
    keys = {
        "sorted": np.sort(keys), "all equal": np.full(500_000, 77),
        "two alternating": np.arange(500_000) % 2 * 999, "descending": np.sort(keys)[::-1],
    }[pattern]  # fmt: skip
    for n_threads in (1, 2, 3):
        assert same_bits(upsweep.bincount(keys, n_threads=n_threads), np.bincount(keys))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool"])
def test_weights_of_every_real_dtype(dtype):
    keys, weights = keys_and_weights(5000, 30)
    weights = np.abs(10 * weights).astype(dtype)
    expected = np.bincount(keys, weights.astype(np.float64))
    assert same_bits(upsweep.bincount(keys, weights), expected)
    assert same_bits(upsweep.bincount(keys, weights, length=expected.size), expected)


@pytest.mark.parametrize("dtype", [None, "bool", "int32", "uint64", "float16", "float32", ">f4", "float64"])
@pytest.mark.parametrize("keys_dtype", ["bool", "uint8", "int32", ">i8", "uint64"])
def test_few_keys_go_past_the_layers(keys_dtype, dtype):
    """They cost what numpy's call does; the layers cost seven microseconds, whatever there is to count."""
    for n in (0, 1, 100, 2000, 130_000):
        keys, weights = keys_and_weights(n, 2 if keys_dtype == "bool" else 30, keys_dtype)
        weights = None if dtype is None else np.abs(10 * weights).astype(dtype)
        for layout in (slice(None), slice(None, None, 2), slice(None, None, -1)):
            some, summands = keys[layout], None if weights is None else weights[layout]
            for minlength in (0, 40):
                result = cpu.bincounts.plain(some, summands, minlength, 1)
                assert result is not None
                assert same_bits(result, np.bincount(some.astype(np.intp), summands, minlength))


def test_lists_do_too():
    for keys, weights in (([0, 3, 1, 3], None), ([True, False], [0.5, 2]), ([2], [7])):
        result = cpu.bincounts.plain(keys, weights, 5, 1)
        assert result is not None
        assert same_bits(result, np.bincount(keys, weights, 5))
    for keys in ([], [0.5], ["a"], [[0, 1]], [[0], [1, 2]], [None], [2**64], [2**62], [-1]):  # left to the layers
        assert cpu.bincounts.plain(keys, None, 0, 1) is None
    with pytest.raises(ValueError, match="x: cannot be made an array"):
        upsweep.bincount([[0], [1, 2]])
    with pytest.raises(ValueError, match="weights: cannot be made an array"):
        upsweep.bincount([0, 1], [[0], [1, 2]])


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", ">f8", "int8", ">u8", "bool"])
def test_weights_and_keys_of_every_layout(dtype):
    keys, weights = keys_and_weights(9001, 30, ">i4")
    weights = np.abs(10 * weights).astype(dtype)
    for layout in (slice(None), slice(None, None, 3), slice(None, None, -1), slice(7, 7)):
        expected = np.bincount(keys[layout].astype(np.intp), weights[layout].astype(np.float64), minlength=4)
        if keys[layout].size:
            assert same_bits(upsweep.bincount(keys[layout], weights[layout], 4), expected)
            assert same_bits(upsweep.bincount(keys[layout], weights[layout], length=expected.size), expected)
    unaligned = np.zeros(9001, np.dtype([("skip", np.int8), ("key", np.int64), ("weight", np.float64)]))
    unaligned["key"], unaligned["weight"] = keys, weights
    expected = np.bincount(unaligned["key"].copy(), unaligned["weight"].copy())
    for length in (None, 30):
        assert same_bits(upsweep.bincount(unaligned["key"], unaligned["weight"], length=length), expected)


def test_bfloat16_weights():
    keys, weights = keys_and_weights(5000, 30)
    weights = weights.astype(BFLOAT16)
    assert same_bits(upsweep.bincount(keys, weights), np.bincount(keys, weights.astype(np.float64)))


@pytest.mark.parametrize("dtype", ["int32", "uint64", ">i8"])
@pytest.mark.parametrize("n_bins", [32_767, 32_768, 131_071, 131_072, 262_143, 262_144, 2**20 - 1, 2**20, 2**21])
def test_bins_around_the_limits_of_the_tables(n_bins, dtype):
    keys, _ = keys_and_weights(3 * n_bins // 2 + 300_000, n_bins)
    keys[:300_000] = n_bins - 1  # more than a byte can count
    keys[-1] = -1 if dtype == "int32" else n_bins
    weights = np.random.default_rng(1).integers(-5, 6, keys.size).astype(np.float32)
    counts = np.bincount(keys[:-1], minlength=n_bins)
    sums = np.bincount(keys[:-1], weights[:-1], minlength=n_bins)
    keys = keys.astype(dtype)
    for n_threads in (1, 2, 3):
        keywords = {"length": n_bins, "invalid": "drop", "n_threads": n_threads}
        assert same_bits(upsweep.bincount(keys, **keywords), counts)
        assert same_bits(upsweep.bincount(keys, weights, **keywords), sums)
        out = np.full(n_bins, 1000)
        upsweep.bincount(keys, out=out, accumulate=True, **keywords)
        np.testing.assert_array_equal(out, counts + 1000)
        upsweep.bincount(keys, out=out, **keywords)
        np.testing.assert_array_equal(out, counts)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of the address space is Linux's")
def test_without_memory_for_the_tables_out_is_untouched():
    code = """
        import resource
        import numpy as np, upsweep
        keys, weights = np.arange(800_000) % 60_000, np.ones((800_000, 1))
        counts, sums = np.full(60_000, 77), np.full((60_000, 1), 77.0)
        upsweep.bincount(keys[:3], weights[:3], out=np.zeros((3, 1)))   # loads what is loaded once
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        for arrays, out in (((keys,), counts), ((keys, weights), sums)):
            hoard = []
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, hard))   # less than is in use: nothing can be added
            try:
                while True:
                    hoard.append(bytearray(1 << 16))   # what had been used and given back
            except MemoryError:
                pass
            try:
                upsweep.bincount(*arrays, out=out, n_threads=1)
            except MemoryError:
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
                print("no memory", (out == 77).all())
    """
    assert run_python(code).splitlines() == ["no memory True"] * 2


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_dtype_of_the_sums(dtype):
    keys, weights = keys_and_weights(5000, 30)
    weights = np.rint(10 * weights).astype(dtype)
    result = upsweep.bincount(keys, weights, dtype=dtype)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.bincount(keys, weights))


def test_counts_wrap_around_in_a_short_dtype_as_the_help_says():
    assert upsweep.bincount(np.ones(300, int), dtype=np.uint8).tolist() == [0, 44]


def test_the_error_for_an_out_of_short_floats_names_the_remedy():
    keys, weights, out = [0, 1, 0], np.ones(3, np.float32), np.ones(2, np.float32)
    with pytest.raises(TypeError, match=r"out: expected dtype float64, got float32; pass dtype=out\.dtype"):
        upsweep.bincount(keys, weights, out=out, accumulate=True)
    assert upsweep.bincount(keys, weights, out=out, accumulate=True, dtype=out.dtype).tolist() == [3, 2]


def test_the_same_bits_for_any_number_of_threads():
    for n_bins in (7, 1000, 300_000):
        keys, weights = keys_and_weights(700_000, n_bins)
        one = upsweep.bincount(keys, weights, n_threads=1)
        for n_threads in (2, 5, None):
            assert same_bits(upsweep.bincount(keys, weights, n_threads=n_threads), one)


@pytest.mark.parametrize("minlength", [0, 1, 5, 6, 1000])
def test_minlength(minlength):
    for keys in ([], [0], [5, 1, 5]):
        assert same_bits(upsweep.bincount(keys, minlength=minlength), np.bincount(keys, minlength=minlength))
        weights = np.ones(len(keys))
        result = upsweep.bincount(np.array(keys, int), weights, minlength)
        assert same_bits(result, np.bincount(np.array(keys, int), weights, minlength))


def test_length_fixes_the_number_of_bins():
    keys = np.array([3, 0, 3])
    np.testing.assert_array_equal(upsweep.bincount(keys, length=6), [1, 0, 0, 2, 0, 0])
    np.testing.assert_array_equal(upsweep.bincount(keys, length=4, minlength=4), [1, 0, 0, 2])
    np.testing.assert_array_equal(upsweep.bincount(np.array([], int), length=3), [0, 0, 0])
    for length in (0, 3):
        with pytest.raises(ValueError, match="x"):
            upsweep.bincount(keys, length=length)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_invalid_keys_are_dropped_on_request(dtype):
    keys = np.array([1, -1, 5, 2, 100, -128, 1]).astype(dtype)
    weights = np.arange(7.0)
    with pytest.raises(ValueError, match="x"):
        upsweep.bincount(keys, length=5)
    for n in (1, 20_000):
        many, heavy = np.tile(keys, n), np.tile(weights, n)
        expected = reference.bincount(many, length=5, invalid="drop")
        assert same_bits(upsweep.bincount(many, length=5, invalid="drop"), expected)
        np.testing.assert_array_equal(
            upsweep.bincount(many, heavy, length=5, invalid="drop"), [0, 6 * n, 3 * n, 0, 0]
        )


def test_nothing_to_sum_gives_integers_as_in_numpy():
    nothing = np.empty(0, int)
    assert same_bits(upsweep.bincount(nothing, np.empty(0)), np.bincount(nothing, np.empty(0)))
    assert same_bits(upsweep.bincount(nothing, np.empty(0), 3), np.bincount(nothing, np.empty(0), 3))


def test_negative_keys_are_dropped_without_length():
    np.testing.assert_array_equal(upsweep.bincount(np.array([-1, 2, -5, 2]), invalid="drop"), [0, 0, 2])
    np.testing.assert_array_equal(upsweep.bincount(np.array([-1, -5]), invalid="drop", minlength=2), [0, 0])


def test_out_and_accumulate():
    keys, weights = keys_and_weights(1000, 10)
    out = poisoned(10, np.intp)
    assert upsweep.bincount(keys, out=out, length=10) is out
    assert same_bits(out, np.bincount(keys))
    assert upsweep.bincount(keys, out=out, length=10, accumulate=True) is out
    assert same_bits(out, 2 * np.bincount(keys))
    sums = poisoned(10, np.float64)
    upsweep.bincount(keys, weights, out=sums)
    upsweep.bincount(keys, weights, out=sums, accumulate=True)
    np.testing.assert_allclose(sums, 2 * np.bincount(keys, weights), rtol=1e-12, atol=1e-12)


def test_an_error_leaves_out_untouched():
    out = np.full(10, 77)
    for keys in (np.array([1, 2, 10]), np.array([1, -1]), np.tile(np.arange(11), 50_000)):
        for accumulate in (False, True):
            with pytest.raises(ValueError, match="x"):
                upsweep.bincount(keys, out=out, length=10, accumulate=accumulate)
            assert (out == 77).all()


BAD = {
    "x": [
        np.array([1.0, 2.0]),
        ["a"],
        np.array([1, None]),
        [[1, 2]],
        3,
        [-1],
        None,
        np.array([1, 2], "m8[s]"),
        [1j],
    ],
    "weights": [[1.0], np.ones(4), "abc", np.array([None] * 3), np.ma.ones(3)],
    "minlength": [-1, 1.5, "3", None],
    "length": [-1, 1.5, "3"],
    "out": [np.ones(4, np.intp)[:1], np.ones(4, np.float32), [0, 0, 0, 0], np.ones((2, 2), np.intp)],
    "invalid": ["ignore", None, 0],
    "n_threads": [0, -1, 1.5],
    "device": ["gpu"],
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_input_is_named(argument):
    for value in BAD[argument]:
        arguments = {"x": np.array([1, 2, 3])} | {argument: value}
        if argument == "out":
            arguments["length"] = 4
        with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b"):
            upsweep.bincount(**arguments)


@pytest.mark.parametrize("many", [2**62, 10**30])
def test_more_bins_than_memory_name_who_asks_for_them(many):
    with pytest.raises(MemoryError, match=r"^length: .*bins"):
        upsweep.bincount([1, 2], length=many)
    with pytest.raises(MemoryError, match=r"^minlength: .*bins"):
        upsweep.bincount([1, 2], minlength=many)
    with pytest.raises(MemoryError, match=r"^x: the largest key"):
        upsweep.bincount([1, min(many, 2**62)], minlength=5)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_key_behind_all_bins(dtype):
    for n in (1, 5000):
        keys = np.full(n, np.iinfo(dtype).max, dtype)
        with pytest.raises(MemoryError, match=r"^x: the largest key asks for 2\*\*63 - 1 bins or more"):
            upsweep.bincount(keys)


def test_outputs_of_another_number_of_axes_are_told_what_is_expected():
    x, w = np.ones((2, 3), int), np.ones((2, 3, 4))
    for keywords, expected in (({"axis": 0}, "(bins, 3)"), ({"axis": 1, "weights": w}, "(2, bins, 4)")):
        with pytest.raises(ValueError, match=re.escape(f"out: expected shape {expected}, got (5,)")):
            upsweep.bincount(x, out=np.zeros(5), **keywords)
    with pytest.raises(ValueError, match=re.escape("out: expected shape (bins,), got (5, 1)")):
        upsweep.bincount(x[0], out=np.zeros((5, 1)))


def test_read_only_and_overlapping_outputs_are_refused():
    out = np.zeros(4, np.intp)
    with pytest.raises(ValueError, match="out"):
        upsweep.bincount(out, out=out, length=4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        upsweep.bincount(np.array([1]), out=out, length=4)


def test_the_types_of_errors_are_numpys():
    for keys in ([-1], [[1]], np.array([1.0]), np.array(["a"]), 3):
        with pytest.raises((TypeError, ValueError)) as expected:
            np.bincount(keys)
        with pytest.raises((TypeError, ValueError)) as result:
            upsweep.bincount(keys)
        assert isinstance(result.value, expected.type), keys


@pytest.mark.parametrize("pattern", ["a heavy bin", "equal blocks", "everything"])
def test_more_of_a_key_than_a_byte_can_count(pattern):
    n, n_bins = 1_300_000, 300_000
    keys = keys_and_weights(n, n_bins)[0]
    if pattern == "a heavy bin":
        keys[::3] = 270_000
    elif pattern == "equal blocks":
        keys[100_000:500_000] = 299_999
    else:
        keys = np.tile(np.arange(262_000, 263_000), 1300)
        keys[0] = n_bins - 1
    for n_threads in (1, 2, 3):
        assert same_bits(upsweep.bincount(keys, n_threads=n_threads), np.bincount(keys))
        out = np.ones(n_bins, np.intp)
        upsweep.bincount(keys, out=out, accumulate=True, n_threads=n_threads)
        np.testing.assert_array_equal(out, np.bincount(keys) + 1)


@pytest.mark.parametrize("dtype", ["int64", "uint64", ">i4"])
@pytest.mark.parametrize("shift", [3, 4, 9, 12])
@pytest.mark.parametrize("n", [5000, 140_003])
def test_keys_that_share_low_bits(dtype, shift, n):
    # Keys of one column of a table: bins 4 KiB apart take one place in the first cache.
    generator = np.random.default_rng(shift)
    for kinds, rest in ((2, 0), (50, 7), (9600 >> shift, 5)):
        numbers = (generator.integers(0, kinds, n) << shift) + rest
        x, most = numbers.astype(dtype), int(numbers.max())
        expected = np.bincount(numbers)
        np.testing.assert_array_equal(upsweep.bincount(x), expected)
        np.testing.assert_array_equal(upsweep.bincount(x[::-1], minlength=most + 77)[: most + 1], expected)
        out = np.arange(most + 1)
        upsweep.bincount(x, length=most + 1, out=out, accumulate=True)
        np.testing.assert_array_equal(out, expected + np.arange(most + 1))
        outside = x - x.dtype.type((kinds // 2) << shift)  # some are negative, or wrap around
        outside = outside.astype(dtype)
        inside = numbers[numbers >= (kinds // 2) << shift] - ((kinds // 2) << shift)
        length = int(inside.max()) // 2 + 1
        np.testing.assert_array_equal(
            upsweep.bincount(outside, length=length, invalid="drop"),
            np.bincount(inside, minlength=length)[:length],
        )
        with pytest.raises(ValueError, match="outside the"):
            upsweep.bincount(x, length=most)
        for weights in (generator.random(n), generator.random((n, 3)), generator.random(n) + 1j):
            # The same bits as with one more bit in a key that adds nothing.
            weights[-1] = 0
            other = x.copy()
            other[-1] ^= other.dtype.type(1)
            for n_threads in (1, 3):
                sums = upsweep.bincount(x, weights, length=most + 2, n_threads=n_threads)
                assert same_bits(sums, upsweep.bincount(other, weights, length=most + 2))
            start = generator.random(sums.shape).astype(sums.dtype)
            results = [start.copy(), start.copy()]
            for keys, result in zip((x, other), results):
                upsweep.bincount(keys, weights, length=most + 2, out=result, accumulate=True)
            assert same_bits(*results)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("length", [300_000, 2**18 + 1, 2**19 - 1, 2**19])
def test_bytes_of_known_bins_see_the_first_key_outside(length, n_threads):
    """The entry of keys outside is initialised with the others when one is near the end."""
    x = np.random.default_rng(4).integers(0, 200_000, 4 * length).astype("int64")
    x[1_000_000] = length - 1
    expected = np.bincount(x, minlength=length)
    np.testing.assert_array_equal(upsweep.bincount(x, length=length, n_threads=n_threads), expected)
    for key in (length, length + 1, 2**40, -1):
        other = x.copy()
        other[1_030_000] = key
        with pytest.raises(ValueError):
            upsweep.bincount(other, length=length, n_threads=n_threads)
        expected = np.bincount(np.delete(x, 1_030_000), minlength=length)
        dropped = upsweep.bincount(other, length=length, invalid="drop", n_threads=n_threads)
        np.testing.assert_array_equal(dropped, expected)


@pytest.mark.parametrize("largest", [2**19 - 1, 2**21 + 5, 2**22 - 2, 2**22 - 1, 2**22])
def test_bytes_find_the_number_of_bins(largest):
    x = np.random.default_rng(5).integers(0, 400_000, 17_000_000).astype("int32")
    x[[2_000_000, 9_000_000]] = largest - 1, largest
    np.testing.assert_array_equal(upsweep.bincount(x, n_threads=2), np.bincount(x))


@pytest.mark.parametrize("length", [None, 1000, 40_000])
def test_weights_of_repeating_keys_with_few_far_ones(length):
    """Chunks that are summed at the same time begin again in larger tables."""
    x = np.repeat(np.random.default_rng(6).integers(0, 500, 300_000), 4)
    weights = np.random.default_rng(7).integers(-50, 50, x.size).astype(float)
    x[[5, 140_000, 700_001, 1_100_000]] = 700, 999, 30_000 if length != 1000 else 998, 4
    expected = np.bincount(x, weights, minlength=length or 0)
    for n_threads in (1, 2):
        np.testing.assert_array_equal(upsweep.bincount(x, weights, length=length, n_threads=n_threads), expected)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("n_bins", [3, 200, 3000])
@pytest.mark.parametrize("last", [None, 5, 20_000])
def test_few_keys_far_from_those_that_are_sampled(dtype, n_bins, last):
    """Tables are as large as the keys of a few places need: blocks with larger or negative keys are counted again.
    Weights are whole numbers, whose sums are exact.
    """
    rng = np.random.default_rng(3)
    x = rng.integers(0, n_bins, 400_000).astype(dtype)
    weights = rng.integers(-50, 50, x.size).astype(float)
    if last is not None:
        x[[100_003, 250_001, 399_000]] = n_bins + last, n_bins + last // 2, 12_345
    np.testing.assert_array_equal(upsweep.bincount(x), np.bincount(x.astype(int)))
    np.testing.assert_array_equal(upsweep.bincount(x, weights), np.bincount(x.astype(int), weights))
    if np.dtype(dtype).kind == "i":
        x[[0, 100_001, 100_002, 300_000]] = -1
        inside = x >= 0
        expected = np.bincount(x[inside]), np.bincount(x[inside], weights[inside])
        np.testing.assert_array_equal(upsweep.bincount(x, invalid="drop"), expected[0])
        np.testing.assert_array_equal(upsweep.bincount(x, weights, invalid="drop"), expected[1])
        with pytest.raises(ValueError):
            upsweep.bincount(x)
        with pytest.raises(ValueError):
            upsweep.bincount(x, weights)
