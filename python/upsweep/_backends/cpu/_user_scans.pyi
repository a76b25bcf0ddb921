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

class Plan:
    """A scan over arrays of some shapes, strides and dtypes, ready to run on others."""

    def __init__(
        self,
        kernel: Kernel,
        params: NDArray[Any],
        inputs: Sequence[NDArray[Any]],
        input_shared: Sequence[bool],
        integer_inputs: Sequence[bool],
        outputs: Sequence[NDArray[Any]],
        integer_outputs: Sequence[bool],
        dims: tuple[int, ...],
        length: int,
        cost: float,
        reduce: Kernel | None = None,
        reduce_params: NDArray[Any] | None = None,
        kind: str = "affine",
        varies: bool = False,
        decides: int = 0,
        keeps_ties: bool = True,
        matrix: Sequence[float] = (),
        start: Sequence[float] = (),
        sums: Sums | None = None,
    ) -> None: ...
    def run(
        self,
        inputs: list[NDArray[Any]],
        outputs: list[NDArray[Any]],
        offsets: Sequence[int],
        state: NDArray[Any],
        n_threads: int,
    ) -> None:
        """Run over all steps; writes outputs and state."""

class Spans:
    """Which bytes arrays reach, from their addresses: whether outputs lie over inputs, or each other."""

    def __init__(
        self, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]], alike: Sequence[bool]
    ) -> None: ...
    def are_apart(self, inputs: list[NDArray[Any]], outputs: list[NDArray[Any]]) -> bool:
        """Whether such outputs can be written while the inputs are read."""
