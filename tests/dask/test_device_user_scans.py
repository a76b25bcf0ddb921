"""Hazard: user-defined scans that copy blocks of a device to the host, with stand-ins for the device.

The C++ compiler compiles the kernels, one set for each update.
"""

import host_device
import numpy as np
import pytest
import upsweep
from block_updates import UPDATES
from device_blocks import computed
from devices import FakeCupyArray
from helpers import flat, random

pytest.importorskip("llvmlite")
da = pytest.importorskip("dask.array")
pytestmark = host_device.needs_compiler

METHODS = ["sequential", "tree"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture(autouse=True)
def device(monkeypatch, fake_cupy, folder):
    return host_device.install(monkeypatch, folder)


def compare(update, init, xs, lazy, tolerance=1e-10, method=None, **keywords):
    """Compare with a scan of the whole on the host; a list `init` has the states on the host and on the device."""
    init, device_init = init if isinstance(init, list) else (init, init)
    result = upsweep.scan(update, device_init, lazy, return_final=True, method=method, **keywords)
    expected = upsweep.scan(update, init, xs, return_final=True, **keywords)
    for one, exact in zip(flat(result), flat(expected), strict=True):
        assert one.dtype == exact.dtype
        np.testing.assert_allclose(computed(one), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["constant", "two gated", "max with resets", "logaddexp", "last largest", "tanh"])
def test_blocks_are_the_whole(name, cupy_blocks, crossings):
    update, init = UPDATES[name]
    x = random((3, 40))
    lazy = cupy_blocks(x, (2, (0, 5, 1, 20, 0, 14)))
    for method in METHODS:
        for reverse in (False, True):
            compare(update, init, x, lazy, axis=1, reverse=reverse, method=method)
    # One flag per block is read, whether all states are regular; nothing larger than a matrix is sent.
    n_blocks = 2 * 4
    assert crossings.read <= n_blocks * 2 * (1 + len(flat(init)) + 3)
    assert max(crossings.sent, default=0) <= 16


def test_states_of_the_user_on_the_device(cupy_blocks):
    x, start = random((3, 40)), random(3, seed=1)
    lazy = cupy_blocks(x, (2, 15))
    for name in ("constant", "tanh"):
        update = UPDATES[name][0]
        for device_start in (cupy_blocks(start, 1), FakeCupyArray(start, 0)):
            compare(update, [start, device_start], x, lazy, axis=1)
    for axis in (0, 1):
        compare(lambda s, _: 0.9 * s, [start, cupy_blocks(start, 2)], None, None, axis=axis, length=5)
    pair = lambda s, x: (x[1] * s[0] + x[0], np.maximum(s[1], x[0]))  # noqa: E731
    compare(pair, [(start, 0.5), (cupy_blocks(start, 2), 0.5)], (x, 0.25), (lazy, 0.25), axis=1)


@pytest.mark.parametrize("method", METHODS)
def test_no_steps(method, cupy_blocks):
    """Without steps the last state is the first one, on the device."""
    for name in ("two gated", "tanh"):
        update, init = UPDATES[name]
        for shape, chunks in (((0,), 1), ((0, 3), (1, 2)), ((4, 0), (3, 1))):
            x = np.zeros(shape)
            compare(update, init, x, cupy_blocks(x, chunks), method=method)
    pair, lazy = lambda s, x: x[0] * s + x[1], cupy_blocks(np.zeros((3, 0)), 2)
    result = upsweep.scan(pair, 0.5, (cupy_blocks(np.zeros((1, 0)), 1), lazy), axis=1, return_final=True)
    assert [computed(each).tolist() for each in result] == [[[]] * 3, [0.5] * 3]
    for y in upsweep.cumulative_sum(cupy_blocks(np.zeros((3, 0)), 2), return_final=True, method=method):
        assert not computed(y).any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_dtypes(dtype, cupy_blocks):
    x = (random(100) * 5).astype(dtype)
    init = np.float16(0.5) if dtype == "float16" else 0.5
    tolerance = {"float16": 2e-3, "float32": 1e-5}.get(dtype, 1e-12)
    for name in ("constant", "tanh") if dtype == "float16" else ("constant",):
        compare(UPDATES[name][0], init, x, cupy_blocks(x, 30), tolerance)


def test_states_are_not_rounded_between_blocks(cupy_blocks):
    x = np.full(150, 1 / 3, np.float16)
    for update in (lambda s, x: s + x, lambda s, x: np.where(s > 1e4, s * s, s + x)):
        whole = upsweep.scan(update, np.float16(0), x)
        result = computed(upsweep.scan(update, np.float16(0), cupy_blocks(x, 1)))
        np.testing.assert_array_equal(result, whole)


def test_states_in_order_where_products_leave_the_range(cupy_blocks):
    gates = np.array([1e200] * 4 + [1e-200] * 4)
    for update, init in ((lambda s, x: x * s, 0.0), (lambda s, x: (x * s[0] + s[1], s[0]), (0.0, 0.0))):
        compare(update, init, gates, cupy_blocks(gates, ((1, 5, 2),)))


def test_filters(cupy_blocks):
    x, zi = random((4, 60)), random((4, 2), seed=1)
    x[1, :3] = x[2, 7] = np.nan
    lazy, b, a = cupy_blocks(x, (3, 25)), [0.5, 0.2, 0.1], [2.0, -0.5, 0.3]
    clean = np.nan_to_num(x)
    device_clean = cupy_blocks(clean, (3, 25))
    pairs = [
        *zip(upsweep.lfilter(b, a, device_clean, zi=cupy_blocks(zi, 3)), upsweep.lfilter(b, a, clean, zi=zi)),
        (upsweep.lfilter([3.0], [2.0], device_clean), 1.5 * clean),
    ]
    times = {"halflife": 2.0, "times": np.cumsum(random(60) ** 2)}
    pairs.append((upsweep.ewm_mean(lazy, **times), upsweep.ewm_mean(x, **times)))
    for result, expected in pairs:
        np.testing.assert_allclose(computed(result), expected, rtol=1e-10, atol=1e-12)


def test_what_does_not_go_together(cupy_blocks):
    x = random(40)
    lazy = cupy_blocks(x, 30)
    pair = lambda s, x: x[0] * s + x[1]  # noqa: E731
    zero, place = cupy_blocks(np.float64(0), -1), da.zeros(3)[0]
    compare(lambda s, x: 0.5 * s + x, [0.0, zero], x, lazy)
    compare(lambda s, x: 0.5 * s + x, [0.0, place], x, lazy)
    with pytest.raises(TypeError, match=r"xs: expected blocks of .*, as init has, got numpy"):
        upsweep.scan(lambda s, x: 0.5 * s + x, zero, da.zeros(3))
    with pytest.raises(TypeError, match=r"init: expected blocks of .*, as xs has, got numpy"):
        upsweep.scan(lambda s, x: 0.5 * s + x, x[0:1], cupy_blocks(x[:, None], 30))
    for other in (x, da.from_array(x, chunks=30)):
        with pytest.raises(TypeError, match=r"xs\[1\]: expected blocks of .*, as xs\[0\] has, got numpy"):
            upsweep.scan(pair, 0.0, (lazy, other))
        with pytest.raises(TypeError, match=r"gates: expected blocks.*gates\.map_blocks\(cupy\.asarray"):
            upsweep.linear_recurrence(other, lazy)
