"""Registry of the functions that torch.compile leaves to Python: what they return depends on values of tensors.

The decorator `graph_break` marks such a function. A call that is being traced goes to the function of the same
name in `compiler_disabled` instead, where tracing stops. This module knows none of the functions, so that they can
import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MARKED: dict[str, tuple[Callable[..., Any], str]] = {}  # by name: the function and the reason that users see


def graph_break(reason: str, name: str | None = None) -> Callable[[F], F]:
    """Return a decorator that registers a function, by its own name or another, and leaves it as it is."""

    def decorate(function: F) -> F:
        MARKED[name or function.__name__] = function, reason
        return function

    return decorate
