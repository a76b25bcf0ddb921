from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class Kernel:
    """A compiled function of steps."""

    def __init__(
        self, *, steps: int, turn: int, code: object, bits: int, lanes: int, group: int, tiled: int, n_states: int
    ) -> None: ...

class Sums:
    """A compiled function of chunks' sums, and its numbers."""

    def __init__(self, *, sums: int, code: object, vectors_at_once: int, params: NDArray[Any]) -> None: ...

def scan(
    kernel: Kernel,
    params: NDArray[Any],
    inputs: Sequence[NDArray[Any]],
    input_shared: Sequence[bool],
    outputs: Sequence[NDArray[Any]],
    state: NDArray[Any],
    dims: tuple[int, ...],
    length: int,
    cost: float,
    n_threads: int,
    reduce: Kernel | None = None,
    reduce_params: NDArray[Any] | None = None,
    kind: str = "affine",
    varies: bool = False,
    decides: int = 0,
    keeps_ties: bool = True,
    matrix: Sequence[float] = (),
    start: Sequence[float] = (),
    sums: Sums | None = None,
) -> None:
    """Run over all steps; writes outputs and state."""
