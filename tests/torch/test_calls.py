"""Hazard: a compiled call that describes other memory than it was given, or takes what the general path refuses.

Tensors on the CPU stand for some on a device, and functions of Python for those of the library.
"""

import ctypes
import unittest.mock
from ctypes import POINTER, PYFUNCTYPE, c_int32

import numpy as np
import pytest
from tensors import torch
from torch.autograd import forward_ad
from upsweep._arrays import dispatch
from upsweep._backends.cuda import _calls, abi, bincount_launch, scan_launch
from upsweep._torch import executors, scan_ops
from upsweep._torch import scan as torch_scan

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
STREAM = 77


class FakeLibrary:
    """Records requests; `statuses` are what the next calls answer."""

    def __init__(self):
        self.requests, self.statuses, self.workspace_bytes, self.allocated = [], [], 0, []
        arguments = {
            "plan_scan": (POINTER(abi.ScanProblem), c_int32, POINTER(abi.Plan)),
            "scan": (POINTER(abi.ScanProblem),),
            "plan_count": (POINTER(abi.Count), c_int32, POINTER(abi.CountPlan)), "count": (POINTER(abi.Count),),
            "scan_lines": (POINTER(abi.Lines),), "lines_backward": (POINTER(abi.LinesBackward),),
        }  # fmt: skip
        self._functions = {
            name: PYFUNCTYPE(c_int32, *types)(getattr(self, name, self._record))
            for name, types in arguments.items()
        }
        self.functions = _calls.Functions(
            lambda name: ctypes.cast(self._functions[name], ctypes.c_void_p).value, self._check
        )

    def _check(self, status):
        raise RuntimeError(f"status {status}")

    def _record(self, request):
        self.requests.append(type(request.contents).from_buffer_copy(request.contents))
        return self.statuses.pop(0) if self.statuses else abi.OK

    def _plan(self, request, n_processors, answer):
        assert n_processors == 0
        answer.contents.workspace_bytes = self.workspace_bytes
        return abi.OK

    plan_scan = plan_count = _plan

    def scan_lines(self, request):
        r = request.contents
        status = self._record(request)
        if r.workspace_bytes < self.workspace_bytes:
            r.workspace_bytes = self.workspace_bytes
            return abi.NEEDS_WORKSPACE
        dtype = {abi.DTYPES["float32"]: np.float32, abi.DTYPES["float64"]: np.float64}[r.dtype]

        def lines(pointer):
            memory = (ctypes.c_char * (r.lines * r.length * np.dtype(dtype).itemsize)).from_address(pointer)
            return np.frombuffer(memory, dtype).reshape(r.lines, r.length)[:, :: -1 if r.reverse else 1]

        x, y, state = lines(r.x), lines(r.out), 0
        factors = lines(r.gates) if r.gates else np.broadcast_to(r.gamma, x.shape)
        for t in range(r.length):
            y[:, t] = state = x[:, t] + (factors[:, t] * state if t else 0)
        return status

    def workspace(self, n_bytes, device):
        self.allocated.append((n_bytes, device))
        return executors.workspace(n_bytes, device)


@pytest.fixture
def library():
    return FakeLibrary()


@pytest.fixture(params=["table", "attributes"])
def calls(request, library):
    """Calls that take tensors on the CPU, described by DLPack's table or by their attributes."""
    if request.param == "table" and EXCHANGE is None:
        pytest.skip("this torch has no table")
    return _calls.TensorCalls(
        load=lambda: library, check_device=lambda device: None,
        exchange=EXCHANGE if request.param == "table" else None,
        dtypes={dtype: abi.DTYPES[name] for dtype, name in executors.NAMES.items()}, plain_types=executors.PLAIN,
        watchers=executors.WATCHERS, forward_ad=forward_ad, is_grad_enabled=torch.is_grad_enabled,
        is_neg=torch.Tensor.is_neg, stream=lambda device: STREAM, workspace=library.workspace,
        empty_like=torch.empty_like, increment_version=torch.autograd.graph.increment_version, int64=torch.int64,
        device_type=1,
    )  # fmt: skip


def random(*shape, dtype=torch.float32):
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def lines(calls, x, gates=None, gamma=0.5, reverse=False, out=None, record=None, axis=None):
    return calls.scan_plain(x, gates, gamma, axis, reverse, True, out, record)


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


def test_what_lines_leave_to_the_general_path(calls, library):
    x, memory = random(4, 6), torch.zeros(30)
    others = [
        (x.mT, {}), (x[:, ::2], {}), (x.int(), {}), (x.to(torch.complex64), {}), (torch.tensor(1.0), {}),
        (3.0, {}),
        (x.to_sparse(), {}), (torch.ones(1, dtype=torch.complex64).conj().imag, {}), (x.to("meta"), {}),
        (x, {"gates": x.double()}), (x, {"gates": x[:3]}), (x, {"gates": x.mT.contiguous().mT}),
        (x, {"gates": 0.5}),
        (x, {"out": x.double()}), (x, {"out": x[:3].clone()}), (x, {"out": x.mT.contiguous().mT}),
        (memory[:24].view(4, 6), {"out": memory[6:].view(4, 6)}),
        (x, {"gates": memory[:24].view(4, 6), "out": memory[6:].view(4, 6)}),
        (x.clone().requires_grad_(), {}), (x, {"gates": x.clone().requires_grad_()}),
        (x.clone().requires_grad_(), {"out": x.clone(), "record": lambda *_: pytest.fail("recorded")}),
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
    assert calls.lines_backward(x, x, x, torch.empty_like(x), torch.empty_like(x), False) is False
    library.statuses = [3]
    with pytest.raises(RuntimeError, match="status 3"):
        calls.lines_backward(x, x, x, torch.empty_like(x), torch.empty_like(x), False)


def test_the_request_for_gradients(calls, library):
    gates, y, g, gx, g_gates = (random(2, 3, 5, dtype=torch.float64) for _ in range(5))
    assert calls.lines_backward(g, gates, y, gx, g_gates, True) is True
    request = library.requests[-1]
    assert [getattr(request, name) for name, _ in abi.LinesBackward._fields_ if name != "reserved"] == [
        0, abi.DTYPES["float64"], 1, STREAM, *(t.data_ptr() for t in (gates, y, g, gx, g_gates)), 6, 5,
    ]  # fmt: skip


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
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_counts(calls, library, dtype, workspace_bytes):
    library.workspace_bytes = workspace_bytes
    keys = torch.arange(50).to(dtype)
    for weights in (None, random(50), random(50, dtype=torch.float64)):
        y = calls.count(keys, weights, 9, True)
        assert y.shape == (9,) and y.dtype == (torch.int64 if weights is None else weights.dtype)
        expected = bincount_launch.describe(
            *map(executors.describe, (keys, y, weights)), axis=0, device=0, stream=STREAM, deterministic=True
        )
        request = library.requests[-1]
        assert bool(request.workspace) == bool(workspace_bytes) and request.workspace_bytes == workspace_bytes
        request.workspace, request.workspace_bytes = None, 0
        assert bytes(request) == bytes(expected)


def test_what_counts_leave_to_the_general_path(calls, library):
    keys, weights = torch.arange(50), random(50)
    for each, summands in (
        (keys.double(), None), (keys[::2], None), (keys.view(5, 10), None), (keys[:0], None),
        (list(range(50)), None), (keys, weights[:49]), (keys, weights.half()), (keys, weights.expand(2, 50)),
        (keys, keys), (keys, [1.0] * 50),
        (keys, weights.clone().requires_grad_()), (keys.to("meta"), None),
    ):  # fmt: skip
        assert calls.count(each, summands, 9, False) is None
    assert calls.count(keys, None, 0, False) is None and not library.requests


def test_plain_calls_are_those_of_devices_only():
    """Tensors on the CPU must not change what the compiler finds when it traces a call again."""
    import upsweep

    x = random(3, 5)
    upsweep.cumulative_sum(x), upsweep.bincount(torch.arange(5), length=5, invalid="drop")
    if not torch.cuda.is_available():
        assert not dispatch.plain_scans and not dispatch.plain_counts
