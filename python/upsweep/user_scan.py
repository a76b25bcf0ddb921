"""Scans by a user's own update: an ordinary Python function of a state and an input, traced once and compiled.

The update is called with symbolic numbers. Operators, comparisons, ``& | ~`` and numpy's functions of numbers
work on them: np.where, np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh, np.minimum, np.maximum, np.clip,
np.logaddexp, ...; all of them, and `sigmoid`, are attributes of `scan` too (``scan.where``). ``x.astype(dtype)``
is a cast. So the same function runs on numpy arrays, one step at a time, which is what ``upsweep.reference.scan``
does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._compiler.recurrences.symbols import FUNCTIONS, apply
from upsweep._user_scan.aggregates import UpdateCarry, carry_of
from upsweep._user_scan.cached_calls import known_plans, prepare, run_on_device, signature
from upsweep._user_scan.gradient import Gradients, gradient
from upsweep._user_scan.outputs import as_targets, in_scan_order
from upsweep._user_scan.problem import (
    Explanation,
    Problem,
    arranged,
    check,
    check_checkpoint,
    flatten,
    in_place,
    rounded,
    run_recurrence,
)

__all__ = ["Explanation", "Gradients", "UpdateCarry", "scan"]

Update = Callable[[Any, Any], Any]


class _Scan:
    """`scan`, and what belongs to it."""

    def __reduce__(self) -> str:
        return "scan"

    def __call__(
        self,
        update: Any = None,
        init: Any = None,
        xs: Any = None,
        *,
        axis: int = 0,
        reverse: bool = False,
        return_final: bool = False,
        length: int | None = None,
        checkpoint: int | None = None,
        method: str | None = None,
        out: Any = None,
    ) -> Any:
        """Scan along an axis by an update of one's own: ``state = update(state, x)``, step by step.

        Parameters
        ----------
        update : callable
            ``update(state, x)`` of symbolic numbers, or tuples of them as `init` and `xs` are. It returns the new
            state (then the states are the output), or a pair ``(new state, output)``; the output is a number, a
            tuple of numbers or None. It is traced once for each signature: the dtypes, and the numbers that it
            and the functions it calls take from around them. One that takes what can change without a sign, an
            array, a list, an object's attributes, is traced at each call.
        init : number, array_like or tuple of them
            The state before the first step; broadcasts to the shape of `xs` without `axis`. Python's own
            numbers take the dtype of `xs`.
        xs : array_like, tuple of array_like, or None
            What the steps read, broadcast together; None: nothing, for `length` steps.
        axis : int
            The axis that the scan runs along, counted after `xs` were broadcast together; where `xs` is None,
            the axis that outputs have in addition to the state's.
        reverse : bool
            Run from the end to the start.
        return_final : bool
            Return also the state after the last step.
        length : int, optional
            The number of steps, needed where `xs` is None.
        checkpoint : int, optional
            Of tensors that are to be differentiated: keep the state only before every so many steps, as
            ``scan.gradient`` does.
        method : {"sequential", "tree"}, optional
            With dask arrays: how the states before blocks are found. One after the other (the default), which
            keeps few blocks in memory, or by a tree of a depth of log8(blocks), which waits for all of them. An
            update that cannot be parallel in time runs one block after the other, whichever is given.
        out : array, or tuple of arrays as the outputs are, optional
            Where the outputs go, of ys' shape and dtype; may be one of `xs`, element for element. It saves what
            new memory costs, which of many MiB is as much as the scan. Undefined after a KeyboardInterrupt. numpy
            arrays only.

        Returns
        -------
        ys : array or tuple of arrays
            The outputs of all steps, of the shape of `xs`; the dtype is what numpy would give for the update, but
            float64 for integers.
        final : array or tuple of arrays
            Only with `return_final`; as `init`, of ys' shape without `axis`.

        Raises
        ------
        TypeError
            The update branches on a symbolic value, uses what is not known for one (its line is named), returns
            something else, or changes the dtype of the state; an argument is no array of real numbers; `out` is
            not arranged as the outputs, is of another dtype, or there are others than numpy arrays.
        ValueError
            Shapes do not broadcast; `axis` or `length` does not fit; `out` is of another shape, read-only, or
            overlaps an input without being it.

        See Also
        --------
        lfilter, ewm_mean, linear_recurrence

        Notes
        -----
        Without `init`, ``scan`` is a decorator: the function becomes one of ``(init, xs)``, with these keywords.

        float16 and float32 are calculated in float32 and float64 in float64, integers as float64; numbers below
        the smallest normal one count as zero. In an update ``x.astype(dtype)`` truncates for integers, is 0 or 1
        for bool, and tells of a float only as what it counts and is written.

        All columns run side by side, in vectors and on all cores. Where they are few, an update that is affine in
        its state (up to 4 states), or a maximum, a minimum, logaddexp or an argmax of it, runs parallel in time;
        ``scan.explain`` says which way is taken, and why. The bits of a result do not depend on the number of
        threads.

        Arrays of a CUDA device (torch's, cupy's, numba's) are scanned where they are, on the caller's stream, by a
        kernel that NVIDIA's run-time compiler makes of the update at the first call; nothing waits, and a CUDA
        graph can capture later calls. Numbers of the host beside them become part of the formula. There, columns
        are few below 8192, and time is cut from 1024 steps on; ``gates * state + tokens`` of plain arrays is run
        by the kernels of `linear_recurrence`. Which way is taken follows from the update and the shape alone.

        What the first call finds out is kept with the update, for up to 64 kinds of calls, as long as it takes the
        same from around it: a later call on arrays of the same shapes, strides and dtypes costs some microseconds
        beside its kernels. A lambda in a call is the same update each time.

        ``scan.gradient`` has the derivatives; torch tensors have them by autograd, and under ``torch.func``.
        ``torch.compile`` takes a scan whole, but for `checkpoint`. There the numbers that an update takes from
        around it are those of the first time; one that changes belongs among `xs`, where it broadcasts. bfloat16
        is calculated and rounded as float16 is; complex tensors are refused.

        dask arrays give dask arrays, with the chunks of `xs`. Where the update has one of the forms above, blocks
        run at the same time, whatever the number of columns; else one after the other. Blocks of cupy's stay where
        they are.

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
            keywords = {
                "axis": axis, "reverse": reverse, "return_final": return_final, "length": length,
                "checkpoint": checkpoint, "method": method, "out": out,
            }  # fmt: skip
            return _decorator(keywords) if update is None else _decorator(keywords)(update)
        states, state_structure = flatten(init, "init")
        inputs, input_structure = flatten(xs, "xs")
        arrays = [*states, *inputs]
        is_lazy = _arrays.any_dask(*arrays)
        if out is not None and (is_lazy or _arrays.any_torch(*arrays) or _arrays.any_on_device(*arrays)):
            raise TypeError("out: goes with numpy arrays only; other libraries' scans make their results")
        if is_lazy:
            check_checkpoint(checkpoint)
            return handlers("dask").user_scan(
                update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                method=method,
            )  # fmt: skip
        if method is not None:
            raise ValueError(f"method: goes with dask arrays only, got {method!r}")
        deliver = None
        if _arrays.any_torch(*arrays):
            tensors = handlers("torch").user_scan
            views = None if checkpoint is not None else tensors.as_arrays(states, inputs)
            if views is None:
                return tensors.scan(
                    update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                    checkpoint=checkpoint,
                )  # fmt: skip
            (states, inputs), deliver = views, tensors.from_arrays
        check_checkpoint(checkpoint)
        structures = state_structure, input_structure
        result = _scan_arrays(update, states, inputs, structures, axis, reverse, return_final, length, out)
        return result if deliver is None else deliver(result)

    def explain(
        self, update: Update, init: Any, xs: Any = None, *, axis: int = 0, reverse: bool = False,
        length: int | None = None,
    ) -> Explanation:  # fmt: skip
        """Say which way a scan takes, and why.

        Parameters
        ----------
        update, init, xs, axis, reverse, length
            As for `scan`. Nothing is compiled or run.

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
        if _any_dask(init, xs):
            return handlers("dask").explain(update, init, xs, axis=axis, reverse=reverse, length=length)
        if _arrays.any_torch(*flatten(init, "init")[0], *flatten(xs, "xs")[0]):
            return handlers("torch").user_scan.prepare(update, init, xs, axis, reverse, length)[0].path()[1]
        return check(update, init, xs, axis, reverse, length).path()[1]

    def gradient(
        self, update: Update, init: Any, xs: Any, cotangent: Any, *, final_cotangent: Any = None, axis: int = 0,
        reverse: bool = False, length: int | None = None, checkpoint: int | None = None,
    ) -> Gradients:  # fmt: skip
        """The gradient of ``sum(cotangent * ys)``, and of ``sum(final_cotangent * final)``, by init and xs.

        Parameters
        ----------
        update, init, xs, axis, reverse, length
            As for `scan`.
        cotangent : array_like, tuple of array_like, or None
            Arranged as ys, and broadcast to them; None: only the final state counts.
        final_cotangent : array_like, tuple of array_like, or None
            Arranged as init, and broadcast to the final state.
        checkpoint : int, optional
            Keep the state only before every so many steps, and compute the others again from there: memory for
            ``length / checkpoint + checkpoint`` states, not for `length`, and one more run over time.

        Returns
        -------
        Gradients
            ``(init, xs)``, arranged, shaped and typed as these were given; of integers and bool in float64.

        Notes
        -----
        Between equal values, the gradient of an extreme goes to the first of them. A comparison has none.

        Examples
        --------
        >>> import numpy as np
        >>> import upsweep
        >>> upsweep.scan.gradient(lambda s, x: s * x, 1.0, np.array([2.0, 3.0, 5.0]), np.array([0.0, 0.0, 1.0]))
        Gradients(init=array(30.), xs=array([15., 10.,  6.]))
        """
        if _any_dask(init, xs, cotangent, final_cotangent):
            raise TypeError("scan.gradient: takes no dask arrays; call it on blocks, the last one first")
        problem = check(update, init, xs, axis, reverse, length)
        return gradient(problem, cotangent, final_cotangent, checkpoint)

    def carry(self, update: Update, init: Any, xs: Any, *, axis: int = 0, reverse: bool = False) -> UpdateCarry:
        """What a block of a scan does to the state before it: for streams, and scans in pieces.

        Parameters
        ----------
        update, xs, axis, reverse
            As for `scan`.
        init : number, array_like or tuple of them
            As for `scan`; it tells how many states there are and their dtypes, not what they are.

        Returns
        -------
        UpdateCarry
            Its ``apply(state)`` is the state after the block; `combine` says what two neighbouring blocks do.

        Raises
        ------
        ValueError
            The update has no parallel form, as ``scan.explain`` says: what it does is no few numbers.

        Examples
        --------
        >>> import upsweep
        >>> decay = lambda s, x: 0.5 * s + x
        >>> a, b = (upsweep.scan.carry(decay, 0.0, block) for block in ([1.0, 2.0], [3.0]))
        >>> upsweep.combine(a, b).apply(8.0), upsweep.scan(decay, 8.0, [1.0, 2.0, 3.0])[-1]
        (array(5.25), np.float64(5.25))
        """
        arrays = [*flatten(init, "init")[0], *flatten(xs, "xs")[0]]
        if _arrays.any_torch(*arrays) or _arrays.any_dask(*arrays):
            raise TypeError("scan.carry: takes arrays of numpy and cupy; of a dask array its blocks, one by one")
        return carry_of(check(update, init, xs, axis, reverse, None))

    # What an update can use, by numpy's names; sigmoid is not among those.
    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)), of symbols and of arrays."""
        return apply("sigmoid", x)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in FUNCTIONS:
            raise AttributeError(f"scan has no function {name!r}; it has {', '.join(sorted(FUNCTIONS))}")
        return functools.partial(apply, name)


def _scan_arrays(
    update: Any, states: list[Any], inputs: list[Any], structures: Any, axis: Any, reverse: Any,
    return_final: Any, length: Any, out: Any,
) -> Any:  # fmt: skip
    """A scan of arrays that are no tensors, by what an earlier call has found out if there was one like it."""
    known = known_plans.here(update) if callable(update) else None
    key = None
    if known is not None:
        key = signature(states, inputs, structures, axis, reverse, return_final, length, out)
    plan = None if known is None or key is None else known.get(key)
    if plan is not None:
        result = plan.run(states, inputs, out)
        if result is not NotImplemented:
            return result
    init, xs = (arranged(each, structure) for each, structure in zip((states, inputs), structures, strict=True))
    problem = check(update, init, xs, axis, reverse, length)
    if plan is None and known is not None and key is not None:
        plan = prepare(problem, return_final, out)
        if plan is not None:
            known.keep(key, plan)
            result = plan.run(states, inputs, out)
            if result is not NotImplemented:
                return result
    return _run_checked(problem, return_final, out)


def _run_checked(problem: Problem, return_final: bool, out: Any) -> Any:
    """The result of a checked call of which no plan can be kept."""
    traced = problem.traced
    if problem.placement is not None:
        return run_on_device(problem, return_final)
    outputs, final = run_recurrence(
        traced.recurrence, traced.dtype, problem.inputs, problem.states, problem.length, problem.columns,
        problem.axis, targets=in_scan_order([] if out is None else as_targets(out, problem), problem),
    )  # fmt: skip
    ys = [in_place(y, problem.axis, problem.reverse, dtype) for y, dtype in zip(outputs, traced.output_dtypes)]
    result = out if out is not None else arranged(ys, traced.output_structure)
    if not return_final:
        return result
    last = [rounded(array, dtype) for array, dtype in zip(final, traced.state_dtypes)]
    return result, arranged(last, problem.state_structure)


def _any_dask(*arguments: Any) -> bool:
    items = [value if isinstance(value, tuple) else (value,) for value in arguments]
    return _arrays.any_dask(*(item for each in items for item in each))


def _decorator(defaults: dict[str, Any]) -> Callable[[Update], Callable[..., Any]]:
    def decorate(update: Update) -> Callable[..., Any]:
        if not callable(update):
            raise TypeError(
                f"update: expected a function of a state and an input, got {type(update).__qualname__}"
            )

        if _is_global(update):  # under another name than its scan, which is therefore pickled by it
            bound = functools.partial(scan, update, **defaults)
            return functools.update_wrapper(bound, update)

        @functools.wraps(update)
        def scanned(init: Any, xs: Any = None, **keywords: Any) -> Any:
            return scan(update, init, xs, **{**defaults, **keywords})

        return scanned

    return decorate


def _is_global(update: Update) -> bool:
    """Whether pickle finds the update by its name, which it does not while a decorator of it runs."""
    found: Any = sys.modules.get(getattr(update, "__module__", ""))
    for name in getattr(update, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is update


scan = _Scan()
scan.__doc__ = _Scan.__call__.__doc__
