"""The text of user-defined scans, compiled by the C++ compiler and run on the host, against the reference."""

import host_device
import numpy as np
import pytest
import upsweep
from device_scan_cases import (
    AFFINE,
    ALL_STATES,
    INDEPENDENT,
    KINDS,
    OTHERS,
    cell,
    check,
    check_not_finite,
    mixed,
    not_finite,
    scan,
    with_places,
)  # fmt: skip
from helpers import BFLOAT16, random
from upsweep._backends.cuda import library, scan_launch, user_scan_launch
from upsweep._compiler.cuda.scans import render as text

pytestmark = host_device.needs_compiler


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scans")


@pytest.fixture
def place(monkeypatch, folder):
    """Arrays of a device, which has no kernels of `linear_recurrence`, and scans no lines in one pass."""
    host_device.install(monkeypatch, folder)
    monkeypatch.setattr(user_scan_launch, "choose_tile_sizes", lambda *a: None)
    monkeypatch.setattr(library, "find", lambda: None)
    return host_device.HostPlace()


def arranged(x):
    """The same shape with the columns as neighbours in memory, with time as neighbours, and as views of more."""
    wide = np.repeat(np.repeat(x, 2, 0), 2, 1)
    return {
        "columns": x,
        "lines": np.asfortranarray(x),
        "view": wide[::-2, ::-2],
        "line view": wide.T.copy().T[1::2, ::2],
    }


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (70, 3), (64, 200), (5, 0)])
def test_layouts(place, shape):
    for x in arranged(random(shape, np.float32)).values():
        check(place, cell, 0.25, x)
        check(place, cell, random(shape[1:], np.float32, 1), x[::-1])


def test_axes_that_are_not_one(place):
    x = random((20, 6, 9), np.float32)
    for view in (
        x[:, ::2, 1:],
        x[:, ::2].transpose(1, 0, 2),
        x[:, :, ::2].transpose(2, 1, 0),
        x.transpose(1, 2, 0),
    ):
        check(place, cell, random(view.shape[2:], np.float32, 1), view)


@pytest.mark.parametrize("order", ["C", "F"])
def test_dtypes_structures_and_inputs_that_repeat(place, order):
    """Float16 and integers beside float32, an input a step, an input a column, outputs of float and bool."""
    x = np.asarray(random((40, 37), np.float32), order=order)
    signs = np.asarray(np.random.default_rng(0).integers(-3, 4, x.shape).astype(np.float16), order=order)
    per_step, per_column = random((40, 1), np.float32, 2), random((1, 37), np.float32, 3)
    check(place, mixed, (0.5, random(37, np.float32, 4)), (x, signs, per_step, per_column))


@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_integers_are_calculated_as_double(place, dtype):
    x = np.random.default_rng(0).integers(0, 2, (30, 40)).astype(dtype)
    (results, last) = scan(place, lambda s, x: 0.5 * s + x, np.zeros(40), x)
    exact = x.astype(float)
    for t in range(1, 30):
        exact[t] += 0.5 * exact[t - 1]
    np.testing.assert_allclose(results, exact)
    np.testing.assert_allclose(last, exact[-1])


@pytest.mark.parametrize(("order", "dtype"), [("C", "float16"), ("F", BFLOAT16)])
def test_short_floats_are_rounded_once(place, order, dtype):
    x = np.asarray(random((50, 40)).astype(dtype), order=order)
    exact = scan(place, cell, 0.25, x.astype(np.float32))[0]
    results = scan(place, cell, np.full(40, 0.25, np.float32), x, dtypes=[dtype])[0]
    np.testing.assert_array_equal(results.astype(float), exact.astype(dtype).astype(float))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_tables_and_matrices(place, dtype):
    names = "sinh cosh tan tanh arcsinh exp2 expm1 rint trunc ceil isfinite nan_to_num signbit"
    of_one = [getattr(np, name) for name in names.split()] + [
        upsweep.sigmoid, upsweep.softplus, upsweep.scan.erf, lambda x: np.log1p(x * x), lambda x: np.log2(2 + x),
        lambda x: np.log10(2 + x), lambda x: np.arccosh(2 + x), lambda x: np.arctanh(0.5 * x),
        lambda x: np.round(x, 1),
    ]  # fmt: skip
    of_two = np.hypot, np.copysign, np.fmod, np.fmin, np.fmax, np.heaviside, np.logaddexp
    table, matrix = np.array([0.5, -0.25, 1.0]), np.array([[0.5, -0.25], [0.125, 0.5]])

    def update(s, x):
        entry = table[np.fmod(np.floor(4 * x), 2).astype(int)].astype(x.dtype)  # from -1 to 1
        functions = [*(f(x) for f in of_one), *(f(x, entry) for f in of_two)]
        return tuple((matrix.astype(x.dtype) @ np.stack(s) + np.tanh(entry))[:2]), tuple(functions)

    x = np.clip(random((40, 37), dtype), -0.99, 0.99)
    check(place, update, (0.25, 0.5), x, tolerance=1e-12 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("name", AFFINE)
def test_affine_updates_in_chunks(place, name):
    update, init = AFFINE[name]
    dtype = np.float64 if name == "rotated" else np.float32
    for length in (1000, 2048, 2503):  # chunks that one thread joins, a whole number of them, many
        check(place, update, init, random(length, dtype), parallel=True)
    if name == "constant":
        check(place, update, init, random((3000, 3), dtype), parallel=True)
        check(place, update, init, random((3, 3000), dtype).T[::-1], parallel=True)


@pytest.mark.parametrize("name", OTHERS)
def test_other_updates_in_chunks(place, name):
    update, init = OTHERS[name]
    for length in (1000, 2503):
        x = np.round(random(length), 2)
        check(place, update, init, with_places(name, x), parallel=True, tolerance=1e-9)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_states_in_chunks(place, name):
    update, init = INDEPENDENT[name]
    for shape in ((1000,), (2503,), (1100, 3)):
        x = np.round(random(shape), 2)
        check(place, update, init, with_places(name, x), parallel=True, tolerance=1e-9)
    x[100], x[600] = np.nan, np.inf
    states = [random(3, np.float64, n) for n in range(len(init))]
    with np.errstate(all="ignore"):
        check(place, update, init, with_places(name, x[:, 0]), parallel=True)
        check(place, update, tuple(states), with_places(name, np.asfortranarray(x)), parallel=True)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
def test_special_values_in_chunks(place, special):
    """What is not finite goes through, is dropped where the update drops it, and does not come back."""
    for name in ("constant", "dropped", "two"):
        update, init = AFFINE[name]
        x = random(2500, np.float32)
        x[[100, 1400]] = special
        x[2000] = 2.0
        with np.errstate(all="ignore"):
            check(place, update, init, x, parallel=True)
            check(place, update, init if name == "two" else special, np.delete(x, [100, 1400]), parallel=True)
    x = random(2500)
    x[1500] = special
    for name in ("moving min", "max with resets", "argmax", "last argmin"):
        update, init = OTHERS[name]
        with np.errstate(all="ignore"):
            results = check(place, update, init, with_places(name, x), parallel=True)
            if name == "max with resets":
                assert np.isfinite(results[0][-500:]).all()
                check(place, update, special, random(2500), parallel=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ALL_STATES)
def test_chunks_that_are_not_finite(monkeypatch, place, name, dtype):
    """Infinities, NaN and overflow in each chunk, as in a loop; no thread goes through all chunks in order."""
    host_device.refuse_order(monkeypatch)
    columns = np.stack([not_finite(kind, dtype, 1500) for kind in KINDS], 1)
    check_not_finite(place, name, dtype, columns)


def test_states_beyond_what_carries_hold(place):
    """Factors whose product overflows in a chunk, or vanishes, before a state that is nothing, or not finite."""
    with np.errstate(all="ignore"):
        growing = np.where(np.arange(3000) < 1500, np.float32(0), np.float32(1e-3))
        check(place, lambda s, x: 4.0 * s * (x == 0) + s * (x != 0) * 0.5 + x, 0.0, growing, parallel=True)
        gates, x = np.full(3000, 1e-3, np.float32), random(3000, np.float32)
        check(place, lambda s, x: x[0] * s + x[1], np.nan, (gates, x), parallel=True)


def test_the_same_bits_for_any_device(monkeypatch, folder, place):
    x = random((2000, 3), np.float32)
    results = []
    for n_slots in (1, 300):
        host_device.install(monkeypatch, folder, n_slots)
        results.append(scan(place, AFFINE["constant"][0], 0.5, x, parallel=True)[0].tobytes())
    assert results[0] == results[1]


def test_gates_and_tokens_go_to_the_library(monkeypatch, place):
    """An update that is a recurrence of gates and tokens is described as one, and only then."""
    seen = []
    monkeypatch.setattr(library, "find", lambda: "a library")
    monkeypatch.setattr(scan_launch, "prepare_scan", lambda problem: problem)
    monkeypatch.setattr(scan_launch, "start_scan", lambda problem, allocate: seen.append(problem))
    x, gates = random((40, 5), np.float32), random((40, 5), np.float32, 1)
    scan(place, lambda s, x: x[1] + s * x[0], 0.5, (gates, x))
    scan(place, lambda s, x: s + x, 0.0, x)
    scan(place, lambda s, x: x + 0.9 * s, random(5, np.float32), x[::-1])
    scan(place, lambda s, x: x[1] + s * x[0], 0.0, (gates, x))  # the first gate is read, though the state is 0
    assert [(bool(p.gates.data), p.gamma_re, bool(p.initial.data)) for p in seen] == [
        (True, 0.0, True), (False, 1.0, False), (False, 0.9, True), (True, 0.0, True),
    ]  # fmt: skip
    assert (
        seen[2].x.time_stride == -20
        and seen[0].x.data == x.ctypes.data
        and seen[0].gates.data == gates.ctypes.data
    )
    for update, xs in (
        (lambda s, x: x[0] * s + x[0], (gates, x)),
        (lambda s, x: 0.9 * s + 0.1 * x, x),
        (lambda s, x: s + x - 1, x),
    ):  # fmt: skip
        check(place, update, 0.5, xs)
    check(place, lambda s, x: s + x, np.float16(0.5), x.astype(np.float16))  # whose last state the library has not
    assert len(seen) == 4


def test_chunks_fill_a_device_and_depend_on_the_shape_alone():
    assert user_scan_launch.cut_time(10_000_000, 1) == user_scan_launch.Chunks(320, 31_250)
    assert user_scan_launch.cut_time(4096, 1000) == user_scan_launch.Chunks(128, 32)
    assert user_scan_launch.cut_time(2**31, 1).n == 32_768


@pytest.mark.parametrize(("columns", "ahead"), [(65_536, 16), (4096, 32), (10**7, 8)])
def test_steps_ahead_keep_enough_bytes_on_the_way(columns, ahead):
    from upsweep._backends.cuda.user_scan_launch import _compact
    from upsweep._compiler.recurrences.trace import trace

    single = np.dtype(np.float32)
    plain = _compact(trace(lambda s, x: s + x, (single,), -1, (single,), -1).recurrence).recurrence
    of_processor = -(-columns // 132)
    assert text.choose_ahead(plain, (text.Stream("float32"),), of_processor) == ahead
    if columns == 65_536:
        assert 24 * 1024 <= 4 * ahead * of_processor <= 64 * 1024


def test_too_many_arrays_are_refused(place):
    many = tuple(random((4, 3), np.float32, n) for n in range(180))
    with pytest.raises(ValueError, match="of 183 inputs, outputs and states is too large for CUDA"):
        scan(place, lambda s, x: s * 0.5 + sum(x), 0.0, many)
