"""Every operation's meaning against a direct numpy expression, and its conventions at special places."""

import numpy as np
import pytest
from formulas import CASES, IDS, case_arrays, case_formula
from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import constant, make, variable, zero
from upsweep._compiler.formulas.reference import evaluate


def np_sum(a):
    return a.sum(-1, keepdims=True)


DIRECT = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "neg": lambda a: -a, "abs": lambda a: np.sqrt(a * a), "sign": np.sign, "step": lambda a: np.heaviside(a, 1),
    "relu": lambda a: np.maximum(a, 0), "exp": lambda a: np.e**a, "log": lambda a: np.log2(a) / np.log2(np.e),
    "sqrt": lambda a: a**0.5, "rsqrt": lambda a: a**-0.5, "square": lambda a: a * a, "inverse": lambda a: 1 / a,
    "pow": lambda a, m: a ** float(m), "powf": lambda a, b: np.exp(b * np.log(a)), "sin": np.sin,
    "cos": lambda a: np.sin(a + np.pi / 2), "asin": lambda a: np.arctan2(a, np.sqrt(1 - a * a)),
    "acos": lambda a: np.pi / 2 - np.arcsin(a), "atan": lambda a: np.angle(1 + 1j * a),
    "atan2": lambda a, b: np.angle(b + 1j * a), "tanh": lambda a: np.sinh(a) / np.cosh(a),
    "sinxdivx": lambda a: np.sinc(a / np.pi), "sinc": np.sinc, "xlogx": lambda a: a * np.log(a),
    "floor": lambda a: a // 1, "round": np.round,
    "clamp": lambda a, b, c: np.where(a < b, b, np.where(a > c, c, a)), "clampint": np.clip,
    "diffclampint": lambda a, b, c: (a >= b) * (a <= c), "mod": lambda a, b, c: (a - c) % b + c,
    "ifelse": lambda a, b, c: (a >= 0) * b + (a < 0) * c, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "sum": np_sum, "scalprod": lambda a, b: np_sum(a * b),
    "sqdist": lambda a, b: np_sum((a - b) ** 2), "sqnorm2": lambda a: np_sum(a**2),
    "norm2": lambda a: np.linalg.norm(a, axis=-1, keepdims=True),
    "normalize": lambda a: a / np.linalg.norm(a, axis=-1, keepdims=True),
    "max": lambda a: np.sort(a)[..., -1:], "min": lambda a: np.sort(a)[..., :1],
    "argmax": lambda a: np.argsort(a)[..., -1:], "argmin": lambda a: np.argsort(a)[..., :1],
    "sumT": lambda a, d: a * np.ones(d), "elem": lambda a, n: a[..., [n]],
    "elemT": lambda a, d, n: a * (np.arange(d) == n), "extract": lambda a, s, d: a[..., s : s + d],
    "extractT": lambda a, s, d: np.pad(a, [(0, 0)] * 2 + [(s, d - s - a.shape[-1])]),
    "concat": lambda a, b: np.concatenate([np.broadcast_to(c, (5, 4, c.shape[-1])) for c in (a, b)], -1),
    "one_hot": lambda a, d: (np.rint(a) == np.arange(d)),
    "matvecmult": lambda a, b: np.einsum("...kl,...l->...k", a.reshape(*a.shape[:-1], -1, b.shape[-1]), b),
    "vecmatmult": lambda a, b: np.einsum("...k,...kl->...l", a, b.reshape(*b.shape[:-1], a.shape[-1], -1)),
    "tensorprod": lambda a, b: np.einsum("...k,...l->...kl", a, b).reshape(5, 4, -1),
    "difference_matrix": lambda a, b: (a[..., :, None] - b[..., None, :]).reshape(5, 4, -1),
    "kron": lambda a, b, s, t: each_pair(lambda u, v: np.kron(u.reshape(s), v.reshape(t)), a, b),
    "weightedsqnorm": lambda w, a: quadratic(w, a), "sqnormiso": lambda w, a: quadratic(w, a),
    "weightedsqdist": lambda w, a, b: quadratic(w, a - b), "sqnormdiag": lambda w, a: quadratic(w, a),
    "symsqnorm": lambda w, a: quadratic(w, a), "factorize": lambda a, b: a, "autofactorize": lambda a: a,
    "bspline": lambda knots, a, order: each_pair(lambda t, v: basis(t, v[0], order), knots, a),
    "softdtw_sqdist": lambda a, b, g: each_pair(lambda u, v: np.atleast_1d(alignment(u, v, g[0, 0, 0])), a, b),
    "tensordot": lambda a, b, s, t, u, v, perm=None: each_pair(
        lambda c, d: in_order(np.tensordot(c.reshape(s), d.reshape(t), (u, v)), perm), a, b),
}  # fmt: skip


def basis(knots, at, order, first=0, count=None):
    """Splines of an order by their definition, one after another."""
    if count is None:
        return np.array([basis(knots, at, order, n, 1) for n in range(len(knots) - order - 1)])
    if order == 0:
        return float(knots[first] <= at < knots[first + 1])
    t, total = knots[first : first + order + 2], 0.0
    if t[0] < t[-2]:
        total += (at - t[0]) / (t[-2] - t[0]) * basis(knots, at, order - 1, first, 1)
    if t[1] < t[-1]:
        total += (t[-1] - at) / (t[-1] - t[1]) * basis(knots, at, order - 1, first + 1, 1)
    return total


def alignment(u, v, gamma):
    """Soft dynamic time warping with infinite costs around the table."""
    table = np.full((len(u) + 1, len(v) + 1), np.inf)
    table[0, 0] = 0
    for n in range(len(u)):
        for m in range(len(v)):
            costs = np.array([table[n, m], table[n, m + 1], table[n + 1, m]])
            table[n + 1, m + 1] = (u[n] - v[m]) ** 2 - gamma * np.logaddexp.reduce(-costs / gamma)
    return table[-1, -1]


def in_order(tensor, perm):
    return tensor if perm is None else np.moveaxis(tensor, range(tensor.ndim), perm)


def each_pair(function, a, b):
    rows, columns = a.shape[0], b.shape[1]
    return np.array([[function(a[i, 0], b[0, j]).ravel() for j in range(columns)] for i in range(rows)])


def quadratic(w, a):
    d = a.shape[-1]
    matrix = w[..., None] * np.eye(d) if w.shape[-1] in (1, d) else w.reshape(*w.shape[:-1], d, d)
    return np.einsum("...k,...kl,...l->...", a, matrix, a)[..., None]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_meaning_of(case):
    name, _dims, static, _ = case
    formula = case_formula(case)
    arrays = [array[:, None] if n == 0 else array[None] for n, array in enumerate(case_arrays(case))]
    expected = DIRECT[name](*arrays, *static)
    value = evaluate(formula, arrays)
    np.testing.assert_allclose(value, np.broadcast_to(expected, value.shape), rtol=1e-12, atol=1e-14)
    assert value.shape[-1] == formula.dim


def test_there_is_a_case_for_every_operation():
    assert {name for name, *_ in CASES} == set(ops.TABLE) == set(DIRECT)
    assert all(row.name == name for name, row in ops.TABLE.items())
    assert len(ops.BY_KEOPS) == len(ops.TABLE)


NAN = np.nan
SPECIAL = [
    ("step", [0.0, -0.0, -1e-300, NAN], [1, 1, 0, 1]),
    ("sign", [0.0, -3.0, 2.0, NAN], [0, -1, 1, 0]),
    ("relu", [-1.0, 0.0, NAN, np.inf], [0, 0, NAN, np.inf]),
    ("rsqrt", [0.0, 4.0, np.inf, -1.0], [0, 0.5, 0, NAN]),
    ("sinxdivx", [0.0, -0.0], [1, 1]),
    ("xlogx", [0.0, 1.0, -1.0], [0, 0, NAN]),
    ("log", [0.0, -1.0], [-np.inf, NAN]),
    ("inverse", [0.0], [np.inf]),
]


@pytest.mark.parametrize("name, inputs, expected", SPECIAL)
def test_conventions(name, inputs, expected):
    value = evaluate(make(name, variable(0, len(inputs), "i")), [np.array(inputs)])
    np.testing.assert_array_equal(value, expected)


def test_more_conventions():
    x = variable(0, 5, "i")
    inputs = [np.array([0.5, 1.5, -0.5, -2.5, 0.49999999999999994])]
    np.testing.assert_array_equal(evaluate(make("round", x, static=(0,)), inputs), [1, 2, -1, -3, 0])
    condition = [np.array([0.0, -0.0, -1.0, NAN, 1.0])]
    value = evaluate(make("ifelse", x, constant(1), constant(2)), condition)
    np.testing.assert_array_equal(value, [1, 1, 2, 2, 1])
    np.testing.assert_array_equal(evaluate(make("clampint", x, static=(0, 1)), condition), [0, 0, 0, NAN, 1])
    np.testing.assert_array_equal(evaluate(make("diffclampint", x, static=(0, 1)), condition), [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(evaluate(make("argmax", x), condition), [3])
    np.testing.assert_array_equal(evaluate(make("argmin", x), [np.array([2.0, 1.0, 1.0, 3.0, 1.0])]), [1])
    np.testing.assert_array_equal(evaluate(make("max", x), condition), [NAN])
    np.testing.assert_array_equal(evaluate(zero(2), []), [0, 0])
    np.testing.assert_array_equal(evaluate(make("one_hot", constant(7), static=(2,)), []), [0, 0])


def test_a_hard_alignment():
    """With little softness it is dynamic time warping, and nothing overflows."""
    a, b, gamma = variable(0, 3, "i"), variable(1, 3, "j"), variable(2, 1, "p")
    inputs = [np.array([0.0, 30.0, 60.0]), np.array([0.0, 0.0, 60.0]), np.array([1e-3])]
    np.testing.assert_allclose(evaluate(make("softdtw_sqdist", a, b, gamma), inputs), [900], atol=0.01)


def test_float32_is_computed_in_float32():
    x = variable(0, 1, "i")
    value = evaluate(make("add", x, constant(1e-9)), [np.ones(1, np.float32)], np.float32)
    assert value.dtype == np.float32 and value == 1


def test_arrays_that_are_not_there():
    with pytest.raises(ValueError, match="reads array 2, and there are 1"):
        evaluate(variable(2, 1, "i"), [np.ones(1)])
    with pytest.raises(ValueError, match=r"array 0 has to have 3 features, and is of shape \(2,\)"):
        evaluate(variable(0, 3, "i"), [np.ones(2)])
