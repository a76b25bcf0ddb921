"""What commands print: tables, and a progress bar on stderr, shown on terminals after the first second."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

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


def format_table(rows: Sequence[Sequence[str]], alignments: str) -> str:
    """Return rows of cells as lines of aligned columns; a column's alignment is "<" or ">"."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignments, widths)).rstrip()
        for row in rows
    )
