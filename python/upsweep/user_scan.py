"""Scans by a user's own update: an ordinary Python function of a state and an input, traced once and compiled.

The update is called with symbolic numbers. Operators, comparisons, ``& | ~`` and numpy's functions of numbers work on them:
np.where, np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh, np.minimum, np.maximum, np.clip, np.logaddexp, ...; all of them,
and `sigmoid`, are attributes of `scan` too (``scan.where``). So the same function runs on numpy arrays, one step at a time,
which is what ``upsweep.reference.scan`` does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from upsweep import _arrays, _dispatch
from upsweep._arrays import Array
from upsweep._expr.adjoint import adjoint
from upsweep._expr.parallel_forms import Form, find_form
from upsweep._expr.recurrence import Recurrence, state
from upsweep._expr.symbols import apply
from upsweep._expr.trace import Structure, Traced, Traces

__all__ = ["Explanation", "Gradients", "scan"]

Update = Callable[[Any, Any], Any]

_FEW_COLUMNS = 8
_LONG = 4096  # steps

_traces = Traces()
_forms: dict[Recurrence, tuple[Form | None, str]] = {}


class Explanation(NamedTuple):
    """How a scan runs: `path` is "parallel in time" or "sequential in time"."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Gradients(NamedTuple):
    """Gradients as `scan.gradient` returns them, arranged as init and xs were given."""

    init: Any
    xs: Any


@dataclass
class Problem:
    """A checked call: arrays with time on the first axis, in the scan's order."""

    traced: Traced
    inputs: list[Array]  # of the shape (time, *columns)
    given: list[Array]  # as the user gave them
    states: list[Array]  # of the shape columns
    initial: list[Array]  # as the user gave them
    state_structure: Structure
    input_structure: Structure
    axis: int
    reverse: bool
    length: int
    columns: tuple[int, ...]


def _flatten(value: Any, name: str) -> tuple[list[Any], Structure]:
    if value is None:
        return [], None
    if not isinstance(value, tuple):
        return [value], -1
    for place, item in enumerate(value):
        if item is None or isinstance(item, tuple):
            raise TypeError(f"{name}: element {place} of the tuple has to be an array or a number, not {item!r}")
    return list(value), len(value)


def _arranged(items: list[Any], structure: Structure) -> Any:
    if structure is None:
        return None
    return items[0] if structure == -1 else tuple(items)


def _label(name: str, structure: Structure, place: int) -> str:
    return name if structure == -1 else f"{name}[{place}]"


def _real(value: Any, name: str) -> Array:
    array = _arrays.as_operand(value, name)
    if isinstance(array, _arrays.OnDevice):
        raise TypeError(f"{name}: is on a device; user-defined scans run on the CPU so far: copy it there explicitly")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise TypeError(f"{name}: expected at most 64 bits, got dtype {array.dtype}")
    return array


def _own_dtype(array: Array) -> np.dtype[Any]:
    """What a number of an array is calculated as: integers are float64."""
    return np.dtype(np.float64) if array.dtype.kind in "iu" else array.dtype.newbyteorder("=")


def check(update: Update, init: Any, xs: Any, axis: Any, reverse: Any, length: Any) -> Problem:
    """The call with its arrays broadcast together; what does not fit is refused by name."""
    if not callable(update):
        raise TypeError(f"update: expected a function of a state and an input, got {type(update).__qualname__}")
    raw_states, state_structure = _flatten(init, "init")
    if not raw_states:
        raise TypeError("init: expected a number, an array or a tuple of them, got None or ()")
    raw_inputs, input_structure = _flatten(xs, "xs")
    given = [_real(x, _label("xs", input_structure, n)) for n, x in enumerate(raw_inputs)]
    initial = [_real(s, _label("init", state_structure, n)) for n, s in enumerate(raw_states)]
    shape = _common_shape(given, input_structure)
    if shape is None:
        columns = _columns_of_states(initial)
        place = _index(axis, "axis", len(columns) + 1)
        n_steps = _length(length, None)
    else:
        if not shape:
            raise ValueError("xs: expected at least one axis, along which the scan runs, got numbers")
        place = _index(axis, "axis", len(shape))
        columns = shape[:place] + shape[place + 1 :]
        n_steps = _length(length, shape[place])
    states = []
    for n, array in enumerate(initial):
        try:
            states.append(np.broadcast_to(array, columns))
        except ValueError:
            name = _label("init", state_structure, n)
            raise ValueError(
                f"{name}: shape {array.shape} does not broadcast to {columns}, the shape of xs without axis {place}"
            ) from None
    order = slice(None, None, -1 if reverse else None)
    inputs = [np.moveaxis(np.broadcast_to(x, shape), place, 0)[order] for x in given] if shape is not None else []
    input_dtypes = tuple(_own_dtype(x) for x in given)
    common = np.result_type(np.float64) if not input_dtypes else np.result_type(*input_dtypes)
    default = common if common.kind == "f" else np.dtype(np.float64)
    weak = (bool, int, float)  # Python's own numbers take the dtype of xs
    dtypes = tuple(
        default if type(value) in weak else _own_dtype(array) for value, array in zip(raw_states, initial)
    )
    traced = _traces.get(update, dtypes, state_structure, input_dtypes, input_structure)
    return Problem(
        traced, inputs, given, states, initial, state_structure, input_structure, place, bool(reverse), n_steps, columns
    )


def _common_shape(arrays: list[Array], structure: Structure) -> tuple[int, ...] | None:
    if not arrays:
        return None
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = ", ".join(f"{_label('xs', structure, n)} {x.shape}" for n, x in enumerate(arrays))
        raise ValueError(f"xs: shapes do not broadcast together: {shapes}") from None


def _columns_of_states(initial: list[Array]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(s.shape for s in initial))
    except ValueError:
        shapes = ", ".join(str(s.shape) for s in initial)
        raise ValueError(f"init: shapes do not broadcast together: {shapes}") from None


def _index(axis: Any, name: str, ndim: int) -> int:
    try:
        place = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {axis!r}") from None
    if not -ndim <= place < ndim:
        raise ValueError(f"{name}: {place} is out of range for {ndim} dimension{'s' * (ndim != 1)}")
    return place % ndim


def _length(length: Any, known: int | None) -> int:
    if length is None:
        if known is None:
            raise ValueError("length: is needed where xs is None")
        return known
    try:
        n = operator.index(length)
    except TypeError:
        raise TypeError(f"length: expected an integer, got {length!r}") from None
    if n < 0:
        raise ValueError(f"length: expected at least 0, got {n}")
    if known is not None and n != known:
        raise ValueError(f"length: {n} is not the length of xs along axis, {known}")
    return n


# ---- paths -----------------------------------------------------------------------------------------------------


def form_of(recurrence: Recurrence) -> tuple[Form | None, str]:
    """The recurrence's parallel form, looked for once."""
    found = _forms.get(recurrence)
    if found is None:
        while len(_forms) >= 512:
            _forms.pop(next(iter(_forms)), None)
        found = _forms[recurrence] = find_form(recurrence)
    return found


def choose_path(recurrence: Recurrence, length: int, columns: tuple[int, ...]) -> tuple[Form | None, Explanation]:
    """How to run: by the update and the shape alone, so that results do not depend on the machine's load."""
    n_columns = math.prod(columns)
    form, why = form_of(recurrence)
    if form is None:
        return None, Explanation("sequential in time", why)
    if n_columns >= _FEW_COLUMNS:
        few = f"but {n_columns} columns are enough to run side by side ({_FEW_COLUMNS} are)"
        return None, Explanation("sequential in time", f"{why}, {few}")
    if length < _LONG:
        return None, Explanation("sequential in time", f"{why}, but {length} steps are few (below {_LONG})")
    return form, Explanation("parallel in time", f"{why}, and columns are few ({n_columns})")


def run_recurrence(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: list[Array], states: list[Array], length: int,
    columns: tuple[int, ...], axis: int, n_threads: int | None = None,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """The outputs, with time where the user has it but in the scan's order, and the last states; all in `dtype`."""
    shape = (length, *columns)
    like = next((x for x in inputs if 0 not in x.strides and x.size), None)
    outputs = []
    for _ in recurrence.outputs:
        if like is not None:
            out = np.empty_like(like, dtype=dtype, order="K", subok=False)
        else:
            out = np.moveaxis(np.empty(columns[:axis] + (length,) + columns[axis:], dtype), axis, 0)
        outputs.append(out)
    before = np.empty((len(states), *columns), dtype)
    for place, array in enumerate(states):
        before[place] = array
    if 0 in shape:
        return outputs, list(before)
    form, _ = choose_path(recurrence, length, columns)
    after = _dispatch.run_user_scan(
        recurrence, dtype, inputs, outputs, before, length, form, n_threads=n_threads
    )
    return outputs, list(after)


# ---- the public function ---------------------------------------------------------------------------------------

_MISSING: Any = object()


class _Scan:
    """`scan`, and what belongs to it."""

    def __call__(
        self,
        update: Any = _MISSING,
        init: Any = _MISSING,
        xs: Any = None,
        *,
        axis: int = 0,
        reverse: bool = False,
        return_final: bool = False,
        length: int | None = None,
    ) -> Any:
        """Scan along an axis by an update of one's own: ``state = update(state, x)``, step by step.

        Parameters
        ----------
        update : callable
            ``update(state, x)`` of symbolic numbers, or tuples of them as `init` and `xs` are. It returns the new
            state (then the states are the output), or a pair ``(new state, output)``; the output is a number, a tuple
            of numbers or None. It is traced once for each signature: the dtypes, and numbers that it takes from around
            it. What else it takes from around it is taken as it was.
        init : number, array_like or tuple of them
            The state before the first step; broadcasts to the shape of `xs` without `axis`. Python's own numbers take
            the dtype of `xs`.
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

        Returns
        -------
        ys : array or tuple of arrays
            The outputs of all steps, of the shape of `xs`; the dtype is what numpy would give for the update.
        final : array or tuple of arrays
            Only with `return_final`; as `init`, of ys' shape without `axis`.

        Raises
        ------
        TypeError
            The update branches on a symbolic value, uses what is not known for one (its line is named), returns
            something else, or changes the dtype of the state; an argument is no array of real numbers.
        ValueError
            Shapes do not broadcast; `axis` or `length` does not fit.

        See Also
        --------
        lfilter, ewm_mean, linear_recurrence

        Notes
        -----
        Without `init`, ``scan`` is a decorator: the function becomes one of ``(init, xs)``, with these keywords.

        float16 and float32 are calculated in float32 and float64 in float64, integers as float64; numbers below the
        smallest normal one count as zero. All columns run side by side, in vectors and on all cores. Where they are few,
        an update that is affine in its state (up to 4 states), or a maximum, a minimum, logaddexp or an argmax of it,
        runs parallel in time; ``scan.explain`` says which way is taken, and why. The bits of a result do not depend on
        the number of threads.

        ``scan.gradient`` has the derivatives; torch tensors have them by autograd.

        Examples
        --------
        >>> import numpy as np
        >>> import upsweep
        >>> upsweep.scan(lambda s, x: 0.5 * s + x, 0.0, [1.0, 1.0, 1.0])
        array([1.  , 1.5 , 1.75])

        Holt's level and trend, and the forecast of each step:

        >>> @upsweep.scan
        ... def holt(state, x):
        ...     level, trend = state
        ...     forecast = level + trend
        ...     new = 0.5 * x + 0.5 * forecast
        ...     return (new, 0.9 * trend + 0.1 * (new - level)), forecast
        >>> holt((0.0, 0.0), np.array([1.0, 2.0, 3.0]))
        array([0.    , 0.55  , 1.4475])

        A choice is np.where, since the update is traced:

        >>> upsweep.scan(lambda s, x: np.where(x > 0, s + 1, 0.0), 0.0, np.array([1.0, 2.0, -1.0, 5.0]))
        array([1., 2., 0., 1.])
        """
        if update is _MISSING or init is _MISSING:
            if xs is not None or (update is not _MISSING and not callable(update)):
                raise TypeError("init: is needed, the state before the first step")
            keywords = {"axis": axis, "reverse": reverse, "return_final": return_final, "length": length}
            return _decorator(keywords) if update is _MISSING else _decorator(keywords)(update)
        arrays = [*_flatten(init, "init")[0], *_flatten(xs, "xs")[0]]
        if _arrays.any_torch(*arrays):
            from upsweep._torch import user_scan as tensors

            return tensors.scan(
                update, init, xs, axis=axis, reverse=reverse, return_final=return_final, length=length
            )
        problem = check(update, init, xs, axis, reverse, length)
        traced = problem.traced
        outputs, final = run_recurrence(
            traced.recurrence, traced.dtype, problem.inputs, problem.states, problem.length, problem.columns,
            problem.axis,
        )  # fmt: skip
        ys = [in_place(out, problem, dtype) for out, dtype in zip(outputs, traced.output_dtypes)]
        result = _arranged(ys, traced.output_structure)
        if not return_final:
            return result
        last = [rounded(array, dtype) for array, dtype in zip(final, traced.state_dtypes)]
        return result, _arranged(last, problem.state_structure)

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
        problem = check(update, init, xs, axis, reverse, length)
        return choose_path(problem.traced.recurrence, problem.length, problem.columns)[1]

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
        problem = check(update, init, xs, axis, reverse, length)
        return gradient(problem, cotangent, final_cotangent, checkpoint)

    # What an update can use, by numpy's names; sigmoid is not among those.
    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)), of symbols and of arrays."""
        return apply("sigmoid", x)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        from upsweep._expr.symbols import FUNCTIONS

        if name not in FUNCTIONS:
            raise AttributeError(f"scan has no function {name!r}; it has {', '.join(sorted(FUNCTIONS))}")
        return lambda *values: apply(name, *values)


def _decorator(defaults: dict[str, Any]) -> Callable[[Update], Callable[..., Any]]:
    def decorate(update: Update) -> Callable[..., Any]:
        import functools

        @functools.wraps(update)
        def scanned(init: Any, xs: Any = None, **keywords: Any) -> Any:
            return scan(update, init, xs, **{**defaults, **keywords})

        return scanned

    return decorate


scan = _Scan()


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array of what was calculated, in the dtype that it is to have."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def in_place(out: Array, problem: Problem, dtype: np.dtype[Any]) -> Array:
    """An output in time's own order, with the axis where it was."""
    ordered = out[::-1] if problem.reverse else out
    return rounded(np.moveaxis(ordered, 0, problem.axis), dtype)


# ---- gradients -------------------------------------------------------------------------------------------------


def gradient(problem: Problem, cotangent: Any, final_cotangent: Any, checkpoint: int | None) -> Gradients:
    """The gradients of a checked call."""
    traced, columns, length = problem.traced, problem.columns, problem.length
    recurrence, dtype = traced.recurrence, traced.dtype
    if checkpoint is not None:
        checkpoint = _length(checkpoint, None)
        if checkpoint < 1:
            raise ValueError("checkpoint: expected at least 1 step, got 0")
    whole = (length, *columns)
    backs = _cotangents(cotangent, "cotangent", len(recurrence.outputs), traced.output_structure, problem)
    last = _cotangents(final_cotangent, "final_cotangent", recurrence.n_states, problem.state_structure, None)
    state_backs = []
    for place in range(recurrence.n_states):
        state_backs.append(_broadcast(last[place], columns, "final_cotangent") if last else np.zeros(columns, dtype))
    parts = [np.empty(whole, dtype) for _ in recurrence.outputs] if not backs else backs
    for part in parts if not backs else []:
        part[...] = 0
    back = adjoint(recurrence)
    gradients = [np.empty(whole, dtype) for _ in problem.inputs]
    keeps = replace(recurrence, outputs=tuple(state(p) for p in range(recurrence.n_states)))
    segment = checkpoint or max(length, 1)
    starts, states = [], problem.states
    for first in range(0, length, segment):
        starts.append(states)
        if first + segment < length:
            inputs = [x[first : first + segment] for x in problem.inputs]
            silent = replace(recurrence, outputs=())
            _, states = run_recurrence(silent, dtype, inputs, states, segment, columns, 0)
    for number, first in reversed(list(enumerate(range(0, length, segment)))):
        here = slice(first, min(first + segment, length))
        steps = here.stop - first
        inputs = [x[here] for x in problem.inputs]
        kept, _ = run_recurrence(keeps, dtype, inputs, starts[number], steps, columns, 0)
        against = [a[::-1] for a in (*inputs, *kept, *(part[here] for part in parts))]
        found, state_backs = run_recurrence(back, dtype, against, state_backs, steps, columns, 0)
        for target, part in zip(gradients, found):
            target[here] = part[::-1]
    ordered = [g[::-1] if problem.reverse else g for g in gradients]
    xs = [_summed(np.moveaxis(g, 0, problem.axis), x) for g, x in zip(ordered, problem.given)]
    init = [_summed(g, s) for g, s in zip(state_backs, problem.initial)]
    for place, (g, dt) in enumerate(zip(init, traced.state_dtypes)):
        init[place] = rounded(g, dt if dt.kind == "f" else np.dtype(np.float64))
    return Gradients(_arranged(init, problem.state_structure), _arranged(xs, problem.input_structure))


def _cotangents(value: Any, name: str, n: int, structure: Structure, problem: Problem | None) -> list[Array]:
    if value is None:
        return []
    items, given = _flatten(value, name)
    if given != structure:
        expected = {None: "None", -1: "a single array"}.get(structure, f"a tuple of {structure}")
        raise TypeError(f"{name}: expected {expected}, as the result is arranged")
    arrays = [_real(item, _label(name, structure, k)) for k, item in enumerate(items)]
    if problem is None:
        return arrays
    shape = problem.columns[: problem.axis] + (problem.length,) + problem.columns[problem.axis :]
    order = slice(None, None, -1 if problem.reverse else None)
    return [np.moveaxis(_broadcast(a, shape, name), problem.axis, 0)[order] for a in arrays]


def _broadcast(array: Array, shape: tuple[int, ...], name: str) -> Array:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: shape {array.shape} does not broadcast to {shape}") from None


def _summed(gradient: Array, given: Array) -> Array:
    """The gradient of an array that was broadcast: the sum over its repetitions, in its dtype."""
    extra = gradient.ndim - given.ndim
    repeated = tuple(d for d in range(gradient.ndim) if d < extra or (given.shape[d - extra] == 1 and gradient.shape[d] != 1))
    total = gradient.sum(axis=repeated, dtype=np.float64, keepdims=True) if repeated else gradient
    dtype = given.dtype.newbyteorder("=") if given.dtype.kind == "f" else np.dtype(np.float64)
    return rounded(np.asarray(total).reshape(given.shape), dtype)
