"""Hazard: a ctypes table that has drifted from the header, or from what the library exports. Needs no GPU."""

import ctypes
import re
import subprocess
import types
from pathlib import Path

import pytest
import upsweep
from helpers import run_python
from kernel_cases import REGIMES
from upsweep._backends.cpu import _machine
from upsweep._backends.cuda import abi, bincount_launch, library, scan_launch
from upsweep._backends.cuda.descriptor import ArrayDescriptor

HEADER = Path(__file__).parents[2] / "cuda" / "include" / "upsweep_cuda.h"

needs_library = pytest.mark.skipif(library.find() is None, reason="built without the CUDA library")


def header():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def c_type(text):
    """ctypes' name of a C type, pointers to anything but known structures and numbers being void."""
    text = text.replace("const", "").strip()
    numbers = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "double": ctypes.c_double, "void": None}
    if text in numbers:
        return numbers[text]
    if text in abi.STRUCTS:
        return abi.STRUCTS[text]
    pointee = text.removesuffix("*").strip()
    if pointee == "char":
        return ctypes.c_char_p
    if pointee == "void":
        return ctypes.c_void_p
    return ctypes.POINTER(c_type(pointee))


def declared_functions():
    declared = {}
    for result, name, arguments in re.findall(r"^([\w *]+?)\s*\b(upsweep_cuda_\w+)\(([^)]*)\);", header(), re.M):
        pieces = [] if arguments.strip() == "void" else [piece.strip() for piece in arguments.split(",")]
        types = []
        for piece in pieces:
            kind, _, array = re.fullmatch(r"(.*?[\s*])(\w+)(\[\d+\])?", piece, re.S).groups()
            types.append(c_type(" ".join(kind.split()) + ("*" if array else "")))
        declared[name] = (c_type(result), tuple(types))
    return declared


def declared_fields():
    declared = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", header(), re.S):
        fields = []
        for kind, names in re.findall(r"([\w]+[ *]+)([^;]+);", body):
            for field in names.split(","):
                match = re.fullmatch(r"(\**)(\w+)(?:\[(\w+)\])?", field.strip())
                stars, label, size = match.groups()
                base = c_type((kind.strip() + stars).replace(" ", ""))
                fields.append((label, base * abi.MAX_DIMS if size else base))
        declared[name] = fields
    return declared


def test_functions_are_those_of_the_header():
    declared = declared_functions()
    assert set(declared) == set(abi.FUNCTIONS)
    for name, (result, arguments, is_status, _) in abi.FUNCTIONS.items():
        assert declared[name] == (result, arguments), name
        assert is_status <= (result is ctypes.c_int32)


def test_structures_are_those_of_the_header():
    declared = declared_fields()
    assert set(declared) == set(abi.STRUCTS)
    for name, struct in abi.STRUCTS.items():
        assert declared[name] == list(struct._fields_), name


def test_numbers_are_those_of_the_header():
    text = header()
    assert int(re.search(r"UPSWEEP_CUDA_ABI (\d+)", text)[1]) == abi.ABI
    assert int(re.search(r"UPSWEEP_MAX_DIMS (\d+)", text)[1]) == abi.MAX_DIMS
    names = re.search(r"typedef enum \{([^}]*)\} upsweep_dtype;", text)[1].split(",")
    assert [name.strip().removeprefix("UPSWEEP_").lower() for name in names] == list(abi.DTYPES)
    statuses = re.search(r"typedef enum \{([^}]*)\} upsweep_status;", text)[1]
    assert {int(n): s for s, n in re.findall(r"UPSWEEP_(\w+) = (\d)", statuses)} == abi.STATUS


@needs_library
def test_the_library_exports_these_symbols_and_no_others():
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library.find()], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert exported == set(abi.FUNCTIONS)


@needs_library
def test_it_loads_without_a_driver():
    loaded = library.load()
    assert loaded.abi() == abi.ABI
    assert loaded.built_for()
    assert upsweep.show_config()["cuda_library"] == str(library.find())


# ---- statuses and plans, which look at no device ---------------------------------------------------------------


def array(shape, dtype="float32", strides=None, pointer=1 << 20):
    if strides is None:
        strides, step = [], 4
        for n in reversed(shape):
            strides.insert(0, step)
            step *= n
    return ArrayDescriptor(pointer, shape, tuple(strides), dtype)


def plan(x, gates=None, gamma=0.5, out="in place", final=None, axis=-1, reverse=False, window=0):
    out = x if out == "in place" else out
    p = scan_launch.problem(
        x, gates, gamma, None, None, out, final,
        axis=axis % len(x.shape), reverse=reverse, exclusive=False, device=0, stream=0, window=window,
    )  # fmt: skip
    return scan_launch.plan(p, 132)


@needs_library
@pytest.mark.parametrize(
    ("shape", "axis", "regime", "lines"),
    [
        ((8, 1536, 2048), -1, "block lines", 12288),
        ((1, 2**28), -1, "persistent lines", 1),
        ((8, 2**20), -1, "persistent lines", 8),
        ((9, 2**20), -1, "split lines", 9),
        ((8, 2**19), -1, "split lines", 8),
        ((100, 2**20), -1, "split lines", 100),
        ((1_000_000, 32), -1, "block lines", 1_000_000),
        ((1_000_000, 30), -1, "packed lines", 1_000_000),
        ((100_000, 512), -1, "block lines", 100_000),
        ((100_000, 516), -1, "block lines", 100_000),
        ((100_000, 518), -1, "lines", 100_000),
        ((1, 65536), -1, "cluster lines", 1),
        ((4, 65536), -1, "cluster lines", 4),
        ((16, 65536), -1, "cluster lines", 16),
        ((17, 65536), -1, "split lines", 17),
        ((1, 65537), -1, "split lines", 1),
        ((512, 4096), -1, "block lines", 512),
        ((512, 2046), -1, "cluster lines", 512),
        ((512, 4097), -1, "lines", 512),
        ((12288, 4096), -1, "lines", 12288),
        ((512, 4100), -1, "block lines", 512),
        ((8, 2048, 1536), 1, "columns", 12288),
        ((16, 16384, 128), 1, "split columns", 2048),
        ((0, 5), -1, "nothing", 0),
        ((5, 0), -1, "nothing", 0),
    ],
)
def test_regimes(shape, axis, regime, lines):
    x = array(shape)
    answer = plan(x, x, axis=axis)
    assert REGIMES[answer.regime] == regime
    if regime != "nothing":
        assert (answer.lines, answer.typed) == (lines, 1)
        assert (answer.workspace_bytes > 0) == regime.startswith(("split", "persistent"))


@needs_library
def test_short_lines_with_more_than_elements_are_not_packed():
    assert REGIMES[plan(array((1000, 32)), final=array((1000,))).regime] == "short lines"
    assert REGIMES[plan(array((1000, 30), strides=(260, 4))).regime] == "short lines"
    assert REGIMES[plan(array((1000, 201))).regime] == "packed lines"
    assert REGIMES[plan(array((1000, 301))).regime] == "lines"
    x = array((1000, 602))
    assert REGIMES[plan(x, x).regime] == "cluster lines"
    assert REGIMES[plan(x).regime] == "lines"
    assert REGIMES[plan(array((100, 5000))).regime] == "cluster lines"  # instead of split lines
    offset = plan(x, x, out=array((1000, 602), pointer=(1 << 40) + 4))  # loads would be elements
    assert REGIMES[offset.regime] == "lines"


@needs_library
@pytest.mark.parametrize(
    ("shape", "options", "regime"),
    [
        ((1000, 600), {}, "block lines"),
        ((1000, 600), {"strides": (2416, 4)}, "block lines"),
        ((1000, 600), {"strides": (2404, 4)}, "lines"),
        ((2000, 4100), {}, "block lines"),
        ((2000, 4102), {}, "lines"),
        ((2000, 128), {}, "block lines"),
        ((64, 100_000), {}, "resident lines"),
        ((64, 100_001), {}, "resident lines"),
        ((100, 20_000), {}, "resident lines"),
        ((64, 100_000), {"gamma": -0.5}, "split lines"),
        ((64, 100_000), {"gamma": 1.01}, "split lines"),
        ((64, 10_000), {}, "split lines"),  # the exchange would take longer than the rest
        ((16, 1 << 19), {}, "resident lines"),
        ((1, 10_000_000), {}, "persistent lines"),
        ((133, 50_000), {}, "split lines"),
    ],
)
def test_sums_in_shared_memory_and_by_vectors_of_lanes(shape, options, regime):
    strides = {"strides": options["strides"]} if "strides" in options else {}
    answer = plan(array(shape, **strides), gamma=options.get("gamma", 0.5))
    assert REGIMES[answer.regime] == regime
    if regime == "resident lines":
        assert (answer.workspace_bytes > 0) == (shape[0] <= 66)  # a line of its own for each block waits for none


@needs_library
@pytest.mark.parametrize(
    ("lines", "tile"), [(264, 4096), (300, 2048), (528, 2048), (1000, 1024), (1100, 2048), (1600, 1024)]
)
def test_the_tiles_that_a_block_iterates_over(lines, tile):
    """A power of two of warps, as many as are resident; twice as many where a few blocks would remain."""
    answer = plan(array((lines, 16384)))
    assert (REGIMES[answer.regime], answer.tile) == ("block lines", tile)


@needs_library
def test_windows():
    for length, window, regime, has_workspace in (
        (3000, 3, "window", False),
        (3000, 100, "window", False),
        (3000, 3000, "block lines", False),
        (100_000, 4351, "window", False),
        (100_000, 4352, "window", True),  # states of other tiles
    ):
        x, out = array((1000, length)), array((1000, length), pointer=1 << 40)
        answer = plan(x, out=out, window=window)
        assert (REGIMES[answer.regime], answer.typed, answer.workspace_bytes > 0) == (regime, 1, has_workspace)
    strided = plan(array((1000, 3000), strides=(24000, 8)), out=array((1000, 3000), pointer=1 << 40), window=100)
    assert (REGIMES[strided.regime], strided.typed, strided.workspace_bytes > 0) == ("window", 0, True)
    in_place, aside = (
        plan(array((1000, 3000)), out=array((1000, 3000), pointer=p), window=3) for p in (1 << 20, 1 << 40)
    )
    assert in_place.workspace_bytes > 4 * 3_000_000 and not aside.workspace_bytes
    empty = array((5, 0), pointer=0)  # as torch has it
    assert REGIMES[plan(empty, out=empty, window=3).regime] == "nothing"
    with pytest.raises(ValueError, match="window goes with x, gamma, reset and out alone"):
        plan(array((5, 9)), final=array((5,)), window=2)


@needs_library
def test_a_final_state_alone():
    gates, nothing = array((500, 3000)), array((500, 3000), "int8", (0, 0))
    for x, regime in ((gates, "cluster lines"), (nothing, "lines")):
        answer = plan(x, gates, out=None, final=array((500,), "float64"))
        assert REGIMES[answer.regime] == regime
    with pytest.raises(ValueError, match="one of out and final_state"):
        p = scan_launch.problem(
            gates, None, 0.5, None, None, None, array((1000,), "float64"),
            axis=1, reverse=False, exclusive=False, device=0, stream=0,
        )  # fmt: skip
        p.final_state.data = None
        scan_launch.plan(p, 132)


def plan_reduction(x, gates=None, axis=-1, **options):
    """How what a block does is found; a state of float64 is asked for."""
    axis %= len(x.shape)
    states = x.shape[:axis] + x.shape[axis + 1 :]
    arrays = {"gamma": 0.5, "initial": None, "reset": None, "multiplier": None, "dropped": None, **options}
    value = arrays.pop("value", array(states, "float64"))
    r = scan_launch.reduction(
        x, gates, value=value, axis=axis, reverse=False, device=0, stream=0, **arrays
    )  # fmt: skip
    return scan_launch.plan_reduction(r)


@needs_library
@pytest.mark.parametrize(
    ("shape", "axis", "regime", "tile", "chunked"),
    [
        ((256, 2**20), -1, "lines", 32 * 512, True),
        ((1, 2**28), -1, "lines", 32 * 512, True),
        ((1, 2**31), -1, "lines", 32 * 512, True),
        ((12288, 2048), -1, "lines", 4 * 512, False),
        ((1, 65536), -1, "lines", 512, True),
        ((1_000_000, 32), -1, "short lines", 128, False),
        ((8, 2048, 1536), 1, "columns", 128, True),
        ((2**14, 2**14), 0, "columns", 256, True),
        ((100, 2**17), 0, "columns", 100, False),
        ((0, 5), -1, "nothing", 0, False),
        ((5, 0), -1, "lines", 1, False),
    ],
)
def test_how_a_block_is_reduced(shape, axis, regime, tile, chunked):
    x = array(shape)
    answer = plan_reduction(x, x, axis)
    assert (REGIMES[answer.regime], answer.tile, answer.workspace_bytes > 0) == (regime, tile, chunked)
    assert answer.typed == (regime not in ("nothing",) and 0 not in shape)
    if chunked:
        steps = shape[axis]
        chunks = answer.lines * -(-steps // tile)
        assert answer.workspace_bytes == 17 * chunks


@needs_library
def test_what_no_reduction_takes():
    x = array((4, 9))
    for wrong, text in (
        ({"value": array((4,), "float16")}, "final_state has to be float32 or float64"),
        ({"multiplier": array((4,), "float32")}, "multiplier has to be float64"),
        ({"dropped": array((4,), "int8")}, "dropped has to be bool"),
        ({"value": array((4,), "int64"), "gates": x}, "integers are only summed"),
    ):
        with pytest.raises(ValueError, match=text):
            plan_reduction(x, **wrong)
    for function in (library.load().plan_reduce, lambda *p: library.load().reduce(None)):
        with pytest.raises(ValueError, match="NULL"):
            function(None, None)


@needs_library
def test_what_no_typed_kernel_takes():
    x = array((100, 3000))
    assert plan(x).typed == 1
    assert plan(x, reverse=True).typed == 1
    assert plan(array((100, 3000), "int32"), out=x).typed == 0
    assert plan(array((100, 3000), strides=(24000, 8)), out=x).typed == 0
    assert plan(x, array((100, 3000), "float64", (24000, 8))).typed == 0


@needs_library
def test_more_axes_than_a_launch_takes():
    shape = (2, 3, 2, 3, 2, 3, 2, 3, 5)
    strides = tuple(4 * 7 ** (len(shape) - i) for i in range(len(shape)))
    assert plan(array(shape, strides=strides)).n_launches == 2 * 3


def plan_backward(lines, length, dtype="float32", **changed):
    """The name of the status."""
    request = abi.LinesBackward(dtype=abi.DTYPES[dtype], lines=lines, length=length)
    for i, name in enumerate(("gates", "y", "g", "gx", "g_gates")):
        setattr(request, name, (i + 1) << 30)
    for name, value in changed.items():
        setattr(request, name, value)
    return abi.STATUS[library.load().plan_lines_backward(ctypes.byref(request), 132)]


@needs_library
def test_which_lines_have_their_derivative_in_one_kernel():
    for dtype, tile in (("float16", 4096), ("bfloat16", 4096), ("float32", 2048), ("float64", 1024)):
        assert plan_backward(600, 257, dtype) == plan_backward(600, 10**6, dtype) == "OK"
        assert plan_backward(600, 256, dtype) == plan_backward(1, 1, dtype) == "OK"
        # Fewer lines than 2 a processor are scanned by several blocks each where they have more than two tiles.
        assert plan_backward(264, 2 * tile + 1, dtype) == plan_backward(3, tile, dtype) == "OK"
        assert plan_backward(263, 2 * tile + 1, dtype) == "NO_KERNEL"
    assert plan_backward(600, 2**30 + 1) == "NO_KERNEL"
    assert plan_backward(0, 300) == plan_backward(600, 0) == plan_backward(0, 300, g=None) == "OK"


@needs_library
def test_a_derivative_in_one_kernel_needs_arrays_that_begin_alike():
    moved = {name: ((i + 1) << 30) + 4 for i, name in enumerate(("gates", "y", "g", "gx", "g_gates"))}
    assert plan_backward(600, 300, **moved) == "OK"
    for name, pointer in moved.items():
        assert plan_backward(600, 300, **{name: pointer}) == "NO_KERNEL"
        assert plan_backward(600, 300, **{name: pointer + 12}) == "OK"


@needs_library
def test_what_no_derivative_is_asked_for():
    for wrong, text in (
        ({"dtype": "int32"}, "dtype is not a real floating one"),
        ({"lines": -1}, "lines is negative"),
        ({"length": -1}, "length is negative"),
        ({"y": None}, "gates, y, g, gx and g_gates have to be given"),
    ):
        with pytest.raises(ValueError, match=text):
            plan_backward(**{"lines": 600, "length": 300, **wrong})
    with pytest.raises(ValueError, match="NULL"):
        library.load().lines_backward(None)


@needs_library
def test_statuses_become_exceptions():
    with pytest.raises(ValueError, match="final_state has to be float32 or float64"):
        plan(array((3, 5)), final=array((3,), "float16"))
    with pytest.raises(ValueError, match="NULL"):
        library.load().scan(None)


@needs_library
def test_weights_without_an_address_are_weights():
    """Empty tensors have none; their sums are floats all the same."""
    keys, weights, sums = (
        array((n,), dtype, (8,), 0) for n, dtype in ((0, "int64"), (0, "float64"), (0, "float32"))
    )
    where = {"axis": 0, "device": 0, "stream": 0}
    for out in (sums, array((3,), "float32", (4,))):
        bincount_launch.plan(bincount_launch.describe(keys, out, weights, **where), 132)
        with pytest.raises(ValueError, match="out of a count has to be int64"):
            bincount_launch.plan(bincount_launch.describe(keys, out, **where), 132)
    elements, thresholds, out = (array((n,), "float64", (8,), at) for n, at in ((0, 0), (4, 4096), (3, 8192)))
    bincount_launch.plan_histogram(
        bincount_launch.describe_histogram(elements, thresholds, out, elements, device=0, stream=0), 132
    )  # fmt: skip


@needs_library
def test_a_step_is_rounded_to_any_dtype(monkeypatch):
    """What is counted in float64 is written in halves: by an output, for a final state is none of 16 bits."""
    plans = []
    monkeypatch.setattr(scan_launch, "run_scan", lambda p, allocate: plans.append(scan_launch.plan(p, 132)))
    value = array((5,), "float64", (8,))
    for dtype in ("float16", "bfloat16", "float32", "int32"):
        result = array((5,), dtype, (4,))
        scan_launch.advance(None, value, None, result, result, device=0, stream=0, allocate=lambda n: (0, None))
    assert len(plans) == 4


@pytest.mark.parametrize("dtype", ["int64", "uint64", "bool", "float64"])
def test_integers_are_not_multiplied(monkeypatch, dtype):
    """Gates that the kernels of integers do not read leave no factor of 0 behind."""
    problems = []
    monkeypatch.setattr(scan_launch, "run_scan", lambda p, allocate: problems.append(p))
    value = array((5,), dtype, (8,))
    scan_launch.advance(value, value, None, value, value, device=0, stream=0, allocate=lambda n: (0, None))
    (p,) = problems
    assert (p.gates.data is None, p.gamma_re) == ((False, 0.0) if dtype == "float64" else (True, 1.0))


@needs_library
def test_every_cuda_function_says_what_is_missing_without_a_device():
    count = ctypes.c_int32()
    try:
        library.load().device_count(ctypes.byref(count))
    except library.CudaError as error:
        assert "cudaGetDeviceCount: cudaError" in str(error)
    if count.value == 0:
        missing = r"no NVIDIA driver.*cudaErrorInsufficientDriver|no CUDA device: .*cudaErrorNoDevice"
        with pytest.raises(library.CudaError, match=f"^CUDA device 0: this machine has ({missing})"):
            library.check_device(0)


@pytest.mark.parametrize("code, message", [
    ("cudaErrorNoDevice", "CUDA device 7: this machine has no CUDA device: "),
    ("cudaErrorInvalidDevice", "CUDA device 7: this machine has no CUDA device of that number: "),
    ("cudaErrorMemoryAllocation", ""),
])  # fmt: skip
def test_a_missing_device_is_named_in_the_error(code, message, monkeypatch):
    def fail(*arguments):
        raise library.CudaError(f"cudaGetDeviceProperties: {code} (what CUDA says)")

    monkeypatch.setattr(library, "load", lambda: types.SimpleNamespace(device_check=fail))
    with pytest.raises(library.CudaError) as error:
        library.check_device(7)
    assert str(error.value) == f"{message}cudaGetDeviceProperties: {code} (what CUDA says)"
    assert 7 not in library._checked


@needs_library
def test_a_driver_that_is_too_old_is_one_clear_error(tmp_path):
    (tmp_path / "driver.c").write_text(
        "int cuDriverGetVersion(int* version) { *version = 12020; return 0; }\n"
        "int cuInit(unsigned flags) { return 0; }\n"
    )
    compile_c = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"]
    subprocess.run(compile_c, check=True)
    code = """
        import numpy as np, upsweep
        i = upsweep.Vi(np.ones((4, 3)))
        calls = [lambda: upsweep.cumulative_sum(np.ones(4), device="cuda"),
                 lambda: i.sqdist(upsweep.Vj(np.ones((5, 3)))).sum(axis=1, backend="GPU")]
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                print(type(error).__name__, error)
    """
    errors = run_python(code, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    message = "CudaError CUDA device 0: its NVIDIA driver runs CUDA up to 12.2; the library needs a newer driver: "
    assert len(errors) == 2
    assert all(error.startswith(message) for error in errors), errors


def test_no_library_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("UPSWEEP_CUDA_LIBRARY", "")
    with pytest.raises(RuntimeError, match=r"no CUDA library \(.*(left out|built).*upsweep\[cuda13\].*nvcc"):
        library.load()
    monkeypatch.setenv("UPSWEEP_CUDA_LIBRARY", "/nowhere/libupsweep_cuda.so")
    with pytest.raises(ImportError, match=r"/nowhere/libupsweep_cuda.so: cannot be loaded"):
        library.load()


def test_another_library_is_refused_and_reported(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("UPSWEEP_CUDA_LIBRARY", _machine.__file__)
    with pytest.raises(ImportError, match=r"_machine.*: is no libupsweep_cuda.so"):
        library.load()
    assert "is no libupsweep_cuda.so" in str(upsweep.show_config())


@needs_library
def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(abi, "ABI", 99)
    monkeypatch.setattr(
        abi, "FUNCTIONS", abi.FUNCTIONS | {"upsweep_cuda_of_99": abi.FUNCTIONS["upsweep_cuda_abi"]}
    )
    with pytest.raises(ImportError, match=f"ABI version {library.load().abi()}, this upsweep needs 99"):
        library.Library(library.find())
