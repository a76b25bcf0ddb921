"""Products of matrices on CUDA: tiles outside of scans, weights kept inside; their kernels run on the host."""

import re

import host_device
import host_loops
import numpy as np
import pytest
from te_cells import gru, lstm, lstm_by_hand
from upsweep import te
from upsweep._compiler.cuda.loops import resident_weights

pytestmark = host_device.needs_compiler


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("products")


@pytest.fixture
def device(monkeypatch, folder, fake_cuda):
    return host_loops.install(monkeypatch, folder, fake_cuda)


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def chunks_of(device):
    """For each sum with kept weights: chunks in registers, shared and global memory, and the threads."""
    calls = re.findall(r"add_products<(\d+), (\d+), (\d+), (\d+)>", device.texts[-1])
    return [tuple(map(int, counts)) for counts in calls]


def blocks_have_own_weights(device):
    """Whether the weights in global memory have a part for each block."""
    return re.search(r"_resident_\d+ = .*blockIdx", device.texts[-1]) is not None


def product(dtype="float32", batch=3, rows=None, is_transposed=False):
    m, n, k = te.var("m") if rows is None else rows, te.var("n"), te.var("k")
    X = te.placeholder((batch, m, k), dtype, "X")
    Y = te.placeholder((batch, n, k) if is_transposed else (batch, k, n), dtype, "Y")
    t = te.reduce_axis((0, k), "t")

    def element(b, i, j):
        of_y = Y[b, j, t] if is_transposed else Y[b, t, j]
        return te.sum(of_y * X[b, i, t] if is_transposed else X[b, i, t] * of_y, axis=t)

    Z = te.compute((batch, m, n), element, name="Z")
    return te.build(te.create_schedule(Z.op), [X, Y, Z], "cuda")


@pytest.mark.parametrize("dtype, side", [("float32", 128), ("float64", 64)])
def test_products_in_tiles(device, dtype, side):
    run = product(dtype)
    assert f"threadIdx.x < 256, tiles of {side} x {side}" in run.text
    for m, n, k in ((1, 1, 1), (130, 70, 9), (3, 129, 33), (5, 5, 0), (64, 128, 8)):
        x, y = random(3, m, k, dtype=dtype), random(3, k, n, seed=1, dtype=dtype)
        np.testing.assert_allclose(run(x, y), x @ y, rtol=1e-4, atol=1e-4)
        assert device.launches[-1][1:3] == (-(-n // side) * -(-m // side) * 3, 256)
    x, y = random(3, 20, 18, dtype=dtype)[:, ::2, ::2], random(3, 40, 9, dtype=dtype).swapaxes(1, 2)
    np.testing.assert_allclose(run(x, y), x @ y, rtol=1e-4, atol=1e-4)
    transposed = product(dtype, is_transposed=True)
    np.testing.assert_allclose(transposed(x, y.swapaxes(1, 2)), x @ y, rtol=1e-4, atol=1e-4)


def test_what_no_tile_computes(device):
    assert "tiles of" not in product(rows=4).text  # too few rows
    n = te.var("n")
    X, k = te.placeholder((n, n), name="X"), te.reduce_axis((0, n), "k")
    Z = te.compute((n, n), lambda i, j: te.sum(X[i, k] * X[k, i], axis=k))  # no loop of one factor alone
    assert "tiles of" not in te.lower(te.create_schedule(Z.op), [X, Z], target="cuda")
    Z = te.compute((n, n), lambda i, j: te.sum(X[i, k] * X[k, j], axis=k))
    s = te.create_schedule(Z.op)
    s[Z].bind(Z.op.axis[0], te.thread_axis("blockIdx.x"))  # the schedule says who computes what
    assert "tiles of" not in te.lower(s, [X, Z], target="cuda")


@pytest.mark.parametrize(
    "hidden, batch, registers, shared_kib, expected",
    [
        (32, 3, 32, 227, (2, 0, 0, 128)),  # all in registers
        (32, 3, 250, 227, (0, 2, 0, 128)),
        (32, 3, 230, 2, (1, 0, 1, 128)),  # no room in shared memory
        (20, 3, 32, 227, None),  # 80 threads are no whole warps
        (24, 259, 32, 227, (1, 0, 0, 96)),  # eight terms are left, and a row of the last block
    ],
)
def test_weights_of_an_lstm_are_kept(device, monkeypatch, hidden, batch, registers, shared_kib, expected):
    monkeypatch.setattr(resident_weights, "_OTHER_REGISTERS", registers)
    device.shared_bytes = 1024 * shared_kib
    *_, X, Wx, Wh, cells, outputs = lstm(hidden, batch)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    x, wx, wh = random(4, batch, 9), random(4, 9, hidden, seed=1), random(4, hidden, hidden, seed=2) / 5
    for got, want in zip(run(x, wx, wh), lstm_by_hand(x, wx, wh)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert chunks_of(device) == ([] if expected is None else [expected])
    assert run.text.count("Wh.resident") == (0 if expected is None else sum(expected[1:3]))
    assert not blocks_have_own_weights(device)


@pytest.mark.parametrize("registers, places", [(32, (2, 0, 0)), (400, (0, 2, 0))])
def test_weights_of_a_gru_are_kept(device, monkeypatch, registers, places):
    """Two products, the second one in some of the block's threads alone."""
    monkeypatch.setattr(resident_weights, "_OTHER_REGISTERS", registers)
    X, W, scan = gru(32)
    args = [X, W, scan]
    x, w = random(5, 4, 3, 32, dtype="float64"), random(3, 32, 32, seed=1, dtype="float64") / 6
    on_cpu = te.build(te.create_schedule(scan.op), args)(x, w)
    np.testing.assert_allclose(te.build(te.create_schedule(scan.op), args, "cuda")(x, w), on_cpu, rtol=1e-10)
    assert chunks_of(device) == [(*places, 64), (*places, 32)]


def cell(weight, n_weights):
    """h[t] = tanh(h[t-1] W + X[t]) with an own matrix of each row or step."""
    T, B, H = te.var("T"), te.var("B"), 32
    X, W = te.placeholder((T, B, H), name="X"), te.placeholder((n_weights, H, H), name="W")
    h, k = te.placeholder((T, B, H), name="h"), te.reduce_axis((0, H), "k")
    of_h = te.compute(
        (T, B, H), lambda t, b, j: te.sum(h[t - 1, b, k] * W[weight(t, b), k, j], axis=k), name="of_h"
    )
    update = te.compute((T, B, H), lambda t, b, j: te.tanh(of_h[t, b, j] + X[t, b, j]))
    init = te.compute((1, B, H), lambda _, b, j: X[0, b, j])
    scan = te.scan(init, update, h, inputs=[X, W])
    return te.build(te.create_schedule(scan.op), [X, W, scan], "cuda")


@pytest.mark.parametrize("of_rows", [True, False])
def test_weights_of_rows_are_resident_and_those_of_steps_are_not(device, monkeypatch, of_rows):
    monkeypatch.setattr(resident_weights, "_OTHER_REGISTERS", 300)
    device.shared_bytes = 0  # each block has its own in global memory
    run = cell((lambda t, b: b % 3) if of_rows else (lambda t, b: t % 3), 3)
    x, w = random(5, 4, 32), random(3, 32, 32, seed=1) / 6
    expected = x.copy()
    for t in range(1, 5):
        of_h = [expected[t - 1, b] @ w[b % 3 if of_rows else t % 3] for b in range(4)]
        expected[t] = np.tanh(np.array(of_h) + x[t])
    np.testing.assert_allclose(run(x, w), expected, rtol=1e-4, atol=1e-5)
    assert chunks_of(device) == ([(0, 0, 2, 32)] if of_rows else [])
    assert blocks_have_own_weights(device) == of_rows


@pytest.mark.parametrize("batch", [1024, 1030])
def test_threads_of_all_gates_share_the_rows_of_a_cell(device, batch):
    *_, X, Wx, Wh, cells, outputs = lstm(8, batch)
    run = te.build(te.create_schedule(outputs.op), [X, Wx, Wh, cells, outputs], "cuda")
    assert "scan.v0.new[((blockIdx.x*8) + (threadIdx.y*2)) + row, threadIdx.x] = " in run.text
    x, wx, wh = random(3, batch, 9), random(4, 9, 8, seed=1), random(4, 8, 8, seed=2) / 3
    for got, want in zip(run(x, wx, wh), lstm_by_hand(x, wx, wh)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
