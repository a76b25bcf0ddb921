"""What commands print: tables, and a progress bar on stderr, shown on terminals after the first second.

Long calls of the library show theirs by `CallProgress`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import Any

_WIDTH = 30
_DELAY = 1.0  # seconds before the bar is drawn


class Progress:
    """A context in which `update` draws the bar."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, total: int) -> None:
        """Draw the bar for `done` of `total` units of work."""
        if not sys.stderr.isatty() or time.monotonic() - self._begin < _DELAY:
            return
        filled = _WIDTH * done // max(total, 1)
        sys.stderr.write(f"\r{self._label} [{'=' * filled}{' ' * (_WIDTH - filled)}] {done}/{total}")
        sys.stderr.flush()
        self._drawn = True

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class CallProgress:
    """The progress of a call after `delay` seconds: by tqdm if that is installed, else one line on stderr."""

    def __init__(self, label: str, delay: float) -> None:
        self._label, self._end = label, time.monotonic() + delay
        self._bar: Any = None
        self._drawn = False

    def __enter__(self) -> CallProgress:
        return self

    def update(self, done: int, total: int, note: str) -> None:
        """Show `done` of at most `total` units of work, and a note."""
        if time.monotonic() < self._end:
            return
        if self._bar is None and not self._drawn and importlib.util.find_spec("tqdm") is not None:
            self._bar = importlib.import_module("tqdm.auto").tqdm(desc=self._label, total=total, leave=False)
        if self._bar is not None:
            self._bar.n = done
            self._bar.set_postfix_str(note)  # draws, as often as tqdm allows
        elif sys.stderr.isatty() or not self._drawn:
            end = "\r" if sys.stderr.isatty() else "\n"
            sys.stderr.write(f"{self._label}: {done} of at most {total}, {note} (silenced by progress=False){end}")
            sys.stderr.flush()
            self._drawn = True

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._drawn and sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def format_table(rows: Sequence[Sequence[str]], alignments: str) -> str:
    """Return rows of cells as lines of aligned columns; a column's alignment is "<" or ">"."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignments, widths)).rstrip()
        for row in rows
    )
