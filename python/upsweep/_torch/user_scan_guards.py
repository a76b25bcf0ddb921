"""Guards of what an update captures, for torch.compile.

A compiled graph has the numbers that an update captures as constants. torch's compiler guards the variables that
traced code reads, and compiles again when one has changed, but it does not trace an update. So `are_guarded`,
which it traces, reads the same variables; `_places` finds where they are, and is not traced.

Tensors, arrays and lists can change in place, which no guard sees: `user_scan_ops` leaves such scans to Python.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch._dynamo.comptime import comptime

from upsweep._compiler.recurrences.guards import Unguardable, is_from_library, names_in

# The steps from the update, or from the module of this name, to a variable: attributes, and keys of items.
Place = tuple[str | None, tuple[tuple[str, Any], ...]]

_IMMUTABLE = (
    type(None), bool, int, float, str, enum.Enum, type, torch.dtype, np.dtype, np.ufunc, type(np.where),
    types.BuiltinFunctionType,
)  # fmt: skip
_FUNCTIONS = types.FunctionType, types.MethodType, functools.partial
_DEFAULTS = "__defaults__", "__kwdefaults__"


class _Places:
    """The places of the variables that a function, and the functions that it calls, read from outside."""

    def __init__(self, update: Any) -> None:
        self.places: list[Place] = []
        self._visited: set[tuple[int, frozenset[str]]] = set()
        self._add(update, frozenset(), (None, ()))

    def _add(self, value: Any, names: frozenset[str], place: Place) -> None:
        """Add a value that code with these names reads; the names may be those of its attributes."""
        key = id(value), names
        if key in self._visited and not isinstance(value, _IMMUTABLE):
            return
        self._visited.add(key)
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.FunctionType):
            self.places.append(place)
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


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not typed here
def _places(update: Callable[..., Any]) -> tuple[Place, ...] | None:
    """Return where an update's variables are; None if a value can change in place."""
    try:
        return tuple(_Places(update).places)
    except Unguardable:
        return None


def _refuse_changing(context: Any) -> None:
    update = context.get_local("update")
    kind = update.python_type()
    if not issubclass(kind, _FUNCTIONS) or update.is_python_constant():
        return
    if issubclass(kind, types.MethodType):
        context.graph_break(
            "update: is a method, whose object can change; make it a @staticmethod, and pass what it reads of "
            "self in xs, where it broadcasts"
        )
    context.graph_break(
        "update: captures a tensor, or a number of the compiled function that has changed, which is no constant "
        "from then on; pass it in xs, where it broadcasts, or compile for each number by "
        "torch.compile(dynamic=False)"
    )


def _make_static(context: Any) -> None:
    context.get_local("value").force_static()


def are_guarded(update: Callable[..., Any]) -> bool:
    """Read, in traced code, all that the update captures; return False if that is no guard."""
    if not torch.compiler.is_dynamo_compiling():
        return True  # torch.export takes the values as constants, and runs this code itself
    comptime(_refuse_changing)
    places = _places(update)
    if places is None:
        return False
    for module, steps in places:
        value: Any = update if module is None else sys.modules[module]
        try:
            for kind, key in steps:
                if key in _DEFAULTS:
                    value.__closure__  # noqa: B018  # raises as below; of defaults the compiler fails
                value = getattr(value, key) if kind == "attribute" else value[key]
        except AttributeError:
            # A function that traced code has made; the numbers in its closure are constants of that code.
            if sum(key == "__closure__" or key in _DEFAULTS for _, key in steps) > 1:
                return False
            continue
        if isinstance(value, (int, float)):
            comptime(_make_static)
    return True
