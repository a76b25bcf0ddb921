"""Hazard: arrays of other libraries. Every call on them is that on numpy's, without a look at their memory."""

import copy
import pickle
import sys
import types

import numpy as np
import pytest
import upsweep
from devices import DLPackArray, FakeCupyArray, Interface
from helpers import BFLOAT16, DTYPES, SCANS, operands, random, same_bits
from upsweep import _arrays
from upsweep._core import layout

NOWHERE = 0xDEAD_0000_0000


def on(value, device=0):
    return FakeCupyArray(value, device) if isinstance(value, np.ndarray) else value


def check_cupy(name, *arrays, **keywords):
    """The call on arrays of (what stands for) cupy, beside that on numpy's; and with `out`."""
    options = {key: on(value) for key, value in keywords.items()}
    result = getattr(upsweep, name)(*map(on, arrays), **options)
    expected = getattr(upsweep, name)(*arrays, **keywords)
    for a, b in zip(
        result if isinstance(result, tuple) else (result,),
        expected if isinstance(expected, tuple) else (expected,),
    ):
        assert isinstance(a, FakeCupyArray)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            a.host.astype(complex), b.astype(complex), rtol=1e-3 if b.itemsize < 4 else 1e-6
        )
    first = result[0] if isinstance(result, tuple) else result
    out = on(np.full_like(first.host, 99))
    again = getattr(upsweep, name)(*map(on, arrays), out=out, **options)
    assert (again[0] if isinstance(again, tuple) else again) is out
    assert same_bits(out.host, first.host)
    return result


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != BFLOAT16], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, dtype, fake_cupy):
    for reverse in (False, True):
        check_cupy(name, *operands(name, (3, 40), dtype), reverse=reverse)
        check_cupy(name, *operands(name, (40, 3), dtype), axis=0, reverse=reverse, exclusive=True)
    reset, initial = random((3, 40), seed=5) > 0.8, random((3,), dtype, 6)
    check_cupy(name, *operands(name, (3, 40), dtype), reset=reset, initial=initial, return_final=True)
    flipped = [a[::-1, ::-2] if isinstance(a, np.ndarray) else a for a in operands(name, (3, 40), dtype)]
    check_cupy(name, *flipped)
    check_cupy(
        name, *(a[:, :0] if isinstance(a, np.ndarray) else a for a in flipped), return_final=True, initial=2.0
    )
    check_cupy(name, *(a[:0] if isinstance(a, np.ndarray) else a for a in flipped), return_final=True)


def test_numbers_in_the_place_of_arrays(fake_cupy):
    x = random((3, 40))
    for number in (0.5, np.float32(0.5), np.array(0.5), 2):
        check_cupy("discounted_cumsum", x, number, initial=number)
        check_cupy("linear_recurrence", number, x)
        check_cupy("linear_recurrence", x, number, reset=True)
    check_cupy("discounted_cumsum", x, 0.5j)
    for gamma in (random((3, 1)), random((40,)), random((3, 40))):
        check_cupy("discounted_cumsum", x, gamma, reverse=True)


def test_sums_of_integers(fake_cupy):
    x = np.random.default_rng(0).integers(0, 99, (3, 40))
    for dtype in ("bool", "int8", "uint8", "int32", "uint64", "int64"):
        check_cupy("cumulative_sum", x.astype(dtype))
    check_cupy("cumulative_sum", x, dtype=np.float32)
    check_cupy("cumulative_sum", 1.7 * x, dtype=np.int32)
    check_cupy("cumulative_sum", x + 1j, dtype=np.float64)


@pytest.mark.parametrize("reverse", [False, True])
def test_include_initial(reverse, fake_cupy):
    x = random((3, 40, 2))
    for initial in (None, 0.5, random((3, 2), seed=1)):
        for operand in (x, x[:, :0]):
            y = check_cupy(
                "cumulative_sum", operand, axis=1, include_initial=True, initial=initial, reverse=reverse
            )
            assert y.shape == (3, operand.shape[1] + 1, 2)


def test_the_result_is_laid_out_as_x_is(fake_cupy):
    x = random((3, 40, 5)).transpose(2, 0, 1)
    for operand in (x, x[:, ::-1], x[:, :, ::2], np.broadcast_to(x, (2, *x.shape)), np.asfortranarray(x)):
        result = upsweep.cumulative_sum(on(operand), axis=0)
        assert result.strides == upsweep.cumulative_sum(operand, axis=0).strides


def test_peers_names(fake_cupy):
    x, gamma = random((3, 40)), random((3,), seed=1)
    check_cupy("discounted_cumsum_left", x, gamma)
    check_cupy("discounted_cumsum_right", x, 0.5)
    check_cupy("scan_forward", x, x, reverse=True)


def test_the_callers_stream_and_device(fake_cupy, fake_cuda):
    upsweep.discounted_cumsum(on(random(9), 3), 0.5, initial=1.0)
    assert [(p.device, p.stream) for p in fake_cuda.problems] == [(3, 77)]
    assert fake_cupy.current == [0] and not fake_cuda.waited


# ---- the interface by itself -------------------------------------------------------------------------------


def test_arrays_that_have_only_the_interface(fake_cuda):
    x, out = random((3, 40), np.float32), np.zeros((3, 40), np.float32)
    target = Interface(out)
    assert upsweep.discounted_cumsum(Interface(x), 0.5, initial=1.0, out=target) is target
    assert same_bits(out, upsweep.discounted_cumsum(x, 0.5, initial=1.0))
    with pytest.raises(TypeError, match=r"out: has to be given.*Interface"):
        upsweep.discounted_cumsum(Interface(x), 0.5)
    with pytest.raises(TypeError, match="return_final"):
        upsweep.discounted_cumsum(Interface(x), 0.5, out=target, return_final=True)
    with pytest.raises(TypeError, match="return_final, carries"):
        upsweep.discounted_cumsum_carry(Interface(x), 0.5)


def test_they_go_with_any_library(fake_cupy):
    x, out = random((3, 40)), on(np.zeros((3, 40)))
    assert upsweep.cumulative_sum(Interface(x), out=out) is out
    assert isinstance(upsweep.linear_recurrence(on(x), Interface(x)), FakeCupyArray)


def test_streams_of_producers(fake_cupy, fake_cuda):
    x, out = random(9), np.zeros(9)
    upsweep.cumulative_sum(on(x), reset=Interface(x > 0.5, stream=5))
    assert fake_cuda.waited == [(0, 5)] and fake_cuda.problems[-1].stream == 77
    fake_cuda.waited.clear()
    upsweep.linear_recurrence(Interface(x, stream=5), Interface(x, stream=2), out=Interface(out, stream=9))
    assert sorted(fake_cuda.waited) == [(0, 2), (0, 5)] and fake_cuda.problems[-1].stream == 9
    fake_cuda.waited.clear()
    upsweep.cumulative_sum(Interface(x, stream=5), out=Interface(out))
    assert not fake_cuda.waited and fake_cuda.problems[-1].stream == 5
    upsweep.cumulative_sum(Interface(x, stream=1), out=Interface(out))  # the legacy default stream
    assert not fake_cuda.waited and not fake_cuda.problems[-1].stream
    with pytest.raises(ValueError, match="x: its stream is 0"):
        upsweep.cumulative_sum(Interface(x, stream=0), out=Interface(out))


def test_what_the_interface_says_wrong(fake_cuda):
    x = random((3, 4))
    out = np.zeros((3, 4))
    cases = [
        (TypeError, "x: arrays with a mask", {"mask": Interface(x > 0)}),
        (TypeError, "x: expected native byte order", {"typestr": ">f8"}),
        (TypeError, "x: expected real or complex", {"typestr": "|V8"}),
        (TypeError, "x: its typestr 'nonsense'", {"typestr": "nonsense"}),
        (ValueError, "x: its pointer is null", {"data": (0, False)}),
    ]
    for error, match, changes in cases:
        with pytest.raises(error, match=match):
            upsweep.cumulative_sum(Interface(x, **changes), out=Interface(out))
    with pytest.raises(ValueError, match="out: is read-only"):
        upsweep.cumulative_sum(Interface(x), out=Interface(out, read_only=True))
    assert not out.any()
    upsweep.cumulative_sum(Interface(x, read_only=True), out=Interface(out, strides=None, mask=None))
    assert same_bits(out, upsweep.cumulative_sum(x))
    del (interface := Interface(x)).__cuda_array_interface__["stream"]
    upsweep.cumulative_sum(interface, out=Interface(out))


def test_elements_that_no_device_can_load(fake_cuda, fake_cupy):
    records = np.zeros(4, [("flag", "u1"), ("value", "f4"), ("pair", "c8")])
    whole = np.zeros(4, np.float32)
    for odd in (records["value"], records["pair"], records["value"][:1], np.frombuffer(bytes(9), "f4", 2, 1)):
        for array in (Interface(odd), on(odd)):
            with pytest.raises(ValueError, match="x: not all of its elements are at multiples of their size"):
                upsweep.cumulative_sum(array)
    with pytest.raises(ValueError, match="weights: not all of its elements"):
        upsweep.bincount(Interface(np.zeros(4, int)), Interface(records["value"]), out=Interface(np.zeros(4)))
    with pytest.raises(ValueError, match="out: not all of its elements"):
        upsweep.cumulative_sum(Interface(whole), out=Interface(records["value"]))
    assert not (fake_cuda.problems or fake_cuda.counts)
    upsweep.cumulative_sum(Interface(records["flag"], typestr="|i1"), dtype="i1", out=Interface(np.ones(4, "i1")))
    upsweep.cumulative_sum(Interface(whole[1:]), out=Interface(whole[1:]))  # where vectors do not begin


def test_arrays_without_elements_have_no_pointer(fake_cuda):
    empty = Interface(np.zeros((3, 0)), data=(0, False))
    assert upsweep.cumulative_sum(empty, out=empty) is empty
    assert not fake_cuda.problems


def test_outputs(fake_cupy):
    memory = np.arange(60.0)
    x = memory[:20]
    cases = [
        (ValueError, "out: expected shape", np.zeros(19)),
        (TypeError, "out: expected dtype", np.zeros(20, np.float32)),
        (ValueError, "out: overlaps x", memory[1:21]),
        (ValueError, "out: several of its elements", np.lib.stride_tricks.as_strided(memory[40:], (20,), (0,))),
    ]
    for error, match, out in cases:
        with pytest.raises(error, match=match):
            upsweep.cumulative_sum(on(x), out=on(out))
    assert (memory == np.arange(60)).all()
    upsweep.cumulative_sum(on(x), out=on(x))
    assert (x == np.cumsum(np.arange(20))).all()


def test_two_places_in_one_call(fake_cupy, fake_cuda):
    x = random((3, 4))
    cases = [
        (TypeError, "gates: is an array in the host's memory", lambda: upsweep.linear_recurrence(x, on(x))),
        (TypeError, "gamma: is an array in the host", lambda: upsweep.discounted_cumsum(on(x), [0.5] * 4)),
        (TypeError, "reset: is an array in the host", lambda: upsweep.cumulative_sum(on(x), reset=x > 0)),
        (TypeError, "initial: is an array in the host", lambda: upsweep.cumulative_sum(on(x), initial=x[:, 0])),
        (TypeError, r"out: expected a cupy\.ndarray, got ndarray|got numpy",
         lambda: upsweep.cumulative_sum(on(x), out=x)),
        (TypeError, r"out: expected a numpy\.ndarray", lambda: upsweep.cumulative_sum(x, out=on(x))),
        (ValueError, "gates: is on CUDA device 0, tokens on CUDA device 1|tokens: is on CUDA device 1",
         lambda: upsweep.linear_recurrence(on(x), on(x, 1))),
        (ValueError, "out: is on CUDA device 1", lambda: upsweep.cumulative_sum(on(x), out=on(x.copy(), 1))),
        (ValueError, "device: goes with numpy arrays only",
         lambda: upsweep.cumulative_sum(on(x), device="cuda")),
        (ValueError, "device: goes with numpy arrays only",
         lambda: upsweep.discounted_cumsum_carry(on(x), 0.5, device="cpu")),
    ]  # fmt: skip
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()
    assert not fake_cuda.problems
    other = np.array(x)
    fake_cuda.place(other, 2)
    with pytest.raises(ValueError, match="CUDA device 2"):
        upsweep.linear_recurrence(on(x), Interface(other))


def test_two_libraries_in_one_call(fake_cupy, monkeypatch):
    class DeviceArray(Interface):
        __module__ = "numba.cuda.cudadrv.devicearray"

    x = random((3, 4))
    with pytest.raises(TypeError, match=r"tokens: expected a cupy\.ndarray.*numba|expected a numba.*cupy"):
        upsweep.linear_recurrence(on(x), DeviceArray(x))
    with pytest.raises(TypeError, match=r"out: expected a cupy\.ndarray.*numba"):
        upsweep.cumulative_sum(on(x), out=DeviceArray(x.copy()))


def test_numba_allocates(fake_cuda, monkeypatch):
    class DeviceArray(Interface):
        __module__ = "numba.cuda.cudadrv.devicearray"

    bound = []

    def device_array(shape, dtype, stream):
        bound.append(stream)
        return DeviceArray(np.empty(shape, dtype))

    cuda = types.ModuleType("numba.cuda")
    cuda.gpus = {0: __import__("contextlib").nullcontext()}
    cuda.device_array, cuda.external_stream = device_array, lambda stream: ("bound", stream)
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    monkeypatch.setitem(sys.modules, "numba", sys.modules.get("numba", types.ModuleType("numba")))
    x = random((3, 40))
    y, final = upsweep.discounted_cumsum(DeviceArray(x), 0.5, initial=2.0, return_final=True)
    expected, last = upsweep.discounted_cumsum(x, 0.5, initial=2.0, return_final=True)
    assert same_bits(y.array, expected) and same_bits(final.array, last) and bound == [0, 0]
    upsweep.discounted_cumsum(DeviceArray(x, stream=6), 0.5)
    assert bound[2:] == [("bound", 6)]
    carry = upsweep.discounted_cumsum_carry(DeviceArray(x), 0.5)
    np.testing.assert_allclose(carry.apply(2.0).array, last, rtol=1e-12)


# ---- views -------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(fake_cuda):
    """A view of memory that is not there: to read it ends the process."""
    interface = Interface(np.zeros((3, 4), np.float32), data=(NOWHERE, False))
    return _arrays.as_operand(interface, "x")


def test_views_look_without_reading(nowhere):
    assert nowhere.pointer == NOWHERE and nowhere.shape == (3, 4) and nowhere.dtype == np.float32
    for part in (nowhere[1:], nowhere[::-1, ::2], nowhere[0], nowhere[0, 0], nowhere[None], nowhere.T,
                 np.broadcast_to(nowhere, (2, 3, 4)), nowhere.transpose(1, 0)):  # fmt: skip
        assert isinstance(part, _arrays.DeviceView) and part.origin is nowhere.origin
    assert nowhere[::-1].pointer == NOWHERE + 32
    assert np.may_share_memory(nowhere, nowhere[1:]) and not np.shares_memory(nowhere[:1], nowhere[1:])
    assert np.result_type(nowhere, np.float64) == np.float64
    assert "Interface of shape (3, 4)" in repr(nowhere) == str(nowhere) == f"{nowhere}"


@pytest.mark.parametrize("read", [
    lambda a: a + 1, lambda a: 1 - a, lambda a: -a, lambda a: np.add(a, 1), lambda a: np.sum(a),
    lambda a: a.sum(),     lambda a: a.any(), lambda a: a.copy(), lambda a: a.astype(float),
    lambda a: a.tolist(), lambda a: a.item(0),     lambda a: a.reshape(-1), lambda a: a.ravel(),
    lambda a: np.ravel(a), lambda a: a.tobytes(),     lambda a: float(a[0, 0]), lambda a: int(a[0, 0]),
    lambda a: bool(a[0, 0]), lambda a: a[[0, 1]], lambda a: a[a > 0],     lambda a: 3 in a,
    lambda a: a.__setitem__(0, 1), lambda a: a.fill(0), lambda a: a.sort(),
    lambda a: np.where(a, 1, 2),     lambda a: np.concatenate([a, a]),
    lambda a: np.copyto(np.zeros((3, 4)), a), lambda a: a.argmax(),     lambda a: a == 1,
    lambda a: a.__reduce__(), lambda a: list(a.flat), lambda a: np.isnan(a),     lambda a: a.cumsum(),
    lambda a: np.array_equal(a, a), lambda a: a.__dlpack__(),
])  # fmt: skip
def test_views_refuse_to_be_read(read, nowhere):
    with pytest.raises(TypeError):
        read(nowhere)


def assign(target, value):
    target[...] = value


@pytest.mark.parametrize("read", [
    np.asarray, np.array, np.ascontiguousarray, lambda a: np.asarray([a]), lambda a: np.full((3, 4), a),
    lambda a: assign(np.zeros((3, 4)), a), lambda a: a.view(np.ndarray), lambda a: a.view(np.matrix), memoryview,
    float, int, bool, complex, iter, list, tuple, sum, copy.copy, copy.deepcopy, pickle.dumps, np.from_dlpack,
    lambda a: assign(a, 0), lambda a: a.data, lambda a: a.ctypes, lambda a: a.tobytes(),
])  # fmt: skip
def test_descriptors_have_no_buffer(read, nowhere):
    assert not isinstance(nowhere, np.ndarray)
    # np.from_dlpack of numpy 2.0 does not check for the method.
    with pytest.raises((TypeError, AttributeError) if read is np.from_dlpack else TypeError) as caught:
        read(nowhere)
    # Before Python 3.12 a class cannot say what else memoryview should be called with.
    assert "copy the array to the host" in str(caught.value) or read in (memoryview, np.from_dlpack)


def test_descriptors_do_not_change(nowhere):
    for name in ("pointer", "shape", "strides", "dtype", "origin"):
        with pytest.raises(AttributeError):
            setattr(nowhere, name, None)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nowhere.nothing  # noqa: B018  # the access is what is tested


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (3, 1, 4), (0, 3), (2, 3, 4)])
def test_descriptors_have_the_layout_of_numpy(shape, fake_cuda):
    array = np.zeros(shape, np.complex64)
    descriptor = _arrays.as_operand(Interface(array, data=(NOWHERE, False)), "x")
    ones = (slice(None),) * len(shape)
    operations = [
        lambda a: a, lambda a: a.T, lambda a: a.transpose(), lambda a: a[None], lambda a: a[..., None],
        lambda a: a[()], lambda a: a.real, lambda a: a.view(np.float64),
        lambda a: np.broadcast_to(a, (5, *a.shape)),
    ]  # fmt: skip
    for axis, n in enumerate(shape):
        for item in (slice(None, None, -1), slice(1, None), slice(0, 1), slice(None, None, 2), slice(5, 9)):
            operations.append(lambda a, axis=axis, item=item: a[(*ones[:axis], item)])
        operations.append(lambda a, axis=axis: layout.moveaxis(a, axis, 0))
        operations.append(lambda a, axis=axis: layout.moveaxis(a, axis, len(shape) - 1))
        operations += [lambda a, axis=axis, k=k: a[(*ones[:axis], k)] for k in range(-n, n)]
    for operation in operations:
        expected, result = np.asarray(operation(array)), operation(descriptor)
        assert (result.shape, result.dtype, result.size, result.ndim) == (
            expected.shape, expected.dtype, expected.size, expected.ndim,
        )  # fmt: skip
        if expected.size:
            offset = expected.__array_interface__["data"][0] - array.__array_interface__["data"][0]
            assert result.strides == expected.strides or 1 in result.shape
            assert result.pointer == NOWHERE + offset or not shape or not expected.ndim
        for flag in ("c_contiguous", "f_contiguous", "aligned"):
            assert getattr(result.flags, flag) == getattr(expected.flags, flag)


def test_descriptors_refuse_what_numpy_refuses(nowhere):
    for index in (3, (0, 4), (0, 0, 0), -4):
        with pytest.raises(IndexError):
            nowhere[index]
    for shape in ((4,), (3, 5), (3, 4, 1)):
        with pytest.raises(ValueError, match="broadcast"):
            np.broadcast_to(nowhere, shape)
    with pytest.raises(TypeError):
        nowhere[True]
    with pytest.raises(TypeError):
        nowhere.view(np.float64)
    assert not np.broadcast_to(nowhere, (2, 3, 4)).flags.writeable


def test_checks_never_read(fake_cuda):
    def array(offset=0, **changes):
        return Interface(np.zeros((3, 4)), data=(NOWHERE + offset, False), **changes)

    for call in (
        lambda: upsweep.cumulative_sum(array(), out=array(8)),
        lambda: upsweep.cumulative_sum(array(), out=array(4096, strides=(8, 8))),
        lambda: upsweep.linear_recurrence(array(), array(), initial=array(), out=array(4096)),
        lambda: upsweep.discounted_cumsum(array(), array(strides=(0, 8)), axis=2, out=array(4096)),
    ):
        with pytest.raises(ValueError):
            call()


def test_as_array_still_refuses_them(fake_cupy):
    for value in (on(np.zeros(3)), Interface(np.zeros(3)), _arrays.as_operand(on(np.zeros(3)), "x")):
        with pytest.raises(TypeError, match="keys: expected a numpy array"):
            _arrays.as_array(value, "keys")


# ---- carries on a device -----------------------------------------------------------------------------------


def same_carry(result, expected):
    for a, b in zip(result, expected):
        assert isinstance(a, FakeCupyArray) and a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.host, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != BFLOAT16], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_carries(name, dtype, fake_cupy):
    function = getattr(upsweep, f"{name}_carry")
    for shape, axis in [((3, 40), 1), ((40, 3), 0), ((7,), 0), ((3, 0), 1), ((0, 3), 1)]:
        arrays = operands(name, shape, dtype, gamma=-0.9)
        for reset in (None, random(shape, seed=4) > 0.9):
            for reverse in (False, True):
                keywords = {"axis": axis, "reverse": reverse}
                result = function(*map(on, arrays), reset=on(reset), **keywords)
                same_carry(result, function(*arrays, reset=reset, **keywords))


def test_carries_of_every_factor(fake_cupy):
    x = random((3, 40))
    for gamma in (
        0.0,
        1.0,
        -2,
        np.nan,
        np.inf,
        0.3 - 0.4j,
        random((3, 1)),
        random((3, 40)),
        random((3, 1), complex),
    ):
        result = upsweep.discounted_cumsum_carry(on(x), on(gamma))
        same_carry(result, upsweep.discounted_cumsum_carry(x, gamma))
    for dtype in ("bool", "int8", "uint8", "int64", "uint64"):
        same_carry(upsweep.cumulative_sum_carry(on((9 * x).astype(dtype))),
                   upsweep.cumulative_sum_carry((9 * x).astype(dtype)))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_blocks_after_blocks(dtype, fake_cupy):
    gates, x = operands("linear_recurrence", (3, 40), dtype)
    reset = random((3, 40), seed=3) > 0.95
    x[1, 30], gates[2, 5] = np.inf, np.nan
    parts = slice(0, 13), slice(13, 40)
    result = [
        upsweep.linear_recurrence_carry(*(on(a[:, p]) for a in (gates, x)), reset=on(reset[:, p])) for p in parts
    ]
    expected = [upsweep.linear_recurrence_carry(gates[:, p], x[:, p], reset=reset[:, p]) for p in parts]
    same_carry(upsweep.combine(*result), upsweep.combine(*expected))
    for state in (2.0, random((3,), np.float32), random((5, 3)), None):
        both = result[1].apply(on(state)), expected[1].apply(state)
        same_carry(both[:1], both[1:])


def test_what_is_not_combined(fake_cupy):
    x = random((3, 40))
    host, device = upsweep.cumulative_sum_carry(x), upsweep.cumulative_sum_carry(on(x))
    whole = upsweep.cumulative_sum_carry(on(x.astype(int)))
    cases = [
        (TypeError, "carry_a", lambda: upsweep.combine(host, device)),
        (TypeError, "carry_b", lambda: upsweep.combine(device, host)),
        (TypeError, "state", lambda: device.apply(x[:, 0])),
        (TypeError, "carry", lambda: host.apply(on(x[:, 0]))),
        (TypeError, "state", lambda: device.apply(1j)),
        (TypeError, "state", lambda: whole.apply(0.5)),
        (ValueError, "state", lambda: device.apply(on(np.zeros(5)))),
        (ValueError, "carry_b", lambda: upsweep.combine(device, upsweep.cumulative_sum_carry(on(x[:2])))),
        (ValueError, "state: is on CUDA device 1", lambda: device.apply(on(x[:, 0], 1))),
    ]
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()
    mixed = upsweep.combine(device, whole)
    np.testing.assert_allclose(mixed.value.host, x.sum(1) + x.astype(int).sum(1))


# ---- arrays with DLPack alone ------------------------------------------------------------------------------


def dlpack(value):
    return DLPackArray(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_arrays_with_dlpack_alone(name, dtype):
    arrays = operands(name, (3, 40), dtype)
    keywords = {"reset": random((3, 40), seed=2) > 0.9, "initial": random((3,), np.float32, 7)}
    result = getattr(upsweep, name)(
        *map(dlpack, arrays), return_final=True, **{key: dlpack(value) for key, value in keywords.items()}
    )
    expected = getattr(upsweep, name)(*arrays, return_final=True, **keywords)
    for a, b in zip(result, expected):
        assert isinstance(a, DLPackArray) and same_bits(np.ascontiguousarray(a.array), np.ascontiguousarray(b))
    column = getattr(upsweep, name)(*(dlpack(a.T) if isinstance(a, np.ndarray) else a for a in arrays), axis=0)
    assert isinstance(column, DLPackArray) and column.shape == (40, 3)
    one, two = (getattr(upsweep, f"{name}_carry")(*map(make, arrays)) for make in (dlpack, lambda a: a))
    for carries in ((one, two), (upsweep.combine(one, one), upsweep.combine(two, two))):
        for a, b in zip(*carries):
            assert isinstance(a, DLPackArray) and same_bits(a.array, b)
    assert same_bits(one.apply(2.0).array, two.apply(2.0))


def test_arrays_with_dlpack_alone_under_peers_names():
    x, gamma = random((3, 40)), random((3,), seed=1)
    assert same_bits(
        upsweep.discounted_cumsum_left(dlpack(x), dlpack(gamma)).array, upsweep.discounted_cumsum_left(x, gamma)
    )
    assert same_bits(upsweep.pscan(dlpack(x), dlpack(x)).array, upsweep.pscan(x, x))


def test_refused_arrays_with_dlpack_alone():
    class Mute(DLPackArray):
        __array_namespace__ = None

    class Tracer:
        __module__ = "jax._src.interpreters.partial_eval"

    x = random((3, 4))
    cases = [
        (TypeError, "out: .*not written to", lambda: upsweep.cumulative_sum(dlpack(x), out=dlpack(x))),
        (TypeError, "out: .*not written to", lambda: upsweep.cumulative_sum(dlpack(x), out=x)),
        (TypeError, "gates: expected a .*DLPackArray.*got numpy.ndarray",
         lambda: upsweep.linear_recurrence(x, dlpack(x))),
        (TypeError, "reset: expected a .*DLPackArray, .*got list",
         lambda: upsweep.cumulative_sum(dlpack(x), reset=[True])),
        (ValueError, "tokens: is on device",
         lambda: upsweep.linear_recurrence(dlpack(x), DLPackArray(x, (2, 0)))),
        (TypeError, "x: expected memory of the host", lambda: upsweep.cumulative_sum(DLPackArray(x, (7, 0)))),
        (TypeError, "x: .*could not be taken through DLPack",
         lambda: upsweep.cumulative_sum(dlpack(x.astype(x.dtype.newbyteorder())))),
        (TypeError, "has no from_dlpack", lambda: upsweep.cumulative_sum(Mute(x))),
        (TypeError, r"x: .*jax\.jit", lambda: upsweep.cumulative_sum(Tracer())),
        (ValueError, "device: goes with numpy", lambda: upsweep.cumulative_sum(dlpack(x), device="cuda")),
        (ValueError, "device: goes with numpy", lambda: upsweep.cumulative_sum_carry(dlpack(x), device="cpu")),
        (ValueError, "axis", lambda: upsweep.cumulative_sum(dlpack(x), axis=2)),
    ]  # fmt: skip
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()
