"""Recurrent cells with matrix products, as programs of te; and what they compute, by numpy."""

import numpy as np
from upsweep import te


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn(hidden, dtype="float32"):
    T, B = te.var("T"), te.var("B")
    X = te.placeholder((T, B, hidden), dtype, "X")
    W = te.placeholder((hidden, hidden), dtype, "W")
    h = te.placeholder((T, B, hidden), dtype, "h")
    k = te.reduce_axis((0, hidden), "k")
    product = te.compute((T, B, hidden), lambda t, b, j: te.sum(h[t - 1, b, k] * W[k, j], axis=k), name="product")
    update = te.compute((T, B, hidden), lambda t, b, j: te.tanh(product[t, b, j] + X[t, b, j]))
    init = te.compute((1, B, hidden), lambda _, b, j: X[0, b, j])
    return X, W, product, te.scan(init, update, h, inputs=[X, W])


def lstm(hidden=None, batch=None):
    """Sizes and tensors of an LSTM whose gates are in the order forget, input, candidate, output."""
    T, D = te.var("T"), te.var("D")
    B, H = te.var("B") if batch is None else batch, te.var("H") if hidden is None else hidden
    X = te.placeholder((T, B, D), name="X")
    Wx, Wh = te.placeholder((4, D, H), name="Wx"), te.placeholder((4, H, H), name="Wh")
    c, h = te.placeholder((T, B, H), name="c"), te.placeholder((T, B, H), name="h")
    zero = [te.compute((1, B, H), lambda *_: 0.0) for _ in range(2)]
    d, k = te.reduce_axis((0, D), "d"), te.reduce_axis((0, H), "k")
    of_x = te.compute((T, B, 4, H), lambda t, b, g, j: te.sum(X[t, b, d] * Wx[g, d, j], axis=d), name="of_x")
    of_h = te.compute((T, B, 4, H), lambda t, b, g, j: te.sum(h[t - 1, b, k] * Wh[g, k, j], axis=k), name="of_h")
    gates = te.compute((T, B, 4, H), lambda t, b, g, j: of_x[t, b, g, j] + of_h[t, b, g, j], name="gates")

    def gate(g):
        return lambda t, b, j: te.sigmoid(gates[t, b, g, j])

    new_c = te.compute(
        (T, B, H),
        lambda t, b, j: gate(0)(t, b, j) * c[t - 1, b, j] + gate(1)(t, b, j) * te.tanh(gates[t, b, 2, j]),
        name="new_c",
    )
    new_h = te.compute((T, B, H), lambda t, b, j: gate(3)(t, b, j) * te.tanh(new_c[t, b, j]), name="new_h")
    cells, outputs = te.scan(zero, [new_c, new_h], [c, h], inputs=[X, Wx, Wh])
    return T, B, D, H, X, Wx, Wh, cells, outputs


def lstm_by_hand(x, wx, wh):
    """All cells and outputs, in float64."""
    shape = (len(x), x.shape[1], wh.shape[-1])
    state_c, state_h = np.zeros(shape), np.zeros(shape)
    for t in range(1, len(x)):
        f, i, g, o = (x[t] @ wx[n] + state_h[t - 1] @ wh[n] for n in range(4))
        state_c[t] = sigmoid(f) * state_c[t - 1] + sigmoid(i) * np.tanh(g)
        state_h[t] = sigmoid(o) * np.tanh(state_c[t])
    return state_c, state_h


def gru(hidden):
    """Tensors of a GRU in float64."""
    T, B, H = te.var("T"), te.var("B"), hidden
    X = te.placeholder((T, B, 3, H), "float64", "X")
    W = te.placeholder((3, H, H), "float64", "W")
    h = te.placeholder((T, B, H), "float64", "h")
    k, q = te.reduce_axis((0, H), "k"), te.reduce_axis((0, H), "q")
    init = te.compute((1, B, H), lambda *_: 0.0)
    pre = te.compute((T, B, 2, H), lambda t, b, g, j: te.sum(h[t - 1, b, k] * W[g, k, j], axis=k), name="pre")
    rz = te.compute((T, B, 2, H), lambda t, b, g, j: te.sigmoid(pre[t, b, g, j] + X[t, b, g, j]), name="rz")
    reset_state = te.compute((T, B, H), lambda t, b, j: rz[t, b, 0, j] * h[t - 1, b, j], name="kept")
    cand = te.compute((T, B, H), lambda t, b, j: te.sum(reset_state[t, b, q] * W[2, q, j], axis=q), name="cand")
    update = te.compute(
        (T, B, H),
        lambda t, b, j: (
            rz[t, b, 1, j] * h[t - 1, b, j] + (1 - rz[t, b, 1, j]) * te.tanh(cand[t, b, j] + X[t, b, 2, j])
        ),
    )
    scan = te.scan(init, update, h, inputs=[X, W])
    return X, W, scan


def diagonals():
    """Sums along diagonals: the schedule on a device, where a step needs other blocks, and the tensors."""
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: te.if_then_else(i > 0, state[t - 1, i - 1], 0.0) + X[t, i])
    scan = te.scan(init, update, state)
    schedule = te.create_schedule(scan.op)
    outer, inner = schedule[update].split(update.op.axis[1], factor=128)
    schedule[update].bind(outer, te.thread_axis("blockIdx.x"))
    schedule[update].bind(inner, te.thread_axis("threadIdx.x"))
    return schedule, [X, scan]


def diagonals_by_hand(x):
    sums = x.copy()
    for t in range(1, len(x)):
        sums[t, 1:] += sums[t - 1, :-1]
    return sums
