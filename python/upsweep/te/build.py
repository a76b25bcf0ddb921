"""`build`: a schedule as a function of arrays; `lower`: the loop nest that this runs, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upsweep._compiler.loops.expressions import Expr
from upsweep._compiler.loops.statements import nest_text
from upsweep.te.function import Function
from upsweep.te.lowering import lower_for
from upsweep.te.schedule import Schedule
from upsweep.te.tensors import Tensor


class Lowered(str):
    """The text of a loop nest."""

    __slots__ = ()
    __repr__ = str.__str__

    @property
    def text(self) -> str:
        """The text as a plain str."""
        return str(self)


def _device_of(target: Any) -> int | None:
    """The CUDA device of a target; None: the CPU."""
    words = str(target).split()
    kind, _, ordinal = (words[0] if words else "").partition(":")
    if kind == "cuda" and (ordinal or "0").isdecimal():
        return int(ordinal or 0)
    if kind not in ("cpu", "llvm") or ordinal:
        raise ValueError(f'target: expected "cpu", "llvm" or "cuda", got {target!r}')
    return None


def lower(
    schedule: Schedule, args: Sequence[Tensor | Expr], simple_mode: bool = True, target: str = "cpu"
) -> Lowered:
    """The loop nest of a schedule, as `build` compiles it.

    Parameters
    ----------
    schedule : Schedule
        From `create_schedule`. A stage of which nothing was said runs parallel over its first axis and in
        vectors over its last, the steps of a scan in their order.
    args : list of Tensor
        What the function takes, as in `build`.
    simple_mode : bool
        TVM's argument; there is one form.
    target : str
        As in `build`. For "cuda" it is the nest of each kernel, whose threads all walk through it: a loop bound
        to a thread axis is each thread's own step of it. It says where buffers lie and where threads wait.

    Returns
    -------
    Lowered
        Text with ``for``, ``parallel``, ``vectorized`` and ``unrolled`` loops, ``produce``, ``allocate`` and
        ``if``.

    Examples
    --------
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> X = te.placeholder((n,), name="X")
    >>> Y = te.compute((n,), lambda i: te.exp(X[i]), name="Y")
    >>> print(te.lower(te.create_schedule(Y.op), [X, Y]))
    produce Y {
      parallel vectorized (i, 0, n) {
        Y[i] = exp(X[i])
      }
    }
    <BLANKLINE>
    """
    device = _device_of(target)
    lowered = lower_for(schedule, args)
    if device is None:
        return Lowered(nest_text(lowered.body))
    # The compiler for CUDA is imported only where it is used.
    from upsweep._compiler.cuda.loops.program import programs_of, text_of
    from upsweep._compiler.cuda.loops.scan_form import scan_form

    free = set(map(id, lowered.free_axes))
    programs = programs_of(lowered.body, lowered.buffers, lowered.sizes, free, lowered.name)
    return Lowered(text_of(*programs, scan_form(lowered.body, lowered.buffers, free)))


def build(
    schedule: Schedule, args: Sequence[Tensor | Expr], target: str = "cpu", target_host: Any = None,
    name: str = "main",
) -> Function:  # fmt: skip
    """Compile a schedule.

    Parameters
    ----------
    schedule : Schedule
        From `create_schedule`.
    args : list of Tensor or size
        What the function takes, results too; usually these come last. A size may be given by itself.
    target : str
        "cpu" or "llvm", or "cuda"; "cuda:1" for another device than the first.
    target_host : object
        TVM's argument, without effect.
    name : str
        The function's name in messages.

    Returns
    -------
    Function
        For arrays of numpy or torch of any sizes. Compiled code is kept in memory and on the disk. One for "cuda"
        takes arrays of torch, cupy and others on a device, and runs on the current stream; arrays of numpy are
        copied to the device and the results back.

    Raises
    ------
    ValueError
        A placeholder that is not among the arguments; a size that no shape tells; another target. For "cuda": a
        block of more than 1024 threads, a value that one block needs of another, or
        a thread of another where they cannot wait.
    RuntimeError
        For "cuda": there is no device, or no compiler for it; the message says what to install.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> X = te.placeholder((n,), name="X", dtype="float64")
    >>> Y = te.compute((n,), lambda i: X[i] * X[i], name="Y")
    >>> square = te.build(te.create_schedule(Y.op), [X, Y])
    >>> square(np.arange(4.0))
    array([0., 1., 4., 9.])
    >>> out = np.empty(3)
    >>> square(np.ones(3), out)
    >>> out
    array([1., 1., 1.])
    """
    device = _device_of(target)
    lowered = lower_for(schedule, args, name, device)
    if device is None:
        return Function(lowered)
    from upsweep.te.cuda_function import CudaFunction

    return CudaFunction(lowered)
