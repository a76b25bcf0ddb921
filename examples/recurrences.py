"""Recurrences with `te`: described once, scheduled, shown as loops, run on arrays of any size.

    python examples/recurrences.py

needs llvmlite (pip install "upsweep[expr]").
"""

import time

import numpy as np
from upsweep import te


def cumulative_sum():
    """The sum over the rows before, column by column, on the axes of a GPU's grid: here threads and vectors."""
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    result = te.scan(init, update, state, inputs=[X], name="sums")
    s = te.create_schedule(result.op)
    for stage in (init, update):
        outer, inner = s[stage].split(stage.op.axis[1], factor=256)
        s[stage].bind(outer, te.thread_axis("blockIdx.x"))
        s[stage].bind(inner, te.thread_axis("threadIdx.x"))
    print(te.lower(s, [X, result], simple_mode=True))
    return te.build(s, [X, result])


def recurrent_network(hidden):
    """h[t] = tanh(h[t-1] W + X[t]) for a batch."""
    T, B = te.var("T"), te.var("B")
    X = te.placeholder((T, B, hidden), name="X")
    W = te.placeholder((hidden, hidden), name="W")
    h = te.placeholder((T, B, hidden), name="h")
    k = te.reduce_axis((0, hidden), "k")
    product = te.compute((T, B, hidden), lambda t, b, j: te.sum(h[t - 1, b, k] * W[k, j], axis=k), name="product")
    update = te.compute((T, B, hidden), lambda t, b, j: te.tanh(product[t, b, j] + X[t, b, j]))
    init = te.compute((1, B, hidden), lambda _, b, j: X[0, b, j])
    result = te.scan(init, update, h, inputs=[X, W], name="network")
    s = te.create_schedule(result.op)
    print(te.lower(s, [X, W, result]))
    return te.build(s, [X, W, result])


def main():
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(10, 1000)).astype("float32")
    np.testing.assert_allclose(cumulative_sum()(x), np.cumsum(x, axis=0), rtol=1e-5)

    run = recurrent_network(128)
    x = generator.normal(size=(100, 256, 128)).astype("float32")
    w = (generator.normal(size=(128, 128)) / 12).astype("float32")
    begin = time.perf_counter()
    result = run(x, w)
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    expected = x.copy()
    for t in range(1, len(x)):
        expected[t] = np.tanh(expected[t - 1] @ w + x[t])
    numpy_seconds = time.perf_counter() - begin
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    times = f"{1e3 * seconds:.1f} ms; numpy, step by step: {1e3 * numpy_seconds:.1f} ms"
    print(f"100 steps, batch 256, 128 hidden: {times}")


if __name__ == "__main__":
    main()
