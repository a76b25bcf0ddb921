"""Formulas of many operations: values, gradients, copies; texts too deep for Python's parser; small stacks."""

import copy
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from upsweep import Genred, LazyTensor
from upsweep._backends.cpu import pairs as cpu_pairs
from upsweep._compiler.formulas.derivative import gradient
from upsweep._compiler.formulas.nodes import constant, make, variable
from upsweep._compiler.formulas.parser import parse
from upsweep._compiler.formulas.reference import evaluate
from upsweep._compiler.formulas.rules import simplify
from upsweep._compiler.llvm import instructions
from upsweep._compiler.lowering.lower import lower_formulas

pytest.importorskip("llvmlite")

X, Y = (np.random.default_rng(seed).random((n, 2)) for seed, n in ((0, 5), (1, 7)))
DEPTHS = (400, 1000, 3000)


def deep(depth):
    """A LazyTensor of about so many operations, and the same by numpy."""
    lazy = ((LazyTensor(X[:, None]) - LazyTensor(Y[None])) ** 2).sum(-1)
    value = ((X[:, None] - Y[None]) ** 2).sum(-1)
    for k in range(depth // 2):
        lazy = (-lazy).exp() if k % 2 else lazy * 0.5 + 0.25
        value = np.exp(-value) if k % 2 else value * 0.5 + 0.25
    return lazy, value


def on_small_stack(function, kib=64):
    """What a function returns in a thread of so small a stack."""
    result = []
    before = threading.stack_size(kib << 10)
    try:
        thread = threading.Thread(target=lambda: result.append(function()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return result[0]


@pytest.mark.parametrize("depth", DEPTHS)
def test_values_texts_and_copies(depth):
    lazy, value = deep(depth)
    expected = value.sum(1)[:, None]
    np.testing.assert_allclose(lazy.sum(1), expected, rtol=1e-12)
    assert "formula: " in repr(lazy) and str(lazy) == repr(lazy)
    assert len({lazy, copy.copy(lazy)}) == 2
    for other in (copy.copy(lazy), copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        assert type(other) is LazyTensor and other.shape == lazy.shape
        np.testing.assert_array_equal(other.sum(1), lazy.sum(1))


def test_copies_keep_what_they_are_made_of():
    a, b = LazyTensor(X[:, None]), LazyTensor(Y[None])
    built = a * 2.0 + b
    other = pickle.loads(pickle.dumps(built))
    assert (other.ni, other.nj, other.ndim, other.dtype) == (built.ni, built.nj, built.ndim, built.dtype)
    assert other.formula == built.formula
    twice = copy.deepcopy(built + a)
    np.testing.assert_array_equal(twice.sum(1), (built + a).sum(1))


@pytest.mark.parametrize("depth", DEPTHS)
def test_nodes_are_pickled_and_differentiated(depth):
    node = x = variable(0, 1, "i")
    for _ in range(depth // 2):
        node = make("sin", make("mul", node, constant(1.5)))
    assert pickle.loads(pickle.dumps(node)) is node
    assert copy.deepcopy(node) is node and len(repr(node)) <= 2000
    derived = gradient(node, x)
    assert pickle.loads(pickle.dumps((derived, node))) == (derived, node)
    assert len(lower_formulas(derived).values) < 5 * depth


def test_a_gradient_of_a_deep_formula():
    """The gradient of the sum over pairs, by the chain rule written out in numpy."""
    lazy = LazyTensor((0, 1, 0)) - LazyTensor((1, 1, 1))
    value = X[:, None, 0] - Y[None, :, 0]
    slope = np.ones_like(value)
    for _ in range(400):
        lazy, slope, value = (lazy * 1.5).sin(), slope * np.cos(value * 1.5) * 1.5, np.sin(value * 1.5)
    total = lazy.grad(LazyTensor((0, 1, 0)), 1).sum(1)
    np.testing.assert_allclose(total(X[:, :1], Y[:, :1]), slope.sum(1)[:, None], rtol=1e-8, atol=1e-12)


def product(step, node, depth=400):
    """A chain of products, which simplification rewrites from the outside to the inside."""
    for k in range(depth):
        node = step(node, k)
    return node


def factor(k):
    """Near 1, and another one each time."""
    return make("exp", make("mul", COLUMN, constant(1e-6 * (k - 200))))


ROW, ROWS, COLUMN = variable(0, 1, "i"), variable(0, 2, "i"), variable(1, 1, "j")
PRODUCTS = {
    # Constants so large and so small that they are not multiplied before they are used.
    "constants": product(
        lambda node, k: make("mul", make("mul", node, constant(2.0 ** (21 if k % 2 else -21))), COLUMN), ROW
    ),
    "vectors": make("sum", product(lambda node, k: make("mul", node, factor(k)), ROWS)),
    "a sign": make("neg", product(lambda node, k: make("mul", node, factor(k)), ROW, depth=1000)),
}


@pytest.mark.parametrize("which", PRODUCTS)
def test_long_products(which):
    formula = PRODUCTS[which]
    of = ROWS if which == "vectors" else ROW
    arrays = [np.ones(of.dim), np.ones(1)]
    for each in (formula, gradient(formula, of)):
        np.testing.assert_allclose(evaluate(simplify(each), arrays), evaluate(each, arrays), rtol=1e-9)
        assert len(lower_formulas(each).values) < 20_000


def test_time_to_compile_grows_with_the_depth(monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")

    def time_of(depth):
        """Each number is a parameter of the formula, of which there are many."""
        lazy = ((LazyTensor(X[:, None]) - LazyTensor(Y[None])) ** 2).sum(-1)
        for k in range(depth):
            lazy = (lazy + 0.1 * k).sin() * (1.0 + k)
        start = time.thread_time()
        lazy.sum(1)
        return time.thread_time() - start

    time_of(10)
    assert min(time_of(800), time_of(801)) < 3 * min(time_of(400), time_of(401))


def mixed(x, y):
    """A formula of row, column and pair instructions, with comparisons, functions and products."""
    value, row, column = (x - y).sqnorm2(), x[0], y[1]
    for k in range(12):
        row, column = (row * 1.5 + 0.25).sin(), (column - row.relu() if k == 5 else column * 0.75).cos()
        value = ((value * row).ifelse(value + column, value * 0.5) - row * column).tanh() + 0.5 * k
    return value


REDUCED = {
    "rows": lambda f, x, y: f.sum(1),
    "weights": lambda f, x, y: f.sumsoftmaxweight(y * f, axis=1),
    "columns": lambda f, x, y: f.logsumexp(0),
    "extremes": lambda f, x, y: f.min_argmin(1),
    "several": lambda f, x, y: (f * x).Kmin(3, axis=1),
    "many components": lambda f, x, y: f.grad(x, 1).tensorprod(y.concat(x).concat(y)).sum(1),
    "several columns": lambda f, x, y: (((x - y).abs() + y * x).sum(-1).sqrt() * x.sin().sqnorm2()).sum(1),
    "loops": lambda f, x, y: ((f * LazyTensor([0.5] * 80)).exp() * f).sum(-1).sum(1),
}


@pytest.mark.parametrize("n_rows", [40, 2])
@pytest.mark.parametrize("which", REDUCED)
def test_long_programs_are_written_in_parts(which, n_rows, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")  # whose key does not contain the lengths
    rng = np.random.default_rng(3)
    x, y = LazyTensor(rng.random((n_rows, 1, 2))), LazyTensor(rng.random((1, 53, 2)))
    n_parts = []
    original = instructions.Parts.leave
    monkeypatch.setattr(instructions.Parts, "leave", lambda self: (original(self), n_parts.append(self._last))[0])

    def reduced():
        cpu_pairs._kernels.clear()
        return REDUCED[which](mixed(x, y), x, y)

    whole = reduced()
    assert not n_parts
    for length in (7, 40):
        monkeypatch.setattr(instructions, "_LONG", 9)
        monkeypatch.setattr(instructions, "_PART", length)
        np.testing.assert_array_equal(reduced(), whole)
    assert max(n_parts) > 2
    cpu_pairs._kernels.clear()


NESTED = {
    "brackets": "(" * 200 + "Var(0,1,0)" + ")" * 200,
    "signs": "-" * 5000 + "Var(0,1,0)",
    "powers": "Var(0,1,0) ** " * 3000 + "2",
    "a sum of 5,000 terms": "+".join(["Var(0,1,0)"] * 5000),
    "100,000 characters": "+".join(["Exp(Var(0,1,0))"] * 6300),
}


@pytest.mark.parametrize("which", NESTED)
def test_texts_too_deep_are_refused_on_any_stack(which):
    def refused():
        with pytest.raises(ValueError, match=r"is no formula: .*LazyTensor") as caught:
            parse(NESTED[which])
        return str(caught.value)

    assert len(on_small_stack(refused)) < 500
    if sys.version_info < (3, 14):  # from there on, the parser goes as deep as the stack allows
        assert len(refused()) < 500


@pytest.mark.parametrize("kib", [32, 64, 128, 256, 512, 1024])
def test_texts_are_read_or_refused_on_any_stack(kib):
    kib = max(kib, 52 if sys.version_info >= (3, 14) else 32)  # no thread of that version has less
    for depth in (5, 20, 40, 90, 150):
        texts = ["Exp(" * depth + "X" + ")" * depth, "+".join(["X"] * 6 * depth), "-" * 2 * depth + "X",
                 "(" * depth + "X" + ")" * depth, "X**" * 2 * depth + "2"]  # fmt: skip
        for text in texts:
            expected = parse(text, ["X = Vi(0,1)"])

            def read(text=text):
                try:
                    return parse(text, ["X = Vi(0,1)"])
                except ValueError as error:
                    return str(error)

            result = on_small_stack(read, kib)
            if isinstance(result, str):
                assert "KiB of this thread's stack" in result and depth > kib // 20
            else:
                assert result is expected


def test_a_nested_text_in_a_thread():
    actual = on_small_stack(
        lambda: Genred("Sin(" * 50 + "X-Y" + ")" * 50, ["X=Vi(1)", "Y=Vj(1)"], "Sum", axis=1)(X[:, :1], Y[:, :1]),
        1024,
    )
    expected = X[:, :1] - Y[:, 0]
    for _ in range(50):
        expected = np.sin(expected)
    np.testing.assert_allclose(actual, expected.sum(1)[:, None], rtol=1e-12)


def test_deep_formulas_on_a_small_stack():
    lazy, value = on_small_stack(lambda: deep(1000))
    np.testing.assert_allclose(on_small_stack(lambda: lazy.sum(1)), value.sum(1)[:, None], rtol=1e-12)
    assert on_small_stack(lambda: pickle.loads(pickle.dumps(lazy)).shape) == lazy.shape
