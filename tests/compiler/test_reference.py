"""The reference implementation of reductions over pairs, against loops over pairs; errors of reductions."""

import numpy as np
import pytest
from upsweep import reference
from upsweep._compiler.formulas import reference as reference_module
from upsweep._compiler.formulas.nodes import make, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction, fill, outputs

x, y, b, p = variable(0, 2, "i"), variable(1, 2, "j"), variable(2, 2, "j"), variable(3, 1, "p")
M, N = 7, 5
KERNEL = make("exp", make("neg", make("mul", make("sqdist", x, y), p)))
VECTOR = make("mul", KERNEL, b)


def reduction_of(name, rows="i", k=3):
    formula = KERNEL if name in ("logsumexp", "sumsoftmaxweight") else VECTOR
    weight = b if name == "sumsoftmaxweight" else None
    return PairReduction(formula, name, weight, rows, k if "kmin" in name else 0)


def data(batch=(), seed=0):
    generator = np.random.default_rng(seed)
    shapes = ((*batch, M, 2), (*batch, N, 2), (*batch, N, 2), (1,))
    return [generator.standard_normal(shape) for shape in shapes]


def values(arrays):
    """(M, N, 2), (M, N, 1): the formulas of all pairs."""
    x, y, b, p = arrays
    kernel = np.exp(-((x[:, None] - y[None]) ** 2).sum(-1, keepdims=True) * np.abs(p) * np.sign(p))
    return kernel * b[None], kernel


def expected_row(name, terms, kernel, weight, columns, k):
    """The outputs of one row, from its terms (n, 2) at `columns`, in the order of their indices."""
    by_index = np.argsort(columns, kind="stable")
    terms, kernel, weight, columns = (part[by_index] for part in (terms, kernel, weight, columns))
    order = np.argsort(terms, axis=0, kind="stable")
    return {
        "sum": lambda: [terms.sum(0)],
        "logsumexp": lambda: [np.log(np.exp(kernel).sum(0))],
        "sumsoftmaxweight": lambda: [(np.exp(kernel) * weight).sum(0) / np.exp(kernel).sum(0)],
        "min": lambda: [terms.min(0)],
        "max": lambda: [terms.max(0)],
        "argmin": lambda: [columns[terms.argmin(0)]],
        "argmax": lambda: [columns[terms.argmax(0)]],
        "min_argmin": lambda: [terms.min(0), columns[terms.argmin(0)]],
        "max_argmax": lambda: [terms.max(0), columns[terms.argmax(0)]],
        "kmin": lambda: [np.take_along_axis(terms, order, 0)[:k].ravel()],
        "argkmin": lambda: [columns[order[:k]].ravel()],
        "kmin_argkmin": lambda: [np.take_along_axis(terms, order, 0)[:k].ravel(), columns[order[:k]].ravel()],
    }[name]()


@pytest.mark.parametrize("rows", ["i", "j"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_dense(name, rows, monkeypatch):
    monkeypatch.setattr(reference_module, "_BLOCK", 25)  # blocks of a row or two
    arrays = data()
    reduction = reduction_of(name, rows)
    if name == "sumsoftmaxweight" and rows == "j":
        reduction = PairReduction(KERNEL, name, x, "j")
    results = reference.pair_reduction(reduction, arrays, M, N)
    terms, kernel = values(arrays)
    weight = np.broadcast_to(arrays[2], (M, N, 2))
    if rows == "j":
        terms, kernel = terms.swapaxes(0, 1), kernel.swapaxes(0, 1)
        weight = np.broadcast_to(arrays[0], (N, M, 2))
    assert [r.shape for r in results] == [(M if rows == "i" else N, dim) for dim, _ in outputs(reduction)]
    assert [r.dtype == np.int64 for r in results] == [kind == "index" for _, kind in outputs(reduction)]
    for row in range(len(terms)):
        columns = np.arange(terms.shape[1])
        for result, expected in zip(results, expected_row(name, terms[row], kernel[row], weight[row], columns, 3)):
            np.testing.assert_allclose(result[row], expected, rtol=1e-12)


TRIPLE = (
    np.array([[0, 2], [2, 3], [5, 7]]),
    np.array([2, 3, 5]),
    np.array([[3, 5], [0, 2], [2, 2], [1, 4], [3, 4]]),
)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_ranges(name):
    arrays = data(seed=1)
    reduction = reduction_of(name)
    results = reference_module.pair_reduction(reduction, arrays, M, N, (), TRIPLE)
    terms, kernel = values(arrays)
    weight = np.broadcast_to(arrays[2], (M, N, 2))
    of_row = {0: [3, 4, 0, 1], 1: [3, 4, 0, 1], 5: [1, 2, 3, 3], 6: [1, 2, 3, 3]}
    for row in range(M):
        for result, value, (dim, _), part in zip(results, fill(reduction), outputs(reduction), range(2)):
            if row not in of_row:  # of no block, or of nothing but an empty interval
                np.testing.assert_array_equal(result[row], np.full(dim, value))
                continue
            c = np.array(of_row[row])
            expected = expected_row(name, terms[row, c], kernel[row, c], weight[row, c], c, 3)[part]
            np.testing.assert_allclose(result[row], expected, rtol=1e-12)


def test_batches_each_with_its_ranges():
    arrays = data((2, 3))
    reduction = reduction_of("sum")
    triples = [TRIPLE, None, TRIPLE, None, None, TRIPLE]
    (result,) = reference_module.pair_reduction(reduction, arrays, M, N, (2, 3), triples)
    assert result.shape == (2, 3, M, 2)
    for n, entry in enumerate(np.ndindex(2, 3)):
        of_entry = [array[entry] if array.ndim > 1 else array for array in arrays]
        np.testing.assert_array_equal(
            result[entry], reference_module.pair_reduction(reduction, of_entry, M, N, (), triples[n])[0]
        )
    shared = [arrays[0][0, :1], *arrays[1:]]  # a batch dimension that broadcasts
    (result,) = reference_module.pair_reduction(reduction, shared, M, N, (2, 3))
    alone = reference_module.pair_reduction(
        reduction, [arrays[0][0, 0], arrays[1][1, 2], arrays[2][1, 2], arrays[3]], M, N
    )[0]
    np.testing.assert_array_equal(result[1, 2], alone)


def test_nothing_to_reduce_gives_the_neutral_element():
    arrays = [array[:0] if n in (1, 2) else array for n, array in enumerate(data())]
    for name in REDUCTIONS:
        for result, value in zip(
            reference_module.pair_reduction(reduction_of(name), arrays, M, 0), fill(reduction_of(name))
        ):
            assert len(result) == M and (result == value).all()
    values = [fill(reduction_of(name)) for name in ("sum", "logsumexp", "min", "max", "argmin", "kmin_argkmin")]
    assert values == [(0,), (-np.inf,), (np.inf,), (-np.inf,), (-1,), (np.inf, -1)]


def test_fewer_than_k():
    least, places = reference_module.pair_reduction(reduction_of("kmin_argkmin", k=7), data(), M, N)
    assert np.isinf(least.reshape(M, 7, 2)[:, N:]).all() and (places.reshape(M, 7, 2)[:, N:] == -1).all()
    assert np.isfinite(least.reshape(M, 7, 2)[:, :N]).all()


def test_ties_and_nan():
    difference = make("sub", variable(0, 1, "i"), variable(1, 1, "j"))
    column = np.array([[2.0], [3.0], [3.0], [1.0]])
    assert reference.pair_reduction(PairReduction(difference, "argmin"), [np.zeros((1, 1)), column], 1, 4)[0] == 1
    triple = (np.array([[0, 1]]), np.array([2]), np.array([[2, 4], [0, 2]]))
    arrays = [np.zeros((1, 1)), column]
    actual = reference_module.pair_reduction(PairReduction(difference, "argmin"), arrays, 1, 4, (), triple)
    assert actual[0] == 1
    places = reference_module.pair_reduction(PairReduction(difference, "argkmin", k=3), arrays, 1, 4, (), triple)[
        0
    ]
    assert places.tolist() == [[1, 2, 0]]
    column[1] = np.nan
    arrays = [np.zeros((1, 1)), column]
    least, place = reference_module.pair_reduction(PairReduction(difference, "min_argmin"), arrays, 1, 4)
    assert np.isnan(least) and place == 1
    places = reference_module.pair_reduction(PairReduction(difference, "argkmin", k=4), arrays, 1, 4)[0]
    assert places.tolist() == [[2, 0, 3, 1]]


@pytest.mark.parametrize("shift", [1e5, -1e5, np.inf, -np.inf])
def test_logsumexp_of_far_away_numbers(shift):
    formula = variable(0, 1, "j")
    column = np.array([[0.0], [1.0]]) + shift
    value = reference_module.pair_reduction(PairReduction(formula, "logsumexp"), [column], 1, 2)[0]
    np.testing.assert_allclose(value, np.logaddexp(column[0], column[1])[None])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((x, "Sum"), "no reduction 'Sum'; did you mean sum"),
        ((x, "sum", None, "k"), "rows has to be 'i' or 'j'"),
        ((x, "kmin"), "k has to be at least 1"),
        ((x, "sum", None, "i", 2), "k has to be at least 1"),
        ((x, "logsumexp"), r"logsumexp takes a formula of dim 1, not 2: Var\(0,2,0\)"),
        ((p, "sumsoftmaxweight"), "takes a weight"),
        ((p, "sum", x), "sum takes no weight"),
        ((p, "sum", None, "i", 0, "float64", "float32"), "sums of float64 cannot be kept in float32"),
    ],
)
def test_what_a_reduction_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        PairReduction(*arguments)


def test_reductions_compare_and_have_keys():
    assert reduction_of("sum") == reduction_of("sum") and hash(reduction_of("sum")) == hash(reduction_of("sum"))
    keys = {reduction_of(name, rows).key() for name in REDUCTIONS for rows in "ij"}
    assert len(keys) == 2 * len(REDUCTIONS)
    assert reduction_of("sumsoftmaxweight").variables == (x, y, b, p)
