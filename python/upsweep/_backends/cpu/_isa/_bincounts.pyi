"""Counts of integer keys (src/bindings/_bincounts.pyx); one build per instruction set, in `_isa/<level>/`."""

from typing import Any

from numpy.typing import NDArray

class Counter:
    """One call: keys (..., n), and weights (..., n) or (..., n, k), which `with_sums` tells, or None.

    `scan_keys` has to come before `write`.
    """

    def __init__(
        self,
        keys: NDArray[Any],
        weights: NDArray[Any] | None,
        *,
        with_sums: bool,
        integers: bool,
        n_bins: int,
        least: int,
        drop: bool,
        n_threads: int,
    ) -> None: ...
    def scan_keys(self) -> tuple[int, bool]:
        """(number of bins, whether keys outside them have to be refused)."""

    def write(self, result: NDArray[Any], overwrite: bool) -> None:
        """Write counts (int64) or sums (float64, complex128, 64-bit integers) to the contiguous ``result``,
        (..., bins) or (..., bins, k), or add them to what it holds. Without memory for its tables it raises
        MemoryError, and ``result`` is as it was."""

    def first_outside(self, n_bins: int) -> int:
        """The position in C order of the first key that is negative or `n_bins` and more, -1: none."""

    def count_outside(self, n_bins: int) -> int:
        """How many keys are negative or `n_bins` and more."""

def plain(x: Any, weights: Any, minlength: Any, n_threads: int) -> NDArray[Any] | None:
    """Counts of one row of keys, or sums of real weights in float64; None when it is not that plain."""
