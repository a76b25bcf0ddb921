"""Symbolic numbers, with which an update is called once to trace it.

A symbol has a node and a dtype, and no value: Python cannot branch on it. `promotion` finds the dtypes that numpy
would return, `operations` gives symbols their operators and has the functions of them, `functions` adds those that
are made of others, `protocols` leads functions of numpy, scipy and torch to them, and `lookups` lets symbols be
indices.

Several numbers are an array of Python objects, a `Vector`, on which numpy's own code runs: products with small
matrices, for example, are unrolled.
"""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node

_LIBRARIES = ("upsweep", "numpy", "torch", "scipy", "pandas")  # whose lines are not the user's


def _package(frame: types.FrameType) -> str:
    """The package whose code runs."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def user_line() -> str:
    """The line of the user's program that is running: ``FILE, line 3: the text of the line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _LIBRARIES:
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}, line {line}" + (f": {text}" if text else "")


def refusal(what: str, remedy: str) -> TypeError:
    """The error for something that has no symbolic form, with the user's line."""
    return TypeError(f"update: {what} in {user_line()}\n{remedy}")


# The refused uses of values in the run of an update, which may have caught the errors.
refused_values: ContextVar[list[TypeError] | None] = ContextVar("refused_values", default=None)


def refusal_of_value(what: str, remedy: str) -> TypeError:
    """The error where an update takes another path than with numbers if it catches it: it is raised again."""
    error = refusal(what, remedy)
    refused = refused_values.get()
    if refused is not None:
        refused.append(error)
    return error


class Symbol:
    """A number whose value is known only when the scan runs; its dtype is int or None for Python's own numbers."""

    __slots__ = ("dtype", "node")
    node: Node
    dtype: np.dtype[Any] | type[int] | None

    def __init__(self, node: Node, dtype: np.dtype[Any] | type[int] | None) -> None:
        self.node, self.dtype = node, dtype

    def __repr__(self) -> str:
        return f"<symbolic {self.dtype or 'number'}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # Numpy asks for this for each element of np.array([p, q]) too. pandas reads an array of objects by itself:
        # pd.isna would be False.
        if _package(sys._getframe(1)) == "pandas":
            raise refusal("a symbolic value in a function of pandas", "take numpy's: np.isnan(x), with np.where")
        if dtype is None or np.dtype(dtype).kind == "O":
            return as_objects(self)
        raise refusal(
            "a symbolic value as an array",
            "take np.stack of several, np.sum(s) / len(s) for np.mean(s), and x.astype(dtype) for np.float32(x); "
            "random numbers are drawn before the scan, into xs",
        )

    def __pos__(self) -> Symbol:
        return self

    def __hash__(self) -> int:
        # By identity, a set would never have it, and dict.get would return the default at every step.
        raise refusal(
            "a symbolic value as a key of a dict or a set",
            "take a tuple or an array as the table, table[state]; for membership write (x == 1) | (x == 2)",
        )


class Vector(np.ndarray[Any, Any]):
    """A small array of symbols and numbers, as an array of Python objects, whose functions go to its elements."""


# As messages of Python and of libraries name them.
Symbol.__name__ = Symbol.__qualname__ = "symbolic number"
Vector.__name__ = Vector.__qualname__ = "array of symbolic numbers"


def as_objects(value: Any) -> Any:
    """An operand as an array of objects, which no protocol of symbols is called for."""
    if isinstance(value, Symbol):
        boxed = np.empty((), object)
        boxed[()] = value
        return boxed
    return np.asarray(value, object)


def as_vector(value: Any) -> Any:
    """The result of numpy's code on arrays of objects."""
    if isinstance(value, tuple):
        return tuple(map(as_vector, value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value.view(Vector) if value.ndim else value[()]
    return value


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def number_of(tensor: Any) -> Any:
    """A captured tensor as a Python number, if it has one element, else as an array."""
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise refusal(
            "a captured tensor that requires a gradient",
            "it would get none: hand it over in xs or init, where it broadcasts and gets its gradient; of a table "
            "that ids index, table[ids] in xs",
        )
    if sys.modules["torch"]._C._functorch.is_batchedtensor(tensor):
        raise refusal("a captured tensor that vmap maps", "pass it in xs, where it broadcasts")
    if tensor.device.type != "cpu":
        raise refusal(
            f"a captured tensor on {tensor.device}",
            "reading it would wait for the device: hand it over in xs, where it broadcasts, or pass float(tensor)",
        )
    return tensor.item() if tensor.numel() == 1 and not tensor.ndim else np.asarray(tensor)


def _refusing(refusal: Callable[[str, str], TypeError], what: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(what, remedy)

    return refuse


_TUPLES = "several states, inputs or outputs are tuples: init=tuple(init), xs=tuple(x.T)"
NOT_A_NUMBER = (
    "a symbolic value as a Python number",
    "use numpy's functions (np.exp, np.tanh, ...), not those of math, and x.astype(dtype), not int(x)",
)
for _name, _refused in {
    "bool": (
        "a Python branch on a symbolic value",
        "the update is traced once, and its values are not known then: choose by np.where(condition, a, b), "
        "combine conditions by & | ~ in place of and, or, not and chains (a < b < c), and take np.minimum, "
        "np.maximum and np.clip in place of min, max and sorted, np.max(np.stack([a, b])) in place of "
        "np.max([a, b]), and np.stack in place of np.array",
    ),
    **dict.fromkeys(("float", "int", "complex"), NOT_A_NUMBER),
    "iter": ("a symbolic number is iterated over", _TUPLES),
    "getitem": (
        "an index of a symbolic number",
        f"the update is of single numbers, of all columns alike; {_TUPLES}",
    ),
    **dict.fromkeys(
        ("matmul", "rmatmul"),
        (
            "a matrix product with a symbolic number",
            "several states are a tuple, init=(0.0, 0.0), and in the update A @ np.stack(state)",
        ),
    ),
}.items():
    _error = refusal_of_value if _name in ("bool", "float", "int", "complex") else refusal
    setattr(Symbol, f"__{_name}__", _refusing(_error, *_refused))
