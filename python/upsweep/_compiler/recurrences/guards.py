"""A cache of values by function, guarded by everything that the function reads from outside.

A value that was derived from a function (a trace, a compiled scan) stays valid while the function's code, closure
cells, defaults and the globals that it names keep their values. `GuardedCache` collects these dependencies at each
call and compares them. Functions of the same code and dependencies share their values, so a lambda that is created
anew at each call is found again.

`trace` caches traces in it, and `_user_scan.cached_calls` caches compiled scans.

`Observation` records what a function can change: random generators, and the objects that it captures. `trace`
compares two of them, and two traces, to refuse a function that is not pure.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from upsweep._utils.lru_cache import LRUCache

Value = TypeVar("Value")

_UNASSIGNED = object()
# Immutable, or without any mutable part that an update may read.
_IMMUTABLE = frozenset(
    [type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, np.ufunc, type(np.where)]
)
# Their functions and types read no mutable state.
_LIBRARIES = ("numpy", "upsweep", "math", "builtins", "torch", "scipy")


class Unguardable(Exception):
    """A dependency can change without notice: a large array, a list, a dictionary, an object's attributes."""


_MOST_BYTES = 2**16  # of an array whose entries are compared at each call, in some 50 us where a trace takes 5 ms


_NO_CODE = (lambda: None).__code__
_names: weakref.WeakKeyDictionary[types.CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """The global and attribute names in code, and in the functions defined inside it."""
    names = _names.get(code)
    if names is None:
        ordered = dict.fromkeys(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                ordered |= dict.fromkeys(names_in(constant))
        names = _names[code] = tuple(ordered)
    return names


def is_from_library(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0] in _LIBRARIES


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
        names, namespace = names_in(code), function.__globals__
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
            self._add_mutable(value.__self__, names)  # a method of a list, for example
        elif isinstance(value, np.void):
            self._add_mutable(value, names)  # a record, whose fields may be views of an array
        elif kind in _IMMUTABLE or isinstance(value, (np.generic, np.dtype, enum.Enum)):
            self.values.append(value)
        elif kind is types.ModuleType:
            self.values.append(value)
            self._add_attributes(value, [value.__dict__], names)
        elif kind is types.FunctionType and not is_from_library(value):
            self.add_function(value)
        elif kind is types.FunctionType or isinstance(value, type):
            self.values.append(value)
            if not is_from_library(value):
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
                self.add(value.__self__, (*names, *names_in(getattr(value.__func__, "__code__", _NO_CODE))))
        else:
            self._add_mutable(value, names)

    def _add_mutable(self, value: Any, names: tuple[str, ...]) -> None:
        """Add a value that can change without notice: the entries of a small array."""
        if type(value) is not np.ndarray or value.nbytes > _MOST_BYTES or value.dtype.hasobject:
            raise Unguardable
        self.values += [value.dtype, value.ndim, *value.shape, value.tobytes()]

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


_MOST_ITEMS = 4096  # of captured containers, and bytes of an array, that are compared


def _numpy_state(generator: Any) -> Any:
    """The state of a RandomState, or of numpy's global one."""
    _, words, *rest = generator.get_state()
    return words.tobytes(), rest


def _torch_state(generator: Any) -> Any:
    torch = sys.modules["torch"]
    if torch._C._len_torch_dispatch_stack():  # a mode, under which tensors may have no memory
        return None
    with torch._C._DisableFuncTorch():  # torch.func wraps new tensors
        return generator.get_state().numpy().tobytes()


# How the state of a generator is read, by its type.
_GENERATORS: dict[str, Callable[[Any], Any]] = {
    "numpy.random._generator.Generator": lambda generator: repr(generator.bit_generator.state),
    "numpy.random.mtrand.RandomState": _numpy_state,
    "random.Random": lambda generator: generator.getstate(),
    "torch._C.Generator": _torch_state,
}
# Names of what makes generators, which are seeded by entropy if they are not given a seed.
_MAKE_GENERATORS = frozenset(
    ("default_rng", "RandomState", "SeedSequence", "Random", "SystemRandom", "secrets", "randbelow", "urandom")
)
# Global generators that functions of libraries draw from, which no captured object leads to.
_GLOBAL_GENERATORS: dict[str, Callable[[Any], Any]] = {
    "numpy.random": _numpy_state,
    "torch": lambda torch: _torch_state(torch.default_generator) if hasattr(torch, "default_generator") else None,
}


class Observation(_Dependencies):
    """What a function can change when it is called: the objects and variables that it captures, and generators.

    Attributes that the function does not name are not compared, nor are large containers and arrays. What an
    iterator has left cannot be read.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(None)
        self.has_iterator = self.makes_generators = False
        self._states: dict[str, list[Any]] = {}  # of mutable objects, by what they are called in a message
        self._n_left = _MOST_ITEMS
        self.add(function, ())
        for name, state_of in _GLOBAL_GENERATORS.items():
            if name in sys.modules:
                self._states[f"the random generator of {name}"] = [state_of(sys.modules[name])]

    def add_function(self, function: types.FunctionType) -> None:
        self.makes_generators |= not _MAKE_GENERATORS.isdisjoint(names_in(function.__code__))
        super().add_function(function)

    def change_since(self, before: Observation) -> str | None:
        """What has changed, for a message; None if nothing has."""
        for name, states in self._states.items():
            if states != before._states.get(name):
                return name
        # The number of variables, and identical objects, are compared first: that saves the texts of numbers.
        pairs = zip(self.values, before.values)
        is_same = len(self.values) == len(before.values) and all(
            a is b or _comparable(a) == _comparable(b) for a, b in pairs
        )
        return None if is_same else "a variable that it captures"

    def _add_mutable(self, value: Any, names: tuple[str, ...]) -> None:
        if self._n_left <= 0:
            return
        self._n_left -= 1
        kind = type(value)
        states = self._states.setdefault(f"a captured {kind.__qualname__}", [])
        state_of = _GENERATORS.get(f"{kind.__module__}.{kind.__qualname__}")
        if state_of is not None:
            states.append(state_of(value))
        elif isinstance(value, (np.ndarray, np.void)):
            states.append(value.tobytes() if value.nbytes <= _MOST_ITEMS else None)
        elif isinstance(value, (list, dict, set, deque, bytearray)):
            states.append(len(value))
            if len(value) <= self._n_left and self._is_new(value, names):
                items = [*value, *value.values()] if isinstance(value, dict) else [*value]
                self._n_left -= len(items)
                states += map(_comparable, items)
                for item in items:
                    self.add(item, names)
        elif isinstance(value, Iterator):
            self.has_iterator = True
        elif isinstance(value, functools._lru_cache_wrapper):  # its entries are no state
            self.add(value.__wrapped__, names)
        else:
            # A tensor counts its changes in place, but for one that was made in inference mode.
            states.append(None if getattr(value, "is_inference", bool)() else getattr(value, "_version", None))
            bases = [vars(base) for base in kind.__mro__[:-1]]
            call = next((base["__call__"] for base in bases if "__call__" in base), None)
            if isinstance(call, types.FunctionType):
                self.add_function(call)
                names = (*names, *names_in(call.__code__))
            self._add_attributes(value, [getattr(value, "__dict__", {}), *bases], names)


def root(function: Callable[..., Any]) -> Any:
    """The code of a function, which all function objects of one ``def`` or lambda share."""
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return getattr(function, "__code__", function)


def _comparable(value: Any) -> Any:
    """A key that is equal for equal numbers of one type, and for equal bytes; others are compared by identity."""
    if type(value) is bytes:
        return value
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
            code = root(function)
            collected = _Dependencies(code)
            collected.add(function, ())
            cache = self._functions.get(code)
            if cache is None:
                cache = self._functions.setdefault(code, _FunctionCache(self._maxsize))
        except (Unguardable, TypeError):  # TypeError: the function is not hashable, or has no weak references
            return None
        dependencies, (latest, entry) = collected.values, cache.latest
        # Identical objects are equal. Comparing by identity first saves the texts of numbers.
        if len(latest) == len(dependencies) and all(map(operator.is_, latest, dependencies)):
            return entry
        return cache.entry(dependencies)
