"""The builder of scalar programs by itself: signs, constants and levels, however simple a formula was before."""

import numpy as np
import pytest
from upsweep._compiler.lowering.builder import Builder, Index, TooLong


@pytest.fixture
def b():
    return Builder()


def rows(b, n=0):
    return b.load("i", Index(n))


def columns(b, n=0):
    return b.load("j", Index(n))


def pairs(b):
    return b.call("exp", b.sub(rows(b), columns(b)))


def written(b, value):
    """The operations that a value takes, with their levels."""
    steps, _ = b.finish([value])
    return [f"{step.op} {step.level}" for step in steps if step.op not in ("load", "const")]


def test_two_signs_cancel(b):
    k, m = pairs(b), b.call("sin", pairs(b))
    assert b.mul(b.call("neg", k), b.call("neg", m)) == b.mul(k, m)
    assert b.call("neg", b.call("neg", k)) == k
    assert b.sub(k, b.call("neg", m)) == b.add(k, m)
    assert b.add(b.call("neg", k), m) == b.sub(m, k)


def test_a_sign_goes_to_what_changes_more_rarely(b):
    value = b.mul(b.call("neg", pairs(b)), rows(b, 1))
    assert written(b, value) == ["sub ij", "exp ij", "neg i", "mul ij"]
    # two that change equally often keep theirs
    assert written(b, b.mul(b.call("neg", rows(b)), columns(b)))[-2:] == ["neg i", "mul ij"]


def test_squares_stay_squares(b):
    difference = b.sub(rows(b), columns(b))
    assert written(b, b.call("neg", b.mul(difference, difference))) == ["sub ij", "mul ij", "neg ij"]


def test_zero_minus_a_value_is_its_negative(b):
    assert b.sub(b.const(0), pairs(b)) == b.call("neg", pairs(b))
    assert b.sub(pairs(b), b.const(0)) == pairs(b) == b.add(b.const(0), pairs(b))


def test_constants_join_what_changes_rarely(b):
    value = b.mul(b.const(3), b.mul(pairs(b), b.load("p", Index())))
    assert written(b, value).count("mul ij") == 1 and "mul p" in written(b, value)
    large = b.mul(b.const(1e30), b.mul(pairs(b), b.load("p", Index())))
    assert written(b, large).count("mul ij") == 2


@pytest.mark.parametrize("op", ["add", "mul"])
def test_sums_and_products_do_not_care_for_order(b, op):
    assert b.call(op, rows(b), columns(b)) == b.call(op, columns(b), rows(b))
    assert b.call("sub", rows(b), columns(b)) != b.call("sub", columns(b), rows(b))


def test_choices_that_are_known(b):
    one, two, x = b.const(1), b.const(2), rows(b)
    assert b.choose("lt", one, two, x, one) == x and b.choose("lt", two, one, x, one) == one
    assert b.choose("eq", x, one, two, two) == two
    assert b.choose("eq", b.const(np.nan), b.const(np.nan), one, two) == two


def test_a_loop_that_nobody_needs_is_left_out(b):
    total = b.loop(5, [b.const(0)], lambda k, carried: [b.add(carried[0], b.load("i", k))])[0]
    b.loop(5, [b.const(0)], lambda k, carried: [b.add(carried[0], b.load("j", k))])
    array = b.array(3)
    b.loop(3, [], lambda k, carried: b.put(array, b.load("j", k), k) or ())
    assert written(b, total) == ["loop i", "carry i", "add i", "end i"]
    assert "array j" in written(b, b.get(array, Index(1)))


def test_too_long():
    b = Builder(limit=3)
    with pytest.raises(TooLong):
        pairs(b)
