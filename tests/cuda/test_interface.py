"""Arrays of a device that an interface describes: numba's, jax's, and objects that have nothing else."""

import os

import numpy as np
import pytest
import upsweep
from helpers import SCANS, operands, random

pytestmark = pytest.mark.cuda


class Interface:
    """An array that has nothing but ``__cuda_array_interface__``; it keeps the library's array that it is of."""

    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_an_object_that_has_only_the_interface(torch):
    for dtype in (np.float32, np.complex128, np.float16):
        x = random((3, 500), dtype)
        sent, out = (
            torch.from_numpy(x).cuda(),
            torch.full((500, 3), torch.nan, dtype=torch.float32).cuda().to(torch.from_numpy(x).dtype),
        )
        target = Interface(out.T)
        initial = Interface(sent[:, 0].clone())
        torch.cuda.synchronize()
        assert upsweep.discounted_cumsum(Interface(sent), 0.5, initial=initial, out=target) is target
        torch.cuda.synchronize()
        expected = upsweep.discounted_cumsum(x, 0.5, initial=x[:, 0])
        np.testing.assert_allclose(
            out.T.cpu().numpy(), expected, rtol=1e-2 if dtype == np.float16 else 1e-5, atol=1e-5
        )
    with pytest.raises(TypeError, match="out: has to be given"):
        upsweep.discounted_cumsum(Interface(sent), 0.5)


def test_a_producers_stream_is_waited_for(torch):
    streams = [torch.cuda.Stream() for _ in range(2)]
    n = 1 << 26
    x, gates = torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")
    out = torch.empty(n, device="cuda")
    torch.cuda.synchronize()
    for stream, tensor in zip(streams, (x, gates)):
        with torch.cuda.stream(stream):
            for _ in range(20):
                tensor += 0.05
    result = [Interface(t, stream=s.cuda_stream, version=3) for t, s in zip((gates, x), streams[::-1])]
    upsweep.linear_recurrence(*result, out=Interface(out, stream=streams[0].cuda_stream, version=3))
    streams[0].synchronize()
    assert float(out[0]) == pytest.approx(1.0, rel=1e-5)
    assert float(out[99]) == pytest.approx(100.0, rel=1e-3)


def test_the_devices_of_pointers(torch):
    from upsweep import _arrays

    for index in range(torch.cuda.device_count()):
        x = torch.ones(3, device=f"cuda:{index}")
        assert _arrays.as_operand(Interface(x), "x").origin.ordinal == index
    with pytest.raises(ValueError, match="no memory at"):
        host = np.ones(3)
        interface = {"shape": (3,), "typestr": "<f8", "data": (host.ctypes.data, False), "version": 3}
        broken = Interface(torch.ones(3, device="cuda"), strides=None, **interface)
        upsweep.cumulative_sum(broken, out=broken)
    if torch.cuda.device_count() > 1:
        with pytest.raises(ValueError, match="CUDA device 1"):
            upsweep.linear_recurrence(Interface(torch.ones(3, device="cuda:0")), Interface(x))


@pytest.fixture
def numba_cuda():
    cuda = pytest.importorskip("numba.cuda")
    if not cuda.is_available():
        pytest.skip("numba finds no CUDA")
    return cuda


@pytest.mark.parametrize("name", SCANS)
def test_numba(name, numba_cuda):
    cuda = numba_cuda
    for shape, axis in (((3, 500), 1), ((200, 33), 0), ((5,), 0)):
        arrays = operands(name, shape, np.float32)
        sent = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in arrays]
        result = getattr(upsweep, name)(*sent, axis=axis, initial=0.5, return_final=True)
        on_host = getattr(upsweep, name)(*arrays, axis=axis, initial=0.5, return_final=True)
        for a, b in zip(result, on_host):
            assert cuda.is_cuda_array(a) and type(a) is type(sent[-1] if name != "discounted_cumsum" else sent[0])
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a.copy_to_host(), b, rtol=1e-5, atol=1e-5)
        out = cuda.device_array(shape, np.float32)
        assert getattr(upsweep, name)(*sent, axis=axis, out=out) is out
        expected = getattr(upsweep, name)(*arrays, axis=axis)
        np.testing.assert_allclose(out.copy_to_host(), expected, rtol=1e-5, atol=1e-5)
    carry = getattr(upsweep, f"{name}_carry")(*sent)
    np.testing.assert_allclose(
        carry.apply(0.5).copy_to_host(), getattr(upsweep, f"{name}_carry")(*arrays).apply(0.5), rtol=1e-5
    )


def test_numbas_streams_views_and_nothing(numba_cuda):
    cuda = numba_cuda
    stream = cuda.stream()
    x = random((3, 500))
    sent = cuda.to_device(x, stream=stream)
    y = upsweep.cumulative_sum(sent)
    stream.synchronize()
    np.testing.assert_allclose(y.copy_to_host(), np.cumsum(x, -1))
    np.testing.assert_allclose(
        upsweep.cumulative_sum(cuda.to_device(x)[:, ::2]).copy_to_host(), np.cumsum(x[:, ::2], -1)
    )
    assert upsweep.cumulative_sum(cuda.device_array((3, 0))).shape == (3, 0)


@pytest.fixture
def jax():
    # It would take most of the memory, from this process and others.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    module = pytest.importorskip("jax")
    try:
        module.devices("cuda")
    except RuntimeError:
        pytest.skip("jax finds no CUDA")
    return module


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("name", SCANS)
def test_jax(name, dtype, place, jax):
    device = jax.devices(place)[0]
    dtype = jax.numpy.dtype(dtype)
    arrays = operands(name, (3, 500), dtype)
    reset = random((3, 500), seed=4) > 0.99
    sent = [jax.device_put(a, device) if isinstance(a, np.ndarray) else a for a in arrays]
    result = getattr(upsweep, name)(*sent, reset=jax.device_put(reset, device), return_final=True)
    expected = getattr(upsweep, name)(*arrays, reset=reset, return_final=True)
    for a, b in zip(result, expected):
        assert isinstance(a, jax.Array) and a.devices() == {device} and a.dtype == b.dtype and a.shape == b.shape
        wide = np.complex128 if dtype.kind == "c" else np.float64
        tolerance = 1e-5 if dtype.itemsize > 2 else 2e-2
        np.testing.assert_allclose(np.asarray(a).astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)
    down = [jax.numpy.transpose(a) if isinstance(a, jax.Array) else a for a in sent]
    assert getattr(upsweep, name)(*down, axis=0, reverse=True).shape == (500, 3)
    first, second = (
        [a[:, part] if hasattr(a, "shape") else a for a in sent] for part in (slice(200), slice(200, 500))
    )
    both = upsweep.combine(*(getattr(upsweep, f"{name}_carry")(*block) for block in (first, second)))
    whole = getattr(upsweep, f"{name}_carry")(*arrays)
    for a, b in zip(both, whole):
        assert isinstance(a, jax.Array) and a.devices() == {device}
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4)


def test_what_jax_cannot_do(jax):
    x = jax.numpy.ones((3, 4))
    with pytest.raises(TypeError, match=r"out: .*not written to"):
        upsweep.cumulative_sum(x, out=x)
    with pytest.raises(TypeError, match=r"jax\.jit"):
        jax.jit(upsweep.cumulative_sum)(x)
    with pytest.raises(TypeError, match="gates: expected a jax"):
        upsweep.linear_recurrence(np.ones((3, 4)), x)
    with pytest.raises(ValueError, match="another argument on"):
        upsweep.linear_recurrence(
            jax.device_put(x, jax.devices("cpu")[0]), jax.device_put(x, jax.devices("cuda")[0])
        )
    assert upsweep.cumulative_sum(jax.numpy.ones((3, 4), jax.numpy.int32)).shape == (3, 4)
