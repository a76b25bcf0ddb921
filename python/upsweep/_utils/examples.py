"""`Examples` sections of docstrings, for methods whose examples differ in one line.

Operations and reductions of a `LazyTensor`, the methods of `te` stages, and functions created from a table: the
lines that create the operands are written once for all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])  # or a class


def with_example(*lines: str, sections: str = "") -> Callable[[Function], Function]:
    """A decorator that appends sections and an example, the lines of an interactive session, to a docstring."""

    def decorate(function: Function) -> Function:
        # Docstrings are None under -OO.
        parts = [inspect.cleandoc(function.__doc__ or ""), inspect.cleandoc(sections)]
        parts.append("\n".join(["Examples", "--------", *lines, ""]))
        function.__doc__ = "\n\n".join(filter(None, parts))
        return function

    return decorate


def named(function: Function, name: str, doc: str, owner: str = "") -> Function:
    """A generated function with its name, the class it belongs to, and its docstring."""
    function.__name__, function.__qualname__, function.__doc__ = name, f"{owner}{owner and '.'}{name}", doc
    return function
