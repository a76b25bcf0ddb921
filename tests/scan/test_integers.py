"""Hazard: True where an integer is expected: one bin, one thread, axis 1."""

import numpy as np
import pytest
import upsweep
from upsweep import BlockRanges, KernelSolve, LazyTensor, te

X = np.ones((4, 3))
KEYS = np.zeros(4, int)
LAZY = LazyTensor(X[:, None]).sqdist(LazyTensor(X[None]))


def split(value):
    y = te.compute((8,), lambda i: 1.0 * i)
    te.create_schedule(y.op)[y].split(y.op.axis[0], factor=value)


def run_with_size(value):
    n = te.var("n")
    x = te.placeholder((n,), name="x", dtype="float64")
    y = te.compute((n,), lambda i: x[i])
    te.build(te.create_schedule(y.op), [n, x, y])(value, X[0, :1], np.empty(1))


# What is called with the value that stands for an integer, and the argument that the error names.
CALLS = {
    "bincount length": (lambda n: upsweep.bincount(KEYS, length=n), "length"),
    "bincount minlength": (lambda n: upsweep.bincount(KEYS, minlength=n), "minlength"),
    "bincount axis": (lambda n: upsweep.bincount(X.astype(int), axis=n), "axis"),
    "bincount n_threads": (lambda n: upsweep.bincount(KEYS, n_threads=n), "n_threads"),
    "histogram bins": (lambda n: upsweep.histogram(X, bins=n), "bins"),
    "histc bins": (lambda n: upsweep.histc(X, bins=n), "bins"),
    "cumulative_sum axis": (lambda n: upsweep.cumulative_sum(X, axis=n), "axis"),
    "cumulative_sum n_threads": (lambda n: upsweep.cumulative_sum(X, n_threads=n), "n_threads"),
    "discounted_cumsum window": (lambda n: upsweep.discounted_cumsum(X, 0.5, window=n), "window"),
    "set_num_threads": (lambda n: upsweep.set_num_threads(n), "n_threads"),
    "scan axis": (lambda n: upsweep.scan(lambda s, x: s + x, 0.0, X, axis=n), "axis"),
    "scan length": (lambda n: upsweep.scan(lambda s, _: s + 1, 0.0, None, length=n), "length"),
    "scan checkpoint": (
        lambda n: upsweep.scan.gradient(lambda s, x: s + x, 0.0, X, X, checkpoint=n), "checkpoint",
    ),
    "argKmin": (lambda n: LAZY.argKmin(n, axis=1), "K"),
    "reduction axis": (lambda n: LAZY.sum(axis=n), "axis"),
    "max_iterations": (
        lambda n: KernelSolve("Exp(-SqDist(x, x2)) * b", ["x = Vi(3)", "x2 = Vj(3)", "b = Vj(1)"], "b", axis=1)(
            X, X, X[:, :1], max_iterations=n
        ),
        "max_iterations",
    ),
    "BlockRanges shape": (lambda n: BlockRanges(([[0, 1]], [1], [[0, 1]]), (n, 1)), "shape"),
    "band n_i": (lambda n: BlockRanges.band(n, 4, 1), "n_i"),
    "band lower": (lambda n: BlockRanges.band(4, 4, n), "lower"),
    "causal block": (lambda n: BlockRanges.causal(4, block=n), "block"),
    "balanced_clusters": (lambda n: upsweep.cluster.balanced_clusters(X, n), "size"),
    "te shape": (lambda n: te.placeholder((n,), name="N"), "shape of N"),
    "te split": (split, "split: factor"),
    "te size": (run_with_size, "n"),
}  # fmt: skip


@pytest.mark.parametrize("value", [True, np.True_, np.array(True)], ids=["bool", "numpy's", "array"])
@pytest.mark.parametrize("name", CALLS)
def test_bool_is_no_integer(name, value):
    call, argument = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=f"^{argument}|: {argument}"):
        call(value)
    with pytest.raises((TypeError, ValueError), match=f"^{argument}|: {argument}"):
        call(1.0)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("set_num_threads", "max_iterations")])
def test_numpys_integers_are_integers(name):
    CALLS[name][0](np.int8(1))
