"""A stand-in for the functions of libupsweep_cuda.so that `_backends.cuda._calls` calls, on the host."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, c_int32, c_int64, c_void_p

import numpy as np
from upsweep._backends.cuda import _calls, abi

STREAM = 77

_FUNCTIONS = {
    "plan_scan": (POINTER(abi.ScanProblem), c_int32, POINTER(abi.Plan)), "scan": (POINTER(abi.ScanProblem),),
    "plan_count": (POINTER(abi.Count), c_int32, POINTER(abi.CountPlan)), "count": (POINTER(abi.Count),),
    "plan_reduce": (POINTER(abi.Reduction), POINTER(abi.Plan)), "reduce": (POINTER(abi.Reduction),),
    "scan_lines": (POINTER(abi.Lines),), "lines_backward": (POINTER(abi.LinesBackward),),
    "key_range": (POINTER(abi.Count), c_void_p), "value_range": (POINTER(abi.Count), c_void_p),
    "plan_histogram": (POINTER(abi.Histogram), c_int32, POINTER(abi.CountPlan)),
    "histogram": (POINTER(abi.Histogram),),
}  # fmt: skip


def compiled_functions(method_of, check):
    """Return `_calls.Functions` that call Python's functions ``method_of(name)`` for the library's."""
    functions = {name: PYFUNCTYPE(c_int32, *types)(method_of(name)) for name, types in _FUNCTIONS.items()}
    # Called without the GIL.
    copy = CFUNCTYPE(c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int64)
    functions["copy_to_host"] = copy(method_of("copy_to_host"))

    def check_status(status, functions=functions):  # which live as long as this does
        check(status)

    return _calls.Functions(lambda name: ctypes.cast(functions[name], c_void_p).value, check_status)


def functions_of(fake_cuda):
    """Return `_calls.Functions` that call the methods of a `devices.FakeCuda`."""

    def method_of(name):
        def call(*arguments):
            objects = (ctypes.byref(a.contents) if isinstance(a, ctypes._Pointer) else a for a in arguments)
            getattr(fake_cuda, name)(*objects)
            return abi.OK

        return call

    return compiled_functions(method_of, None)


def values_of(array, length):
    """The values of a one-dimensional array of a request; None without one."""
    if not array.data:
        return None
    dtype = np.dtype(next(name for name, code in abi.DTYPES.items() if code == array.dtype))
    assert array.time_stride == dtype.itemsize
    return np.frombuffer((ctypes.c_char * (length * dtype.itemsize)).from_address(array.data), dtype)


class FakeLibrary:
    """Records requests; `statuses` are what the next calls answer."""

    def __init__(self):
        self.requests, self.statuses, self.workspace_bytes, self.allocated = [], [], 0, []
        self.functions = compiled_functions(lambda name: getattr(self, name, self._record), self._check)

    def _check(self, status):
        raise RuntimeError(f"status {status}")

    def _record(self, request):
        self.requests.append(type(request.contents).from_buffer_copy(request.contents))
        return self.statuses.pop(0) if self.statuses else abi.OK

    def _plan(self, request, *rest):
        *n_processors, answer = rest
        assert not any(n_processors)
        answer.contents.workspace_bytes = self.workspace_bytes
        return abi.OK

    plan_scan = plan_reduce = plan_count = plan_histogram = _plan

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

    def count(self, request):
        status, r = self._record(request), request.contents
        keys, weights, out = map(values_of, (r.keys, r.weights, r.out), (r.length, r.length, r.n_bins))
        inside = (keys >= 0) & (keys < r.n_bins)
        out[:] = np.bincount(keys[inside].astype(np.int64), None if weights is None else weights[inside], r.n_bins)
        if r.dropped:
            c_int64.from_address(r.dropped).value = r.length - inside.sum()
        return status

    def key_range(self, request, answer):
        keys = values_of(request.contents.keys, request.contents.length)
        negative = np.flatnonzero(keys < 0)
        words = np.array([max(keys.max(), 0) if keys.max() >= 0 else -1]).astype(np.int64).tolist()
        (c_int64 * 2).from_address(answer)[:] = [*words, negative[0] if negative.size else -1]
        return abi.OK

    def value_range(self, request, answer):
        x = values_of(request.contents.keys, request.contents.length).astype(np.float64)
        bits = np.array([x.min(), x.max()]).view(np.int64)
        ends = np.where(bits < 0, bits ^ (2**63 - 1), bits).tolist()
        (c_int64 * 3).from_address(answer)[:] = [*ends, -1 if np.isfinite(x).all() else 0]
        return abi.OK

    def copy_to_host(self, device, stream, target, source, n_bytes):
        assert (device, stream) == (0, STREAM)
        ctypes.memmove(target, source, n_bytes)
        return abi.OK

    def workspace(self, n_bytes, device):
        self.allocated.append((n_bytes, device))
        memory = np.empty(n_bytes, np.uint8)
        return memory.ctypes.data, memory
