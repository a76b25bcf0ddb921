"""histogram and histc of torch tensors: numpy's counts and edges, torch.histc's, on the tensors' own device."""

import types

import numpy as np
import pytest
import upsweep
from call_library import functions_of
from tensor_calls import calls_of
from tensors import DEVICES, to_array, to_tensor, torch

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
          "float32", "float64"]  # fmt: skip


@pytest.fixture(params=[*DEVICES, "pretended"])
def device(request, monkeypatch):
    """Where the tensors are; a pretended device is the CPU, with calls on the way that CUDA tensors take."""
    if request.param != "pretended":
        return request.param
    from upsweep import _arrays
    from upsweep._arrays.torch import TORCH
    from upsweep._torch import executors, histogram, via_numpy

    compiled = types.SimpleNamespace(
        functions=functions_of(request.getfixturevalue("fake_cuda")), workspace=executors.workspace
    )
    monkeypatch.setattr(executors, "calls", calls_of(compiled, None))
    library = TORCH
    monkeypatch.setattr(via_numpy, "view", lambda tensor: _arrays.view_tensor(tensor, "x"))
    monkeypatch.setattr(histogram, "_is_cuda", lambda tensor: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 77, raising=False)
    monkeypatch.setattr(library, "stream", lambda ordinal: 77)
    monkeypatch.setattr(library, "to_device", lambda array, ordinal: library.view(
        torch.from_numpy(array.view(np.uint8).copy()).view(library._dtype(array.dtype)), "a"))  # fmt: skip
    monkeypatch.setattr(library, "empty", lambda shape, dtype, *place: library.view(
        torch.empty(shape, dtype=library._dtype(dtype)), "out"))  # fmt: skip
    monkeypatch.setattr(library, "workspace", lambda n_bytes, ordinal: (
        (memory := torch.empty(n_bytes, dtype=torch.uint8)).data_ptr(), memory))  # fmt: skip
    monkeypatch.setattr(library, "full", lambda number, ordinal: library.view(
        torch.full((), number.item(), dtype=library._dtype(number.dtype)), "number"))  # fmt: skip
    return "cpu"


def elements(shape, dtype="float64", seed=0):
    x = torch.from_numpy(np.random.default_rng(seed).normal(0, 9, shape))
    return (x.abs() if dtype[0] in "ub" else x).to(getattr(torch, dtype))


def check(x, bins=10, *arguments, weights=None, device="cpu", **keywords):
    result = upsweep.histogram(
        x.to(device), bins, *arguments, weights=None if weights is None else weights.to(device), **keywords
    )
    expected = upsweep.histogram(
        to_array(x), bins, *arguments, weights=None if weights is None else to_array(weights), **keywords
    )
    for a, b in zip(result, expected, strict=True):
        assert isinstance(a, torch.Tensor) and a.device.type == device and not a.requires_grad
        a = to_array(a)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(complex), b.astype(complex), rtol=1e-3 if b.itemsize < 4 else 1e-6)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_dtype(dtype, device):
    x = elements((30, 20), dtype)
    for operand in (x, x[::2, 1::3], x.T, x[0, 0], x[:0]):
        check(operand, device=device)
        check(operand, 7, (-3, 10.5), device=device)
        check(operand, [0.0, 1.0, 5.0], device=device)
    check(x, 5, density=True, device=device)


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
def test_weights_of_every_dtype(dtype, device):
    x, w = elements((30, 20)), elements((30, 20), dtype, 1)
    check(x, 7, weights=w, device=device)
    check(x[:, ::2], 7, (-9, 5), weights=w.T.reshape(20, 30).T[:, ::2], device=device)
    check(x, [0, 1, 2], weights=w, density=dtype == "float32", device=device)


def test_edges_that_are_a_tensor_stay_the_users(device):
    x, edges = elements(300).to(device), torch.tensor([0.0, 1.0, 4.0], device=device)
    counts, result = upsweep.histogram(x, edges)
    assert result.data_ptr() == edges.data_ptr()
    assert counts.tolist() == np.histogram(x.cpu().numpy(), [0, 1, 4])[0].tolist() and counts.dtype == torch.int64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torchs_own_histc(dtype, device):
    x = elements(5000, dtype, 3).to(device)
    for arguments in ((), (10,), (33, -4, 4), (7, 2, 2), (100, 0.1, 0.7)):
        result = upsweep.histc(x, *arguments)
        assert result.dtype == x.dtype and result.device == x.device
        if device == "cpu" and dtype in ("float32", "float64"):
            assert torch.equal(result, torch.histc(x, *arguments))
        assert (to_array(result) == upsweep.histc(to_array(x), *arguments)).all()


def test_histc_of_integers_and_out(device):
    x = torch.tensor([1, 5, 5, 9], device=device)
    out = torch.full((2,), 7, device=device)
    assert upsweep.histc(x, 2, out=out) is out and out.tolist() == [1, 3]
    assert upsweep.histc(x, 2).dtype == torch.int64
    with pytest.raises(OverflowError, match="cannot hold the count 300"):
        upsweep.histc(torch.zeros(300, dtype=torch.uint8, device=device), 2)


@pytest.mark.parametrize("rule", ["auto", "sqrt"])
def test_named_rules(rule):
    check(elements(500), rule)


def test_bad_input_is_named():
    x, w = elements(5), torch.ones(5)
    cases = [
        (TypeError, r"x: expected a torch\.Tensor", lambda: upsweep.histogram(x.numpy(), weights=w)),
        (TypeError, r"weights: expected a torch\.Tensor", lambda: upsweep.histogram(x, weights=w.numpy())),
        (TypeError, r"bins: expected a torch\.Tensor", lambda: upsweep.histogram(x, np.arange(3))),
        (TypeError, r"out: expected a torch\.Tensor", lambda: upsweep.histc(x, 3, out=np.zeros(3))),
        (TypeError, "out: expected dtype", lambda: upsweep.histc(x, 3, out=torch.zeros(3))),
        (TypeError, "x: expected real numbers", lambda: upsweep.histogram(x + 1j)),
        (TypeError, "x: expected a dense tensor", lambda: upsweep.histogram(x.to_sparse())),
        (ValueError, "x: autodetected range", lambda: upsweep.histogram(x / 0)),
        (TypeError, "range: long doubles", lambda: upsweep.histogram(x, 3, np.arange(2, dtype=np.longdouble))),
        (ValueError, "weights: expected x's shape", lambda: upsweep.histogram(x, weights=w[1:])),
        (ValueError, "device: goes with numpy", lambda: upsweep.histc(x, device="cuda")),
        (ValueError, "out: cannot be given while out requires grad",
         lambda: upsweep.histc(x, 3, out=torch.zeros(3, dtype=x.dtype).requires_grad_())),
        (NotImplementedError, "weights: histograms have no derivative",
         lambda: upsweep.histogram(x, weights=w.clone().requires_grad_())),
        (NotImplementedError, "x: histograms look at values", lambda: torch.vmap(upsweep.histc)(x[None])),
    ]  # fmt: skip
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()
    with torch.no_grad():
        upsweep.histogram(x, weights=w.clone().requires_grad_())
    assert not upsweep.histc(x.clone().requires_grad_()).requires_grad


def test_the_compiler_leaves_them_to_python():
    x = elements(50)
    compiled = torch.compile(lambda x: upsweep.histc(x, 3) * upsweep.histogram(x, 3)[0], backend="aot_eager")
    assert torch.equal(compiled(x), upsweep.histc(x, 3) * upsweep.histogram(x, 3)[0])


@pytest.mark.cuda
def test_graphs_are_given_their_bins_again():
    x = torch.rand(10_000, device="cuda")
    upsweep.histc(x, 50, 0, 1), upsweep.histogram(x, 50, (0.0, 1.0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counts, (other, edges) = upsweep.histc(x, 50, 0, 1), upsweep.histogram(x, 50, (0.0, 1.0))
    for seed in range(3):
        x.copy_(to_tensor(np.random.default_rng(seed).random(10_000, np.float32), "cuda") ** 2)
        upsweep.histc(x, 70, 0, 1 + seed)  # pinned memory that is given back must not be the graph's
        graph.replay()
        assert torch.equal(counts, upsweep.histc(x, 50, 0, 1))
        assert torch.equal(other, upsweep.histogram(x, 50, (0.0, 1.0))[0])
        assert torch.equal(edges, upsweep.histogram(x, 50, (0.0, 1.0))[1])


@pytest.mark.cuda
def test_nothing_waits_where_the_range_is_given():
    x = torch.rand(1000, device="cuda")
    upsweep.histc(x, 50, 0, 1), upsweep.histogram(x, 50, (0.0, 1.0))
    torch.cuda.synchronize()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        for width in (1, 2.5, 3):  # a range that no call had before sends nothing either
            upsweep.histc(x, 50, 0, width)
            upsweep.histogram(x, 50, (0.0, width))
            upsweep.histogram(x, 50, (0.0, width), weights=x)
        done.record()
        assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_bins_of_contiguous_tensors_take_the_short_path(dtype, device, monkeypatch):
    from upsweep._torch import executors, histogram

    x = elements((70, 50), dtype, 5).to(device)
    if not histogram._is_cuda(x):
        pytest.skip("tensors on the CPU take another path")
    calls, short_results = executors.calls, []

    def recorded(method):
        def call(*arguments):
            result = method(*arguments)
            short_results.extend([] if result is None else [result])
            return result

        return call

    monkeypatch.setattr(executors, "calls", types.SimpleNamespace(
        extremes=calls.extremes, histc=recorded(calls.histc), histogram=recorded(calls.histogram)
    ))  # fmt: skip
    short = [
        *(
            (upsweep.histc, bins, *ends)
            for bins in (1, 10, 3000)
            for ends in ((-3, 4), (0.1, 0.3), (-1e-30, 1e30))
        ),
        *((upsweep.histogram, bins, ends) for bins in (1, 10, 3000) for ends in ((-3, 4), [0.1, 0.3], (5, 6.5))),
    ]
    short += [(upsweep.histc, 10), (upsweep.histc, 99, 1, 1), (upsweep.histogram,), (upsweep.histogram, 999)]
    others = [(upsweep.histogram, 10, (3, 3)), (upsweep.histogram, 9, (np.float32(0), np.float32(9)))]
    for function, *arguments in (*short, *others):
        result, expected = (function(each, *arguments) for each in (x, to_array(x)))
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (result, expected)), strict=True):
            assert to_array(a).dtype == b.dtype and (to_array(a) == b).all(), arguments
    for error, call in (
        (ValueError, lambda: upsweep.histc(x, 0, 0, 1)), (ValueError, lambda: upsweep.histc(x, 3, 2, 1)),
        (TypeError, lambda: upsweep.histc(x, 3.0, 0, 1)), (ValueError, lambda: upsweep.histogram(x, 3, (2, 1))),
        (ValueError, lambda: upsweep.histogram(x, 10**7, (1.0, 1.0 + 1e-9))),
        (ValueError, lambda: upsweep.histogram(x, 3, (0, np.inf))),
        (ValueError, lambda: upsweep.histogram(x, 3, (0, 1, 2))), (ValueError, lambda: upsweep.histogram(x / 0)),
    ):  # fmt: skip
        with pytest.raises(error):
            call()
    assert len(short_results) == len(short)
