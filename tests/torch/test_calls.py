"""Hazard: a compiled call that describes other memory than it was given, or takes what the general path refuses.

Tensors on the CPU stand for some on a device, and functions of Python for those of the library.
"""

import unittest.mock

import numpy as np
import pytest
from call_library import STREAM, FakeLibrary
from tensor_calls import EXCHANGE, calls_of
from tensors import torch
from torch.autograd import forward_ad
from upsweep._arrays import dispatch
from upsweep._backends.cuda import abi, bincount_launch, scan_launch
from upsweep._core.bin_thresholds import UniformBins
from upsweep._torch import executors, scan_ops
from upsweep._torch import scan as torch_scan


@pytest.fixture
def library():
    return FakeLibrary()


@pytest.fixture(params=["table", "attributes"])
def calls(request, library):
    """Calls that take tensors on the CPU, described by DLPack's table or by their attributes."""
    if request.param == "table" and EXCHANGE is None:
        pytest.skip("this torch has no table")
    if request.param == "attributes":
        return calls_of(library, None)
    return calls_of(library, EXCHANGE, empty_here=torch._C._dynamo.guards._empty_strided_cpu)


def random(*shape, dtype=torch.float32):
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def lines(calls, x, gates=None, gamma=0.5, reverse=False, out=None, record=None, axis=None, **states):
    return calls.scan_plain(x, gates, gamma, axis, reverse, True, out, record, **states)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("workspace_bytes", [0, 4096])
def test_lines(calls, library, reverse, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    for dtype in (torch.float32, torch.float64):
        x, gates, out = (
            random(2, 3, 5, dtype=dtype),
            random(2, 3, 5, dtype=dtype).sqrt(),
            torch.empty(2, 3, 5, dtype=dtype),
        )
        for factors in (None, gates):
            expected = torch_scan.executors.run_lines(x, factors, 0.5, reverse, True, None, 1)
            y = lines(calls, x, factors, reverse=reverse)
            assert torch.allclose(y, expected) and y.dtype == dtype and not y.requires_grad
            version = out._version
            assert lines(calls, x, factors, reverse=reverse, out=out) is out and torch.equal(out, y)
            assert out._version == version + 1
            in_place = x.clone()
            assert torch.equal(lines(calls, in_place, factors, reverse=reverse, out=in_place), y)
    request = library.requests[-1]
    assert (request.device, request.stream, request.lines, request.length) == (0, STREAM, 6, 5)
    assert bool(request.workspace) == bool(workspace_bytes) == bool(library.allocated)
    assert {n_bytes for n_bytes, _ in library.allocated} <= {workspace_bytes}


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
def test_another_axis(calls, library, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    x, gates = random(2, 3, 5), random(2, 3, 5)
    for axis, at in ((0, 0), (1, 1), (-2, 1), (-3, 0)):
        for factors in (None, gates):
            record = unittest.mock.Mock(side_effect=lambda y, *_: y)
            y = lines(calls, x.requires_grad_(), factors, 0.5, True, None, record, axis)
            record.assert_called_once_with(y, x, factors, 0.5, at, True, True)
            expected = scan_launch.problem(
                *map(executors.describe, (x, factors, 0.5, None, None, y, None)), axis=at, reverse=True,
                exclusive=False, device=0, stream=STREAM,
            )  # fmt: skip
            if factors is not None:
                expected.gamma_re = 0.5  # with gates it is not read
            request = library.requests[-1]
            assert bool(request.workspace) == bool(workspace_bytes) and request.workspace_bytes == workspace_bytes
            request.workspace, request.workspace_bytes = None, 0
            assert bytes(request) == bytes(expected)
    assert lines(calls, x.detach(), axis=2).shape == x.shape
    assert type(library.requests[-1]) is abi.Lines
    library.requests.clear()
    for axis in (3, -4, 2**70):
        assert lines(calls, x.detach(), axis=axis) is None and not library.requests


def test_signatures(calls):
    x = random(4, 6)
    others = [
        (x.double(), None), (x.half(), None), (x.bfloat16(), None), (x.mT, None), (x[:, ::2], None), (x[:3], None),
        (x.view(2, 2, 6), None), (x, x), (x, x.double()), (x, x.mT.contiguous().mT), (x.expand(2, 4, 6), None),
    ]  # fmt: skip
    signatures = [calls.signature(*pair) for pair in [(x, None), *others]]
    assert None not in signatures and len(set(signatures)) == len(signatures)
    assert calls.signature(random(5, 4)[1:].view(2, 8)[:, :4], None) == calls.signature(
        x.view(-1)[:16].view(2, 8)[:, :4], None
    )
    assert calls.signature(torch.nn.Parameter(x.clone(), requires_grad=False), None) == signatures[0]
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        assert calls.signature(leaf, x) == calls.signature(x, x)

    class Subclass(torch.Tensor):
        pass

    refused = (
        leaf,
        x.long(),
        x.to(torch.complex64),
        torch._neg_view(x),
        x.as_subclass(Subclass),
        x.to_sparse(),
        1.0,
    )
    for tensor in refused:
        assert calls.signature(tensor, None) is None and calls.signature(x, tensor) is None
    with forward_ad.dual_level():
        assert calls.signature(x, None) is None
    assert torch.func.vmap(lambda row: row if calls.signature(row, None) is None else None)(x) is not None


def check_strided(calls, library, x, gates=None, *, flush=True, axis=1, workspace_bytes=0, **keywords):
    """Compare the request of a call with that of the descriptors; return the result."""
    y = calls.scan_plain(x, gates, 0.5, axis, True, flush, None, None, **keywords)
    out, final = y if keywords.get("return_final") else (y, None)
    expected = scan_launch.problem(
        *map(executors.describe, (x, gates, 0.5, keywords.get("initial"), None, out, final)), axis=axis,
        reverse=True, exclusive=keywords.get("exclusive", False), device=0, stream=STREAM,
    )  # fmt: skip
    expected.gamma_re = 0.5  # with gates it is not read
    request = library.requests.pop()
    assert bool(request.workspace) == bool(workspace_bytes) and request.workspace_bytes == workspace_bytes
    request.workspace, request.workspace_bytes = None, 0
    assert bytes(request) == bytes(expected)
    return y


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
def test_states(calls, library, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, gates = random(2, 3, 5, dtype=dtype), random(2, 3, 5, dtype=dtype)
        for axis, shape in ((0, (3, 5)), (1, (2, 5)), (2, (2, 3))):
            for initial in (random(*shape), random(*shape[::-1]).mT, random(1, shape[1]).half().expand(shape)):
                for exclusive in (False, True):
                    options = {"axis": axis, "workspace_bytes": workspace_bytes, "exclusive": exclusive}
                    check_strided(calls, library, x, gates, **options, return_final=True)
                    options["initial"] = initial
                    y = check_strided(calls, library, x, gates, **options)
                    assert y.shape == x.shape and y.dtype == dtype and y.is_contiguous()
                    y, final = check_strided(calls, library, x, None, **options, return_final=True)
                    assert y.dtype == dtype and final.shape == shape and final.is_contiguous()
                    assert final.dtype == executors.state_dtype(dtype)


def test_integers_and_strides(calls, library):
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64):
        k = torch.arange(30).view(2, 3, 5).to(dtype)
        for x in (k, k.mT, k[:, ::2]):
            y, final = check_strided(
                calls, library, x, flush=False, initial=k[:, 0, : x.shape[2]], return_final=True
            )
            assert y.dtype == final.dtype == torch.int64 and y.shape == x.shape
        out = torch.empty_like(k)
        z = calls.scan_plain(k, None, 1.0, None, False, False, out, None)
        assert z is (out if dtype == torch.int64 else None)
    x, gates = random(2, 3, 5), random(2, 5, 3)
    for each, factors in ((x.mT, None), (x.mT, gates), (x, gates.mT), (x[:, ::2], x[:, :2]), (x[..., :3], None)):
        y = check_strided(calls, library, each, factors)
        assert y.stride() == torch.empty_like(each).stride()


def test_what_lines_leave_to_the_general_path(calls, library):
    x, memory = random(4, 6), torch.zeros(30)
    others = [
        (x.int(), {}), (x.to(torch.complex64), {}), (torch.tensor(1.0), {}), (3.0, {}),
        (x[:1].expand(4, 6), {}), (x, {"gates": x[:1].expand(4, 6)}), (x.mT, {"out": x.mT.clone()}),
        (x.to_sparse(), {}), (torch.ones(1, dtype=torch.complex64).conj().imag, {}), (x.to("meta"), {}),
        (x, {"gates": x.double()}), (x, {"gates": x[:3]}), (x, {"gates": 0.5}),
        (x, {"out": x.double()}), (x, {"out": x[:3].clone()}), (x, {"out": x.mT.contiguous().mT}),
        (memory[:24].view(4, 6), {"out": memory[6:].view(4, 6)}),
        (x, {"gates": memory[:24].view(4, 6), "out": memory[6:].view(4, 6)}),
        (x.clone().requires_grad_(), {}), (x, {"gates": x.clone().requires_grad_()}),
        (x.clone().requires_grad_(), {"out": x.clone(), "record": lambda *_: pytest.fail("recorded")}),
        (x, {"axis": True}), (x, {"axis": 1.0}), (x, {"axis": np.int64(1)}),
        (x, {"initial": 0.5}), (x, {"initial": x[0]}), (x, {"initial": x[:, :1]}), (x, {"initial": x[:, 0].int()}),
        (x, {"initial": x[:, 0].to(torch.complex64)}), (x, {"initial": x[:, 0].to("meta")}),
        (x, {"initial": x[:, 0], "out": x.clone()}), (x[:, :0], {"return_final": True}),
        (x, {"initial": x[:, 0].clone().requires_grad_(), "record": lambda *_: pytest.fail("recorded")}),
        (x.clone().requires_grad_(), {"return_final": True, "record": lambda *_: pytest.fail("recorded")}),
        (x.clone().requires_grad_(), {"exclusive": True, "record": lambda *_: pytest.fail("recorded")}),
    ]  # fmt: skip
    for each, keywords in others:
        assert lines(calls, each, **keywords) is None
    with torch.autograd.forward_ad.dual_level():
        assert lines(calls, x) is None
    with torch.overrides.BaseTorchFunctionMode():
        assert lines(calls, x) is None
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert lines(calls, x) is None
    torch.func.vmap(lambda row: (row, (lines(calls, x) is None and lines(calls, row) is None) or 1 / 0)[0])(x)
    assert not library.requests
    assert lines(calls, torch.empty(0, 6)).shape == (0, 6) and lines(calls, torch.empty(6, 0)).shape == (6, 0)
    assert not library.requests
    with torch.no_grad():
        assert lines(calls, x.clone().requires_grad_()) is not None


def test_a_gradient_is_recorded(calls):
    gates, x, g = (random(3, 7, dtype=torch.float64) + i for i in range(3))
    gates.requires_grad_(), x.requires_grad_()
    for factors, gamma in ((gates, 0.0), (None, 0.5), (None, 1.0)):
        for reverse in (False, True):
            y = lines(calls, x, factors, gamma, reverse, record=scan_ops.record_plain)
            factor = gamma if factors is None else factors
            expected = torch_scan.prepare_gated(factor, x, None, None, None).run(
                None, reverse, False, True, 0, False, None
            )
            assert torch.allclose(y, expected) and y.requires_grad
            inputs = (x,) if factors is None else (x, gates)
            for graph in (False, True):  # without and with one for the second derivative
                results, others = (
                    torch.autograd.grad(z, inputs, g, create_graph=graph, retain_graph=True) for z in (y, expected)
                )
                assert all(torch.allclose(a, b) for a, b in zip(results, others, strict=True))


def test_errors_and_statuses(calls, library):
    x = random(4, 6)
    library.statuses = [2]
    with pytest.raises(RuntimeError, match="status 2"):
        lines(calls, x)
    library.statuses = [abi.NO_KERNEL]
    assert calls.lines_backward(x, x, x, False) is None
    library.statuses = [3]
    with pytest.raises(RuntimeError, match="status 3"):
        calls.lines_backward(x, x, x, False)


def test_the_request_for_gradients(calls, library):
    gates, y, g = (random(2, 3, 5, dtype=torch.float64) for _ in range(3))
    gx, g_gates = calls.lines_backward(g, gates, y, True)
    assert all(t.shape == g.shape and t.dtype == g.dtype and t.is_contiguous() for t in (gx, g_gates))
    request = library.requests.pop()
    assert [getattr(request, name) for name, _ in abi.LinesBackward._fields_ if name != "reserved"] == [
        0, abi.DTYPES["float64"], 1, STREAM, *(t.data_ptr() for t in (gates, y, g, gx, g_gates)), 6, 5,
    ]  # fmt: skip
    for others in (
        (g, gates, y.float()), (g, gates.float(), y), (g, gates[:1], y), (g.mT, gates.mT, y.mT), (g[..., :0],) * 3,
        (g.long(),) * 3, (g[0, 0, 0],) * 3,
    ):  # fmt: skip
        assert calls.lines_backward(*others, True) is None
    assert not library.requests


def test_shapes_and_strides_of_results(library):
    """Hazard: a tuple whose sizes were freed. Python keeps ints up to 256, so only larger ones show it."""
    seen = []

    def empty(shape, strides, dtype, like):
        others = list(range(10**6, 10**6 + 100))  # new ints take what was freed
        assert others[0] not in (*shape, *strides)
        seen.append((shape, strides))
        return torch.empty_strided(shape, strides, dtype=dtype, device=like.device)

    calls = calls_of(library, EXCHANGE, empty=empty, empty_here=None)
    x = random(2, 300, 400)
    whole = ((2, 300, 400), (120000, 400, 1))
    lines(calls, x)
    assert seen == [whole]
    lines(calls, x, axis=0, return_final=True)
    assert seen == [whole, whole, ((300, 400), (400, 1))]
    calls.lines_backward(x, x, x, False)
    assert seen == [*[whole] * 2, ((300, 400), (400, 1)), *[whole] * 2]


def test_too_many_axes(calls, library):
    x = torch.empty((1,) * (abi.MAX_DIMS + 1))
    assert lines(calls, x, axis=0) is None and count(calls, x.long(), length=3) is None
    with pytest.raises(RuntimeError, match="axes"):
        calls.scan(
            x, None, None, 1.0, None, None, x, None, axis=0, reverse=False, exclusive=False, window=0
        )  # fmt: skip


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
def test_a_described_scan_is_the_one_of_the_descriptors(calls, library, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    x, gates = random(2, 3, 4), random(2, 3, 4, dtype=torch.bfloat16)
    sums, state = torch.ones(4, 3, 2, dtype=torch.int64).mT, random(2, 4, dtype=torch.complex64)
    for axis, operands, factor in (
        (2, (x, None, None, None, None, x, None), 0.5),
        (1, (x.mT.contiguous().mT, gates, None, None, x > 0.5, x, random(2, 4)), 1.0),
        (1, (x, None, random(2, 1).expand(2, 4), state, None, x.to(torch.complex64), state), 1.0),
        (0, (sums, None, None, None, None, sums, None), 1.0),
        (1, (x.double(), None, None, None, None, None, random(2, 4, dtype=torch.float64)), 0.5 - 2j),
    ):
        x_, gates_, gamma, initial, reset, out, final = operands
        options = {"axis": axis, "reverse": True, "exclusive": out is not None, "window": 0}
        calls.scan(x_, gates_, gamma, factor, initial, reset, out, final, **options)
        expected = scan_launch.problem(
            *map(executors.describe, (x_, gates_, factor if gamma is None else gamma, initial, reset, out, final)),
            **options, device=0, stream=STREAM,
        )  # fmt: skip
        request = library.requests[-1]
        if workspace_bytes:
            assert request.workspace and request.workspace_bytes == workspace_bytes
            request.workspace, request.workspace_bytes = None, 0
        assert bytes(request) == bytes(expected)


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
def test_a_described_reduction_is_the_one_of_the_descriptors(calls, library, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    x, gates = random(2, 3, 4), random(2, 3, 4, dtype=torch.bfloat16)
    value, product, dropped = (
        torch.empty(2, 4, dtype=dtype) for dtype in (torch.float64, torch.float64, torch.bool)
    )
    sums = torch.ones(4, 3, 2, dtype=torch.int64).mT
    for axis, operands, factor, parts in (
        (1, (x, gates, None, None, x > 0.5), 1.0, (product, value, dropped)),
        (1, (x, None, random(2, 1).expand(2, 4), random(2, 4), None), 1.0, (None, value, None)),
        (1, (x, None, None, None, None), 0.5 - 2j, (product.to(torch.complex128), value.cfloat(), None)),
        (0, (sums, None, None, None, None), 1.0, (None, torch.empty(2, 3, dtype=torch.int64), None)),
    ):
        x_, gates_, gamma, initial, reset = operands
        options = {"axis": axis, "reverse": True}
        calls.reduce(x_, gates_, gamma, factor, initial, reset, *parts, **options)
        factors = (gates_, factor if gamma is None else gamma)
        expected = scan_launch.reduction(
            *map(executors.describe, (x_, *factors, initial, reset, *parts)), **options, device=0, stream=STREAM
        )
        request = library.requests[-1]
        if workspace_bytes:
            assert request.scan.workspace and request.scan.workspace_bytes == workspace_bytes
            request.scan.workspace, request.scan.workspace_bytes = None, 0
        assert bytes(request) == bytes(expected)
    n_requests = len(library.requests)
    empty = torch.empty(0, 4)
    calls.reduce(empty, None, None, 1.0, None, None, None, empty[:, 0].double(), None, axis=1, reverse=False)
    assert len(library.requests) == n_requests  # no rows: there is nothing to write


MOST = 1000  # bins that are counted without a look at the memory


def count(calls, keys, weights=None, minlength=0, length=None, invalid="raise", deterministic=False):
    return calls.count(keys, weights, minlength, length, invalid, deterministic, MOST)


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_counts(calls, library, dtype, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    keys = torch.arange(50).to(dtype)
    for weights in (None, random(50), random(50, dtype=torch.float64)):
        y = count(calls, keys, weights, 3, 9, "drop", True)
        assert y.shape == (9,) and y.dtype == (torch.int64 if weights is None else weights.dtype)
        expected = bincount_launch.describe(
            *map(executors.describe, (keys, y, weights)), axis=0, device=0, stream=STREAM, deterministic=True
        )
        request = library.requests[-1]
        assert bool(request.workspace) == bool(workspace_bytes) and request.workspace_bytes == workspace_bytes
        request.workspace, request.workspace_bytes = None, 0
        assert bytes(request) == bytes(expected)


def test_counts_that_look_at_the_keys(calls, library):
    keys, weights = torch.tensor([3, 0, 3, 7], dtype=torch.int16), random(4)
    for summands in (None, weights):
        for minlength, length, n_bins in ((0, None, 8), (12, None, 12), (0, 9, 9), (8, 8, 8)):
            y = count(calls, keys, summands, minlength, length)
            expected = torch.bincount(keys.int(), summands, n_bins).to(y.dtype)
            assert torch.allclose(y, expected)
    assert count(calls, keys, length=7) is None and count(calls, keys - 1) is None
    assert torch.equal(count(calls, keys - 1, invalid="drop"), torch.tensor([0, 0, 2, 0, 0, 0, 1]))
    assert count(calls, keys - 8, invalid="drop") is None  # without a bin
    assert count(calls, keys - 8, minlength=2, invalid="drop").tolist() == [0, 0]
    assert count(calls, torch.tensor([MOST - 1])) is None and count(calls, torch.tensor([MOST - 2])) is not None
    assert count(calls, keys, minlength=MOST) is None
    if hasattr(torch, "uint64"):
        for largest in (2**63, 2**64 - 1):
            assert count(calls, torch.tensor([largest], dtype=torch.uint64), minlength=5, invalid="drop") is None


def test_what_counts_leave_to_the_general_path(calls, library):
    keys, weights = torch.arange(50), random(50)
    for each, summands in (
        (keys.double(), None), (keys[::2], None), (keys.view(5, 10), None), (keys[:0], None),
        (list(range(50)), None), (keys, weights[:49]), (keys, weights.half()), (keys, weights.expand(2, 50)),
        (keys, keys), (keys, [1.0] * 50),
        (keys, weights.clone().requires_grad_()), (keys.to("meta"), None),
    ):  # fmt: skip
        assert count(calls, each, summands, length=9, invalid="drop") is None
    for keywords in (
        {"length": 0}, {"length": -1}, {"length": 2**70}, {"length": 9.0}, {"length": True}, {"length": MOST},
        {"length": 3, "minlength": 4}, {"minlength": -1}, {"minlength": 2.0}, {"minlength": 2**70},
        {"invalid": "clip"}, {"invalid": None}, {"invalid": np.zeros(2)},
    ):  # fmt: skip
        assert count(calls, keys, **{"length": 9, "invalid": "drop", **keywords}) is None
    assert not library.requests


WIDEST = 1e30


@pytest.mark.parametrize("workspace_bytes", [0, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms(calls, library, dtype, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    x = random(7, 11, dtype=dtype)
    code, single = abi.DTYPES[executors.NAMES[dtype]], dtype == torch.float32

    def check_request(bins, out, edges=None):
        expected = bincount_launch.describe_histogram(
            executors.describe(x.ravel()), bins, executors.describe(out), device=0, stream=STREAM,
            edges=None if edges is None else executors.describe(edges),
        )  # fmt: skip
        request = library.requests[-1]
        assert bool(request.count.workspace) == bool(workspace_bytes)
        assert request.count.workspace_bytes == workspace_bytes
        request.count.workspace, request.count.workspace_bytes = None, 0
        assert bytes(request) == bytes(expected)

    low = np.float32(0.1).item() if single else 0.1
    for ends, first, last in (((0.1, 2), low, 2.0), ((3, 3), x.min().item(), x.max().item())):
        out = calls.histc(x, 5, *ends, WIDEST)
        assert out.shape == (5,) and out.dtype == dtype and out.is_contiguous()
        check_request(UniformBins(first, last, 5), out)
    assert calls.extremes(x) == (x.min().item(), x.max().item())
    assert calls.extremes(-x) == (-x.max().item(), -x.min().item())
    out, edges = calls.histogram(x, 0.5, 2.5, 4, 0.5, abi.DTYPES["float64"], code)
    assert out.shape == (4,) and out.dtype == torch.int64 and edges.shape == (5,) and edges.dtype == dtype
    numpy_dtype = np.dtype(executors.NAMES[dtype])
    check_request(UniformBins(0.5, 2.5, 4, 0.5, np.dtype(np.float64), numpy_dtype), out, edges)


def test_what_histograms_leave_to_the_general_path(calls, library):
    x = random(50)
    others = [x[::2], x[:0], x.half(), x.long(), x.bool(), x.to("meta"), None, [1.0], x.numpy(), x.to_sparse()]
    for other in others:
        assert calls.histc(other, 5, 0, 1, WIDEST) is None and calls.extremes(other) is None
        assert calls.histogram(other, 0.0, 1.0, 5, 0.2, *[abi.DTYPES["float32"]] * 2) is None
    for ends in ((1, 0), (0, np.inf), (np.nan, 1), (0, 1e31), (1e38, 1e39)):
        assert calls.histc(x, 5, *ends, WIDEST) is None
    assert calls.histc(torch.full((9,), 2.0), 5, 0, 0, WIDEST) is None
    infinite = torch.tensor([1.0, np.inf])
    assert calls.histc(infinite, 5, 0, 0, WIDEST) is None and calls.extremes(infinite) is None
    with forward_ad.dual_level():
        assert calls.histc(x, 5, 0, 1, WIDEST) is None
    assert not library.requests


def test_plain_calls_are_those_of_devices_only():
    """Tensors on the CPU must not change what the compiler finds when it traces a call again."""
    import upsweep

    x = random(3, 5)
    upsweep.cumulative_sum(x), upsweep.bincount(torch.arange(5), length=5, invalid="drop")
    if not torch.cuda.is_available():
        assert not dispatch.plain_scans and not dispatch.plain_counts
