"""Hazard: numbers on edges and next to them. numpy's bins, for every dtype, range and layout."""

import warnings

import numpy as np
import pytest
import upsweep
from edges import around, hard_numbers, with_random_bins
from helpers import BFLOAT16, same_bits
from upsweep import reference

pytestmark = pytest.mark.filterwarnings("ignore:Converting input from bool")  # as numpy's

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
# Of bfloat16, which is not its own, np.histogram of numpy 2.0 and 2.1 makes no bins, or ends the process.
NUMPYS_FLOATS = [*FLOATS, BFLOAT16] if np.lib.NumpyVersion(np.__version__) >= "2.2.0" else FLOATS
N_BINS = [1, 2, 3, 10, 100, 257, 1000]


def assert_numpys(x, *arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of bool, and of float16 that overflows on the way
        try:
            counts, edges = np.histogram(x, *arguments, **keywords)
        except (IndexError, OverflowError):  # numpy looked behind its edges; it takes no range from 2**63 on
            return
        except ValueError:
            with pytest.raises(ValueError, match=r"Too many bins|is not finite"):
                upsweep.histogram(x, *arguments, **keywords)
            return
    bins = arguments[0] if arguments else keywords.get("bins", 10)
    if np.ndim(bins) == 0 and not (edges[:-1] < edges[1:]).all():  # numpy before 2.2 returned them
        with pytest.raises(ValueError, match="Too many bins"):
            upsweep.histogram(x, *arguments, **keywords)
        return
    computed, my_edges = upsweep.histogram(x, *arguments, **keywords)
    assert computed.dtype == counts.dtype and my_edges.dtype == edges.dtype
    np.testing.assert_array_equal(my_edges, edges)
    np.testing.assert_array_equal(computed, counts)


@pytest.mark.parametrize("dtype", NUMPYS_FLOATS, ids=str)
@pytest.mark.parametrize("n_bins", N_BINS)
def test_floating_numbers_on_uniform_edges(dtype, n_bins):
    generator = np.random.default_rng(n_bins)
    for low, width in ((0.0, 1.0), (-3.0, 7.0), (0.1, 0.2), (1000.0, 10.0), (-1e-3, 2e-3), (-0.7, 1.4142)):
        high = low + width
        x = hard_numbers(generator, dtype, n_bins, low, high)
        ranges = [(low, high), (int(low) - 1, int(high) + 1)]
        if dtype != BFLOAT16:  # does not promote with numpy's scalars
            ranges += [(np.float64(low), np.float64(high)), np.array([low, high], np.float32)]
            ranges += [(np.float32(low), high)]  # edges rounded to float32, also for float64 numbers
        for limits in ranges:
            assert_numpys(x, n_bins, limits)
        assert_numpys(x, n_bins)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_ranges_of_long_doubles(dtype):
    one, step = np.longdouble(1), np.finfo(np.longdouble).eps
    for first, last in (
        (one + step, 2 * one),
        (0 * one, one - step),
        (-one / 3, 100 * one / 3),
        (one, one + 3 * step),
    ):
        ends = np.array([first, last], np.float64).astype(dtype)
        x = np.concatenate([around(ends, dtype), np.arange(40).astype(dtype)])
        for n_bins in (1, 3, 10):
            assert_numpys(x, n_bins, (first, last))
            assert_numpys(x, n_bins, np.array([first, last]), weights=np.arange(float(x.size)))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("n_bins", N_BINS)
def test_integers_on_uniform_edges(dtype, n_bins):
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    generator = np.random.default_rng(n_bins)
    for low, high in ((least, most), (0, 100), (1, 17), (most - 60, most), (least, least + 100)):
        x = np.concatenate([
            around(np.clip(np.linspace(low, high, n_bins + 1), least, np.nextafter(float(most), 0)), dtype),
            generator.integers(low, high, 300, dtype, endpoint=True),
        ])  # fmt: skip
        assert_numpys(x, n_bins)
        for given_range in ((low, high), (float(low), float(high)), (low + 0.5, high - 0.25), (-1, 1e3),
                            (np.int64(0), np.int64(77)), (np.float32(0.1), np.float32(99.7))):  # fmt: skip
            assert_numpys(x, n_bins, given_range)


@pytest.mark.parametrize("dtype", ["float32", "float64", *INTEGERS])
def test_given_edges(dtype):
    generator = np.random.default_rng(3)
    for n_bins in N_BINS:
        edges = np.sort(generator.uniform(0, 100, n_bins + 1))
        x = hard_numbers(generator, dtype, n_bins, 0.0, 100.0)
        x = np.concatenate([x, around(edges, dtype)])
        if x.dtype.kind == "f":
            x = np.concatenate([x, np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)])
        for given_edges in (edges, edges**3, 2.0 ** (edges / 10), -edges[::-1], edges.astype("f4"),
                            edges.astype(int), np.linspace(0, 100, n_bins + 1), [0, 1, 5, 5, 5, 7], [5, 5],
                            [-np.inf, 0, 3, np.inf],
                            [-0.0, 2], [-1e300, 0.5, 2.0**63 - 512, 2.0**63, 1e300], np.array([0, 2, 2**63 - 1]),
                            np.array([0, 2, 2**64 - 1], np.uint64), [-(2**62), 0, 2**62], edges.astype(">f8"),
                            np.array([0, 3, 120], np.int8), np.array([0.1, 3, 120], np.float16)):  # fmt: skip
            assert_numpys(x, given_edges)


def test_given_edges_of_halves():
    generator = np.random.default_rng(3)
    edges = np.sort(generator.uniform(-3, 3, 31))
    for dtype in (np.float16, BFLOAT16):
        x = around(np.concatenate([edges, [np.nan, np.inf, -np.inf]]), dtype)
        for given_edges in (edges, edges.astype(dtype), np.arange(-2, 3)):
            # In float32, which holds them all: numpy sorts, and not every version sorts float16 with NaNs.
            counts = np.histogram(x.astype(np.float32), given_edges.astype(np.float64))[0]
            np.testing.assert_array_equal(upsweep.histogram(x, given_edges)[0], counts)


@pytest.mark.parametrize("n_edges", [2, 3, 100, 1000, 30_000])
def test_edges_of_any_spacing_among_many_numbers(n_edges):
    # The ways to find a rank: a line, or a search tree.
    generator = np.random.default_rng(n_edges)
    unit = np.sort(generator.random(n_edges))
    for name, edges in (
        ("uniform", np.linspace(0, 1, n_edges)), ("random", unit), ("squares", np.linspace(0, 1, n_edges) ** 2),
        ("powers", np.logspace(-9, 0, n_edges)), ("both signs", np.sort((unit - 0.5) ** 3)),
        ("far off", np.append(unit[:-1], 1e30)), ("two heaps", np.sort(np.where(unit < 0.5, 1e-12 * unit, unit))),
        ("a heap", 1 + unit * 1e-12), ("repeated", np.repeat(unit[: n_edges // 2 + 1], 2)),
    ):  # fmt: skip
        x = np.concatenate([generator.choice(edges, 100_000), generator.uniform(-0.2, 1.2, 100_000)])
        for dtype in ("float32", "float64"):
            own = edges.astype(dtype)
            computed = upsweep.histogram(x.astype(dtype), own)[0]
            np.testing.assert_array_equal(
                computed, np.histogram(x.astype(dtype), own)[0], err_msg=f"{name} {dtype}"
            )
        integers = np.unique((np.minimum(edges, 9) * 2**40).astype(np.int64))
        if integers.size > 1:
            assert_numpys((np.minimum(x, 9) * 2**40).astype(np.int64), integers)


@pytest.mark.parametrize("n_edges", [17, 150, 3000, 60_000])
def test_a_search_tree_of_any_height(n_edges):
    # A node of a tree has 8 or 16 keys: the last one is filled with NaN, or with the largest integer.
    generator = np.random.default_rng(n_edges)
    for dtype in ("float32", "float64"):
        edges = np.sort(generator.standard_normal(n_edges) ** 3).astype(dtype)
        x = np.concatenate([generator.choice(edges, 2001), 3 * generator.standard_normal(3000)]).astype(dtype)
        x[::7] = np.nan
        x[1::11], x[2::11] = np.inf, -np.inf
        for ends in (edges, np.concatenate([[-np.inf], edges, [np.inf]])):
            in_range = x[(x >= ends[0]) & (x <= ends[-1])]  # numpy sorts, with NaNs to one side
            np.testing.assert_array_equal(upsweep.histogram(x, ends)[0], np.histogram(in_range, ends)[0])
    for dtype in (np.int64, np.uint64):
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        edges = np.sort(generator.integers(least, most, n_edges, dtype, endpoint=True))
        edges[-3:] = most
        x = np.concatenate([generator.choice(edges, 3001), around(edges[:99], dtype), edges[:2], edges[-2:]])
        for ends in (edges, edges[: 1 - n_edges // 8]):
            inside = x[(x >= ends[0]) & (x <= ends[-1])]
            bins = np.minimum(np.searchsorted(ends, inside, side="right") - 1, ends.size - 2)
            bins[inside == ends[-1]] = ends.size - 2
            np.testing.assert_array_equal(
                upsweep.histogram(x, ends)[0], np.bincount(bins, minlength=ends.size - 1)
            )


def test_few_numbers_among_many_edges():
    generator = np.random.default_rng(0)
    edges = np.sort(generator.standard_normal(100_000))
    x = np.concatenate([generator.choice(edges, 99), [edges[0] - 1, edges[0], edges[-1], edges[-1] + 1]])
    weights = generator.integers(0, 9, x.size + 3)
    for dtype in ("float32", "float64"):
        own, bins = x.astype(dtype), edges.astype(dtype)
        assert_numpys(own, bins)
        assert_numpys(own, bins, weights=weights[:-3])
        with_others = np.concatenate([own, np.array([np.nan, np.inf, -np.inf], dtype)])
        np.testing.assert_array_equal(upsweep.histogram(with_others, bins)[0], np.histogram(own, bins)[0])
        assert_numpys(own, 200_000, (-3, 3))


def test_integers_further_apart_than_their_float64():
    # Nanoseconds since 1970 are rounded to multiples of 256, and bins are about as wide, or wider.
    generator = np.random.default_rng(0)
    for first, width in ((17 * 10**17, 10**15), (17 * 10**17, 10**6), (-(2**60) - 10**6, 2 * 10**6),
                         (2**53 - 2000, 4000), (-(2**53) - 900, 1000), (2**62 - 10**7, 2 * 10**7)):  # fmt: skip
        for n_bins in (7, 1000, 20_000):
            edges = np.linspace(first, first + width, n_bins + 1)
            near = edges[generator.integers(0, n_bins + 1, 500)].astype(np.int64)
            x = near[:, None] + np.concatenate(
                [np.arange(-3, 4), np.arange(-768, 769, 128), np.arange(-513, 514, 342)]
            )
            x = np.clip(x, first, first + width)
            assert_numpys(x, n_bins)
            assert_numpys(x, n_bins, (first + width // 5, first + width // 2))
            if first > 0:
                assert_numpys(x.astype(np.uint64), n_bins)
            given_edges = np.unique(edges)
            bins = np.searchsorted(given_edges, x.ravel().astype(np.float64), side="right") - 1
            bins = np.minimum(bins[bins >= 0], given_edges.size - 2)
            counts = np.bincount(bins, minlength=given_edges.size - 1)
            np.testing.assert_array_equal(upsweep.histogram(x, given_edges)[0], counts)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bins_that_the_correction_by_one_does_not_reach(dtype):
    # The position has an error of more than one bin: numpy's bins then do not begin at their edges.
    generator = np.random.default_rng(0)
    low, high, n_bins = (0.25, 1, 1500) if dtype == "float16" else (0.25, 1, 9_000_000)
    ends = np.array([low, high], dtype)
    edges = np.linspace(ends[0], ends[1], n_bins + 1, dtype=dtype)
    x = around(edges[generator.integers(0, n_bins + 1, 3000)], dtype)
    x = np.concatenate([x[(x >= low) & (x <= high)], ends])
    assert_numpys(x, n_bins)
    assert_numpys(x, n_bins, (low, high))


def test_numbers_in_no_bin():
    assert_numpys(np.array([np.nan, -1, 0, 0.5, 1, 2, np.inf, -np.inf]), 4, (0, 1))
    assert_numpys(np.array([5, 6, 7], np.uint8), 3, (-20, -10))
    assert_numpys(np.array([5, 6, 7], np.uint8), 3, (1000, 2000))
    assert_numpys(np.array([5, 6, 7], np.int64), np.array([2.0**70, 2.0**71]))
    assert_numpys(np.full(5000, np.nan, np.float32), 4, (0, 1))


def test_ranges_of_one_number_and_of_none():
    for dtype in [*FLOATS, *INTEGERS]:
        assert_numpys(np.full(3, 7, dtype), 4)
        assert_numpys(np.array([], dtype), 4)
        assert_numpys(np.arange(9).astype(dtype), 4, (3, 3))
        assert_numpys(np.array([], dtype), [1, 2, 4])
    assert_numpys(np.array([2**63 - 1, 2**63 - 5000]), 3)
    assert_numpys(np.arange(5), [1])
    assert_numpys(np.arange(5), np.array([]))


def test_ranges_that_numpy_does_not_take():
    x = np.arange(2**64 - 2**20, 2**64 - 1, 1000, dtype=np.uint64)
    counts, edges = upsweep.histogram(x, 4, (2**64 - 2**20, 2**64 - 1))
    assert counts.sum() == x.size and edges.dtype == np.float64 and counts.max() - counts.min() <= 2
    assert upsweep.histogram(x, 4, (-1, 2**64 - 1))[0].tolist() == [0, 0, 0, x.size]


def test_denormals_and_huge_numbers():
    tiny = np.array([0, 5e-324, 1e-323, 1e-310, 2e-308])
    assert_numpys(tiny, 5)
    assert_numpys(tiny, [0, 1e-323, 1e-310, 1e-300])
    huge = np.array([-8e307, -1e307, 0, 3e307, 8e307])
    assert_numpys(huge, 7)
    assert_numpys(np.array([-1e38, 0, 1e38, 1.5e38], np.float32), 7)
    assert_numpys(np.array([-1e38, 0, 1e38, 3e38], np.float32), 7, (-1e38, 2e38))


def test_bins_about_as_narrow_as_the_numbers():
    # float32 around 1e6 steps by 1/16, around 1e8 by 8: the edges that numpy calculates are rounded to these.
    for low, high, n_bins in ((1e6, 1e6 + 10, 100), (1e8, 1e8 + 1000, 100), (-1e6, -1e6 + 25, 390)):
        x = np.arange(low - 20, high + 20, 0.01).astype(np.float32)
        assert_numpys(x, n_bins, (low, high))
        assert_numpys(x[(x >= low) & (x <= high)], n_bins)
    halves = np.arange(0, 1500, 0.25).astype(np.float16)
    for n_bins in (100, 500, 900):
        assert_numpys(halves[halves < 1024], n_bins)


@pytest.mark.parametrize("rule", ["auto", "fd", "doane", "scott", "stone", "rice", "sturges", "sqrt"])
def test_named_rules(rule):
    x = np.random.default_rng(0).standard_normal(2000)
    assert_numpys(x, rule)
    assert_numpys(x.astype(np.float32), rule, (-1, 2))
    assert_numpys((20 * x).astype(np.int32), rule)
    assert_numpys(np.array([]), rule)
    halves = np.linspace(0, 1000, 1001).astype(np.float16)  # whose sums numpy's rules overflow
    assert upsweep.histogram(halves, rule)[0].size == np.histogram(halves.astype(float), rule)[0].size


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", ">i4", ">f4", ">f8", "float16", "uint64"])
def test_layouts(dtype):
    base = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 90, (12, 10, 14)).astype(dtype)
    base.flags.writeable = False
    shifted = np.frombuffer(b"x" + base.tobytes(), dtype=dtype, offset=1).reshape(base.shape)
    for x in (base, base.T, base[::2], base[:, ::-1], base[:, :, 3:9:2], base[::-1, 2:5].transpose(2, 0, 1),
              base[3], base[1, 2, 3], np.asfortranarray(base), np.broadcast_to(base[:, :1], base.shape), shifted,
              np.broadcast_to(base[0, 0, :1], (3000,))):  # fmt: skip
        assert_numpys(x, 7)
        assert_numpys(x, [0, 1, 3, 50, 70])
        assert_numpys(x, 5, (0, 33.3))


def test_lists_and_scalars():
    for x in ([1, 2, 1], [[0.5, 1.5], [2.5, 7.5]], 3, 2.5, [], [True, False]):
        assert_numpys(x)
        assert_numpys(x, 3, (0, 3))


@pytest.mark.parametrize("n_bins", [1, 10, 3000, 200_000, 3_000_000])
@pytest.mark.parametrize("pattern", ["uniform", "sorted", "equal", "on edges", "skewed"])
def test_many_numbers(n_bins, pattern):
    generator = np.random.default_rng(0)
    x = generator.random(300_007)
    x = {
        "uniform": x, "sorted": np.sort(x), "equal": np.full_like(x, 0.37), "on edges": np.round(x, 2),
        "skewed": x**9,
    }[pattern]  # fmt: skip
    for dtype in (np.float64, np.float32) if n_bins < 10**6 else (np.float64,):
        own = x.astype(dtype)
        expected = np.histogram(own, n_bins, (0, 1))[0]
        for n_threads in (1, 2, 7):
            computed = upsweep.histogram(own, n_bins, (0, 1), n_threads=n_threads)[0]
            np.testing.assert_array_equal(computed, expected)


def test_extremes_wherever_they_are():
    for dtype in ["float16", "float32", *INTEGERS, "float64"]:
        for n in (1, 31, 65, 1023, 70_001, 140_000):
            x = np.random.default_rng(n).integers(30, 60, n).astype(dtype)
            for at in {0, n // 2, n - 1}:
                x[at] = 99
                x[-1 - at] = 3
                for n_threads in (1, 3):
                    edges = upsweep.histogram(x, 3, n_threads=n_threads)[1]
                    assert n == 1 or (edges[0] == x.min() and edges[-1] == x.max())
                x[at] = x[-1 - at] = 40


@with_random_bins
def test_random_calls(numbers, n_bins, low, width, dtype):
    x = np.concatenate([np.array(numbers, dtype), around(np.linspace(low, low + width, n_bins + 1), dtype)])
    assert_numpys(x, n_bins, (low, low + width))
    assert_numpys(x, n_bins)
    assert_numpys(x, np.sort(x))
    np.testing.assert_array_equal(upsweep.histogram(x, np.sort(x))[0], reference.histogram(x, np.sort(x))[0])
    np.testing.assert_array_equal(
        upsweep.histc(x, n_bins, low, low + width), reference.histc(x, n_bins, low, low + width)
    )


# ---- histc -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_histc_of_integers_is_exact(dtype):
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    most = int(limits.max)
    for low, high in ((0, 100), (3, 17), (int(limits.min), most), (most - 9, most)):
        x = generator.integers(low, high, 120, dtype, endpoint=True)
        for n_bins in (1, 2, 7, 100):
            for ends in ((low, high), (0, 0), (low, low + 5), (-3, 5.5)):
                computed = upsweep.histc(x, n_bins, *ends)
                assert computed.dtype == x.dtype
                if ends[1] == 5.5:
                    places = [(int(v) + 3) * n_bins / 8.5 for v in x if -3 <= int(v) <= 5.5]
                    assert computed.sum() == len(places)
                else:
                    np.testing.assert_array_equal(computed, reference.histc(x, n_bins, *ends))


def test_histc_of_integers_with_fractions_as_ends():
    np.testing.assert_array_equal(upsweep.histc(np.arange(10), 4, 0.5, 8.5), [2, 2, 2, 2])
    np.testing.assert_array_equal(upsweep.histc(np.arange(10), 3, 2.5, 4), [0, 1, 1])


def test_histc_of_torch():
    x = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    for arguments in ((100,), (7, -1, 1), (33, 0, 0.7)):
        np.testing.assert_array_equal(upsweep.histc(x.T, *arguments), reference.histc(x, *arguments))


def test_histc_out():
    x = np.random.default_rng(0).random(1000, np.float32)
    out = np.full(20, np.nan, np.float32)[::2]
    assert upsweep.histc(x, 10, out=out) is out
    np.testing.assert_array_equal(out, upsweep.histc(x, 10))


@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_dates(kind):
    days = np.array([0, 0, 1, 1, 2, 3, 5, 10, 20, 7, -4])
    x, weights = days.astype(f"{kind}[D]"), np.arange(11.0)
    edges = np.array([0, 2, 7, 20])
    for unit, scale in (("D", 1), ("h", 24)):
        bins = (edges * scale).astype(f"{kind}[{unit}]")
        for keywords in ({}, {"weights": weights}, {"density": True}):
            ours, numpys = (function(x, bins, **keywords) for function in (upsweep.histogram, np.histogram))
            assert same_bits(ours[0], numpys[0]) and ours[1] is bins
    nothing = np.array("NaT", x.dtype)
    assert same_bits(upsweep.histogram(np.append(x, nothing), bins)[0], np.histogram(x, bins)[0])
    assert same_bits(upsweep.histogram(list(x), bins)[0], np.histogram(x, bins)[0])
    counts, ends = upsweep.histogram(x, 5)  # which numpy has not
    assert same_bits(ends, np.array([-4, 0, 5, 10, 15, 20]).astype(x.dtype))
    assert same_bits(counts, np.histogram(days, ends.astype(int))[0])
    limits = np.array([24, 24 * 6]).astype(f"{kind}[h]")
    assert same_bits(
        upsweep.histogram(x, 4, range=tuple(limits))[1], np.array([24, 54, 84, 114, 144], f"{kind}[h]")
    )
    whole = np.array([-(2**63) + 1, 2**63 - 1], f"{kind}[ns]")
    assert upsweep.histogram(whole, 3)[1].tolist()[1:3] == [-3074457345618258603, 3074457345618258602]
    far = np.array([10**6], x.dtype)
    for match, call in (
        ("bins: the rule 'auto' goes with numbers", lambda: upsweep.histogram(x, "auto")),
        ("bins: expected (datetime|timedelta)64.* got dtype int64", lambda: upsweep.histogram(x, edges)),
        ("range: expected (datetime|timedelta)64", lambda: upsweep.histogram(x, 5, range=(0, 3))),
        (r"x: autodetected range of \[NaT, NaT\]", lambda: upsweep.histogram(np.append(x, nothing))),
        ("bins: `bins` must increase", lambda: upsweep.histogram(x, bins[::-1])),
        ("bins: `bins` must increase", lambda: upsweep.histogram(x, np.append(bins, nothing))),
        ("bins: Too many bins for data range", lambda: upsweep.histogram(x, 25)),
        ("range: needed for a number of bins", lambda: upsweep.histogram(x[:0])),
        ("range: max must be larger", lambda: upsweep.histogram(x, range=(x[1], x[-1]))),
        ("x: .* cannot hold all of its dates", lambda: upsweep.histogram(far, np.array([0, 1], f"{kind}[ns]"))),
        ("bins: .* have no unit in common", lambda: upsweep.histogram(far, np.array([0, 1], f"{kind}[as]"))),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError), match=match):
            call()


def test_bool_is_counted_with_numpys_warning():
    x = np.array([True, False, True])
    with pytest.warns(RuntimeWarning, match="Converting input from bool to") as ours:
        counts = upsweep.histogram(x)
    with pytest.warns(RuntimeWarning) as numpys:
        expected = np.histogram(x)
    assert all(map(same_bits, counts, expected))
    assert str(ours[0].message) == str(numpys[0].message) and ours[0].filename == __file__


@pytest.mark.parametrize(("dtype", "value", "place"), [
    ("f4", 2.0**24 - 2, 2), ("f4", 2.0**24, 1), ("f4", 1e8, 2), ("f4", -3e38, 2), ("f8", 2.0**53, 1),
    ("f8", 1e300, 2), ("f2", 1000, 2), ("i8", 2**62, 2), ("u1", 255, 2), ("u1", 0, 2),
])  # fmt: skip
def test_histc_of_one_number(dtype, value, place):
    """The range is from one less to one more; beyond 2**24, or 2**53, to the numbers next to it."""
    x = np.full(5, value, dtype)
    expected = np.eye(4, dtype=x.dtype)[place] * x.dtype.type(5)
    for limits in ((0, 0), (value, value)):
        np.testing.assert_array_equal(upsweep.histc(x, 4, *limits), expected)
