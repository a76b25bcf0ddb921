"""Hazard: hidden copies. A call may use its output and at most 1 MiB a thread."""

import sys

import pytest
from helpers import run_python

CODE = """
    import re
    import numpy as np, upsweep
    def peak():
        return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
    def cost(function, *arrays, **keywords):
        # The first small call pays for what is loaded once; the mark is set back to the present use before.
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        result = function(*arrays, n_threads=2, **keywords)
        parts = result if isinstance(result, tuple) else (result,)
        mine = sum(part.nbytes for part in parts if part is not keywords.get("out"))
        return peak() - before - mine / 2**20
    big = np.ones((4000, 4000), np.float32)
    out = np.ones_like(big)
    half = np.ones((4000, 4000), np.float16)
    cube = np.ones((100, 400, 400), np.float32)
    keys = np.zeros(16_000_000, np.int32)
    short = np.ones((4_000_000, 2), np.float32)
    spread = np.arange(8_000_000, dtype=np.int64)
    weights = np.ones(16_000_000, np.float32)
    upsweep.discounted_cumsum(big[:200], 0.5, n_threads=2, axis=0)
    upsweep.discounted_cumsum(big.reshape(1, -1)[:, :400_000], 0.5, n_threads=2)
    upsweep.bincount(keys[:300_000], n_threads=2)
    cases = {
        "lines": lambda: cost(upsweep.discounted_cumsum, big, 0.5),
        "lines, out": lambda: cost(upsweep.discounted_cumsum, big, 0.5, out=out),
        "columns": lambda: cost(upsweep.discounted_cumsum, big, 0.5, axis=0, out=out),
        "one line": lambda: cost(upsweep.cumulative_sum, big.reshape(1, -1), out=out.reshape(1, -1)),
        "fortran": lambda: cost(upsweep.discounted_cumsum, big.T, 0.5, out=out.T),
        "fortran to c": lambda: cost(upsweep.discounted_cumsum, big.T, 0.5, out=out),
        "c to fortran": lambda: cost(upsweep.discounted_cumsum, big, 0.5, out=out.T, axis=0),
        "reversed": lambda: cost(upsweep.discounted_cumsum, big[:, ::-1], 0.5, out=out),
        "gates": lambda: cost(upsweep.linear_recurrence, big, big, out=out),
        "gates that broadcast": lambda: cost(upsweep.linear_recurrence, big[:1], big, out=out),
        "gates in another dtype": lambda: cost(upsweep.linear_recurrence, half, big, out=out),
        "gamma for each step": lambda: cost(upsweep.discounted_cumsum, big, np.full(4000, 0.5), out=out),
        "float16": lambda: cost(upsweep.discounted_cumsum, half, 0.5),
        "middle axis": lambda: cost(upsweep.discounted_cumsum, cube, 0.5, axis=1),
        "window": lambda: cost(upsweep.discounted_cumsum, big, 0.5, window=1000, out=out),
        "window over columns": lambda: cost(
            upsweep.discounted_cumsum, big, 0.5, window=1000, out=out, axis=0
        ),
        "in place": lambda: cost(upsweep.discounted_cumsum, big, 0.5, out=big),
        "integers": lambda: cost(upsweep.cumulative_sum, keys),
        "integers to float64": lambda: cost(upsweep.discounted_cumsum, keys, 0.5),
        "a reset that broadcasts": lambda: cost(
            upsweep.discounted_cumsum, big, 0.5, reset=np.zeros((4000, 1), bool), out=out
        ),
        "counts": lambda: cost(upsweep.bincount, keys),
        "counts of strided keys": lambda: cost(upsweep.bincount, keys[::2]),
        "counts of swapped keys": lambda: cost(upsweep.bincount, keys.view(">i4")),
        "counts of negative keys": lambda: cost(upsweep.bincount, keys - 1, minlength=2, invalid="drop"),
        "sums of float32 weights": lambda: cost(upsweep.bincount, keys, weights),
        "sums of strided weights": lambda: cost(upsweep.bincount, keys[::2], weights[::2]),
        "carries of short lines": lambda: cost(upsweep.discounted_cumsum_carry, short, 0.5),
        "carries of short complex lines": lambda: cost(
            upsweep.cumulative_sum_carry, short.view(np.complex64)
        ),
        "carries of columns": lambda: cost(upsweep.discounted_cumsum_carry, short.T, 0.5, axis=0),
        "final states of short lines": lambda: cost(upsweep.discounted_cumsum, short, 0.5, return_final=True),
        "a float32 initial": lambda: cost(upsweep.cumulative_sum, short, initial=short[:, 0]),
        "a float32 gamma for each line": lambda: cost(upsweep.discounted_cumsum, short, short[:, :1]),
        "lines of one bool": lambda: cost(upsweep.cumulative_sum, short[:, :1].astype(bool)),
    }
    for n_bins in (30_000, 130_000, 260_000, 1_000_000, 3_000_000):
        few = spread % n_bins
        cases[f"counts in {n_bins} bins"] = lambda few=few: cost(upsweep.bincount, few)
        cases[f"sums in {n_bins} bins"] = lambda few=few: cost(upsweep.bincount, few, weights[:8_000_000])
    for label, case in cases.items():
        print(f"{label}: {case():.2f}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from Linux's /proc")
def test_peak_memory_is_the_output_and_at_most_1_mib_a_thread():
    slack = 1.0  # MiB: pages of the stack and of the interpreter's own small objects
    costs = dict(line.rsplit(": ", 1) for line in run_python(CODE).splitlines())
    assert len(costs) == 43
    assert {label: cost for label, cost in costs.items() if float(cost) > 2 * 1.0 + slack} == {}
