"""Aggregates by the CUDA library's kernels against the reference, on the host and on a device."""

import ctypes

import numpy as np
import pytest
import reductions
from helpers import BFLOAT16, random
from host_device import describe
from upsweep import reference
from upsweep._backends.cuda import library, scan_launch

LENGTHS = (1, 2, 31, 32, 33, 127, 128, 129, 1023, 4095, 4097)


LONGER = (65537, (1 << 20) + 1)  # where they are many chunks without smaller ones
ON_DEVICE = pytest.param("device", marks=pytest.mark.cuda)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return reductions.compile_library(tmp_path_factory.mktemp("reduce"))


@pytest.fixture(params=["host", ON_DEVICE])
def place(request, monkeypatch):
    """The class of the arrays: where the kernels run."""
    if request.param == "device":
        return reductions.DeviceArrays
    compiled = request.getfixturevalue("compiled")
    monkeypatch.setattr(library, "load", lambda: compiled)
    monkeypatch.setattr(library, "check_device", lambda device: None)
    return reductions.HostArrays


def placed(array, offset=0):
    """Copy an array to `offset` elements after a multiple of 16 bytes."""
    memory = np.zeros(array.nbytes + offset * array.itemsize + 16, np.uint8)
    begin = -memory.ctypes.data % 16 + offset * array.itemsize
    view = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def numbers(shape, dtype, seed, low=-1.0, high=1.0):
    if np.dtype(dtype).kind in "biu":
        return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    return random(shape, dtype, seed, low, high)


def expected(x, gates, gamma, reset, initial, axis, reverse):
    """Return the reference's aggregate in float64, with `value` from the initial state, and the sum of sizes."""
    wide = x if x.dtype.kind in "biu" else x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    where = {"axis": axis, "reverse": reverse, "reset": reset}
    if gates is not None:
        gates = gates.astype(np.complex128 if gates.dtype.kind == "c" else np.float64)
        carry = reference.linear_recurrence_carry(gates, wide, **where)
        size = reference.linear_recurrence_carry(np.abs(gates), np.abs(wide), **where).value
    elif gamma is None:
        carry = reference.cumulative_sum_carry(wide, **where)
        size = reference.cumulative_sum_carry(np.abs(wide.astype(wide.dtype)), **where).value
    else:
        by = np.expand_dims(gamma, axis) if isinstance(gamma, np.ndarray) else gamma
        carry = reference.discounted_cumsum_carry(wide, by, **where)
        size = reference.discounted_cumsum_carry(np.abs(wide), np.abs(by), **where).value
    if initial is None:
        return *carry, size
    with np.errstate(all="ignore"):
        state = np.where(carry.reset, 0, initial)
        return (
            carry.multiplier,
            np.where(carry.reset, carry.value, carry.multiplier * state + carry.value),
            carry.reset,
            size,
        )


def check(place, x, gates=None, gamma=None, reset=None, initial=None, axis=-1, reverse=False):
    axis %= x.ndim
    results = reductions.reduce(place, x, gates, gamma, reset, initial=initial, axis=axis, reverse=reverse)
    multiplier, value, dropped, size = expected(x, gates, gamma, reset, initial, axis, reverse)
    np.testing.assert_allclose(results[0], multiplier, rtol=1e-11, atol=1e-300)
    if value.dtype.kind in "iu":
        np.testing.assert_array_equal(results[1], value)
    elif np.isfinite(value).all() and np.isfinite(size).all():
        scale = size + (0 if initial is None else np.abs(initial))
        assert (np.abs(results[1] - value) <= 1e-13 * scale + 1e-300).all()
    else:
        np.testing.assert_allclose(results[1], value, rtol=1e-11)
    np.testing.assert_array_equal(results[2], dropped)


def factors(kind, shape, axis, dtype, seed):
    """gates and gamma."""
    if kind == "gates":
        return numbers(shape, dtype, seed, 0.9, 1.01), None
    if kind == "per line":
        return None, random(tuple(np.delete(shape, axis)), seed=seed, low=-1.0, high=1.0)
    return None, {"sum": None, "number": -0.995}[kind]


KINDS = ("sum", "number", "per line", "gates")


@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind, place):
    for seed, length in enumerate(LENGTHS + (LONGER if place is reductions.DeviceArrays else ())):
        several = (("float32", 0), ("float32", 1 + seed % 3), (BFLOAT16, seed % 8))
        for dtype, offset in several if length < 10_000 else several[1:2]:  # the reference is slow
            shape = (3 if length < 1000 else 1, length)
            x = placed(numbers(shape, dtype, seed), offset)
            gates, gamma = factors(kind, shape, 1, dtype, seed + 1)
            # Gates that begin elsewhere than x are read an element at a time.
            gates = None if gates is None else placed(gates, offset if seed % 3 else 0)
            reset = random(shape, seed=seed) > 0.99 if seed % 2 else None
            initial = random(shape[:1], seed=seed) if seed % 4 < 2 else None
            check(place, x, gates, gamma, reset, initial, reverse=bool(seed // 2 % 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_many_chunks(kind, place):
    x = numbers((1, 65537), "float32", 0)
    gates, gamma = factors(kind, x.shape, 1, "float32", 1)
    reset = random(x.shape, seed=4) > 0.9999 if kind in ("sum", "per line") else None
    check(place, placed(x, 3), gates, gamma, reset, np.array([0.5]), reverse=kind in ("number", "per line"))


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16, "float32", "float64"], ids=str)
def test_layouts(dtype, place):
    seed = 0
    for shape, axis in (((300, 16), 0), ((700, 33), 0), ((2, 260, 24), 1), ((4, 600), 1), ((3, 5, 70), 1)):
        for kind in KINDS:
            for reset in (None, random(shape, seed=seed) > 0.98):
                gates, gamma = factors(kind, shape, axis, dtype, seed + 1)
                initial = random(tuple(np.delete(shape, axis)), seed=seed) if seed % 3 == 0 else None
                x = placed(numbers(shape, dtype, seed), seed % 2)
                check(place, x, gates, gamma, reset, initial, axis, reverse=seed % 4 > 1)
                seed += 1


@pytest.mark.parametrize("length", [0, 40, 1500])
def test_any_dtype_and_strides(length, place):
    shape, where = (3, length), {"axis": 1}
    for dtype in ("bool", "int8", "uint16", "int32", "uint64", "int64"):
        check(place, numbers(shape, dtype, 1), reset=random(shape, seed=2) > 0.99, **where)
        check(place, numbers((length, 9), dtype, 1), axis=0, reverse=True)
    x, gates = random(shape, "complex64", 1), random(shape, "complex128", 2, -0.7, 0.7)
    reset = random(shape, seed=3) > 0.99
    check(place, x, gates, None, reset, **where)
    check(place, x, gates.real, None, None, random((3,), complex, 5), **where)
    check(place, x.real, gates, reverse=True, **where)
    check(place, x, None, 0.5 - 0.5j, **where)
    check(place, x, None, 0.5, reset, **where)
    check(place, x.real, None, random((3,), complex, 4, -0.7, 0.7), **where)
    wide = random((3, 2 * length), "float32", 5)
    check(place, wide[:, ::2], wide[:, ::-2], None, reset, reverse=True, **where)
    check(place, np.broadcast_to(wide[:1, :length], shape), np.asfortranarray(gates.real), None, None, **where)
    check(place, np.broadcast_to(np.float32(2), shape), gates.real.astype(np.float32), None, None, **where)


def test_more_axes_than_a_launch_takes(place):
    shape = (2, 3, 2, 3, 2, 3, 2, 3, 11)
    whole = random(tuple(n + 1 for n in shape), "float32")
    x, gates = whole[tuple(slice(n) for n in shape)], random(shape, "float32", 1)
    reset = np.broadcast_to(random((3, 11), seed=2) > 0.9, shape)
    check(place, x, gates, None, reset)
    check(place, x, None, random(shape[:-1], seed=3), None, random(shape[:-1], seed=4), reverse=True)


def test_launches_that_begin_inside_a_vector(place):
    """Axes that a launch leaves out may move an array by a part of a vector."""
    inner = [(3**k) * 1056 for k in range(6)]
    for shape, own in (((128,), (4,)), ((300, 8), (32, 4))):
        steps = 10000 * len(own) + sum(inner)
        strides = (2 * steps // 16 * 16 + 4, *(step * (1 if len(own) == 1 else 10) for step in inner[::-1]), *own)
        steps = (2, *([2] * 6), *shape)
        n_bytes = sum((n - 1) * stride for n, stride in zip(steps, strides)) + 4
        memory = placed(random((n_bytes // 4,), "float32"))
        x = np.lib.stride_tricks.as_strided(memory, steps, strides)
        gates = np.lib.stride_tricks.as_strided(placed(random((n_bytes // 4,), "float32", 1)), steps, strides)
        check(place, x, gates, axis=7)


def test_many_lines(place):
    for shape in ((4100, 40), (700, 33), (9000, 1)):
        x, gates = numbers(shape, "float32", 0), numbers(shape, "float32", 1)
        check(place, x, gates, initial=random(shape[:1], seed=2))
        check(place, x, None, random(shape[:1], seed=3), reset=random(shape, seed=4) > 0.9)


HAZARDS = (
    "inf",
    "nan",
    "both",
    "zero after inf",
    "overflow",
    "underflow",
    "large forgotten",
    "resets",
    "first gate",
)


@pytest.mark.parametrize("length", [100, 901, 9002])
@pytest.mark.parametrize("hazard", HAZARDS)
def test_what_leaves_the_range_or_is_not_finite(hazard, length, place):
    x, gates, reset = np.ones((2, length)), np.full((2, length), 0.99), np.zeros((2, length), bool)
    third, half = length // 3, length // 2
    if hazard == "inf":
        x[0, third], x[1, 0], gates[1] = np.inf, -np.inf, 1e-3
        gates[1, :301] *= -1  # an odd number of them in a chunk that an infinite state passes
    elif hazard == "nan":
        x[0, third], gates[1, half], reset[0, half] = np.nan, np.nan, True
    elif hazard == "both":
        x[0, third], x[0, half] = np.inf, -np.inf
    elif hazard == "zero after inf":
        x[0, 0], gates[0, half], gates[1, third] = np.inf, 0, -np.inf
    elif hazard == "overflow":  # of the factors: the states before and after are numbers
        x[0, :half], gates[0, third:half], gates[0, half + 1 :] = 0, 1e30, 0.5
        gates[1] = 1.5
    elif hazard == "underflow":
        x[0, third:half], gates[0, third:half] = 1e200, 1e-30
        gates[1] = 1e-40
    elif hazard == "large forgotten":
        x[:, 1:], x[:, 0] = 0, 1e300
        gates[0], gates[1] = 1, 0.5
        gates[0, third : third + 170] = 0.01  # by 1e-340 in all
    elif hazard == "resets":
        x[0, 0] = x[1, -1] = np.inf
        reset[0, 0] = reset[0, 1] = reset[1, -1] = True
    elif hazard == "first gate":
        gates[0, 0], gates[0, -1], gates[1], gates[1, 0] = np.nan, np.nan, 1e-3, np.inf
    for reverse in (False, True):
        for dtype in (float, np.float32):
            with np.errstate(all="ignore"):
                rounded = [array.astype(dtype) for array in (x, gates)]
                results = reductions.reduce(place, *rounded, None, reset, reverse=reverse)
                carry = reference.linear_recurrence_carry(
                    rounded[1].astype(float),
                    rounded[0].astype(float),
                    reverse=reverse,
                    reset=reset,
                )
            np.testing.assert_allclose(results[1], carry.value, rtol=1e-9, atol=1e-300)
            np.testing.assert_array_equal(results[2], carry.reset)
            np.testing.assert_allclose(results[0], carry.multiplier, rtol=1e-9, atol=1e-290)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -1.0, 2.0, 1e-200, 1e200, np.inf, np.nan])
def test_factors_of_every_kind(gamma, place):
    for shape, axis in (((2, 70), 1), ((1, 1500), 1), ((1500, 8), 0)):
        x = numbers(shape, "float64", 0)
        check(place, x, None, gamma, axis=axis)
        check(place, x, None, np.full(np.delete(shape, axis), gamma), axis=axis, reverse=True)


def test_a_state_alone_and_the_same_bits(place):
    x, gates = numbers((2, 5000), "float32", 0), numbers((2, 5000), "float32", 1)
    three = reductions.reduce(place, x, gates)
    for _ in range(2):
        again = reductions.reduce(place, x, gates)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(three, again))
    alone = reductions.reduce(place, x, gates, only_value=True)
    assert alone[1].tobytes() == three[1].tobytes()
    assert (alone[0] == 77).all() and alone[2].all()


def test_a_workspace_that_is_too_small_is_refused(compiled):
    x = describe(numbers((1, 5000), "float32", 0))
    value = describe(np.empty(1))
    r = scan_launch.reduction(
        x, None, None, None, None, None, value, None, axis=1, reverse=False, device=0, stream=0
    )
    with pytest.raises(ValueError, match=r"workspace: [1-9][0-9]* bytes are needed, 0 were given"):
        compiled.reduce(ctypes.byref(r))
