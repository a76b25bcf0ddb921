"""User-defined scans: `upsweep.scan` runs an ordinary Python function of a state and an input along an axis.

The function, the update, is called once with symbolic numbers, and compiled. Operators, comparisons, ``& | ~``,
functions of numpy, scipy.special and torch, and methods of these names work on them; the docstring of `scan` lists
the functions, which are attributes of `scan` too (``scan.where``). The same function runs on numpy arrays, one
step at a time, which is what ``upsweep.reference.scan`` does.

This module dispatches by array library; `_user_scan` does the work.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Never

from upsweep import _arrays
from upsweep._arrays import Axis
from upsweep._arrays.dispatch import handlers, refuse_method
from upsweep._compiler.formulas import ops
from upsweep._compiler.recurrences.functions import FUNCTIONS, KNOWN, apply, near_function
from upsweep._compiler.recurrences.trace import arranged, structure_of
from upsweep._core.user_scan import Explanation
from upsweep._user_scan.aggregates import UpdateCarry, carry_of
from upsweep._user_scan.cached_calls import scan_arrays
from upsweep._user_scan.gradient import Gradients, gradient
from upsweep._user_scan.problem import (
    check,
    check_callable,
    check_checkpoint,
    flatten,
    input_names,
    label,
    with_reset,
)

__all__ = ["Explanation", "Gradients", "UpdateCarry", "logaddexp", "scan", "sigmoid", "silu", "softplus"]

Update = Callable[[Any, Any], Any]


class _Scan:
    """The callable `upsweep.scan`, whose attributes are the related functions."""

    # `help` shows the signature of what has a name, a signature and `__get__`, and so is a routine to `inspect`.
    __name__ = "scan"
    __signature__: inspect.Signature

    def __reduce__(self) -> str:
        return "scan"

    def __get__(self, instance: object, owner: type | None = None) -> _Scan:
        """As an attribute of a class it is not bound to the instance."""
        return self

    def __call__(
        self, update: Any = None, init: Any = None, xs: Any = None, *, axis: Axis = None, reverse: bool = False,
        reset: Any = None, return_final: bool = False, length: int | None = None, checkpoint: int | None = None,
        method: str | None = None, out: Any = None, **unknown: Never,
    ) -> Any:  # fmt: skip
        """Scan along `axis`, by default the first, by a user-defined update: ``state = update(state, x)``.

        Parameters
        ----------
        update : callable
            ``update(state, x)`` of symbolic numbers, or of tuples of them if `init` or `xs` are tuples; if these
            are namedtuples, so are the arguments, and the results that are arranged as `init`. It returns the new
            state (then the states are the output), or a pair ``(new state, output)``; the output is a number, a
            tuple of numbers or None. It is traced once for each combination of dtypes and of values of the
            variables that it, and the functions it calls, capture. An update that captures mutable objects
            (lists, attributes, arrays of more than 64 KiB) is traced again at every call.
        init : number, array_like or tuple of them
            The state before the first step; broadcasts to the shape of `xs` without `axis`. Python's numbers
            take the dtype of `xs` if that is a float; else an int is int64 (uint64 if `xs` is), a float float64.
            An integer that the update makes a float, or a larger integer, begins as that. Beside `xs` of a float,
            an int below 2**53 (float32: 2**24) is a float, which is exact up to there: begin a counter of more
            steps, or a generator, as np.int64(0) or np.uint64(seed).
        xs : array_like, tuple of array_like, or None
            The inputs of the steps, broadcast together; None for `length` steps without inputs.
        axis : int or str, optional
            The axis of the steps, by default the first, counted after `xs` were broadcast together; if `xs` is
            None, the axis that the outputs have in addition to those of the state. Of a DataArray the name of a
            dimension, needed if there are several.
        reverse : bool
            Run from the end to the start.
        reset : array_like of bool, optional
            Where true, the state entering the step is dropped, as by the other scans: the update gets 0 (False for
            bool) in its place, not `init`, which may be the state after an earlier block. Broadcasts with `xs`.
            Where 0 is not the start, as for a maximum, which starts at -inf, pass the flags in `xs`; see the
            examples.
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
            The outputs of all steps, of the shape of `xs`; the dtype is that of the update in numpy.
        final : array or tuple of arrays
            Only with `return_final`; arranged as `init`, of the shape of `ys` without `axis`.

        Raises
        ------
        TypeError
            The update branches on a symbolic value, uses an unknown function of one (the message names its line),
            returns no new state, or changes the dtype of the state; it draws random numbers, reads a clock, or
            changes what it captures; an argument is no array of real numbers; `out` is not arranged as the
            outputs, has another dtype, or arguments are not numpy arrays; `reset` is not of bool.
        ValueError
            Shapes do not broadcast; `axis` or `length` does not fit; `out` is of another shape, read-only, or
            overlaps an input without being it.

        See Also
        --------
        lfilter, ewm_mean, linear_recurrence

        Notes
        -----
        An update takes these functions of numpy: abs, add, arccos, arccosh, arcsin, arcsinh, arctan, arctan2,
        arctanh, bitwise_and, bitwise_or, bitwise_xor, ceil, clip, copysign, cos, cosh, deg2rad, divide, divmod,
        equal, exp, exp2, expm1, floor, floor_divide, fmax, fmin, fmod, greater, greater_equal, heaviside, hypot,
        invert, isfinite, isinf, isnan, left_shift, less, less_equal, log, log10, log1p, log2, logaddexp,
        logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, nan_to_num, negative,
        not_equal, positive, power, rad2deg, reciprocal, remainder, right_shift, rint, round, select, sign,
        signbit, sin, sinh, sqrt, square, subtract, tan, tanh, trunc, where; and of torch: elu, erf, gelu,
        leaky_relu, lerp, logsigmoid, relu, rsqrt, sigmoid, silu, softplus.

        Other names of them work too (``torch.atan``, ``torch.clamp``, ``np.absolute``, ``scipy.special.expit``),
        and methods (``x.clip(0, 1)``, ``x.tanh()``, ``x.float()``). NaN, infinities and the rounding of halves are
        as in numpy. On the CPU the functions of C are exact to 2 units in the last place; others are made of few
        of them. ``x.astype(dtype)`` is a cast. A captured tensor of one number is a constant.

        Several states are a tuple `s`. ``A @ s`` with an array `A` of at most 64 constants, ``np.dot``, ``np.sum``
        and ``np.stack(s)`` are unrolled, and so are functions of these; the update may return such an array in
        place of a tuple. A captured table (list, tuple or array, at most 256 entries along an axis) is indexed by
        a state or an input that is a whole number, ``table[s]`` or ``table[s, x]``. A negative integer counts from
        the end (if it indexes tables of one length). Any other index that is none of 0, 1, ..., also a float of
        -1, gives NaN (False of a table of bool, the nearest entry of one of integers). The entries become part of
        the code. Those of a list are read again at every call (64 x 64 entries take 0.1 s), those of a tuple once;
        an array of up to 64 KiB is compared.

        Without `init`, ``scan`` is a decorator: it returns a function of ``(init, xs)`` with these keywords.

        float16 and float32 are computed in float32, float64 in float64; subnormal numbers count as zero. In an
        update ``x.astype(dtype)`` truncates for integers and is 0 or 1 for bool; to a float dtype, it affects
        dtype promotion and the rounding of results, but not the arithmetic.

        Integers are exact, and wrap around as numpy's: ``+ - * // % ** & | ^ ~ << >>``, comparisons, np.where,
        np.minimum, np.maximum, np.clip, np.sign and abs. Functions of floats compute them in float64. int64 and
        uint64 together, which numpy makes float64, are refused. Integers have no gradient. Tensors are promoted as
        by torch: an integer takes the dtype of a float. Of bool, as in numpy, ``+`` is or, ``*`` is and, ``~`` is
        not, and ``1 - d`` is an integer.

        All columns run in parallel, in vectors and on all cores. If they are few, an update that is affine in its
        state (up to 4 states, floats or integers of 64 bits), or a maximum, a minimum, logaddexp or an argmax of
        floats, runs parallel in time; ``scan.explain`` says which path a scan takes, and why. The bits of a result
        do not depend on the number of threads.

        Arrays on a CUDA device (torch, cupy, numba) are scanned in place, on the caller's stream, by a kernel that
        NVRTC compiles from the update at the first call. Nothing synchronises, and a CUDA graph can capture later
        calls. Numbers of the host among the arguments become part of the formula. On a device, columns are few
        below 8192, and time is cut from 1024 steps on; the kernels of `linear_recurrence` run
        ``gates * state + tokens``. There, states that do not depend on each other run parallel in time together,
        such as a maximum and a minimum, and so does an argmax that begins again where a flag is true. The path
        depends on the update and the shape alone.

        Compiled scans are cached with the update, for up to 64 signatures, while the variables that it captures
        keep their values: a later call on arrays of the same shapes, strides and dtypes costs some microseconds
        in addition to its kernels. A lambda in a call is the same update each time.

        ``scan.gradient`` computes derivatives; torch tensors have them by autograd, and under ``torch.func``.
        ``torch.compile`` compiles a scan without a graph break, except with `checkpoint`, and where the update
        captures a tensor, an array or a list, or is a method. It compiles again for other values of numbers that
        the update captures, if these are global or of a closure made before; of a number that is a variable of
        the compiled function only with ``dynamic=False``. A number that changes belongs in `xs`, where it
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

        A generator of pseudo-random integers:

        >>> upsweep.scan(lambda s, _: s ^ (s << 13) ^ (s >> 7), np.uint64(1), length=3)
        array([        8193,     67108929, 549822931009], dtype=uint64)

        A rotation, whose state is two numbers:

        >>> turn = np.array([[0.0, -1.0], [1.0, 0.0]])
        >>> upsweep.scan(lambda s, x: turn @ s + x, (1.0, 0.0), np.zeros(3))
        (array([ 0., -1.,  0.]), array([ 1.,  0., -1.]))

        A finite automaton, by its table of next states:

        >>> table = ((0, 1), (2, 1), (0, 2))
        >>> upsweep.scan(lambda s, x: table[s][x], 0.0, np.array([1, 0, 1, 1, 0]))
        array([1., 2., 2., 2., 0.])

        A running maximum that starts again where a flag is true: ``reset=`` would start it again at 0.

        >>> first = np.array([True, False, True, False])
        >>> largest = lambda s, x: np.maximum(np.where(x[1], -np.inf, s), x[0])
        >>> upsweep.scan(largest, -np.inf, (np.array([-1.0, -2.0, -4.0, -3.0]), first))
        array([-1., -1., -4., -3.])

        A choice is np.where, since the update is traced:

        >>> upsweep.scan(lambda s, x: np.where(x > 0, s + 1, 0.0), 0.0, np.array([1.0, 2.0, -1.0, 5.0]))
        array([1., 2., 0., 1.])
        """
        if unknown:
            raise TypeError(_unknown_keyword(next(iter(unknown))))
        if update is None or init is None:
            if xs is not None or (update is not None and not callable(update)):
                raise TypeError("init: is needed, the state before the first step")
            decorate = functools.partial(
                _decorate, axis=axis, reverse=reverse, reset=reset, return_final=return_final, length=length,
                checkpoint=checkpoint, method=method, out=out,
            )  # fmt: skip
            return decorate if update is None else decorate(update)
        states, state_structure = flatten(init, "init")
        inputs, input_structure = flatten(xs, "xs")
        if reset is not None:
            update, xs = with_reset(update, xs, reset)
            inputs, input_structure = flatten(xs, "xs")
        arrays = [*states, *inputs]
        is_torch = _arrays.any_torch(*arrays)
        if not is_torch and _arrays.any_labelled(*arrays):
            handlers("labelled").refuse_out(out)
            return _scan_without_labels(
                update, (states, state_structure), (inputs, input_structure), axis, reverse=reverse,
                return_final=return_final, length=length, checkpoint=checkpoint, method=method,
            )  # fmt: skip
        axis = 0 if axis is None else axis
        is_lazy = _arrays.any_dask(*arrays)
        if out is not None and (is_lazy or is_torch or _arrays.any_on_device(*arrays)):
            raise TypeError("out: goes with numpy arrays only; other libraries' scans make their results")
        if is_lazy:
            check_checkpoint(checkpoint)
            return handlers("dask").user_scan.user_scan(
                update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                method=method,
            )  # fmt: skip
        refuse_method(method)
        as_result = of_integers = None
        if is_torch:
            tensors = handlers("torch").user_scan
            views = None if checkpoint is not None else tensors.as_arrays(states, inputs)
            if views is None:
                return tensors.scan(
                    update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length,
                    checkpoint=checkpoint,
                )  # fmt: skip
            (states, inputs, of_integers), as_result = views, tensors.from_arrays
        check_checkpoint(checkpoint)
        structures = state_structure, input_structure
        result = scan_arrays(
            update, states, inputs, structures, axis, reverse, return_final, length, out, of_integers=of_integers
        )
        return result if as_result is None else as_result(result)

    def explain(
        self, update: Update, init: Any, xs: Any = None, *, axis: int = 0, reverse: bool = False,
        reset: Any = None, length: int | None = None,
    ) -> Explanation:  # fmt: skip
        """Say by which path a scan runs, and why.

        Parameters
        ----------
        update, init, xs, axis, reverse, reset, length
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
        update, xs = with_reset(update, xs, reset)
        arrays = _items(init, xs)
        if _arrays.any_dask(*arrays):
            return handlers("dask").user_scan.explain(update, init, xs, axis=axis, reverse=reverse, length=length)
        if _arrays.any_torch(*arrays):
            return handlers("torch").user_scan.prepare(update, init, xs, axis, reverse, length)[0].path()[1]
        return check(update, init, xs, axis, reverse, length).path()[1]

    def gradient(
        self, update: Update, init: Any, xs: Any, cotangent: Any, *, final_cotangent: Any = None, axis: int = 0,
        reverse: bool = False, reset: Any = None, length: int | None = None, checkpoint: int | None = None,
    ) -> Gradients:  # fmt: skip
        """Compute the gradient of ``sum(cotangent * ys) + sum(final_cotangent * final)`` by init and xs.

        Parameters
        ----------
        update, init, xs, axis, reverse, reset, length
            As for `scan`. `reset` has no gradient.
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
        update, steps = with_reset(update, xs, reset)
        if _arrays.any_dask(*_items(init, steps, cotangent, final_cotangent)):
            raise TypeError("scan.gradient: takes no dask arrays; call it on blocks, the last one first")
        _arrays.refuse_labels(init=init, xs=xs, reset=reset, cotangent=cotangent, final_cotangent=final_cotangent)
        problem = check(update, init, steps, axis, reverse, length)
        result = gradient(problem, cotangent, final_cotangent, checkpoint)
        return result if reset is None else result._replace(xs=arranged(result.xs[:-1], flatten(xs, "xs")[1]))

    def carry(
        self, update: Update, init: Any, xs: Any, *, axis: int = 0, reverse: bool = False, reset: Any = None
    ) -> UpdateCarry:  # fmt: skip
        """Compute what a block of steps does to the state before it, for scans of streams and of pieces.

        Parameters
        ----------
        update, xs, axis, reverse, reset
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
        update, xs = with_reset(update, xs, reset)
        arrays = _items(init, xs)
        if _arrays.any_torch(*arrays) or _arrays.any_dask(*arrays):
            raise TypeError("scan.carry: takes arrays of numpy and cupy; of a dask array its blocks, one by one")
        _arrays.refuse_labels(init=init, xs=xs)
        return carry_of(check(update, init, xs, axis, reverse, None))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in FUNCTIONS:
            raise AttributeError(f"scan has no function {name!r}{near_function(name).rstrip('?')}; {KNOWN}")
        return functools.partial(apply, name)


def _scan_without_labels(update: Update, init: Any, xs: Any, axis: Axis, **keywords: Any) -> Any:
    """Scan the data of labelled arguments, and label outputs and final states."""
    names = [label("init", init[1], n) for n in range(len(init[0]))], input_names(update, xs[1], len(xs[0]))
    states, steps = (dict(zip(own, items)) for own, (items, _) in zip(names, (init, xs)))
    labels = handlers("labelled").without_labels(steps, states, axis, lead=names[1])
    init, xs = (arranged([labels.arrays[n] for n in own], s) for own, (_, s) in zip(names, (init, xs)))
    result = scan(update, init, xs, axis=labels.axis, **keywords)
    if not keywords["return_final"]:
        return _map(labels.steps, result)
    return _map(labels.steps, result[0]), _map(labels.state, result[1])


def _map(function: Callable[[Any], Any], results: Any) -> Any:
    """Call the function on an array, on each of a tuple of them, or on nothing."""
    if isinstance(results, tuple):
        return arranged([*map(function, results)], structure_of(results))
    return None if results is None else function(results)


# What other libraries call the arguments.
_OTHER_NAMES = {
    "dim": "axis", "h0": "init", "initial": "init", "hx": "init", "carry": "init", "input": "xs", "x": "xs",
    "f": "update", "fn": "update", "combine_fn": "update", "func": "update", "fun": "update", "inputs": "xs",
    "elems": "xs", "sequences": "xs", "initializer": "init", "initial_state": "init", "state": "init",
    "outputs_info": "init", "n_steps": "length", "go_backwards": "reverse", "dones": "reset", "resets": "reset",
    "return_state": "return_final", "return_carry": "return_final", "return_last": "return_final",
    "final": "return_final", "output_final_state": "return_final",
}  # fmt: skip


def _unknown_keyword(name: str) -> str:
    other, parameters = _OTHER_NAMES.get(name), [*scan.__signature__.parameters]
    hint = f"; {name} is called {other} here" if other else ops.suggestion(name, parameters, cutoff=0.75)
    return f"scan() got an unexpected keyword argument {name!r}{hint}"


def _call(name: str, *values: Any) -> Any:
    """A function of symbols, arrays or tensors."""
    if _arrays.any_torch(*values):
        torch: Any = sys.modules["torch"]
        return getattr(torch if hasattr(torch, name) else torch.nn.functional, name)(*values)
    return apply(name, *values)


def sigmoid(x: Any) -> Any:
    """Compute the logistic function, ``1 / (1 + exp(-x))``.

    Parameters
    ----------
    x : array_like, tensor, or a number in an update of `scan`
        In an update, ``scipy.special.expit`` and ``torch.sigmoid`` are the same.

    Returns
    -------
    array, tensor or number
        Of the shape and the float dtype of `x`.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.sigmoid(np.array([0.0, np.inf]))
    array([0.5, 1. ])
    >>> upsweep.scan(lambda s, x: s + upsweep.sigmoid(x), 0.0, np.zeros(3))
    array([0.5, 1. , 1.5])
    """
    return _call("sigmoid", x)


def silu(x: Any) -> Any:
    """Compute ``x * sigmoid(x)``, also known as swish.

    Parameters
    ----------
    x : array_like, tensor, or a number in an update of `scan`
        In an update, ``torch.nn.functional.silu`` is the same.

    Returns
    -------
    array, tensor or number
        Of the shape and the float dtype of `x`.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.silu([0.0, 100.0])
    array([  0., 100.])
    """
    return _call("silu", x)


def softplus(x: Any) -> Any:
    """Compute ``log(1 + exp(x))`` without overflow.

    Parameters
    ----------
    x : array_like, tensor, or a number in an update of `scan`
        In an update, ``torch.nn.functional.softplus`` is the same.

    Returns
    -------
    array, tensor or number
        Of the shape and the float dtype of `x`.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.softplus([-1000.0, 1000.0])
    array([   0., 1000.])
    """
    return _call("softplus", x)


def logaddexp(x1: Any, x2: Any) -> Any:
    """Compute ``log(exp(x1) + exp(x2))`` without overflow.

    Parameters
    ----------
    x1, x2 : array_like, tensor, or numbers in an update of `scan`
        In an update, ``np.logaddexp`` and ``torch.logaddexp`` are the same.

    Returns
    -------
    array, tensor or number
        Of the common shape and dtype.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> bool(upsweep.logaddexp(1000.0, 1000.0) == 1000 + np.log(2))
    True
    """
    return _call("logaddexp", x1, x2)


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
scan.__signature__ = inspect.signature(scan.__call__)
