"""A progress bar on stderr: for people at a terminal, after the first second, gone when done."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["Progress"]

_WIDTH = 30
_PATIENCE = 1.0  # seconds; what is over by then needs no bar


class Progress:
    """A context in which `update` draws the bar."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        if not sys.stderr.isatty() or time.monotonic() - self._begin < _PATIENCE:
            return
        filled = _WIDTH * done // max(total, 1)
        sys.stderr.write(f"\r{self._label} [{'=' * filled}{' ' * (_WIDTH - filled)}] {done}/{total}")
        sys.stderr.flush()
        self._drawn = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
