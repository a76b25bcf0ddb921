"""Hazard: compiled code for a wider instruction set than the one chosen. UPSWEEP_CPU_ISA limits LLVM as well."""

import re

import pytest
import upsweep

pytest.importorskip("llvmlite")
from helpers import run_python

# One program of each compiler for the CPU; the assembly text of all code that is compiled meanwhile.
PROGRAM = """
    import numpy as np, upsweep
    from upsweep import te
    from upsweep._compiler.llvm import jit

    compile_object, assembly = jit.compile_object, []

    def record(text, target):
        llvm = jit._llvm()
        module = llvm.parse_assembly(text, jit._new_context(llvm))
        assembly.append(jit._machine(target).emit_assembly(module))
        return compile_object(text, target)

    jit.compile_object = record
    random = np.random.default_rng(0).normal
    a, b = random(size=(50, 30)), random(size=(30, 40))

    A, B = te.placeholder(a.shape, "float64", "A"), te.placeholder(b.shape, "float64", "B")
    k = te.reduce_axis((0, 30), "k")
    C = te.compute((50, 40), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    product = te.build(te.create_schedule(C.op), [A, B, C])(a, b)
    np.testing.assert_allclose(product, a @ b, rtol=1e-12, atol=1e-12)

    states = upsweep.scan(lambda h, x: np.tanh(h) * 0.5 + x, 0.0, a)
    expected, h = [], np.zeros(30)
    for x in a:
        expected.append(h := np.tanh(h) * 0.5 + x)
    np.testing.assert_allclose(states, expected, rtol=1e-12, atol=1e-12)

    x, y = random(size=(70, 3)), random(size=(90, 3))
    distances = ((x[:, None] - y[None]) ** 2).sum(-1)
    kernel = (-((upsweep.Vi(x) - upsweep.Vj(y)) ** 2).sum()).exp()
    np.testing.assert_allclose(kernel.sum(axis=1)[:, 0], np.exp(-distances).sum(1), rtol=1e-12)

    print(*assembly, sep="\\n")
"""

_WIDE = r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]"  # registers of AVX-512
_OF_AVX = r"%ymm|^\s+v[a-z]"  # 256-bit registers; instructions in AVX's encoding
FORBIDDEN = {"x86_64_v2": f"{_WIDE}|{_OF_AVX}", "x86_64_v3": _WIDE}
EXPECTED = {"x86_64_v2": r"%xmm", "x86_64_v3": r"%ymm.*%ymm", "x86_64_v4": r"%zmm.*%zmm"}


@pytest.mark.parametrize("level", [name for name in upsweep.show_config()["isa_usable"] if name in EXPECTED])
def test_compiled_code_keeps_to_the_forced_level(level):
    assembly = run_python(PROGRAM, UPSWEEP_CPU_ISA=level, UPSWEEP_CACHE_DIR="")
    lines = [line for line in assembly.splitlines() if not line.lstrip().startswith((".", "#"))]
    assert sum(line.lstrip().startswith("ret") for line in lines) > 5  # it is the text of machine code
    assert any(re.search(EXPECTED[level], line) for line in lines)
    if level in FORBIDDEN:
        assert not [line for line in lines if re.search(FORBIDDEN[level], line)]


def test_levels_share_a_cache_folder_and_no_code(tmp_path):
    n_files = []
    for level in upsweep.show_config()["isa_usable"]:
        assert run_python(PROGRAM, UPSWEEP_CPU_ISA=level, UPSWEEP_CACHE_DIR=str(tmp_path)).strip()
        n_files.append(len(list(tmp_path.iterdir())))
    assert n_files == [n_files[0] * (n + 1) for n in range(len(n_files))]
