"""What calls have prepared and later ones use again: so many, of which the one that rested longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Kept"]

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """At most `most` values by their keys, for calls from several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def fetch_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The key's value; made outside of the lock, as that may take a compiler's time."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
