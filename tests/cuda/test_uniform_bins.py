"""Hazard: thresholds and edges that a device computes (bincount/uniform.cuh) with other bits than the CPU's."""

import ctypes
import math

import numpy as np
import pytest
from helpers import BFLOAT16, same_bits
from host_device import compile_cpp
from reductions import SOURCES, SUPPORT
from upsweep._backends import cpu
from upsweep._backends.cuda import abi
from upsweep._core import bin_thresholds, histogram

UNIT = """
#include "cuda_on_host.hpp"
#include "bincount/uniform.cuh"
using namespace upsweep;
template <class K>
void fill(const UniformProblem& u) {
    for (int64_t k = 0; k <= u.n_bins; ++k) static_cast<K*>(u.thresholds)[k] = uniform_threshold<K>(u, k);
}
extern "C" void thresholds(int rule, int edge_dtype, int step_dtype, double first, double last, double step,
                           int64_t n_bins, void* result, void* edges, int is_float) {
    const UniformProblem u = {rule, edge_dtype, step_dtype, first, last, step, n_bins, result, edges};
    if (is_float) fill<float>(u);
    else fill<double>(u);
}
"""
pytestmark = pytest.mark.filterwarnings("ignore:overflow")

FLOATS = [np.dtype(name) for name in ("float32", "float64")]
NUMBERS = [*FLOATS, *map(np.dtype, ("float16", BFLOAT16, "int8", "uint16", "int32", "int64", "uint64"))]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uniform")
    (folder / "unit.cpp").write_text(UNIT)
    includes = [f"-I{path}" for path in (SUPPORT, SOURCES, SOURCES / "include", SOURCES.parent / "src")]
    compile_cpp("-O2", "-march=x86-64-v3", "-shared", "-ffp-contract=off", *includes, folder / "unit.cpp",
                "-o", folder / "uniform.so")  # fmt: skip
    return ctypes.CDLL(str(folder / "uniform.so"))


def on_device(library, bins, key):
    thresholds, edges = np.empty(bins.n_bins + 1, key), np.empty(bins.n_bins + 1, bins.edge_dtype or key)
    rule = abi.HISTC if bins.edge_dtype is None else abi.HISTOGRAM
    library.thresholds(
        rule, abi.DTYPES[edges.dtype.name], abi.DTYPES[bins.step_dtype.name], ctypes.c_double(bins.first),
        ctypes.c_double(bins.last), ctypes.c_double(bins.step), ctypes.c_int64(bins.n_bins),
        ctypes.c_void_p(thresholds.ctypes.data), ctypes.c_void_p(edges.ctypes.data), key == np.float32,
    )  # fmt: skip
    return thresholds, edges


def ranges(generator, n):
    """Ranges of all sizes, at all distances from 0, with ends of Python's and numpy's types."""
    fixed = [(0, 1), (-1, 1), (0.0, 1.0), (-3, 4.5), (1e-45, 3e-44), (-1e-310, 1e-310), (1.0, 1.0 + 2e-7),
             (-1e38, 1e38), (-3e38, 3e38), (0.0, 1e300), (1e8, 1e8 + 64), (-(2**60), 2**60 + 1),
             (2**53 - 5, 2**53 + 5)]  # fmt: skip
    types = (float, float, np.float32, np.float64, int)
    for _ in range(n):
        center, width = generator.normal(0, 1, 2) * 2.0 ** generator.integers(-150, 130, 2)
        center = 0.0 if generator.random() < 0.3 else center
        low, high = (generator.choice(types)(end) for end in (center - abs(width), center + abs(width)))
        fixed.append((low, type(low)(high) if generator.random() < 0.7 else high))
    return [(low, high) for low, high in fixed if low < high and all(map(math.isfinite, (low, high)))]


def test_histogram_has_numpys_edges_and_the_thresholds_of_the_cpu(library):
    generator, n_uniform = np.random.default_rng(0), 0
    for bin_range in ranges(generator, 1500):
        n_bins = int(generator.choice([1, 2, 3, 7, 10, 100, 1000, 3001]))
        for dtype in NUMBERS:
            x = np.zeros(1, dtype)
            try:
                _, bins = histogram.uniform_edges(x, n_bins, bin_range, None, None, False)
            except (ValueError, TypeError):
                continue  # so does the call on the CPU, by the same statement
            if not isinstance(bins, bin_thresholds.UniformBins):
                continue
            n_uniform += 1
            edges, expected = histogram.uniform_edges(x, n_bins, bin_range, None, None, True)
            thresholds, device_edges = on_device(library, bins, bin_thresholds.key_dtype(dtype))
            assert same_bits(device_edges, edges), (bin_range, n_bins, dtype)
            assert same_bits(thresholds, expected), (bin_range, n_bins, dtype)
    assert n_uniform > 2000


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_histc_has_the_thresholds_of_the_cpu(library, dtype):
    generator = np.random.default_rng(1)
    for low, high in ranges(generator, 500):
        with np.errstate(all="ignore"):
            ends = np.array([low, high], dtype)
            if not (ends[0] < ends[1] and np.isfinite(ends[1] - ends[0])):
                continue
        n_bins = int(generator.choice([1, 2, 3, 10, 77, 1000]))
        expected = np.empty(n_bins + 1, dtype)
        cpu.histograms.find_linear_thresholds(ends, expected)
        bins = bin_thresholds.UniformBins(float(ends[0]), float(ends[1]), n_bins)
        assert same_bits(on_device(library, bins, dtype)[0], expected), (ends, n_bins)


def test_usual_bins_are_left_to_the_device():
    for dtype in (*FLOATS, np.dtype(np.int16), np.dtype(np.int32)):
        for n_bins in (1, 100, 10_000, 100_000):
            for bin_range in ((0, 1), (0.0, 255.5), (-3.0, 3.0), (np.float64(-1), np.float64(5))):
                _, bins = histogram.uniform_edges(np.zeros(1, dtype), n_bins, bin_range, None, None, False)
                assert isinstance(bins, bin_thresholds.UniformBins), (dtype, n_bins, bin_range)
