"""Linear systems whose matrix is a reduction over pairs, by conjugate gradients.

`KernelSolve` takes a formula as text, `LazyTensor.solve` one of arrays; both call `solve`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._utils.integers import as_size
from upsweep.pairs.function import PairFunction
from upsweep.pairs.genred import Genred


class KernelSolve:
    """The solution a of ``(K + alpha) a = b``, where K is a positive definite sum over pairs, linear in a.

    Parameters
    ----------
    formula : str
        The formula of the sum, such as ``"Exp(-SqDist(x, y)) * a"``.
    aliases : sequence of str
        The inputs, as of `Genred`, with the unknown a among them.
    varinvalias : str
        The name of the unknown.
    axis, dtype, opt_arg, dtype_acc, use_double_acc, sum_scheme, enable_chunks, rec_multVar_highdim, use_fast_math
        As of `Genred`.

    Raises
    ------
    ValueError
        No alias has that name; errors of `Genred`.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import KernelSolve
    >>> aliases = ["x = Vi(1)", "y = Vj(1)", "a = Vj(1)"]
    >>> solve = KernelSolve("Exp(-SqDist(x, y)) * a", aliases, "a", axis=1)
    >>> x, b = np.array([[0.0], [1.0]]), np.array([[1.0], [0.0]])
    >>> a = solve(x, x, b, alpha=1.0)
    >>> np.allclose((np.exp(-((x - x.T) ** 2)) + np.eye(2)) @ a, b)
    True
    """

    def __init__(
        self, formula: str, aliases: Sequence[str], varinvalias: str, axis: int = 0, dtype: Any = None,
        opt_arg: Any = None, dtype_acc: str = "auto", use_double_acc: bool = False, sum_scheme: str = "auto",
        enable_chunks: bool = True, rec_multVar_highdim: Any = None, use_fast_math: bool = True,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"use_double_acc": use_double_acc, "sum_scheme": sum_scheme}
        self._function = Genred(formula, aliases, "Sum", axis, dtype_acc=dtype_acc, **options)._function
        names = [each.name for each in self._function.inputs]
        if varinvalias not in names:
            raise ValueError(f"varinvalias: expected one of {', '.join(names)}, got {varinvalias!r}")
        self._position = names.index(varinvalias)

    def __call__(
        self, *args: Any, backend: str = "auto", device_id: int = -1, alpha: float = 1e-10, eps: float = 1e-6,
        ranges: Any = None, max_iterations: int | None = None, n_threads: int | None = None,
    ) -> Any:  # fmt: skip
        """Solve for these arrays.

        Parameters
        ----------
        *args : arrays
            One for each alias; the right-hand side b at the position of the unknown.
        backend, device_id, ranges, n_threads
            As of a call of `Genred`.
        alpha : float
            Added to the diagonal.
        eps : float
            The iteration ends when the root mean square of the residual is below this.
        max_iterations : int, optional
            The most products with the matrix; by default 10 times the number of rows, at least 100.

        Returns
        -------
        array of b's shape

        Warns
        -----
        RuntimeWarning
            The residual stays above `eps`: after the last iteration, or because of rounding.

        Raises
        ------
        ValueError
            A direction of negative curvature shows that the matrix is not positive definite.
        """
        return solve(
            self._function, list(args), self._position, alpha, eps, max_iterations, ranges=ranges,
            n_threads=n_threads, backend=backend, device_id=device_id,
        )  # fmt: skip


def solve(
    function: PairFunction, arrays: list[Any], position: int, alpha: float = 1e-10, eps: float = 1e-6,
    max_iterations: int | None = None, *, ranges: Any = None, n_threads: int | None = None, backend: str = "auto",
    device_id: int = -1,
) -> Any:  # fmt: skip
    """Solve for the input at `position`, where `arrays` has the right-hand side."""
    function.check_number(len(arrays))
    for name, value in (("alpha", alpha), ("eps", eps)):
        if not value >= 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
    if max_iterations is not None:
        as_size(max_iterations, "max_iterations", 1)
    if isinstance(alpha, np.generic):
        alpha = float(alpha)  # a float64 of numpy would widen float32 products

    def apply(a: Any) -> Any:
        product = function(
            [*arrays[:position], a, *arrays[position + 1 :]], ranges, None, n_threads, backend, device_id
        )
        return product + alpha * a if alpha else product

    b = arrays[position]
    if _arrays.any_dask(*arrays):
        raise TypeError("arrays: conjugate gradients look at numbers in each step; compute dask arrays first")
    if _arrays.any_torch(b):
        return handlers("torch").pairs.solve(
            apply, b, lambda right: conjugate_gradients(apply, right, eps, max_iterations)
        )
    return conjugate_gradients(apply, np.asarray(b) if isinstance(b, list) else b, eps, max_iterations)


def conjugate_gradients(apply: Callable[[Any], Any], b: Any, eps: float, max_iterations: int | None) -> Any:
    """The solution of ``apply(a) = b``.

    The residual of the recurrence continues to fall after rounding has stopped the true residual. The method
    therefore computes the true residual at the end, and restarts from it for as long as it falls.
    """
    n_numbers = int(np.prod(b.shape))
    n_left = max(10 * n_numbers, 100) if max_iterations is None else max_iterations
    goal = n_numbers * eps**2
    a, residual, before = 0 * b, 1 * b, math.inf
    while True:
        square = float((residual**2).sum())
        if square <= goal:
            return a
        if n_left == 0 or not square < 0.25 * before:
            break
        step, n_steps = _conjugate_steps(apply, residual, square, goal, n_left)
        n_left, before = n_left - n_steps, square
        a = a + step
        residual = b - apply(a)
    warnings.warn(
        f"conjugate gradients: the residual's root mean square is {(square / n_numbers) ** 0.5:.3g}, above "
        f"eps={eps}" + (" after the last iteration" if n_left == 0 else ", and rounding lets it get no smaller"),
        RuntimeWarning,
        stacklevel=4,
    )
    return a


def _conjugate_steps(
    apply: Callable[[Any], Any], residual: Any, square: float, goal: float, limit: int
) -> tuple[Any, int]:  # fmt: skip
    """The correction of a solution with this residual, and the number of products with the matrix."""
    direction, a = residual, 0 * residual
    for iteration in range(limit):
        image = apply(direction)
        if iteration == 0 and tuple(image.shape) != tuple(residual.shape):
            raise ValueError(
                f"b: expected shape {tuple(image.shape)}, as the sum has, got {tuple(residual.shape)}"
            )
        curvature = float((direction * image).sum())
        if not curvature > 0:
            raise ValueError(
                f"the matrix is not positive definite: a direction has curvature {curvature:.3g}; "
                "a larger alpha may help"
            )
        length = square / curvature
        a = a + length * direction
        residual = residual - length * image
        before, square = square, float((residual**2).sum())
        if square <= goal:
            return a, iteration + 1
        direction = residual + (square / before) * direction
    return a, limit
