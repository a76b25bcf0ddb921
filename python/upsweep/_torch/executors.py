"""Executors of checked scans and counts of tensors: numpy views on the CPU, pointers on CUDA.

`scan`, `bincount`, their registered operations and `distributed` call them. Nothing tracks gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from upsweep import _backends
from upsweep._arrays import name_of
from upsweep._arrays.torch import bfloat16
from upsweep._backends import cpu
from upsweep._backends.cpu import scan as cpu_scan
from upsweep._backends.cuda import abi, library
from upsweep._backends.cuda._calls import TensorCalls
from upsweep._backends.cuda.context import ExecutionContext
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._core import bincount, layout
from upsweep._core import scan as scan_problem

# Of the dtypes that the kernels read. Older versions of torch lack the unsigned types.
NAMES = {
    getattr(torch, name): name
    for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
                 "complex64", "complex128", "uint16", "uint32", "uint64")
    if hasattr(torch, name)
}  # fmt: skip

PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))  # tensors without a subclass's behaviour
# What follows the operations on plain tensors, if it returns what is not false: a transform, a mode, autocast, a
# jit trace. The compiler, which traces no compiled code, and forward derivatives are looked for apart from these.
WATCHERS = (
    torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack, torch.is_autocast_enabled, torch._C._is_tracing,
)  # fmt: skip


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a state that users see: float32 for 16-bit results, else the result's."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def check_device(tensor: Tensor, name: str) -> None:
    """Raise for a tensor that is neither on the CPU nor on CUDA."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: expected tensors on the CPU or on CUDA, got one on {tensor.device}")


def resolve(value: Any) -> Any:
    """Return the tensor after torch's lazy conjugation and negation."""
    if isinstance(value, Tensor) and (value.is_conj() or value.is_neg()):
        return value.resolve_conj().resolve_neg()
    return value


def as_numpy(tensor: Tensor) -> Any:
    """Return a numpy array on the memory of a tensor on the CPU."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(_numpy_dtype(tensor.dtype))
    return tensor.numpy()


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return bfloat16("a tensor on the CPU") if dtype == torch.bfloat16 else np.dtype(NAMES[dtype])


def run(
    x: Tensor, gates: Tensor | None, gamma: Tensor | complex | None, initial: Tensor | None, reset: Tensor | None,
    out: Tensor | None, final: Tensor | None, *, axis: int, reverse: bool, exclusive: bool, flush: bool,
    window: int = 0, n_threads: int | None = None,
) -> None:  # fmt: skip
    """Write the result to `out` and the final state to `final`.

    All tensors are on one device; axes that are broadcast have a stride of 0. The dtype of `final` is that of
    states that users see, or the one of the computation. On CUDA `out` may be None.
    """
    x, gates, gamma, initial = resolve(x), resolve(gates), resolve(gamma), resolve(initial)
    if x.is_cuda:
        calls.scan(
            x, gates, *_split_factor(gamma), initial, reset, out, final, axis=axis, reverse=reverse,
            exclusive=exclusive, window=window,
        )  # fmt: skip
        return
    assert out is not None
    scan = _scan_of_views(x, gates, gamma, initial, reset, axis, out.dtype)
    last = None if final is None else as_numpy(final)
    if 0 not in scan.shape:
        cpu_scan.run(
            scan, as_numpy(out), last, reverse=reverse, exclusive=exclusive, flush=flush, window=window,
            n_threads=n_threads,
        )  # fmt: skip
    elif last is not None:
        last[...] = 0 if scan.initial is None else scan.initial


def _split_factor(gamma: Tensor | complex | None) -> tuple[Tensor | None, complex]:
    """Return a factor of each line as a tensor and 1, or the number of all lines as None and the number."""
    return (gamma, 1.0) if isinstance(gamma, Tensor) else (None, 1.0 if gamma is None else gamma)


def _scan_of_views(
    x: Tensor, gates: Tensor | None, gamma: Tensor | complex | None, initial: Tensor | None, reset: Tensor | None,
    axis: int, dtype: torch.dtype,
) -> scan_problem.Scan:  # fmt: skip
    """Return the scan of tensors on the CPU as one of numpy arrays that share their memory."""
    if x.device.type != "cpu":
        raise TypeError(f"expected tensors on the CPU or on CUDA, got {x.device}")
    factor = None
    if isinstance(gamma, Tensor):
        factor = as_numpy(gamma)
    elif gates is None and gamma is not None and gamma != 1:
        # A real number stays real under complex states, as on CUDA: it multiplies both parts. Without axes it
        # broadcasts to all states.
        number = complex(gamma)
        factor = np.array(number if number.imag else number.real)
    gates, reset, initial = (None if tensor is None else as_numpy(tensor) for tensor in (gates, reset, initial))
    return scan_problem.Scan(as_numpy(x), gates, factor, reset, initial, axis, tuple(x.shape), _numpy_dtype(dtype))


def reduce(
    x: Tensor, gates: Tensor | None, gamma: Tensor | complex | None, reset: Tensor | None,
    multiplier: Tensor | None, value: Tensor, dropped: Tensor | None, *, initial: Tensor | None = None, axis: int,
    reverse: bool, flush: bool, n_threads: int | None,
) -> None:  # fmt: skip
    """Write the aggregate of all steps to `multiplier`, `value` and `dropped`, which lack the axis.

    With `initial`, `value` is the final state of a scan from it.
    """
    x, gates, gamma, initial = resolve(x), resolve(gates), resolve(gamma), resolve(initial)
    if x.is_cuda:
        calls.reduce(
            x, gates, *_split_factor(gamma), initial, reset, multiplier, value, dropped, axis=axis, reverse=reverse
        )
        return
    scan = _scan_of_views(x, gates, gamma, initial, reset, axis, value.dtype)
    parts = _backends.reduce_scan(scan, reverse=reverse, flush=flush, n_threads=n_threads)
    for tensor, part in zip((multiplier, value, dropped), parts):
        if tensor is not None:
            as_numpy(tensor)[...] = part


def _has_lines(x: Tensor) -> bool:
    """Whether kernels take this tensor on the CPU as contiguous lines."""
    return x.dtype in _LINE_DTYPES and x.ndim > 0 and x.is_contiguous() and not x.is_neg()


_LINE_DTYPES = {torch.float32, torch.float64}


def _lies_like(tensor: Tensor, x: Tensor) -> bool:
    return (
        tensor.dtype == x.dtype and tensor.shape == x.shape and tensor.is_cpu
        and tensor.is_contiguous() and not tensor.is_neg()
    )  # fmt: skip


def run_lines(
    x: Tensor, gates: Tensor | None, gamma: float, reverse: bool, flush: bool, out: Tensor | None,
    n_threads: int | None,
) -> Tensor | None:  # fmt: skip
    """Return the scan of contiguous tensors of one dtype along their last axis, or None for other tensors.

    x is on the CPU; `calls.scan_plain` is the same on CUDA. The caller makes sure that no gradient is needed.
    """
    try:
        if not (_has_lines(x) and (gates is None or _lies_like(gates, x)) and (out is None or _lies_like(out, x))):
            return None
        n, last = x.numel(), len(x.shape) - 1
    except RuntimeError:  # a sparse or nested tensor without strides or shape, which the caller refuses
        return None
    if not n:
        return None
    if out is None:
        out = torch.empty_like(x)
    else:
        # `out` may be one of the inputs, or disjoint from both; the general path decides on overlaps.
        n_bytes, out_at = n * x.element_size(), out.data_ptr()
        for other in (x, gates):
            if other is not None and other.data_ptr() != out_at and abs(other.data_ptr() - out_at) < n_bytes:
                return None
        torch.autograd.graph.increment_version(out)  # a backward that saved it raises then
    cpu.scans.scan(
        as_numpy(x), None if gates is None else as_numpy(gates),
        None if gates is not None or gamma == 1 else np.array(gamma), None, None, as_numpy(out), None, None,
        axis=last, reverse=reverse, exclusive=False, flush=flush, window=0,
        n_threads=cpu.threads(n_threads), accumulator=cpu_scan.REAL,
    )  # fmt: skip
    return out


def run_lines_backward(g: Tensor, gates: Tensor, y: Tensor, reverse: bool) -> tuple[Tensor, Tensor] | None:
    """Return the gradients of x and gates of the scan `y` along the last axis, without an initial state.

    `g` is the gradient of y. None where no kernel computes both in one pass.
    """
    return calls.lines_backward(g, gates, y, reverse) if g.is_cuda else None


def describe(tensor: Any) -> Any:
    """Return the descriptor of a tensor; None and numbers stay."""
    if not isinstance(tensor, Tensor):
        return tensor
    item = tensor.element_size()
    strides = tuple([stride * item for stride in tensor.stride()])
    return ArrayDescriptor(tensor.data_ptr(), tuple(tensor.shape), strides, NAMES[tensor.dtype])


def workspace(n_bytes: int, device: torch.device) -> tuple[int, Tensor]:
    memory = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    return memory.data_ptr(), memory


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=like.device)


def _find_increment_version() -> Callable[[tuple[Tensor]], None]:
    """Return what `torch.autograd.graph.increment_version` calls, as a function of a tuple with one tensor."""
    try:
        torch._C._increment_version((torch.empty(0),))
    except TypeError:  # of an older torch, which takes a tensor
        return lambda tensors: torch.autograd.graph.increment_version(tensors[0])
    increment: Callable[[tuple[Tensor]], None] = torch._C._increment_version
    return increment


calls = TensorCalls(
    load=library.load, check_device=library.check_device,
    exchange=getattr(Tensor, "__dlpack_c_exchange_api__", None),
    dtypes={dtype: abi.DTYPES[name] for dtype, name in NAMES.items()}, plain_types=PLAIN, watchers=WATCHERS,
    forward_ad=forward_ad, is_grad_enabled=torch.is_grad_enabled, is_neg=Tensor.is_neg,
    stream=getattr(torch._C, "_cuda_getCurrentRawStream", None),
    workspace=workspace, empty_like=torch.empty_like, empty=_empty,
    # The allocation of the code that torch's compiler generates, which skips torch's dispatcher.
    empty_here=getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None) if torch.version.cuda else None,
    increment_version=_find_increment_version(),
)  # fmt: skip


class TensorContext(ExecutionContext):
    """The context of a call on CUDA tensors, which are described without device views.

    It has no library and no memory of its own to close: only what is defined here, `on_stream` and `resources`.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor_device, self.device = tensor.device, tensor.get_device()
        self.stream = torch._C._cuda_getCurrentRawStream(self.device)

    @property
    def memory_limit(self) -> int:
        return int(torch.cuda.get_device_properties(self.tensor_device).total_memory)

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        return workspace(n_bytes, self.tensor_device)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, name_of(dtype)), device=self.tensor_device)

    temporary = empty

    def input(self, array: Any) -> Any:
        return describe(array)

    optional_input = output = input

    def element(self, array: Tensor, index: tuple[int, ...]) -> Any:
        return array[index].item()


# ---- counts ----------------------------------------------------------------------------------------------------


def count(request: Any, out: Tensor | None, accumulate: bool) -> tuple[Tensor, Tensor | None]:
    """Return the counts of a `bincount_ops.Request`, or `out`, and the number of dropped keys if asked for."""
    if request.keys.is_cuda:
        return _count_on_cuda(request, out, accumulate)
    check_device(request.keys, "x")
    dtype = _accumulator_dtype(request)
    direct = out is not None and out.dtype == dtype
    described = _count_of(request, as_numpy, dtype, out if direct else None, accumulate)
    result, n_dropped = _backends.run_count(described, n_threads=request.n_threads or None)
    n_invalid = None if n_dropped is None else torch.tensor(n_dropped)
    if direct:
        return out, n_invalid
    return _write_result(torch.from_numpy(result).contiguous(), out, accumulate, request.dtype), n_invalid


def _count_on_cuda(request: Any, out: Tensor | None, accumulate: bool) -> tuple[Tensor, Tensor | None]:
    """Count on the current stream; the host waits once, unless the bins are known and other keys are dropped."""
    dtype = getattr(torch, bincount.device_result_dtype(NAMES[_accumulator_dtype(request)], NAMES[request.dtype]))
    direct = out is not None and out.dtype == dtype and request.drop
    described = _count_of(request, lambda tensor: tensor, dtype, out if direct else None, accumulate)
    result, n_invalid = _backends.cuda_bincount.count_in(TensorContext(request.keys), described)
    return result if direct else _write_result(result, out, accumulate, request.dtype), n_invalid


def _accumulator_dtype(request: Any) -> torch.dtype:
    """Return the dtype of the sums before they are rounded: exact for integers, else 64 bits a part."""
    if request.weights is None:
        return torch.int64
    if request.weights.is_complex():
        return torch.complex128
    integers = not (request.weights.is_floating_point() or request.dtype.is_floating_point)
    return torch.int64 if integers and not request.dtype.is_complex else torch.float64


def _write_result(counts: Tensor, out: Tensor | None, accumulate: bool, dtype: torch.dtype) -> Tensor:
    if out is None:
        return counts if counts.dtype == dtype else counts.to(dtype)
    if not accumulate:
        return out.copy_(counts)
    if not (out.is_floating_point() or out.is_complex()):
        return out.add_(counts.to(dtype))  # torch adds no floats to integers
    # torch would round integers before it adds them.
    return out.add_(counts if counts.is_complex() else counts.double())


def _count_of(
    request: Any, view: Callable[[Tensor], Any], dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> bincount.Count:
    """Return the count that writes `dtype`; its operands are `view` of the tensors."""
    keys, weights, axis, last = request.keys, request.weights, request.axis, request.keys.ndim - 1
    if weights is None and request.n_sums >= 0:
        weights = keys.new_empty((*keys.shape, request.n_sums), dtype=torch.int64)  # without elements
    accumulator = np.dtype(NAMES[dtype])
    return bincount.Count(
        layout.moveaxis(view(keys), axis, last),
        None if weights is None else layout.moveaxis(view(resolve(weights)), axis, last),
        None if request.n_sums < 0 else request.n_sums, request.n_bins, request.least, axis, request.drop,
        accumulator, accumulator, None if out is None else view(out), accumulate and out is not None,
        request.deterministic, request.count_invalid,
    )  # fmt: skip
