"""What a program is refused for: by the tensor's name and the line that wrote it, before anything runs."""

import inspect
import math
import re

import numpy as np
import pytest
from upsweep import te

pytest.importorskip("llvmlite")


def line_of(text):
    """``file:line`` of a line of the calling test, as messages begin."""
    frame = inspect.currentframe().f_back
    lines, first = inspect.getsourcelines(frame.f_code)
    at = max(n for n, line in enumerate(lines) if text in line)
    return re.escape(f"{__file__}:{first + at}")


class Parts:
    def __init__(self, depth=1):
        self.m, self.n = te.var("m"), te.var("n")
        self.X = te.placeholder((self.m, self.n), name="X")
        self.state = te.placeholder((self.m, self.n), name="state")
        self.init = te.compute((depth, self.n), lambda t, i: self.X[t, i], name="init")

    def scan(self, body, **keywords):
        self.update = te.compute((self.m, self.n), body, name="update")
        return te.scan(self.init, self.update, self.state, **keywords)

    def whole(self):
        return self.scan(lambda t, i: self.state[t - 1, i] + self.X[t, i], inputs=[self.X])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda p, t, i: p.state[t, i],
            r"state\[t, i\] in update: a state is read before the step, at t - d with",
        ),
        (lambda p, t, i: p.state[t + 1, i], r"state\[t \+ 1, i\]"),
        (lambda p, t, i: p.state[t - 2, i], r"2 steps back, but the init gives 1"),
        (
            lambda p, t, i: p.state[t - 1, i + 1],
            r"state\[t - 1, i \+ 1\] in update: index 1 leaves state of shape",
        ),
        (lambda p, t, i: p.state[t - 1, i - 1], r"index 1 leaves state"),
        (lambda p, t, i: p.state[t - 1, i] + p.X[t + 1, i], r"X\[t \+ 1, i\] in update: index 0 leaves X"),
        (lambda p, t, i: p.state[t - 1, i] + p.X[t - 2, i], r"index 0 leaves X"),
        (lambda p, t, i: p.state[i, t - 1], r"the first index is time"),
        (lambda p, t, i: p.X[t, te.min(i - 3, p.n)], r"not shown to stay inside"),
        (lambda p, t, i: p.X[t, te.max(i, p.n)], r"not shown to stay inside"),
        (lambda p, t, i: p.state[2 * t, i], r"the first index is time"),
        (lambda p, t, i: p.state[0, i], r"the first index is time"),
        (
            lambda p, t, i: te.select(i > 1, p.state[t - 1, i - 2], p.state[t - 1, i + 1]),
            r"not shown to stay inside",
        ),
    ],
)
def test_reads_of_the_body(body, message):
    parts = Parts()
    with pytest.raises(ValueError, match=message) as error:
        parts.scan(lambda t, i: body(parts, t, i))
    assert str(error.value).startswith(__file__ + ":")


def test_guarded_reads_stay_inside():
    parts = Parts()
    scan = parts.scan(lambda t, i: te.select(i > 0, parts.state[t - 1, i - 1], 0.0) + parts.X[t, i])
    run = te.build(te.create_schedule(scan.op), [parts.X, scan])
    x = np.ones((3, 19), "float32")
    np.testing.assert_array_equal(run(x)[2], np.minimum(np.arange(19), 2) + 1)
    parts = Parts()
    scan = parts.scan(lambda t, i: parts.state[t - 1, te.min(i + 1, parts.n - 1)])
    run = te.build(te.create_schedule(scan.op), [parts.X, scan])
    np.testing.assert_array_equal(
        run(np.tile(np.arange(9, dtype="float32"), (3, 1)))[2], np.minimum(np.arange(9) + 2, 8)
    )


def test_the_line_is_that_of_the_read():
    parts = Parts()
    line = line_of("state[t, i]  # the line")
    with pytest.raises(ValueError, match=line):
        parts.scan(
            lambda t, i: parts.X[t, i] + parts.state[t, i]  # the line
        )


def test_another_states_new_value_is_read_from_its_update():
    m = te.var("m")
    a, b = te.placeholder((m, 4), name="a"), te.placeholder((m, 4), name="b")
    inits = [te.compute((1, 4), lambda _, i: 1.0) for _ in range(2)]
    first = te.compute((m, 4), lambda t, i: a[t - 1, i] * 2, name="first")
    wrong = te.compute((m, 4), lambda t, i: b[t - 1, i] + a[t, i], name="wrong")
    with pytest.raises(ValueError, match=r"read its update, first\[t, \.\.\.\], which says the order"):
        te.scan(inits, [first, wrong], [a, b])
    right = te.compute((m, 4), lambda t, i: b[t - 1, i] + first[t, i], name="right")
    for order in ([first, right], [right, first]):
        swap = order[0] is right
        states = [b, a] if swap else [a, b]
        results = te.scan(inits, order, states)
        run = te.build(te.create_schedule(results[0].op), results)
        outputs = [np.empty((5, 4), "float32") for _ in range(2)]
        run(*outputs)
        np.testing.assert_array_equal(outputs[swap][:, 0], [1, 2, 4, 8, 16])
        np.testing.assert_array_equal(outputs[not swap][:, 0], [1, 3, 7, 15, 31])


def test_stages_of_the_body_live_for_one_step():
    parts = Parts()
    middle = te.compute((parts.m, parts.n), lambda t, i: parts.state[t - 1, i] * 2, name="middle")
    with pytest.raises(ValueError, match=r"middle\[t - 1, i\] in update.*make it a state"):
        parts.scan(lambda t, i: middle[t - 1, i])
    scan = parts.scan(lambda t, i: middle[t, i])
    outside = te.compute((parts.m, parts.n), lambda t, i: middle[t, i] + scan[t, i], name="outside")
    with pytest.raises(ValueError, match="outside reads middle of scan's loop from outside of it"):
        te.create_schedule(outside.op)
    short = te.compute((4, parts.n), lambda t, i: parts.state[t - 1, i], name="short")
    with pytest.raises(
        ValueError, match="short reads the scan's state, so that its first dimension is the scan's"
    ):
        parts.scan(lambda t, i: short[t, i])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 7), r"init init of shape \(1, 7\) disagrees in dimension 1 with its state state of shape \(m, n\)"),
        ((0, "n"), "an integer from 1"),
        (("n", "n"), "an integer from 1"),
        ((1,), "the same number of dimensions"),
    ],
)
def test_inits_of_the_wrong_shape(shape, message):
    parts = Parts()
    sizes = tuple(parts.n if size == "n" else size for size in shape)
    line = line_of("parts.init = te")
    parts.init = te.compute(sizes, lambda *_: te.cast("float32", 1.0), name="init")
    with pytest.raises(ValueError, match=f"^{line}: .*{message}"):
        parts.scan(lambda t, i: parts.state[t - 1, i])


@pytest.mark.parametrize("wrong", ["update", "state"])
def test_a_first_dimension_that_is_not_the_scans(wrong):
    parts = Parts()
    shapes = {"update": (parts.m, parts.n), "state": (parts.m, parts.n), wrong: (parts.n, parts.n)}
    state = te.placeholder(shapes["state"], name="state")
    update = te.compute(shapes["update"], lambda *_: 1.0, name="update")
    with pytest.raises(ValueError, match=r"update update of shape .*: the first dimension of states and updates"):
        te.scan(parts.init, update, state)
    bare = te.compute((), lambda: 1.0, name="bare")
    with pytest.raises(ValueError, match="bare: the first dimension of a scan is time"):
        te.scan(parts.init, bare, te.placeholder((parts.m, parts.n)))
    with pytest.raises(ValueError, match="none: the first dimension of a scan is time"):
        te.scan(parts.init, update, te.placeholder((), name="none"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda p, i, k: te.cast(p.X[i, 0], "float64"),
            r"cast: the dtype comes first, te.cast\('float64', X\[i, 0\]\)",
        ),
        (lambda p, i, k: p.X[i, 0] > 0 & p.X[i, 1] > 0, r"and: expected conditions, got 0f and .* parentheses"),
        (lambda p, i, k: te.cast("int32", p.X[i, 0]) | 3, r"or: expected conditions, .* no operations on bits"),
        (lambda p, i, k: te.cast("int32", p.X[i, 0]) ^ 3, r"there are no operations on bits"),
        (lambda p, i, k: ~p.X[i, 0], r"not: expected a condition, got X\[i, 0\], of dtype float32"),
        (lambda p, i, k: te.select(0 < p.X[i, 0] < 1, 1.0, 0.0), r"no truth value .*; for 0 < x < 1 te\.all\("),
        (lambda p, i, k: max(p.X[i, 0], 0), r"no truth value .*te\.select"),
        (lambda p, i, k: sum(p.X[i, k]), r"X\[i, k\] is one number, and no sequence; te\.sum"),
        (lambda p, i, k: sum(p.X[i, j] for j in range(p.n)), r"n is no number .*te\.reduce_axis"),
        (lambda p, i, k: te.sum(p.X[i, 0], axis=i), r"axis: expected k = te\.reduce_axis\(\(0, n\)\), got i"),
        (lambda p, i, k: te.sum(p.X, axis=k), r"got Tensor\(name=X.*read element by element"),
        (lambda p, i, k: p.X[i, k], r"compute: index k is one to reduce over: write te\.sum\(\.\.\., axis=k\)"),
        (lambda p, i, k: te.sum(p.X[i, k], axis=k) + 1, "a reduction stands alone"),
        (lambda p, i, k: te.select(p.X == 0, 1.0, 0.0), r"X is a whole tensor: write te\.compute"),
        (lambda p, i, k: te.select(p.X > 0, 1.0, 0.0), r"X is a whole tensor: write te\.compute"),
    ],
)
def test_bodies_that_are_pythons_or_numpys(body, message):
    parts, k = Parts(), te.reduce_axis((0, 4), name="k")
    with pytest.raises((TypeError, ValueError), match=message) as error:
        te.compute((3,), lambda i: body(parts, i, k))
    assert str(error.value).startswith(__file__ + ":")


def test_operators_of_conditions():
    X = te.placeholder((9,), name="X")
    Y = te.compute((9,), lambda i: te.select(((X[i] > 1) & (X[i] < 6) | (X[i] == 8)) & ~(X[i] == 3), 1, 0))
    run, x = te.build(te.create_schedule(Y.op), [X, Y]), np.arange(9, dtype="float32")
    np.testing.assert_array_equal(run(x), ((x > 1) & (x < 6) | (x == 8)) & ~(x == 3))


def test_names_that_te_lacks():
    with pytest.raises(
        AttributeError, match=r"'where'; write te\.select\(condition, a, b\); functions of elements are"
    ):
        te.where  # noqa: B018  # it raises


def test_other_definitions():
    parts = Parts()
    with pytest.raises(ValueError, match="as many inits, updates and states"):
        te.scan([parts.init], [parts.init, parts.init], [parts.state])
    with pytest.raises(TypeError, match="state state is float32, its init float32, its update float64"):
        parts.scan(lambda t, i: te.cast("float64", parts.state[t - 1, i]))
    with pytest.raises(ValueError, match=r"X has 2 dimensions, got 1 indices"):
        te.compute((3,), lambda i: parts.X[i])
    with pytest.raises(TypeError, match="has no truth value"):
        te.compute((3,), lambda i: 1.0 if i > 1 else 0.0)
    with pytest.raises(TypeError, match="integers are divided by //"):
        te.compute((3,), lambda i: i / 2)
    with pytest.raises(ValueError, match="takes 1 indices"):
        te.compute((3, 4), lambda i: 1.0)
    with pytest.raises(ValueError, match="a reduction stands alone"):
        k = te.reduce_axis((0, 3))
        te.compute((3,), lambda i: te.sum(parts.X[i, k], axis=k) + 1)
    with pytest.raises(ValueError, match="index 0 leaves X"):
        te.create_schedule(te.compute((parts.m,), lambda i: parts.X[i + 1, 0]).op)
    with pytest.raises(ValueError, match="not shown to stay inside"):
        keys = te.placeholder((9,), "int64", "keys")
        te.create_schedule(te.compute((9,), lambda i: parts.X[keys[i], 0]).op)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X: te.placeholder((2.5,), name="N"), r"shape of N: expected an integer, got 2\.5"),
        (lambda X: te.placeholder((3,), "foo"), "dtype: expected one of float32, .* got 'foo'"),
        (lambda X: te.compute((3,), lambda i: X[1.5]), "an index of X: expected an integer, got 1"),
        (lambda X: te.compute((3,), 5, name="B"), "B: expected a function of 1 indices, got 5"),
        (lambda X: te.compute((3,), lambda i: X + 1), r"X is a whole tensor: .* elements X\[i\]"),
        (lambda X: te.compute((3,), lambda i: 2 * X), "X is a whole tensor"),
        (lambda X: te.compute((3,), lambda i: float(X[i])), r"X\[i\] is no number before it is computed"),
        (lambda X: te.compute((3,), lambda i: X[i] + np.ones((3, 2))[i, 0]), r"te\.placeholder\(W\.shape, str"),
        (lambda X: te.compute((3,), lambda i: math.exp(X[i])), r"te\.exp"),
        (lambda X: te.compute((3,), lambda i: np.exp(X[i])), r"np\.exp of X\[i\]: te has functions of its own"),
        (lambda X: te.build(None, [X]), "schedule: expected te.create_schedule"),
        (lambda X: te.build(te.create_schedule(te.compute((3,), lambda i: X[i]).op), X), "args: expected a list"),
        (lambda X: te.lower(te.create_schedule(te.compute((3,), lambda i: X[i]).op), [X, 3]), r"args\[1\] is 3"),
    ],
)
def test_what_is_no_expression(make, message):
    with pytest.raises(TypeError, match=message):
        make(te.placeholder((3,), name="X"))


def test_numbers_of_numpy_beside_expressions():
    X = te.placeholder((3,), name="X")
    Y = te.compute((3,), lambda i: np.float32(2) * X[i] + np.int64(1) - X[i] / np.float64(4))
    assert Y.dtype == "float32"
    run = te.build(te.create_schedule(Y.op), [X, Y])
    assert run(np.arange(3, dtype="float32")).tolist() == [1, 2.75, 4.5]


def test_arguments_of_one_name_differ_in_the_text():
    A, B = te.placeholder((3,)), te.placeholder((3,))
    C = te.compute((3,), lambda i: A[i] - B[i], name="C")
    assert "C[i] = placeholder[i] - placeholder_1[i]" in str(te.lower(te.create_schedule(C.op), [A, B, C]))


def test_schedules():
    parts = Parts()
    scan = parts.whole()
    s = te.create_schedule(scan.op)
    stage, axis = s[parts.update], parts.update.op.axis
    for mark in ("parallel", "vectorize"):
        with pytest.raises(ValueError, match=f"{mark.rstrip('e')}.*on the scan axis scan.idx"):
            getattr(s[scan], mark)(scan.op.scan_axis)
    with pytest.raises(ValueError, match=r"bind on the scan axis"):
        s[scan].bind(scan.op.scan_axis, te.thread_axis("blockIdx.x"))
    with pytest.raises(ValueError, match=r"update: its axis t is the scan's time"):
        stage.split(axis[0], factor=4)
    with pytest.raises(ValueError, match="factor is an integer from 1, got 0"):
        stage.split(axis[1], factor=0)
    line = line_of("stage.split(axis[1])")
    with pytest.raises(ValueError, match=f"{line}: update: split: one of factor= and nparts="):
        stage.split(axis[1])
    outer, inner = stage.split(axis[1], factor=4)
    outer, _ = stage.split(outer, factor=np.int64(2))  # a number of numpy is one too
    with pytest.raises(ValueError, match="factor is an integer from 1, got True"):
        stage.split(inner, factor=True)
    with pytest.raises(ValueError, match="i is none of its loops"):
        stage.parallel(axis[1])
    block = te.thread_axis("blockIdx.x")
    stage.bind(outer, block)
    with pytest.raises(ValueError, match=r"outer is bound to blockIdx\.x already"):
        stage.bind(outer, te.thread_axis("blockIdx.y"))
    with pytest.raises(ValueError, match=r"blockIdx\.x is taken"):
        stage.bind(inner, block)
    with pytest.raises(ValueError, match="tag"):
        te.thread_axis("warp")
    with pytest.raises(ValueError, match="writes a state of scan"):
        stage.compute_at(s[scan], scan.op.scan_axis)
    with pytest.raises(KeyError, match="not part of this schedule"):
        s[Parts().X]


def test_the_group_of_a_scan():
    parts = Parts()
    middle = te.compute((parts.m, parts.n), lambda t, i: parts.state[t - 1, i] * 2, name="middle")
    scan = parts.scan(lambda t, i: middle[t, i])
    after = te.compute((parts.m, parts.n), lambda t, i: scan[t, i] * 2, name="after")
    s = te.create_schedule(after.op)
    with pytest.raises(
        ValueError, match="middle: compute_at: the body of scan stays in its loop; after is outside"
    ):
        s[middle].compute_at(s[after], after.op.axis[0])


def test_loops_that_are_gone():
    """What is computed at a loop that is never written would be left out, and read."""
    parts = Parts()
    low = te.compute((parts.m, parts.n), lambda t, i: parts.state[t - 1, i] + 1, name="low")
    high = te.compute((parts.m, parts.n), lambda t, i: low[t, i] * 2, name="high")
    scan = parts.scan(lambda t, i: high[t, i])
    axis = parts.update.op.axis[1]
    s = te.create_schedule(scan.op)
    line = line_of("s[high].compute_at(s[parts.update], axis)")
    s[high].compute_at(s[parts.update], axis)
    s[parts.update].split(axis, factor=4)
    with pytest.raises(
        ValueError, match=rf"{line}: high: compute_at: i is none of the loops of update \(i\.outer, i\.inner\)"
    ):
        te.build(s, [parts.X, scan])
    s = te.create_schedule(scan.op)
    s[low].compute_at(s[high], high.op.axis[1])
    s[high].compute_inline()
    with pytest.raises(ValueError, match="low: compute_at: high is computed inline and has no loops"):
        te.lower(s, [parts.X, scan])
    s = te.create_schedule(scan.op)
    s[low].compute_at(s[high], high.op.axis[1])
    with pytest.raises(ValueError, match="high: compute_at: low is computed in its own loops"):
        s[high].compute_at(s[low], low.op.axis[1])
    for mark in ("unroll", "fuse"):
        s = te.create_schedule(scan.op)
        if mark == "unroll":
            s[high].unroll(high.op.axis[1])
        else:
            outer, inner = s[high].split(high.op.axis[1], nparts=2)
            s[high].fuse(outer, inner)
        with pytest.raises(ValueError, match=f"{re.escape(high.op.line)}: high: {mark}: .* constant"):
            te.lower(s, [parts.X, scan])


def test_arguments():
    parts = Parts()
    scan = parts.whole()
    s = te.create_schedule(scan.op)
    with pytest.raises(ValueError, match=r"args: X \(made at .*\) is read, but not among the arguments"):
        te.build(s, [scan])
    with pytest.raises(ValueError, match="is a scan's state"):
        te.build(s, [parts.X, parts.state, scan])
    with pytest.raises(ValueError, match="args: X is given twice"):
        te.build(s, [parts.X, scan, parts.X])
    other = Parts()
    with pytest.raises(ValueError, match=r"args: scan \(made at .*\) is neither a result of the sched"):
        te.build(s, [parts.X, other.whole()])
    run = te.build(s, [parts.X, scan], name="cumsum")
    x = np.ones((4, 5), "float32")
    origin = f"; X is made at {re.escape(parts.X.op.line)}"
    with pytest.raises(TypeError, match=f"X: expected dtype float32, got float64{origin}"):
        run(x.astype("float64"))
    with pytest.raises(ValueError, match=rf"X: expected shape \(m, n\), got \(4,\){origin}"):
        run(x[:, 0])
    origin = f"; scan is made at {re.escape(scan.op.line)}"
    with pytest.raises(ValueError, match=rf"scan: expected shape \(m, n\), where n is 5, got \(4, 6\){origin}"):
        run(x, np.empty((4, 6), "float32"))
    with pytest.raises(TypeError, match="cumsum: expected 2 arguments, or 1 without the results"):
        run(x, x, x)
    with pytest.raises(TypeError, match="scan: expected an array to fill"):
        run(x, [[1.0]])
    out = np.empty_like(x)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="scan: the array to fill is read-only"):
        run(x, out)
    with pytest.raises(
        ValueError, match=r"index 0 leaves X of shape .*with m = 0, n = 5|of which its init gives 1"
    ):
        run(x[:0])
    assert run(x[:, :0]).shape == (4, 0)
    assert run(x[:1]).tolist() == [[1.0] * 5]


def test_sizes_that_only_the_call_tells():
    n, m = te.var("n"), te.var("m")
    X = te.placeholder((n,), name="X")
    Y = te.compute((m,), lambda i: X[i + 2], name="Y")
    run = te.build(te.create_schedule(Y.op), [X, Y])
    out = np.empty(3, "float32")
    run(np.arange(5, dtype="float32"), out)
    assert out.tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match=r"X\[i \+ 2\] in Y: index 0 leaves X of shape \(n\), with .*n = 4"):
        run(np.arange(4, dtype="float32"), out)
    half = te.compute((n // 2,), lambda i: X[2 * i] + X[2 * i + 1], name="half")
    run = te.build(te.create_schedule(half.op), [X, half])
    assert run(np.arange(7, dtype="float32")).tolist() == [1, 5, 9]
    p = te.placeholder((2 * n,), name="P")
    pairs = te.compute((n,), lambda i: p[2 * i] + p[2 * i + 1], name="pairs")
    with pytest.raises(
        ValueError, match=rf"no argument's shape tells the size n, made at {re.escape(__file__)}:\d"
    ):
        te.build(te.create_schedule(te.compute((4,), lambda i: te.cast("float32", i + n)).op), [])
    run = te.build(te.create_schedule(pairs.op), [p, pairs])
    out = np.empty(3, "float32")
    run(np.arange(6, dtype="float32"), out)
    assert out.tolist() == [1, 5, 9]
    with pytest.raises(ValueError, match=r"P: expected shape \(2\*n,\), where .* is 6, got \(7,\)"):
        run(np.arange(7, dtype="float32"), out)
