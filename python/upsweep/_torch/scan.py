"""The scans of torch tensors: dtype and device rules of torch, then the executor or the registered operation.

Shapes, axes and states are checked by `_core.checks`, as for arrays of other libraries. The operation of
`scan_ops` costs several microseconds a call. It is skipped, and the executor called at once, where nothing is
differentiated, compiled, transformed or watched by a mode. The public functions call this module through
`_arrays.dispatch`, and `distributed` calls the `prepare_*` functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from upsweep import _arrays
from upsweep._arrays.dispatch import plain_scans
from upsweep._backends import cpu
from upsweep._core import checks
from upsweep._core import scan as scan_problem
from upsweep._core.layout import have_same_memory
from upsweep._torch import executors, operations, scan_ops

Number = (bool, int, float, complex, np.number, np.bool_)
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)


def cumulative_sum(
    x: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, dtype: Any, include_initial: bool,
    exclusive: bool, return_final: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.cumulative_sum` of a tensor; integers and bool give int64, as torch.cumsum's do."""
    if reset is None and dtype is None and not include_initial and isinstance(x, Tensor):
        y = _run_plain(x, None, 1.0, axis, reverse, False, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return _later_at_once(x, y)
    scan = prepare_sum(x, dtype, axis, reset, initial)
    if not include_initial:
        return scan.run(out, reverse, exclusive, False, 0, return_final, n_threads)
    if out is not None:
        at, n = scan.axis, scan.shape[scan.axis]
        scan.check_out(out, torch.Size((*scan.shape[:at], n + 1, *scan.shape[at + 1 :])))
    y, final = scan.run(None, reverse, False, False, 0, True, n_threads)
    before = y.new_zeros(scan.state_shape) if scan.initial is None else scan.initial.to(y.dtype)
    parts = (y, before.unsqueeze(scan.axis)) if reverse else (before.unsqueeze(scan.axis), y)
    whole = torch.cat(parts, scan.axis) if out is None else torch.cat(parts, scan.axis, out=out)
    return (whole, final) if return_final else whole


def discounted_cumsum(
    x: Any, gamma: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, window: int | None,
    exclusive: bool, return_final: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.discounted_cumsum` of tensors."""
    if type(gamma) is float and reset is None and not window and isinstance(x, Tensor):
        y = _run_plain(x, None, gamma, axis, reverse, True, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return _later_at_once(x, y)
    scan = prepare_discounted(x, gamma, axis, reset, initial)
    checks.check_window_gamma(window, scan.gates, gamma)
    return scan.run(out, reverse, exclusive, True, window or 0, return_final, n_threads)


def linear_recurrence(
    gates: Any, tokens: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, exclusive: bool,
    return_final: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.linear_recurrence` of tensors."""
    if reset is None and isinstance(tokens, Tensor) and isinstance(gates, Tensor):
        y = _run_plain(tokens, gates, 0.0, axis, reverse, True, out, n_threads, initial, exclusive, return_final)
        if y is not None:
            return _later_at_once(tokens, y)
    scan = prepare_gated(gates, tokens, axis, reset, initial)
    return scan.run(out, reverse, exclusive, True, 0, return_final, n_threads)


def _run_plain(
    x: Tensor, gates: Tensor | None, gamma: float, axis: Any, reverse: bool, flush: bool, out: Any,
    n_threads: int | None, initial: Any, exclusive: bool, return_final: bool,
) -> Any:  # fmt: skip
    """Return the scan of plain tensors of one dtype, on the CPU contiguous; None for other arguments."""
    if _is_dynamo_compiling():
        return None
    if x.is_cuda:
        record = scan_ops.record_plain if n_threads is None else None
        return _scan_on_device(
            x, gates, gamma, axis, reverse, flush, out, record, initial, exclusive, return_final
        )  # fmt: skip
    if axis not in (None, -1) or initial is not None or exclusive or return_final or not x.is_cpu:
        return None
    if needs_dispatcher((x, gates, out)):
        return None
    return executors.run_lines(x, gates, gamma, bool(reverse), flush, out, n_threads)


def _later_at_once(x: Tensor, y: Any) -> Any:
    """Return the result of `_run_plain`, which later calls on a device reach without `dispatched`."""
    if x.is_cuda:
        plain_scans[type(x)] = _run_plain
    return y


def scan_forward(gates: Any, tokens: Any, *, reverse: bool, out: Any) -> Any:
    """`upsweep.scan_forward` of tensors, which tracks no gradients."""
    with torch.no_grad():
        return linear_recurrence(
            gates, tokens, None, None, out, axis=-1, reverse=reverse, exclusive=False, return_final=False,
            n_threads=None,
        )  # fmt: skip


def round_gamma(x: Any, gamma: Any) -> Any:
    """Return `gamma` as torch-discounted-cumsum uses it: a number or a tensor, also of a list or an array.

    A gamma that is no tensor is rounded to the dtype of x, as that package and a loop over tensors round it.
    """
    dtype = x.dtype if isinstance(x, Tensor) and x.dtype in _ROUNDED else None
    if isinstance(gamma, Number):
        if dtype is None or isinstance(gamma, (complex, np.complexfloating)):
            return gamma
        return float(np.float32(gamma)) if dtype is torch.float32 else torch.tensor(gamma, dtype=dtype).item()
    if not isinstance(gamma, Tensor):
        numbers = _arrays.as_array(gamma, "gamma")
        wide = np.array(numbers, np.complex128 if numbers.dtype.kind == "c" else np.float64)
        gamma = torch.from_numpy(wide).to(x.device)
        if dtype is not None and not gamma.is_complex():
            gamma = gamma.to(dtype)
    return gamma


# ---- argument rules --------------------------------------------------------------------------------------------


def prepare_sum(x: Any, dtype: Any, axis: int, reset: Any, initial: Any) -> TensorScan:
    """Return the checked cumulative sum."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype with tensors, got {dtype!r}")
    x = as_tensor(x, "x", None)
    if dtype is None:
        dtype = x.dtype if _is_inexact(x.dtype) else torch.int64
    check_sum_dtype(dtype, "x", x)
    if x.dtype != dtype and _is_inexact(dtype) != _is_inexact(x.dtype):
        x = x.to(dtype)  # each element is cast before it is added
    return TensorScan("x", x, "gamma", 1.0, dtype, axis, reset, initial)


def check_sum_dtype(dtype: torch.dtype, name: str, summands: Tensor | None) -> None:
    """Raise unless sums may be of this dtype, and their gradients reach summands that require one."""
    if dtype not in executors.NAMES:
        raise TypeError(f"dtype: expected integers, real or complex numbers, got {dtype}")
    if summands is not None and summands.requires_grad and not _is_inexact(dtype) and torch.is_grad_enabled():
        raise TypeError(f"dtype: sums in {dtype} have no gradient, and {name} requires one; detach() it")


def prepare_discounted(x: Any, gamma: Any, axis: int, reset: Any, initial: Any) -> TensorScan:
    """Return the checked discounted sum."""
    x = as_tensor(x, "x", gamma)
    factor = _as_factor(gamma, "gamma", x)
    dtype = x.dtype if _is_inexact(x.dtype) else torch.get_default_dtype()
    if _is_complex(factor) and not dtype.is_complex:
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    return TensorScan("x", x, "gamma", factor, dtype, axis, reset, initial)


def prepare_gated(gates: Any, tokens: Any, axis: int, reset: Any, initial: Any) -> TensorScan:
    """Return the checked recurrence."""
    if isinstance(tokens, Number):
        number = _number(tokens, "tokens")
        factor = as_tensor(gates, "gates", None)
        tokens = tensor_of_number(number, "tokens", factor.device)
        dtype = _result_dtype(number, factor)
    else:
        tokens = as_tensor(tokens, "tokens", gates)
        factor = _as_factor(gates, "gates", tokens)
        dtype = _result_dtype(factor, tokens)
    if not _is_inexact(dtype):
        dtype = torch.get_default_dtype()
    return TensorScan("tokens", tokens, "gates", factor, dtype, axis, reset, initial)


def _as_factor(value: Any, name: str, x: Tensor) -> Any:
    return _number(value, name) if isinstance(value, Number) else as_tensor(value, name, x)


def _number(value: Any, name: str) -> Any:
    """Return a number of Python; torch's integers have 64 bits with a sign."""
    return _arrays.as_number(value.item() if isinstance(value, np.generic) else value, name, limit=2**63)


def tensor_of_number(number: Any, name: str, device: torch.device) -> Tensor:
    """Return the number as a tensor without axes; torch alone would round it to the default dtype."""
    number = _number(number, name)
    wide = torch.float64 if isinstance(number, float) else None
    dtype = torch.complex128 if isinstance(number, complex) else wide
    # Filled on the device: a copy from the host would wait for it, and cannot be captured in a graph.
    return torch.full((), number, dtype=dtype, device=device)


def can_hold(state: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a state of this dtype can take on a number of the other."""
    if dtype.is_complex:
        return state.is_complex
    return _is_inexact(state) or not dtype.is_floating_point


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _is_complex(value: Any) -> bool:
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, (complex, np.complexfloating))


def _result_dtype(a: Any, b: Tensor) -> torch.dtype:
    """Return torch.result_type, which the compiler cannot trace, from promote_types where that is the same."""
    if isinstance(a, Tensor):
        if a.dtype == b.dtype:
            return b.dtype
        if (a.ndim == 0) == (b.ndim == 0):
            return torch.promote_types(a.dtype, b.dtype)
    elif b.is_complex() or (b.is_floating_point() and not _is_complex(a)):
        return b.dtype
    return torch.result_type(a, b)


def as_tensor(value: Any, name: str, other: Any) -> Tensor:
    """Return the tensor after checks; a 0-d tensor on the CPU moves to the device of the tensor `other`."""
    if not isinstance(value, Tensor):
        _arrays.refuse_list_of_tensors(value, name)
        raise TypeError(
            f"{name}: expected a torch.Tensor, as another argument is one, got {_arrays.type_name(value)}; "
            "convert it by torch.as_tensor"
        )
    refuse_not_dense(value, name)
    if value.dtype not in executors.NAMES:
        raise TypeError(f"{name}: expected a tensor of real or complex numbers, got dtype {value.dtype}")
    if isinstance(other, Tensor) and other.device != value.device:
        if value.ndim == 0 and value.device.type == "cpu":
            return value.to(other.device)
        if not (other.ndim == 0 and other.device.type == "cpu"):
            raise device_error(name, value, other)
    return value


def device_error(name: str, tensor: Tensor, other: Tensor, called: str = "another argument") -> ValueError:
    """Return the error for tensors on two devices."""
    return ValueError(f"{name}: is on {tensor.device}, {called} on {other.device}")


def refuse_not_dense(tensor: Tensor, name: str) -> None:
    """Raise for tensors that are sparse or nested."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    if tensor.is_nested:  # may have that layout too, and has no shape then
        raise TypeError(f"{name}: expected a dense tensor, got a nested one")


class TensorScan:
    """A checked scan: x, gates and reset have one shape, gamma and initial that shape without `axis`."""

    def __init__(
        self, name: str, x: Tensor, factor_name: str, factor: Any, dtype: torch.dtype, axis: int,
        reset: Any, initial: Any,
    ) -> None:  # fmt: skip
        named = {name: x}
        if isinstance(factor, Tensor):
            named[factor_name] = factor
        if reset is not None:
            reset = as_tensor(reset, "reset", x)
            checks.check_reset(reset.dtype, torch.bool)
            named["reset"] = reset
        shape = x.shape
        if any(t.shape != shape for t in named.values()):  # broadcasting costs as much as all other checks
            shape = checks.common_shape(named, torch.broadcast_shapes)
        self.name, self.factor_name, self.shape, self.dtype = name, factor_name, shape, dtype
        self.axis = checks.check_scan_axis(axis, shape, name)
        self.x = x if x.shape == shape else x.expand(shape)
        if x.dtype != dtype and x.requires_grad and _is_inexact(dtype):
            self.x = self.x.to(dtype)
        self.reset = None if reset is None else reset.expand(shape)
        self.gates: Tensor | None = None
        self.gamma: Tensor | None = None
        self.factor: complex = 1.0
        self.real_factor = not _is_complex(factor)  # before gates are cast to a complex dtype for their gradient
        if isinstance(factor, Tensor):
            self._set_factor(factor)
        else:
            self.factor = factor if isinstance(factor, float) else complex(factor)
        self.initial = None if initial is None else self._as_state(initial)

    def _set_factor(self, factor: Tensor) -> None:
        shape, at = self.shape, self.axis
        if factor.ndim == 0 and not factor.requires_grad and factor.device.type == "cpu" and not is_traced():
            self.factor = complex(factor.item())
            return
        padded = factor.reshape((1,) * (len(shape) - factor.ndim) + tuple(factor.shape))
        # The gradient of a factor that is expanded along the axis still has a term for each step.
        repeated = padded.numel() and padded.stride(at) == 0 and not (
            padded.requires_grad and torch.is_grad_enabled()
        )  # fmt: skip
        if padded.shape[at] == 1 or repeated:
            # One number for each line is read once, in any dtype.
            self.gamma = padded.expand(shape[:at] + padded.shape[at : at + 1] + shape[at + 1 :]).select(at, 0)
        else:
            self.gates = factor if factor.shape == shape else factor.expand(shape)
            if self.gates.dtype != self.dtype and self.gates.requires_grad:
                self.gates = self.gates.to(self.dtype)

    @property
    def state_shape(self) -> Any:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def check_out(self, out: Any, shape: Any) -> None:
        """Raise unless the result, of this shape, may be written to `out`."""
        factor = self.gates if self.gamma is None else self.gamma.unsqueeze(self.axis).expand(self.shape)
        tensors = {self.name: self.x, self.factor_name: factor, "initial": self.initial, "reset": self.reset}
        check_target(out, shape, self.dtype, self.x.device, tensors, in_place=(self.name, self.factor_name))

    def _as_state(self, initial: Any) -> Tensor:
        state = self.state_shape
        if isinstance(initial, Number):
            initial = tensor_of_number(initial, "initial", self.x.device)
        initial = as_tensor(initial, "initial", self.x)
        checks.check_state("initial", initial, state, self.dtype, can_hold)
        try:
            return initial.expand(state)
        except RuntimeError:
            raise checks.state_shape_error("initial", initial.shape, state, self.shape) from None

    def run(
        self, out: Any, reverse: bool, exclusive: bool, flush: bool, window: int, return_final: bool,
        n_threads: int | None,
    ) -> Any:  # fmt: skip
        """Run the executor or the operation; return the result, or the result and the final state."""
        tensors = (self.x, self.gates, self.gamma, self.initial, self.reset)
        reverse, exclusive = bool(reverse), bool(exclusive)
        threads = 0 if n_threads is None else cpu.check_threads(n_threads)
        reject_jit_trace()
        reject_forward_ad(tensors)
        if out is not None:
            self.check_out(out, self.shape)
        traced = is_traced() or self.x.is_meta or not all(map(is_plain_tensor, (*tensors, out)))
        if not traced and not requires_autograd(tensors):
            y = scan_ops.allocate_out(self.x, self.dtype) if out is None else out
            dtype = executors.state_dtype(self.dtype)
            final = torch.empty(self.state_shape, dtype=dtype, device=self.x.device) if return_final else None
            factor = self.factor if self.gamma is None else self.gamma
            with torch.no_grad():
                executors.run(
                    self.x, self.gates, factor, self.initial, self.reset, y, final, axis=self.axis,
                    reverse=reverse, exclusive=exclusive, flush=flush, window=window, n_threads=threads or None,
                )  # fmt: skip
            if out is not None:  # a backward that saved it raises then
                torch.autograd.graph.increment_version(out)
        else:
            operation = scan_ops.scan.form() if traced else scan_ops.scan.eager
            y, final = operation(
                self.x, self.gates, self.gamma, self.factor, self.initial, self.reset, self.axis, reverse, flush,
                window, threads, self.dtype,
            )  # fmt: skip
            if exclusive:
                y = self._states_before(y, reverse)
            if out is not None:
                y = out.copy_(y)
        return (y, final) if return_final else y

    def _states_before(self, y: Tensor, reverse: bool) -> Tensor:
        """Return the states before each step, from those after it."""
        before = y.new_zeros(()) if self.initial is None else self.initial
        y = scan_ops.shifted(y, before, self.axis, 1 if reverse else -1) if y.shape[self.axis] else y
        return y if self.reset is None else torch.where(self.reset, 0, y)


# Module-level names, because every call asks them, and each look-up costs as much as the answer.
_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_scan_on_device = executors.calls.scan_plain
_transform, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state


def is_traced() -> bool:
    """Whether the compiler, a transform, a mode, autocast, a jit trace or forward AD sees the operations."""
    if _is_compiling() or forward_ad._current_level >= 0:
        return True
    for watcher in executors.WATCHERS:  # noqa: SIM110  # every small call runs this; `any` would cost more
        if watcher():
            return True
    return False


def requires_autograd(tensors: Sequence[Tensor | None]) -> bool:
    """Whether gradients are on and one of the tensors requires one."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def needs_dispatcher(tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether the call has to go through torch's dispatcher: for gradients, subclasses or tracing."""
    differentiates = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in executors.PLAIN or (differentiates and tensor is not None and tensor.requires_grad):
            return True
    return is_traced()


def reject_jit_trace(what: str = "scans") -> None:
    """Raise under torch.jit.trace, which would record the result as a constant."""
    if _trace() is not None:
        raise NotImplementedError(
            f"{what} cannot be recorded by torch.jit.trace; use torch.compile or torch.export"
        )


def reject_forward_ad(tensors: tuple[Tensor | None, ...], what: str = "scans") -> None:
    """Raise for tensors with a forward derivative, which the operations would drop silently."""
    if not _is_compiling() and forward_ad._current_level >= 0:
        for tensor in tensors:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                operations.refuse_forward(what)


def is_plain_tensor(tensor: Tensor | None) -> bool:
    """Whether this is None or a tensor without a subclass's behaviour."""
    return type(tensor) in executors.PLAIN


def are_in_memory(*tensors: Tensor | None) -> bool:
    """Whether the tensors have addresses, unlike those of the compiler and of transforms."""
    if _is_compiling() or _transform() is not None:
        return False
    return all(is_plain_tensor(tensor) and not (tensor is not None and tensor.is_meta) for tensor in tensors)


def reject_gradients(tensors: dict[str, Tensor | None]) -> None:
    """Raise where one of the tensors of a call with `out` requires a gradient."""
    for name, tensor in tensors.items():
        if requires_autograd((tensor,)):
            raise ValueError(
                f"out: cannot be given while {name} requires grad; use torch.no_grad() or leave it out"
            )


def check_target(
    out: Any, shape: Any, dtype: torch.dtype, device: torch.device, tensors: dict[str, Tensor | None],
    in_place: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Raise unless the result may be written to `out`; of the `tensors` that are read, `in_place` may be `out`."""
    if not isinstance(out, Tensor):
        raise TypeError(f"out: expected a torch.Tensor, got {type(out).__qualname__}")
    refuse_not_dense(out, "out")
    checks.check_output(out, shape, dtype)
    if out.device != device:
        raise ValueError(f"out: is on {out.device}, the input on {device}")
    reject_gradients({"out": out, **tensors})
    if not are_in_memory(out, *tensors.values()):
        return  # the operation allocates its result, which is then copied to `out`
    target = _view(out)
    inputs = [(name, _view(t)) for name, t in tensors.items() if t is not None and not _is_apart(t, out)]
    inputs = [(name, view) for name, view in inputs if not (name in in_place and have_same_memory(view, target))]
    if inputs or not out.is_contiguous():
        scan_problem.check_overlap(target, inputs)


def _view(tensor: Tensor) -> Any:
    """Return a descriptor, for tests that read no memory; numpy may lack bfloat16."""
    return _arrays.view_tensor(tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor, "x")


def _is_apart(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share no memory because one is empty, or both are dense and their addresses differ."""
    n_a, n_b = a.numel(), b.numel()
    if not (n_a and n_b):
        return True
    if not (a.is_contiguous() and b.is_contiguous()):
        return False
    distance = b.data_ptr() - a.data_ptr()
    return distance >= n_a * a.element_size() or -distance >= n_b * b.element_size()
