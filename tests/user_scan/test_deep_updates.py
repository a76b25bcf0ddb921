"""Updates of many operations: right, differentiable, and compiled in time that grows with their number."""

import time

import numpy as np
import pytest
import upsweep

pytest.importorskip("llvmlite")


def deep_update(depth):
    def update(h, x):
        for k in range(depth):
            h = np.tanh(h * 0.5 + x) if k % 8 == 0 else h * 0.9 + 0.1 * x
        return h

    return update


def run(depth, h, x):
    """All states, the way of Python."""
    update, states = deep_update(depth), []
    for row in x:
        h = update(h, row)
        states.append(h)
    return np.array(states)


@pytest.mark.parametrize("depth", [400, 3000])
def test_values_and_gradients(depth):
    x = np.linspace(-1, 1, 4 * 9).reshape(4, 9)
    np.testing.assert_allclose(upsweep.scan(deep_update(depth), 0.0, x), run(depth, 0.0, x), rtol=1e-12)
    if depth > 1000:
        return
    gradient = upsweep.scan.gradient(deep_update(depth), 0.0, x, np.ones_like(x)).xs
    step = 1e-6
    for t in range(len(x)):
        moved = [x.copy(), x.copy()]
        moved[0][t] -= step
        moved[1][t] += step
        low, high = (run(depth, 0.0, each).sum(0) for each in moved)
        np.testing.assert_allclose(gradient[t], (high - low) / (2 * step), rtol=1e-4, atol=1e-6)


def cpu_time_of(call):
    start = time.thread_time()
    call()
    return time.thread_time() - start


@pytest.mark.parametrize(
    "step",
    [
        lambda h, x, k: np.tanh(h + x),
        lambda h, x, k: np.sin(h) + np.exp(-h * x),
        lambda h, x, k: np.where(h > x, h * 0.5, h + x),
    ],
    ids=["tanh", "sin and exp", "where"],
)
def test_time_to_compile_grows_with_the_depth(step, monkeypatch):
    """The register allocator of LLVM takes time that grows with the square of a block's length."""
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    x = np.ones((2, 3))

    def time_of(depth):
        def scan(depth):
            def update(h, x):
                for k in range(depth):
                    h = step(h, x, k)
                return h

            return upsweep.scan(update, 0.0, x)

        return min(cpu_time_of(lambda: scan(depth)), cpu_time_of(lambda: scan(depth + 1)))

    time_of(10)
    assert time_of(800) < 3 * time_of(400)


def test_functions_that_are_called_have_the_bits_of_inlined_ones():
    """An update so long that its last functions are called; its steps one by one are short."""
    names = ("exp", "log", "sin", "cos", "tanh", "arcsin", "arccos", "arctan")
    functions = [getattr(np, name) for name in names] * 40
    x = np.random.default_rng(0).uniform(-1, 1, (3, 40))

    def all_of(_, x):
        return 0.0, tuple(function(x * (1 + 0.001 * k)) for k, function in enumerate(functions))

    outputs = upsweep.scan(all_of, 0.0, x)
    for k in (*range(8), *range(len(functions) - 8, len(functions))):
        function, factor = functions[k], 1 + 0.001 * k
        alone = upsweep.scan(lambda _, x, f=function, c=factor: (0.0, f(x * c)), 0.0, x)
        np.testing.assert_array_equal(outputs[k], alone)
