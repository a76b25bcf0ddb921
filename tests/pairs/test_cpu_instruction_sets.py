"""Each instruction set that this machine runs, forced in turn; compiling, and what is kept of it."""

import time
from pathlib import Path

import pytest
import upsweep

pytest.importorskip("llvmlite")
from helpers import run_python
from pair_cases import data, reduction_of
from upsweep._backends.cpu import pairs
from upsweep._utils.lru_cache import LRUCache

COMPACT = """
    import sys
    sys.path.insert(0, SUPPORT)
    import numpy as np, upsweep
    from pair_cases import ALL, check, data, reduction_of
    assert upsweep.show_config()["isa"] == LEVEL
    triple = np.array([[0, 13], [20, 40]]), np.array([2, 3]), np.array([[0, 9], [30, 70], [5, 69]])
    for dtype in ("float32", "float64"):
        for name in ALL:
            reduction = reduction_of(name, dtype)
            for n_i, n_j in [(40, 70), (1, 3), (3, 700), (33, 5)]:
                check(reduction, data(n_i, n_j, dtype), n_i, n_j)
            check(reduction, data(40, 70, dtype), 40, 70, ranges=triple)
        for dim in (40, 100):
            reduction = reduction_of("sum", dtype, dim)
            check(reduction, data(20, 300, dtype, dim), 20, 300)
    print("all well")
"""


@pytest.mark.parametrize("level", upsweep.show_config()["isa_usable"])
def test_a_forced_level_passes_a_compact_set_of_checks(level):
    support = repr(str(Path(__file__).parents[1] / "support"))
    code = COMPACT.replace("SUPPORT", support).replace("LEVEL", repr(level))
    assert run_python(code, timeout=300, UPSWEEP_CPU_ISA=level).strip() == "all well"


def first_use(reduction, arrays):
    pairs._kernels.clear()
    begin = time.thread_time()  # of this processor's: a busy machine takes its time from others too
    pairs.run(reduction, arrays, 100, 100)
    return time.thread_time() - begin


def test_a_new_formula_is_ready_in_100_ms_and_from_disk_in_10(tmp_path, monkeypatch):
    reduction, arrays = reduction_of("sum"), data(100, 100)
    fresh = []
    for n in range(3):
        monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path / str(n)))
        fresh.append(first_use(reduction, arrays))
    cached = [first_use(reduction, arrays) for _ in range(5)]
    assert min(fresh) < 0.1
    assert min(cached) < 0.01
    assert len(list((tmp_path / "0").iterdir())) == 1


def test_damaged_code_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path))
    reduction, arrays = reduction_of("sum", dim=4), data(20, 30, dim=4)
    pairs._kernels.clear()
    (before,) = pairs.run(reduction, arrays, 20, 30)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] + b"\0" * 8)
    pairs._kernels.clear()
    (after,) = pairs.run(reduction, arrays, 20, 30)
    assert before.tobytes() == after.tobytes()
    assert file.read_bytes() == whole


def test_the_oldest_kernels_are_forgotten(monkeypatch):
    monkeypatch.setattr(pairs, "_kernels", LRUCache(3))
    for dim in range(1, 6):
        pairs.run(reduction_of("sum", dim=dim), data(5, 5, dim=dim), 5, 5)
    assert len(pairs._kernels) == 3
    assert pairs._kernels.get(reduction_of("sum", dim=5)) is not None


def test_without_llvmlite_the_message_says_what_to_install():
    code = """
    import sys
    sys.modules["llvmlite"] = None
    import numpy as np
    from upsweep._backends.cpu import pairs
    from upsweep._compiler.formulas.nodes import variable
    from upsweep._compiler.formulas.reduction import PairReduction
    try:
        pairs.run(PairReduction(variable(0, 1, "j"), "sum"), [np.ones((3, 1), "f4")], 3, 3)
    except ImportError as error:
        print(error)
    """
    assert 'pip install "upsweep[expr]"' in run_python(code, UPSWEEP_CACHE_DIR="")
