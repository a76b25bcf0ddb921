"""Hazard: copies of one computation (a loop's body and its rest, one row and several) may round differently."""

import pytest
import upsweep
from helpers import run_python

pytest.importorskip("llvmlite")

PROGRAMS = """
    import numpy as np
    from upsweep import te

    def random(*shape, dtype="float32", seed=0):
        return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)

    def check(got, expected, *where):
        assert got.tobytes() == np.ascontiguousarray(expected).tobytes(), where

    def product(term, dtype):
        M, N, K = te.var("M"), te.var("N"), te.var("K")
        A, B = te.placeholder((M, K), dtype, "A"), te.placeholder((K, N), dtype, "B")
        k = te.reduce_axis((0, K), "k")
        C = te.compute((M, N), lambda i, j: te.sum(term(A[i, k], B[k, j]), axis=k), "C")
        return te.build(te.create_schedule(C.op), [A, B, C])

    def scan(dtypes, starts, updates):
        T, N = te.var("T"), te.var("N")
        X = te.placeholder((T, N), dtypes[0], "X")
        states = [te.placeholder((T, N), dtype) for dtype in dtypes]
        init = [te.compute((1, N), lambda t, j, f=f, d=d: te.cast(d, f(X[0, j]))) for f, d in zip(starts, dtypes)]
        made = []
        for update in updates:
            made.append(te.compute((T, N), lambda t, j, f=update: f(X[t, j], *(s[t - 1, j] for s in states),
                                                                   *(u[t, j] for u in made))))
        results = te.scan(init, made, states, inputs=[X])
        return te.build(te.create_schedule(results[0].op), [X, *results])
"""

PRODUCTS = (
    PROGRAMS
    + """
    terms = {
        "product": lambda a, b: a * b,
        "difference": lambda a, b: b * a - a,
        "two products": lambda a, b: a * a + b * b,
        "square": lambda a, b: (a - b) * (a - b),
    }
    for dtype in ("float32", "float64"):
        for name, term in terms.items():
            run = product(term, dtype)
            sizes = [(m, n) for m in range(1, 5) for n in range(1, 21)] + [(3, 70), (6, 131)]
            for m, n in sizes:
                a, b = random(m, 9, dtype=dtype), random(9, n, dtype=dtype, seed=1)
                all_rows = run(a, b, n_threads=1)
                check(run(a, b, n_threads=2), all_rows, name, m, n)
                for row in range(m):
                    check(run(a[row : row + 1], b), all_rows[row : row + 1], name, m, n, "row", row)
                for column in {0, n // 2, n - 1}:
                    one = np.ascontiguousarray(b[:, column : column + 1])
                    check(run(a, one), all_rows[:, column : column + 1], name, m, n, "column", column)
    """
)

SCANS = (
    PROGRAMS
    + """
    for dtypes in (("float32",) * 2, ("float64",) * 2, ("float32", "float64")):
        # The second state reads what the first one's product has become in the same step.
        run = scan(
            dtypes,
            [lambda x: x, lambda x: x],
            [lambda x, a, b: x * te.rsqrt(a), lambda x, a, b, new: b * 0.5 + te.cast(dtypes[1], new)],
        )
        for n in (1, 7, 16, 40, 500):
            x = random(12, n, dtype=dtypes[0])
            one = run(x, n_threads=1)
            for got, expected in zip(run(x, n_threads=2), one):
                check(got, expected, dtypes, n)
            for column in range(n):
                alone = run(np.ascontiguousarray(x[:, column : column + 1]))
                for got, expected in zip(alone, one):
                    check(got, expected[:, column : column + 1], dtypes, n, column)
    """
)


@pytest.mark.parametrize("code", [PRODUCTS, SCANS], ids=["products", "scans"])
@pytest.mark.parametrize("level", upsweep.show_config()["isa_usable"])
def test_rows_and_columns_alone_have_the_same_bits(level, code):
    run_python(code, UPSWEEP_CPU_ISA=level)
