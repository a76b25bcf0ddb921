"""Hazard: indices, extents and memory whose arithmetic leaves int64 or int32; programs run in another process."""

import pytest
from helpers import run_python
from upsweep import te

pytest.importorskip("llvmlite")

# A has n numbers, i runs over [0, n), m is a size that the call gives; D and E are int64 and int32 data.
PROGRAM = """
    import numpy as np
    from upsweep import te

    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n,), "float64", "A")
    D, E = te.placeholder((n,), "int64", "D"), te.placeholder((n,), "int32", "E")
    K, L = te.reduce_axis((0, n + m * -(2**32)), "K"), te.reduce_axis((0, m * m), "L")

    def built(body):
        C = te.compute((n,), body, "C")
        return te.build(te.create_schedule(C.op), [A, D, E, m, C])

    def run(function, size, large, wide, narrow):
        return function(np.arange(float(size)), wide, narrow, large)
"""

REFUSED = {
    "a multiple": ("A[te.min(i * 2**43, 9)]", 2**21, 0),
    "a multiple, far": ("A[te.min(i * 2**61, 9)]", 40, 0),
    "a sum": ("A[te.min(i + (2**63 - 5), 9)]", 100, 0),
    "a difference": ("A[te.max(-2**63 + 5 - i, te.min(i, 3))]", 100, 0),
    "a negative multiple": ("A[te.max(i * -2**61, 0)]", 40, 0),
    "negated": ("A[te.max(-(i * -2**61 - 2**62), 0)]", 40, 0),
    "two sizes": ("A[te.min(m * m, i)]", 20, 2**32 + 2**31),
    "sizes and a constant": ("A[te.min(m * 4 + i, n - 1)]", 20, 2**61 + 2**60),
    "many sizes": ("A[te.min(m + m + m + i, n - 1)]", 20, 2**62),
    "a quotient": ("A[(i + (2**63 - 5)) // 2**62]", 100, 0),
    "a quotient of sizes": ("A[(m * 4) // 2**61]", 100, 2**61),
    "a rest": ("A[(i * 2**62) % 10]", 100, 0),
    "a quotient below zero": ("A[(i + n - 5) // 2]", 3, 0),
    "nested": ("A[te.min(te.max(i * 2**61, i), 9)]", 40, 0),
    "a cast": ("A[te.cast('int32', i * 2**33)]", 40, 0),
    "a sum in int32": ("A[te.min(te.cast('int32', i) + (2**31 - 5), 9)]", 40, 0),
    "a condition": ("te.select(i * 2**61 < 10, A[te.min(i * 2**61, 9)], 0.0)", 40, 0),
    "a guard": ("te.select(te.all(i * 2**61 >= 0, i * 2**61 < n), A[i * 2**61], 0.0)", 40, 0),
    "data": ("A[te.min(te.max(D[i], 0) + 5, 9)]", 40, 0),
    "data in int32": ("A[te.min(te.max(E[i], 0) + 5, 9)]", 40, 0),
    "divided data": ("A[te.min((te.max(E[i], 0) + 1) // 2, 9)]", 40, 0),
    "simplified data": ("te.select(te.all(D[i] >= 0, D[i] < 2**62), A[te.min(D[i] * 6 // 3, 9)], 0.0)", 40, 0),
    "data by a constant": ("A[te.min(te.max(D[i], 0) * 2, 9)]", 40, 0),
    "data and a size": ("A[te.min(te.max(D[i], 0) + m, n - 1)]", 40, 3),
    "a factor": ("A[i * 2**62 * 4]", 40, 0),
    "a constant": ("A[i + 2**70]", 40, 0),
    "a constant of int32": ("A[te.max(te.min(E[i] + 2**31, 9), 0)]", 40, 0),
    "a large size": ("A[te.min(i, m)]", 40, 2**63 - 1),
    "a size beyond int64": ("A[te.min(i, m)]", 40, 2**64 + 3),
    "an extent": ("te.sum(A[K], axis=K)", 40, 2**32),
    "an extent of factors": ("te.sum(A[te.min(L, 3)], axis=L)", 40, 2**32),
}

ACCEPTED = [
    "A[te.min(i + 3, n - 1)]",
    "A[te.max(i - 3, 0)]",
    "A[te.min(i + m, n - 1)]",
    "A[te.min(i + 2**62, n - 1)]",
    "A[te.max(te.min(D[i], n - 1), 0)]",
    "A[te.max(te.min(D[i] * 5 + m, n - 1), 0)]",
    "A[te.max(te.min(E[i] * 5 + 1, n - 1), 0)]",
    "te.select(te.all(D[i] >= 0, D[i] < n), A[D[i]], 7.0)",
    "te.select(te.all(E[i] >= 0, E[i] < n - 1), A[E[i] + 1], 7.0)",
    "te.select(te.all(E[i] + 1 >= 0, E[i] + 1 < n), A[E[i] + 1], 7.0)",
    "te.select(te.all(D[i] * 7 >= 0, D[i] * 7 < n), A[D[i] * 7], 7.0)",
    "te.select(te.all(i + 2 < n, i > 1), A[i + 2] + A[i - 2], 7.0)",
    "A[i // 2]",
    "A[te.max(te.min(te.min(i, 5) // 2 + 1, n - 1), 0)]",
    "A[te.max(te.min(te.select(D[i] > 0, i, m) + 3, n - 1), 0)]",
    "A[te.max(te.min((i - 3) * m, n - 1), 0)]",
    "A[te.min(te.cast('int32', te.sqrt(te.cast('float64', i))) % 3, n - 1)]",
    "A[te.max(te.min(D[i] % 5 - 1, n - 1), 0)]",
    "A[te.min((D[i] * 2654435761 + 12345) % 5, n - 1)]",
    "A[te.min(te.cast('int32', i) + 1, n - 1)]",
]


def test_what_leaves_its_integers_is_refused():
    run_python(
        PROGRAM
        + f"""
    for name, (body, size, large) in {REFUSED!r}.items():
        print(name, flush=True)
        data = np.full(size, 2**62 - 1 if "2**62)" in body else 2**63 - 1), np.full(size, 2**31 - 1, "int32")
        try:
            made = run(built(lambda i: eval(body, globals() | dict(i=i))), size, large, *data)
        except (ValueError, TypeError) as error:
            assert any(part in str(error) for part in ("int64", "int32", "2**62", "leaves A")), error
            continue
        raise AssertionError((name, body, made))
    """
    )


def test_what_may_be_read_is_not_refused():
    run_python(
        PROGRAM
        + f"""
    rng = np.random.default_rng(0)
    for body in {ACCEPTED!r}:
        function = built(lambda i: eval(body, globals() | dict(i=i)))
        for size in (1, 5, 70):
            for low, high in ((-3, size + 3), (-(2**31), 2**31 - 1)):
                wide, narrow = rng.integers(low, high, size), rng.integers(low, high, size).astype("int32")
                run(function, size, 3, wide, narrow)
    """
    )


def test_the_memory_of_a_tensor_is_counted_exactly():
    run_python(
        PROGRAM
        + """
    for inside in (False, True):
        T = te.compute((m + 1, n, m + 1), lambda k, i, l: A[i], "T")
        k = te.reduce_axis((0, m), "k")
        C = te.compute((n,), lambda i: te.sum(T[0, i, te.min(k + 1, m)], axis=k), "C")
        schedule = te.create_schedule(C.op)
        if inside:
            schedule[T].compute_at(schedule[C], C.op.axis[0])
        function = te.build(schedule, [A, D, E, m, C])
        assert run(function, 5, 3, np.arange(5), np.zeros(5, "int32")).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]
        try:
            run(function, 5, 2**61, np.arange(5), np.zeros(5, "int32"))
        except ValueError as error:
            assert "2**63 bytes" in str(error), error
        else:
            raise AssertionError
    """
    )


def test_a_size_is_computed_of_sizes():
    n = te.var("n")
    with pytest.raises(ValueError, match="arithmetic of sizes alone, got int64"):
        te.placeholder((te.cast("int64", te.sqrt(te.cast("float32", n))),), name="X")
    with pytest.raises(ValueError, match="a size is at most 2\\*\\*62, got"):
        te.placeholder((2**62 + 1,), name="X")


RANDOM = (
    PROGRAM
    + """
    from upsweep._compiler.loops.expressions import INTEGER_OPERATIONS, INTS, as_expr

    NUMBERS = [0, 1, 2, 5, 9, -1, -3, 2**31 - 1, -(2**31), 2**31, 2**43, 2**60, 2**61, 2**62, 2**63 - 1, -(2**63)]
    POSITIVE = [1, 2, 3, 7, 2**31, 2**61]

    def number(rng, i, depth):
        \"\"\"A random integer expression.\"\"\"
        def inner():
            return number(rng, i, depth - 1)

        kind = rng.integers(12) if depth else rng.integers(5)
        if kind < 3:
            return i
        if kind == 3:
            return [n, m, n - 1, i + 1][rng.integers(4)]
        if kind == 4:
            return [D[i], E[i], as_expr(NUMBERS[rng.integers(len(NUMBERS))], "int64")][rng.integers(3)]
        if kind == 5:
            return inner() + (inner() if rng.integers(2) else NUMBERS[rng.integers(len(NUMBERS))])
        if kind == 6:
            return inner() - inner()
        if kind == 7:
            return inner() * NUMBERS[rng.integers(len(NUMBERS))]
        if kind == 8:
            return te.min(inner(), inner())
        if kind == 9:
            return te.max(inner(), inner())
        if kind == 10:
            divisor = POSITIVE[rng.integers(len(POSITIVE))]
            return inner() // divisor if rng.integers(2) else inner() % divisor
        return te.cast("int32", inner()) if rng.integers(2) else -inner()

    def read(rng, index):
        \"\"\"An element of A at an index that is inside, or is not.\"\"\"
        kind = rng.integers(5)
        if kind == 0:
            return A[te.min(index, n - 1)]
        if kind == 1:
            return A[te.max(index, 0)]
        if kind == 2:
            return A[te.max(te.min(index, n - 1), 0)]
        if kind == 3:
            return te.select(te.all(index >= 0, index < n), A[index], -1.0)
        return A[index]

    class Beside(Exception):
        \"\"\"A value of integers alone that its dtype does not hold.\"\"\"

    def value(expr, known):
        \"\"\"What an expression is: exact without data, and modulo 2**32 or 2**64 of data.\"\"\"
        if expr.op == "const":
            return expr.static[0], False
        if expr in known:
            return known[expr], False
        if expr.op == "read":
            (place, _) = value(expr.args[0], known)
            tensor = known[expr.static[0].name]
            if not 0 <= place < len(tensor):
                raise AssertionError(f"reads {expr!r} at {place}")
            return tensor[place].item(), True
        if expr.op == "select":
            (holds, _) = value(expr.args[0], known)
            return value(expr.args[1 if holds else 2], known)
        args = [value(arg, known) for arg in expr.args]
        has_data = any(data for _, data in args)
        result = args[0][0] if expr.op == "cast" else INTEGER_OPERATIONS[expr.op](*(x for x, _ in args))
        if expr.dtype in INTS:
            half = 2**31 if expr.dtype == "int32" else 2**63
            if has_data:
                result = (result + half) % (2 * half) - half
        return result, has_data

    n_read = n_refused = 0
    for seed in range(FIRST, LAST):
        rng = np.random.default_rng(seed)
        bodies = []
        def body(i):
            bodies.append((i, read(rng, number(rng, i, 3))))
            return bodies[0][1]
        try:
            function = built(body)
        except (ValueError, TypeError):
            n_refused += 1
            continue
        ((axis, expr),) = bodies
        for size, large in ((1, 1), (6, 3), (40, 7), (6, 2**31), (6, 2**61), (6, 2**62)):
            pool = np.array([0, 1, 5, -1, size, 2**31 - 1, -(2**31), 2**61, 2**63 - 1, -(2**63)])
            wide = rng.choice(pool, size)
            narrow = rng.choice(pool[:7], size).astype("int32")
            try:
                got = run(function, size, large, wide, narrow)
            except ValueError:
                n_refused += 1
                continue
            n_read += 1
            known = {n: size, m: large, "A": np.arange(float(size)), "D": wide, "E": narrow}
            expected = [value(expr, known | {axis: i})[0] for i in range(size)]
            assert got.tolist() == expected, (seed, expr, size, large)
    assert n_read > 100 and n_refused > 100, (n_read, n_refused)
"""
)


@pytest.mark.parametrize("first", [0, 300, 600])
def test_random_indices_are_refused_or_read_what_they_mean(first):
    run_python(RANDOM.replace("FIRST", str(first)).replace("LAST", str(first + 300)))
