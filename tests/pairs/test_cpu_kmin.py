"""The k least values on the CPU, by insertion and by candidates: any order of the columns, ties, NaN."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from pair_cases import same_bits
from upsweep._backends.cpu import pairs
from upsweep._compiler.formulas.nodes import make, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.llvm.pairs.reducers import MOST_INSERTED

SIZES = [1, 3, 10, MOST_INSERTED, MOST_INSERTED + 1, 100, 700]
N = 3000


def columns_of(order, rng):
    values = np.sort(rng.standard_normal(N))
    many = rng.integers(0, 5, N).astype(float)
    return {
        "random": rng.permutation(values),
        "near to far": values,
        "far to near": values[::-1],
        "all equal": np.ones(N),
        "ties": many,
        "ties, far to near": np.sort(many)[::-1],
        "zeros of both signs": np.where(rng.random(N) < 0.5, 0.0, -0.0),
        "sample sees only far ones": np.where(np.arange(N) < 20, -values[-1] - np.arange(N), 5.0),
        "mostly NaN": np.where(rng.random(N) < 0.95, np.nan, values[::-1]),
        "mostly infinite": np.where(rng.random(N) < 0.95, np.inf, values[::-1]),
        "mostly -infinite": np.where(rng.random(N) < 0.95, -np.inf, values[::-1]),
        "all NaN": np.full(N, np.nan),
        "one value": np.where(np.arange(N) == N - 1, 1.0, np.nan),
    }[order]


ORDERS = ("random", "near to far", "far to near", "all equal", "ties", "ties, far to near", "zeros of both signs",
          "sample sees only far ones", "mostly NaN", "mostly infinite", "mostly -infinite", "all NaN",
          "one value")  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_is_a_stable_sort(order, dtype):
    """Values and indices are those of a stable sort, to the bit, for lanes of rows and of columns."""
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    rng = np.random.default_rng(3)
    columns = columns_of(order, rng).astype(dtype)
    scales = np.array([1, -1, 0.5] * 12, dtype)[:, None]
    for k in SIZES:
        reduction = PairReduction(make("mul", x, y), "kmin_argkmin", k=k, dtype=dtype)
        for rows in (scales, scales[:2]):
            values, places = pairs.run(reduction, [rows, columns[:, None]], len(rows), N)
            products = rows * columns
            expected = np.argsort(products, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(places, expected)
            assert same_bits([values], [np.take_along_axis(products, expected, 1)])


@pytest.mark.parametrize("k", [5, 100])
@pytest.mark.parametrize("dim", [2, 5])
def test_components_have_lists_of_their_own(dim, k):
    x, y = variable(0, dim, "i"), variable(1, dim, "j")
    rng = np.random.default_rng(4)
    rows, columns = rng.standard_normal((20, dim)), np.sort(rng.standard_normal((900, dim)), 0)[::-1]
    reduction = PairReduction(make("sub", x, y), "kmin_argkmin", k=k, dtype="float64")
    values, places = pairs.run(reduction, [rows, np.ascontiguousarray(columns)], 20, 900)
    expected = np.argsort(rows[:, None] - columns, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places.reshape(20, k, dim), expected)
    np.testing.assert_array_equal(
        values.reshape(20, k, dim), np.take_along_axis(rows[:, None] - columns, expected, 1)
    )


@pytest.mark.parametrize("k", [3, 100])
def test_columns_of_ranges_that_overlap(k):
    """Rows meet more columns than there are: some twice."""
    x, y = variable(0, 1, "i"), variable(1, 1, "j")
    columns = np.linspace(1, 0, 600)
    blocks = np.array([[0, 20], [20, 40]]), np.array([2, 3]), np.array([[0, 600], [100, 600], [0, 500]])
    reduction = PairReduction(make("mul", x, y), "kmin", k=k, dtype="float64")
    (values,) = pairs.run(reduction, [np.ones((40, 1)), columns[:, None]], 40, 600, ranges=blocks)
    twice = np.sort(np.concatenate([columns, columns[100:]]))[:k]
    np.testing.assert_array_equal(values[:20], np.tile(twice, (20, 1)))
    np.testing.assert_array_equal(values[20:], np.tile(np.sort(columns[:500])[:k], (20, 1)))


@pytest.mark.parametrize("k", [5, 65])
def test_rows_whose_sample_has_too_many_of_the_least(k):
    """Of so many rows some have more of their least values in the sample than expected, and are reduced again."""
    n_rows, n = 8000, 2000
    rng = np.random.default_rng(6)
    rows, columns = (rng.integers(0, 1000, (count, 3)).astype("f8") for count in (n_rows, n))
    squares = make("sqdist", variable(0, 3, "i"), variable(1, 3, "j"))
    (places,) = pairs.run(PairReduction(squares, "argkmin", k=k, dtype="float64"), [rows, columns], n_rows, n)
    for first in range(0, n_rows, 1000):
        exact = ((rows[first : first + 1000, None] - columns) ** 2).sum(2)  # integers
        unique = exact * n + np.arange(n)
        expected = np.sort(np.partition(unique, k, axis=1)[:, :k], axis=1) % n
        np.testing.assert_array_equal(places[first : first + 1000], expected)


def test_more_columns_than_lists_of_candidates_are_cut_for_in_64_calls():
    """The number of columns of a call, doubled at each of them, has no more than 63 bits."""
    rng = np.random.default_rng(6)
    rows, columns = rng.random((40, 1)), rng.random((400_000, 1))
    reduction = PairReduction(
        make("sqdist", variable(0, 1, "i"), variable(1, 1, "j")), "argkmin", k=70, dtype="float64"
    )
    (places,) = np.asarray(pairs.run(reduction, [rows, columns], 40, len(columns), n_threads=1))
    for row in range(0, 40, 8):
        distances = (rows[row] - columns[:, 0]) ** 2
        np.testing.assert_array_equal(places[row], np.argsort(distances, kind="stable")[:70])


def test_far_to_near_costs_less_than_three_times_as_much():
    """Insertion of every column took 10 to 20 times as long at k = 10, and more for larger k."""
    import time

    x, y = variable(0, 3, "i"), variable(1, 3, "j")
    rng = np.random.default_rng(5)
    rows, columns = 0.01 * rng.random((64, 3)), rng.random((20_000, 3))
    falling = columns[np.argsort((columns**2).sum(1))[::-1]]

    def least(k, columns):
        reduction = PairReduction(make("sqdist", x, y), "argkmin", k=k, dtype="float64")
        times = []
        for _ in range(7):
            begin = time.thread_time()  # not what other processes take
            pairs.run(reduction, [rows, columns], 64, len(columns), n_threads=1)
            times.append(time.thread_time() - begin)
        return min(times)

    for k in (10, 200):
        assert least(k, falling) < 3 * least(k, columns)
