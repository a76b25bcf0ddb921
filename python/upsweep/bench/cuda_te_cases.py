"""Cases of te's programs on CUDA, and their bars."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """A cumulative sum over columns, of `shape`; or an LSTM of (steps, batch, hidden)."""

    program: str
    shape: tuple[int, ...]
    bar: float
    dtype: str = "float32"
    peers: tuple[tuple[str, float | None], ...] = ()  # those of other packages: none

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.shape)
        return f"te {'LSTM' if self.program == 'lstm' else 'sum over columns'} ({sizes})"

    @property
    def length(self) -> int:
        return self.shape[0]

    @property
    def family(self) -> str:
        """What cases that differ in their number of steps only have in common."""
        return f"te {self.program} {self.shape[1:]}, {self.dtype}"

    @property
    def n_bytes(self) -> int:
        """The fewest bytes that the call can move."""
        steps, *rest = self.shape
        width = rest[0] * (rest[1] if len(rest) > 1 else 1)
        weights = 8 * rest[1] ** 2 if len(rest) > 1 else 0
        return 4 * (steps * width * (3 if weights else 2) + weights)


def cases(quick: bool = False) -> list[Case]:
    """Every case; `quick`: without the large ones."""
    found = [
        Case("columns", (1024, 1024), 0.05),
        Case("columns", (16384, 65536), 0.8),
        Case("lstm", (1000, 64, 128), 8.0),
        Case("lstm", (200, 1024, 128), 20.0),
    ]
    return [case for case in found if case.n_bytes < 1 << 28] if quick else found
