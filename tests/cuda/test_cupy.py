"""cupy's arrays: read where they lie, on cupy's stream, with memory of cupy's pool."""

import ctypes

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, DTYPES, SCANS, operands, random, reference_scan, same_bits
from upsweep.testing import assert_scan_close

cupy = pytest.importorskip("cupy", reason="cupy is not installed")

pytestmark = pytest.mark.cuda


def on(value):
    """The array on the device, with its own strides; numbers and None as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if not value.size:
        return cupy.empty(value.shape, value.dtype)
    # The whole memory between the first and the last element, with the same view into it.
    low, high = np.lib.array_utils.byte_bounds(value)
    memory = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
    offset = value.__array_interface__["data"][0] - low
    sent = cupy.asarray(memory.copy())
    return cupy.ndarray(value.shape, value.dtype, sent.data + offset, strides=value.strides)


def check(name, *arrays, with_out=True, **keywords):
    """Compare a call on cupy arrays with the reference in value, dtype and shape; again with `out`."""
    sent = {key: on(value) for key, value in keywords.items()}
    tensors = [on(a) for a in arrays]
    result = getattr(upsweep, name)(*tensors, **sent)
    on_cpu = getattr(upsweep, name)(*arrays, **keywords)
    results, others = (r if isinstance(r, tuple) else (r,) for r in (result, on_cpu))
    half = others[0].dtype.name in ("float16", "bfloat16")
    for y, other, (exact, scale) in zip(results, others, reference_scan(name, *arrays, **keywords)):
        assert isinstance(y, cupy.ndarray) and y.dtype == other.dtype and y.shape == other.shape
        assert_scan_close(cupy.asnumpy(y), exact, scale, rtol=1e-6 if half else None)
    if with_out:
        out = cupy.empty_like(results[0])
        out.fill(77)
        again = getattr(upsweep, name)(*tensors, out=out, **sent)
        assert (again[0] if isinstance(again, tuple) else again) is out
        if out.strides == results[0].strides:  # the bits are promised for each layout
            assert same_bits(cupy.asnumpy(out), cupy.asnumpy(results[0]))
    return result


def test_the_conversion_keeps_strides():
    for value in (random((3, 40))[:, ::-2], random((3, 40)).T, np.broadcast_to(random((1, 4)), (3, 4))):
        sent = on(value)
        assert sent.strides == value.strides and (cupy.asnumpy(sent) == value).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != BFLOAT16], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_dtypes_and_axes(name, dtype):
    for reverse in (False, True):
        check(name, *operands(name, (3, 1000), dtype), reverse=reverse)
        check(name, *operands(name, (300, 33), dtype), axis=0, reverse=reverse)
        check(name, *operands(name, (3, 2500), dtype), reverse=reverse, exclusive=True)


def test_bfloat16():
    x = random((3, 100), BFLOAT16)
    try:
        sent = cupy.asarray(x)
    except (TypeError, ValueError):
        pytest.skip("this cupy has no bfloat16")
    y = upsweep.discounted_cumsum(sent, 0.5)
    assert y.dtype == BFLOAT16
    assert same_bits(cupy.asnumpy(y), upsweep.discounted_cumsum(x, 0.5, device="cuda"))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_integers_as_cupys_own_sum(dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 3000)).astype(dtype)
    y = upsweep.cumulative_sum(on(x))
    assert y.dtype == cupy.cumsum(on(x), axis=-1).dtype == np.cumsum(x, -1).dtype
    assert (cupy.asnumpy(y) == np.cumsum(x, -1)).all()
    assert (cupy.asnumpy(upsweep.cumulative_sum(on(x), dtype=np.int16)) == np.cumsum(x, -1, dtype=np.int16)).all()
    z = upsweep.discounted_cumsum(on(x), 0.5)
    assert z.dtype == np.float64
    expected = upsweep.discounted_cumsum(x, 0.5)
    assert_scan_close(cupy.asnumpy(z), expected, expected)


def test_sums_that_cast_first():
    x = 100 * random((3, 300))
    for dtype in (np.int32, np.float32, bool):
        y = upsweep.cumulative_sum(on(x), dtype=dtype)
        assert y.dtype == dtype
        np.testing.assert_allclose(cupy.asnumpy(y), upsweep.cumulative_sum(x, dtype=dtype), rtol=1e-6)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(5, 30), (5, 129), (3, 2500), (2, 40_000)])
@pytest.mark.parametrize("name", SCANS)
def test_states_and_resets(name, shape, reverse, exclusive):
    arrays = operands(name, shape, np.float32)
    keywords = {"reverse": reverse, "exclusive": exclusive, "return_final": True}
    if shape[-1] > 10_000:  # the reference is slow for long lines
        state, reset = random(shape[:1], np.float32, 5), random(shape, seed=6) > 0.99
        result = getattr(upsweep, name)(*map(on, arrays), initial=on(state), reset=on(reset), **keywords)
        expected = getattr(upsweep, name)(*arrays, initial=state, reset=reset, **keywords)
        for a, b in zip(result, expected):
            np.testing.assert_allclose(cupy.asnumpy(a), b, rtol=1e-6, atol=1e-6)
        return
    check(name, *arrays, initial=random(shape[:1], np.float32, 5), reset=random(shape, seed=6) > 0.9, **keywords)
    check(name, *arrays, initial=0.5, **keywords)


def test_strides_of_every_kind():
    base = random((6, 7, 80), np.float32)
    views = (base[::2], base[:, ::-3], base[:, :, ::-2], base[:, :, 1:], base.transpose(2, 0, 1), base[1:2],
             np.broadcast_to(base[:, :1], base.shape), np.asfortranarray(base))  # fmt: skip
    for x in views:
        for axis in range(3):
            check("discounted_cumsum", x, 0.9, axis=axis)
            check("linear_recurrence", x, x[:1], axis=axis, reverse=True)
        y = upsweep.cumulative_sum(on(x), axis=0)
        assert y.strides == upsweep.cumulative_sum(x, axis=0).strides


def test_gamma_of_every_shape_and_kind():
    x = random((2, 3, 50), np.float32)
    for shape in [(), (1,), (3, 1), (2, 1, 1), (2, 3, 1), (50,), (3, 50), (2, 3, 50)]:
        check("discounted_cumsum", x, random(shape, np.float32, 1))
        check("discounted_cumsum", x, random(shape, np.float64, 1))
    check("discounted_cumsum", x, 0.5 + 0.5j)
    for number in (0.5, np.float64(0.5), np.array(0.5), 2):
        assert isinstance(upsweep.discounted_cumsum(on(x), number), cupy.ndarray)
        check("linear_recurrence", number, x)
        check("linear_recurrence", x, number)


def test_include_initial():
    x = random((3, 50, 4), np.float32)
    for reverse in (False, True):
        for initial in (None, 0.5, random((3, 4), np.float32, 1)):
            for operand in (x, x[:, :0]):
                check("cumulative_sum", operand, axis=1, include_initial=True, initial=initial, reverse=reverse)
    half = random((3, 50), np.float16)
    check("cumulative_sum", half, include_initial=True, initial=random((3,), np.float16, 1))
    whole = np.arange(12).reshape(3, 4)
    y = upsweep.cumulative_sum(on(whole), include_initial=True, initial=on(np.array([1, 2, 3])))
    assert (cupy.asnumpy(y) == upsweep.cumulative_sum(whole, include_initial=True, initial=[1, 2, 3])).all()


def test_nothing_to_do():
    assert upsweep.cumulative_sum(cupy.ones((0, 5))).shape == (0, 5)
    y, final = upsweep.discounted_cumsum(cupy.ones((2, 0)), 0.5, initial=3.0, return_final=True)
    assert y.shape == (2, 0) and (final == 3).all()
    _, final = upsweep.discounted_cumsum(cupy.ones((2, 0), cupy.float32), 0.5, return_final=True)
    assert (final == 0).all() and final.dtype == np.float32


def test_in_place_and_wrong_outputs():
    x = on(random((3, 500), np.float32))
    expected = upsweep.discounted_cumsum(x, 0.5)
    assert upsweep.discounted_cumsum(x, 0.5, out=x) is x
    assert (x == expected).all()
    memory = cupy.arange(600.0)
    for out, match in ((memory[1:501], "overlaps"), (memory[:10], "shape"), (cupy.empty(500, "f4"), "dtype")):
        with pytest.raises((ValueError, TypeError), match=f"out: .*{match}"):
            upsweep.cumulative_sum(memory[:500], out=out)
    with pytest.raises(TypeError, match=r"out: expected a cupy\.ndarray"):
        upsweep.cumulative_sum(memory, out=np.empty(600))
    with pytest.raises(TypeError, match="host's memory"):
        upsweep.linear_recurrence(np.ones(600), memory)
    with pytest.raises(ValueError, match="device"):
        upsweep.cumulative_sum(memory, device="cuda")
    assert (memory == cupy.arange(600.0)).all()


def test_work_goes_to_the_current_stream():
    stream = cupy.cuda.Stream(non_blocking=True)
    n = 1 << 26
    with stream:
        x = cupy.zeros(n, cupy.float32)
        for _ in range(20):
            x += 1  # the scan has to come after all of these
        y = upsweep.cumulative_sum(x, initial=1.0)
        last = y[-1:] * 1  # and this after the scan
    stream.synchronize()
    assert float(last[0]) == np.float32(20 * n + 1)


def test_memory_comes_from_cupys_pool():
    pool = cupy.get_default_memory_pool()
    x = cupy.ones((3, 100_000), cupy.float32)
    upsweep.cumulative_sum(x)
    pool.free_all_blocks()
    before = pool.used_bytes()
    y = upsweep.cumulative_sum(x)
    assert pool.used_bytes() - before >= y.nbytes
    del y
    assert pool.used_bytes() == before


def test_a_graph_of_cupys():
    x, out = cupy.zeros((3, 50_000), cupy.float32), cupy.empty((3, 50_000), cupy.float32)
    upsweep.discounted_cumsum(x, 0.5, initial=1.0, out=out)
    cupy.cuda.Device().synchronize()  # the stream does not wait for the default one
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        workspace = cupy.empty(1 << 22, cupy.uint8)  # so that the pool need not ask the driver meanwhile
        del workspace
        stream.begin_capture()
        upsweep.discounted_cumsum(x, 0.5, out=out)
        graph = stream.end_capture()
        x += 1
        graph.launch(stream)
    stream.synchronize()
    expected = upsweep.discounted_cumsum(np.ones((3, 50_000), np.float32), 0.5)
    np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=1e-6)


def test_peers_names():
    x, gamma = random((3, 50), np.float32), random((3,), np.float32, 2)
    for name in ("discounted_cumsum_left", "discounted_cumsum_right", "pscan", "scan_forward"):
        second = gamma if name.startswith("disc") else x
        result = getattr(upsweep, name)(on(x), on(second))
        np.testing.assert_allclose(cupy.asnumpy(result), getattr(upsweep, name)(x, second), rtol=1e-5, atol=1e-6)


def test_cupy_together_with_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"tokens: .*torch\.Tensor.*cupy"):
        upsweep.linear_recurrence(torch.ones(3, device="cuda"), cupy.ones(3))
    with pytest.raises(TypeError, match=r"out: .*torch\.Tensor|x: .*cupy"):
        upsweep.cumulative_sum(cupy.ones(3), out=torch.ones(3, device="cuda"))


@pytest.mark.parametrize("reduction", ["Sum", "LogSumExp", "Min", "KMin"])
def test_gradients_of_reductions_over_pairs(reduction):
    keywords = {"opt_arg": 3} if reduction == "KMin" else {}
    aliases = ["x = Vi(3)", "y = Vj(3)", "p = Pm(1)"]
    reduce = upsweep.Genred("-p * SqDist(x, y)", aliases, reduction, axis=1, **keywords)
    arrays = [random((2, 50, 3)), random((40, 3), seed=1), np.array([0.7])]
    ranges = upsweep.BlockRanges(([[0, 20], [30, 50]], [1, 2], [[0, 40], [5, 25]]), (50, 40))
    value, expected = reduce.value_and_grad(*arrays, ranges=ranges)
    cotangent = random(value.shape, seed=2)
    _, expected = reduce.value_and_grad(*arrays, cotangent=cotangent, ranges=ranges)
    results, gradients = reduce.value_and_grad(*map(on, arrays), cotangent=on(cotangent), ranges=ranges)
    np.testing.assert_allclose(cupy.asnumpy(results), value, rtol=1e-9)
    for result, other in zip(gradients, expected):
        assert isinstance(result, cupy.ndarray)
        np.testing.assert_allclose(cupy.asnumpy(result), other, rtol=1e-9, atol=1e-9)
