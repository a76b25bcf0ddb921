"""Expressions that are deep, or that share parts, are built in time that grows with their number of operations."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest
from upsweep import te


def built(body, dtype="float64", n_inputs=1):
    """A function of vectors that computes ``body(elements, index)``."""
    n = te.var("n")
    tensors = [te.placeholder((n,), dtype=dtype, name=f"X{k}") for k in range(n_inputs)]
    result = te.compute((n,), lambda i: body([tensor[i] for tensor in tensors], i), name="Y")
    return te.build(te.create_schedule(result.op), [*tensors, result])


def nested_choices(depth, condition):
    def body(elements, i):
        (x,) = elements
        value = x
        for k in range(depth):
            value = te.if_then_else(condition(x, i, k), value * 0.5 + 1.0, x - float(k))
        return value

    return body


def choices_by_numpy(depth, x, selected):
    value = x
    for k in range(depth):
        value = np.where(selected(k), value * 0.5 + 1.0, x - float(k))
    return value


def cpu_time_of(call):
    start = time.thread_time()
    call()
    return time.thread_time() - start


@pytest.mark.parametrize("by_index", [False, True])
def test_nested_choices_are_built_at_once(by_index):
    def condition(x, i, k):
        return i > k if by_index else x > 0.1 * k

    function = []
    assert cpu_time_of(lambda: function.append(built(nested_choices(22, condition)))) < 2
    x = np.linspace(-1, 3, 50)
    index = np.arange(50)
    expected = choices_by_numpy(22, x, lambda k: index > k if by_index else x > 0.1 * k)
    np.testing.assert_allclose(function[0](x), expected, rtol=1e-14)


@pytest.mark.parametrize("depth", [400, 3000])
def test_deep_chains_of_operations(depth):
    def body(elements, i):
        (x,) = elements
        value = x
        for k in range(depth):
            value = te.tanh(value * 0.5 + x) if k % 8 == 0 else value * 0.75 - x
        return value

    x = np.linspace(-1, 1, 37)
    expected = x
    for k in range(depth):
        expected = np.tanh(expected * 0.5 + x) if k % 8 == 0 else expected * 0.75 - x
    np.testing.assert_allclose(built(body)(x), expected, rtol=1e-12)


@pytest.mark.parametrize("depth, by_index", [(1000, False), (400, True)])
def test_deep_choices(depth, by_index):
    def condition(x, i, k):
        return i >= k % 60 if by_index else x > 0.001 * k

    x, index = np.linspace(-1, 3, 50), np.arange(50)
    expected = choices_by_numpy(depth, x, lambda k: index >= k % 60 if by_index else x > 0.001 * k)
    np.testing.assert_allclose(built(nested_choices(depth, condition))(x), expected, rtol=1e-13)


def test_shared_parts_are_computed_once():
    """As a tree this has 2^60 operations."""

    def body(elements, i):
        (x,) = elements
        value = x
        for _ in range(60):
            value = value * value * 0.5 + x
        return te.if_then_else(value > value * 0.5, te.sigmoid(value), te.sigmoid(value + x))

    x = np.linspace(-0.5, 0.5, 20)
    value = x
    for _ in range(60):
        value = value * value * 0.5 + x
    expected = 1 / (1 + np.exp(-np.where(value > value * 0.5, value, value + x)))
    np.testing.assert_allclose(built(body)(x), expected, rtol=1e-13)


def test_texts_of_deep_expressions_are_cut():
    n = te.var("n")
    X = te.placeholder((n,), name="X")
    shared = chain = X[te.reduce_axis((0, n), name="i")]
    for _ in range(3000):
        shared, chain = shared * shared, te.exp(chain)
    assert repr(shared).endswith("...") and len(repr(shared)) <= 2000
    assert len(repr(chain)) <= 2000
    Y = te.compute((n,), lambda i: te.exp(X[i]) * te.exp(X[i]), name="Y")
    assert "Y[i] = exp(X[i])*exp(X[i])" in str(te.lower(te.create_schedule(Y.op), [X, Y]))


def test_deep_indices():
    """Nested bounds of an index, each of the one before."""

    def body(depth):
        n = te.var("n")
        X = te.placeholder((n,), dtype="float64", name="X")

        def element(i):
            place = i
            for k in range(depth):
                place = te.min(te.max(place, k % 2 - 1), n - 1)
            return X[te.max(place, 0)]

        Y = te.compute((n,), element, name="Y")
        return te.build(te.create_schedule(Y.op), [X, Y])

    x = np.arange(9.0)
    np.testing.assert_array_equal(body(4)(x), x)


def test_a_chain_of_many_stages():
    n = te.var("n")
    X = te.placeholder((n,), name="X")
    stage = X
    for k in range(1200):
        stage = te.compute((n,), lambda i, before=stage: before[i] + 1.0, name=f"S{k}")
    assert len(te.create_schedule(stage.op).stages) == 1201


def test_time_to_build_grows_with_the_depth(monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")

    def body_of(depth, first_threshold):
        def body(elements, i):
            (x,) = elements
            value = x
            for k in range(depth):
                value = te.if_then_else(x > first_threshold + 0.01 * k, te.sin(value), value * 0.5 + x)
            return value

        return body

    def time_of(depth):
        # Each build is of an expression of its own: one that is still alive is built ten times sooner.
        return min(cpu_time_of(lambda k=k: built(body_of(depth, k))) for k in range(2))

    time_of(10)
    assert time_of(300) < 3 * time_of(150)


def test_deep_expressions_on_a_small_stack():
    results = []
    x = np.linspace(-1, 3, 50)

    def run():
        results.append(built(nested_choices(300, lambda x, i, k: i >= k % 50))(x))

    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    expected = choices_by_numpy(300, x, lambda k: np.arange(50) >= k % 50)
    np.testing.assert_allclose(results[0], expected, rtol=1e-13)


def test_functions_of_deep_expressions_are_pickled_and_copied():
    X = te.placeholder((te.var("n"),), name="X")

    def body(i):
        value = X[i]
        for _ in range(500):
            value = (value + value) * 0.5 + 1.0
        return value

    Y = te.compute(X.shape, body, name="Y")
    function = te.build(te.create_schedule(Y.op), [X, Y])
    x = np.linspace(-1, 3, 50, dtype=np.float32)
    for other in (pickle.loads(pickle.dumps(function)), copy.deepcopy(function)):
        np.testing.assert_array_equal(other(x), function(x))


def shared_by_choices(depth, of_index):
    def body(i):
        value = X[i]
        for k in range(depth):
            value = te.select(i < k if of_index else X[i] < k, value + 1.0, value * 0.5)
        return value

    X = te.placeholder((te.var("n"),), name="X")
    Y = te.compute(X.shape, body, name="Y")
    return te.create_schedule(Y.op), [X, Y]


@pytest.mark.parametrize("of_index", [True, False])
@pytest.mark.parametrize("depth", [10, 200])
def test_both_sides_of_choices_share_what_they_are_of(depth, of_index):
    x = np.linspace(-1, 30, 37, dtype=np.float32)
    expected = x.copy()
    for k in range(depth):
        selected = np.arange(37) < k if of_index else x < k
        expected = np.where(selected, expected + np.float32(1), expected * np.float32(0.5))
    assert cpu_time_of(lambda: te.build(*shared_by_choices(depth, of_index))) < 5
    np.testing.assert_array_equal(te.build(*shared_by_choices(depth, of_index))(x), expected)


def test_shared_reads_stay_guarded():
    """A read that both sides of an inner choice share is read only where an outer choice allows it."""
    X = te.placeholder((te.var("n"),), name="X")

    def body(i):
        before = X[i - 1]
        inner = te.select(i < 5, before + 1.0, before * 0.5)
        return te.select(i > 0, inner, X[i])

    Y = te.compute(X.shape, body, name="Y")
    x = np.arange(20, dtype=np.float32)
    before = np.concatenate([x[:1], x[:-1]])
    expected = np.where(np.arange(20) < 5, before + 1, before * np.float32(0.5))
    expected[0] = x[0]
    np.testing.assert_array_equal(te.build(te.create_schedule(Y.op), [X, Y])(x), expected)
    one_side = te.compute(X.shape, lambda i: te.select(i > 0, X[i - 1], X[i - 1]), name="Z")
    with pytest.raises(ValueError, match="leaves X"):
        te.create_schedule(one_side.op)
