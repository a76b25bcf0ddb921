"""A case or more for every operation, random formulas, and the arrays they are tried on."""

import numpy as np
from upsweep._compiler.formulas.nodes import constant, make, variable

WIDE, POSITIVE, UNIT = (-2.0, 2.0), (0.25, 2.0), (-0.9, 0.9)
MIXED = (3, 3), (1, 4), (4, 1), (1, 1)

# For each operation: the dims of its arguments, its numbers, and where the arguments lie.
CASES = [
    *((name, (dim,), (), WIDE) for name in ("neg", "abs", "sign", "step", "relu", "exp", "square", "sin", "cos")
      for dim in (1, 3)),
    *((name, (dim,), (), WIDE) for name in ("atan", "tanh", "sinxdivx", "floor", "sinc") for dim in (1, 3)),
    *((name, (dim,), (), WIDE) for name in ("sqnorm2", "norm2", "normalize", "sum") for dim in (1, 3)),
    *((name, (dim,), (), WIDE) for name in ("max", "min", "argmax", "argmin", "autofactorize") for dim in (1, 5)),
    *((name, (2,), (), POSITIVE) for name in ("log", "sqrt", "rsqrt", "inverse", "xlogx")),
    *((name, (2,), (), UNIT) for name in ("asin", "acos")),
    *((name, dims, (), WIDE) for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "scalprod", "sqdist")
      for dims in MIXED),
    *((name, dims, (), POSITIVE) for name in ("div", "powf", "atan2") for dims in MIXED),
    *(("pow", (2,), (m,), POSITIVE) for m in (-3, -1, 0, 1, 2, 3, 7, 100)),
    *(("round", (2,), (d,), WIDE) for d in (0, 2, -1)),
    *((name, dims, (), WIDE) for name in ("clamp", "ifelse", "mod")
      for dims in ((3, 3, 3), (3, 1, 1), (1, 1, 3), (1, 1, 1))),
    *((name, (3,), bounds, WIDE) for name in ("clampint", "diffclampint") for bounds in ((-1, 1), (0.5, 0.75))),
    ("sumT", (1,), (4,), WIDE),
    *(("elem", (3,), (n,), WIDE) for n in (0, 2)),
    ("elemT", (1,), (4, 2), WIDE),
    ("extract", (5,), (1, 3), WIDE), ("extract", (5,), (0, 5), WIDE),
    ("extractT", (2,), (1, 5), WIDE), ("extractT", (3,), (0, 3), WIDE),
    ("concat", (2, 3), (), WIDE),
    ("one_hot", (1,), (3,), (-1.0, 4.0)),
    ("matvecmult", (6, 2), (), WIDE), ("matvecmult", (4, 1), (), WIDE), ("matvecmult", (4, 4), (), WIDE),
    ("vecmatmult", (2, 6), (), WIDE), ("vecmatmult", (3, 3), (), WIDE),
    ("tensorprod", (2, 3), (), WIDE), ("difference_matrix", (2, 3), (), WIDE),
    ("tensordot", (6, 12), ((2, 3), (3, 4), (1,), (0,)), WIDE),
    ("tensordot", (12, 12), ((2, 3, 2), (3, 2, 2), (1, 2), (0, 1), (1, 0)), WIDE),
    ("tensordot", (6, 4), ((2, 3), (2, 2), (), (), (2, 0, 3, 1)), WIDE),
    ("tensordot", (3, 3), ((3,), (3,), (0,), (0,)), WIDE),
    ("kron", (6, 6), ((2, 3), (3, 2)), WIDE),
    *((name, (w, 3), (), WIDE) for name in ("weightedsqnorm",) for w in (1, 3, 9)),
    *(("weightedsqdist", (w, 3, 3), (), WIDE) for w in (1, 3, 9)),
    ("sqnormiso", (1, 3), (), WIDE), ("sqnormdiag", (3, 3), (), WIDE), ("symsqnorm", (4, 2), (), WIDE),
    *(("bspline", (6, 1), (order,), WIDE) for order in (0, 1, 3)),
    *(("softdtw_sqdist", dims, (), POSITIVE) for dims in ((2, 2, 1), (3, 4, 1), (1, 3, 1))),
    ("factorize", (3, 1), (), WIDE),
]  # fmt: skip
IDS = [f"{name}{dims}{static or ''}".replace(" ", "") for name, dims, static, _ in CASES]

KIND_OF = "ijp"  # arguments of a case, in turn
N = {"i": 5, "j": 4, "p": 1}


def case_formula(case):
    """The formula of a case on variables 0, 1, ... of kinds i, j, p."""
    name, dims, static, _ = case
    return make(name, *(variable(n, dim, KIND_OF[n]) for n, dim in enumerate(dims)), static=static)


def shaped(array, kind):
    """An array (n, dim) as one that broadcasts over pairs."""
    return array[:, None] if kind == "i" else array[None]


def arrays_for(variables, low=-2.0, high=2.0, seed=0, n=None):
    """Arrays for variables in positions 0, 1, ..., each (n, dim)."""
    generator = np.random.default_rng(seed)
    n = n or N
    return [generator.uniform(low, high, (n[v.static[1]], v.dim)) for v in variables]


def over_pairs(variables, arrays):
    return [shaped(array, v.static[1]) for v, array in zip(variables, arrays)]


def case_arrays(case, seed=0):
    name, dims, _, (low, high) = case
    arrays = arrays_for([variable(n, dim, KIND_OF[n]) for n, dim in enumerate(dims)], low, high, seed)
    if name == "bspline":
        arrays[0].sort(-1)  # knots
    return arrays


SMOOTH = ("neg", "exp", "square", "sin", "cos", "atan", "tanh", "sinxdivx", "abs", "relu")


def random_formula(generator, depth=5, dim=3):
    """A formula of dim `dim` or 1, of a row's, columns' and a parameter's variables; smooth nearly everywhere."""
    leaves = [
        variable(0, dim, "i"),
        variable(1, dim, "j"),
        variable(2, 1, "p"),
        variable(3, 1, "j"),
        constant(0.5),
    ]
    pool = list(leaves)
    for _ in range(depth * 2):
        kind = generator.integers(0, 6)
        a, b = (pool[generator.integers(max(0, len(pool) - 8), len(pool))] for _ in range(2))
        if kind <= 1:
            pool.append(make(SMOOTH[generator.integers(len(SMOOTH))], make("sin", a)))
        elif kind <= 3:
            pool.append(make(("add", "sub", "mul", "sqdist", "scalprod")[generator.integers(5)], a, b))
        elif kind == 4:
            pool.append(make("div", a, make("add", make("square", b), constant(1.0))))
        else:
            pool.append(make("sum", make("concat", a, b)))
    return make("add", pool[-1], make("sum", pool[-2]))
