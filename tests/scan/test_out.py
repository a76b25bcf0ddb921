"""Hazard: an output of the wrong kind, which has to be refused before anything is written."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, operands, poisoned, same_bits


def read_only(shape, dtype):
    out = poisoned(shape, dtype)
    out.flags.writeable = False
    return out


def all_one_element(shape, dtype):
    return np.lib.stride_tricks.as_strided(poisoned(1, dtype), shape, (0,) * len(shape))


def strided(shape, dtype, strides):
    """An array with these strides, in elements, somewhere inside of its memory."""
    memory = poisoned(2000, dtype)
    steps = [int(step * memory.itemsize) for step in strides]
    return np.lib.stride_tricks.as_strided(memory[1000:], shape, steps)


WRONG = {
    "too small": (lambda: poisoned((3, 49), "float32"), ValueError),
    "too large": (lambda: poisoned((3, 51), "float32"), ValueError),
    "transposed": (lambda: poisoned((50, 3), "float32"), ValueError),
    "one axis less": (lambda: poisoned((150,), "float32"), ValueError),
    "one axis more": (lambda: poisoned((1, 3, 50), "float32"), ValueError),
    "a wider dtype": (lambda: poisoned((3, 50), "float64"), TypeError),
    "a narrower dtype": (lambda: poisoned((3, 50), "float16"), TypeError),
    "an integer dtype": (lambda: poisoned((3, 50), "int32"), TypeError),
    "complex": (lambda: poisoned((3, 50), "complex64"), TypeError),
    "read-only": (lambda: read_only((3, 50), "float32"), ValueError),
    "a list": (lambda: [[0.0] * 50] * 3, TypeError),
    "a string": (lambda: "out", TypeError),
    "all one element": (lambda: all_one_element((3, 50), "float32"), ValueError),
    "one row for all": (lambda: strided((3, 50), "float32", (0, 1)), ValueError),
    "a window that slides": (lambda: strided((3, 50), "float32", (1, 1)), ValueError),
    "rows that overlap": (lambda: strided((3, 50), "float32", (49, 1)), ValueError),
    "columns that overlap": (lambda: strided((3, 50), "float32", (1, 2)), ValueError),
    "elements that overlap": (lambda: strided((3, 50), "float32", (100, 0.5)), ValueError),
    "rows that run into each other": (lambda: strided((3, 50), "float32", (-6, 3)), ValueError),
}


@pytest.mark.parametrize("label", WRONG)
@pytest.mark.parametrize("name", SCANS)
def test_refused(name, label):
    make, error = WRONG[label]
    out = make()
    before = np.array(out, copy=True)
    with pytest.raises(error, match="out"):
        getattr(upsweep, name)(*operands(name, (3, 50), np.float32), out=out)
    assert same_bits(np.array(out), before)


def test_the_message_says_what_came_and_what_was_expected():
    with pytest.raises(ValueError, match=r"out.*\(3, 50\)") as caught:
        upsweep.cumulative_sum(np.ones((3, 50)), out=np.empty((3, 49)))
    assert "(3, 49)" in str(caught.value)
    with pytest.raises(TypeError, match=r"out.*float") as caught:
        upsweep.cumulative_sum(np.ones((3, 50)), out=np.empty((3, 50), np.float32))
    assert "float32" in str(caught.value) and "float64" in str(caught.value)


def test_complex_gamma_on_a_real_output():
    x = np.ones(5)
    with pytest.raises(TypeError, match="out"):
        upsweep.discounted_cumsum(x, 0.5j, out=x)
    assert (x == 1).all()


@pytest.mark.parametrize("name", SCANS)
def test_an_error_leaves_out_untouched(name):
    arrays = operands(name, (3, 50))
    out = poisoned((3, 50), np.float64)
    before = out.copy()
    for wrong in ({"initial": np.ones(7)}, {"reset": np.ones(7, bool)}, {"axis": 2}, {"reset": "no"}):
        with pytest.raises((ValueError, TypeError)):
            getattr(upsweep, name)(*arrays, out=out, **wrong)
        assert same_bits(out, before)


@pytest.mark.parametrize("name", ["discounted_cumsum_left", "discounted_cumsum_right", "scan_forward"])
def test_the_named_forms_take_out(name):
    first = np.full((2, 9), 0.5) if name == "scan_forward" else np.ones((2, 9))
    second = np.ones((2, 9)) if name == "scan_forward" else 0.5
    out = poisoned((2, 9), np.float64)
    assert getattr(upsweep, name)(first, second, out=out) is out
    np.testing.assert_array_equal(out, getattr(upsweep, name)(first, second))


def test_return_final_comes_with_out_itself():
    out = poisoned(9, np.float64)
    y, final = upsweep.cumulative_sum(np.ones(9), out=out, return_final=True)
    assert y is out and final == 9


def test_out_of_a_broadcast_result():
    out = poisoned((3, 50), np.float64)
    assert upsweep.discounted_cumsum(np.ones(50), np.full((3, 1), 0.5), out=out) is out
    assert not np.isnan(out).any()
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(np.ones(50), np.full((3, 1), 0.5), out=np.empty(50))


def test_out_in_foreign_byte_order():
    # numpy writes such outputs; what is refused is refused with the argument's name, what is taken is right.
    out = poisoned(9, ">f8")
    try:
        upsweep.cumulative_sum(np.ones(9), out=out)
    except TypeError as error:
        assert "out" in str(error)
    else:
        np.testing.assert_array_equal(out, np.arange(1.0, 10.0))


@pytest.mark.parametrize(
    "shape, strides",
    [
        ((3, 50), (60, 1)),
        ((3, 50), (1, 3)),
        ((3, 50), (-50, -1)),
        ((3, 50), (1, -4)),
        ((4, 3), (2, 9)),
        ((3, 2), (2, 3)),
        ((3, 50), (-7, 3)),
    ],
)
@pytest.mark.parametrize("name", SCANS)
def test_outputs_of_odd_strides_without_overlap_are_taken(name, shape, strides):
    arrays = operands(name, shape)
    out = strided(shape, "float64", strides)
    assert getattr(upsweep, name)(*arrays, out=out) is out
    np.testing.assert_allclose(out, getattr(upsweep, name)(*arrays), rtol=1e-12, atol=1e-12)


def test_bincount_refuses_an_output_whose_elements_overlap():
    out = strided((4,), "int64", (0,))
    with pytest.raises(ValueError, match="out"):
        upsweep.bincount(np.array([1, 2]), out=out)
    assert (out == out[0]).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SCANS)
def test_plain_arrays_take_the_short_path_with_the_same_bits(name, dtype, reverse, monkeypatch):
    """Contiguous arrays, any axis, new results, those in place and those beside the inputs in one buffer."""
    scan = getattr(upsweep, name)
    calls = []
    for shape in ((1,), (128,), (8, 16), (16, 1), (1, 5000), (3, 1, 4), (3, 40, 50)):
        for axis in range(-len(shape), len(shape)):
            arrays = operands(name, shape, dtype)
            calls.append((arrays, axis, scan(*arrays, axis=axis, reverse=reverse, return_final=True)[0]))
    monkeypatch.delattr(upsweep.scans, f"_{name}")  # the general path
    for arrays, axis, expected in calls:
        keywords = {"axis": axis, "reverse": reverse}
        assert same_bits(scan(*arrays, **keywords), expected)
        for where in range(3):  # out is below, between and above the inputs, and touches them
            memory = np.stack([poisoned(expected.shape, dtype), *(a for a in arrays if np.ndim(a))])
            order = np.roll(np.arange(len(memory)), where)
            memory, rows = memory[order], np.argsort(order)
            views = iter(rows[1:])
            inside = [memory[next(views)] if np.ndim(a) else a for a in arrays]
            out = memory[rows[0]]
            before = [np.copy(a) for a in inside]
            assert scan(*inside, **keywords, out=out) is out
            assert same_bits(out, expected) and all(map(same_bits, map(np.asarray, inside), before))
        for target in arrays:
            if np.ndim(target):
                copies = [np.copy(a) if np.ndim(a) else a for a in arrays]
                (out,) = (c for c, a in zip(copies, arrays) if a is target)
                assert scan(*copies, **keywords, out=out) is out and same_bits(out, expected)
