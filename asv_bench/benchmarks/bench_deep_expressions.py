"""First use of long expressions: CPU milliseconds to compile a new one, none of it in memory or on the disk."""

import itertools
import os
import time

import numpy as np
import upsweep
from upsweep import te

DEPTHS = (250, 1000)
longer_by = itertools.count()  # operations: no two expressions are the same


def update(depth: int) -> None:
    """A user-defined scan of so many nested functions."""
    depth += next(longer_by)

    def nested(state, x):
        for _ in range(depth):
            state = np.tanh(state * 1.5 + x)
        return state

    upsweep.scan(nested, 0.0, np.ones((2, 3)))


def formula(depth: int) -> None:
    """A reduction of a formula over pairs."""
    value = (upsweep.Vi(np.ones((3, 2))) - upsweep.Vj(np.ones((4, 2)))).sum(-1)
    for _ in range(depth + next(longer_by)):
        value = (value * 1.5).sin()
    value.sum(1)


def choices(depth: int) -> None:
    """A te program of nested conditions."""
    depth += next(longer_by)
    X = te.placeholder((te.var("n"),))

    def nested(i):
        value = X[i]
        for k in range(depth):
            value = te.if_then_else(X[i] > 0.5 * k, te.sin(value), value + 1.0)
        return value

    Y = te.compute(X.shape, nested)
    te.build(te.create_schedule(Y.op), [X, Y])


CASES = {each.__name__: each for each in (update, formula, choices)}


class FirstUse:
    params = (tuple(CASES), DEPTHS)
    param_names = ("expression", "depth")

    def track_cpu_time(self, expression: str, depth: int) -> float:
        """The least of three, after a first one that loads the compiler."""
        before = os.environ.get("UPSWEEP_CACHE_DIR")
        os.environ["UPSWEEP_CACHE_DIR"] = ""
        try:
            CASES[expression](1)
            samples = []
            for _ in range(3):
                start = time.process_time()
                CASES[expression](depth)
                samples.append(time.process_time() - start)
        finally:
            if before is None:
                del os.environ["UPSWEEP_CACHE_DIR"]
            else:
                os.environ["UPSWEEP_CACHE_DIR"] = before
        return min(samples) * 1e3

    track_cpu_time.unit = "ms"  # type: ignore[attr-defined]  # where asv looks
