"""Linear filters of numpy arrays (src/bindings/_filters.pyx); one build per instruction set."""

from typing import Any

from numpy.typing import NDArray

def lfilter(
    b: NDArray[Any],
    a: NDArray[Any],
    x: NDArray[Any],
    initial: NDArray[Any] | None,
    y: NDArray[Any],
    final_state: NDArray[Any] | None,
    n_threads: int,
) -> None:
    """Filter x along the second of its three axes, and write y and, if asked for, the states after the last step.

    b, a, initial and final_state are of one dtype, that of the computation: float64, complex128, longdouble or
    clongdouble. With the first two, x and y may have other dtypes. All but x are in C order.
    """
