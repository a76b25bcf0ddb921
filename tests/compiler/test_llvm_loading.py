"""Hazard: an address space in pieces, where an object's code and its constants come to lie far from each other."""

import gc
import math
import os
import platform
import subprocess
import sys
import textwrap
import threading

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


def _compiled(depth):
    """A new update of so many steps, and what it gives."""
    import numpy as np
    import upsweep

    def update(h, x):
        for _ in range(depth):
            h = np.tanh(h + x)
        return h

    return upsweep.scan(update, 0.0, np.ones((2, 3)))


def test_threads_compile_at_once(monkeypatch):
    """While LLVM runs in one thread, others compile, and what is loaded already does not wait for them."""
    from upsweep._compiler.llvm import jit

    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    _compiled(3)
    both = threading.Barrier(2, timeout=60)
    inside, go = threading.Event(), threading.Event()
    machine = jit._machine

    def waiting(target):
        """Both threads are between the module's text and its code at one time."""
        both.wait()
        inside.set()
        assert go.wait(60)
        return machine(target)

    monkeypatch.setattr(jit, "_machine", waiting)
    results = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: _compiled(n)})) for n in (31, 32)]
    for thread in threads:
        thread.start()
    assert inside.wait(60)
    results[3] = _compiled(3)  # in memory: does not wait
    go.set()
    for thread in threads:
        thread.join(60)
    assert set(results) == {3, 31, 32}
    monkeypatch.setattr(jit, "_machine", machine)
    for depth, result in results.items():
        expected = 0.0
        for _ in range(depth):
            expected = math.tanh(expected + 1)
        assert result[0] == pytest.approx([expected] * 3, rel=1e-14)


def test_each_thread_has_target_machines_of_its_own():
    from upsweep._compiler.llvm import jit
    from upsweep._compiler.llvm.target import TARGETS

    target = TARGETS["generic"]
    other = []
    thread = threading.Thread(target=lambda: other.append(jit._machine(target)))
    thread.start()
    thread.join()
    assert jit._machine(target) is jit._machine(target) is not other[0]


def test_many_threads_compile_and_forget():
    """Code that is freed in one thread while others compile: contexts outlive the engines made in them."""
    from upsweep._compiler.llvm import jit
    from upsweep._compiler.llvm.target import TARGETS

    text = "define i64 @number() {{\n  ret i64 {}\n}}\n"
    target, results = TARGETS["generic"], []

    def run(first):
        for n in range(first, first + 5):
            loaded = jit.Loaded(jit.compile_object(text.format(n), target), target)
            results.append(loaded.integer("number") == n)
            del loaded
            gc.collect()

    threads = [threading.Thread(target=run, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 20
