"""Steps over all states (kernels/all_states.cuh), compiled for the host, held to a loop."""

import ctypes

import numpy as np
import pytest
from host_device import compile_cpp
from reductions import SOURCES, SUPPORT
from upsweep._compiler.cuda.pairs.render import kernel_text

UNIT = """
#include "cuda_on_host.hpp"
#include "common/extended_step.cuh"
using namespace upsweep;

// What [begin, end) does to a state: cut in the middle, down to runs of `run` elements.
template <class Local>
ExtendedStep step_of(const Local* gates, const Local* x, const char* resets, int begin, int end, int run) {
    if (end - begin > run) {
        const int middle = begin + (end - begin) / 2;
        const auto first = step_of(gates, x, resets, begin, middle, run);
        return combine<Local>(first, step_of(gates, x, resets, middle, end, run));
    }
    if constexpr (sizeof(Local) == 8) {
        // Runs that begin at an even step: by OrdinaryRun, if it has their step.
        bool any_resets = begin % 2;
        OrdinaryRun ordinary;
        for (int i = begin; i < end; ++i) any_resets |= resets[i], ordinary.add(gates[i], x[i]);
        ExtendedStep step;
        if (!any_resets && ordinary.is_step(&step)) return step;
    }
    ExtendedRun<Local> steps;
    for (int i = begin; i < end; ++i) {
        if (resets[i]) steps.begin_with(x[i]);
        else steps.add(gates[i], x[i]);
    }
    return steps.step();
}
template <class Local>
double state_after(const Local* gates, const Local* x, const char* resets, int n, int run, double state) {
    Word words[ExtendedStep::kWords];
    pack(combine<Local>(ExtendedStep::none<Local>(), step_of(gates, x, resets, 0, n, run)), words);
    return unpack_extended(words).of<Local>(state);
}
extern "C" double after_double(
    const double* gates, const double* x, const char* resets, int n, int run, double state) {
    return state_after(gates, x, resets, n, run, state);
}
extern "C" double after_float(
    const float* gates, const float* x, const char* resets, int n, int run, double state) {
    return state_after(gates, x, resets, n, run, state);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extended_step")
    for source in (SOURCES / "common/steps.cuh", SOURCES / "common/extended_step.cuh"):
        (folder / "common").mkdir(exist_ok=True)
        (folder / "common" / source.name).write_text(source.read_text())
    (folder / "all_states.cuh").write_text(kernel_text("all_states"))
    for source in ("on_host.hpp", "cuda_on_host.hpp"):
        (folder / source).write_text((SUPPORT / source).read_text())
    (folder / "unit.cpp").write_text(UNIT)
    flags = ["-std=c++20", "-O1", "-shared", "-ffp-contract=off", f"-I{folder}"]
    compile_cpp(*flags, folder / "unit.cpp", "-o", folder / "steps.so")
    return ctypes.CDLL(str(folder / "steps.so"))


def combined(library, gates, x, resets, run, state):
    function = getattr(library, "after_double" if x.dtype == np.float64 else "after_float")
    function.restype = ctypes.c_double
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (gates, x, resets)]
    return function(*pointers, len(x), run, ctypes.c_double(state))


def loop(gates, x, resets, state):
    """Return the state after all steps, and the same of sizes, computed in x's dtype."""
    states = np.array([state, abs(state)]).astype(x.dtype)
    with np.errstate(all="ignore"):
        for gate, token, reset in zip(gates, x, resets):
            tokens = np.array([token, abs(token)])
            states = tokens if reset else np.array([gate, abs(gate)]) * states + tokens
    return states


def close(result, expected, size, dtype):
    if not np.isfinite(expected):
        return np.array_equal(result, expected, equal_nan=True)
    return abs(result - expected) <= 64 * np.finfo(dtype).eps * size + 8 * np.finfo(dtype).tiny


STATES = (0.0, -0.0, 1.0, -0.3, 1e-30, -1e25, np.inf, -np.inf, np.nan)


def factors(kind, rng, n, dtype):
    highest = np.finfo(dtype).maxexp
    if kind == "near 1":
        return rng.uniform(0.5, 1.5, n)
    if kind == "signs":
        return rng.uniform(-1.5, 1.5, n)
    if kind == "overflow, then vanish":
        return np.where(np.arange(n) < n // 2, 2.0 ** (highest // 8), 2.0 ** (-highest // 6))
    if kind == "vanish, then overflow":
        return np.where(np.arange(n) < n // 2, 2.0 ** (-highest // 6), 2.0 ** (highest // 8))
    if kind == "any size":
        return np.ldexp(rng.uniform(-1, 1, n), rng.integers(-highest // 2, highest // 2, n))
    return rng.choice([0.0, 1.0, -1.0, 2.0, 0.5], n)


KINDS = ("near 1", "signs", "overflow, then vanish", "vanish, then overflow", "any size", "few")


@pytest.mark.parametrize("run", [1, 4, 32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_states_after_steps_of_all_kinds(library, dtype, kind, run):
    rng = np.random.default_rng(5)
    for trial in range(150):
        n = int(rng.integers(1, 100))
        gates = factors(kind, rng, n, dtype).astype(dtype)
        x = rng.uniform(-1, 1, n) * (trial % 3 > 0)
        for _ in range(rng.integers(0, 3)):
            x[rng.integers(n)] = rng.choice([np.inf, -np.inf, np.nan, 1.0])
        for _ in range(rng.integers(0, 2)):
            gates[rng.integers(n)] = rng.choice([np.inf, -np.inf, np.nan, 0.0])
        resets = rng.random(n) < 0.01 * (trial % 2)
        x = x.astype(dtype)
        for state in STATES:
            result = combined(library, gates, x, resets, run, state)
            expected, size = loop(gates, x, resets, state)
            assert close(result, expected, size, dtype), (trial, state, result, expected, size)
