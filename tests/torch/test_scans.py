"""The scans on tensors are those on arrays: every keyword, dtype and layout, on the CPU and on CUDA."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, operands, random, sequential
from tensors import DEVICES, check_tensors, to_array, to_tensor, torch
from upsweep.testing import assert_scan_close

LENGTHS = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 127, 128, 129, 500, 1023, 1025, 2047, 2049, 4095, 4097]

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_dtypes_and_directions(name, dtype, device):
    for reverse in (False, True):
        check_tensors(name, *operands(name, (3, 100), dtype), device=device, reverse=reverse)
        check_tensors(name, *operands(name, (130, 33), dtype), device=device, axis=0, reverse=reverse)
        check_tensors(name, *operands(name, (3, 2500), dtype), device=device, reverse=reverse)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64"])
def test_integers(dtype, device):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 1000)).astype(dtype)
    y = upsweep.cumulative_sum(to_tensor(x, device))
    assert y.dtype == torch.int64
    assert (to_array(y) == np.cumsum(x, -1, dtype=np.int64)).all()
    z = upsweep.discounted_cumsum(to_tensor(x, device), 0.5)
    assert z.dtype == torch.get_default_dtype()
    expected = upsweep.discounted_cumsum(x.astype(np.float64), 0.5)
    assert_scan_close(to_array(z), expected, expected)


@pytest.mark.parametrize("name", SCANS)
def test_lengths(name, device):
    for length in LENGTHS:
        check_tensors(name, *operands(name, (3, length), np.float32), device=device)
        check_tensors(name, *operands(name, (3, length), np.float32), device=device, reverse=True)
        check_tensors(name, *operands(name, (length, 37), np.float32), device=device, axis=0)
        check_tensors(name, *operands(name, (2, length, 9), np.float64), device=device, axis=1, reverse=True)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(5, 30), (5, 129), (3, 2500), (2, 40_000)])
@pytest.mark.parametrize("name", SCANS)
def test_states_and_resets(name, shape, reverse, exclusive, device):
    arrays = operands(name, shape, np.float32)
    long_lines = max(shape) >= 10_000
    keywords = {"reverse": reverse, "exclusive": exclusive, "return_final": True, "long_lines": long_lines}
    initial, reset = random(shape[:1], np.float32, 5), random(shape, seed=6) > 0.9
    for ends in (False, True):
        reset[:, [0, -1]] = ends
        check_tensors(name, *arrays, device=device, initial=initial, reset=reset, **keywords)
        check_tensors(name, *arrays, device=device, reset=reset, **keywords)
    check_tensors(name, *arrays, device=device, initial=initial, **keywords)
    down = [a.T if isinstance(a, np.ndarray) else a for a in arrays]
    check_tensors(name, *down, device=device, axis=0, initial=initial, reset=reset.T, **keywords)
    copied = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in down]
    check_tensors(name, *copied, device=device, axis=0, initial=initial, reset=reset.T.copy(), **keywords)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [32768, 65535, 65537, 300_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_lines(dtype, length, reverse, device):
    x, gates = random(length, dtype), random(length, dtype, 1, 0.9, 1.1)
    order = slice(None, None, -1) if reverse else slice(None)
    tokens, factors = to_tensor(x, device), to_tensor(gates, device)
    cases = [
        (upsweep.cumulative_sum(tokens, reverse=reverse), np.ones(length)),
        (upsweep.discounted_cumsum(tokens, 0.999, reverse=reverse), np.full(length, 0.999)),
        (upsweep.discounted_cumsum(tokens, -1.0, reverse=reverse), np.full(length, -1.0)),
        (upsweep.linear_recurrence(factors, tokens, reverse=reverse), gates),
    ]
    for y, multipliers in cases:
        expected = sequential(multipliers[order], x[order])[order]
        scale = sequential(np.abs(multipliers[order]), np.abs(x[order]))[order]
        assert_scan_close(to_array(y), expected, scale)


@pytest.mark.parametrize("rows, length", [(3, 50), (3, 700), (3, 5000), (3, 20_011), (600, 2600)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_initial_state_in_every_regime(dtype, rows, length, device):
    """What a lane takes in several runs begins from it once."""
    initial = 50 * random((rows,), np.float32, 9)
    gates = random((rows, length), np.float64, 1, 0.8, 1).astype(dtype)
    x = random((rows, length), dtype)
    for reverse in (False, True):
        keywords = {"reverse": reverse, "initial": initial, "return_final": True}
        check_tensors("linear_recurrence", gates, x, device=device, **keywords)
        check_tensors("discounted_cumsum", x, 0.99, device=device, **keywords)


@pytest.mark.parametrize("columns", [1, 2, 8, 31, 33, 100])
def test_long_columns(columns, device):
    x, gates = random((20_000, columns), np.float32), random((20_000, columns), np.float32, 1, 0.9, 1.1)
    y = to_array(upsweep.linear_recurrence(to_tensor(gates, device), to_tensor(x, device), axis=0))
    for column in {0, columns // 2, columns - 1}:
        expected = sequential(gates[:, column], x[:, column])
        assert_scan_close(y[:, column], expected, sequential(np.abs(gates[:, column]), np.abs(x[:, column])))


def test_gamma_of_every_shape(device):
    x = random((2, 3, 50), np.float32)
    for shape in [(), (1,), (3, 1), (2, 1, 1), (2, 3, 1), (50,), (3, 50), (2, 3, 50)]:
        check_tensors("discounted_cumsum", x, random(shape, np.float32, 1), device=device)
        check_tensors("discounted_cumsum", x, random(shape, np.float64, 1), device=device)
    check_tensors("discounted_cumsum", x, random((3, 1), np.float32, 1), device=device, axis=1)
    check_tensors("discounted_cumsum", x, 0.5 + 0.5j, device=device)
    assert upsweep.discounted_cumsum(to_tensor(x, device), torch.tensor(0.5)).device.type == device


def test_strides_of_every_kind(device):
    base = random((6, 7, 80), np.float32)
    for x in (base[::2], base[:, ::3], base[:, :, ::2], base[:, :, 1:], base.transpose(2, 0, 1), base[1:2]):
        for axis in range(3):
            check_tensors("discounted_cumsum", x, 0.9, device=device, axis=axis)
            check_tensors("linear_recurrence", x, x[:1], device=device, axis=axis, reverse=True)


def test_unaligned_rows(device):
    flat = torch.from_numpy(random(40_000, np.float32)).to(device)
    for offset in (1, 2, 3):
        for length in (5, 33, 130, 1001, 3001):
            x = flat[offset : offset + 3 * length].view(3, length)
            gates = flat[2 * offset + 1 : 2 * offset + 1 + 3 * length].view(3, length)
            for reverse in (False, True):
                y = upsweep.linear_recurrence(gates, x, reverse=reverse)
                expected = upsweep.linear_recurrence(to_array(gates), to_array(x), reverse=reverse)
                np.testing.assert_allclose(to_array(y), expected, rtol=1e-6, atol=1e-7)


def test_in_place(device):
    for length in (1, 2, 20, 1000, 50_000):
        x, gates = random((3, length), np.float32), random((3, length), np.float32, 1)
        for target in (0, 1):
            tensors = [to_tensor(gates, device).clone(), to_tensor(x, device).clone()]
            expected = upsweep.linear_recurrence(*tensors)
            upsweep.linear_recurrence(*tensors, out=tensors[target])
            assert torch.equal(tensors[target], expected)


@pytest.mark.parametrize("shape", [(40,), (3000,), (3, 100_000), (5000, 20)])
def test_infinities_and_nans(shape, device):
    x, gates = random(shape, np.float32), random(shape, np.float32, 1)
    n = shape[0] if len(shape) == 1 or shape[0] > shape[1] else shape[1]
    axis = 0 if shape[0] == n else 1
    keywords = {"device": device, "axis": axis, "long_lines": n >= 3000}
    at = [slice(None)] * len(shape)
    for value in (np.inf, -np.inf, np.nan):
        for place in (0, n // 3, n - 1):
            spoilt = x.copy()
            at[axis] = place
            spoilt[tuple(at)] = value
            check_tensors("cumulative_sum", spoilt, **keywords)
            check_tensors("discounted_cumsum", spoilt, 0.5, **keywords)
            check_tensors("linear_recurrence", gates, spoilt, **keywords)
            reset = np.zeros(shape, bool)
            at[axis] = min(place + 2, n - 1)
            reset[tuple(at)] = True
            check_tensors("linear_recurrence", gates, spoilt, **keywords, reset=reset)
            worse = gates.copy()
            at[axis] = place
            worse[tuple(at)] = value
            check_tensors("linear_recurrence", worse, x, **keywords)


@pytest.mark.parametrize("bad", [complex(np.inf, 2), complex(1, -np.inf), complex(0, np.nan)])
def test_a_real_factor_multiplies_the_parts_of_a_complex_state(bad, device):
    x = random((3, 200), np.complex128)
    x[:, 17] = bad
    tokens, gates = to_tensor(x, device), to_tensor(random((3, 200), np.float64, 1), device)
    calls = [
        (lambda part: upsweep.cumulative_sum(part)),
        (lambda part: upsweep.discounted_cumsum(part, 0.5)),
        (lambda part: upsweep.discounted_cumsum(part, gates[:, :1])),
        (lambda part: upsweep.linear_recurrence(gates, part)),
    ]
    for call in calls:
        y = call(tokens)
        for result, part in ((y.real, tokens.real), (y.imag, tokens.imag)):
            np.testing.assert_allclose(to_array(result), to_array(call(part.contiguous())), rtol=1e-12, atol=1e-12)


def test_a_complex_gamma_of_real_numbers(device):
    check_tensors("discounted_cumsum", random((3, 200), np.float32), 0.5 - 0.3j, device=device)
    check_tensors("discounted_cumsum", random((3, 200), np.complex64), 0.5 - 0.3j, device=device, reverse=True)


def test_an_output_whose_elements_overlap(device):
    x = to_tensor(random((3, 50), np.float32), device)
    for strides in [(0, 1), (1, 1), (25, 1), (3, 2)]:
        out = torch.zeros(500, device=device).as_strided((3, 50), strides)
        with pytest.raises(ValueError, match="out"):
            upsweep.cumulative_sum(x, out=out)
        assert not out.any()
    for strides in [(60, 1), (1, 3), (1, 4)]:
        out = torch.zeros(500, device=device).as_strided((3, 50), strides)
        assert upsweep.cumulative_sum(x, out=out) is out
        assert_scan_close(to_array(out), np.cumsum(to_array(x), -1, dtype=np.float64), 50.0)


def test_python_numbers_are_not_rounded(device):
    x = random((3, 50), np.float64)
    check_tensors("cumulative_sum", x, initial=0.1, device=device)
    check_tensors("linear_recurrence", x, 0.1, device=device)
    check_tensors("discounted_cumsum", x + 0j, 0.1, initial=0.1 + 0.3j, device=device)
    short = to_tensor(np.ones((3, 50), np.float32), device)
    assert upsweep.linear_recurrence(short, 0.1).dtype == torch.float32
    assert upsweep.linear_recurrence(short.to(torch.int64), 0.1).dtype == torch.get_default_dtype()


def test_numbers_of_numpy(device):
    x = to_tensor(random((3, 50), np.float64), device)
    for number in (np.float32(0.1), np.int8(-3), np.bool_(True), np.uint64(2**63), np.complex64(0.5 + 0.5j)):
        own = number.item()
        for call in (
            lambda n: upsweep.linear_recurrence(x, n),
            lambda n: upsweep.linear_recurrence(n, x),
            lambda n: upsweep.discounted_cumsum(x, n),
            lambda n: upsweep.discounted_cumsum(x + 0j, 0.5, initial=n),
        ):
            y, expected = call(number), call(own)
            assert y.dtype == expected.dtype
            torch.testing.assert_close(y, expected, equal_nan=True, rtol=0, atol=0)
    assert upsweep.linear_recurrence(x, np.complex64(1j)).imag.any()


def test_integers_of_more_than_64_bits(device):
    x = to_tensor(random((3, 50), np.float64), device)
    for number in (2**63, -(10**20), 10**300):
        for call in (
            lambda n: upsweep.discounted_cumsum(x, n),
            lambda n: upsweep.linear_recurrence(x, n),
            lambda n: upsweep.discounted_cumsum(x, 0.5, initial=n),
        ):
            assert torch.equal(call(number).isnan(), call(float(number)).isnan())
            assert torch.equal(call(number).nan_to_num(), call(float(number)).nan_to_num())
    for huge in (10**400, -(10**400)):
        with pytest.raises(ValueError, match="gamma"):
            upsweep.discounted_cumsum(x, huge)
        with pytest.raises(ValueError, match="tokens"):
            upsweep.linear_recurrence(x, huge)
        with pytest.raises(ValueError, match="initial"):
            upsweep.discounted_cumsum(x, 0.5, initial=huge)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -1.0, 2.0, 1e-30, np.inf, np.nan])
def test_gammas(gamma, device):
    for shape in ((3, 30), (3, 700)):
        check_tensors("discounted_cumsum", random(shape, np.float32), gamma, device=device)
        check_tensors("discounted_cumsum", np.zeros(shape, np.float32), gamma, device=device)


def test_many_rows(device):
    for rows in (65535, 65536, 70_000):
        x = random((rows, 3), np.float32)
        check_tensors("discounted_cumsum", x, 0.5, device=device)
        check_tensors("discounted_cumsum", np.ascontiguousarray(x.T), 0.5, device=device, axis=0)


def test_include_initial(device):
    x = random((3, 50), np.float32)
    for reverse in (False, True):
        check_tensors("cumulative_sum", x, device=device, include_initial=True, reverse=reverse)
        initial = random((3,), np.float32, 1)
        check_tensors("cumulative_sum", x, device=device, include_initial=True, initial=initial, reverse=reverse)


def test_same_bits_on_each_run(device):
    x, gates = (to_tensor(random(1_000_000, np.float32, seed, 0.5, 1), device) for seed in (0, 1))
    first = upsweep.linear_recurrence(gates, x)
    for _ in range(5):
        assert torch.equal(upsweep.linear_recurrence(gates, x), first)


def test_peers_names(device):
    x = to_tensor(random((3, 50), np.float32), device)
    gates = to_tensor(random((3, 50), np.float32, 1), device)
    gamma = to_tensor(random((3,), np.float32, 2), device)
    assert torch.equal(upsweep.pscan(gates, x), upsweep.linear_recurrence(gates, x))
    out = torch.empty_like(x)
    assert upsweep.scan_forward(gates, x, True, out) is out
    assert torch.equal(out, upsweep.linear_recurrence(gates, x, reverse=True))
    assert torch.equal(upsweep.discounted_cumsum_left(x, gamma), upsweep.discounted_cumsum(x, gamma[:, None]))
    assert torch.equal(
        upsweep.discounted_cumsum_right(x, gamma), upsweep.discounted_cumsum(x, gamma[:, None], reverse=True)
    )
