"""Hazard: each instruction set is a build of its own. Each one that this machine runs is forced in turn."""

from pathlib import Path

import pytest
import upsweep
from helpers import run_python

NARROWEST_FIRST = ["generic", "neon", "x86_64_v2", "x86_64_v3", "x86_64_v4"]
COMPACT = """
    import sys
    sys.path.insert(0, SUPPORT)
    import numpy as np, upsweep
    from helpers import DTYPES, SCANS, check, operands, poisoned, random, same_bits, sequential
    assert upsweep.show_config()["isa"] == LEVEL, upsweep.show_config()["isa"]
    shapes = [((1,), 0), ((33,), 0), ((5, 257), 1), ((257, 5), 0), ((40, 70), 0), ((2, 37, 3), 1), ((2, 700), 1)]
    for name in SCANS:
        for dtype in DTYPES:
            for shape, axis in shapes:
                arrays = operands(name, shape, dtype)
                reset = np.random.default_rng(1).random(shape) < 0.05
                check(name, *arrays, axis=axis)
                check(name, *arrays, axis=axis, reverse=True, reset=reset, initial=0.5, return_final=True)
                check(name, *arrays, axis=axis, exclusive=True)
        for dtype in ("float16", DTYPES[-1], "float32", "float64"):
            for shape, axis in [((1, 300_000), 1), ((200_000, 3), 0)]:
                arrays = operands(name, shape, dtype, gamma=0.9999)
                one = getattr(upsweep, name)(*arrays, axis=axis, n_threads=1)
                assert same_bits(getattr(upsweep, name)(*arrays, axis=axis, n_threads=2), one)
                again = poisoned(shape, dtype)
                getattr(upsweep, name)(*arrays, axis=axis, n_threads=2, out=again)
                assert same_bits(again, one)
    x = random(100_000)
    x[50_000] = np.nan
    for gamma in (0.0, 0.999, 1.0, 2.0, -1.5, np.inf):
        y, exact = upsweep.discounted_cumsum(x, gamma), sequential(np.full(100_000, gamma), x)
        np.testing.assert_allclose(y, exact, rtol=1e-9, atol=1e-9)
    for dtype in ("float16", DTYPES[-1]):
        x, gates = random(1000, dtype), random(1000, dtype, 1)
        for position in range(0, 400, 7):
            bad = x.copy()
            bad[position] = np.nan
            assert np.isnan(upsweep.linear_recurrence(gates, bad).astype("f4")[position:]).all()
            assert np.isfinite(upsweep.linear_recurrence(gates, bad).astype("f4")[:position]).all()
    for window in (1, 7, 64, 300):
        check("discounted_cumsum", random((2, 200), "float32"), 0.9, window=window)
        check("discounted_cumsum", random((200, 3), "float64"), 0.9, axis=0, window=window, reverse=True)
    keys = np.random.default_rng(0).integers(0, 300, 100_000)
    for dtype in ("u2", "i4", "i8"):
        assert (upsweep.bincount(keys.astype(dtype)) == np.bincount(keys)).all()
    tail = np.zeros(3000, np.float32)
    tail[0] = 1
    assert not upsweep.discounted_cumsum(tail, 0.5)[200:].any()
    print("all well")
"""


@pytest.mark.parametrize("level", upsweep.show_config()["isa_usable"])
def test_a_forced_level_passes_a_compact_set_of_checks(level):
    support = repr(str(Path(__file__).parents[1] / "support"))
    code = COMPACT.replace("SUPPORT", support).replace("LEVEL", repr(level))
    assert run_python(code, UPSWEEP_CPU_ISA=level).strip() == "all well"


def test_the_best_usable_level_is_chosen():
    config = upsweep.show_config()
    assert config["isa"] in config["isa_usable"]
    assert set(config["isa_usable"]) <= set(config["isa_built"])
    out = run_python("import upsweep; print(upsweep.show_config()['isa'])", UPSWEEP_CPU_ISA="")
    assert out.strip() == max(config["isa_usable"], key=NARROWEST_FIRST.index)


def test_an_unknown_level_is_an_error_that_names_the_choices():
    code = """
    try:
        import upsweep
    except Exception as error:
        print(type(error).__name__, error)
    """
    out = run_python(code, UPSWEEP_CPU_ISA="pentium")
    assert "UPSWEEP_CPU_ISA" in out and "pentium" in out
    assert upsweep.show_config()["isa"] in out
