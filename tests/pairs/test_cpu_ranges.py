"""Ranges on the CPU: blocks of any size, empty and overlapping ones, rows of no block, pieces of long
reductions.
"""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from pair_cases import ALL, check, data, random_ranges, reduction_of, same_bits
from upsweep._backends.cpu import pairs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALL)
def test_every_reduction_over_ranges(name, dtype):
    rng = np.random.default_rng(1)
    for n_i, n_j, n_blocks in [(40, 60, 3), (100, 300, 7), (30, 900, 2), (9, 40, 9)]:
        arrays = data(n_i, n_j, dtype)
        for rows in ("i", "j"):
            n_rows, n_columns = (n_i, n_j) if rows == "i" else (n_j, n_i)
            triple = random_ranges(n_rows, n_columns, n_blocks, rng)
            check(reduction_of(name, dtype, rows=rows), arrays, n_i, n_j, ranges=triple)


@pytest.mark.parametrize("name", ALL)
def test_rows_of_no_block_and_intervals_that_overlap(name):
    rng = np.random.default_rng(2)
    for _ in range(5):
        triple = random_ranges(70, 50, 4, rng, overlap="kmin" not in name, skip=0.5)
        check(reduction_of(name, "float64"), data(70, 50, "float64"), 70, 50, ranges=triple)


def test_intervals_in_any_order_give_the_smallest_index():
    arrays = data(20, 40, "float64")
    arrays[1][:] = arrays[1][0]  # all columns are as good
    triple = np.array([[0, 20]]), np.array([2]), np.array([[30, 40], [10, 20]])
    (places,) = pairs.run(reduction_of("argmin", "float64"), arrays, 20, 40, ranges=triple)
    assert (places == 10).all()
    (places,) = pairs.run(reduction_of("argkmin", "float64", k=3), arrays, 20, 40, ranges=triple)
    assert (places == [10, 11, 12]).all()


def test_no_block_at_all():
    nothing = np.zeros((0, 2), int), np.zeros(0, int), np.zeros((0, 2), int)
    for name in ALL:
        check(reduction_of(name, "float64"), data(7, 8, "float64"), 7, 8, ranges=nothing)


def test_a_plan_serves_any_number_of_calls():
    rng = np.random.default_rng(3)
    reduction, triple = reduction_of("sum"), random_ranges(100, 200, 5, rng)
    plan = pairs.plan(reduction, 100, 200, triple)
    for seed in range(3):
        arrays = data(100, 200, seed=seed)
        check(reduction, arrays, 100, 200, ranges=triple, got=pairs.run(reduction, arrays, 100, 200, ranges=plan))


def test_any_integers_and_strides():
    rng = np.random.default_rng(4)
    triple = random_ranges(100, 200, 5, rng)
    reduction, arrays = reduction_of("sum"), data(100, 200)
    expected = pairs.run(reduction, arrays, 100, 200, ranges=triple)
    for dtype in (np.int32, np.uint8, np.uint64):
        others = tuple(np.asfortranarray(part.astype(dtype)) for part in triple)
        assert same_bits(pairs.run(reduction, arrays, 100, 200, ranges=others), expected)


def test_one_triple_for_each_batch_entry_or_one_for_all():
    rng = np.random.default_rng(5)
    for name in ("sum", "logsumexp", "argmin", "argkmin"):
        reduction, arrays = reduction_of(name, "float64"), data(30, 40, "float64", batch=(3,))
        triples = [random_ranges(30, 40, n, rng) for n in (2, 3, 5)]
        check(reduction, arrays, 30, 40, (3,), triples)
        check(reduction, arrays, 30, 40, (3,), triples[1])


@pytest.mark.parametrize("name", ["sum", "logsumexp", "sumsoftmaxweight", "min_argmin", "kmin_argkmin"])
def test_long_reductions_are_cut_into_pieces(name):
    """Few rows and many columns, dense and in a block that outweighs the others."""
    for rows in (1, 3, 20):
        check(reduction_of(name, "float64"), data(rows, 70_001, "float64"), rows, 70_001)
    triple = (np.array([[0, 3], [3, 20]]), np.array([3, 4]),
              np.array([[0, 30_000], [30_000, 30_001], [35_000, 70_000], [5, 9]]))  # fmt: skip
    check(reduction_of(name, "float64"), data(20, 70_000, "float64"), 20, 70_000, ranges=triple)


def test_half_of_the_rows_in_one_block():
    sizes = np.array([1000, *[200] * 5])
    ends = np.cumsum(sizes)
    blocks = np.stack([ends - sizes, ends], 1)
    triple = blocks, np.arange(1, 7) * 2, np.concatenate([blocks[[k, (k + 1) % 6]] for k in range(6)])
    check(reduction_of("sum"), data(2000, 2000), 2000, 2000, ranges=triple)


def test_more_columns_than_indices_have_bits_for_are_refused():
    triple = np.array([[0, 5]]), np.array([1]), np.array([[0, 9]])
    with pytest.raises(ValueError, match="indices of float32"):
        pairs.plan(reduction_of("argmin"), 5, 2**31, triple)
    assert pairs.plan(reduction_of("argmin", "float64"), 5, 2**31, triple)
    assert pairs.plan(reduction_of("sum"), 5, 2**31, triple)
