"""The text of kernels over pairs, compiled by the C++ compiler and run on the host, against the reference."""

import re

import host_device
import numpy as np
import pytest
from formulas import CASES, KIND_OF, N, case_arrays
from pair_cases import (
    check_neighbours_of_far_vectors,
    check_products_of_scales,
    compare,
    distance,
    gaussian,
    named_formulas,
    of_name,
    random_arrays,
    some_ranges,
)
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.pairs import render as pairs_render
from upsweep._compiler.cuda.pairs import sizes
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction
from upsweep.pairs.block_intervals import BlockIntervals

pytestmark = host_device.needs_compiler


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def device(monkeypatch, folder):
    return host_device.install(monkeypatch, folder)


def check(reduction, arrays, n_i, n_j, batch=(), ranges=None, tolerance=1e-5):
    result = host_device.run(reduction, arrays, n_i, n_j, batch, ranges)
    compare(result, reduction, arrays, n_i, n_j, batch, ranges, tolerance)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("n_i, n_j", [(5, 7), (300, 517), (1, 1), (130, 1), (2, 1300)])
def test_every_reduction(device, name, n_i, n_j):
    check(of_name(name), random_arrays(n_i, n_j), n_i, n_j)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "min_argmin", "kmin"])
def test_other_dtypes(device, name, dtype):
    reduction = PairReduction(
        gaussian() if name == "sum" else distance(), name, k=3 * (name == "kmin"), dtype=np.dtype(dtype).name,
        dtype_acc="float64" if dtype == np.float64 else "float32",
    )  # fmt: skip
    check(
        reduction, random_arrays(140, 300, dtype=dtype), 140, 300, tolerance=1e-12 if dtype == np.float64 else 2e-3
    )


def test_bfloat16(device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = random_arrays(140, 300, dtype=ml_dtypes.bfloat16)
    check(
        PairReduction(gaussian(), "sum", dtype="bfloat16", dtype_acc="float32"), arrays, 140, 300, tolerance=1e-2
    )


def test_sums_kept_in_float32(device):
    check(PairReduction(gaussian(), "sum", dtype_acc="float32"), random_arrays(30, 900), 30, 900)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "argmin"])
def test_along_the_other_axis(device, name):
    check(
        PairReduction(gaussian() if name == "sum" else distance(), name, rows="j"),
        random_arrays(300, 140),
        300,
        140,
    )


@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("name, formula", list(named_formulas()), ids=[name for name, _ in named_formulas()])
def test_sums_of_formulas(device, name, formula, axis):
    rng = np.random.default_rng(1)
    shapes = [(45, 3), (70, 3), (70, 1), (1, 1), (45, 3)]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays[3] = np.abs(arrays[3])
    check(PairReduction(formula, "sum", rows=axis), arrays, 45, 70, tolerance=1e-4)


@pytest.mark.parametrize("dim, axis", [(33, "i"), (33, "j"), (132, "i")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_vectors(device, dim, axis, dtype):
    x, y = variable(0, dim, "i"), variable(1, dim, "j")
    arrays = [0.3 * array for array in random_arrays(40, 30, (dim, dim), dtype)]
    name = np.dtype(dtype).name
    for formula in (
        make("mul", make("exp", make("neg", make("sqdist", x, y))), y),
        make("mul", make("exp", make("scalprod", x, y)), make("sqdist", x, y)),
        make("add", make("sin", x), make("mul", x, make("norm2", y))),
    ):
        check(PairReduction(formula, "sum", rows=axis, dtype=name), arrays, 40, 30, tolerance=2e-5)
    check(PairReduction(make("sqdist", x, y), "argkmin", rows=axis, k=4, dtype=name), arrays, 40, 30)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_ranges(device, name, seed):
    rng = np.random.default_rng(seed)
    n_i, n_j = ((60, 90), (900, 1100), (2000, 3000))[seed]
    ranges = some_ranges(rng, n_i, n_j, (4, 7, 3)[seed])
    check(of_name(name), random_arrays(n_i, n_j), n_i, n_j, ranges=ranges, tolerance=2e-5)


@pytest.mark.parametrize("ranged", [False, True])
def test_batches(device, ranged):
    rng = np.random.default_rng(0)
    shapes = [(3, 1, 40, 3), (2, 60, 3), (3, 2, 60, 1)]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    each = [some_ranges(rng, 40, 60, 3) for _ in range(6)]
    for ranges in (each[0], each) if ranged else (None,):
        check(PairReduction(gaussian(), "sum"), arrays, 40, 60, (3, 2), ranges)


def test_strides(device):
    x, y, b = random_arrays(80, 90)
    check(
        PairReduction(gaussian(), "sum"),
        [x[::-2], np.asfortranarray(y)[5:], np.broadcast_to(b[3], (85, 1))],
        40,
        85,
    )


@pytest.mark.parametrize("n_slots", [1, 3, 40])
def test_columns_are_cut_and_combined_in_order(monkeypatch, folder, n_slots):
    device = host_device.install(monkeypatch, folder, n_slots)
    arrays = random_arrays(200, 3000)
    for name in REDUCTIONS:
        check(of_name(name), arrays, 200, 3000)
    assert device is not None


@pytest.mark.parametrize("name", REDUCTIONS)
def test_no_columns(device, name):
    check(of_name(name), random_arrays(40, 0), 40, 0)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values(device, name, special):
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    x, y, b = random_arrays(40, 300)
    b[[7, 250]], b[100:103] = special, -special
    formula = variable(2, 1, "j")
    check(PairReduction(formula, name, weight, k=7 if "kmin" in name else 0), [x, y, b], 40, 300)
    b[:] = special
    check(PairReduction(formula, name, weight, k=7 if "kmin" in name else 0), [x, y, b], 40, 300)


def test_a_maximum_that_rises(monkeypatch, folder):
    host_device.install(monkeypatch, folder, n_slots=1)  # one item meets all columns
    b = np.linspace(-2000, 3000, 700, dtype=np.float32)[:, None]
    x, y, _ = random_arrays(40, 700)
    for one in (b, b[::-1].copy()):
        check(PairReduction(variable(2, 1, "j"), "logsumexp"), [x, y, one], 40, 700)


@pytest.mark.parametrize("dim", [3, 40])
def test_points_far_from_the_origin(device, dim):
    x, y, b = random_arrays(300, 500, (dim, dim, 1))
    arrays = [x / dim**0.5 + 1000, y / dim**0.5 + 1000, np.abs(b)]
    check(PairReduction(gaussian(dim), "sum"), arrays, 300, 500)


@pytest.mark.parametrize("dim", [64, 100, 250])
@pytest.mark.parametrize("far", [0, 30])
def test_long_dims(device, dim, far):
    """One and several turns, whole and broken steps of the tensor cores; more rows and columns than a tile."""
    x, y, b = random_arrays(140, 70, (dim, dim, 1))
    x, y, b = x / dim**0.5 + far, y / dim**0.5 + far, np.abs(b)
    check(PairReduction(gaussian(dim), "sum"), [x, y, b], 140, 70, tolerance=3e-6)
    nearest = PairReduction(make("sqdist", variable(0, dim, "i"), variable(1, dim, "j")), "kmin", k=5)
    check(nearest, [x, y], 140, 70, tolerance=1e-6)


@pytest.mark.parametrize("size, value", [("THREADS", 256), ("SUMMED", 32)])
def test_other_sizes_for_long_vectors(device, monkeypatch, size, value):
    monkeypatch.setattr(sizes, size, value)
    dim = 72  # an odd number of steps
    x, y, b = random_arrays(260, 200, (dim, dim, 1))
    x, y, b = x / dim**0.5, y / dim**0.5, np.abs(b)
    check(PairReduction(gaussian(dim), "sum"), [x, y, b], 260, 200, tolerance=3e-6)
    nearest = PairReduction(make("sqdist", variable(0, dim, "i"), variable(1, dim, "j")), "kmin", k=5)
    check(nearest, [x, y], 260, 200, tolerance=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_vectors_of_half_precision(device, dtype):
    dim = 45
    kind = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    x, y, b = (array.astype(kind) for array in random_arrays(70, 140, (dim, dim, 1)))
    settings = {"dtype": dtype, "dtype_acc": "float32"}
    tolerance = 1e-3 if dtype == "float16" else 8e-3  # of what is stored
    check(PairReduction(gaussian(dim, 0.02), "sum", **settings), [x, y, b], 70, 140, tolerance=tolerance)
    distance = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
    check(PairReduction(distance, "argkmin", k=1, **settings), [x, y], 70, 140)


@pytest.mark.parametrize("dim", [37, 40])
def test_long_vectors_with_strides(device, dim):
    """Rows and components apart, in reverse, repeated; a base that is not aligned."""
    x, y, b = random_arrays(160, 181, (dim + 1, dim, 1))
    x, y, b = x[::-2, 1:] / dim**0.5, np.asfortranarray(y)[1:] / dim**0.5, np.abs(b[1:])
    check(PairReduction(gaussian(dim), "sum"), [x, y, b], 80, 180)
    check(PairReduction(gaussian(dim), "sum"), [np.broadcast_to(x[3], (80, dim)), y[:, ::-1], b], 80, 180)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_reduction_of_long_vectors(device, name):
    """With ranges whose rows and columns are parts of tiles, and rows or columns that are not there."""
    dim = 40
    x, y, b = random_arrays(300, 200, (dim, dim, 1))
    distance = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
    formula = make("exp", make("neg", distance)) if name == "sum" else make("mul", constant(1 / dim), distance)
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    ranges = some_ranges(np.random.default_rng(3), 300, 200, 4)
    reduction = PairReduction(formula, name, weight, k=3 if "kmin" in name else 0)
    check(reduction, [x / 4, y / 4, b], 300, 200, ranges=ranges)
    check(reduction, [x / 4, y[:0], b[:0]], 300, 0)


@pytest.mark.parametrize("dim", [36, 150])
@pytest.mark.parametrize("row_scale, column_scale", [(1e25, 1e-25), (1e-30, 1e30), (1e18, 1e18), (1e-18, 1e-18)])
def test_products_of_huge_and_tiny_vectors(device, dim, row_scale, column_scale):
    check_products_of_scales(host_device.run, dim, row_scale, column_scale)


def test_a_vector_far_away_takes_no_bits_of_others(device):
    check_neighbours_of_far_vectors(host_device.run, 40)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("of_rows", [False, True])
def test_special_values_in_long_vectors(device, special, of_rows):
    """They reach what they are part of, and nothing else."""
    dim, n = 36, 12
    x, y, _ = random_arrays(n, n, (dim, dim, 1))
    (x if of_rows else y)[4, 35] = special
    product = make("scalprod", variable(0, dim, "i"), variable(1, dim, "j"))
    with np.errstate(invalid="ignore"):
        for formula, exact in (
            (product, x.astype(np.float64) @ y.T.astype(np.float64)),
            (make("sqdist", *product.args), ((x.astype(np.float64)[:, None] - y) ** 2).sum(-1)),
        ):
            (result,) = host_device.run(PairReduction(formula, "kmin", k=n), [x, y], n, n)
            finite = np.isfinite(exact)
            assert (np.isfinite(result).sum(1) == finite.sum(1)).all()
            for row in range(n):
                expected = np.sort(exact[row][finite[row]])
                np.testing.assert_allclose(result[row, : len(expected)], expected, rtol=1e-5, atol=1e-4)


def test_factors_of_rows_without_columns(device):
    """What is infinite a row and was taken out of the sum: 0 times it is no sum over nothing."""
    formula = make(
        "mul", make("exp", variable(0, 1, "i")), make("exp", make("mul", variable(0, 1, "i"), variable(1, 1, "j")))
    )
    x, y = np.full((9, 1), 200, np.float32), np.zeros((4, 1), np.float32)
    rows = BlockIntervals(np.array([[2, 3], [5, 8]]), np.array([1, 1]), np.array([[0, 4]]))
    (result,) = host_device.run(PairReduction(formula, "sum"), [x, y], 9, 4, (), rows)
    assert np.isinf(result[2, 0])
    assert not np.delete(result, 2).any()
    assert not host_device.run(PairReduction(formula, "sum"), [x, y[:0]], 9, 0)[0].any()


@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_vectors_behind_others(device, axis, dtype):
    """The squared distance begins at another place in the rows' record than in the columns'."""
    u, x, y = variable(0, 5, "i"), variable(1, 40, "i"), variable(2, 44, "j")
    distance = make("sqdist", x, make("extract", y, static=(2, 40)))
    formula = make("mul", make("sum", u), make("exp", make("neg", distance)))
    arrays = [0.3 * array for array in random_arrays(20, 30, (5, 40, 44), dtype)]
    arrays = [arrays[0], arrays[1], np.concatenate([arrays[2], arrays[2]])[:30]]
    arrays[1] = np.concatenate([arrays[1]] * 2)[:20]
    check(PairReduction(formula, "sum", rows=axis, dtype=dtype), arrays, 20, 30)
    if axis == "j":  # a result of more features has loops
        longer = make("mul", formula, make("concat", y, y))
        check(PairReduction(longer, "sum", rows=axis, dtype=dtype), arrays, 20, 30)


TOGETHER = 12  # cases in one formula, since a compiler takes its time


@pytest.mark.parametrize("first", range(0, len(CASES), TOGETHER))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_operation(device, first, dtype):
    arrays, parts = [], []
    for case in CASES[first : first + TOGETHER]:
        name, dims, static, _ = case
        of_case = [variable(len(arrays) + n, dim, KIND_OF[n]) for n, dim in enumerate(dims)]
        arrays += [array.astype(dtype) for array in case_arrays(case)]
        parts.append(make(name, *of_case, static=static))
    formula = parts[0]
    for part in parts[1:]:
        formula = make("concat", formula, part)
    reduction = PairReduction(formula, "sum", dtype=dtype)
    check(reduction, arrays, N["i"], N["j"], tolerance=1e-12 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("dim", [70, 150])
@pytest.mark.parametrize("axis", ["i", "j"])
def test_loops_at_every_level(device, dim, axis):
    x, y, p = variable(0, dim, "i"), variable(1, dim, "j"), variable(2, dim, "p")
    arrays = [0.2 * array for array in random_arrays(30, 20, (dim, dim, dim))]
    arrays[2] = arrays[2][0]
    for formula in (
        make("mul", make("normalize", x), make("norm2", make("mul", y, p))),
        make("mul", make("sum", make("sin", make("add", x, y))), make("exp", make("mul", x, p))),
        make("extract", make("concat", make("square", x), make("sub", y, p)), static=(dim - 7, 20)),
        make("add", make("argmax", make("mul", x, y)), make("elem", make("exp", make("add", x, y)), static=(3,))),
    ):
        check(PairReduction(formula, "sum", rows=axis), arrays, 30, 20, tolerance=1e-4)
    check(PairReduction(make("sum", make("exp", make("mul", x, y))), "logsumexp", rows=axis), arrays, 30, 20)


def test_a_column_too_large_is_refused(device):
    dim = 13_000
    x, y = variable(0, dim, "i"), variable(1, dim, "j")
    arrays = random_arrays(2, 2, (dim, dim))
    message = r"reads 13000 numbers of each column is too large for CUDA.* 12288 of float32"
    with pytest.raises(ValueError, match=message):
        host_device.run(PairReduction(make("sqdist", x, y), "sum"), arrays, 2, 2)


@pytest.mark.parametrize("scale", [0.0, -0.5, 0.5, np.nan])
def test_a_scale_of_any_sign(device, scale):
    formulas_of = dict(named_formulas())
    arrays = [*random_arrays(20, 30), np.full((1, 1), scale, np.float32), random_arrays(20, 1)[0]]
    for name in ("parameter", "parameter's gradient"):
        check(PairReduction(formulas_of[name], "sum"), arrays, 20, 30, tolerance=1e-4)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "sumsoftmaxweight"])
@pytest.mark.parametrize("far_rows", [False, True])
def test_columns_near_and_far_in_turn(monkeypatch, folder, name, far_rows):
    """Where a block of columns is near its distances are expanded, with rows that are doubled meanwhile."""
    host_device.install(monkeypatch, folder, n_slots=1)  # one item meets all columns
    x, y, b = random_arrays(150, 700)
    y[128:256] *= 20
    y[512:600] += 15
    if far_rows:
        x[40] = 30
    check(of_name(name), [x, y, np.abs(b)], 150, 700, tolerance=3e-5)


def near_arrays(n_i, n_j, dim, norm):
    """Points whose squared norms, relative to the first row and with the kernel's scale, are up to `norm`."""
    rng = np.random.default_rng(2)
    x, y = (rng.normal(size=(n, dim)) for n in (n_i, n_j))
    x[0] = 0
    for points in (x[1:], y):
        points *= (rng.uniform(0, 1, len(points)) * norm / (points**2).sum(1))[:, None] ** 0.5
    scale = np.log2(np.e) ** -0.5  # of exp(-|x - y|^2)
    return (x * scale).astype(np.float32), (y * scale).astype(np.float32)


def tiles_of(monkeypatch, n_polynomials=None):
    """Collect the sizes of the kernels that are compiled; fix how many of 16 powers of 2 are polynomials."""
    sizes, compiled = [], nvrtc.fetch_or_compile

    def collect(text, *args):
        sizes.append({name: int(v) for name, v in re.findall(r"constexpr int (\w+) = (\d+);", text)})
        return compiled(text, *args)

    monkeypatch.setattr(nvrtc, "fetch_or_compile", collect)
    if n_polynomials is not None:
        monkeypatch.setattr(pairs_render, "_polynomials", lambda n: (1 << n_polynomials) - 1)
    return sizes


@pytest.mark.parametrize("dim", [3, 4, 5, 6])
@pytest.mark.parametrize("n_polynomials", [0, 16])
def test_near_pairs_one_by_one(device, monkeypatch, dim, n_polynomials):
    """Every power of 2 within what an exponent wrong by 2^-17 makes of it, at the border of what is near."""
    sizes, n = tiles_of(monkeypatch, n_polynomials), 8
    x, y = near_arrays(200, n, dim, 30.9)
    y[4] = x[7]
    distance = make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))
    formula = make("mul", make("exp", make("neg", distance)), variable(2, n, "j"))
    squares = ((x.astype(np.float64)[:, None] - y) ** 2).sum(-1)
    (result,) = host_device.run(PairReduction(formula, "sum"), [x, y, np.eye(n, dtype=np.float32)], 200, n)
    assert {each["NEAR_POINTS"] for each in sizes} == {dim}
    errors = abs(result / np.exp(-squares) - 1)
    assert errors.max() < 2e-5  # coordinates times the scale are rounded, too
    assert errors[squares < 8].max() < 2**-17


@pytest.mark.parametrize("n_i, rows", [(100, 1), (1100, 2), (1100, 4)])
@pytest.mark.parametrize("norm", [3.0, 30.9])
def test_sums_of_near_pairs(device, monkeypatch, n_i, rows, norm):
    """Columns that are no whole tiles, and more of them than a lane adds before its sums become wide."""
    sizes = tiles_of(monkeypatch)
    x, y = near_arrays(n_i, 1300, 3, norm)
    dim = {1: 8, 2: 4, 4: 1}[rows]
    b = np.random.default_rng(3).uniform(1, 2, (1300, dim)).astype(np.float32)
    distance = make("sqdist", variable(0, 3, "i"), variable(1, 3, "j"))
    formula = make("mul", make("exp", make("neg", distance)), variable(2, dim, "j"))
    check(PairReduction(formula, "sum"), [x, y, b], n_i, 1300, tolerance=3e-6)
    assert [(each["NEAR_POINTS"], each["ROWS"]) for each in sizes][:1] == [(3, rows)]
    ranges = some_ranges(np.random.default_rng(4), n_i, 1300, 5)
    check(PairReduction(formula, "sum"), [x, y, b], n_i, 1300, (), ranges)


def test_a_narrow_kernel_keeps_differences(device):
    """Points far from each other in units of the kernel: an expanded distance would have lost them."""
    rng = np.random.default_rng(0)
    x, y, b = random_arrays(300, 300)
    y = (x + 0.01 * rng.normal(size=x.shape)).astype(np.float32)
    check(PairReduction(gaussian(3, 3000.0), "sum"), [x, y, 1 + np.abs(b)], 300, 300, tolerance=2e-5)
