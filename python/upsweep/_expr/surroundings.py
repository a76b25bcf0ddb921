"""What a function takes from around it, and what was found out about functions as they are with that."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Here", "Known"]

Value = TypeVar("Value")

_NOTHING = object()
_NOTHINGS = itertools.repeat(_NOTHING)


def _taken(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The values that a function takes from around it: closure, globals that it names, defaults."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    names: dict[str, Any] = getattr(function, "__globals__", {})
    values = list(map(names.get, code.co_names, _NOTHINGS))
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(_NOTHING)
    values += getattr(function, "__defaults__", None) or ()
    values += (getattr(function, "__kwdefaults__", None) or {}).values()
    return tuple(values)


def _comparable(value: Any) -> Any:
    """Equal for equal numbers; others go by identity."""
    if isinstance(value, (bool, int, float, np.generic)):
        return type(value), repr(value)
    return _Same(value)


class _Same:
    """Equal to itself alone; holds what it is about, whose place in memory no other takes then."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Here(Generic[Value]):
    """What is known of a function with what it takes from around it now."""

    __slots__ = ("_mark", "_most", "_values")

    def __init__(self, values: dict[Any, Value], most: int) -> None:
        self._values, self._most, self._mark = values, most, object()

    def get(self, signature: Hashable) -> Value | None:
        return self._values.get((self._mark, signature))

    def keep(self, signature: Hashable, value: Value) -> None:
        """Know it from now on; what came first goes first."""
        while len(self._values) >= self._most:
            self._values.pop(next(iter(self._values), None), None)
        self._values[self._mark, signature] = value


class _Function(Generic[Value]):
    """What is known of a function: at most so many values, of whatever it took from around it."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, dict[Any, Value]()
        self._heres: dict[Any, Here[Value]] = {}
        self._latest: tuple[tuple[Any, ...], Here[Value]] | None = None

    def here(self, taken: tuple[Any, ...]) -> Here[Value]:
        latest = self._latest
        # The same objects are equal numbers, whose texts need not be made and compared.
        if latest is not None and len(latest[0]) == len(taken) and all(map(operator.is_, latest[0], taken)):
            return latest[1]
        numbers = tuple(map(_comparable, taken))
        found = self._heres.get(numbers)
        if found is None:
            while len(self._heres) >= self._most:
                self._heres.pop(next(iter(self._heres), None), None)
            found = self._heres[numbers] = Here(self._values, self._most)
        self._latest = taken, found
        return found


class Known(Generic[Value]):
    """What was found out, by function, by what it takes from around it and by signature.

    With another number around it, nothing is known of a function. One that is gone takes all with it.
    """

    def __init__(self, most: int) -> None:
        self._functions: weakref.WeakKeyDictionary[Any, _Function[Value]] = weakref.WeakKeyDictionary()
        self._most = most

    def here(self, function: Callable[..., Any]) -> Here[Value] | None:
        """What is known of the function as it is; None for one that is neither hashed nor referred to weakly."""
        try:
            found = self._functions.get(function)
            if found is None:
                found = self._functions.setdefault(function, _Function(self._most))
        except TypeError:
            return None
        return found.here(_taken(function))
