"""User-defined scans: `upsweep.scan` runs an ordinary Python function of a state and an input along an axis.

The function, the update, is called once with symbolic numbers, and compiled. Operators, comparisons, ``& | ~`` and
numpy's scalar functions work on these: np.where, np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh, np.minimum,
np.maximum, np.clip, np.logaddexp, ...; all of them, and `sigmoid`, are attributes of `scan` too (``scan.where``).
``x.astype(dtype)`` is a cast. The same function runs on numpy arrays, one step at a time, which is what
``upsweep.reference.scan`` does.

This module dispatches by array library; `_user_scan` does the work.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers, refuse_method
from upsweep._compiler.recurrences.symbols import FUNCTIONS, apply
from upsweep._core.user_scan import Explanation
from upsweep._user_scan.aggregates import UpdateCarry, carry_of
from upsweep._user_scan.cached_calls import scan_arrays
from upsweep._user_scan.gradient import Gradients, gradient
from upsweep._user_scan.problem import check, check_callable, check_checkpoint, flatten

__all__ = ["Explanation", "Gradients", "UpdateCarry", "scan"]

Update = Callable[[Any, Any], Any]


class _Scan:
    """The callable `upsweep.scan`, whose attributes are the related functions."""

    def __reduce__(self) -> str:
        return "scan"

    def __call__(
        self, update: Any = None, init: Any = None, xs: Any = None, *, axis: int = 0, reverse: bool = False,
        return_final: bool = False, length: int | None = None, checkpoint: int | None = None,
        method: str | None = None, out: Any = None,
    ) -> Any:  # fmt: skip
        """Scan along an axis by a user-defined update: ``state = update(state, x)``, step by step.

        Parameters
        ----------
        update : callable
            ``update(state, x)`` of symbolic numbers, or of tuples of them if `init` or `xs` are tuples. It returns
            the new state (then the states are the output), or a pair ``(new state, output)``; the output is a
            number, a tuple of numbers or None. It is traced once for each combination of dtypes and of values of
            the variables that it, and the functions it calls, capture. An update that captures mutable objects
            (arrays, lists, attributes) is traced again at every call.
        init : number, array_like or tuple of them
            The state before the first step; broadcasts to the shape of `xs` without `axis`. Python's numbers
            take the dtype of `xs`.
        xs : array_like, tuple of array_like, or None
            The inputs of the steps, broadcast together; None for `length` steps without inputs.
        axis : int
            The axis of the steps, counted after `xs` were broadcast together; if `xs` is None, the axis that the
            outputs have in addition to those of the state.
        reverse : bool
            Run from the end to the start.
        return_final : bool
            Return also the state after the last step.
        length : int, optional
            The number of steps, required if `xs` is None.
        checkpoint : int, optional
            For tensors that require gradients: store the state only before every `checkpoint` steps, as
            ``scan.gradient`` does.
        method : {"sequential", "tree"}, optional
            With dask arrays: how the states before blocks are computed. In sequence (the default), which holds few
            blocks in memory, or by a tree of depth log8(blocks), which waits for all of them. An update that
            cannot be parallel in time runs its blocks in sequence with either method.
        out : array, or tuple of arrays, optional
            Numpy arrays that the outputs are written to, arranged, shaped and typed as `ys`; they may be `xs`
            themselves. This saves new memory, which for many MiB costs as much as the scan. Undefined after a
            KeyboardInterrupt.

        Returns
        -------
        ys : array or tuple of arrays
            The outputs of all steps, of the shape of `xs`; the dtype is that of the update in numpy, but float64
            for integers.
        final : array or tuple of arrays
            Only with `return_final`; arranged as `init`, of the shape of `ys` without `axis`.

        Raises
        ------
        TypeError
            The update branches on a symbolic value, uses an unknown function of one (the message names its line),
            returns no new state, or changes the dtype of the state; an argument is no array of real numbers; `out`
            is not arranged as the outputs, has another dtype, or arguments are not numpy arrays.
        ValueError
            Shapes do not broadcast; `axis` or `length` does not fit; `out` is of another shape, read-only, or
            overlaps an input without being it.

        See Also
        --------
        lfilter, ewm_mean, linear_recurrence

        Notes
        -----
        Without `init`, ``scan`` is a decorator: it returns a function of ``(init, xs)`` with these keywords.

        float16 and float32 are computed in float32, float64 and integers in float64; subnormal numbers count as
        zero. In an update ``x.astype(dtype)`` truncates for integers and is 0 or 1 for bool; to a float dtype, it
        affects dtype promotion and the rounding of results, but not the arithmetic.

        All columns run in parallel, in vectors and on all cores. If they are few, an update that is affine in its
        state (up to 4 states), or a maximum, a minimum, logaddexp or an argmax of it, runs parallel in time;
        ``scan.explain`` says which path a scan takes, and why. The bits of a result do not depend on the number of
        threads.

        Arrays on a CUDA device (torch, cupy, numba) are scanned in place, on the caller's stream, by a kernel that
        NVRTC compiles from the update at the first call. Nothing synchronises, and a CUDA graph can capture later
        calls. Numbers of the host among the arguments become part of the formula. On a device, columns are few
        below 8192, and time is cut from 1024 steps on; the kernels of `linear_recurrence` run
        ``gates * state + tokens``. The path depends on the update and the shape alone.

        Compiled scans are cached with the update, for up to 64 signatures, while the variables that it captures
        keep their values: a later call on arrays of the same shapes, strides and dtypes costs some microseconds
        in addition to its kernels. A lambda in a call is the same update each time.

        ``scan.gradient`` computes derivatives; torch tensors have them by autograd, and under ``torch.func``.
        ``torch.compile`` compiles a scan without a graph break, except with `checkpoint`. There, numbers that an
        update captures are constants of the first call; a number that changes belongs in `xs`, where it
        broadcasts. bfloat16 is computed and rounded as float16 is; complex tensors are refused.

        dask arrays give dask arrays, with the chunks of `xs`. If the update has one of the forms above, blocks run
        at the same time, whatever the number of columns; else in sequence. Blocks on a device stay there.

        Examples
        --------
        >>> import numpy as np
        >>> import upsweep
        >>> upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, [1.0, 1.0, 1.0])
        array([1.  , 1.5 , 1.75])

        In place:

        >>> x = np.ones(3)
        >>> upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, x, out=x) is x
        True

        Holt's level and trend, and the forecast of each step:

        >>> @upsweep.scan
        ... def holt(state, x):
        ...     level, trend = state
        ...     forecast = level + trend
        ...     new = 0.5 * x + 0.5 * forecast
        ...     return (new, 0.9 * trend + 0.1 * (new - level)), forecast
        >>> holt((0.0, 0.0), np.array([1.0, 2.0, 3.0]))
        array([0.    , 0.55  , 1.3975])

        A choice is np.where, since the update is traced:

        >>> upsweep.scan(lambda s, x: np.where(x > 0, s + 1, 0.0), 0.0, np.array([1.0, 2.0, -1.0, 5.0]))
        array([1., 2., 0., 1.])
        """
        if update is None or init is None:
            if xs is not None or (update is not None and not callable(update)):
                raise TypeError("init: is needed, the state before the first step")
            decorate = functools.partial(
                _decorate, axis=axis, reverse=reverse, return_final=return_final, length=length,
                checkpoint=checkpoint, method=method, out=out,
            )  # fmt: skip
            return decorate if update is None else decorate(update)
        states, state_structure = flatten(init, "init")
        inputs, input_structure = flatten(xs, "xs")
        arrays = [*states, *inputs]
        is_lazy = _arrays.any_dask(*arrays)
        if out is not None and (is_lazy or _arrays.any_torch(*arrays) or _arrays.any_on_device(*arrays)):
            raise TypeError("out: goes with numpy arrays only; other libraries' scans make their results")
        if is_lazy:
            check_checkpoint(checkpoint)
            return handlers("dask").user_scan.user_scan(
                update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                method=method,
            )  # fmt: skip
        refuse_method(method)
        as_result = None
        if _arrays.any_torch(*arrays):
            tensors = handlers("torch").user_scan
            views = None if checkpoint is not None else tensors.as_arrays(states, inputs)
            if views is None:
                return tensors.scan(
                    update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                    checkpoint=checkpoint,
                )  # fmt: skip
            (states, inputs), as_result = views, tensors.from_arrays
        check_checkpoint(checkpoint)
        structures = state_structure, input_structure
        result = scan_arrays(update, states, inputs, structures, axis, reverse, return_final, length, out)
        return result if as_result is None else as_result(result)

    def explain(
        self, update: Update, init: Any, xs: Any = None, *, axis: int = 0, reverse: bool = False,
        length: int | None = None,
    ) -> Explanation:  # fmt: skip
        """Say by which path a scan runs, and why.

        Parameters
        ----------
        update, init, xs, axis, reverse, length
            As for `scan`. The update is traced; nothing is compiled or run.

        Returns
        -------
        Explanation
            A pair ``(path, why)``; printed, a sentence.

        Examples
        --------
        >>> import numpy as np
        >>> import upsweep
        >>> print(upsweep.scan.explain(lambda s, x: 0.9 * s + x, 0.0, np.ones(100_000)))
        parallel in time: the update is affine in its state, with constant factors, and columns are few (1)
        >>> print(upsweep.scan.explain(lambda s, x: np.tanh(s + x), 0.0, np.ones(100_000)))
        sequential in time: the new state is neither affine in the state nor a known associative form of it
        """
        arrays = _items(init, xs)
        if _arrays.any_dask(*arrays):
            return handlers("dask").user_scan.explain(update, init, xs, axis=axis, reverse=reverse, length=length)
        if _arrays.any_torch(*arrays):
            return handlers("torch").user_scan.prepare(update, init, xs, axis, reverse, length)[0].path()[1]
        return check(update, init, xs, axis, reverse, length).path()[1]

    def gradient(
        self, update: Update, init: Any, xs: Any, cotangent: Any, *, final_cotangent: Any = None, axis: int = 0,
        reverse: bool = False, length: int | None = None, checkpoint: int | None = None,
    ) -> Gradients:  # fmt: skip
        """Compute the gradient of ``sum(cotangent * ys) + sum(final_cotangent * final)`` by init and xs.

        Parameters
        ----------
        update, init, xs, axis, reverse, length
            As for `scan`.
        cotangent : array_like, tuple of array_like, or None
            Arranged as `ys`, and broadcast to them; None for zeros.
        final_cotangent : array_like, tuple of array_like, or None
            Arranged as `init`, and broadcast to the final state; None for zeros.
        checkpoint : int, optional
            Store the state only before every `checkpoint` steps, and compute the others again from there: memory
            for ``length / checkpoint + checkpoint`` states instead of `length`, for one more pass over time.

        Returns
        -------
        Gradients
            ``(init, xs)``, arranged, shaped and typed as the arguments; float64 for integers and bool.

        Raises
        ------
        TypeError, ValueError
            As `scan`; or a cotangent is not arranged as the result, or does not broadcast to it.

        Notes
        -----
        The gradient of an extreme goes to the first of equal values. A comparison has none.

        Examples
        --------
        >>> import numpy as np
        >>> import upsweep
        >>> upsweep.scan.gradient(lambda s, x: s * x, 1.0, np.array([2.0, 3.0, 5.0]), np.array([0.0, 0.0, 1.0]))
        Gradients(init=array(30.), xs=array([15., 10.,  6.]))
        """
        if _arrays.any_dask(*_items(init, xs, cotangent, final_cotangent)):
            raise TypeError("scan.gradient: takes no dask arrays; call it on blocks, the last one first")
        problem = check(update, init, xs, axis, reverse, length)
        return gradient(problem, cotangent, final_cotangent, checkpoint)

    def carry(self, update: Update, init: Any, xs: Any, *, axis: int = 0, reverse: bool = False) -> UpdateCarry:
        """Compute what a block of steps does to the state before it, for scans of streams and of pieces.

        Parameters
        ----------
        update, xs, axis, reverse
            As for `scan`.
        init : number, array_like or tuple of them
            As for `scan`. Only the number of states and their dtypes are used, not their values.

        Returns
        -------
        UpdateCarry
            Its ``apply(state)`` is the state after the block; `combine` takes the carries of neighbouring blocks.

        Raises
        ------
        ValueError
            The update has no parallel form, as ``scan.explain`` says, so no few numbers describe a block.

        Examples
        --------
        >>> import upsweep
        >>> decay = lambda s, x: 0.5 * s + x
        >>> a, b = (upsweep.scan.carry(decay, 0.0, block) for block in ([1.0, 2.0], [3.0]))
        >>> upsweep.combine(a, b).apply(8.0), upsweep.scan(decay, 8.0, [1.0, 2.0, 3.0])[-1]
        (array(5.25), np.float64(5.25))
        """
        arrays = _items(init, xs)
        if _arrays.any_torch(*arrays) or _arrays.any_dask(*arrays):
            raise TypeError("scan.carry: takes arrays of numpy and cupy; of a dask array its blocks, one by one")
        return carry_of(check(update, init, xs, axis, reverse, None))

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)), of symbols and of arrays; numpy has no such function.

        Examples
        --------
        >>> import numpy as np, upsweep
        >>> upsweep.scan.sigmoid(np.array([0.0, np.inf]))
        array([0.5, 1. ])
        """
        return apply("sigmoid", x)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in FUNCTIONS:
            raise AttributeError(f"scan has no function {name!r}; it has {', '.join(sorted(FUNCTIONS))}")
        return functools.partial(apply, name)


def _items(*arguments: Any) -> list[Any]:
    """The arrays of arguments that may be tuples of them."""
    return [item for value in arguments for item in (value if isinstance(value, tuple) else (value,))]


def _decorate(update: Update, **defaults: Any) -> Callable[..., Any]:
    check_callable(update)

    if _is_global(update):  # the scan has another name, and is pickled as a partial of the update
        bound = functools.partial(scan, update, **defaults)
        return functools.update_wrapper(bound, update)

    @functools.wraps(update)
    def scanned(init: Any, xs: Any = None, **keywords: Any) -> Any:
        return scan(update, init, xs, **{**defaults, **keywords})

    return scanned


def _is_global(update: Update) -> bool:
    """Whether pickle can look the update up by its name, which it cannot while a decorator of the update runs."""
    value: Any = sys.modules.get(getattr(update, "__module__", ""))
    for name in getattr(update, "__qualname__", "").split("."):
        value = getattr(value, name, None)
    return value is update


scan = _Scan()
scan.__doc__ = _Scan.__call__.__doc__
