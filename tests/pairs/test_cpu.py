"""Reductions over pairs on the CPU against the reference: each reduction, dtype, axis, size, batch and layout."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from pair_cases import ALL, check, data, formulas, reduction_of, same_bits
from upsweep._backends.cpu import pairs
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._compiler.llvm.pairs.kernel import CompiledReduction

DTYPES = ["float32", "float64"]
# Around nothing, one, the lanes of each instruction set, groups of columns, blocks of them, and tiles.
SIZES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 2), (2, 1), (3, 300), (15, 17), (16, 16), (17, 15), (33, 4), (4, 33),
         (31, 255), (64, 256), (65, 257), (7, 1025), (300, 3)]  # fmt: skip


@pytest.mark.parametrize("rows", ["i", "j"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_every_reduction_at_every_size(name, dtype, rows):
    reduction = reduction_of(name, dtype, rows=rows)
    for n_i, n_j in SIZES:
        check(reduction, data(n_i, n_j, dtype), n_i, n_j)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_logsumexp(dtype):
    reduction = reduction_of("logsumexp", dtype, weighted=True)
    for n_i, n_j in SIZES:
        check(reduction, data(n_i, n_j, dtype), n_i, n_j)


@pytest.mark.parametrize("name", ["sum", "argkmin", "kmin"])
def test_sums_of_float32_by_option(name):
    reduction = reduction_of(name, dtype_acc="float32")
    check(reduction, data(40, 700), 40, 700)
    sums = reduction_of("sum"), reduction_of("sum", dtype_acc="float32")
    arrays = data(40, 7000)
    assert not same_bits(*(pairs.run(each, arrays, 40, 7000) for each in sums))


def test_the_accumulator_loses_nothing_from_block_to_block():
    """2^24 + 1 and more ones: float32 stops growing there."""
    n = 2**24 + 2**12
    one = make("add", make("mul", variable(0, 1, "i"), constant(0.0)), variable(1, 1, "j"))
    arrays = [np.zeros((20, 1), np.float32), np.ones((n, 1), np.float32)]
    (sums,) = pairs.run(PairReduction(one, "sum"), arrays, 20, n)
    assert (sums == n).all()


@pytest.mark.parametrize("k", [1, 2, 5, 10, 11, 13, 20, 30])
def test_k_of_every_divisor(k):
    for dtype in DTYPES:
        for n_i, n_j in [(20, 3), (20, 100), (2, 500), (5, 30)]:
            check(reduction_of("kmin_argkmin", dtype, k=k), data(n_i, n_j, dtype), n_i, n_j)


def test_k_of_several_components():
    for dim in (2, 3, 5):
        x, y = variable(0, dim, "i"), variable(1, dim, "j")
        reduction = PairReduction(make("sub", x, y), "kmin_argkmin", k=3, dtype="float64")
        check(reduction, data(21, 50, "float64", dim), 21, 50)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "min_argmin", "kmin_argkmin"])
def test_batches(name):
    reduction = reduction_of(name, "float64")
    for batch, n_i, n_j in [((3,), 20, 30), ((2, 3), 5, 40), ((0,), 4, 4), ((1, 1), 17, 3), ((4,), 1, 500)]:
        check(reduction, data(n_i, n_j, "float64", batch=batch), n_i, n_j, batch)


def test_batches_that_broadcast():
    reduction = reduction_of("sum", "float64")
    full = data(20, 30, "float64", batch=(2, 3))
    alone = data(20, 30, "float64")
    some = data(20, 30, "float64", batch=(2, 1))
    column = [array[:, :1] if array.ndim > 1 else array for array in full]
    for x, y, b in [(full, alone, some), (alone, full, full), (some, column, alone), (alone, alone, full)]:
        arrays = [x[0], y[1], b[2], full[3]]
        check(reduction, arrays, 20, 30, (2, 3))
    parameters = np.arange(1.0, 7).reshape(2, 3, 1, 1)
    check(reduction, [alone[0], alone[1], alone[2], parameters], 20, 30, (2, 3))


def strided(array):
    """The same numbers in memory of every kind."""
    yield np.asfortranarray(array)
    wide = np.full([2 * n for n in array.shape], 7, array.dtype)
    wide[..., ::2, ::2] = array
    yield wide[..., ::2, ::2] if array.ndim == 2 else array
    yield array[::-1].copy()[::-1]
    yield array[..., ::-1].copy()[..., ::-1]
    yield array.astype(array.dtype.newbyteorder())
    raw = np.frombuffer(b"." + array.tobytes(), np.uint8)[1:]
    yield raw.view(array.dtype).reshape(array.shape)  # not aligned
    read_only = array.copy()
    read_only.flags.writeable = False
    yield read_only


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_byte_orders_and_bases(dtype):
    reduction = reduction_of("sum", dtype)
    for n_i, n_j in [(20, 30), (2, 400)]:
        plain = data(n_i, n_j, dtype)
        expected = pairs.run(reduction, plain, n_i, n_j)
        for others in zip(*(strided(array) for array in plain[:3])):
            assert same_bits(pairs.run(reduction, [*others, plain[3]], n_i, n_j), expected)


def test_rows_and_columns_that_repeat():
    reduction = reduction_of("sum")
    plain = data(20, 30)
    plain[0] = np.broadcast_to(plain[0][:1], (20, 3))
    plain[1] = np.broadcast_to(plain[1][:1], (30, 3))
    check(reduction, plain, 20, 30)


def test_arrays_that_do_not_fit_are_refused():
    reduction = reduction_of("sum")
    good = data(5, 6)
    for position, bad, error in [(0, good[0].astype("f8"), TypeError), (1, good[1][:5], ValueError),
                                 (2, good[2][:, :1], ValueError), (3, np.ones((2, 1), "f4"), ValueError),
                                 (0, good[0][None, None], ValueError),
                                 (1, np.ones(3, "f4"), ValueError)]:  # fmt: skip
        arrays = list(good)
        arrays[position] = np.asarray(bad)
        with pytest.raises(error, match=f"array {position}: expected"):
            pairs.run(reduction, arrays, 5, 6)


def test_a_formula_of_rows_or_columns_or_nothing_alone():
    x, y, p = variable(0, 2, "i"), variable(1, 2, "j"), variable(2, 1, "p")
    arrays = [np.full((20, 2), 2.0), np.arange(60.0).reshape(30, 2), np.full(1, 5.0)]
    for formula in (make("exp", x), make("square", y), make("exp", p), constant(2.0), make("concat", x, p)):
        for name in ("sum", "max_argmax"):
            check(PairReduction(formula, name, dtype="float64"), arrays, 20, 30)
            check(PairReduction(formula, name, dtype="float64", rows="j"), arrays, 20, 30)


def columns_alone():
    """Formulas with much that depends on the column alone: it is computed before the pairs."""
    x, y, b, p = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "j"), variable(3, 1, "p")
    cosine = make("scalprod", make("normalize", x), make("normalize", y))
    yield make("mul", make("exp", cosine), b)
    yield make("sub", make("log", make("add", make("square", b), p)), make("sqdist", x, y))
    turned = make("sqdist", x, make("sin", make("mul", y, p)))
    yield make("mul", make("exp", make("neg", turned)), make("tanh", make("add", b, p)))
    yield make("ifelse", make("sub", make("exp", b), p), make("scalprod", x, y), b)


@pytest.mark.parametrize("rows", ["i", "j"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_depends_on_the_column_alone(dtype, rows):
    rng = np.random.default_rng(5)
    for formula in columns_alone():
        for name in ("sum", "logsumexp", "min_argmin"):
            reduction = PairReduction(formula, name, dtype=dtype, rows=rows)
            # With batches whose columns are shared, and whose parameters are not.
            for n_i, n_j, batch in [(20, 30, ()), (3, 5000, ()), (5000, 3, ()), (7, 40, (3,)), (50, 1, (2,))]:
                arrays = [rng.standard_normal((*batch, n, d)) for n, d in ((n_i, 3), (n_j, 3), (n_j, 1))]
                arrays.append(1.5 + rng.random((*batch, 1, 1)))
                arrays = [array.astype(dtype) for array in arrays]
                if batch:
                    arrays[1], arrays[2] = arrays[1][:1], arrays[2][:1]
                check(reduction, arrays, n_i, n_j, batch)


def test_it_is_computed_before_where_it_pays():
    counts = [
        CompiledReduction(PairReduction(formula, "sum"), "generic").n_prepared for formula in columns_alone()
    ]
    assert counts == [1, 1, 4, 0]


@pytest.mark.thread_unsafe(reason="threads share the processor's caches")
def test_a_repeated_call_on_a_few_points_takes_microseconds():
    import time

    reduction, arrays = reduction_of("sum"), data(10, 10)

    def one():
        begin = time.thread_time()  # not what other processes take
        for _ in range(100):
            pairs.run(reduction, arrays, 10, 10)
        return (time.thread_time() - begin) / 100

    assert min(one() for _ in range(20)) < 10e-6


def test_formulas_share_no_state():
    """What `formulas` gives is one object each time, and so is its kernel."""
    assert formulas()[3] is formulas()[3]
    assert pairs._kernel(reduction_of("sum")) is pairs._kernel(reduction_of("sum"))
