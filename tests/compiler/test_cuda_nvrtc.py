"""The run-time compiler: where it is looked for, what it says; kernels compiled without a device."""

import numpy as np
import pytest
from upsweep._backends.cuda.user_scan_launch import _compact_with
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.pairs.render import render
from upsweep._compiler.cuda.pairs.sizes import Request
from upsweep._compiler.cuda.scans import single_pass
from upsweep._compiler.cuda.scans.render import ScanKernels, ScanRequest, Stream
from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import constant, make, operation, variable
from upsweep._compiler.formulas.reduction import REDUCTIONS, PairReduction
from upsweep._compiler.lowering.lower import lower
from upsweep._compiler.recurrences.associative import find_monoid
from upsweep._compiler.recurrences.recurrence import Recurrence, input_, lifted, state
from upsweep._compiler.recurrences.trace import trace


@pytest.fixture(scope="module")
def compiler():
    try:
        return nvrtc.load()
    except RuntimeError as error:
        pytest.skip(str(error).partition(":")[0])


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.setattr(nvrtc, "_loaded", {})
    monkeypatch.setenv(nvrtc.VARIABLE, "")


def test_without_it_the_message_says_what_to_install(nowhere):
    with pytest.raises(RuntimeError, match=r"pip install nvidia-cuda-nvrtc"):
        nvrtc.load()


def test_a_library_that_cannot_be_loaded_is_named(nowhere, monkeypatch, tmp_path):
    path = tmp_path / "libnvrtc.so"
    path.write_bytes(b"no library")
    monkeypatch.setenv(nvrtc.VARIABLE, str(path))
    with pytest.raises(RuntimeError, match=str(path)):
        nvrtc.load()


def test_the_variable_comes_alone(monkeypatch):
    monkeypatch.setenv(nvrtc.VARIABLE, "/somewhere/libnvrtc.so.13")
    assert list(nvrtc.candidates()) == ["/somewhere/libnvrtc.so.13"]


def test_toolkits_come_before_the_loader(monkeypatch, tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.99").touch()
    monkeypatch.delenv(nvrtc.VARIABLE, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    result = list(nvrtc.candidates())
    assert result[0] == str(tmp_path / "lib64" / "libnvrtc.so.99")
    assert result[-1] == "libnvrtc.so"


def test_the_log_is_in_the_message(compiler):
    with pytest.raises(nvrtc.CompileError, match=r"identifier .no_such_type. is undefined"):
        compiler.compile("no_such_type x;", compiler.architectures[-1])


def test_newer_devices_get_ptx(compiler):
    text = 'extern "C" __global__ void nothing() {}'
    newest = compiler.architectures[-1]
    assert compiler.compile(text, newest).is_cubin
    code = compiler.compile(text, newest + 5)
    assert not code.is_cubin
    assert b".visible .entry nothing" in code.data


def test_older_devices_are_refused(compiler):
    with pytest.raises(nvrtc.CompileError, match=r"the device has 1\.0"):
        compiler.compile("", 10)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [3, 40, 300])
def test_kernels_compile(compiler, name, dtype, dim):
    if (dim > 3 and name not in ("sum", "argkmin")) or (dim == 300 and dtype != "float32"):
        pytest.skip("the formula's part is the same")
    weight = variable(2, 1, "j") if name == "sumsoftmaxweight" else None
    formula = make("exp", make("neg", make("sqdist", variable(0, dim, "i"), variable(1, dim, "j"))))
    k = 5 if "kmin" in name else 0
    accumulated = "float32" if dtype == "bfloat16" else "float64"
    reduction = PairReduction(formula, name, weight, k=k, dtype=dtype, dtype_acc=accumulated)
    created = render(lower(reduction), Request(name, k, "i", dtype, accumulated, 3))
    assert compiler.compile(created.text, 90, created.options).data


@pytest.mark.parametrize("name", ["sum", "logsumexp", "argmin"])
@pytest.mark.parametrize("has_wgmma", [False, True])
def test_kernels_of_rounded_vectors_compile(compiler, name, has_wgmma):
    formula = make("exp", make("neg", make("sqdist", variable(0, 128, "i"), variable(1, 128, "j"))))
    reduction = PairReduction(formula, name, precision="f16")
    request = Request(name, 0, "i", "float32", "float64", 3, precision="f16", has_wgmma=has_wgmma)
    created = render(lower(reduction), request)
    assert created.product.prepared_bytes(1, 1)
    assert compiler.compile(created.text, 90, created.options).is_cubin


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("role", ["alone", "reduces", "joins"])
def test_scans_by_an_update_compile(compiler, role, lines, dtype):
    def update(s, x):
        return (np.tanh(s[0]) * x[1] + x[0], np.where(x[1] > 0, s[1], 0.5)), s[0] > x[0]

    def affine(s, x):
        return (np.where(x[1] > 0, s[0], s[1] * 0.5) + x[0], 0.25 * s[0] - x[1]), s[0] > x[0]

    single, half = np.dtype(dtype), np.dtype(np.float16)
    recurrence = trace(update if role == "alone" else affine, (single,) * 2, 2, (single, half), 2).recurrence
    form = None if role == "alone" else find_monoid(recurrence)[0]
    if role == "reduces":
        recurrence = form.reduce
    inputs = (Stream(dtype), Stream("float16", fixed=not lines))
    k = recurrence.n_states
    request = ScanRequest(
        dtype, inputs, () if role == "reduces" else ("bool",), (None,) * k, (dtype,) * k, 2, lines,
        1 if lines else 8, 1, -1 if role == "alone" else int(lines), role == "reduces",
        form if role == "joins" else None,
    )  # fmt: skip
    created = ScanKernels(lifted(recurrence)[0], request)
    assert compiler.compile(created.text, 90, created.options).data


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("role", ["alone", "reduces", "joins"])
def test_scans_of_integers_compile(compiler, role, lines):
    def update(s, x):
        a = (s[0] << 3) // x[0] + (s[1] >> x[1]) % 5 - abs(x[1])
        return (a, np.maximum(s[1], x[1]) * (a > x[0])), (a * 0.5, a, s[1] & 3)

    def affine(s, x):
        return (s[0] * x[0] + s[1], np.where(x[1] > 3, 0, s[1]) - x[1]), (s[0] * 0.5, s[0], s[1])

    dtypes = np.dtype(np.int64), np.dtype(np.int16)
    states = dtypes if role == "alone" else (dtypes[0],) * 2
    recurrence = trace(update if role == "alone" else affine, states, 2, dtypes, 2).recurrence
    form = None if role == "alone" else find_monoid(recurrence)[0]
    recurrence = form.reduce if role == "reduces" else recurrence
    k = recurrence.n_states
    request = ScanRequest(
        "float64", (Stream("int64"), Stream("int16", fixed=not lines)),
        () if role == "reduces" else ("float64", "int64", "uint8"), ("int64", *(None,) * (k - 1)), ("int32",) * k,
        2, lines, 1 if lines else 8, 1, -1 if role == "alone" else int(lines), role == "reduces",
        form if role == "joins" else None,
    )  # fmt: skip
    created = ScanKernels(lifted(recurrence)[0], request)
    assert compiler.compile(created.text, 90, created.options).data


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_tables_of_scans_compile(compiler, dtype):
    table = np.arange(600).reshape(30, 20).astype(dtype)
    own = np.dtype(dtype)
    recurrence = trace(lambda s, x: (table[s, x], table[x, x]), (own,), -1, (own,), -1).recurrence
    request = ScanRequest(
        "float32" if dtype == "float32" else "float64", (Stream(dtype),), (dtype,), (None,), (dtype,), 2, ahead=1
    )
    created = ScanKernels(lifted(recurrence)[0], request)
    assert "static const" in created.text and compiler.compile(created.text, 90, created.options).data


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_operations_of_recurrences_compile(compiler, dtype):
    variables = state(0), input_(0), constant(0.5)
    outputs = [operation(op, *variables[:arity]) for op, (arity, _) in ops.SCALAR.items()]
    recurrence = Recurrence((input_(0),), tuple(outputs), 1)
    request = ScanRequest(dtype, (Stream(dtype),), (dtype,) * len(outputs), (None,), (dtype,), 2, ahead=1)
    created = ScanKernels(recurrence, request)
    assert compiler.compile(created.text, 90, created.options).data


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [5000, 2**28])
@pytest.mark.parametrize("n_states", [1, 2])
def test_single_passes_compile(compiler, n_states, length, dtype):
    def one(s, x):
        return np.where(x[1] > 0, 0.5 * s, 0) + x[0]

    def two(s, x):
        return (0.5 * s[0] - 0.3 * x[1] * s[1], 0.5 * s[0] + x[0]), s[0] * s[1]

    single = np.dtype(dtype)
    traced = trace(two if n_states == 2 else one, (single,) * n_states, n_states if n_states == 2 else -1,
                   (single,) * 2, 2)  # fmt: skip
    reading, form = _compact_with(traced.recurrence, find_monoid(traced.recurrence)[0])
    size = single.itemsize
    tile = single_pass.choose_tile_sizes(form, n_states, [size] * 2, [size], 1, length, 132, 227 * 1024)
    assert bool(tile.stages) == (length > 5000)
    request = ScanRequest(
        dtype, (Stream(dtype, step=size), Stream(dtype)), (dtype,), (None,) * n_states, (dtype,) * n_states, 2,
        True, 1, tile.blocks, 1, False, form, tile=tile, output_steps=(-size,),
    )  # fmt: skip
    created = ScanKernels(reading.recurrence, request)
    assert created.threads == tile.threads and created.shared_bytes <= 227 * 1024
    assert compiler.compile(created.text, 90, created.options).data
