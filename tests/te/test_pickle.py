"""Built functions are pickled and copied by what was lowered, and run in other processes."""

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from te_cells import gru, lstm, rnn
from te_programs import Program
from upsweep import te

pytest.importorskip("llvmlite")

DUPLICATES = {
    "pickle": lambda each: pickle.loads(pickle.dumps(each)), "copy": copy.copy, "deepcopy": copy.deepcopy,
}  # fmt: skip


def square(dtype="float64", **keywords):
    n = te.var("n")
    X = te.placeholder((n,), name="X", dtype=dtype)
    Y = te.compute((n,), lambda i: X[i] * X[i], name="Y")
    return te.build(te.create_schedule(Y.op), [X, Y], **keywords)


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_before_and_after_a_call(duplicate):
    run, x = square(name="square"), np.arange(4.0)
    for _ in range(2):
        other = duplicate(duplicate(run))
        assert repr(other) == repr(run) and other.text == run.text and other.name == "square"
        np.testing.assert_array_equal(other(x), x * x)
        out = np.empty(4)
        assert other(x, out) is None
        np.testing.assert_array_equal(out, run(x))
        with pytest.raises(TypeError, match=r"X: expected dtype float64, got float32; X is made at .*test_pickle"):
            other(np.float32([1]))


def test_a_function_does_not_follow_its_schedule():
    n = te.var("n")
    X = te.placeholder((n,), name="X", dtype="float64")
    Y = te.compute((n,), lambda i: X[i] + 1, name="Y")
    schedule = te.create_schedule(Y.op)
    run = te.build(schedule, [X, Y])
    schedule[Y].split(Y.op.axis[0], factor=4)
    assert pickle.loads(pickle.dumps(run)).text == run.text


def test_sizes_and_their_checks():
    n, m = te.var("n"), te.var("m")
    X = te.placeholder((n + m,), name="X", dtype="float64")
    Y = te.compute((n,), lambda i: X[i + m], name="Y")
    run = te.build(te.create_schedule(Y.op), [n, m, X, Y])
    for each in (run, *(duplicate(run) for duplicate in DUPLICATES.values())):
        np.testing.assert_array_equal(each(2, 3, np.arange(5.0)), [3, 4])
        with pytest.raises(ValueError, match=r"X: expected shape \(n \+ m,\), where n \+ m is 5"):
            each(2, 3, np.arange(4.0))


@pytest.mark.parametrize("cell, n_inputs, n_results", [(rnn, 2, 1), (gru, 2, 1), (lstm, 3, 2)])
def test_cells(cell, n_inputs, n_results):
    tensors = [each for each in cell(8) if isinstance(each, te.Tensor) and each.name != "product"]
    assert len(tensors) == n_inputs + n_results
    run = te.build(te.create_schedule(tensors[-1].op), tensors)
    other = pickle.loads(pickle.dumps(run))
    assert other.text == run.text
    assert other._compile() is run._compile()  # the same code, from memory


@settings(max_examples=15, deadline=None)
@given(some.data())
def test_random_programs(data):
    program = Program(data.draw)
    run = te.build(program.schedule(data.draw), program.args())
    x, expected = program.case(data.draw)
    for duplicate in DUPLICATES.values():
        outputs = [np.full(x.shape, np.nan) for _ in expected]
        duplicate(run)(x, *outputs)
        for want, got in zip(expected, outputs):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_schedule_that_was_copied_builds():
    """Expressions cache keys made of ids, which copies and pickles leave behind."""
    n = te.var("n")
    X = te.placeholder((n, n + 1), name="X", dtype="float64")
    Y = te.compute((n, n + 1), lambda i, j: X[i, j] * 2, name="Y")
    schedule = te.create_schedule(Y.op)
    te.build(schedule, [X, Y])
    for duplicate in (DUPLICATES["pickle"], DUPLICATES["deepcopy"]):
        other, X2, Y2 = duplicate((schedule, X, Y))
        x = np.ones((2, 3))
        np.testing.assert_array_equal(te.build(other, [X2, Y2])(x), 2 * x)


def test_a_spawned_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(square(), (np.arange(3.0),)), [0, 1, 4])


def test_a_process_with_an_empty_cache(tmp_path):
    """Nothing but the pickle is there: the code is compiled again."""
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(square()))
    program = "import pickle, numpy; print(pickle.load(open('run.pickle', 'rb'))(numpy.arange(3.0)).tolist())"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "UPSWEEP_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[0.0, 1.0, 4.0]", done.stderr


def test_blocks_of_a_dask_array():
    dask_array = pytest.importorskip("dask.array")
    import dask

    x = dask_array.arange(20, chunks=7).astype(float)
    result = x.map_blocks(square(), dtype=float)
    with dask.config.set({"multiprocessing.context": "spawn"}):
        np.testing.assert_array_equal(result.compute(scheduler="processes", num_workers=1), np.arange(20.0) ** 2)
