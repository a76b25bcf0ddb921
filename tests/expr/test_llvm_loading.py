"""Hazard: an address space in pieces, where an object's code and its constants come to lie far from each other."""

import os
import platform
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("llvmlite")

FAR = textwrap.dedent("""
    import ctypes, numpy as np, upsweep

    x = np.random.default_rng(0).random((20, 3)).astype(np.float32)

    def reduce(n):
        formula = f"Sin(SqDist(x, y) * IntCst({n}) / IntCst(7919))"
        return upsweep.Genred(formula, ["x = Vi(3)", "y = Vj(3)"], "KMin", axis=1, opt_arg=5)(x, x)

    expected = reduce(1)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    PAGE, MIB = 4096, 1 << 20

    def reserve(n):  # addresses, no memory
        return libc.mmap(None, n, 0, 0x4022, -1, 0)

    block = reserve(64 * MIB)
    lowest = min(reserve(1024 * MIB) for _ in range(4))
    for size in (MIB, 16 * PAGE, 4 * PAGE, 2 * PAGE, PAGE):  # no room is left above
        while reserve(size) > lowest:
            pass
    for place in range(0, 64 * MIB, 16 * PAGE):  # but for a page here and there: enough for constants
        libc.munmap(block + place, PAGE)
    for n in range(2, 8):
        found = reduce(n)
    assert np.isfinite(found).all() and np.array_equal(expected, reduce(1))
    print("done")
""")


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="is about mmap of Linux on x86-64"
)
def test_code_and_constants_may_lie_far_apart(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAR], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "UPSWEEP_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-2000:]
