"""What schedules change of a program: copies for readers, reductions in parts, what is computed, and hints."""

import numpy as np
import pytest
from te_cuda import program_of, run_kernels
from te_reference import Reference
from upsweep import te
from upsweep.te import compat as tvm

pytest.importorskip("llvmlite")


def check(s, args, sizes, results, on_cuda=True):
    """A schedule's function, and its kernels walked by an interpreter, against the definitions."""
    rng = np.random.default_rng(0)
    inputs = [tensor for tensor in args if isinstance(tensor.op, te.tensors.PlaceholderOp)]
    reference = Reference(sizes, {})
    arrays = {tensor: rng.normal(size=reference.shape(tensor)).astype(tensor.dtype) for tensor in inputs}
    reference = Reference(sizes, dict(arrays))
    expected = [reference[tensor] for tensor in results]
    run = te.build(s, args)
    by_tensor = arrays | {tensor: np.full_like(want, np.nan) for tensor, want in zip(results, expected)}
    walked = {tensor: array.copy() for tensor, array in by_tensor.items()}
    run(*(by_tensor[tensor] for tensor in args))
    if on_cuda:
        run_kernels(program_of(s, args), [walked[tensor] for tensor in args], sizes)
    for tensor, want in zip(results, expected):
        np.testing.assert_allclose(by_tensor[tensor], want, rtol=1e-10, atol=1e-12)
        if on_cuda:
            np.testing.assert_allclose(walked[tensor], want, rtol=1e-10, atol=1e-12)
    return run


def row_sums(width, combine=te.sum):
    n, width = te.size_var("n"), width or te.size_var("q")
    X, k = te.placeholder((n, width), "float64", "X"), te.reduce_axis((0, width), "k")
    Y = te.compute((n,), lambda i: combine(X[i, k], axis=k), name="Y")
    return X, k, Y, {size: value for size, value in zip(X.shape, (5, 37)) if size.op == "var"}


@pytest.mark.parametrize("split", [{}, {"factor": 4}, {"nparts": 8}, {"factor": 100}])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("place", [0, -1])
def test_parts_of_a_reduction(split, which, place):
    for width, where in ((37, "root"), (None, "row"), (37, "part")):
        X, k, Y, sizes = row_sums(width)
        s = te.create_schedule(Y.op)
        axis = s[Y].split(k, **split)[which] if split else k
        parts = s.rfactor(Y, axis, place)
        assert parts.ndim == 2 and bool(parts.shape[place + 1] == X.shape[0])
        (rest,) = s[Y].op.reduce_axis
        if where != "root":
            s[parts].compute_at(s[Y], rest if where == "part" else Y.op.axis[0])
        check(s, [X, Y], sizes, [Y], on_cuda=False)


@pytest.mark.parametrize("combine", [te.max, te.min, te.prod])
def test_parts_begin_with_the_neutral_element(combine):
    X, k, Y, sizes = row_sums(37, combine)
    s = te.create_schedule(Y.op)
    s.rfactor(Y, s[Y].split(k, factor=8)[0])
    check(s, [X, Y], sizes, [Y])


def test_parts_of_one_of_two_reduction_axes():
    X = te.placeholder((3, 4, 5), "float64", "X")
    a, b = te.reduce_axis((0, 4), "a"), te.reduce_axis((0, 5), "b")
    Y = te.compute((3,), lambda i: te.sum(X[i, a, b], axis=[a, b]), name="Y")
    s = te.create_schedule(Y.op)
    parts = s.rfactor(Y, b)
    assert [axis.name for axis in parts.op.reduce_axis] == ["a"]
    s[parts].reorder(*parts.op.reduce_axis, parts.op.axis[0])
    check(s, [X, Y], {}, [Y])


def test_copies_for_readers():
    n = te.size_var("n")
    X = te.placeholder((n, 6), "float64", "X")
    Y = te.compute((n, 6), lambda i, j: X[i, j] * X[i, 5 - j], name="Y")
    Z = te.compute((n, 6), lambda i, j: Y[i, j] + X[i, j], name="Z")
    s = te.create_schedule(Z.op)
    of_x, of_y = s.cache_read(X, "shared", [Y]), s.cache_read(Y, "local", Z)
    s[of_x].compute_at(s[Y], Y.op.axis[0])
    s[of_y].compute_at(s[Z], Z.op.axis[1])
    text = check(s, [X, Z], {n: 4}, [Z]).text
    assert "allocate X.shared[float64 * 6]" in text and "allocate Y.local[float64]" in text
    assert "X.shared[j]*X.shared[" in text and "Y.local[] + X[i, j]" in text
    # The definitions are shared with other schedules, and stay.
    assert "shared" not in str(te.lower(te.create_schedule(Z.op), [X, Z]))


def test_copies_at_loops_inside_each_other():
    """The outer copy holds what all steps of the loops between them read, the inner one what one step does."""
    n = te.size_var("n")
    X, k = te.placeholder((n, 40), "float64", "X"), te.reduce_axis((0, 40), "k")
    Y = te.compute((n, 3), lambda i, j: te.sum(X[i, k] * X[i, 39 - k], axis=k), name="Y")
    s = te.create_schedule(Y.op)
    outer = s.cache_read(X, "shared", [Y])
    inner = s.cache_read(outer, "local", [Y])
    far, near = s[Y].split(k, factor=7)
    i, j = Y.op.axis
    s[outer].compute_at(s[Y], i)
    s[inner].compute_at(s[Y], far)
    text = check(s, [X, Y], {n: 3}, [Y]).text
    assert "allocate X.shared[float64 * 40]" in text
    s = te.create_schedule(Y.op)
    outer = s.cache_read(X, "shared", [Y])
    inner = s.cache_read(outer, "local", [Y])
    far, near = s[Y].split(k, factor=7)
    middle, last = s[Y].split(near, nparts=2)
    s[Y].reorder(i, far, j, middle, last)
    s[outer].compute_at(s[Y], far)
    s[inner].compute_at(s[Y], middle)
    check(s, [X, Y], {n: 3}, [Y])


def recurrence(batch, width, depth=1):
    """A matrix product in a scan, which reads its state `depth` steps back too."""
    T = te.size_var("T")
    W = te.placeholder((width, width), "float64", "W")
    state = te.placeholder((T, batch, width), "float64", "state")
    init = te.compute((depth, batch, width), lambda t, i, j: W[i, j] + 1, name="init")
    k = te.reduce_axis((0, width), "k")
    update = te.compute(
        (T, batch, width),
        lambda t, i, j: te.sum((state[t - 1, i, k] - 0.5 * state[t - depth, i, k]) * W[k, j], axis=k),
        name="update",
    )
    return T, W, state, init, update, te.scan(init, update, state, inputs=[W])


def test_a_product_in_tiles():
    """Products are summed in a copy of a tile, from copies of both operands' tiles."""
    n = te.size_var("n")
    A, B = te.placeholder((n, 12), "float64", "A"), te.placeholder((12, 8), "float64", "B")
    k = te.reduce_axis((0, 12), "k")
    C = te.compute((n, 8), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    tile = s.cache_write(C, "local")
    of_a, of_b = s.cache_read(A, "shared", [tile]), s.cache_read(B, "shared", [tile])
    _, j, *_ = s[C].tile(*C.op.axis, 4, 4)
    s[tile].compute_at(s[C], j)
    far, near = s[tile].split(k, factor=5)
    s[tile].reorder(far, near, *tile.op.axis)
    for copy in (of_a, of_b):
        s[copy].compute_at(s[tile], far)
    text = check(s, [A, B, C], {n: 6}, [C]).text
    assert all(f"allocate {name}]" in text for name in ("C.local[float64 * 4 * 4", "B.shared[float64 * 5 * 4"))
    with pytest.raises(
        ValueError, match=r"C: cache_write: expected a te\.compute whose loops are not scheduled yet"
    ):
        s.cache_write(C, "local")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["each step", "row", "element"])
def test_copies_of_a_state(depth, where):
    T, W, state, _, update, scan = recurrence(2, 5, depth)
    s = te.create_schedule(scan.op)
    copy = s.cache_read(state, "shared", [update])
    _, i, j = update.op.axis
    if where != "each step":
        s[copy].compute_at(s[update], i if where == "row" else j)
    text = check(s, [W, scan], {T: 6}, [scan]).text
    shape = {"each step": [2, 5], "row": [5], "element": [5]}[where]
    assert f"state.shared[float64 * {' * '.join(map(str, [depth] * (depth > 1) + shape))}]" in text


def test_threads_of_a_persistent_kernel():
    """The schedule of a recurrence whose weights stay in the threads: all primitives together."""
    T, W, state, init, update, scan = recurrence(2, 24)
    s = te.create_schedule(scan.op)
    block, x = te.thread_axis((0, 3), "blockIdx.x"), te.thread_axis((0, 2), "threadIdx.x")
    y = te.thread_axis((0, 4), "threadIdx.y")
    shared = s.cache_read(state, "shared", [update])
    local = s.cache_read(shared, "local", [update])
    weights = s.cache_read(W, "local", [update])
    outer, _ = s[update].split(s[update].op.reduce_axis[0], nparts=4)
    parts = s.rfactor(update, outer)
    s[scan.op].env_threads([block, y, x])
    for tensor in (init, update):
        bx, inner = s[tensor].split(s[tensor].op.axis[2], nparts=3)
        tx, _ = s[tensor].split(inner, nparts=2)
        s[tensor].bind(bx, block)
        s[tensor].bind(tx, x)
    s[update].bind(s[update].op.reduce_axis[0], y)
    s[parts].compute_at(s[update], s[update].op.reduce_axis[0])
    s[update].set_store_predicate(y.equal(0))
    s[weights].compute_at(s[scan], x)
    s[weights].unroll(weights.op.axis[0])
    whole, rest = s[parts].split(parts.op.reduce_axis[0], nparts=1)
    some, _ = s[parts].split(rest, factor=4)
    s[shared].compute_at(s[parts], whole)
    s[local].compute_at(s[parts], some)
    ty, inner = s[shared].split(shared.op.axis[2], nparts=4)
    tx, _ = s[shared].split(inner, nparts=2)
    s[shared].bind(ty, y)
    s[shared].bind(tx, x)  # in a loop that x is bound to already: each thread makes a copy of its own
    s[shared].pragma(ty, "unroll_explicit")
    s[shared].set_scope("shared")
    run = check(s.normalize(), [scan, W], {T: 4}, [scan])
    text = run.text
    assert text.index("produce W.local") < text.index("produce scan")
    assert "state.shared[float64 * 6]" in text and "state.shared.local[float64 * 4]" in text
    assert [name for name, *_ in s[update].hints] == ["bind", "set_store_predicate"]
    seconds = run.time_evaluator(run.entry_name, tvm.cpu(0), number=1, repeat=2)(
        np.empty((4, 2, 24)), np.ones((24, 24))
    )
    assert len(seconds.results) == 2 and seconds.min <= seconds.mean <= seconds.max


def test_a_stage_computes_what_is_read_of_it():
    T, n = te.size_var("T"), te.size_var("n")
    X, state = te.placeholder((T - 1, n), "float64", "X"), te.placeholder((T, n), "float64")
    twice = te.compute((T, n), lambda t, i: X[t - 1, i] * 2, name="twice")  # nothing for t = 0
    again = te.compute((T, n), lambda t, i: twice[t, i] + 1, name="again")
    init = te.compute((1, n), lambda _, i: 0.5, name="init")
    update = te.compute((T, n), lambda t, i: state[t - 1, i] * again[t, i], name="update")
    scan = te.scan(init, update, state)
    expected = np.cumprod(np.vstack([np.full((1, 3), 0.5), np.full((4, 3), 3.0)]), axis=0)
    for how in ("root", "inline", "at", "copy"):
        s = te.create_schedule(scan.op)
        if how == "inline":
            s[again].compute_inline()
        if how == "at":
            s[twice].compute_at(s[again], again.op.axis[1])
            s[again].compute_at(s[scan], scan.op.scan_axis)
        if how == "copy":
            s.cache_read(twice, "local", [again])
            s.cache_read(again, "local", [update])
        out = np.full((5, 3), np.nan)
        te.build(s, [X, scan])(np.ones((4, 3)), out)
        np.testing.assert_array_equal(out, expected)
    with pytest.raises(ValueError, match=r"X\[t - 1, i\] in twice: index 0 leaves X"):
        te.build(te.create_schedule(scan.op), [X, again, scan])  # all of it
    with pytest.raises(ValueError, match=r"X: expected shape \(T - 1, n\), where T - 1 is -1"):
        te.build(te.create_schedule(scan.op), [X, scan])(np.ones((0, 3)), np.ones((0, 3)))


def test_a_size_that_only_the_result_tells():
    T = te.size_var("T")
    X, state = te.placeholder((T - 1,), name="X"), te.placeholder((T,))
    update = te.compute((T,), lambda t: state[t - 1] + X[t - 1])
    scan = te.scan(te.compute((1,), lambda _: 0.0), update, state)
    run = te.build(te.create_schedule(scan.op), [X, scan], name="offsets")
    out = np.empty(4, "float32")
    run(np.ones(3, "float32"), out)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        ValueError, match=r"offsets: the inputs do not tell the size T, .* give the results to fill"
    ):
        run(np.ones(3, "float32"))


def test_what_cannot_be_changed():
    X, k, Y, _ = row_sums(8)
    n = X.shape[0]
    Z = te.compute((n,), lambda i: Y[i] + 1, name="Z")
    s = te.create_schedule(Z.op)
    for change, message in [
        (lambda: s.cache_read(X, "local", [Z]), "X: cache_read: Z does not read it"),
        (lambda: s.cache_read(X, "local", []), "expected the stages that read the copy, got none"),
        (lambda: s.rfactor(Z, Z.op.axis[0]), "Z: rfactor: only a reduction has parts"),
        (lambda: s.rfactor(Y, Y.op.axis[0]), r"Y: rfactor: i is none of the loops of its reduction \(k\)"),
        (lambda: s.rfactor(Y, k, 2), "factor_axis: expected one of 2 dimensions, got 2"),
        (lambda: s[Z].env_threads([te.thread_axis("threadIdx.x")]), "env_threads: only of a te.scan"),
        (lambda: s[Z].set_store_predicate(Z.op.axis[0] < 3), r"i < 3 is not about thread axes .* te\.select"),
        (lambda: s[Z].set_store_predicate(n > 3), "not about thread axes"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            change()
        assert str(error.value).startswith(__file__ + ":")
    with pytest.raises(AttributeError, match="te's Schedule has no create_group; move each stage by its own"):
        s.create_group(outputs=Z, inputs=Y)
    with pytest.raises(AttributeError, match=r"te's Stage has no tensorize; .* te\.compute"):
        s[Z].tensorize(Z.op.axis[0], None)
    with pytest.raises(TypeError, match="set_store_predicate: expected a condition"):
        s[Z].set_store_predicate(1)
    with pytest.raises(TypeError, match=r"env_threads: expected te\.thread_axis"):
        state = te.placeholder((n,))
        scan = te.scan(te.compute((1,), lambda _: 0.0), te.compute((n,), lambda t: state[t - 1]), state)
        te.create_schedule(scan.op)[scan].env_threads("threadIdx.x")
    axis = s[Y].split(k, factor=2)[0]
    s[Y].bind(axis, te.thread_axis("threadIdx.x"))
    for mark in ("parallel", "vectorize"):
        with pytest.raises(ValueError, match="on the reduction axis"):
            getattr(s[Y], mark)(axis)
