"""Hazards: reads beyond the ends of arrays, and values that are remembered past a store."""

import ctypes
import sys

import numpy as np
import pytest
import upsweep
from helpers import run_python
from upsweep._backends import cpu
from upsweep._backends.cpu.loops import compile_nest
from upsweep._compiler.loops.expressions import Axis, binary, const, load
from upsweep._compiler.loops.statements import Block, Buffer, For, Store

pytest.importorskip("llvmlite")

WALLED = """
import ctypes, mmap
import numpy as np
from upsweep import te

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
kept = []

def walled(values, at_end):
    "A copy that ends, or begins, where the process may not read."
    memory = mmap.mmap(-1, 3 * PAGE)
    kept.append(memory)
    all_of_it = np.frombuffer(memory, np.uint8)
    begin = 2 * PAGE - values.nbytes if at_end else PAGE
    view = all_of_it[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    view[...] = values
    base = all_of_it.ctypes.data
    for page in (0, 2):
        assert libc.mprotect(ctypes.c_void_p(base + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    return view

n = te.var("n")
X = te.placeholder((n,), name="X")
Y = te.compute((n,), lambda i: te.select(i > 0, X[i - 1], 0.0) + te.select(i + 1 < n, X[i + 1], 0.0) + X[i])
run = te.build(te.create_schedule(Y.op), [X, Y])
turned = te.compute((n,), lambda i: te.select(i > 2, X[n + 2 - i], X[i]), name="turned")
turn = te.build(te.create_schedule(turned.op), [X, turned])
for size in (1, 2, 3, 15, 16, 17, 31, 33, 100):
    x = np.arange(size, dtype="float32")
    padded = np.pad(x, 1)
    other = np.array([x[size + 2 - i] if i > 2 else x[i] for i in range(size)], "float32")
    for at_end in (False, True):
        y = walled(np.zeros_like(x), at_end)
        run(walled(x, at_end), y)
        assert (y == padded[:-2] + padded[1:-1] + padded[2:]).all()
        turn(walled(x, at_end), y)
        assert (y == other).all()
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_no_read_leaves_an_array():
    assert run_python(WALLED).split() == ["fine"]


def test_what_was_read_before_a_store_is_read_again():
    a, b = (Buffer(name, (const(6, "int64"),), "float64") for name in "ab")
    first = (const(0, "int64"),)
    value = load(a, first)  # one node, read three times
    i = Axis("i", const(3, "int64"))
    one = const(1.0, "float64")
    add = Store(a, first, binary("add", load(a, first), one))
    body = Block([
        Store(b, (const(0, "int64"),), value),
        For(i, const(3, "int64"), Block([Store(b, (binary("add", i, const(3, "int64")),), value), add])),
        Store(b, (const(1, "int64"),), value),
        add,
        Store(b, (const(2, "int64"),), value),
    ])  # fmt: skip
    code = compile_nest(body, [a, b], [], cpu.level, {})
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("kernel"))
    memory = np.zeros((2, 6))
    kernel((ctypes.c_int64 * 3)(0, memory[0].ctypes.data, memory[1].ctypes.data), upsweep.get_num_threads())
    assert memory[1].tolist() == [0, 3, 4, 0, 1, 2]
