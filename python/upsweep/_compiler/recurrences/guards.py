"""A cache of values by function, guarded by everything that the function reads from outside.

A value that was derived from a function (a trace, a compiled scan) stays valid while the function's code, closure
cells, defaults and the globals that it names keep their values. `GuardedCache` collects these dependencies at each
call and compares them. Functions of the same code and dependencies share their values, so a lambda that is created
anew at each call is found again.

`trace` caches traces in it, and `_user_scan.cached_calls` caches compiled scans.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from upsweep._utils.lru_cache import LRUCache

Value = TypeVar("Value")

_UNASSIGNED = object()
# Immutable, or without any mutable part that an update may read.
_IMMUTABLE = frozenset(
    [type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, np.ufunc, type(np.where)]
)
_LIBRARIES = ("numpy", "upsweep", "math", "builtins")  # their functions and types read no mutable state


class Unguardable(Exception):
    """A dependency can change without notice: an array, a list, a dictionary, an object's attributes."""


_names: weakref.WeakKeyDictionary[types.CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """The global and attribute names in code, and in the functions defined inside it."""
    names = _names.get(code)
    if names is None:
        ordered = dict.fromkeys(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                ordered |= dict.fromkeys(_names_in(constant))
        names = _names[code] = tuple(ordered)
    return names


def _is_from_library(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] in _LIBRARIES


class _Dependencies:
    """Collects what a function, and the functions that it calls, read from outside.

    The values do not include `root`, the code that the cache is keyed by: a value must not keep its key alive.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.values: list[Any] = []
        self._visited: set[tuple[int, tuple[str, ...]]] = set()

    def add_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if code is not self._root:
            self.values.append(code)
        names, namespace = _names_in(code), function.__globals__
        if self._is_new(function, names):
            for name in names:
                if name in namespace:
                    self.add(namespace[name], names)
            for cell in function.__closure__ or ():
                try:
                    self.add(cell.cell_contents, names)
                except ValueError:  # not assigned yet
                    self.values.append(_UNASSIGNED)
            for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
                self.add(default, names)

    def add(self, value: Any, names: tuple[str, ...]) -> None:
        """Add a value that code with these names reads; the names may be those of its attributes."""
        kind = type(value)
        if kind is types.BuiltinFunctionType and not isinstance(value.__self__, (types.ModuleType, type(None))):
            raise Unguardable  # a method of a list, for example
        if isinstance(value, np.void):
            raise Unguardable  # a record, whose fields may be views of an array
        if kind in _IMMUTABLE or isinstance(value, (np.generic, np.dtype, enum.Enum)):
            self.values.append(value)
        elif kind is types.ModuleType:
            self.values.append(value)
            self._add_attributes(value, [value.__dict__], names)
        elif kind is types.FunctionType and not _is_from_library(value):
            self.add_function(value)
        elif kind is types.FunctionType or isinstance(value, type):
            self.values.append(value)
            if not _is_from_library(value):
                self._add_attributes(value, [vars(base) for base in value.__mro__[:-1]], names)
        elif isinstance(value, tuple):
            self.values += [kind, len(value)]
            for item in value:
                self.add(item, names)
        elif kind is functools.partial:
            self.values += [kind, len(value.args), *value.keywords]
            for item in (value.func, *value.args, *value.keywords.values()):
                self.add(item, names)
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            self.add(value.__func__, names)
            if isinstance(value, types.MethodType):
                self.add(value.__self__, names)
        else:
            raise Unguardable

    def _add_attributes(self, owner: Any, namespaces: list[Any], names: tuple[str, ...]) -> None:
        for name in names if self._is_new(owner, names) else ():
            for attributes in namespaces:
                if name in attributes:
                    self.add(attributes[name], names)
                    break

    def _is_new(self, value: Any, names: tuple[str, ...]) -> bool:
        key = id(value), names
        if key in self._visited:
            return False
        self._visited.add(key)
        return True


def _root(function: Callable[..., Any]) -> Any:
    """The code of a function, which all function objects of one ``def`` or lambda share."""
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return getattr(function, "__code__", function)


def _comparable(value: Any) -> Any:
    """A key that is equal for equal numbers of one type; other objects are compared by identity."""
    if isinstance(value, (bool, int, float, np.generic)):
        return type(value), repr(value)
    return _Identity(value)


class _Identity:
    """Equal to itself alone; holds a reference to the object, so that no other object gets its address."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Entry(Generic[Value]):
    """The cached values of one function with one set of dependencies, by call signature."""

    __slots__ = ("_latest", "_token", "_values")

    def __init__(self, values: LRUCache[Any, Value]) -> None:
        self._values, self._token = values, object()
        self._latest: tuple[Hashable, Value | None] = None, None

    def get(self, signature: Hashable) -> Value | None:
        latest = self._latest
        if latest[0] == signature:  # comparing costs less than hashing, which the LRU cache does twice
            return latest[1]
        value = self._values.get((self._token, signature))
        if value is not None:
            self._latest = signature, value
        return value

    def __setitem__(self, signature: Hashable, value: Value) -> None:
        self._values[self._token, signature] = value


class _FunctionCache(Generic[Value]):
    """The values of one function; at most `maxsize`, whatever its dependencies were."""

    def __init__(self, maxsize: int) -> None:
        self._values: LRUCache[Any, Value] = LRUCache(maxsize)
        self._entries: LRUCache[Any, Entry[Value]] = LRUCache(maxsize)
        self.latest: tuple[list[Any], Entry[Value]] = [object()], Entry(self._values)

    def entry(self, dependencies: list[Any]) -> Entry[Value]:
        key = tuple(map(_comparable, dependencies))
        entry = self._entries.get_or_build(key, lambda: Entry(self._values))
        self.latest = dependencies, entry
        return entry


class GuardedCache(Generic[Value]):
    """Values by function, by the function's dependencies, and by call signature.

    At most `maxsize` values are stored for a function. When its code is collected, they go with it.
    """

    def __init__(self, maxsize: int) -> None:
        self._functions: weakref.WeakKeyDictionary[Any, _FunctionCache[Value]] = weakref.WeakKeyDictionary()
        self._maxsize = maxsize

    def entry(self, function: Callable[..., Any]) -> Entry[Value] | None:
        """The entry of a function as it is now; None if a dependency is mutable, and nothing can be cached."""
        try:
            root = _root(function)
            collected = _Dependencies(root)
            collected.add(function, ())
            cache = self._functions.get(root)
            if cache is None:
                cache = self._functions.setdefault(root, _FunctionCache(self._maxsize))
        except (Unguardable, TypeError):  # TypeError: the function is not hashable, or has no weak references
            return None
        dependencies, (latest, entry) = collected.values, cache.latest
        # Identical objects are equal. Comparing by identity first saves the texts of numbers.
        if len(latest) == len(dependencies) and all(map(operator.is_, latest, dependencies)):
            return entry
        return cache.entry(dependencies)
