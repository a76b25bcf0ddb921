"""Outputs larger than the caches, which compiled steps write past them."""

import numpy as np
import pytest
from upsweep import scan
from upsweep._user_scan.problem import check

pytest.importorskip("llvmlite")
from upsweep._backends.cpu import user_scan
from upsweep._compiler.llvm.scans import kernel as compiled


@pytest.fixture
def asked(monkeypatch):
    """Every output is large; whether the kernels of calls so far were to write past the caches."""
    results = []

    def compile_steps(*arguments):
        results.append(arguments[-1])
        return compile_before(*arguments)

    compile_before = compiled.compile_steps
    monkeypatch.setattr(compiled, "compile_steps", compile_steps)
    monkeypatch.setattr(user_scan, "_PAST_CACHES", 0)
    user_scan._kernel.cache_clear()
    return results


def at(offset, shape, dtype):
    """An array whose address is so many bytes behind a line of memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 128, 255, np.uint8)
    first = (offset - memory.ctypes.data) % 64
    return memory[first : first + size].view(dtype).reshape(shape), memory


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [2, 3, 16, 64, 96, 1000, 2064])
def test_sums_into_rows_that_begin_anywhere(asked, dtype, columns):
    update = lambda s, x: s + 0.5 * x  # noqa: E731
    x = np.random.default_rng(columns).normal(size=(37, columns)).astype(dtype)
    expected = np.cumsum(0.5 * x.astype("float64"), axis=0)
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    for offset in (0, 16, 8, 56):
        out, memory = at(offset, x.shape, dtype)
        scan(update, 0.0, x, out=out)
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(scan(update, 0.0, x), out)
        first = out.ctypes.data - memory.ctypes.data
        assert (memory[:first] == 255).all() and (memory[first + out.nbytes :] == 255).all()
    assert asked and all(asked)


def test_two_outputs_in_place_and_backwards(asked):
    def update(s, x):
        return s + x, (s + x, s)

    x = np.random.default_rng(0).normal(size=(50, 320))
    expected = np.cumsum(x, axis=0)
    for offsets in ((0, 0), (16, 16), (16, 48)):  # rows that begin apart are written as any other
        first, second = (at(offset, x.shape, "float64")[0] for offset in offsets)
        scan(update, 0.0, x, out=(first, second))
        np.testing.assert_allclose(first, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(second[1:], expected[:-1], rtol=1e-12, atol=1e-12)
        assert not second[0].any()
    same, _ = at(16, x.shape, "float64")
    same[...] = x
    scan(lambda s, x: s + x, 0.0, same, out=same, reverse=True)
    np.testing.assert_allclose(same[::-1], np.cumsum(x[::-1], axis=0), rtol=1e-12, atol=1e-12)
    assert asked and all(asked)


def test_what_goes_through_tiles_or_is_small_stays_in_the_caches(asked, monkeypatch):
    x = np.ones((40, 320))
    scan(lambda s, x: s + x * x, 0.0, x.T.copy(), axis=1)
    scan(lambda s, x: np.maximum(s, x), 0.0, x[:, ::2], axis=0)
    monkeypatch.setattr(user_scan, "_PAST_CACHES", 16 << 20)
    scan(lambda s, x: np.tanh(s + x), 0.0, x)
    assert len(asked) >= 3 and not any(asked)


def test_the_text_writes_past_the_caches():
    problem = check(lambda s, x: s + x, 0.0, np.ones((2, 2)), 0, False, None)
    target = compiled.TARGETS["x86_64_v3"]
    cached, past = (
        compiled.render(problem.traced.recurrence, target, 32, (False,), each) for each in (False, True)
    )
    assert "nontemporal" not in cached
    assert past.count("!nontemporal") == 5 and "fence seq_cst" in past  # four vectors at once, and one
