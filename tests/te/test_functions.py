"""What built functions compute and take: operations, dtypes, layouts, threads, the cache."""

import numpy as np
import pytest
from helpers import in_threads, run_python
from te_reference import Reference, run_nest
from upsweep import te
from upsweep._backends.cpu.loops import symbols
from upsweep._compiler.llvm.loops.few_columns import few_columns_form
from upsweep._compiler.llvm.loops.render import render
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.loops.statements import Allocate, Produce, all_statements
from upsweep.te.lowering import lower_for

pytest.importorskip("llvmlite")

SIZES = [0, 1, 7, 16, 33, 100]
OF_ONE = ["exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "atan", "asin", "acos", "sigmoid", "floor", "abs"]


def elementwise(body, *dtypes):
    n = te.var("n")
    inputs = [te.placeholder((n,), dtype, f"x{p}") for p, dtype in enumerate(dtypes)]
    result = te.compute((n,), lambda i: body(*(x[i] for x in inputs)), name="result")
    run = te.build(te.create_schedule(result.op), [*inputs, result])
    return run, lambda *arrays: Reference({n: len(arrays[0])}, dict(zip(inputs, arrays)))[result]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_one(name, dtype):
    run, reference = elementwise(getattr(te, name), dtype)
    low, high = (0.01, 4) if name in ("log", "sqrt", "rsqrt") else (-1, 1) if name in ("asin", "acos") else (-6, 6)
    for n in SIZES:
        x = np.random.default_rng(n).uniform(low, high, n).astype(dtype)
        np.testing.assert_allclose(run(x), reference(x), rtol=1e-6 if dtype == "float32" else 1e-14, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_operators(dtype):
    def body(a, b):
        c = te.max(a, b) * 3 - te.min(a, 2 * b) + abs(a - b)
        flag = te.any(te.all(a < b, a >= -2), a == b, te.logical_not(b != 3), a > 5, b <= -4)
        return te.select(flag, c, -c)

    run, reference = elementwise(body, dtype, dtype)
    for n in SIZES:
        a, b = (np.random.default_rng(n + s).integers(-6, 6, n).astype(dtype) for s in (0, 1))
        np.testing.assert_array_equal(run(a, b), reference(a, b))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_divide_downwards(dtype):
    run, reference = elementwise(lambda a: (a // 3) * 100 + a % 3, dtype)
    a = np.arange(-20, 20).astype(dtype)
    np.testing.assert_array_equal(run(a), a // 3 * 100 + a % 3)
    np.testing.assert_array_equal(reference(a), a // 3 * 100 + a % 3)


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("to", ["float32", "float64", "int32", "int64", "bool"])
def test_casts(source, to):
    run, _ = elementwise(lambda a: te.cast(to, a), source)
    for n in (1, 19, 40):
        a = np.random.default_rng(n).uniform(-9, 9, n)
        a = a > 0 if source == "bool" else a.astype(source)
        np.testing.assert_array_equal(run(a), a.astype(to))


def test_casts_of_what_is_out_of_range():
    run, _ = elementwise(lambda a: te.cast("int32", a), "float64")
    got = run(np.array([np.nan, np.inf, -np.inf, 1e300]))
    assert got.tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1]


def test_nan_goes_through_extremes():
    run, _ = elementwise(lambda a, b: te.min(a, b) + te.max(a, b), "float64", "float64")
    a = np.array([np.nan, 1.0, np.nan, 2.0])
    b = np.array([1.0, np.nan, np.nan, 3.0])
    np.testing.assert_array_equal(run(a, b), [np.nan, np.nan, np.nan, 5.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers(dtype):
    run, _ = elementwise(te.power, dtype, dtype)
    for n in SIZES:
        a, b = (np.random.default_rng(n + s).uniform(0.1, 3, n).astype(dtype) for s in (0, 1))
        np.testing.assert_allclose(run(a, b), a**b, rtol=1e-5 if dtype == "float32" else 1e-13)
    m = te.var("m")  # one lane
    x, state = te.placeholder((m,), dtype, "x"), te.placeholder((m,), dtype)
    init = te.compute((1,), lambda t: x[t])
    scan = te.scan(init, te.compute((m,), lambda t: te.power(state[t - 1], x[t]) + te.sin(x[t])), state)
    values = np.array([0.5, 1.5, 0.25, 2.0], dtype)
    expected = values.copy()
    for t in range(1, 4):
        expected[t] = expected[t - 1] ** values[t] + np.sin(values[t])
    run = te.build(te.create_schedule(scan.op), [x, scan])
    np.testing.assert_allclose(run(values), expected, rtol=1e-5)


def cumulative_sum(dtype="float64"):
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), dtype, "X")
    state = te.placeholder((m, n), dtype)
    init = te.compute((1, n), lambda _, i: X[0, i])
    scan = te.scan(init, te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i]), state)
    return te.build(te.create_schedule(scan.op), [X, scan])


LAYOUTS = {
    "plain": lambda x: x,
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(np.repeat(x, 2, axis=0), 2, axis=1)[::2, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
    "rows apart": lambda x: np.hstack([x, x])[:, : x.shape[1]],
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), "u1")[1:].view(x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    run = cumulative_sum()
    x = LAYOUTS[layout](np.random.default_rng(0).normal(size=(6, 37)))
    expected = np.cumsum(x, axis=0)
    for _ in range(2):  # what was checked once is not checked again
        np.testing.assert_allclose(run(x), expected, rtol=1e-12)
        if layout != "one row":
            out = LAYOUTS[layout](np.full(x.shape, np.nan))
            if out.flags.writeable and out.dtype.isnative:
                run(x, out)
                np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_results_over_their_inputs():
    run = cumulative_sum()
    x = np.random.default_rng(0).normal(size=(6, 37))
    run(x, np.empty_like(x))  # arrays of this kind are known now, and may overlap all the same
    for shift in (0, 1):
        memory = np.vstack([x, np.zeros((1, 37))])
        for _ in range(2):
            memory[:6] = x
            run(memory[:6], memory[shift : 6 + shift])
            np.testing.assert_allclose(memory[shift : 6 + shift], np.cumsum(x, axis=0), rtol=1e-12)


def test_lists_and_read_only_inputs():
    run = cumulative_sum()
    assert run([[1.0, 2.0], [3.0, 4.0]]).tolist() == [[1, 2], [4, 6]]
    x = np.ones((3, 3))
    x.flags.writeable = False
    assert run(x)[2].tolist() == [3, 3, 3]


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 129, 5000, 40000])
def test_the_same_bits_for_any_number_of_threads(n):
    m, size = te.var("m"), te.var("n")
    X, state = te.placeholder((m, size), name="X"), te.placeholder((m, size))
    init = te.compute((2, size), lambda t, i: X[t, i])
    twice = te.compute((m, size), lambda t, i: state[t - 1, i] * 0.5 + X[t, i], name="twice")
    update = te.compute((m, size), lambda t, i: te.tanh(twice[t, i]) + state[t - 2, i] * state[t - 1, i])
    scan = te.scan(init, update, state)
    run = te.build(te.create_schedule(scan.op), [X, scan])
    x = np.random.default_rng(n).normal(size=(7, n)).astype("float32")
    expected = x.copy()
    for t in range(2, 7):
        expected[t] = np.tanh(expected[t - 1] * np.float32(0.5) + x[t]) + expected[t - 2] * expected[t - 1]
    one = run(x, n_threads=1)
    np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-5)
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(run(x, n_threads=n_threads), one)


@pytest.mark.parametrize("n", [1, 3, 8, 16, 17, 31, 32, 64, 65])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_few_columns_keep_their_state_in_registers(n, n_threads):
    m, size = te.var("m"), te.var("n")
    X = te.placeholder((m, size), "float64", "X")
    one, two = (te.placeholder((m, size), "float64", name) for name in ("one", "two"))
    inits = [te.compute((2, size), lambda t, i, s=s: X[t, i] * s) for s in (1.0, 2.0)]
    middle = te.compute((m, size), lambda t, i: one[t - 1, i] - two[t - 2, i], name="middle")
    first = te.compute((m, size), lambda t, i: te.tanh(middle[t, i]) + X[t, i], name="first")
    second = te.compute(
        (m, size), lambda t, i: 0.5 * two[t - 1, i] + one[t - 1, i] * first[t, i] - one[t - 2, i] + middle[t, i]
    )
    results = te.scan(inits, [first, second], [one, two])
    s = te.create_schedule(results[0].op)
    (produce,) = (
        each for each in all_statements(lower_for(s, [X, *results]).body)
        if isinstance(each, Produce) and each.strips
    )  # fmt: skip
    form = few_columns_form(produce)
    counts = [{b.name: len(loads) for b, loads in each.items()} for each in (form.carried, form.forwarded)]
    assert counts == [{"scan.v0": 2, "scan.v1": 1}, {"middle": 2, "scan.v0": 1}]
    run = te.build(s, [X, *results])
    x = np.random.default_rng(n).normal(size=(9, n))
    a, b = x.copy(), x * 2
    for t in range(2, 9):
        between = a[t - 1] - b[t - 2]
        a[t] = np.tanh(between) + x[t]
        b[t] = 0.5 * b[t - 1] + a[t - 1] * a[t] - a[t - 2] + between
    for got, expected in zip(run(x, n_threads=n_threads), (a, b)):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_an_init_that_is_given_and_sums_of_everything():
    m, n = te.var("m"), te.var("n")
    X, start = te.placeholder((m, n), "float64", "X"), te.placeholder((3, n), "float64", "start")
    state = te.placeholder((m, n), "float64")
    scan = te.scan(start, te.compute((m, n), lambda t, i: state[t - 3, i] + X[t, i]), state, inputs=[X, start])
    k, q = te.reduce_axis((0, m), "k"), te.reduce_axis((0, n), "q")
    rows = te.compute((m,), lambda t: te.sum(scan[t, q], axis=q), name="rows")
    total = te.compute((), lambda: te.sum(rows[k], axis=k), name="total")
    s = te.create_schedule(total.op)
    s[rows].compute_at(s[total], k)
    run = te.build(s, [X, start, scan, total])
    x, first = np.random.default_rng(0).normal(size=(8, 21)), np.random.default_rng(1).normal(size=(3, 21))
    expected = x.copy()
    expected[:3] = first
    for t in range(3, 8):
        expected[t] += expected[t - 3]
    got, everything = run(x, first)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(everything, expected.sum(), rtol=1e-10)


def test_what_a_reduction_in_a_loop_reads_is_computed_there_too():
    n = te.var("n")
    X = te.placeholder((n, 6), "float64", "X")
    k = te.reduce_axis((0, 6), "k")
    base = te.compute((n, 6), lambda i, j: X[i, j] * 2, name="base")
    middle = te.compute((n,), lambda i: te.sum(base[i, k] * X[i, k], axis=k), name="middle")
    last = te.compute((n,), lambda i: middle[i] + 1, name="last")
    s = te.create_schedule(last.op)
    for stage in (middle, base):
        s[stage].compute_at(s[last], last.op.axis[0])
    run = te.build(s, [X, last])
    assert "allocate base[float64 * 6]" in run.text
    x = np.random.default_rng(0).normal(size=(9, 6))
    np.testing.assert_allclose(run(x), 2 * (x * x).sum(axis=1) + 1, rtol=1e-12)


def test_one_axis_in_two_reductions():
    X = te.placeholder((5, 5), "float64", "X")
    k = te.reduce_axis((0, 5), "k")
    inner = te.compute((5,), lambda i: te.sum(X[i, k], axis=k), name="inner")
    outer = te.compute((5,), lambda i: te.sum(inner[k] * X[k, i], axis=k), name="outer")
    s = te.create_schedule(outer.op)
    s[inner].compute_at(s[outer], k)
    x = np.random.default_rng(0).normal(size=(5, 5))
    np.testing.assert_allclose(te.build(s, [X, outer])(x), x.sum(axis=1) @ x, rtol=1e-12)


def test_several_python_threads():
    run, results = cumulative_sum(), {}
    data = [np.random.default_rng(p).normal(size=(40, 3000)) for p in range(4)]

    def work(place):
        results[place] = [run(data[place]) for _ in range(10)]

    in_threads(work, *range(4))
    for place, x in enumerate(data):
        for got in results[place]:
            np.testing.assert_allclose(got, np.cumsum(x, axis=0), rtol=1e-10)


def test_reads_that_are_no_neighbours():
    n = te.var("n")
    X, keys = te.placeholder((n, n), name="X"), te.placeholder((n,), "int32", "keys")
    flags = te.placeholder((n, n), "bool", "flags")
    turned = te.compute(
        (n, n), lambda i, j: te.select(flags[j, i], X[j, i], X[n - 1 - i, n - 1 - j]), name="turned"
    )
    picked_elements = te.compute((n,), lambda i: turned[i, te.min(te.max(keys[i], 0), n - 1)], name="taken")
    s = te.create_schedule([turned.op, picked_elements.op])
    run = te.build(s, [X, keys, flags, turned, picked_elements])
    for size in (1, 5, 16, 23, 70):
        generator = np.random.default_rng(size)
        x, f = generator.normal(size=(size, size)).astype("float32"), generator.random((size, size)) < 0.5
        k = generator.integers(-3, size + 3, size).astype("int32")
        expected = np.where(f.T, x.T, x[::-1, ::-1])
        got, picked = run(x, k, f)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(picked, expected[np.arange(size), np.clip(k, 0, size - 1)])


def test_one_function_for_all_sizes(monkeypatch):
    from upsweep._compiler.llvm import jit

    compiled = []
    original = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda *args: compiled.append(1) or original(*args))
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    constant = np.random.default_rng().uniform()  # so that no other test has built it
    run, _ = elementwise(lambda a: a * constant, "float64")
    assert len(compiled) == 1
    for n in SIZES:
        np.testing.assert_array_equal(run(np.ones(n)), np.full(n, constant))
    assert len(compiled) == 1
    elementwise(lambda a: a * constant, "float64")  # the same text again
    assert len(compiled) == 1


def test_code_comes_from_the_disk(monkeypatch, tmp_path):
    code = """
    import numpy as np
    from upsweep import te
    from upsweep._compiler.llvm import jit
    original, compiled = jit.compile_object, []
    jit.compile_object = lambda *args: compiled.append(1) or original(*args)
    X = te.placeholder((te.var("n"),), name="X")
    Y = te.compute(X.shape, lambda i: te.exp(X[i]), name="Y")
    print(te.build(te.create_schedule(Y.op), [X, Y])(np.zeros(3, "float32")).sum(), len(compiled))
    """
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path))
    assert [run_python(code).split() for _ in range(2)] == [["3.0", "1"], ["3.0", "0"]]


def test_code_grows_with_the_stages():
    """The function of a parallel loop loads what it uses of the call's arguments, not all of them."""

    def text(n_stages):
        n = te.var("n")
        last = X = te.placeholder((n,), name="X")
        for _ in range(n_stages):
            last = te.compute((n,), lambda i, before=last: before[i] * 0.5)
        lowered = lower_for(te.create_schedule(last.op), [X, last])
        body, buffers = lowered.body, list(lowered.buffers)
        while isinstance(body, Allocate):
            buffers.append(body.buffer)
            body = body.body
        return render(body, buffers, lowered.sizes, TARGETS["x86_64_v3"], symbols())

    assert len(text(80)) < 2.2 * len(text(40))


def test_sizes_as_arguments():
    n, m = te.var("n"), te.var("m")
    Y = te.compute((n,), lambda i: te.cast("float64", i + m), name="Y")
    run = te.build(te.create_schedule(Y.op), [n, m, Y])
    assert run(3, 10).tolist() == [10, 11, 12]
    with pytest.raises(TypeError, match=r"m: expected an integer, got 1\.5"):
        run(3, 1.5)
    with pytest.raises(ValueError, match="n: a size is never negative, got -1"):
        run(-1, 10)


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="X: masked arrays"):
        cumulative_sum()(np.ma.masked_array(np.ones((2, 2)), mask=[[True, False]] * 2))


def moved_input():
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), "float64", "X"), te.placeholder((m, n), "float64")
    twice = te.compute((m, n), lambda t, i: X[t, i] * 2, name="twice")
    near = te.compute(
        (m, n),
        lambda t, i: te.select(i > 0, twice[t, i - 1], 0.0) + te.select(i < n - 1, twice[t, i + 1], 1.0),
        name="near",
    )
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] * 0.5 + near[t, i])
    return m, n, X, twice, near, update, te.scan(init, update, state)


@pytest.mark.parametrize("where", ["root", "scan", "column", "block", "chain", "inline"])
def test_inputs_computed_in_the_loop_of_a_scan(where):
    m, n, X, twice, near, update, scan = moved_input()
    s = te.create_schedule(scan.op)
    stage = s[update]
    if where == "scan":
        s[near].compute_at(s[scan], scan.op.scan_axis)
        s[twice].compute_at(s[scan], scan.op.scan_axis)
    elif where == "column":
        s[near].compute_at(stage, update.op.axis[1])
        stage.vectorize(update.op.axis[1])  # lanes would share the memory of `near`: it stays a plain loop
    elif where in ("block", "chain"):
        outer, inner = stage.split(update.op.axis[1], factor=8)
        stage.parallel(outer)
        stage.vectorize(inner)
        s[near].compute_at(stage, outer)
        if where == "chain":
            s[twice].compute_at(s[near], near.op.axis[0])
    elif where == "inline":
        s[twice].compute_inline()
        s[near].compute_inline()
    run = te.build(s, [X, scan])
    if where == "block":
        assert "allocate near[float64 * 8]" in run.text
    if where == "scan":
        assert "allocate twice[float64 * n]" in run.text
    for size in (1, 2, 8, 9, 30):
        x = np.random.default_rng(size).normal(size=(5, size))
        expected = Reference({m: 5, n: size}, {X: x})[scan]
        walked = np.full(x.shape, np.nan)
        lowered = lower_for(s, [X, scan])
        run_nest(lowered.body, lowered.buffers, [x, walked], {m: 5, n: size})
        np.testing.assert_allclose(walked, expected, rtol=1e-12)
        np.testing.assert_allclose(run(x), expected, rtol=1e-12)


def test_large_flags_of_each_thread():
    n, width = te.var("n"), te.var("w")
    X = te.placeholder((n, width), name="X")
    flags = te.compute((n, width), lambda i, j: X[i, j] > 0, name="flags")
    k = te.reduce_axis((0, width), "k")
    Y = te.compute((n,), lambda i: te.sum(te.cast("int32", flags[i, width - 1 - k]), axis=k), name="Y")
    s = te.create_schedule(Y.op)
    s[Y].parallel(Y.op.axis[0])
    s[flags].compute_at(s[Y], Y.op.axis[0])
    run = te.build(s, [X, Y])
    assert "allocate flags[bool * w]" in run.text
    x = np.random.default_rng(0).normal(size=(3, 9_000_000)).astype("float32")  # more bytes than a stack has
    np.testing.assert_array_equal(run(x), (x > 0).sum(axis=1))


def test_memory_of_each_thread():
    m, n, width = te.var("m"), te.var("n"), te.var("w")
    X = te.placeholder((m, n, width), "float64", "X")
    half = te.compute((m, n, width), lambda t, i, j: X[t, i, j] * 0.5, name="half")
    k = te.reduce_axis((0, width), "k")
    Y = te.compute((m, n), lambda t, i: te.sum(half[t, i, k] + half[t, i, width - 1 - k], axis=k), name="Y")
    s = te.create_schedule(Y.op)
    s[Y].parallel(Y.op.axis[0])
    s[half].compute_at(s[Y], Y.op.axis[1])
    run = te.build(s, [X, Y])
    assert "allocate half[float64 * w]" in run.text
    x = np.random.default_rng(0).normal(size=(9, 31, 500))
    for _ in range(3):
        np.testing.assert_allclose(run(x), x.sum(axis=2), rtol=1e-9)
