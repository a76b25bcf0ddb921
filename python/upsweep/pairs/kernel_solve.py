"""Linear systems whose matrix is a reduction over pairs, by conjugate gradients or a dense factorization.

Conjugate gradients take products with the matrix, which is never stored. An ill-conditioned one takes thousands of
them; a matrix that fits in memory is then built and factorized instead. `KernelSolve` takes a formula as text,
`LazyTensor.solve` one of arrays; both call `solve`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._compiler.formulas.nodes import Node, variable, variables
from upsweep._utils.integers import as_size
from upsweep._utils.progress import CallProgress
from upsweep.pairs.function import PairFunction
from upsweep.pairs.genred import Genred

_DENSE_BYTES = 2**29  # of a matrix of float64: 8,192 rows
# To build and factorize a matrix of n rows takes as long as about n / 24 products with one vector (n / 22 for
# 1,000 rows, n / 33 for 2,000), or n / 24 / (1 + (r - 1) / 20) with r (Gaussian kernel of 3 features, 2 cores of
# Zen 4, 2026-11). Conjugate gradients that take longer change to it, and lose at most about a factor of two.
_PRODUCTS_PER_ROW = 1 / 24
_COST_OF_COLUMN = 1 / 20  # of a right-hand side after the first, in products with one
_MIN_PRODUCTS = 40  # of small matrices, whose factorization is mostly overhead
_FEW_PRODUCTS = 20  # with fewer even well-conditioned systems rarely converge: the matrix is built at once
_NOT_FINITE = "the arrays or their kernel have NaN or infinite values, which no alpha helps"
_PATIENCE = 200  # products in which the residual has to fall by a tenth
_PROGRESS_DELAY = 5.0  # seconds
_PACKAGE = str(Path(__file__).parents[1])


class SolveInfo(NamedTuple):
    """How a system was solved.

    `method` gave the solution: "conjugate gradients" or "dense". `n_products` is the number of products with the
    matrix, of conjugate gradients. `residual` is the root mean square of b - (K + alpha) a, as computed in the
    arrays' dtype: rounding of float32 is in it.
    """

    method: str
    n_products: int
    residual: float


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
    axis, dtype, cuda_type, dtype_acc, use_double_acc, sum_scheme, precision
        As of `Genred`.
    opt_arg, enable_chunks, rec_multVar_highdim, use_fast_math : ignored
        A sum takes no argument, and the others are hints for KeOps' compiler.

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
        cuda_type: Any = None, *, precision: str = "split",
    ) -> None:  # fmt: skip
        self._function = Genred(
            formula, aliases, "Sum", axis, dtype, cuda_type=cuda_type, dtype_acc=dtype_acc,
            use_double_acc=use_double_acc, sum_scheme=sum_scheme, precision=precision,
        )._function  # fmt: skip
        names = [each.name for each in self._function.inputs]
        if varinvalias not in names:
            raise ValueError(f"varinvalias: expected one of {', '.join(names)}, got {varinvalias!r}")
        self._position = names.index(varinvalias)

    def __call__(
        self, *args: Any, backend: str = "auto", device_id: int = -1, alpha: float = 1e-10, eps: float = 1e-6,
        ranges: Any = None, max_iterations: int | None = None, n_threads: int | None = None, progress: bool = True,
        return_info: bool = False,
    ) -> Any:  # fmt: skip
        """Solve for these arrays.

        Parameters
        ----------
        *args : arrays
            One for each alias; the right-hand side b at the position of the unknown.
        backend, device_id, ranges, n_threads
            As of a call of `Genred`.
        alpha : float
            Added to the diagonal. It bounds the condition of the matrix: kernels of many close points are singular
            but for it.
        eps : float
            The iteration ends when the root mean square of the residual is below this. In float32 it rarely gets
            below 1e-7 times the largest eigenvalue times the size of a: pass float64 for less.
        max_iterations : int, optional
            The most products with the matrix, after which nothing else is tried. By default as many as take the
            time of a factorization, see the notes, if the matrix fits in memory; else 10 times the numbers of b.
        progress : bool
            After five seconds, show the number of products and the residual on stderr, by tqdm if it is installed.
        return_info : bool
            Return also how the system was solved.

        Returns
        -------
        a : array of b's shape
        info : SolveInfo
            Only with `return_info`: `method` ("conjugate gradients" or "dense"), `n_products`, the products with
            the matrix, and `residual`, the root mean square of b - (K + alpha) a as computed in the arrays' dtype.

        Warns
        -----
        RuntimeWarning
            The residual stays above `eps`: after the last iteration, or because of rounding.

        Raises
        ------
        ValueError
            A direction of negative curvature shows that the matrix is not positive definite, or its factorization
            that it is singular. Arrays have NaN or infinite values.

        Notes
        -----
        Conjugate gradients begin. If they stagnate, or after the time of a factorization, the matrix is built in
        float64 and factorized (LU), if it has at most 2**29 bytes, 8,192 rows, over all batch entries. For n rows
        and r right-hand sides that time is max(n / 24, 40) / (1 + (r - 1) / 20) products; if these are below 20,
        as of 1,000 rows and 100 right-hand sides, the matrix is built at once. This is for arrays of numpy, torch
        and cupy, without `ranges`, and for formulas that multiply the unknown by one number for each pair. The
        solution with the lesser residual is returned.
        """
        return solve(
            self._function, list(args), self._position, alpha, eps, max_iterations, ranges=ranges,
            n_threads=n_threads, backend=backend, device_id=device_id, progress=progress, return_info=return_info,
        )  # fmt: skip


def solve(
    function: PairFunction, arrays: list[Any], position: int, alpha: float = 1e-10, eps: float = 1e-6,
    max_iterations: int | None = None, *, ranges: Any = None, n_threads: int | None = None, backend: str = "auto",
    device_id: int = -1, progress: bool = True, return_info: bool = False,
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
    if _arrays.any_dask(*arrays):
        raise TypeError("arrays: conjugate gradients look at numbers in each step; compute dask arrays first")
    if isinstance(arrays[position], list):
        arrays[position] = np.asarray(arrays[position])
    b = arrays[position]
    settings = ranges, None, n_threads, backend, device_id

    def apply(a: Any) -> Any:
        product = function([*arrays[:position], a, *arrays[position + 1 :]], *settings)
        return product + alpha * a if alpha else product

    entries = _entries(function, position) if ranges is None and _fits(b) else None
    matrix = None if entries is None else lambda: _dense(function, entries, arrays, position, alpha, settings)
    solver = Solver(apply, matrix, eps, max_iterations, progress)
    a = handlers("torch").pairs.solve(apply, b, solver) if _arrays.any_torch(b) else solver(b)
    return (a, solver.info) if return_info else a


# ---- the matrix itself -----------------------------------------------------------------------------------------


def _library(b: Any) -> Any:
    """The module of an array, if it has dense linear algebra with numpy's names; else None."""
    name = type(b).__module__.partition(".")[0]
    return sys.modules[name] if name in ("numpy", "torch", "cupy") else None


def _entries(function: PairFunction, position: int) -> Node | None:
    """The formula of the matrix' entries, linear in the unknown; None if it mixes the features of the unknown."""
    formula, unknown = function.formula, function.inputs[position]
    if formula.dim == 1 and unknown.dim == 1:
        return formula  # of an unknown that is 1
    a = variable(position, unknown.dim, unknown.kind)
    if formula.op == "mul" and a in formula.args:
        other = formula.args[formula.args[0] is a]
        if other.dim == 1 and a not in variables(other):
            return other
    return None


def _fits(b: Any) -> bool:
    """Whether there is linear algebra for the matrix, and memory."""
    return _library(b) is not None and b.ndim >= 2 and 8 * math.prod(b.shape[:-1]) * b.shape[-2] <= _DENSE_BYTES


def _dense(
    function: PairFunction, formula: Node, arrays: list[Any], position: int, alpha: float, settings: Any
) -> Any:
    """The matrix plus alpha on its diagonal, (..., n, n) in float64.

    Each of its rows is an entry of a batch, in which a sum over the one row of the entry gives all columns.
    """
    xp, b = _library(arrays[position]), arrays[position]
    rows, columns = ("i", "j") if function.rows == "i" else ("j", "i")
    entries = PairFunction(
        function.inputs, formula, "sum", columns, dtype_acc=function.dtype_acc, precision=function.precision
    )
    operands = []
    for each, array in zip(function.inputs, [*arrays[:position], xp.ones_like(b), *arrays[position + 1 :]]):
        if each.kind == rows:
            array = array[..., :, None, :]
        elif each.kind == columns:
            array = array[..., None, :, :]
        elif array.ndim > 1:
            array = array[..., None, :]
        operands.append(array)
    matrix = xp.asarray(entries(operands, *settings)[..., 0], dtype=xp.float64)
    diagonal = xp.arange(b.shape[-2])
    matrix[..., diagonal, diagonal] += alpha
    return matrix


# ---- the solvers -----------------------------------------------------------------------------------------------


class Solver:
    """The solution of ``apply(a) = b`` for any b; `info` is that of the first one, which derivatives refine.

    The residual of the recurrence of conjugate gradients continues to fall after rounding has stopped the true
    residual. The method therefore computes the true residual at the end, and restarts from it for as long as it
    falls. `matrix` returns the dense matrix; None where there is none.
    """

    def __init__(
        self, apply: Callable[[Any], Any], matrix: Callable[[], Any] | None, eps: float,
        max_iterations: int | None = None, progress: bool = True,
    ) -> None:  # fmt: skip
        self._apply, self._matrix, self._eps, self._max_iterations = apply, matrix, eps, max_iterations
        self._progress = progress
        self._is_slow = False  # conjugate gradients, for an earlier right-hand side
        self.info: SolveInfo | None = None

    def __call__(self, b: Any) -> Any:
        n_numbers = max(math.prod(b.shape), 1)
        goal = n_numbers * self._eps**2
        limit = max(10 * n_numbers, _MIN_PRODUCTS) if self._max_iterations is None else self._max_iterations
        if self._matrix is not None and self._max_iterations is None:
            limit = 0 if self._is_slow else _products_of_a_factorization(*b.shape[-2:])

        def rms(square: float) -> float:
            return (square / n_numbers) ** 0.5

        with CallProgress("conjugate gradients", _PROGRESS_DELAY if self._progress else math.inf) as bar:

            def report(n_products: int, square: float) -> None:
                bar.update(n_products, limit, f"residual {rms(square):.1e}, eps {self._eps:g}")

            a, square, n_products = self._conjugate_gradients(b, goal, limit, report)
        method = "conjugate gradients"
        is_exhausted = n_products == limit and (self._matrix is None or self._max_iterations is not None)
        if self._matrix is not None and square > goal and not is_exhausted:
            self._is_slow = True
            direct, direct_square = self._factorize(self._matrix(), b)
            if direct_square < square:
                a, square, method = direct, direct_square, "dense"
        self.info = self.info or SolveInfo(method, n_products, rms(square))
        if not square <= goal:
            self._warn(rms(square), str(b.dtype).removeprefix("torch."), is_exhausted)
        return a

    def _warn(self, residual: float, dtype: str, is_exhausted: bool) -> None:
        if is_exhausted:
            reason = "after the last iteration; raise max_iterations"
        else:
            reason = f"and rounding of {dtype} lets it get no smaller; raise eps"
            reason += ", pass arrays of float64" if "float32" in dtype else ""
        warnings.warn(
            f"solve: the residual's root mean square is {residual:.3g}, above eps={self._eps}, {reason}, or raise "
            "alpha (the number added to the diagonal)",
            RuntimeWarning,
            stacklevel=_users_level(),
        )

    def _factorize(self, matrix: Any, b: Any) -> tuple[Any, float]:
        """The solution by the matrix, and the sum of squares of its residual."""
        xp = _library(b)
        try:
            direct = xp.linalg.solve(matrix, xp.asarray(b, dtype=xp.float64))
        except getattr(xp.linalg, "LinAlgError", np.linalg.LinAlgError) as error:  # cupy has none
            raise ValueError(
                "the matrix plus alpha on its diagonal is singular, as of points that occur twice; raise alpha"
            ) from error
        _check_shape(b, direct)
        direct = xp.asarray(direct, dtype=b.dtype)
        square = float(((b - self._apply(direct)) ** 2).sum())
        if math.isnan(square) and self.info is None:  # as in the first product of conjugate gradients
            raise ValueError(_NOT_FINITE)
        return direct, square

    def _conjugate_gradients(
        self, b: Any, goal: float, limit: int, report: Callable[[int, float], None]
    ) -> tuple[Any, float, int]:
        """The solution, the sum of squares of its residual, and the number of products with the matrix."""
        a, residual, before, n_products = 0 * b, 1 * b, math.inf, 0
        square = float((residual**2).sum())
        if not math.isfinite(square) and self.info is None:  # cotangents, which come later, may be infinite
            raise ValueError("b: has NaN, infinite or overflowing values")
        while square > goal and n_products < limit and square < 0.25 * before:
            step, n_products = self._steps(residual, square, goal, range(n_products, limit), report)
            corrected = a + step
            residual = b - self._apply(corrected)
            before, square = square, float((residual**2).sum())
            if not square < before:
                return a, before, n_products
            a = corrected
        return a, square, n_products

    def _steps(
        self, residual: Any, square: float, goal: float, iterations: range, report: Callable[[int, float], None]
    ) -> tuple[Any, int]:
        """The correction of a solution with this residual, and the number of products after it."""
        direction, a = residual, 0 * residual
        best, best_square = a, square
        checkpoint, scale = square, 0.0
        n_products = iterations.start
        for n_products in range(iterations.start + 1, iterations.stop + 1):
            image = self._apply(direction)
            if n_products == 1:
                _check_shape(residual, image)
            curvature = float((direction * image).sum())
            if math.isnan(curvature):
                raise ValueError(_NOT_FINITE)
            if not curvature > 0:
                if -curvature <= _rounding(direction) * scale * float((direction**2).sum()):
                    break
                raise ValueError(
                    f"the matrix is not positive definite: a direction has curvature {curvature:.3g}; "
                    "a larger alpha may help"
                )
            scale = max(scale, curvature / square)  # of the order of the largest eigenvalue
            length = square / curvature
            a = a + length * direction
            residual = residual - length * image
            before, square = square, float((residual**2).sum())
            if square < best_square:
                best, best_square = a, square
            if square <= goal:
                break
            if (n_products - iterations.start) % _PATIENCE == 0:
                if not best_square < 0.8 * checkpoint:
                    break
                checkpoint = best_square
            report(n_products, square)
            direction = residual + (square / before) * direction
        return best, n_products


def _check_shape(b: Any, image: Any) -> None:
    if tuple(image.shape) != tuple(b.shape):
        raise ValueError(f"b: expected shape {tuple(image.shape)}, as the sum has, got {tuple(b.shape)}")


def _products_of_a_factorization(n_rows: int, n_columns: int) -> int:
    """The number of products with the matrix in the time of its factorization; 0 for few."""
    n_products = max(n_rows * _PRODUCTS_PER_ROW, _MIN_PRODUCTS) / (1 + (n_columns - 1) * _COST_OF_COLUMN)
    return int(n_products) if n_products >= _FEW_PRODUCTS else 0


def _rounding(array: Any) -> float:
    """The relative error of a product with the matrix, at most."""
    return 1e-5 if "float32" in str(array.dtype) else 1e-13


def _users_level() -> int:
    """The `stacklevel` of the user's frame, for a caller that calls `warnings.warn`."""
    frame: Any = sys._getframe(1)
    level = 1
    # Newton steps of tensors call the solver through torch's autograd.
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or frame.f_globals.get("__name__") == "torch.autograd.function"
    ):
        frame, level = frame.f_back, level + 1
    return level
