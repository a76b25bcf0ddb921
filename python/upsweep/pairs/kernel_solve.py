"""Linear systems whose matrix is a reduction over pairs, by conjugate gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._utils.integers import as_size
from upsweep.pairs.calls import PairCall, options_of

__all__ = ["KernelSolve", "solve_expression"]


class KernelSolve:
    """The solution a of ``(K + alpha) a = b``, where K is a positive definite sum over pairs, linear in a.

    Parameters
    ----------
    formula : str
        What is summed: ``"Exp(-SqDist(x, y)) * a"``.
    aliases : sequence of str
        The inputs, as of `Genred`; the one that is solved for among them.
    varinvalias : str
        Its name.
    axis, dtype, opt_arg, dtype_acc, use_double_acc, sum_scheme, enable_chunks, rec_multVar_highdim, use_fast_math
        As of `Genred`.

    Raises
    ------
    ValueError
        No alias has the name; what `Genred` refuses.

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
        self,
        formula: str,
        aliases: Sequence[str],
        varinvalias: str,
        axis: int = 0,
        dtype: Any = None,
        opt_arg: Any = None,
        dtype_acc: str = "auto",
        use_double_acc: bool = False,
        sum_scheme: str = "auto",
        enable_chunks: bool = True,
        rec_multVar_highdim: Any = None,
        use_fast_math: bool = True,
    ) -> None:
        from upsweep.pairs.genred import Genred

        self._genred = Genred(
            formula,
            aliases,
            "Sum",
            axis,
            dtype_acc=dtype_acc,
            use_double_acc=use_double_acc,
            sum_scheme=sum_scheme,
        )
        names = [each.name for each in self._genred._call.inputs]
        if varinvalias not in names:
            raise ValueError(f"varinvalias: expected one of {', '.join(names)}, got {varinvalias!r}")
        self._place = names.index(varinvalias)

    def __call__(
        self, *args: Any, backend: str = "auto", device_id: int = -1, alpha: float = 1e-10, eps: float = 1e-6,
        ranges: Any = None, max_iterations: int | None = None, n_threads: int | None = None,
    ) -> Any:  # fmt: skip
        """Solve for these arrays.

        Parameters
        ----------
        *args : arrays
            One for each alias; in the place of what is solved for, the right-hand side b.
        backend, device_id, ranges, n_threads
            As of a call of `Genred`.
        alpha : float
            Added to the diagonal.
        eps : float
            The iteration ends when the root mean square of the residual is below.
        max_iterations : int, optional
            How often the matrix is applied at most; by default 10 times the number of rows, at least 100.

        Returns
        -------
        array of b's shape

        Warns
        -----
        RuntimeWarning
            The residual stays above `eps`: after the iterations, or where rounding lets it get no smaller.

        Raises
        ------
        ValueError
            The matrix is seen not to be positive definite.
        """
        from upsweep.pairs.reduced import device_for

        device = None if backend == "auto" and device_id == -1 else device_for(list(args), backend, device_id)
        return solve(
            self._genred._call, list(args), self._place, alpha, eps, max_iterations, ranges, n_threads, device
        )  # fmt: skip


def solve(
    call: PairCall, arrays: list[Any], place: int, alpha: float, eps: float, max_iterations: int | None,
    ranges: Any, n_threads: int | None, device: str | None,
) -> Any:  # fmt: skip
    """Solve for the input at `place`, where the right-hand side is."""
    call.check_number(len(arrays))
    for name, value in (("alpha", alpha), ("eps", eps)):
        if not value >= 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
    if max_iterations is not None:
        as_size(max_iterations, "max_iterations", 1)
    if isinstance(alpha, np.generic):
        alpha = float(alpha)  # a float64 of numpy's would widen what it is multiplied by

    def apply(a: Any) -> Any:
        (product,) = call([*arrays[:place], a, *arrays[place + 1 :]], ranges, n_threads=n_threads, device=device)
        return product + alpha * a if alpha else product

    b = arrays[place]
    if _arrays.any_dask(*arrays):
        raise TypeError("arrays: conjugate gradients look at numbers in each step; compute dask arrays first")
    if _arrays.any_torch(b):
        return handlers("torch").pairs.solve(
            apply, b, lambda right: conjugate_gradients(apply, right, eps, max_iterations)
        )
    return conjugate_gradients(apply, np.asarray(b) if isinstance(b, list) else b, eps, max_iterations)


def conjugate_gradients(apply: Callable[[Any], Any], b: Any, eps: float, max_iterations: int | None) -> Any:
    """The solution of ``apply(a) = b``.

    The recurrence of the residual goes on to fall where rounding does not let the residual itself. So that is
    calculated afresh in the end, and solved for again, for as long as it falls.
    """
    n_numbers = int(np.prod(b.shape))
    left = max(10 * n_numbers, 100) if max_iterations is None else max_iterations
    goal = n_numbers * eps**2
    a, residual, before = 0 * b, 1 * b, math.inf
    while True:
        square = float((residual**2).sum())
        if square <= goal:
            return a
        if left == 0 or not square < 0.25 * before:
            break
        step, n_taken = _conjugate_steps(apply, residual, square, goal, left)
        left, before = left - n_taken, square
        a = a + step
        residual = b - apply(a)
    warnings.warn(
        f"conjugate gradients: the residual's root mean square is {(square / n_numbers) ** 0.5:.3g}, above "
        f"eps={eps}" + (" after the last iteration" if left == 0 else ", and rounding lets it get no smaller"),
        RuntimeWarning,
        stacklevel=4,
    )
    return a


def _conjugate_steps(
    apply: Callable[[Any], Any], residual: Any, square: float, goal: float, limit: int
) -> tuple[Any, int]:  # fmt: skip
    """What to add to a solution that leaves this residual, and how often the matrix was applied."""
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


def solve_expression(expression: Any, other: Any, var: Any, call: bool, settings: dict[str, Any]) -> Any:
    """`LazyTensor.solve`."""
    from upsweep.pairs.graph import KINDS
    from upsweep.pairs.lazy_tensor import LazyTensor
    from upsweep.pairs.reduced import values_of
    from upsweep.pairs.reductions import call_of

    keywords = dict(settings)
    accuracy = {
        name: keywords.pop(name) for name in ("dtype_acc", "use_double_acc", "sum_scheme") if name in keywords
    }
    for name in ("enable_chunks", "use_fast_math", "optional_flags"):
        keywords.pop(name, None)
    ranges = keywords.pop("ranges", expression.ranges)
    if not isinstance(other, LazyTensor) and len(getattr(other, "shape", ())) < 2:
        raise ValueError(
            f"other: expected an array of shape (..., M, D), got {getattr(other, 'shape', type(other).__name__)}"
        )
    right = other if isinstance(other, LazyTensor) else LazyTensor(other, axis=0)
    if right._op is not None or right._args[0].kind == "p":
        raise ValueError("other: expected an array of rows, or a LazyTensor of one")
    rows = right._args[0].kind
    expression._join("solve", (expression, right))
    n_rows = right.ni if rows == "i" else right.nj
    across = expression.nj if rows == "i" else expression.ni
    if None not in (n_rows, across) and n_rows != across:
        raise ValueError(f"other: has {n_rows} rows, and the matrix is of shape {expression.shape}")
    columns = KINDS.index("j" if rows == "i" else "i")
    if var is None:
        index = 0
        var = LazyTensor((index, right.ndim, columns))
        linear = expression * var
    else:
        if var._op is not None or var._args[0].index is None:
            raise ValueError("var: expected a symbolic variable of the formula")
        linear, index = expression, var._args[0].index
    prepared, leaves = call_of((linear,), "sum", rows, 0, options_of("sum", **accuracy))

    def solved(*args: Any, **more: Any) -> Any:
        symbols = {leaf.index for leaf in leaves if leaf.index is not None} - {index}
        given = iter(args)
        wanted = next(given) if right._args[0].index is not None else right._args[0].array
        values = [
            wanted if leaf.index == index else next(given) if leaf.index in symbols else leaf.array
            for leaf in leaves
        ]
        values = values_of(values, right.dtype)
        return _solve_with(prepared, values, index, ranges, **{**keywords, **more})

    is_complete = right._args[0].index is None and sum(leaf.index is not None for leaf in leaves) == 1
    return solved() if call and is_complete else solved


def _solve_with(
    call: PairCall, arrays: list[Any], place: int, ranges: Any, alpha: float = 1e-10, eps: float = 1e-6,
    max_iterations: int | None = None, n_threads: int | None = None, backend: str = "auto", device_id: int = -1,
) -> Any:  # fmt: skip
    from upsweep.pairs.reduced import device_for

    device = None if backend == "auto" and device_id == -1 else device_for(arrays, backend, device_id)
    return solve(call, arrays, place, alpha, eps, max_iterations, ranges, n_threads, device)
