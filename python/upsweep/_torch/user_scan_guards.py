"""Guards of what an update captures, for torch.compile.

A compiled graph has the numbers that an update captures as constants. torch's compiler guards the variables that
traced code reads, and compiles again when one has changed, but it does not trace an update. So `read_captured`,
which it traces, reads the same variables; `_places` finds where they are, and is not traced.

Tensors, arrays and lists can change in place, which no guard sees. Nor does every version of torch guard all that
traced code reads: 2.11 takes attributes of classes as constants. `graph_break_of` says for which scans a guard is
missing, and `user_scan_ops` leaves these to Python.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch._dynamo.comptime import comptime
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import is_from_local_source

from upsweep._compiler.recurrences.guards import Unguardable, is_from_library, names_in

# The steps from the update, or from the module of this name, to a variable: attributes, and keys of items.
Place = tuple[str | None, tuple[tuple[str, Any], ...]]

_IMMUTABLE = (
    type(None), bool, int, float, str, enum.Enum, type, torch.dtype, np.dtype, np.ufunc, type(np.where),
    types.BuiltinFunctionType,
)  # fmt: skip
_FUNCTIONS = types.FunctionType, types.MethodType, functools.partial
# Parts of a function with the numbers that it captures, and the steps from the part to a number.
_PARTS = {"__closure__": 2, "__defaults__": 1, "__kwdefaults__": 1}
_OF_PARTIAL = "func", "args", "keywords"
_MOST_ADDED = 1000  # values; modules that import each other are on very many paths
_HANDS_OBJECTS_ON = torch.__version__ >= (2, 13)  # the compiler, to functions that it does not trace


class _Places:
    """The places of the variables that a function, and the functions that it calls, read from outside."""

    def __init__(self, update: Any) -> None:
        self.places: list[Place] = []
        self._path: list[tuple[int, frozenset[str]]] = []  # of the value being added, to end recursion
        self._n_added = 0
        self._add(update, frozenset(), (None, ()))

    def _add(self, value: Any, names: frozenset[str], place: Place) -> None:
        """Add a value that code with these names reads; the names may be those of its attributes."""
        if isinstance(value, types.FunctionType):
            self.places.append(place)
        key = id(value), names
        if key in self._path:
            return
        self._n_added += 1
        if self._n_added > _MOST_ADDED:
            raise Unguardable
        self._path.append(key)
        self._add_parts(value, names, place)
        self._path.pop()

    def _add_parts(self, value: Any, names: frozenset[str], place: Place) -> None:
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.FunctionType):
            self._add_function(value, place)
        elif isinstance(value, types.MethodType):
            names |= {*names_in(value.__func__.__code__)}
            self._add_attributes(value, names, place, ["__func__", "__self__"])
        elif isinstance(value, functools.partial):
            self._add_attributes(value, names, place, ["func", "args"])
            self._add_items(value.keywords.items(), names, _step(place, "attribute", "keywords"))
        elif isinstance(value, tuple):
            self._add_items(enumerate(value), names, place)
        elif isinstance(value, types.ModuleType):
            if not is_from_library(value):
                self._add_attributes(value, names, place, names)
        elif isinstance(value, enum.Enum):
            self.places.append(_step(place, "attribute", "_name_"))  # the type of the object is guarded with it
        elif isinstance(value, _IMMUTABLE) and isinstance(owner, (types.ModuleType, type, type(None))):
            self.places.append(place)
            if isinstance(value, type) and not is_from_library(value):
                self._add_attributes(value, names, place, names)
        elif is_from_library(type(value)):
            raise Unguardable
        else:
            self._add_attributes(value, names, place, [*names, "__call__"])

    def _add_function(self, function: types.FunctionType, place: Place) -> None:
        names = frozenset(names_in(function.__code__))
        namespace = {} if is_from_library(function) else function.__globals__
        module = str(namespace.get("__name__"))
        if any(name in namespace for name in names) and vars(sys.modules.get(module, types)) is not namespace:
            raise Unguardable
        for name in names & namespace.keys():
            self._add(namespace[name], names, (module, (("attribute", name),)))
        for n, cell in enumerate(function.__closure__ or ()):
            at = _step(_step(place, "attribute", "__closure__"), "item", n)
            self._add_attributes(cell, names, at, ["cell_contents"])
        self._add_items(enumerate(function.__defaults__ or ()), names, _step(place, "attribute", "__defaults__"))
        keywords = function.__kwdefaults__ or {}
        self._add_items(keywords.items(), names, _step(place, "attribute", "__kwdefaults__"))

    def _add_items(self, items: Iterable[tuple[Any, Any]], names: frozenset[str], place: Place) -> None:
        for key, item in items:
            self._add(item, names, _step(place, "item", key))

    def _add_attributes(self, owner: Any, names: frozenset[str], place: Place, attributes: Iterable[str]) -> None:
        for name in attributes:
            if isinstance(inspect.getattr_static(owner, name, None), property):
                raise Unguardable
            if hasattr(owner, name):
                self._add(getattr(owner, name), names, _step(place, "attribute", name))


def _step(place: Place, kind: str, key: Any) -> Place:
    return place[0], (*place[1], (kind, key))


class _Trace(threading.local):
    """What the callbacks of `comptime` have seen in the code that this thread's compiler is tracing."""

    noted: Any = None  # the answer to the latest question of traced code
    graph: Any = None  # the graph that the guards of the latest update belong to
    graph_break: str | None = None  # the name of the graph break that the latest update needs


_trace = _Trace()


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not typed here
def _noted() -> Any:
    """Return what the latest callback has noted."""
    return _trace.noted


@torch.compiler.disable  # type: ignore[untyped-decorator]  # where a graph break has Python call `_places`
def _find(update: Callable[..., Any]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(_Places(update).places))


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not typed here
def _places(update: Callable[..., Any]) -> tuple[Place, ...]:
    """Return where an update's variables are; note a graph break if a value can change in place."""
    try:
        return _find(update)
    except Unguardable:
        _trace.graph_break = "scan"
        return ()


def _source(value: Any) -> Any:
    """Where a compiled function reads a value again, to compare it; None for what no guard compares."""
    return value._i_will_not_complain_if_bc_breaks_VariableTracker().source


def _note_update(context: Any) -> None:
    update = context.get_local("update")
    kind, name = update.python_type(), None
    if not update.is_python_constant():
        if issubclass(kind, types.MethodType):
            name = "scan_by_method"
        elif issubclass(kind, _FUNCTIONS):
            name = "scan_by_changing"
        elif not (_HANDS_OBJECTS_ON and _source(update) is not None):
            name = "scan"
    _trace.noted = _trace.graph_break = name
    _trace.graph = context.graph()


def _note_new_function(context: Any) -> None:
    """Note whether traced code has made the function `value`: the numbers that it captures are constants then."""
    _trace.noted = _source(context.get_local("value")) is None
    if _trace.noted:
        steps, n = (context.get_local(name).as_python_constant() for name in ("steps", "n"))
        if any(kind != "item" for kind, _ in steps[n + 1 + _PARTS[steps[n][1]] :]):
            _trace.graph_break = "scan"  # an attribute, or what another function captures, can change


def _guard(context: Any) -> None:
    """Guard the variable `value`; note a graph break if the compiler does not."""
    value = context.get_local("value")
    module, steps = (context.get_local(name).as_python_constant() for name in ("module", "steps"))
    source, root = _source(value), _source(context.get_local("update")) if module is None else None
    kind = value.python_type()
    is_number = issubclass(kind, (int, float, np.ndarray))
    if issubclass(kind, np.ndarray):  # what the compiler takes numpy's float64 for; `_Places` refuses arrays
        if source is not None:
            install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
    elif is_number:
        value.force_static()
    if source is not None:
        # An object that is also reached from another scope is guarded there, and maybe not here.
        is_global = module is not None or (root is not None and not is_from_local_source(root))
        is_guarded = is_from_local_source(source) != is_global or (module is None and root is None)
    else:
        # An update that traced code has made, and the arguments that it has bound, are constants of that code.
        is_guarded = (
            module is None and root is None and all(kind == "item" or key in _OF_PARTIAL for kind, key in steps)
        )
    if not (is_guarded and (is_number or value.is_python_constant())):
        _trace.graph_break = "scan"


def _note_graph_break(context: Any) -> None:
    # Another graph has other guards: `read_captured` was not traced as a part of this one.
    _trace.noted = _trace.graph_break if context.graph() is _trace.graph else "scan"
    _trace.graph = None


def read_captured(update: Callable[..., Any]) -> None:
    """Read, in traced code, all that the update captures."""
    comptime(_note_update)
    if _noted():
        return
    for module, steps in _places(update):
        value: Any = update if module is None else sys.modules[module]
        for n, (kind, key) in enumerate(steps):  # noqa: B007  # a callback reads n
            if key in _PARTS:
                comptime(_note_new_function)
                if _noted():
                    break
            value = getattr(value, key) if kind == "attribute" else value[key]
        else:
            comptime(_guard)


def graph_break_of() -> str | None:
    """Return the name of the graph break that the latest update needs; None if all that it captures is guarded."""
    comptime(_note_graph_break)
    name: str | None = _noted()
    return name
