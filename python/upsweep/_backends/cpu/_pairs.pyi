"""Reductions over pairs by compiled tiles (src/bindings/_pairs.pyx).

There is one build, since the tiles are compiled for this machine.
"""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

class Plan:
    """The tasks of one set of ranges, for kernels of as many lanes."""

    @property
    def lanes_are_columns(self) -> bool:
        """Whether rows are so few that lanes hold columns."""

class Kernel:
    """A compiled reduction: its tiles, and what the driver has to know of it.

    ``components`` are, for rows, columns and parameters, a list of (position, dim) in the order of the packed
    record. ``compile`` takes "rows" or "columns", what the lanes are, and returns the address of the tile,
    that of the function which gives each column ``n_prepared`` more numbers, the bytes of its workspace, and an
    object in which the code lives; it is called when the first problem needs that tile."""

    def __init__(
        self,
        *,
        compile: Callable[[str], tuple[int, int, int, object]],
        kind: str,
        bits: int,
        accumulator_bits: int,
        lanes: int,
        largest: bool,
        indexed: bool,
        n_sums: int,
        inserts: bool,
        dim: int,
        k: int,
        cost: float,
        n_prepared: int,
        components: Sequence[Sequence[tuple[int, int]]],
        wants_values: bool,
        wants_indices: bool,
        n_values: int,
    ) -> None: ...
    @property
    def wants_values(self) -> bool: ...
    @property
    def wants_indices(self) -> bool: ...
    @property
    def n_values(self) -> int: ...
    def plan(self, n_rows: int, n_columns: int, triple: Sequence[NDArray[Any]]) -> Plan:
        """The plan of a triple of ranges, three int64 arrays in C order."""

    def run(
        self,
        arrays: Sequence[NDArray[Any]],
        n_rows: int,
        n_columns: int,
        batch: tuple[int, ...],
        plans: Plan | list[Plan] | None,
        n_threads: int,
    ) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """The values and the indices, (batch, rows, ...) each, or None where one is not wanted.

        ``arrays`` are ndarrays of the kernel's dtype; ``plans`` one for all batch entries, a list of one for
        each, or None: all columns for every row.
        """
