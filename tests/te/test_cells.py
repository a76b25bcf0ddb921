"""Recurrent cells with matrix products, against numpy; and other reductions."""

import numpy as np
import pytest
from te_cells import gru, lstm, lstm_by_hand, rnn, sigmoid
from te_reference import Reference
from upsweep import te
from upsweep._compiler.llvm.loops.matmul import shared_sums
from upsweep._compiler.loops.statements import For, inner_statements
from upsweep.te.lowering import lower_for

pytest.importorskip("llvmlite")


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("hidden", [1, 5, 16, 24, 70, 128])
@pytest.mark.parametrize("batch", [1, 3, 4, 9])
def test_rnn(hidden, batch):
    X, W, _, scan = rnn(hidden)
    run = te.build(te.create_schedule(scan.op), [X, W, scan])
    x, w = random(6, batch, hidden), random(hidden, hidden, seed=1) / np.float32(np.sqrt(hidden))
    expected = x.copy()
    for t in range(1, 6):
        expected[t] = np.tanh(expected[t - 1] @ w + x[t])
    for n_threads in (1, 2):
        np.testing.assert_allclose(run(x, w, n_threads=n_threads), expected, rtol=1e-4, atol=1e-5)


def test_the_product_runs_over_strips_of_the_batch():
    X, W, product, scan = rnn(32)
    s = te.create_schedule(scan.op)
    text = str(te.lower(s, [X, W, scan]))
    assert "produce scan {  // each thread takes strips" in text
    assert text.count("parallel (b, 0, B)") == 3 and "for (k, 0, 32)" in text
    s = te.create_schedule(scan.op)
    (k,) = product.op.reduce_axis
    outer, inner = s[product].split(k, factor=5)
    s[product].reorder(outer, product.op.axis[2], inner)
    s[product].vectorize(product.op.axis[2])
    x, w = random(4, 3, 32), random(32, 32, seed=1)
    expected = te.build(te.create_schedule(scan.op), [X, W, scan])(x, w)
    run = te.build(s, [X, W, scan])
    assert "if (((k.outer*5) + k.inner) < 32)" in run.text
    np.testing.assert_allclose(run(x, w), expected, rtol=1e-4, atol=1e-5)


def loops(statement):
    if isinstance(statement, For):
        yield statement
    for inner in inner_statements(statement):
        yield from loops(inner)


def test_rows_share_what_they_read_of_each_gate():
    B, H = te.var("B"), 20
    h, W = te.placeholder((B, H), name="h"), te.placeholder((4, H, H), name="W")
    k = te.reduce_axis((0, H), "k")
    product = te.compute((B, 4, H), lambda b, g, j: te.sum(h[b, k] * W[g, k, j], axis=k), name="product")
    body = lower_for(te.create_schedule(product.op), [h, W, product]).body
    (form, *_) = (form for form in map(shared_sums, loops(body)) if form is not None)
    assert form.rows.axis.name == "b" and form.columns.axis.name == "j"
    assert [each.axis.name for each in form.between] == ["g"]
    run = te.build(te.create_schedule(product.op), [h, W, product])
    for batch in (0, 1, 3, 4, 5, 11):
        a, w = random(batch, H), random(4, H, H, seed=1)
        np.testing.assert_allclose(run(a, w), np.einsum("bk,gkj->bgj", a, w), rtol=1e-4, atol=1e-5)


def test_lstm():
    _, _, _, _, X, Wx, Wh, cells, outputs = lstm()
    s = te.create_schedule(outputs.op)
    run = te.build(s, [X, Wx, Wh, cells, outputs])
    assert "strips" in run.text
    x, wx, wh = random(7, 5, 3), random(4, 3, 20, seed=1), random(4, 20, 20, seed=2) / 4
    got_c, got_h = run(x, wx, wh)
    state_c, state_h = lstm_by_hand(x, wx, wh)
    np.testing.assert_allclose(got_c, state_c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_h, state_h, rtol=1e-4, atol=1e-5)
    # The same bits for any number of threads, whose strips have other widths and rests.
    for n_threads in (1, 2, 3, 5):
        for got, expected in zip(run(x, wx, wh, n_threads=n_threads), (got_c, got_h)):
            np.testing.assert_array_equal(got, expected)


def test_gru():
    H = 12
    X, W, scan = gru(H)
    run = te.build(te.create_schedule(scan.op), [X, W, scan])
    x, w = random(5, 4, 3, H, dtype="float64"), random(3, H, H, seed=1, dtype="float64") / 3
    state, got = np.zeros((4, H)), run(x, w)
    for t in range(1, 5):
        r, z = (sigmoid(state @ w[g] + x[t, :, g]) for g in range(2))
        state = z * state + (1 - z) * np.tanh((r * state) @ w[2] + x[t, :, 2])
        np.testing.assert_allclose(got[t], state, rtol=1e-9)


def test_a_state_that_mixes_all_columns_keeps_its_order():
    T, H = te.var("T"), te.var("H")
    W, X = te.placeholder((H, H), "float64", "W"), te.placeholder((T, H), "float64", "X")
    h = te.placeholder((T, H), "float64", "h")
    k = te.reduce_axis((0, H), "k")
    update = te.compute((T, H), lambda t, j: te.sum(h[t - 1, k] * W[k, j], axis=k))
    scan = te.scan(te.compute((1, H), lambda _, j: X[0, j]), update, h)
    x, w = random(6, 50, dtype="float64"), random(50, 50, seed=1, dtype="float64") / 7
    expected = x.copy()
    for t in range(1, 6):
        expected[t] = expected[t - 1] @ w
    plain = te.build(te.create_schedule(scan.op), [X, W, scan])
    assert "strips" not in plain.text and "parallel" not in plain.text
    np.testing.assert_allclose(plain(x, w), expected, rtol=1e-9)
    # Asked for, the loop is shared in each step, and the step's end is the barrier.
    s = te.create_schedule(scan.op)
    outer, inner = s[update].split(update.op.axis[1], factor=8)
    s[update].parallel(outer)
    s[update].vectorize(inner)
    shared = te.build(s, [X, W, scan])
    assert "strips" not in shared.text and "parallel (j.outer" in shared.text
    for _ in range(20):
        np.testing.assert_allclose(shared(x, w), expected, rtol=1e-9)


@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_reductions(combiner, dtype):
    n, m = te.var("n"), te.var("m")
    X = te.placeholder((n, m, 3), dtype, "X")
    k, q = te.reduce_axis((0, m), "k"), te.reduce_axis((0, 3), "q")
    take = {"sum": te.sum, "prod": te.prod, "max": te.max, "min": te.min}[combiner]
    Y = te.compute((n,), lambda i: take(X[i, k, q], axis=[k, q]), name="Y")
    run = te.build(te.create_schedule(Y.op), [X, Y])
    x = (random(21, 4, 3) * 3).astype(dtype)
    expected = Reference({n: 21, m: 4}, {X: x})[Y]
    np.testing.assert_allclose(run(x), expected, rtol=1e-5)
    function = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[combiner]
    np.testing.assert_allclose(expected, function(x, axis=(1, 2)), rtol=1e-4)
