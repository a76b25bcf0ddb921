"""Traces an update into a recurrence: the Python function is called once with symbolic numbers.

`trace` does it, `cached_trace` stores the result with the update, guarded by what the update reads from outside.
"""

from __future__ import annotations

import functools
import inspect
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node, variable
from upsweep._compiler.recurrences.guards import GuardedCache, Observation, is_from_library, root
from upsweep._compiler.recurrences.integers import as_loaded_floats, integer_variable
from upsweep._compiler.recurrences.lookups import Numbers, run_with_lookups
from upsweep._compiler.recurrences.promotion import (
    common_dtype,
    convert,
    float_of_integers,
    floating,
    narrow_state,
    operand,
)
from upsweep._compiler.recurrences.protocols import Several
from upsweep._compiler.recurrences.recurrence import Recurrence, lifted
from upsweep._compiler.recurrences.symbols import Symbol

Structure = int | type[Any] | None
"""How an argument or a result is arranged: None for nothing, -1 for one array, else the length of a tuple, or the
class of a namedtuple."""

Dtype = np.dtype[Any]


@dataclass(frozen=True)
class Traced:
    """The recurrence of an update, the dtypes of its results and how they are arranged."""

    recurrence: Recurrence
    state_dtypes: tuple[Dtype, ...]
    output_dtypes: tuple[Dtype, ...]
    output_structure: Structure
    dtype: Dtype  # float32 or float64: steps are computed in it


def arranged(items: list[Any], structure: Structure) -> Any:
    """The items as one object, a tuple, or None."""
    if structure is None:
        return None
    if structure == -1:
        return items[0]
    # As `_make` of a namedtuple, which the compiler of torch 2.11 cannot trace here.
    return tuple(items) if isinstance(structure, int) else tuple.__new__(structure, items)


def structure_of(value: tuple[Any, ...]) -> Structure:
    """How a tuple is arranged."""
    return type(value) if hasattr(value, "_fields") else len(value)


def as_length(structure: Structure) -> int | None:
    """The structure with a namedtuple as a tuple."""
    return len(structure._fields) if isinstance(structure, type) else structure


def as_argument(items: list[Any], structure: Structure) -> Any:
    """States or inputs as the update gets them."""
    return Several(items) if isinstance(structure, int) and structure != -1 else arranged(items, structure)


def _items(value: Any, structure: Structure) -> list[Any]:
    return [value] if structure == -1 else list(value)


def _fits(value: Any, structure: Structure) -> bool:
    is_tuple = isinstance(value, (tuple, list))
    if structure == -1:
        return not is_tuple and value is not None
    return (
        is_tuple
        and len(value) == as_length(structure)
        and not any(isinstance(item, (tuple, list)) for item in value)
    )


def _described(value: Any) -> str:
    if isinstance(value, Numbers):
        return f"an array of {len(value)} numbers"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))}{',' * (len(value) == 1)})"
    return "a number" if isinstance(value, (Symbol, int, float, np.generic)) else type(value).__qualname__


def _of_user(update: Callable[..., Any]) -> Callable[..., Any]:
    """The user's update, if this is the partial of `scan(reset=)` around it."""
    if isinstance(update, functools.partial) and is_from_library(update.func):
        return next(filter(callable, update.args), update)
    return update


def _name(update: Callable[..., Any]) -> str:
    update = _of_user(update)
    code = getattr(inspect.unwrap(update), "__code__", None)
    name = getattr(update, "__qualname__", repr(update))
    return f"{name} ({code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno})" if code else name


def trace(
    update: Callable[..., Any],
    state_dtypes: tuple[Dtype, ...],
    state_structure: Structure,
    input_dtypes: tuple[Dtype, ...],
    input_structure: Structure,
) -> Traced:
    """Trace an update.

    A state that is an integer, and that the update makes a float or a larger integer, begins as that.

    Raises
    ------
    TypeError
        The update does something that has no symbolic form (its line is named), or does not return a new state.
    """
    states = [Symbol(_variable(p, "i", dtype), dtype) for p, dtype in enumerate(state_dtypes)]
    inputs = [Symbol(_variable(p, "j", dtype), dtype) for p, dtype in enumerate(input_dtypes)]
    _check_parameters(update)
    arguments = as_argument(states, state_structure), as_argument(inputs, input_structure)
    result = run_with_lookups(update, *arguments)
    new, output, structure = _parted(update, result, state_structure)
    new_states = [_typed(update, item, dtype) for item, dtype in zip(new, state_dtypes)]
    promoted = tuple(
        np.dtype(common_dtype([own, dtype])) if dtype.kind in "iu" and own.kind in "iuf" else dtype
        for (_, own), dtype in zip(new_states, state_dtypes)
    )
    if promoted != state_dtypes:  # integers that become floats, or larger integers, begin as these
        return trace(update, promoted, state_structure, input_dtypes, input_structure)
    for place, ((_, own), dtype) in enumerate(zip(new_states, state_dtypes)):
        if own != dtype:
            which = "the state" if state_structure == -1 else f"state {place}"
            token = narrow_state.set((which, dtype) if dtype.kind == "f" else None)
            try:  # raises an error that names the line of the cause, if that is an operation on floats
                run_with_lookups(update, *arguments)
            finally:
                narrow_state.reset(token)
            raise TypeError(
                f"update: {which} is {dtype} and becomes {own} in {_name(update)}; "
                f"give init as {own}, or x as {dtype}"
            )
    default = np.dtype(common_dtype(input_dtypes) if input_dtypes else bool)
    if default.kind == "b":
        default = np.dtype(np.int64)
    outputs = new_states if output is None else [_typed(update, item, default, is_state=False) for item in output]
    output_dtypes = tuple(dtype for _, dtype in outputs)
    roots, k = [node for node, _ in (*new_states, *outputs)], len(new_states)
    if any(dtype.kind in "iu" for dtype in input_dtypes):
        roots = as_loaded_floats(roots)
    recurrence = Recurrence(tuple(roots[:k]), tuple(roots[k:]), len(inputs))
    floats = [dtype for dtype in (*state_dtypes, *output_dtypes) if dtype.kind not in "iu"]
    dtype_of_steps = np.dtype(np.result_type(np.float32, *floats, *map(floating, input_dtypes)))
    if recurrence.has_integers:
        dtype_of_steps = np.dtype(np.float64)  # words of 64 bits
    return Traced(recurrence, tuple(state_dtypes), output_dtypes, structure, dtype_of_steps)


def _variable(position: int, kind: str, dtype: Dtype) -> Node:
    return integer_variable(position, kind) if dtype.kind in "iu" else variable(position, 1, kind)


def _check_parameters(update: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(_of_user(update))
    except ValueError:  # a built-in function may have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(f"update: {_name(update)} is called as update(state, x): {error}") from None


def _parted(
    update: Callable[..., Any], result: Any, structure: Structure
) -> tuple[list[Any], list[Any] | None, Structure]:
    """The new states, the outputs (None: they are the states) and their structure."""
    if _fits(result, structure):
        return _items(result, structure), None, structure
    if type(result) is tuple and len(result) == 2 and _fits(result[0], structure):
        new, output = result
        if output is None:
            return _items(new, structure), [], None
        shape = len(output) if isinstance(output, (tuple, list)) else -1
        if _fits(output, shape):
            return _items(new, structure), _items(output, shape), shape
    expected = "a number" if structure == -1 else f"a tuple or array of {as_length(structure)} numbers"
    remedy = "; an array with a number for each column belongs in xs, as do rows of a table"
    remedy *= isinstance(result, Numbers)
    raise TypeError(
        f"update: {_name(update)} returned {_described(result)}; expected the new state, {expected} as init is, "
        f"or a pair (new state, output) whose output is a number or a tuple of numbers{remedy}"
    )


def _typed(update: Callable[..., Any], item: Any, default: Dtype, *, is_state: bool = True) -> tuple[Node, Dtype]:
    """The node and the dtype of a result: Python's own numbers have the default dtype, as has an integer state."""
    if isinstance(item, (Symbol, int, float, np.bool_, np.floating, np.integer)):
        node, kind = operand(item)
        if isinstance(kind, float):
            return node, floating(default)
        if isinstance(kind, int):
            return convert(node, kind, default), default
        if is_state and kind.kind in "iu" and default.kind == "f" and np.result_type(kind, default) == default:
            return convert(node, kind, default), default
        return node, kind
    raise TypeError(
        f"update: {_name(update)} returned {type(item).__qualname__} where a number was expected; several numbers "
        "are a tuple or a NamedTuple"
    )


_traces: GuardedCache[Traced] = GuardedCache(64)


def cached_trace(update: Callable[..., Any], *signature: Any, of_integers: Dtype | None = None) -> Traced:
    """`trace`, cached by the update, its dependencies and the signature: the other arguments of `trace`.

    `of_integers` is the dtype of integers as floats, if dtypes are promoted as in torch.

    Raises TypeError, in addition to what `trace` raises, if the update is not pure. A function that fills a cache
    changes something at its first call; one that draws or counts does so at each call, or is traced to another
    recurrence.
    """
    entry = _traces.entry(update)  # before the update runs, which may change its own dependencies
    key = (*signature, of_integers)
    traced = None if entry is None else entry.get(key)
    if traced is None:
        token = float_of_integers.set(of_integers)
        try:
            traced = _trace_of_pure(update, signature)
        finally:
            float_of_integers.reset(token)
        if entry is not None:
            entry[key] = traced
    return traced


# The recurrences, but for their numbers, that code was traced to twice alike.
_repeatable: weakref.WeakKeyDictionary[Any, set[Recurrence]] = weakref.WeakKeyDictionary()
_MOST_FORMS = 16  # of one code; large tables are part of them
_MOST_TRACES, _LONGEST = 64, 0.25  # and seconds: a generator of few values has to give two that differ


def _trace_of_pure(update: Callable[..., Any], signature: tuple[Any, ...]) -> Traced:
    before = Observation(update)
    traced = trace(update, *signature)
    after = Observation(update)
    has_changed = after.has_iterator or after.change_since(before)
    # Numbers of entropy or of a clock change no object, so code is traced again once for each form of its results.
    form = lifted(traced.recurrence)[0]
    try:
        forms = _repeatable.setdefault(root(inspect.unwrap(update)), set())
    except TypeError:  # no weak references, as to ufuncs, which are pure
        forms = {form} if isinstance(update, np.ufunc) else set()
    if has_changed or form not in forms:
        deadline = time.perf_counter() + _LONGEST
        for n in range(_MOST_TRACES if after.makes_generators else 1):
            if n and time.perf_counter() > deadline:
                break
            again = trace(update, *signature)
            changed = Observation(update).change_since(after) if has_changed else None
            if changed or again != traced:
                raise TypeError(
                    f"update: {_name(update)} changes {changed or 'from call to call'}\n"
                    "the update is traced once: a random number, a time or a count is drawn once for all steps; "
                    "pass the noise in xs, as in scan(lambda s, x: s + x[0] + x[1], 0.0, "
                    "(x, rng.normal(size=x.shape))), and return counts and lists as states and outputs"
                )
        if len(forms) >= _MOST_FORMS:
            forms.clear()
        forms.add(form)
    return traced
