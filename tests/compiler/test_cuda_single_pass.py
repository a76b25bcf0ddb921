"""Lines that are scanned in one pass: their text on the host, with tiles so short that there are many of them.

Some blocks run at the same time, and wait for each other.
"""

import host_device
import numpy as np
import pytest
from device_scan_cases import AFFINE, ALL_STATES, OTHERS, check, check_not_finite, not_finite, scan, with_places
from helpers import random
from upsweep._backends.cuda import library, user_scan_launch
from upsweep._compiler.cuda.scans import single_pass

pytestmark = host_device.needs_compiler

TILE = 512  # steps of float32
SHARED = 227 * 1024
# What a state was is seen many tiles later.
SLOW = lambda s, x: 0.9995 * s + 0.25 * x  # noqa: E731
GATED = lambda s, x: x[1] * s + (1 - x[1]) * x[0]  # noqa: E731
FOUR = lambda s, x: ((0.4 * s[0] - 0.3 * s[3] + x, s[0], s[1], s[2]), s[0] + s[3])  # noqa: E731


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiles")


@pytest.fixture(params=["look back", "waves"])
def place(request, monkeypatch, folder):
    """Arrays of a device: 3 blocks run at a time, 2 warps each; 4 tiles are a group, 4 groups a family.

    In waves there are 7 blocks, and a lane reads the aggregates of 3.
    """
    host_device.install(monkeypatch, folder, 7)
    monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setattr(host_device.HostFunction, "at_once", 3)
    monkeypatch.setattr(single_pass, "MANY_TILES", 1 if request.param == "waves" else 2**60)
    monkeypatch.setattr(single_pass, "LANES", 3)
    monkeypatch.setattr(single_pass, "FULL", 9)
    for name, value in {
        "WARPS": 2,
        "FEW_WARPS": 2,
        "RUN_BYTES": 32,
        "SHORT_RUN_BYTES": 32,
        "GROUP_BITS": 2,
    }.items():
        monkeypatch.setattr(single_pass, name, value)
    return host_device.HostPlace()


@pytest.fixture
def passes(monkeypatch):
    """The sizes of tiles of the plans that are made."""
    seen = []
    choose = single_pass.choose_tile_sizes
    monkeypatch.setattr(user_scan_launch, "choose_tile_sizes", lambda *a: (seen.append(choose(*a)), seen[-1])[1])
    return seen


@pytest.mark.parametrize("name", AFFINE)
def test_affine_updates(place, passes, name):
    update, init = AFFINE[name]
    dtype = np.float64 if name == "rotated" else np.float32
    for length in (TILE + 1, 3 * TILE, 16_500):  # in a group of tiles, in three families
        check(place, update, init, random(length, dtype), parallel=True)
    assert all(passes) and {tile.steps for tile in passes} <= {TILE, TILE // 2}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_that_last(place, dtype):
    check(place, SLOW, 0.5, random(16_500, dtype), parallel=True, tolerance=1e-3 if dtype == np.float32 else 1e-11)


@pytest.mark.parametrize("name", OTHERS)
def test_other_updates(place, name):
    update, init = OTHERS[name]
    for length in (TILE + 1, 5000):
        check(place, update, init, with_places(name, np.round(random(length), 2)), parallel=True, tolerance=1e-9)


def test_lines_of_any_strides(place, passes):
    """Several lines, either direction, some axes of lines, weights that change in time and that do not."""
    x = random((3, 3001), np.float32)
    update, init = SLOW, 0.5
    check(place, update, random(3, np.float32, 1), x.T, parallel=True)
    check(place, update, init, x.T[::-1], parallel=True)
    blocks = random((2, 3, 2, 1600), np.float32)[:, ::2]
    check(place, update, random((2, 2, 2), np.float32), blocks.transpose(3, 0, 1, 2), parallel=True)
    gates = np.random.default_rng(0).uniform(0.999, 1, (3001, 3)).astype(np.float32)
    check(place, GATED, init, (x.T, np.asfortranarray(gates)), parallel=True)
    check(place, GATED, init, (x.T, gates[:1]), parallel=True)
    check(place, FOUR, (0.5, 1.0, -0.5, 0.25), x[0], parallel=True)
    assert all(passes)


@pytest.mark.parametrize("place", ["look back"], indirect=True)
def test_elements_of_any_size(place, passes):
    """Every second element, short floats and integers, outputs of other dtypes, inputs that no state needs."""
    x, update = random((3, 1301), np.float32), SLOW
    check(place, update, 0.5, np.repeat(x, 2, 1)[::-1, ::2].T, parallel=True)
    check(place, AFFINE["constant"][0], 0.5, x[0].astype(np.float16), parallel=True)
    signs = np.sign(x).astype(np.int8)
    check(place, lambda s, x: (0.5 * s + x, s > x), random(3), signs.T, parallel=True)
    check(place, lambda s, x: (s + x[1], s * s * x[0]), 0.5, (x[0], x[1] / 64), parallel=True)
    assert all(passes)


def test_one_launch_for_each_scan(monkeypatch, place):
    launches = []
    monkeypatch.setattr(host_device.HostFunction, "launch", lambda self, *a, **k: launches.append(a[:2]))
    scan(place, *AFFINE["constant"], random(10_000, np.float32), parallel=True)
    scan(place, *AFFINE["constant"], random((3, 10_000), np.float32).T, parallel=True)
    assert launches in ([(20, 64), (60, 64)], [(7, 96), (7, 96)])


@pytest.mark.parametrize("special", [np.nan, -np.inf, 3e38])
def test_special_values(place, special):
    """What is not finite goes through, is dropped where the update drops it, and does not come back."""
    x = random(4000, np.float32)
    x[[100, 2000]] = special
    x[3000] = 2.0
    for name in ("constant", "dropped", "two"):
        update, init = AFFINE[name]
        with np.errstate(all="ignore"):
            check(place, update, init, x, parallel=True)
            check(place, update, init if name == "two" else special, np.delete(x, [100, 2000]), parallel=True)
    x = random(3000)
    x[1500] = special
    for name in ("moving min", "max with resets", "logaddexp", "argmax", "last argmin"):
        update, init = OTHERS[name]
        with np.errstate(all="ignore"):
            check(place, update, init, with_places(name, x), parallel=True)
            if name == "max with resets":
                check(place, update, special, random(3000), parallel=True)


def test_the_worst_of_all_as_a_state(place):
    """A minimum of places begins at infinity, which what is taken last replaces, and nothing else."""
    update = OTHERS["last argmin"][0]
    x = random(2000)
    x[:3] = np.inf
    exclusive = lambda s, x: (update(s, x), s[1])  # noqa: E731
    check(place, exclusive, (np.inf, -1.0), with_places("argmin", x), parallel=True)
    check(place, lambda s, x: np.maximum(s, x), -np.inf, np.where(np.isinf(x), -np.inf, x), parallel=True)


def test_states_beyond_what_carries_hold(place):
    """Factors whose product overflows in a tile, or vanishes, before a state that is nothing, or not finite."""
    with np.errstate(all="ignore"):
        growing = np.where(np.arange(3000) < 1500, np.float32(0), np.float32(1e-3))
        check(place, lambda s, x: 4.0 * s * (x == 0) + s * (x != 0) * 0.5 + x, 0.0, growing, parallel=True)
        check(place, lambda s, x: 2.0 * s + x, 0.0, np.where(growing > 0, growing, 0), parallel=True)
        gates, x = np.full(3000, 1e-3, np.float32), random(3000, np.float32)
        for state in (np.nan, np.inf):
            check(place, lambda s, x: x[0] * s + x[1] * 2, state, (gates, x), parallel=True)
            check(place, AFFINE["constant"][0], state, x, parallel=True)
        check(place, AFFINE["rotated"][0], (np.inf, 0.0), x, parallel=True)


def test_an_infinity_before_factors_that_vanish(place):
    """The product of a tile's factors is no double; only a zero among them makes NaN of an infinite state."""
    gates, x = random(16_000, np.float32, 1, 0.01, 0.6), random(16_000, np.float32)
    x[3] = -np.inf
    with np.errstate(all="ignore"):
        check(place, lambda s, x: x[0] * s + x[1], 0.0, (gates, x), parallel=True)
        check(place, lambda s, x: (0.5 + 0.4 * x) * s + x, 0.0, x, parallel=True)
        gates[9_000] = 0
        check(place, lambda s, x: x[0] * s + x[1], 0.0, (-gates, x), parallel=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ALL_STATES)
def test_tiles_that_are_not_finite_wait_for_no_other(monkeypatch, place, name, dtype):
    """Infinities, NaN and overflow in each tile, as in a loop; no tile is scanned in order."""
    host_device.refuse_order(monkeypatch)
    lines = np.stack([not_finite("both infinities", dtype, 1700), not_finite("finite", dtype, 1700)], 1)
    check_not_finite(place, name, dtype, np.asfortranarray(lines))


@pytest.mark.parametrize("name", ["two", "rotated"])
def test_states_that_are_nan_wait_for_no_other(monkeypatch, place, name):
    """Where every state is NaN and none is dropped, what comes later makes no difference; before that it does."""
    x = not_finite("both infinities", np.float64)
    with np.errstate(all="ignore"):
        check(place, AFFINE[name][0], (0.5, -1.0), x, parallel=True)
        check(place, lambda s, x: (np.where(x > 1, x, s[1]), s[0] + x), (np.nan, np.nan), x, parallel=True)
        check(place, lambda s, x: (x + 0.0, s[0] - s[1]), (np.nan, np.nan), x, parallel=True)
        host_device.refuse_order(monkeypatch)
        check(place, AFFINE[name][0], (np.nan, np.nan), x, parallel=True)


def test_infinite_factors_of_sums_are_scanned_in_order(place):
    """What x * (s + 1) is of an infinite x depends on more than the sign of s."""
    x = not_finite("both infinities", np.float32, 3000)
    for update in (lambda s, x: np.where(x > 1.9, x, 0.75 * x * (s + 0.5)), lambda s, x: s + 0.5 * (x - s)):
        with np.errstate(all="ignore"):
            check(place, update, 0.5, x, parallel=True)


def test_the_same_bits_however_blocks_meet(monkeypatch, place):
    x = random((2, 12_000), np.float32)
    x[1, 8000] = np.inf
    for update in (AFFINE["constant"][0], AFFINE["dropped"][0], lambda s, x: np.logaddexp(s - 0.1, x)):
        results = set()
        for at_once in (1, 2, 5, 5):
            monkeypatch.setattr(host_device.HostFunction, "at_once", at_once)
            results.add(scan(place, update, 0.5, x.T, parallel=True)[0].tobytes())
        assert len(results) == 1


def test_sizes_follow_from_dtypes_and_shapes():
    from upsweep._compiler.recurrences.associative import find_monoid
    from upsweep._compiler.recurrences.trace import trace

    single, double = np.dtype(np.float32), np.dtype(np.float64)
    average = find_monoid(trace(AFFINE["constant"][0], (single,), -1, (single,), -1).recurrence)[0]
    choose = lambda *a: single_pass.choose_tile_sizes(average, 1, *a, 132, SHARED)  # noqa: E731
    assert choose([4], [4], 1, 2**28).steps == 8192 and choose([4], [4], 16, 2**19).steps == 8192
    assert choose([8], [8], 1, 2**28).steps == choose([4, 4], [4], 1, 2**28).steps == 4096
    assert choose([4], [4], 1, 100_000).steps == 2048
    assert choose([4], [4], 1024, 16_384).stages == 6 and not choose([4], [4], 8000, 12_288).stages
    assert choose([4] * 60, [4], 1, 2**28) is None and choose([], [4], 1, 2**28) is None
    coupled = lambda s, x: (x * s[0] + s[1], x * s[1] + s[2], s[0] + x * s[2])  # noqa: E731
    three = find_monoid(trace(coupled, (double,) * 3, 3, (double,), -1).recurrence)[0]
    assert single_pass.choose_tile_sizes(three, 3, [8], [8] * 3, 1, 2**28, 132, SHARED) is None
