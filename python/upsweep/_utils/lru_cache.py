"""A thread-safe LRU cache, for everything that calls prepare once and later calls use again.

Functions of hashable arguments alone use `functools.lru_cache`. This class serves values that are stored under a
key of the caller's, and values whose construction runs a compiler.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """A mapping of at most `maxsize` entries; a new entry replaces the least recently used one."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize, self._lock = maxsize, threading.Lock()
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def __reduce__(self) -> tuple[type[LRUCache[Key, Value]], tuple[int]]:
        """Pickles and copies are empty: entries, such as compiled code, are built again where they are used."""
        return type(self), (self._maxsize,)

    def get(self, key: Key) -> Value | None:
        """Return the value of `key`, or None. Takes no lock: both operations on the mapping are atomic."""
        value = self._entries.get(key)
        if value is not None:
            try:  # noqa: SIM105  # contextlib.suppress takes longer than the rest
                self._entries.move_to_end(key)
            except KeyError:  # another thread has evicted it meanwhile
                pass
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            self._evict()

    def get_or_build(self, key: Key, build: Callable[[], Value]) -> Value:
        """Return the value of `key`; call `build` and store its result if there is none.

        `build` runs outside the lock, because it may run a compiler. Two threads may build the same value; both
        get the one that was stored first.
        """
        value = self.get(key)
        if value is None:
            built = build()
            with self._lock:
                value = self._entries.setdefault(key, built)
                self._evict()
        return value

    def _evict(self) -> None:
        while len(self._entries) > self._maxsize:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
