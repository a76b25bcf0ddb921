from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

def poll_address() -> int:
    """The address of the function that compiled loops ask whether to end."""

class Plan:
    """A kernel, and what it takes for arrays of the shapes, strides and dtypes of some."""

    def __init__(
        self,
        name: str,
        address: int,
        code: object,
        numbers: Sequence[int],
        places: Sequence[int],
        arrays: Sequence[NDArray[Any]],
        are_outputs: Sequence[bool],
        scratch: Sequence[tuple[int, int]],
        n_new: int,
        work: float,
    ) -> None: ...
    def run(self, arrays: tuple[Any, ...], n_threads: int) -> Any:
        """Run on arrays; the new ones, None, or NotImplemented for arrays that are not such or overlap."""
