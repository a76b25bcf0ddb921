"""Which pairs block-sparse reductions run over: sets of pairs, transposes, and what is refused, by block."""

import copy
import pickle

import numpy as np
import pytest
from pair_cases import join
from upsweep import Vi, Vj
from upsweep.cluster import from_matrix, swap_axes
from upsweep.pairs.block_intervals import BlockIntervals
from upsweep.pairs.ranges import BlockRanges, as_ranges


def random_ranges(seed=0, n_i=40, n_j=30, share=0.4):
    """KeOps' six arrays of random clusters, and the mask they mean."""
    rng = np.random.default_rng(seed)
    cuts_i = np.sort(rng.choice(np.arange(1, n_i), 6, replace=False))
    cuts_j = np.sort(rng.choice(np.arange(1, n_j), 4, replace=False))
    r_i = np.stack([np.r_[0, cuts_i], np.r_[cuts_i, n_i]], 1)
    r_j = np.stack([np.r_[0, cuts_j], np.r_[cuts_j, n_j]], 1)
    keep = rng.random((7, 5)) < share
    mask = np.repeat(np.repeat(keep, np.diff(r_i)[:, 0], 0), np.diff(r_j)[:, 0], 1)
    return from_matrix(r_i, r_j, keep), mask, (r_i, r_j, keep)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_six_arrays_of_any_integers(dtype):
    ranges, mask, _ = random_ranges()
    block_ranges = BlockRanges(tuple(part.astype(dtype) for part in ranges), mask.shape)
    np.testing.assert_array_equal(block_ranges.to_mask(), mask)
    np.testing.assert_array_equal(block_ranges.T.to_mask(), mask.T)
    assert block_ranges.n_pairs == mask.sum()
    assert all(part.dtype == np.int64 for part in block_ranges)
    assert len(block_ranges) == 6 and len(swap_axes(block_ranges)) == 6


def test_what_was_checked_does_not_change_with_the_users_arrays():
    ranges, mask, _ = random_ranges()
    block_ranges = BlockRanges(ranges, mask.shape)
    ranges[0][:] = 10**6
    np.testing.assert_array_equal(block_ranges.to_mask(), mask)


RANGES = {
    "six arrays": lambda: BlockRanges(random_ranges()[0], (40, 30)),
    "three lists": lambda: BlockRanges(([[0, 20], [20, 40]], [1, 2], [[0, 9], [3, 30]])),
    "unchecked": lambda: BlockRanges(random_ranges()[0], (40, 30), check=False),
    "unused columns": lambda: BlockRanges(([[0, 40]], [1], [[0, 30], [0, 10**9]])),
    "from_matrix": lambda: BlockRanges.from_matrix([[0, 20], [20, 40]], [[0, 30]], [[True], [True]]),
    "from_mask": lambda: BlockRanges.from_mask(random_ranges()[1]),
    "from_csr": lambda: BlockRanges.from_csr([[0, 40]], [[0, 30]], [0, 1], [0]),
    "from_radius": lambda: BlockRanges.from_radius(
        np.arange(40.0)[:, None], np.arange(30.0)[:, None], 1.0, [[0, 20], [20, 40]], [[0, 30]]
    ),
    "band": lambda: BlockRanges.band(40, 30, 2),
    "causal": lambda: BlockRanges.causal(40, 30, block=7),
    "block_diagonal": lambda: BlockRanges.block_diagonal([20, 20], [10, 20]),
    "transposed": lambda: BlockRanges.causal(30, 40).T,
    "as_ranges": lambda: as_ranges(random_ranges()[0], 40, 30),
}
X, Y = Vi(np.random.default_rng(0).normal(size=(40, 2))), Vj(np.random.default_rng(1).normal(size=(30, 2)))


@pytest.mark.parametrize("name", RANGES)
def test_what_was_checked_cannot_be_written_to(name):
    block_ranges = RANGES[name]()
    of_batch = BlockRanges.block_diagonal([20, 20], [15, 15]).for_batch("j", 20, 15, 2)[1]
    for array in (
        *block_ranges,
        *block_ranges.T,
        *block_ranges.intervals("i", 40, 30),
        *block_ranges[:3],
        *of_batch,
    ):
        while isinstance(array, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 10**9
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
            array = array.base
        assert isinstance(array, bytes)


@pytest.mark.parametrize("duplicate", [lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", RANGES)
def test_copies_and_pickles(name, duplicate):
    """Before a reduction, and after one, when there are plans."""
    block_ranges = RANGES[name]()
    for _ in range(2):
        other = duplicate(block_ranges)
        assert (
            type(other) is BlockRanges
            and other.shape == block_ranges.shape
            and other.n_pairs == block_ranges.n_pairs
        )
        for own, others in zip(block_ranges, other):
            np.testing.assert_array_equal(own, others)
            assert not others.flags.writeable and isinstance(others.base, bytes)
        for axis in (0, 1):
            result = X.sqdist(Y).sum(axis=axis, ranges=other)
            np.testing.assert_array_equal(result, X.sqdist(Y).sum(axis=axis, ranges=block_ranges))


@pytest.mark.parametrize("seed", range(5))
def test_three_arrays_have_a_transpose(seed):
    ranges, mask, _ = random_ranges(seed)
    np.testing.assert_array_equal(BlockRanges(ranges[:3], mask.shape).T.to_mask(), mask.T)


def test_columns_that_are_listed_twice_count_twice_in_the_transpose_too():
    block_ranges = BlockRanges(([[0, 2], [2, 3]], [2, 3], [[0, 4], [2, 6], [1, 3]]), (3, 6))
    np.testing.assert_array_equal(block_ranges.to_mask(), [[1, 1, 2, 2, 1, 1]] * 2 + [[0, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(block_ranges.T.to_mask(), block_ranges.to_mask().T)
    assert block_ranges.n_pairs == 18


@pytest.mark.parametrize("seed", range(3))
def test_masks_and_clusters(seed):
    _, mask, (r_i, r_j, keep) = random_ranges(seed)
    indptr, indices = np.r_[0, np.cumsum(keep.sum(1))], np.nonzero(keep)[1]
    for block_ranges in (
        BlockRanges.from_mask(mask),
        BlockRanges.from_matrix(r_i, r_j, keep),
        BlockRanges.from_csr(r_i, r_j, indptr, indices),
    ):
        np.testing.assert_array_equal(block_ranges.to_mask(), mask)
        triple = block_ranges.intervals("j", *mask.shape)
        np.testing.assert_array_equal(BlockRanges(tuple(triple), mask.T.shape).to_mask(), mask.T)


def test_touching_clusters_are_joined():
    r = [[0, 2], [2, 5], [5, 6]]
    columns = BlockRanges.from_matrix([[0, 3]], r, [[True, True, False]]).intervals("i", 3, 6).columns
    np.testing.assert_array_equal(columns, [[0, 5]])


@pytest.mark.parametrize("radius", [0.0, 0.3, 1.0, 100.0])
def test_a_radius_keeps_all_that_are_near(radius):
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.normal(size=(60, 2)), 0), np.sort(rng.normal(size=(50, 2)), 0)
    r_i = np.stack([np.arange(0, 60, 5), np.arange(5, 61, 5)], 1)
    r_j = np.array([[0, 7], [7, 7], [7, 20], [20, 50]])  # one is empty
    mask = BlockRanges.from_radius(x, y, radius, r_i, r_j).to_mask()
    near = ((x[:, None] - y) ** 2).sum(-1) <= radius**2
    assert mask[near].all()
    assert radius < 100 or mask.all()
    assert radius > 1 or mask.mean() < 0.9


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("n_i, n_j", [(10, 10), (7, 12), (12, 5), (0, 4), (4, 0)])
def test_bands(block, n_i, n_j):
    i, j = np.arange(n_i)[:, None], np.arange(n_j)
    first, last = i // block * block, np.minimum(i // block * block + block, n_i) - 1
    band = BlockRanges.band(n_i, n_j, 2, 3, block=block).to_mask()
    np.testing.assert_array_equal(band, (j >= first - 2) & (j <= last + 3))
    causal = BlockRanges.causal(n_i, n_j, block=block).to_mask()
    np.testing.assert_array_equal(causal, j <= last)


def test_blocks_along_the_diagonal():
    mask = BlockRanges.block_diagonal([2, 0, 1], [1, 3, 2]).to_mask()
    np.testing.assert_array_equal(mask, [[1, 0, 0, 0, 0, 0]] * 2 + [[0, 0, 0, 0, 1, 1]])


BLOCKS, SLICES, COLUMNS = [[0, 2], [2, 5]], [1, 3], [[0, 3], [1, 2], [3, 4]]


@pytest.mark.parametrize(
    "triple, message",
    [
        (
            ([[0, 2], [2, 9]], SLICES, COLUMNS),
            r"block 1 of ranges_i is \[2, 9\), which is out of bounds; there are 5",
        ),
        (([[0, 2], [-1, 5]], SLICES, COLUMNS), r"block 1 of ranges_i is \[-1, 5\), which is out of bounds"),
        (([[2, 0], [2, 5]], SLICES, COLUMNS), r"block 0 of ranges_i is \[2, 0\), which ends before it starts"),
        (
            (BLOCKS, SLICES, [[0, 3], [1, 2], [3, 7]]),
            r"redranges_j\[2\], of block 1, is \[3, 7\), which is out of",
        ),
        (
            (BLOCKS, SLICES, [[0, 3], [1, 0], [3, 4]]),
            r"redranges_j\[1\], of block 1, is \[1, 0\), which ends before",
        ),
        ((BLOCKS, [1, 4], COLUMNS), "slices_i of block 1 is 4, but redranges_j has 3 rows only"),
        ((BLOCKS, [2, 1], COLUMNS), "slices_i has to increase, but for block 1 it is 1 after 2"),
        ((BLOCKS, [-1, 1], COLUMNS), "slices_i has to increase, but for block 0 it is -1"),
        (([[1, 5], [0, 2]], SLICES, COLUMNS), r"blocks 0 and 1 of ranges_i overlap: \[1, 5\) and \[0, 2\)"),
        ((BLOCKS, [1], COLUMNS), "slices_i: expected a number for each of 2 blocks, got 1"),
        (([[0, 2, 3]], [1], COLUMNS), r"ranges_i: expected shape \(n, 2\)"),
    ],
)
def test_what_is_refused_names_the_block(triple, message):
    with pytest.raises(ValueError, match=message):
        BlockRanges(triple, (5, 6))


def test_no_check_without_check():
    block_ranges = BlockRanges((BLOCKS, SLICES, [[0, 3], [1, 2], [3, 7]]), (5, 6), check=False)
    assert block_ranges.intervals("i", 5, 6).columns[2, 1] == 7


def test_bounds_are_checked_when_sizes_are_known():
    block_ranges = BlockRanges((BLOCKS, SLICES, COLUMNS))
    with pytest.raises(ValueError, match=r"redranges_j\[2\], of block 1, is \[3, 4\), .* there are 3 columns"):
        block_ranges.intervals("i", 5, 3)
    with pytest.raises(ValueError, match=r"ranges: are of \(5, 6\) rows and columns, the reduction of \(5, 7\)"):
        BlockRanges((BLOCKS, SLICES, COLUMNS), (5, 6)).intervals("i", 5, 7)


def test_other_things_are_no_ranges():
    with pytest.raises(TypeError, match="ranges_i: expected integers, got dtype float64"):
        BlockRanges((np.zeros((2, 2)), SLICES, COLUMNS))
    with pytest.raises(ValueError, match=r"ranges: expected six arrays, .* got 4"):
        BlockRanges((BLOCKS, SLICES, COLUMNS, BLOCKS))
    with pytest.raises(TypeError, match="ranges: expected None, six arrays or a BlockRanges, got int"):
        as_ranges(3)


@pytest.mark.parametrize("place", [3, 4, 5])
def test_pairs_that_disagree_are_an_error_when_the_second_list_is_needed(place):
    ranges, mask, _ = random_ranges(share=0.6)
    parts = [part.copy() for part in ranges]
    if place == 4:
        parts[4][0] -= 1  # a range of the first block goes to the second
    else:
        parts[place][0, 1] -= 1
    block_ranges = BlockRanges(parts, mask.shape)
    block_ranges.intervals("i", *mask.shape)
    with pytest.raises(ValueError, match="list different pairs"):
        block_ranges.intervals("j", *mask.shape)
    BlockRanges(parts, mask.shape, check=False).intervals("j", *mask.shape)


def test_the_two_lists_are_compared_once(monkeypatch):
    ranges, mask, _ = random_ranges()
    block_ranges = BlockRanges(ranges, mask.shape)
    block_ranges.intervals("j", *mask.shape)
    monkeypatch.setattr(BlockIntervals, "fingerprint", None)
    block_ranges.intervals("j", *mask.shape)


def test_equal_tuples_are_one_object_for_equal_sizes():
    ranges, _, _ = random_ranges()
    assert as_ranges(ranges, 40, 30) is as_ranges(tuple(part.copy() for part in ranges), 40, 30)
    assert as_ranges(ranges, 40, 30) is not as_ranges(ranges, 41, 30)
    assert as_ranges(None) is None


def test_plans_are_cached():
    triple = BlockRanges.causal(5).intervals("i", 5, 5)
    block_ranges = []
    assert triple.plan("engine", lambda inputs: block_ranges.append(inputs) or "plan") == "plan"
    assert triple.plan("engine", lambda inputs: block_ranges.append(inputs) or "other") == "plan"
    assert len(block_ranges) == 1 and block_ranges[0] is triple


def test_indices_that_run_through_a_batch():
    first, mask_a, _ = random_ranges(1)
    second, mask_b, _ = random_ranges(2)
    n_i, n_j = mask_a.shape
    parts = [BlockRanges(part, (n_i, n_j)).intervals("i", n_i, n_j) for part in (first, second)]
    whole = BlockRanges(tuple(join(parts, n_i, n_j)))
    for rows, masks in (("i", (mask_a, mask_b)), ("j", (mask_a.T, mask_b.T))):
        triples = whole.for_batch(rows, n_i, n_j, 2)
        assert triples is whole.for_batch(rows, n_i, n_j, 2)
        for triple, mask in zip(triples, masks):
            np.testing.assert_array_equal(BlockRanges(tuple(triple), mask.shape).to_mask(), mask)
    alike = BlockRanges(first)
    assert alike.for_batch("i", n_i, n_j, 2) is alike.intervals("i", n_i, n_j)


def test_a_block_is_inside_of_one_entry_of_a_batch():
    with pytest.raises(ValueError, match=r"block 0 of ranges_i, \[3, 7\], has rows of two batch entries"):
        BlockRanges(([[3, 7]], [1], [[0, 5]])).for_batch("i", 5, 5, 2)
    with pytest.raises(ValueError, match="block 0 of ranges_i, of batch entry 1, has columns of another entry"):
        BlockRanges(([[5, 7]], [1], [[0, 5]])).for_batch("i", 5, 5, 2)


def test_many_blocks_are_checked_fast_enough_to_be_checked_always():
    r = np.stack([np.arange(10**5), np.arange(1, 10**5 + 1)], 1)
    BlockIntervals.from_counts(r, np.ones(10**5), r).check(("a", "b", "c"), 10**5, 10**5)


def test_a_picture(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ax = BlockRanges.causal(10, block=3).plot(facecolor="red")
    assert len(ax.collections[0].get_paths()) == 4
    assert ax.get_ylim() == (10.0, 0.0)
    ax.figure.savefig(tmp_path / "ranges.png")


def test_their_repr_says_what_they_keep():
    assert repr(BlockRanges.causal(4, block=2)) == "BlockRanges(2 blocks; 12 of 4 x 4 pairs)"


def test_sets_of_pairs_check_their_numbers():
    x, far = np.array([[0.0], [1.0], [5.0]]), np.array([[0.0], [np.nan], [5.0]])
    for call, message in (
        (lambda: BlockRanges.causal(-3), "n_i: expected at least 0, got -3"),
        (lambda: BlockRanges.band(2, -1, 1), "n_j: expected at least 0, got -1"),
        (lambda: BlockRanges.from_radius(x, x, -1.0, [[0, 3]]), "radius: expected at least 0"),
        (lambda: BlockRanges.from_radius(x, x, np.nan, [[0, 3]]), "radius: expected at least 0"),
        (lambda: BlockRanges.from_radius(x, far, 1.0, [[0, 3]]), "y: expected finite"),
        (lambda: swap_axes((1, 2, 3)), "ranges: expected six arrays, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
