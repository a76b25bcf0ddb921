"""The scan as a registered torch operation, with its derivative.

    y[t] = a[t] * y[t-1] + x[t],    a = gates, or gamma (a tensor without the scan's axis), or a number

The derivative of a scan is a scan the other way: with g the gradient of y,

    gx[t] = g[t] + conj(a[t+1]) * gx[t+1],    ga[t] = gx[t] * conj(y[t-1])

The derivative consists of operations that torch can differentiate, this one among them, which gives derivatives of
every order. A step after a reset, and the first step without an initial state, do not read `a`: its gradient is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from upsweep._torch import executors
from upsweep._torch.operations import Operation, is_batched, unprepared


def allocate_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised result with the layout of x, or in C order where x repeats elements."""
    if 0 in x.stride():
        return torch.empty(x.shape, dtype=dtype, device=x.device)
    return torch.empty_like(x, dtype=dtype)


def _state_shape(x: Tensor, axis: int) -> Any:
    return x.shape[:axis] + x.shape[axis + 1 :]


def _run(
    x: Tensor, gates: Tensor | None, gamma: Tensor | None, factor: complex, initial: Tensor | None,
    reset: Tensor | None, axis: int, reverse: bool, flush: bool, window: int, n_threads: int, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = allocate_out(x, dtype)
    final = torch.empty(_state_shape(x, axis), dtype=executors.state_dtype(dtype), device=x.device)
    executors.run(
        x, gates, factor if gamma is None else gamma, initial, reset, out, None if window else final,
        axis=axis, reverse=reverse, exclusive=False, flush=flush, window=window, n_threads=n_threads or None,
    )  # fmt: skip
    return out, final.zero_() if window else final


def _fake(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    axis, dtype = arguments[5], arguments[-1]
    return allocate_out(x, dtype), x.new_empty(_state_shape(x, axis), dtype=executors.state_dtype(dtype))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, gates, gamma, ctx.factor, initial, reset, *options, _ = inputs
    ctx.options = (*options, x.dtype, x.shape[options[0]])
    window = options[3]
    needs_factor = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    ctx.save_for_backward(gates, gamma, initial, reset, (x if window else output[0]) if needs_factor else None)
    ctx.set_materialize_grads(False)


def shifted(tensor: Tensor, edge: Tensor, axis: int, by: int) -> Tensor:
    """Return tensor[t + by] for by = 1 or -1, with `edge`, which lacks the axis, where t + by is out of range."""
    n = tensor.shape[axis]
    edge = edge.to(tensor.dtype).expand(tensor.shape[:axis] + tensor.shape[axis + 1 :]).unsqueeze(axis)
    if by > 0:
        return torch.cat((tensor.narrow(axis, 1, n - 1), edge), axis)
    return torch.cat((edge, tensor.narrow(axis, 0, n - 1)), axis)


def only(step: int, length: int, axis: int, like: Tensor) -> Tensor:
    """Return flags that are set at one step along `axis`; they broadcast to `like`."""
    return (torch.arange(length, device=like.device) == step).reshape((-1,) + (1,) * (like.ndim - axis - 1))


def _narrowed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gradient in the dtype of its argument: the real part for a real argument."""
    if gradient.is_complex() and not dtype.is_complex:
        gradient = gradient.real
    return gradient.to(dtype)


def factor_terms(
    gx: Tensor, y: Tensor, before: Tensor | None, reset: Tensor | None, axis: int, reverse: bool
) -> Tensor:
    """Return the gradient of each step's factor; `before` is the state before the first step, if there is one.

    Factors that no step reads have a gradient of 0, also where gx is not finite.
    """
    terms = gx * shifted(y, y.new_zeros(()) if before is None else before, axis, 1 if reverse else -1).conj()
    unread, length = reset, gx.shape[axis]
    if before is None:
        at_first = only(length - 1 if reverse else 0, length, axis, gx)
        unread = at_first if reset is None else reset | at_first
    return terms if unread is None else torch.where(unread, 0, terms)


def initial_gradient(
    gx: Tensor, factor: Any, initial: Tensor, reset: Tensor | None, axis: int, reverse: bool
) -> Tensor:
    """Return the gradient of the initial state; `factor` is the conjugated one of the first step."""
    first = gx.shape[axis] - 1 if reverse else 0
    gradient = factor * gx.select(axis, first)
    if reset is not None:
        gradient = torch.where(reset.select(axis, first), 0, gradient)
    return _narrowed(gradient, initial.dtype)


def window_slopes(
    x: Tensor, gamma: Tensor, reset: Tensor | None, axis: int, reverse: bool, window: int, n_threads: int
) -> Tensor:
    """Return the derivative of each window's sum with respect to gamma: the sum of k gamma**(k-1) x[t-k].

    Steps are cut into blocks of `window`. A window is a prefix of its block and a suffix of the one before.
    """
    dtype = executors.state_dtype(torch.promote_types(x.dtype, gamma.dtype))
    n = x.shape[axis]
    window = min(window, n)

    def in_blocks(steps: Tensor) -> Tensor:
        steps = steps.movedim(axis, -1)
        steps = torch.nn.functional.pad(steps.flip(-1) if reverse else steps, (0, -n % window))
        return steps.unflatten(-1, (-1, window))

    x, last = in_blocks(x.to(dtype)), x.ndim
    reset = None if reset is None else in_blocks(reset)
    factors = gamma.to(dtype).unsqueeze(-1)
    zero = x.new_zeros(())

    def scanned(steps: Tensor, reset: Tensor | None = None) -> Tensor:
        of_blocks = factors.expand(steps.shape[:-1])
        result: Tensor = scan.form()(
            steps, None, of_blocks, 0.0, None, reset, steps.ndim - 1, False, False, 0, n_threads, dtype
        )[0]  # fmt: skip
        return result

    before = shifted(scanned(x, reset), zero, last, -1)
    slopes = scanned(before if reset is None else torch.where(reset, 0, before), reset)

    # gamma**k and k gamma**(k-1) for k < window, by scans: torch's complex 0**0 is NaN.
    powers = scanned(only(0, window, factors.ndim, factors.unsqueeze(-1)).to(dtype).expand(*factors.shape, window))
    derived = scanned(shifted(powers, zero, factors.ndim, -1))
    old = shifted(x, zero, last - 1, -1)
    if reset is not None:
        seen = reset.cumsum(-1)
        old = torch.where(shifted(seen[..., -1:] > seen, reset.new_zeros(()), last - 1, -1), 0, old)

    def suffixes(steps: Tensor) -> Tensor:
        return shifted(steps.flip(-1).cumsum(-1).flip(-1), zero, last, 1)

    def ahead(of_powers: Tensor) -> Tensor:
        return shifted(of_powers, zero, factors.ndim, 1)

    old_sums = suffixes(old * powers.flip(-1))
    # The last step of the block before has k = 0 there: without it, so that an infinity times 0 makes no NaN.
    old_slopes = suffixes(torch.where(only(window - 1, window, last, old), 0, old) * derived.flip(-1))
    more = ahead(derived) * old_sums + ahead(powers) * old_slopes
    slopes = slopes + (more if reset is None else torch.where(seen > 0, 0, more))
    slopes = slopes.flatten(-2).narrow(-1, 0, n)
    return (slopes.flip(-1) if reverse else slopes).movedim(-1, axis)


def _backward(ctx: Any, g: Tensor | None, g_final: Tensor | None) -> tuple[Any, ...]:
    gates, gamma, initial, reset, y = ctx.saved_tensors  # with a window x in place of y
    axis, reverse, flush, window, n_threads, x_dtype, length = ctx.options
    if g is None and (g_final is None or window):
        return ()
    needs_x, needs_gates, needs_gamma, _, needs_initial = ctx.needs_input_grad[:5]
    ahead = -1 if reverse else 1  # the next step in scan order
    if g is None:
        assert g_final is not None
        # The loss depends on the final state only: the gradient of y is zero.
        shape = (*g_final.shape[:axis], length, *g_final.shape[axis:])
        g = g_final.new_zeros(shape)
    length = g.shape[axis]
    if length == 0:
        g_gamma = torch.zeros_like(gamma) if needs_gamma else None
        g_initial = g_final if needs_initial and g_final is not None else None
        return (g if needs_x else None, g if needs_gates else None, g_gamma, None, g_initial)
    last, first = (0, length - 1) if reverse else (length - 1, 0)
    if g_final is not None and not window:
        g = g + torch.where(only(last, length, axis, g), g_final.to(g.dtype).unsqueeze(axis), 0)

    if not window and _needs_no_graph(gates, g, x_dtype):
        return _gradients_without_copies(ctx, g, gates, initial, reset, y)

    # gx is the scan in the other direction.
    if (
        not torch.compiler.is_compiling() and gates is None and gamma is None and reset is None and not window
        and type(ctx.factor) is float and g.is_cuda and g.dtype == x_dtype and not needs_initial
    ):  # fmt: skip
        gx = executors.calls.scan_plain(g.contiguous(), None, ctx.factor, axis, not reverse, flush, None, None)
        if gx is not None:
            return (gx,)
    next_gates = None if gates is None else shifted(gates, gates.new_ones(()), axis, ahead).conj()
    next_reset = None if reset is None else shifted(reset, reset.new_zeros(()), axis, ahead)
    back_gamma = None if gamma is None else gamma.conj()
    gx, _ = scan.form()(
        g, next_gates, back_gamma, complex(ctx.factor).conjugate(), None, next_reset, axis, not reverse, flush,
        window, n_threads, g.dtype,
    )  # fmt: skip
    g_gates = g_gamma = g_initial = None
    if needs_gates or needs_gamma:
        if window:
            terms = g * window_slopes(y, gamma, reset, axis, reverse, window, n_threads).conj()
        else:
            terms = factor_terms(gx, y, initial, reset, axis, reverse)
        if needs_gates:
            g_gates = _narrowed(terms, gates.dtype)
        else:
            g_gamma = _narrowed(terms.sum(axis, dtype=executors.state_dtype(terms.dtype)), gamma.dtype)
    if needs_initial:
        if gates is not None:
            factor = gates.select(axis, first).conj()
        elif gamma is not None:
            factor = gamma.conj()
        else:
            number = complex(ctx.factor).conjugate()
            factor = number if number.imag else number.real
        g_initial = initial_gradient(gx, factor, initial, reset, axis, reverse)
    g_x = _narrowed(gx, x_dtype) if needs_x else None
    return (g_x, g_gates, g_gamma, None, g_initial)


def _needs_no_graph(gates: Tensor | None, g: Tensor, x_dtype: torch.dtype) -> bool:
    """Whether the gradients of gates need no graph: they are not differentiated, compiled or transformed."""
    return (
        gates is not None and gates.dtype == g.dtype == x_dtype and not g.is_complex()
        and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        and type(g) is Tensor and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0 and not (is_batched(g) or g.is_meta)
    )  # fmt: skip


def _gradients_without_copies(
    ctx: Any, g: Tensor, gates: Tensor, initial: Tensor | None, reset: Tensor | None, y: Tensor | None
) -> tuple[Any, ...]:
    """Return the gradients of `_backward` from views that begin a step later, instead of from shifted copies."""
    axis, reverse, flush, _, n_threads, _, n = ctx.options
    last, first = (0, n - 1) if reverse else (n - 1, 0)
    # Steps but the last in scan order, and steps but the first.
    front, back = (1, 0) if reverse else (0, 1)

    def but_last(tensor: Tensor) -> Tensor:
        return tensor.narrow(axis, front, n - 1)

    def but_first(tensor: Tensor) -> Tensor:
        return tensor.narrow(axis, back, n - 1)

    g = g.contiguous() if 0 in g.stride() else g
    needs_x, needs_gates = ctx.needs_input_grad[:2]
    if needs_x and needs_gates and y is not None and initial is None and reset is None and axis == g.ndim - 1:
        fused = executors.run_lines_backward(g, gates, y, reverse)
        if fused is not None:
            return fused
    gx = torch.empty_like(g)
    gx.select(axis, last).copy_(g.select(axis, last))
    if n > 1:
        executors.run(
            but_last(g), but_first(gates), None, g.select(axis, last), None if reset is None else but_first(reset),
            but_last(gx), None, axis=axis, reverse=not reverse, exclusive=False, flush=flush,
            n_threads=n_threads or None,
        )  # fmt: skip
    g_gates = g_initial = None
    if ctx.needs_input_grad[1]:
        assert y is not None
        g_gates = torch.empty_like(gx)
        torch.mul(but_first(gx), but_last(y), out=but_first(g_gates))
        at_first = g_gates.select(axis, first)
        at_first.zero_() if initial is None else at_first.copy_(gx.select(axis, first) * initial)
        if reset is not None:
            g_gates.masked_fill_(reset, 0)
    if ctx.needs_input_grad[4]:
        assert initial is not None
        g_initial = gates.select(axis, first) * gx.select(axis, first)
        if reset is not None:
            g_initial.masked_fill_(reset.select(axis, first), 0)
        g_initial = g_initial.to(initial.dtype)
    return (gx if ctx.needs_input_grad[0] else None, g_gates, None, None, g_initial)


# ---- derivatives of plain scans, which skip the operation ------------------------------------------------------


class _Context(NamedTuple):
    """What `_backward` reads of autograd's context."""

    saved_tensors: tuple[Tensor | None, ...]
    options: tuple[Any, ...]
    factor: float
    needs_input_grad: tuple[bool, ...]


# A result comes in a tuple, as an argument that is returned is copied. Without gates nothing is saved: to save
# Nones takes as long as to save tensors.
def _record_number(ctx: Any, x: Tensor, options: Any, result: tuple[Tensor]) -> Tensor:
    ctx.options = options
    return result[0]


def _number_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    factor, axis, reverse, flush = ctx.options
    gx = None
    if not torch.compiler.is_compiling():
        gx = executors.calls.scan_plain(g.contiguous(), None, factor, axis, not reverse, flush, None, None)
    if gx is None:
        gx = _backward(_context(g, None, None, (True, False), *ctx.options), g, None)[0]
    return gx, None, None


def _record_gates(ctx: Any, x: Tensor, gates: Tensor, options: Any, result: tuple[Tensor]) -> Tensor:
    ctx.options = options
    ctx.save_for_backward(gates, result[0] if ctx.needs_input_grad[1] else None)
    return result[0]


def _gates_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    gates, y = ctx.saved_tensors
    context = _context(g, gates, y, ctx.needs_input_grad[:2], 0.0, *ctx.options)
    gx, g_gates, *_ = _backward(context, g, None)
    return gx, g_gates, None, None


def _context(
    g: Tensor, gates: Tensor | None, y: Tensor | None, needs: tuple[bool, ...], factor: float, axis: int,
    reverse: bool, flush: bool,
) -> _Context:  # fmt: skip
    options = (axis, reverse, flush, 0, 0, g.dtype, g.shape[axis])
    return _Context((gates, None, None, None, y), options, factor, (*needs, False, False, False))


_of_number, _of_gates = unprepared(_record_number, _number_backward), unprepared(_record_gates, _gates_backward)


def record_plain(
    y: Tensor, x: Tensor, gates: Tensor | None, gamma: float, axis: int, reverse: bool, flush: bool
) -> Tensor:
    """Return `y`, the scan of plain tensors of one dtype without an initial state, with its derivative."""
    result: Tensor = (
        _of_number(x, (gamma, axis, reverse, flush), (y,))
        if gates is None
        else _of_gates(x, gates, (axis, reverse, flush), (y,))
    )
    return result


scan = Operation(
    "scan(Tensor x, Tensor? gates, Tensor? gamma, complex factor, Tensor? initial, Tensor? reset, int axis, "
    "bool reverse, bool flush, int window, int n_threads, ScalarType dtype) -> (Tensor, Tensor)",
    _run, _fake, _save, _backward, out_dims=(0, 0),
)  # fmt: skip
