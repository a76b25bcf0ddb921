"""Reductions over pairs of vectors that are rounded to float16: the kernels on the host, and when they run."""

import host_device
import numpy as np
import pytest
from pair_cases import compare, gaussian, random_arrays, some_ranges
from upsweep._backends.cuda import pairs_launch
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._utils.lru_cache import LRUCache

pytestmark = host_device.needs_compiler
ROUNDED = 2.0**-11  # of a number, at most
REDUCTIONS = ("sum", "logsumexp", "sumsoftmaxweight", "min", "max", "argmin", "argmax", "min_argmin", "max_argmax")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def device(monkeypatch, folder):
    return host_device.install(monkeypatch, folder)


def squared(dim):
    return make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))


def reduction_of(name, dim, **settings):
    """One reduction of each name; its arrays: x, y, b."""
    formula = gaussian(dim) if name == "sum" else make("mul", constant(0.5), squared(dim))
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    return PairReduction(formula, name, weight, precision="f16", **settings)


def vectors(n_i, n_j, dim, dtype=np.float32):
    x, y, b = random_arrays(n_i, n_j, (dim, dim, 1))
    return [(x / dim**0.5).astype(dtype), (y / dim**0.5).astype(dtype), np.abs(b).astype(dtype)]


def exact_vectors(n_i, n_j, dim):
    """Points that float16 has, also relative to the kernel's centre, the mean of some rows, which is 0."""
    x, y, b = vectors(n_i, n_j, dim)
    x, y = np.round(x * 16) / 16, np.round(y * 16) / 16
    samples = x[:: -(-n_i // 32)]
    samples[1::2] = -samples[: len(samples) // 2 * 2 : 2]
    samples[len(samples) // 2 * 2 :] = 0
    return [x, y, b]


def uses_float16(prepared):
    return prepared.prepare is not None


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("capability", [90, 80])
def test_every_reduction(device, name, capability):
    """More strips of columns than stages, a part of one, and a part of a tile of rows."""
    device.capability = capability
    dim, n_i, n_j = 40, 300, 331
    arrays = exact_vectors(n_i, n_j, dim)
    reduction = reduction_of(name, dim)
    result = host_device.run(reduction, arrays, n_i, n_j)
    compare(result, reduction, arrays, n_i, n_j, tolerance=2e-5, traded=0.01)
    assert uses_float16(pairs_launch.prepare(reduction, 0))


@pytest.mark.parametrize("dim", [16, 30, 72, 128])
@pytest.mark.parametrize("axis", ["i", "j"])
def test_errors_are_those_of_rounded_numbers(device, dim, axis):
    arrays = vectors(70, 140, dim)
    for far in (0, 100):
        moved = [arrays[0] + far, arrays[1] + far]
        nearest = reduction_of("min", dim, rows=axis)
        result = host_device.run(nearest, moved, 70, 140)
        compare(result, nearest, moved, 70, 140, tolerance=2 * ROUNDED)
    (exact,) = host_device.run(PairReduction(squared(dim), "min", rows=axis), arrays[:2], 70, 140)
    assert (result[0] != exact).any()


@pytest.mark.parametrize("name", ["min_argmin", "max_argmax"])
def test_the_first_of_equal_columns(device, name):
    """In other threads, other strips and other items; NaN is the extreme of what contains it."""
    dim, n_times = 16, 7
    x, y, _ = vectors(70, 50, dim)
    y = np.repeat(y, n_times, axis=0)
    reduction = reduction_of(name, dim)
    values, at = host_device.run(reduction, [x, y], 70, len(y))
    assert (at % n_times == 0).all()
    y[[40, 13, 300], 3] = np.nan
    values, at = host_device.run(reduction, [x, y], 70, len(y))
    assert np.isnan(values).all()
    assert (at == 13).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_not_rounded(device, dtype):
    """Products of numbers that have 11 bits are exact; the sums are of float32."""
    kind = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    dim = 128
    arrays = vectors(70, 140, dim, kind)
    for name in ("argmin", "sum"):
        reduction = reduction_of(name, dim, dtype=dtype, dtype_acc="float32")
        tolerance = 1e-3 if dtype == "float16" else 8e-3  # of what is stored
        compare(host_device.run(reduction, arrays, 70, 140), reduction, arrays, 70, 140, tolerance=tolerance)


@pytest.mark.parametrize("n_slots", [1, 40])
def test_ranges_batches_and_strides(monkeypatch, folder, n_slots):
    """Columns that begin anywhere, rows without columns, items that are combined, repeated and reversed arrays."""
    host_device.install(monkeypatch, folder, n_slots)
    dim = 40
    x, y, b = vectors(300, 700, dim)
    ranges = some_ranges(np.random.default_rng(3), 300, 700, 4)
    for name in ("sum", "min_argmin"):
        reduction = reduction_of(name, dim)
        arrays = [x, y, b] if name == "sum" else [x, y]
        for over in (ranges, None):
            result = host_device.run(reduction, arrays, 300, 700, (), over)
            compare(result, reduction, arrays, 300, 700, (), over, 3 * ROUNDED, traded=0.01)
        empty = [arrays[0], *(array[:0] for array in arrays[1:])]
        compare(host_device.run(reduction, empty, 300, 0), reduction, empty, 300, 0)
    batch = [np.asfortranarray(np.stack([x[:70], 3 * x[70:140]])), y[None, 100:20:-1], b[None, :80]]
    reduction = reduction_of("sum", dim)
    result = host_device.run(reduction, batch, 70, 80, (2,))
    compare(result, reduction, batch, 70, 80, (2,), tolerance=3 * ROUNDED)


@pytest.mark.parametrize("special", [np.inf, np.nan])
@pytest.mark.parametrize("of_rows", [False, True])
def test_special_values_stay_with_their_vector(device, special, of_rows):
    dim = 40
    x, y, _ = vectors(70, 80, dim)
    (x if of_rows else y)[4, 35] = special
    product = make("scalprod", variable(0, dim, "i"), variable(1, dim, "j"))
    with np.errstate(invalid="ignore"):
        for formula in (product, make("sqdist", *product.args)):
            reduction = PairReduction(formula, "argmax", precision="f16")
            (result,) = host_device.run(reduction, [x, y], 70, 80)
            exact = (
                x.astype(float) @ y.T.astype(float)
                if formula is product
                else ((x.astype(float)[:, None] - y) ** 2).sum(-1)
            )
            rows = np.arange(70) != 4 if of_rows else np.isnan(exact).any(1) | (exact == np.inf).any(1)
            chosen = exact[np.arange(70), result[:, 0]][rows]
            largest = exact.max(1)[rows]
            np.testing.assert_allclose(chosen, largest, rtol=4 * ROUNDED, atol=4 * ROUNDED)


@pytest.mark.parametrize("row_scale, column_scale", [(1e25, 1e-25), (1e-30, 1e30), (1e18, 1e18), (1e-18, 1e-18)])
def test_each_vector_has_its_own_scale(device, row_scale, column_scale):
    dim = 32
    x, y, _ = vectors(70, 80, dim)
    x, y = np.float32(row_scale) * x, np.float32(column_scale) * y
    x[::3] *= np.float32(1e-6)
    product = make("scalprod", variable(0, dim, "i"), variable(1, dim, "j"))
    for name, rows in (("max", "i"), ("min", "j")):
        reduction = PairReduction(product, name, rows=rows, precision="tf32")
        (result,) = host_device.run(reduction, [x, y], 70, 80)
        exact = x.astype(float) @ y.T.astype(float)
        size = np.linalg.norm(x.astype(float), axis=1)[:, None] * np.linalg.norm(y.astype(float), axis=1)
        at = exact.argmax(1) if name == "max" else exact.argmin(0)
        chosen = (np.arange(70), at) if name == "max" else (at, np.arange(80))
        assert (np.abs(result[:, 0] - exact[chosen]) <= 2 * ROUNDED * size[chosen]).all()


@pytest.mark.parametrize(
    "dim, settings",
    [
        (12, {}), (200, {}), (40, {"dtype": "float64"}), (40, {"reduction": "argkmin", "k": 3}),
        (40, {"precision": "split"}), (40, {"precision": "ieee"}),
    ],
)  # fmt: skip
def test_what_has_no_such_kernel_runs_one_that_is_more_exact(device, dim, settings):
    settings = {"reduction": "min", "precision": "f16", **settings}
    reduction = PairReduction(squared(dim), **settings)
    arrays = [array.astype(settings.get("dtype", "float32")) for array in vectors(70, 80, dim)[:2]]
    compare(host_device.run(reduction, arrays, 70, 80), reduction, arrays, 70, 80, tolerance=1e-6)
    kernels = pairs_launch.prepare(reduction, 0)
    assert not uses_float16(kernels)
    by_tensor_cores = dim > 12 and settings["precision"] != "ieee" and reduction.dtype == "float32"
    assert (kernels.kernels.product is not None) == by_tensor_cores


def test_instructions_of_one_capability_are_compiled_for_it_alone(device):
    for capability, expected in ((90, True), (80, False), (100, False)):
        device.capability = capability
        pairs_launch._prepared = LRUCache(4)
        options = pairs_launch.prepare(reduction_of("min", 16), 0).kernels.options
        assert ("--gpu-architecture=sm_90a" in options) == expected
