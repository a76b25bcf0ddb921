"""Scans by an update beside jax's lax.scan, and windows beside pandas', where these are installed.

Each answer is compared with the other's before it is timed; the figure is the other's time over upsweep's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, measure
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["pairs", "rows"]

Array = NDArray[Any]


def _lax_scan(jax: Any, update: Callable[[Any, Any], Any], x: Array) -> Call:
    def step(state: Any, x: Any) -> Any:
        new = update(state, x)
        return new, new

    given, start = jax.numpy.asarray(x), jax.numpy.zeros(x.shape[1:], x.dtype)
    scanned = jax.jit(lambda start, x: jax.lax.scan(step, start, x)[1])
    return lambda: scanned(start, given).block_until_ready()


def pairs(n_steps: int, n_columns: int, length: int) -> Iterator[tuple[str, str, Call, Call]]:
    """What takes turns: a name, the other's, upsweep's call and the other's."""
    generator = np.random.default_rng(0)
    jax, pandas = optional("jax"), optional("pandas")
    if jax is not None:
        x = generator.standard_normal((n_steps, n_columns)).astype("float32")
        for name, ours, theirs in (
            ("sum", lambda s, x: s + x, lambda s, x: s + x),
            ("tanh", lambda s, x: np.tanh(s + x), lambda s, x: jax.numpy.tanh(s + x)),
        ):
            yield (
                f"scan {name} {x.shape}",
                "lax.scan",
                partial(upsweep.scan, ours, 0.0, x),
                _lax_scan(jax, theirs, x),
            )
    if pandas is not None:
        line = generator.standard_normal(length)
        gaps = np.where(generator.random(length) < 0.1, np.nan, line)
        for name, data in (("", line), (", a tenth missing", gaps)):
            window = pandas.Series(data).ewm(halflife=20)
            ours = partial(upsweep.ewm_mean, data, halflife=20)
            yield f"ewm_mean of a line of {length:,}{name}", "pandas", ours, window.mean


def rows(only: str, quick: bool) -> list[Row]:
    """Measure what contains `only`; nothing where there is nobody to compare with."""
    found = []
    for name, other, ours, theirs in pairs(*((200, 512, 200_000) if quick else (1000, 4096, 10_000_000))):
        dtype = "float32" if name.startswith("scan") else "float64"
        if only not in f"{name}, {dtype}":
            continue
        if not np.allclose(np.asarray(ours()), np.asarray(theirs()), rtol=1e-4, atol=1e-4, equal_nan=True):
            found.append(Row(name, dtype, None, None, "x", 1.0, note="the answers differ: not timed"))
            continue
        samples = measure({"ours": ours, "theirs": theirs}, rounds=2 if quick else 4, burst=2)
        mine, peer = samples.best("ours"), samples.best("theirs")
        busy = None if samples.quiet else samples.others
        found.append(Row(name, dtype, mine, peer / mine, "x", 1.0, note=f"{other} {peer * 1e3:.3g} ms", busy=busy))
    return found
