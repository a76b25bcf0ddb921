"""The public scans for torch tensors: argument rules in torch's terms, then the operation of `ops`.

The operation is skipped, and the backend called at once, when nothing is to be differentiated, compiled,
transformed or watched: registered operations cost several microseconds a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from upsweep import _arrays
from upsweep._backends import cpu
from upsweep._core import checks
from upsweep._core import scan as scan_problem
from upsweep._torch import executors, scan_ops

__all__ = [
    "cumulative_sum",
    "discounted_cumsum",
    "gamma_of_rows",
    "linear_recurrence",
    "refuse_not_dense",
    "scan_forward",
]

Number = (bool, int, float, complex, np.number, np.bool_)
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)


def cumulative_sum(
    x: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, dtype: Any, include_initial: bool,
    exclusive: bool, return_final: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.cumulative_sum` of a tensor; integers and bool give int64, as torch.cumsum's do."""
    if (
        axis == -1 and initial is None and reset is None and dtype is None and not include_initial
        and not exclusive and not return_final and isinstance(x, Tensor) and (out is None or type(out) is Tensor)
        and not needs_dispatcher((x,) if out is None else (x, out))
    ):  # fmt: skip
        y = executors.run_lines(x, None, 1.0, bool(reverse), out)
        if y is not None:
            return y
    scan = prepare_sum(x, dtype, axis, reset, initial)
    if not include_initial:
        return scan.run(out, reverse, exclusive, False, 0, return_final, n_threads)
    if out is not None:
        _check_out(out, scan.longer(1), scan.dtype, scan)
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
    if (
        type(gamma) is float and axis == -1 and initial is None and reset is None and not window and not exclusive
        and not return_final and isinstance(x, Tensor) and (out is None or type(out) is Tensor)
        and not needs_dispatcher((x,) if out is None else (x, out))
    ):  # fmt: skip
        y = executors.run_lines(x, None, gamma, bool(reverse), out)
        if y is not None:
            return y
    scan = prepare_discounted(x, gamma, axis, reset, initial)
    checks.check_window_gamma(window, scan.gates, gamma)
    return scan.run(out, reverse, exclusive, True, window or 0, return_final, n_threads)


def linear_recurrence(
    gates: Any, tokens: Any, initial: Any, reset: Any, out: Any, axis: int, reverse: bool, exclusive: bool,
    return_final: bool, n_threads: int | None,
) -> Any:  # fmt: skip
    """`upsweep.linear_recurrence` of tensors."""
    if (
        axis == -1 and initial is None and reset is None and not exclusive and not return_final
        and isinstance(tokens, Tensor) and isinstance(gates, Tensor) and (out is None or type(out) is Tensor)
        and not needs_dispatcher((tokens, gates) if out is None else (tokens, gates, out))
    ):  # fmt: skip
        y = executors.run_lines(tokens, gates, 0.0, bool(reverse), out)
        if y is not None:
            return y
    scan = prepare_gated(gates, tokens, axis, reset, initial)
    return scan.run(out, reverse, exclusive, True, 0, return_final, n_threads)


def scan_forward(gates: Any, tokens: Any, *, reverse: bool, out: Any) -> Any:
    """`upsweep.scan_forward` of tensors, which tracks no gradients."""
    with torch.no_grad():
        return linear_recurrence(
            gates, tokens, None, None, out, axis=-1, reverse=reverse, exclusive=False, return_final=False,
            n_threads=None,
        )  # fmt: skip


def gamma_of_rows(x: Any, gamma: Any) -> Any:
    """`gamma` as torch-discounted-cumsum takes it: numbers in a list or an array too, one for each row.

    What is no tensor has x's dtype there: who compares with that package, or with a loop over tensors, means that.
    """
    kept = x.dtype if isinstance(x, Tensor) and x.dtype in _ROUNDED else None
    if isinstance(gamma, Number):
        if kept is None or isinstance(gamma, (complex, np.complexfloating)):
            return gamma
        return float(np.float32(gamma)) if kept is torch.float32 else torch.tensor(gamma, dtype=kept).item()
    if not isinstance(gamma, Tensor):
        numbers = _arrays.as_array(gamma, "gamma")
        wide = np.array(numbers, np.complex128 if numbers.dtype.kind == "c" else np.float64)
        gamma = torch.from_numpy(wide).to(x.device)
        if kept is not None and not gamma.is_complex():
            gamma = gamma.to(kept)
    per_row = getattr(x, "ndim", 0) == 2 and tuple(getattr(gamma, "shape", ())) == tuple(x.shape[:1])
    return gamma[:, None] if per_row else gamma


# ---- argument rules ------------------------------------------------------------------------------------------


def prepare_sum(x: Any, dtype: Any, axis: int, reset: Any, initial: Any) -> _Scan:
    """A checked cumulative sum."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype with tensors, got {dtype!r}")
    x = _tensor(x, "x", None)
    integral = not (x.is_floating_point() or x.is_complex())
    wanted = dtype or (torch.int64 if integral else x.dtype)
    check_sum_dtype(wanted, "x", x)
    if x.dtype != wanted and (wanted.is_floating_point or wanted.is_complex) != (not integral):
        x = x.to(wanted)  # each element is cast before it is added
    return _Scan("x", x, None, 1.0, wanted, axis, reset, initial)


def check_sum_dtype(dtype: torch.dtype, name: str, summands: Tensor | None) -> None:
    """Raise unless sums may be of this dtype, and their gradients reach summands that require one."""
    try:
        executors.name_of(dtype)
    except TypeError:
        raise TypeError(f"dtype: expected integers, real or complex numbers, got {dtype}") from None
    differentiable = dtype.is_floating_point or dtype.is_complex
    if summands is not None and summands.requires_grad and not differentiable and torch.is_grad_enabled():
        raise TypeError(f"dtype: sums in {dtype} have no gradient, and {name} requires one; detach() it")


def prepare_discounted(x: Any, gamma: Any, axis: int, reset: Any, initial: Any) -> _Scan:
    """A checked discounted sum."""
    given = _tensor(x, "x", gamma)
    factor: Any = _number(gamma, "gamma") if isinstance(gamma, Number) else _tensor(gamma, "gamma", given)
    dtype = given.dtype if given.is_floating_point() or given.is_complex() else torch.get_default_dtype()
    if _is_complex(factor) and not dtype.is_complex:
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    return _Scan("x", given, "gamma", factor, dtype, axis, reset, initial)


def prepare_gated(gates: Any, tokens: Any, axis: int, reset: Any, initial: Any) -> _Scan:
    """A checked recurrence."""
    if isinstance(tokens, Number):
        tokens = _number(tokens, "tokens")
        factor = _tensor(gates, "gates", None)
        given = _tensor_of(tokens, "tokens", factor.device)
        dtype = _result_dtype(tokens, factor)
    else:
        given = _tensor(tokens, "tokens", gates)
        factor = _number(gates, "gates") if isinstance(gates, Number) else _tensor(gates, "gates", given)
        dtype = _result_dtype(factor, given)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return _Scan("tokens", given, "gates", factor, dtype, axis, reset, initial)


def _number(value: Any, name: str) -> Any:
    """The number as torch takes it: Python's own, whose integers end at 64 bits with a sign."""
    return _arrays.as_number(value.item() if isinstance(value, np.generic) else value, name, limit=2**63)


def _tensor_of(number: Any, name: str, device: torch.device) -> Tensor:
    """The number as a tensor that holds all of it: torch would round it to its default dtype."""
    number = _number(number, name)
    dtype = (
        torch.float64 if isinstance(number, float) else torch.complex128 if isinstance(number, complex) else None
    )
    return torch.full(
        (), number, dtype=dtype, device=device
    )  # written there: a copy would wait, and not be captured


def can_hold(state: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a state of this dtype can take on a number of the other."""
    return dtype.is_complex <= state.is_complex and (
        not dtype.is_floating_point or state.is_floating_point or state.is_complex
    )  # fmt: skip


def _is_complex(value: Any) -> bool:
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, (complex, np.complexfloating))


def _result_dtype(a: Any, b: Tensor) -> torch.dtype:
    """torch.result_type, which the compiler cannot trace, where it is more than promote_types."""
    if isinstance(a, Tensor):
        if a.dtype == b.dtype:
            return b.dtype
        if (a.ndim == 0) == (b.ndim == 0):
            return torch.promote_types(a.dtype, b.dtype)
    elif b.is_complex() or (b.is_floating_point() and not _is_complex(a)):
        return b.dtype
    return torch.result_type(a, b)


def _tensor(value: Any, name: str, other: Any) -> Tensor:
    """The tensor, on the device of `other` if that is one; nothing is moved but a 0-d tensor from the CPU."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: expected a torch.Tensor, as another argument is one, got {_arrays.type_name(value)}"
        )
    refuse_not_dense(value, name)
    try:
        executors.name_of(value.dtype)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    if isinstance(other, Tensor) and other.device != value.device:
        if value.ndim == 0 and value.device.type == "cpu":
            return value.to(other.device)
        if not (other.ndim == 0 and other.device.type == "cpu"):
            raise ValueError(f"{name}: is on {value.device}, another argument on {other.device}")
    return value


def refuse_not_dense(tensor: Tensor, name: str) -> None:
    """Raise for tensors that are sparse or nested."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    if tensor.is_nested:  # may have that layout too, and has no shape then
        raise TypeError(f"{name}: expected a dense tensor, got a nested one")


class _Scan:
    """A checked scan: x, gates and reset of one shape, the others without `axis`."""

    def __init__(
        self, name: str, x: Tensor, factor_name: str | None, factor: Any, dtype: torch.dtype, axis: int,
        reset: Any, initial: Any,
    ) -> None:  # fmt: skip
        named = {name: x}
        if isinstance(factor, Tensor):
            named[factor_name or ""] = factor
        if reset is not None:
            reset = _tensor(reset, "reset", x)
            checks.check_reset(reset.dtype, torch.bool)
            named["reset"] = reset
        shape = x.shape
        if any(t.shape != shape for t in named.values()):  # to broadcast costs as much as all else here
            shape = checks.common_shape(named, torch.broadcast_shapes)
        self.name, self.factor_name, self.shape, self.dtype = name, factor_name or "gamma", shape, dtype
        self.axis = checks.check_scan_axis(axis, shape, name)
        self.x = x if x.shape == shape else x.expand(shape)
        if (dtype.is_floating_point or dtype.is_complex) and x.dtype != dtype and x.requires_grad:
            self.x = self.x.to(dtype)
        self.reset = None if reset is None else reset.expand(shape)
        self.gates: Tensor | None = None
        self.gamma: Tensor | None = None
        self.factor: complex = 1.0
        self.real_factor = not _is_complex(factor)  # gates that are differentiated are made complex if x is
        if isinstance(factor, Tensor):
            self._set_factor(factor)
        elif factor is not None:
            self.factor = factor if isinstance(factor, float) else complex(factor)
        self.initial = None if initial is None else self._as_state(initial)

    def _set_factor(self, factor: Tensor) -> None:
        shape, at = self.shape, self.axis
        if factor.ndim == 0 and not factor.requires_grad and factor.device.type == "cpu" and not is_traced():
            self.factor = complex(factor.item())
            return
        padded = factor.reshape((1,) * (len(shape) - factor.ndim) + tuple(factor.shape))
        # The gradient of a factor that was expanded along the axis has a term for each step all the same.
        repeated = padded.numel() and padded.stride(at) == 0 and not (
            padded.requires_grad and torch.is_grad_enabled()
        )  # fmt: skip
        if padded.shape[at] == 1 or repeated:
            # One number for each line, read once: its dtype may be any.
            self.gamma = padded.expand(shape[:at] + padded.shape[at : at + 1] + shape[at + 1 :]).select(at, 0)
        else:
            self.gates = factor if factor.shape == shape else factor.expand(shape)
            if self.gates.dtype != self.dtype and self.gates.requires_grad:
                self.gates = self.gates.to(self.dtype)

    @property
    def state_shape(self) -> Any:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def longer(self, by: int) -> Any:
        at = self.axis
        return torch.Size((*self.shape[:at], self.shape[at] + by, *self.shape[at + 1 :]))

    def _as_state(self, initial: Any) -> Tensor:
        state = self.state_shape
        if isinstance(initial, Number):
            initial = _tensor_of(initial, "initial", self.x.device)
        initial = _tensor(initial, "initial", self.x)
        checks.check_state("initial", initial, state, self.dtype, can_hold)
        try:
            return initial.expand(state)
        except RuntimeError:
            raise checks.state_shape_error("initial", initial.shape, state) from None

    def run(
        self, out: Any, reverse: bool, exclusive: bool, flush: bool, window: int, return_final: bool,
        n_threads: int | None,
    ) -> Any:  # fmt: skip
        tensors = (self.x, self.gates, self.gamma, self.initial, self.reset)
        reverse, exclusive = bool(reverse), bool(exclusive)
        threads = 0 if n_threads is None else cpu.check_threads(n_threads)
        reject_jit_trace()
        reject_forward_ad(tensors)
        if out is not None:
            _check_out(out, self.shape, self.dtype, self)
        followed = is_traced() or not all(map(is_plain_tensor, (*tensors, out)))
        if not followed and not requires_autograd(tensors):
            y = scan_ops.allocate_out(self.x, self.dtype) if out is None else out
            final = None
            if return_final:
                final = torch.empty(
                    self.state_shape, dtype=executors.state_dtype(self.dtype), device=self.x.device
                )
            factor = self.factor if self.gamma is None else self.gamma
            with torch.no_grad():
                executors.run(
                    self.x, self.gates, factor, self.initial, self.reset, y, final, axis=self.axis,
                    reverse=reverse, exclusive=exclusive, flush=flush, window=window, n_threads=threads or None,
                )  # fmt: skip
            if out is not None:  # so that a backward which saved it notices
                torch.autograd.graph.increment_version(out)
        else:
            operation = scan_ops.scan.form() if followed else scan_ops.scan.eager
            y, final = operation(
                self.x, self.gates, self.gamma, self.factor, self.initial, self.reset, self.axis, reverse, flush,
                window, threads, self.dtype,
            )  # fmt: skip
            if exclusive:
                y = self._entering(y, reverse)
            if out is not None:
                y = out.copy_(y)
        return (y, final) if return_final else y

    def _entering(self, y: Tensor, reverse: bool) -> Tensor:
        """The states before each step, from those after it."""
        before = y.new_zeros(()) if self.initial is None else self.initial
        y = scan_ops._shifted(y, before, self.axis, 1 if reverse else -1) if y.shape[self.axis] else y
        return y if self.reset is None else torch.where(self.reset, 0, y)


# Asked at every call: to look each of them up costs as much as to ask it.
_is_compiling, _is_autocast_enabled = torch.compiler.is_compiling, torch.is_autocast_enabled
_n_dispatch_modes, _n_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transform, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state


def is_traced() -> bool:
    """Whether something besides the usual autograd follows the tensors.

    That is the compiler, a transform, a mode, autocast, a trace, or derivatives taken forward.
    """
    return (
        _is_compiling()
        or forward_ad._current_level >= 0
        or _transform() is not None
        or _n_dispatch_modes() > 0
        or _n_function_modes() > 0
        or _is_autocast_enabled()
        or _trace() is not None
    )


def requires_autograd(tensors: tuple[Tensor | None, ...]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def needs_dispatcher(tensors: tuple[Tensor | None, ...]) -> bool:
    differentiates = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return True
        if differentiates and tensor.requires_grad:
            return True
    return is_traced()


def reject_jit_trace(what: str = "scans") -> None:
    """A trace would keep the result as a constant."""
    if torch._C._get_tracing_state() is not None:
        raise NotImplementedError(
            f"{what} cannot be recorded by torch.jit.trace; use torch.compile or torch.export"
        )


def reject_forward_ad(tensors: tuple[Tensor | None, ...], what: str = "scans") -> None:
    """Derivatives taken forward would be lost without a word: the operation has only the others."""
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        for tensor in tensors:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise NotImplementedError(f"{what} have no derivative taken forward (jvp); take it backward")


def is_plain_tensor(tensor: Tensor | None) -> bool:
    return tensor is None or type(tensor) is Tensor or type(tensor) is torch.nn.Parameter


def _are_in_memory(*tensors: Tensor | None) -> bool:
    """Whether the tensors have addresses: those of the compiler and of transforms have none."""
    return (
        all(map(is_plain_tensor, tensors))
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _check_out(out: Any, shape: Any, dtype: torch.dtype, scan: _Scan) -> None:
    factor = scan.gates if scan.gamma is None else scan.gamma.unsqueeze(scan.axis).expand(scan.shape)
    tensors = {scan.name: scan.x, scan.factor_name: factor, "initial": scan.initial, "reset": scan.reset}
    check_target(out, shape, dtype, scan.x.device, tensors, in_place=(scan.name, scan.factor_name))


def check_target(
    out: Any, shape: Any, dtype: torch.dtype, device: torch.device, tensors: dict[str, Tensor | None],
    in_place: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Raise unless the result may be written to `out`; of the tensors that are read some may be `out` itself."""
    if not isinstance(out, Tensor):
        raise TypeError(f"out: expected a torch.Tensor, got {type(out).__qualname__}")
    refuse_not_dense(out, "out")
    checks.check_output(out, shape, dtype)
    if out.device != device:
        raise ValueError(f"out: is on {out.device}, the input on {device}")
    if torch.is_grad_enabled():
        for name, tensor in {"out": out, **tensors}.items():
            if tensor is not None and tensor.requires_grad:
                raise ValueError(
                    f"out: cannot be given while {name} requires grad; use torch.no_grad() or leave it out"
                )
    if not _are_in_memory(out, *tensors.values()):
        return  # the operation writes a tensor of its own, which is then copied
    inputs = [
        (name, _byte_view(tensor))
        for name, tensor in tensors.items()
        if tensor is not None
        and tensor.numel()
        and out.numel()
        and not (name in in_place and _is_same(tensor, out))
    ]
    if inputs or not out.is_contiguous():
        scan_problem.check_overlap(_byte_view(out), inputs)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride() and a.shape == b.shape
    )  # fmt: skip


class _ByteView:
    """Shape and strides of a tensor for numpy's overlap test, which never reads the memory."""

    def __init__(self, tensor: Tensor) -> None:
        item = tensor.element_size()
        self.__array_interface__ = {
            "version": 3, "data": (tensor.data_ptr(), True), "typestr": f"|V{item}", "shape": tuple(tensor.shape),
            "strides": tuple(stride * item for stride in tensor.stride()),
        }  # fmt: skip


def _byte_view(tensor: Tensor) -> Any:
    return np.asarray(_ByteView(tensor))
