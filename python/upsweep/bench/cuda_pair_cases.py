"""Reductions over pairs that are measured on a GPU, and how many milliseconds each may take. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """One reduction to time, of points in the unit cube; or, without points, the first use of a formula.

    `cells`: block-sparse, of points in the plane cut into so many cells along each side, of which those are kept
    whose centres are so near that about a `share` of the pairs is.
    """

    reduction: str  # "sum" of a Gaussian, "logsumexp", "argKmin" or "first use"
    n_rows: int = 0
    n_columns: int = 0
    dim: int = 3
    bar: float | None = None  # milliseconds
    dtype: str = "float32"
    gradients: bool = False
    cells: int | None = None
    share: float = 1.0
    peers: tuple[tuple[str, float | None], ...] = ()
    figure: str = "ms"

    @property
    def name(self) -> str:
        if self.reduction == "first use":
            return "first use of a formula"
        what = {"sum": "Gaussian sum", "argKmin": "argKmin(10)"}.get(self.reduction, self.reduction)
        words = [f"{what}, D={self.dim}, {self.n_rows:,} x {self.n_columns:,}"]
        words += ["and its gradient in x"] * self.gradients
        words += [f"in {self.cells} x {self.cells} cells"] * (self.cells is not None)
        return " ".join(words)

    @property
    def length(self) -> int:
        return self.n_columns

    @property
    def family(self) -> str:
        """What cases that differ in their number of columns only have in common."""
        return f"{self.reduction}, D={self.dim}, {self.dtype}"

    @property
    def scale(self) -> float:
        """What squared distances are multiplied by in the exponential: those of cells decay within a few."""
        return 1.5 / self.dim if self.cells is None else 200.0


def cases(quick: bool = False) -> Iterator[Case]:
    """Every case; `quick`: those of some milliseconds."""
    yield Case("first use", bar=300.0)
    yield Case("sum", 10_000, 10_000, bar=0.08)
    yield Case("sum", 100_000, 100_000, bar=3.2)
    yield Case("sum", 1_000, 10_000_000, bar=4.0)
    yield Case("logsumexp", 100_000, 100_000, bar=4.0)
    yield Case("argKmin", 100_000, 100_000, bar=6.0)
    yield Case("sum", 200_000, 200_000, dim=2, bar=1.0, cells=24, share=0.064)
    if quick:
        return
    yield Case("sum", 1_000_000, 1_000_000, dim=2, bar=14.0, cells=33, share=0.0445)
    yield Case("sum", 1_000_000, 1_000_000, bar=300.0)
    yield Case("sum", 1_000_000, 1_000_000, bar=700.0, gradients=True)
    yield Case("sum", 100_000, 100_000, dtype="float64")
    yield Case("sum", 100_000, 100_000, dtype="float16")
    yield Case("sum", 100_000, 100_000, dim=10)
    yield Case("sum", 100_000, 100_000, dim=50)
    yield Case("sum", 100_000, 100_000, dim=100, bar=30.0)
    yield Case("sum", 100_000, 100_000, dim=500)
    yield Case("argKmin", 100_000, 100_000, dim=100, bar=35.0)
