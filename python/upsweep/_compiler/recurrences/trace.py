"""Traces an update into a recurrence: the Python function is called once with symbolic numbers.

`trace` does it, `cached_trace` stores the result with the update, guarded by what the update reads from outside.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.recurrences.guards import GuardedCache
from upsweep._compiler.recurrences.recurrence import Recurrence, input_, state
from upsweep._compiler.recurrences.symbols import Symbol, floating, operand

Structure = int | None
"""How an argument or a result is arranged: None for nothing, -1 for one array, else the length of a tuple."""

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
    return items[0] if structure == -1 else tuple(items)


def _items(value: Any, structure: Structure) -> list[Any]:
    return [value] if structure == -1 else list(value)


def _fits(value: Any, structure: Structure) -> bool:
    is_tuple = isinstance(value, (tuple, list))
    if structure == -1:
        return not is_tuple and value is not None
    return is_tuple and len(value) == structure and not any(isinstance(item, (tuple, list)) for item in value)


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))}{',' * (len(value) == 1)})"
    return "a number" if isinstance(value, (Symbol, int, float, np.generic)) else type(value).__qualname__


def _name(update: Callable[..., Any]) -> str:
    code = getattr(update, "__code__", None)
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

    Raises
    ------
    TypeError
        The update does something that has no symbolic form (its line is named), or does not return a new state.
    """
    states = [Symbol(state(p), dtype) for p, dtype in enumerate(state_dtypes)]
    inputs = [Symbol(input_(p), floating(dtype)) for p, dtype in enumerate(input_dtypes)]
    _check_parameters(update)
    result = update(arranged(states, state_structure), arranged(inputs, input_structure))
    new, output, structure = _parted(update, result, state_structure)
    default = np.result_type(*(floating(d) for d in input_dtypes)) if input_dtypes else np.dtype(np.float64)
    new_states = []
    for place, (item, dtype) in enumerate(zip(new, state_dtypes)):
        node, own = _typed(update, item, dtype)
        if own != dtype:
            which = "the state" if state_structure == -1 else f"state {place}"
            raise TypeError(
                f"update: {which} is {dtype} and becomes {own} in {_name(update)}; "
                f"give init as {own}, or x as {dtype}"
            )
        new_states.append((node, own))
    default = default if default.kind == "f" else np.dtype(np.float64)
    outputs = new_states if output is None else [_typed(update, item, default) for item in output]
    output_dtypes = tuple(dtype for _, dtype in outputs)
    dtype_of_steps = np.dtype(
        np.result_type(np.float32, *state_dtypes, *output_dtypes, *map(floating, input_dtypes))
    )
    recurrence = Recurrence(tuple(node for node, _ in new_states), tuple(node for node, _ in outputs), len(inputs))
    return Traced(recurrence, tuple(state_dtypes), output_dtypes, structure, dtype_of_steps)


def _check_parameters(update: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(update)
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
    if isinstance(result, (tuple, list)) and len(result) == 2 and _fits(result[0], structure):
        new, output = result
        if output is None:
            return _items(new, structure), [], None
        shape = len(output) if isinstance(output, (tuple, list)) else -1
        if _fits(output, shape):
            return _items(new, structure), _items(output, shape), shape
    expected = "a number" if structure == -1 else f"a tuple of {structure} numbers"
    raise TypeError(
        f"update: {_name(update)} returned {_described(result)}; expected the new state, {expected} as init is, "
        "or a pair (new state, output) whose output is a number or a tuple of numbers"
    )


def _typed(update: Callable[..., Any], item: Any, default: Dtype) -> tuple[Node, Dtype]:
    """The node and the dtype of a result; Python's own numbers have the default dtype."""
    if isinstance(item, (Symbol, int, float, np.bool_, np.floating, np.integer)):
        node, kind = operand(item)
        return node, default if isinstance(kind, float) else kind
    raise TypeError(f"update: {_name(update)} returned {type(item).__qualname__} where a number was expected")


_traces: GuardedCache[Traced] = GuardedCache(64)


def cached_trace(update: Callable[..., Any], *signature: Any) -> Traced:
    """`trace`, cached by the update, its dependencies and the signature: the other arguments of `trace`."""
    entry = _traces.entry(update)  # before the update runs, which may change its own dependencies
    traced = None if entry is None else entry.get(signature)
    if traced is None:
        traced = trace(update, *signature)
        if entry is not None:
            entry[signature] = traced
    return traced
