"""Hazard: bad input. ValueError or TypeError before any work, with the argument's name in the message."""

import re

import numpy as np
import pytest
import upsweep
from helpers import SCANS, operands

NAMED = {
    "cumulative_sum": ["x"],
    "discounted_cumsum": ["x", "gamma"],
    "discounted_cumsum_left": ["x", "gamma"],
    "discounted_cumsum_right": ["x", "gamma"],
    "linear_recurrence": ["gates", "tokens"],
    "pscan": ["gates", "tokens"],
    "scan_forward": ["gates", "tokens"],
    "cumulative_sum_carry": ["x"],
    "discounted_cumsum_carry": ["x", "gamma"],
    "linear_recurrence_carry": ["gates", "tokens"],
}
NO_NUMBERS = {
    "string": "abc",
    "array of strings": np.array(["1", "2", "3"]),
    "bytes": np.array([b"1", b"2", b"3"]),
    "objects": np.array([1, 2.0, None], object),
    "numbers as objects": np.array([1, 2, 3], object),
    "masked array": np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]),
    "ragged list": [[1.0, 2.0], [3.0]],
    "none": None,
    "dates": np.array(["2020-01-01"] * 3, "M8[D]"),
    "durations": np.array([1, 2, 3], "m8[s]"),
    "records": np.zeros(3, [("a", float)]),
    "dictionary": {"a": 1},
    "a function": abs,
}


@pytest.mark.parametrize("label", NO_NUMBERS)
@pytest.mark.parametrize("name", NAMED)
def test_what_holds_no_numbers(name, label):
    for argument in NAMED[name]:
        arguments = dict.fromkeys(NAMED[name], np.ones(3)) | {argument: NO_NUMBERS[label]}
        error = (TypeError, ValueError) if label == "ragged list" else TypeError
        with pytest.raises(error, match=rf"\b{argument}\b"):
            getattr(upsweep, name)(**arguments)


@pytest.mark.parametrize("name", NAMED)
def test_numbers_wider_than_any_kernel(name):
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("longdouble is float64 on this platform")
    first = NAMED[name][-1] if "gates" in NAMED[name] else "x"
    arguments = dict.fromkeys(NAMED[name], np.ones(3)) | {first: np.ones(3, np.longdouble)}
    with pytest.raises(TypeError, match=rf"\b{first}\b"):
        getattr(upsweep, name)(**arguments)


@pytest.mark.parametrize("name", [name for name in NAMED if not name.startswith(("pscan", "scan_f", "linear"))])
def test_a_scan_without_an_axis(name):
    arguments = dict.fromkeys(NAMED[name], 0.5)
    for zero_d in (1.0, np.array(1.0), np.float32(1)):
        with pytest.raises(ValueError, match=r"\bx\b"):
            getattr(upsweep, name)(**(arguments | {"x": zero_d}))


def test_a_recurrence_without_an_axis():
    with pytest.raises(ValueError, match=r"gates|tokens"):
        upsweep.linear_recurrence(1.0, 2.0)


@pytest.mark.parametrize("axis", [2, -3, 10**9, -(10**20)])
@pytest.mark.parametrize("name", SCANS)
def test_an_axis_out_of_range(name, axis):
    with pytest.raises((np.exceptions.AxisError, OverflowError), match="axis"):
        getattr(upsweep, name)(*operands(name, (3, 4)), axis=axis)


@pytest.mark.parametrize("axis", [1.0, -1.0, "0", (0,), [1], np.array([-1]), np.float64(-1)])
@pytest.mark.parametrize("name", SCANS)
def test_an_axis_that_is_no_int(name, axis):
    with pytest.raises(TypeError, match="axis"):
        getattr(upsweep, name)(*operands(name, (3, 4)), axis=axis)


@pytest.mark.parametrize("axis", [np.int8(-1), np.array(-1), np.array(1, np.uint8)])
@pytest.mark.parametrize("name", SCANS)
def test_an_axis_of_another_integer_type(name, axis):
    arrays = operands(name, (3, 4))
    np.testing.assert_array_equal(getattr(upsweep, name)(*arrays, axis=axis), getattr(upsweep, name)(*arrays))


@pytest.mark.parametrize(("axis", "remedy"), [(0, "[:, None, None]"), (1, "[:, None]")])
def test_one_number_for_each_step_needs_the_other_axes(axis, remedy):
    x = np.ones((5, 4, 3))
    reset = np.arange(x.shape[axis]) == 2
    with pytest.raises(ValueError, match=f"index of axis {axis}, pass reset{re.escape(remedy)}$"):
        upsweep.cumulative_sum(x, axis=axis, reset=reset)
    assert upsweep.cumulative_sum(x, axis=axis, reset=eval(f"reset{remedy}")).max() == x.shape[axis] - 2
    with pytest.raises(ValueError, match=r"reset \(7,\)$"):
        upsweep.cumulative_sum(x, reset=np.zeros(7, bool))
    with pytest.raises(ValueError, match=r"index of axes \(0, 1\), pass reset\[:, :, None\]$"):
        upsweep.cumulative_sum(x, axis=1, reset=np.zeros((5, 4), bool))
    with pytest.raises(ValueError, match=r"shape \(5, 3\) .* to the state's \(5, 4\); it would fit axis=1$"):
        upsweep.cumulative_sum(x, initial=np.zeros((5, 3)))


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 3), (3, 2)), ((2, 1), (3, 4)), ((0,), (2,))])
def test_shapes_that_do_not_broadcast(shapes):
    a, b = (np.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"gates|tokens"):
        upsweep.linear_recurrence(a, b)
    with pytest.raises(ValueError, match=r"gates|tokens"):
        upsweep.pscan(a, b)
    with pytest.raises(ValueError, match="gamma"):
        upsweep.discounted_cumsum(a, b)


@pytest.mark.parametrize("name", SCANS)
def test_reset(name):
    arrays = operands(name, (3, 4))
    for shape in [(3,), (4, 3), (2, 4), (5,)]:
        with pytest.raises(ValueError, match="reset"):
            getattr(upsweep, name)(*arrays, reset=np.zeros(shape, bool))
    for reset in (
        np.zeros((3, 4)),
        np.zeros((3, 4), np.int64),
        "yes",
        np.zeros((3, 4), object),
        [[0.5] * 4] * 3,
    ):
        with pytest.raises(TypeError, match="reset"):
            getattr(upsweep, name)(*arrays, reset=reset)
    dones = np.array([0, 0, 1, 0], np.float32)
    with pytest.raises(TypeError, match=r"reset: .* float32; .* use dones > 0: .* before ~dones is used$"):
        getattr(upsweep, name)(*arrays, reset=dones)
    with pytest.raises(TypeError, match=r"reset: .* int64; .*np.isin\(np.arange\(n\), cu_seqlens\[:-1\]\)"):
        getattr(upsweep, name)(*arrays, reset=np.array([0, 1, 4]))
    getattr(upsweep, name)(*arrays, reset=dones > 0)


@pytest.mark.parametrize("name", SCANS)
def test_initial(name):
    arrays = operands(name, (3, 4))
    for shape in [(4,), (2,), (3, 1), (1, 3), (3, 4), (0,)]:
        with pytest.raises(ValueError, match="initial"):
            getattr(upsweep, name)(*arrays, initial=np.zeros(shape))
    for initial in ("0", np.array(["0"] * 3), np.array([None] * 3), np.ma.zeros(3), [[1.0], [2.0, 3.0], []]):
        with pytest.raises((TypeError, ValueError), match="initial"):
            getattr(upsweep, name)(*arrays, initial=initial)


def test_a_complex_initial_of_a_real_scan():
    with pytest.raises((TypeError, ValueError), match="initial"):
        upsweep.cumulative_sum(np.ones(3), initial=1j)


@pytest.mark.parametrize("dtype", ["U3", object, "M8[s]", "nope", "i4,,", 3.5, [1], "(2,)f8"])
def test_dtype(dtype):
    for call in (
        lambda: upsweep.cumulative_sum(np.ones(3), dtype=dtype),
        lambda: upsweep.cumulative_sum_carry(np.ones(3), dtype=dtype),
        lambda: upsweep.bincount([1, 2], dtype=dtype),
    ):
        with pytest.raises(TypeError, match=r"^dtype: "):
            call()


@pytest.mark.parametrize("name", SCANS)
def test_device(name):
    arrays = operands(name, (3, 4))
    assert getattr(upsweep, name)(*arrays, device="cpu").shape == (3, 4)
    for device in ("gpu", "tpu:0", "", "cuda:-1", "cuda:4294967296"):
        with pytest.raises(ValueError, match="device"):
            getattr(upsweep, name)(*arrays, device=device)
    for device in (0, 1.5, np.ones(3)):
        with pytest.raises((TypeError, ValueError), match="device"):
            getattr(upsweep, name)(*arrays, device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("name", SCANS)
def test_cuda_without_its_library_says_what_is_missing(name, device):
    try:
        getattr(upsweep, name)(*operands(name, (3, 4)), device=device)
    except RuntimeError as error:
        missing = "cuda.*(device|driver)" if upsweep.show_config()["cuda_library"] else "cuda.*librar|librar.*cuda"
        assert re.search(f"(?i){missing}", str(error))
    else:
        config = upsweep.show_config()
        assert config["cuda_library"], "something ran on a device that the configuration denies"


@pytest.mark.parametrize("name", SCANS)
def test_unknown_and_positional_keywords(name):
    arrays = operands(name, (3, 4))
    with pytest.raises(TypeError):
        getattr(upsweep, name)(*arrays, axes=0)
    with pytest.raises(TypeError):
        getattr(upsweep, name)(*arrays, -1, False)
    with pytest.raises(TypeError):
        getattr(upsweep, name)()


def test_matrices_do_not_change_their_shape():
    x = np.asmatrix([[1.0, 2.0], [3.0, 4.0]])
    try:
        y = upsweep.cumulative_sum(x, axis=1)
    except TypeError as error:
        assert "x" in str(error)
    else:
        np.testing.assert_array_equal(np.asarray(y), [[1, 3], [3, 7]])


def test_inputs_are_never_written_to():
    arrays = [np.ones((3, 50)), np.full((3, 1), 0.5)]
    upsweep.discounted_cumsum(*arrays, initial=arrays[1][:, 0], exclusive=True)
    assert (arrays[0] == 1).all() and (arrays[1] == 0.5).all()


LAYOUTS = [np.ones(3), np.ones(3, np.float32), np.ones(3, np.float16), np.ones(3, int), np.ones(3, complex)]


@pytest.mark.parametrize("x", LAYOUTS + [np.ones((2, 3))[:, ::2]], ids=lambda x: f"{x.dtype}-{x.shape}")
def test_integers_of_more_than_64_bits(x):
    many = -(10**20)
    np.testing.assert_array_equal(upsweep.discounted_cumsum(x, many), upsweep.discounted_cumsum(x, -1e20))
    y = upsweep.linear_recurrence(many, x)
    assert y.dtype == upsweep.linear_recurrence(2, x).dtype
    np.testing.assert_array_equal(y, upsweep.linear_recurrence(-1e20, x))
    np.testing.assert_array_equal(
        upsweep.discounted_cumsum(x, 0.5, initial=2**70), upsweep.discounted_cumsum(x, 0.5, initial=2.0**70)
    )
    for call, argument in (
        (lambda huge: upsweep.discounted_cumsum(x, huge), "gamma"),
        (lambda huge: upsweep.discounted_cumsum(x, huge, reverse=True, axis=0), "gamma"),
        (lambda huge: upsweep.discounted_cumsum_right(x, huge), "gamma"),
        (lambda huge: upsweep.discounted_cumsum_carry(x, huge), "gamma"),
        (lambda huge: upsweep.linear_recurrence(huge, x), "gates"),
        (lambda huge: upsweep.discounted_cumsum(x, 0.5, initial=huge), "initial"),
    ):
        for huge in (10**400, -(10**5000)):
            with pytest.raises(ValueError, match=rf"^{argument}: .* float64"):
                call(huge)


def test_an_initial_that_no_integer_state_holds():
    for initial in (2**64, -(2**63) - 1, 10**20):
        with pytest.raises(TypeError, match="initial"):
            upsweep.cumulative_sum(np.ones(3, int), initial=initial)
