"""What a function takes from around it, and what was found out about functions as they are with that."""

from __future__ import annotations

import enum
import functools
import operator
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Here", "Known"]

Value = TypeVar("Value")

_NOTHING = object()
# What is what it is: no part of it changes, or none that an update may read.
_PLAIN = frozenset(
    [type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, np.ufunc, type(np.where)]
)
_LIBRARIES = ("numpy", "upsweep", "math", "builtins")  # whose functions and types read nothing that changes


class _Unseen(Exception):
    """Something that can change without a sign: an array, a list, a dictionary, an object's attributes."""


_names: weakref.WeakKeyDictionary[types.CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """What code names, that of functions inside it too."""
    found = _names.get(code)
    if found is None:
        names = dict.fromkeys(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= dict.fromkeys(_names_in(constant))
        found = _names[code] = tuple(names)
    return found


def _is_of_a_library(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] in _LIBRARIES


class _Taking:
    """Collects what a function reads around it, and what the functions read that it calls there.

    `root` is the code that all is about; what is kept by it must not hold it.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.values: list[Any] = []
        self._seen: set[tuple[int, tuple[str, ...]]] = set()

    def function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if code is not self._root:
            self.values.append(code)
        names, around = _names_in(code), function.__globals__
        if self._is_new(function, names):
            for name in names:
                if name in around:
                    self.value(around[name], names)
            for cell in function.__closure__ or ():
                try:
                    self.value(cell.cell_contents, names)
                except ValueError:  # not assigned yet
                    self.values.append(_NOTHING)
            for default in function.__defaults__ or ():
                self.value(default, names)
            for default in (function.__kwdefaults__ or {}).values():
                self.value(default, names)

    def value(self, value: Any, names: tuple[str, ...]) -> None:
        """A value that code reads in which these names are; they may be those of its attributes."""
        kind = type(value)
        if kind is types.BuiltinFunctionType and not isinstance(value.__self__, (types.ModuleType, type(None))):
            raise _Unseen  # a method of a list, say
        if isinstance(value, np.void):
            raise _Unseen  # a record, whose fields are an array's
        if kind in _PLAIN or isinstance(value, (np.generic, np.dtype, enum.Enum)):
            self.values.append(value)
        elif kind is types.ModuleType:
            self.values.append(value)
            if self._is_new(value, names):
                self._attributes([value.__dict__], names)
        elif kind is types.FunctionType:
            if _is_of_a_library(value):
                self.values.append(value)
            else:
                self.function(value)
        elif isinstance(value, type):
            self.values.append(value)
            if not _is_of_a_library(value) and self._is_new(value, names):
                self._attributes([vars(base) for base in value.__mro__[:-1]], names)
        elif isinstance(value, tuple):
            self.values += [kind, len(value)]
            for item in value:
                self.value(item, names)
        elif kind is functools.partial:
            self.values += [kind, len(value.args), *value.keywords]
            for item in (value.func, *value.args, *value.keywords.values()):
                self.value(item, names)
        elif kind is types.MethodType:
            self.value(value.__func__, names)
            self.value(value.__self__, names)
        elif isinstance(value, (staticmethod, classmethod)):
            self.value(value.__func__, names)
        else:
            raise _Unseen

    def _attributes(self, where: list[Any], names: tuple[str, ...]) -> None:
        for name in names:
            for attributes in where:
                if name in attributes:
                    self.value(attributes[name], names)
                    break

    def _is_new(self, value: Any, names: tuple[str, ...]) -> bool:
        key = id(value), names
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _root(function: Callable[..., Any]) -> Any:
    """What functions that may do the same have in common: lambdas of one line are new ones at each call."""
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return getattr(function, "__code__", function)


def _taken(function: Callable[..., Any], root: Any) -> tuple[Any, ...]:
    """All but `root` that a function's result depends on: closure, globals that it names, defaults, and theirs.

    Raises
    ------
    _Unseen
        It takes something that can change without a sign.
    """
    taking = _Taking(root)
    taking.value(function, ())
    return tuple(taking.values)


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

    Functions of the same code that take the same are one. With another number around it, nothing is known of a
    function; nor is anything kept of one that takes what can change without a sign. Code that is gone takes all
    with it.
    """

    def __init__(self, most: int) -> None:
        self._functions: weakref.WeakKeyDictionary[Any, _Function[Value]] = weakref.WeakKeyDictionary()
        self._most = most

    def here(self, function: Callable[..., Any]) -> Here[Value] | None:
        """What is known of the function as it is; None for one of which nothing can be kept."""
        try:
            root = _root(function)
            taken = _taken(function, root)
            found = self._functions.get(root)
            if found is None:
                found = self._functions.setdefault(root, _Function(self._most))
        except (_Unseen, TypeError):  # or it is neither hashed nor referred to weakly
            return None
        return found.here(taken)
