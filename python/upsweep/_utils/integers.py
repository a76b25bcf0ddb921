"""Checks of integer arguments: axes, sizes, numbers of steps, bins, threads and neighbours."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any, name: str, expected: str = "expected an integer") -> int:
    """The argument as a Python integer: it has ``__index__``, and is no bool, which numpy refuses, too."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool) and "bool" not in str(getattr(value, "dtype", "")):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name}: {expected}, got {value!r}")


def as_size(value: Any, name: str, least: int = 0, expected: str = "expected an integer", unit: str = "") -> int:
    """The argument as a Python integer of at least `least`; `unit` says in errors what it counts."""
    size = as_integer(value, name, expected)
    if size < least:
        raise ValueError(f"{name}: expected at least {least}{unit and ' '}{unit}, got {size}")
    return size
