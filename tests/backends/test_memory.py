"""Hazard: hidden copies. A call may use its output and at most 1 MiB a thread."""

import sys

import pytest
from helpers import run_python

CODE = """
    import ctypes, re
    PR_SET_THP_DISABLE = 41
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # else the kernel joins pages when it likes
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
        "exact sums of integer weights": lambda: cost(upsweep.bincount, keys, keys, dtype=np.int64),
        "sums of complex weights": lambda: cost(
            upsweep.bincount, keys[:4_000_000], big.view(np.complex64)[:2000].ravel()
        ),
        "several sums": lambda: cost(upsweep.bincount, keys[:4_000_000], big.reshape(4_000_000, 4)),
        "counts of short rows": lambda: cost(upsweep.bincount, keys.reshape(-1, 32), axis=1, length=3),
        "counts of long rows": lambda: cost(upsweep.bincount, keys.reshape(2, -1), axis=1),
        "counts of columns": lambda: cost(upsweep.bincount, keys.reshape(-1, 32), axis=0),
        "dropped keys": lambda: cost(
            lambda *a, **k: upsweep.bincount(*a, **k)[0], keys, length=0, invalid="drop", return_invalid=True
        ),
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
    for n_bins in (30_000, 130_000, 260_000):  # MANY_BINS has more
        few = spread % n_bins
        cases[f"counts in {n_bins} bins"] = lambda few=few: cost(upsweep.bincount, few)
        cases[f"sums in {n_bins} bins"] = lambda few=few: cost(upsweep.bincount, few, weights[:8_000_000])
    for label, case in cases.items():
        print(f"{label}: {case():.2f}")
"""


MANY_BINS = """
    rng = np.random.default_rng(0)
    for n_bins in (1_200_000, 3_000_000, 10_000_000):
        keys, ones = rng.integers(0, n_bins, 4 * n_bins, np.int32), np.ones(4 * n_bins, np.float32)
        upsweep.bincount(keys[:600_000], ones[:600_000], n_threads=2)   # the pool and its stacks
        for arrays in ((keys,), (keys, ones)):
            print(f"{len(arrays)} {n_bins}: {cost(upsweep.bincount, *arrays) / (n_bins * 8 / 2**20):.2f}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from Linux's /proc")
def test_in_more_bins_than_the_cache_it_is_the_output_once_more():
    code = CODE[: CODE.index("    big = np.ones")] + MANY_BINS
    shares = dict(line.rsplit(": ", 1) for line in run_python(code).splitlines())
    assert len(shares) == 6
    assert {label: share for label, share in shares.items() if float(share) > 1.2} == {}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from Linux's /proc")
def test_peak_memory_is_the_output_and_at_most_1_mib_a_thread():
    slack = 1.0  # MiB: pages of the stack and of the interpreter's own small objects
    costs = dict(line.rsplit(": ", 1) for line in run_python(CODE).splitlines())
    assert len(costs) == 46
    assert {label: cost for label, cost in costs.items() if float(cost) > 2 * 1.0 + slack} == {}
