"""User-defined scans, their gradients and filters of arrays of a device: the same call as on numpy's arrays.

The arrays are stand-ins over the host's memory, the kernels are compiled by the C++ compiler.
"""

import host_device
import numpy as np
import pytest
import upsweep
from devices import FakeCupyArray, Interface
from helpers import BFLOAT16, flat, random

pytestmark = host_device.needs_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture(autouse=True)
def device(monkeypatch, fake_cupy, folder):
    return host_device.install(monkeypatch, folder)


def on(value, ordinal=0):
    if isinstance(value, tuple):
        return tuple(on(item, ordinal) for item in value)
    return FakeCupyArray(value, ordinal) if isinstance(value, np.ndarray) else value


def same(result, reference_result, tolerance=1e-4):
    assert len(flat(result)) == len(flat(reference_result))
    for got, expected in zip(flat(result), flat(reference_result)):
        assert isinstance(got, FakeCupyArray) and got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got.host, expected, rtol=tolerance, atol=tolerance)


def check(update, init, xs, **keywords):
    result = upsweep.scan(update, on(init), on(xs), return_final=True, **keywords)
    same(result, upsweep.scan(update, init, xs, return_final=True, **keywords))
    return result


def cell(s, x):
    return np.tanh(s * x[1] + x[0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_axes_and_structures(axis, reverse):
    x = random((12, 7, 5), np.float32)
    ys, _ = check(lambda s, x: np.tanh(s + x), 0.5, x, axis=axis, reverse=reverse)
    assert ys.strides == x.strides
    check(lambda s, x: ((s[0] + x, s[1] * 0.5), (s[0], s[1] > x)), (0.5, 1.0), x, axis=axis, reverse=reverse)


def test_numbers_among_arrays():
    x = random((40, 9), np.float32)
    for number in (0.25, np.float32(0.75), -0.0):
        check(cell, number, (x, number))
    check(cell, random(9, np.float32), (x, random((40, 1), np.float32)))
    check(lambda s, x: s * 0.5, random(9), None, length=5, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_large_tables(dtype):
    """Which are arrays in the kernel, and numbers where the host knows the index."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 12, (12, 20)).astype(dtype)
    x, keys = (10 * random((30, 5))).astype(dtype), rng.integers(-2, 22, (30, 5)).astype(dtype)
    check(lambda s, x: (s + x[0], table[3, x[1]] + x[0]), dtype(0), (x, keys))
    check(lambda s, x: table[s, x], dtype(3), keys % 20)
    for number in (7, 7.0):
        check(lambda s, x: table[3, x[1]] * 0.01 * s + x[0], 0.0, (random((2000, 1)), number))


def test_nothing_to_do():
    x = random((3, 5), np.float32)
    check(cell, x[0], (x[:0], 0.5))
    check(cell, 0.5, (x[:, :0], 0.5))


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_dtypes(dtype):
    x = (10 * random((20, 8))).astype(dtype)
    check(lambda s, x: s * 0.5 + np.abs(x), 0.0, x)
    if BFLOAT16 is not None and dtype is np.float16:
        results = upsweep.scan(lambda s, x: np.tanh(s + x), np.float32(0), on(x.astype(BFLOAT16)))
        assert results.dtype == np.float32


def test_time_in_parallel():
    x = random(5000, np.float32)
    update = lambda s, x: 0.9 * s + 0.1 * x  # noqa: E731
    assert upsweep.scan.explain(update, 0.0, on(x)).path == "parallel in time"
    check(update, 0.25, x)
    # A number of the host is a factor that does not vary.
    assert "constant factors" in upsweep.scan.explain(lambda s, x: s * x[1] + 2 * x[0], 0.0, (on(x), 0.5)).why
    wide, short = random((1100, 8192), np.float32), random((1000, 2), np.float32)
    assert "8192 columns fill a device" in upsweep.scan.explain(update, 0.0, on(wide)).why
    assert "1000 steps are few" in upsweep.scan.explain(update, 0.0, on(short)).why
    gated = lambda s, x: s * x[1] + x[0]  # noqa: E731
    assert "linear_recurrence" in upsweep.scan.explain(gated, 0.0, (on(x), on(x))).why
    half = on(x.astype(np.float16))
    assert "linear_recurrence" not in upsweep.scan.explain(gated, 0.0, (half, half)).why
    both = lambda s, x: (np.maximum(s[0], x), np.minimum(s[1], x))  # noqa: E731
    assert "each by itself: max, min" in upsweep.scan.explain(both, (0.0, 0.0), on(x)).why
    assert upsweep.scan.explain(both, (0.0, 0.0), x).path == "sequential in time"  # on the host
    check(both, (0.5, -0.5), x)
    counts = lambda s, x: (s[0] + (x > 0), np.maximum(s[1], x))  # noqa: E731
    assert "each by itself: integers, max" in upsweep.scan.explain(counts, (2**60 + 1, -1.0), on(x)).why
    check(counts, (2**60 + 1, -1.0), x)
    crossed = lambda s, x: (np.maximum(s[1], x), np.minimum(s[0], x))  # noqa: E731
    assert "neither affine" in upsweep.scan.explain(crossed, (0.0, 0.0), on(x)).why


def test_gates_and_tokens_go_to_linear_recurrence(fake_cuda):
    gates, x = random((40, 6), np.float32), random((40, 6), np.float32, 1)
    for init in (0.5, random(6, np.float32)):
        check(lambda s, x: s * x[1] + x[0], init, (x, gates), reverse=True)
    check(lambda s, x: 0.5 * s + x, 0.0, x, axis=1)
    check(lambda s, x: s + x, 2.0, x)
    n = len(fake_cuda.problems)
    assert n == 4 or upsweep.show_config()["cuda_library"] is None
    check(lambda s, x: s * x[1] + x[1], 0.5, (x, gates))
    assert len(fake_cuda.problems) == n


def test_the_callers_stream_and_device(monkeypatch, device):
    streams = []
    launch = host_device.HostFunction.launch
    monkeypatch.setattr(
        host_device.HostFunction, "launch", lambda self, *a: (streams.append(a[2]), launch(self, *a))
    )
    x = random((20, 3))
    assert upsweep.scan(cell, 0.5, (on(x, 3), on(x, 3))).device.id == 3
    assert streams == [77]


@pytest.mark.parametrize("keywords", [{}, {"checkpoint": 7}, {"reverse": True, "axis": 1}])
def test_gradients(keywords):
    x, w, g = random((30, 30)), random(30, seed=1), random((30, 30), seed=2)
    for init, xs, cotangent, last in (
        (w, (x, w), g, None), (0.5, (x.astype(np.float32), 0.25), None, w),
    ):  # fmt: skip
        result = upsweep.scan.gradient(cell, on(init), on(xs), on(cotangent), final_cotangent=on(last), **keywords)
        reference_result = upsweep.scan.gradient(cell, init, xs, cotangent, final_cotangent=last, **keywords)
        same((result.init, result.xs), (reference_result.init, reference_result.xs))


def test_filters():
    b, a = [0.5, 0.2, 0.1], [2.0, -0.5, 0.3]
    x, zi = random((4, 40)), random((4, 2))
    same(upsweep.lfilter(b, a, on(x)), upsweep.lfilter(b, a, x))
    same(upsweep.lfilter(b, a, on(x.T), axis=0, zi=on(zi.T)), upsweep.lfilter(b, a, x.T, axis=0, zi=zi.T))
    same(upsweep.lfilter([3.0], [2.0], on(x)), 1.5 * x)


def test_windows():
    x = random((4, 40))
    x[1, :3] = x[2, 7] = np.nan
    for keywords in (
        {"alpha": 0.3}, {"alpha": 0.3, "adjust": False}, {"halflife": 2.0, "times": np.arange(40.0)},
        {"span": 3, "ignore_na": True},
    ):  # fmt: skip
        same(upsweep.ewm_mean(on(x), **keywords), upsweep.ewm_mean(x, **keywords))
        if "alpha" not in keywords:
            same(upsweep.ewm_sum(on(x), **keywords), upsweep.ewm_sum(x, **keywords))
    with pytest.raises(TypeError, match="times: has to be in the host's memory"):
        upsweep.ewm_mean(on(x), halflife=2.0, times=on(np.arange(40.0)))


def test_what_does_not_go_together():
    x = random((6, 4))
    with pytest.raises(TypeError, match=r"xs\[1\]: is an array in the host's memory, while xs\[0\] is a cupy"):
        upsweep.scan(cell, 0.5, (on(x), x))
    with pytest.raises(ValueError, match=r"init: is on CUDA device 1, xs\[0\] on CUDA device 0"):
        upsweep.scan(cell, on(x[0], 1), (on(x), on(x)))
    with pytest.raises(TypeError, match=r"xs: is a .*Interface, of which upsweep does not know how to allocate"):
        upsweep.scan(lambda s, x: s + x, 0.0, Interface(x))
    with pytest.raises(TypeError, match="xs: expected real numbers, got dtype complex128"):
        upsweep.scan(lambda s, x: s + x, 0.0, on(x + 1j))
    with pytest.raises(TypeError, match="cotangent: is an array in the host's memory"):
        upsweep.scan.gradient(cell, 0.5, (on(x), on(x)), x)


def test_carries(crossings):
    x = random((3, 40))
    for update, init in ((cell_of_two, (0.5, random(3))), (np.maximum, 0.25), (lambda s, x: 0.5 * s + x, 0.25)):
        parts = [upsweep.scan.carry(update, on(init), on(x[:, a:b].copy()), axis=1) for a, b in ((0, 7), (7, 40))]
        final = upsweep.scan(update, init, x, axis=1, return_final=True)[1]
        for whole in (parts[1].apply(parts[0].apply(on(init))), upsweep.combine(*parts).apply(on(init))):
            same(whole, final, 1e-10)
    with pytest.raises(TypeError, match="state: is an array in the host's memory, while carry is a cupy"):
        parts[0].apply(x[:, 0])
    with pytest.raises(TypeError, match=r"is a .*Interface, with which upsweep does not know how to calculate"):
        upsweep.scan.carry(np.maximum, 0.0, Interface(x))
    assert max(crossings.sent) <= 4 and not crossings.read


def cell_of_two(s, x):
    return 0.5 * s[0] - x * s[1], 0.25 * s[0] + x


def test_states_are_not_rounded_between_blocks(crossings):
    x = np.full(300, 1 / 3, np.float16)
    update = lambda s, x: s + x  # noqa: E731
    whole = upsweep.scan(update, np.float16(0), x)
    scan = upsweep.scan_blocks(upsweep.scan, update, np.float16(0), (on(x[i : i + 1].copy()) for i in range(300)))
    assert [y.host.item() for y in scan] == whole.tolist()
    same(scan.state, whole[-1:].reshape(()))


def test_no_steps_of_what_is_broadcast():
    """An array without elements is nowhere, and the one element of each of its columns is not there to be read."""
    x, none = random((3, 0)), on(random((1, 0)))
    none.data.ptr = 0
    update = lambda s, x: x[0] * s + np.tanh(x[1])  # noqa: E731
    ys, final = upsweep.scan(update, 0.5, (none, on(x)), axis=1, return_final=True)
    assert ys.shape == (3, 0) and final.host.tolist() == [0.5] * 3
