"""`LazyTensor`, formulas of pairs that are written like arrays, and its constructors `Vi`, `Vj` and `Pm`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._compiler.formulas.nodes import KINDS
from upsweep._utils.examples import with_example
from upsweep.pairs.expression import NO_ARRAYS, Leaf, Meta
from upsweep.pairs.function import formula_settings
from upsweep.pairs.kernel_solve import solve
from upsweep.pairs.pending import with_numbers_as_arrays
from upsweep.pairs.printing import describe_expression
from upsweep.pairs.reductions import Reductions, function_of, take_formula_options

_IMPORTS = ">>> import numpy as np", ">>> from upsweep import Pm, Vi, Vj"  # of examples
_FLOATS = {np.dtype(name): name for name in ("float32", "float64")}


def _shows(call: str, result: str) -> Callable[..., Any]:
    """A decorator: the example of a method is this call of a matrix of two rows and two columns."""
    matrix = ">>> K = Vi(np.array([[1.0], [2.0]])) * Vj(np.array([[1.0], [3.0]]))"
    return with_example(*_IMPORTS, matrix, f">>> {call}", result)


def _of_meta(name: str, doc: str) -> property:
    """The property for one of the common properties of the arrays."""
    return property(lambda self: getattr(self._meta, name), doc=doc)


class LazyTensor(Reductions):
    """An array over pairs (i, j) that is stored as a formula, and computed only when it is reduced.

    Parameters
    ----------
    x : array, number, list, or tuple of three ints
        An array of numpy, torch, cupy or another library, of float32 or float64:

        - (M, 1, D): M rows of D features, indexed by i; (1, N, D): N columns, indexed by j; (1, 1, D): parameters.
          Leading dimensions are a batch, and broadcast;
        - (M, D) with `axis` 0, or (N, D) with `axis` 1: rows or columns, also as nested lists;
        - (D,), a list of numbers or a number: parameters. An int is a constant of the formula.

        Or a symbolic variable (index, D, axis), whose array is an argument of the reduction's call.
    axis : {0, 1, 2}, optional
        For arrays of two axes: 0 rows, 1 columns, 2 parameters. For more axes, how to read an axis of size one.

    Raises
    ------
    TypeError
        x is not an array of numbers, a number or a list.
    ValueError
        The array has another shape.

    Notes
    -----
    Names, shapes and defaults are KeOps': features are the last axis, and operands have one dim or dim 1;
    ``sum(axis=1)`` reduces over columns, ``sum()`` over features; ``K @ b`` is a matrix product if K has dim 1;
    ``K.T`` exchanges rows and columns; ``print(K)`` shows the formula; the attribute `ranges` applies to all
    reductions. Arrays may have any strides. They are read when a reduction is called.

    dask arrays give dask arrays: a task for each block of rows with each block of columns, in sequence along the
    axis that is reduced over. They may be combined with arrays in memory.

    Results are of the arrays' library and device, int64 for indices. Rows without columns have the neutral
    element: 0, +inf for minima, -inf for maxima and logsumexp, -1 for indices.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import LazyTensor
    >>> x, y = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [6.0, 8.0], [3.0, 0.0]])
    >>> distances = ((LazyTensor(x[:, None, :]) - LazyTensor(y[None, :, :])) ** 2).sum(-1)
    >>> distances.shape
    (2, 3)
    >>> distances.argmin(axis=1)
    array([[0],
           [2]])
    >>> ((-distances / 10.0).exp() @ np.array([1.0, 1.0, 1.0])).round(4)
    array([1.4066, 0.3661])
    """

    __slots__ = ()

    def __init__(self, x: Any, axis: int | None = None) -> None:
        self.ranges = self.backend = None
        self._static = ()
        if isinstance(x, tuple):
            self._symbolic(x, axis)
        elif isinstance(x, (bool, complex)) or (isinstance(x, np.generic) and x.dtype.kind in "bc"):
            raise TypeError(f"x: expected real numbers, got {x!r}")
        elif isinstance(x, int):
            self._op, self._args, self._static, self.ndim, self._meta = "constant", (), (float(x),), 1, NO_ARRAYS
        elif isinstance(x, list) and (axis in (0, 1) or any(isinstance(each, (list, tuple)) for each in x)):
            self._array(np.asarray(x, np.float64), axis)
        elif isinstance(x, (float, np.integer, np.floating, list)):
            self._parameters(x, axis)
        else:
            self._array(x, axis)

    def _symbolic(self, x: tuple[Any, ...], axis: int | None) -> None:
        if len(x) != 3 or not all(isinstance(part, int) for part in x):
            raise ValueError(f"x: expected three ints (index, dim, axis) of a symbolic variable, got {x!r}")
        if axis is not None:
            raise ValueError("axis: is the third number of a symbolic variable")
        index, dim, axis = x
        if index < 0 or dim < 1 or axis not in (0, 1, 2):
            raise ValueError(
                f"x: expected an index of at least 0, a dim of at least 1 and an axis of 0 to 2, got {x}"
            )
        self._leaf(Leaf(None, KINDS[axis], dim, index), NO_ARRAYS)

    def _parameters(self, x: Any, axis: int | None) -> None:
        if axis not in (None, 2):
            raise ValueError(f"axis: numbers are parameters, of axis 2, got {axis}")
        numbers = [float(number) for number in x] if isinstance(x, list) else [float(x)]
        if not numbers:
            raise ValueError("x: expected at least one number, got an empty list")
        self._leaf(Leaf(numbers, "p", len(numbers)), NO_ARRAYS)

    def _array(self, x: Any, axis: int | None) -> None:
        dtype = _FLOATS.get(x.dtype) if type(x) is np.ndarray else None  # dtype.name is slow
        if dtype is None and not _arrays.any_torch(x):
            _arrays.refuse_labels(x=x)
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise TypeError(f"x: expected an array, a number or a list of numbers, got {_arrays.type_name(x)}")
        if dtype is None:
            dtype = x.dtype.name if isinstance(x.dtype, np.dtype) else str(x.dtype).rpartition(".")[2]
        if dtype.startswith("complex"):
            raise TypeError(
                f"x: expected float32 or float64, got dtype {dtype}; there is no ComplexLazyTensor: write real "
                "and imaginary parts as two formulas"
            )
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            remedy = "x.to(torch.float64)" if _arrays.any_torch(x) else "x.astype('float64')"
            raise TypeError(f"x: expected float32 or float64, got dtype {dtype}; convert it: {remedy}")
        if axis not in (None, 0, 1, 2):
            raise ValueError(f"axis: expected 0, 1 or 2, got {axis}")
        shape = tuple(x.shape)
        if _arrays.any_torch(x):
            handlers("torch")  # an import inside a frame that torch.compile traces later fails its guards
        if _arrays.any_dask(x):
            handlers("dask").as_operands({"x": x})  # raises for unknown sizes and for blocks of other libraries
        n_axes = len(shape)
        kind, batch = "p", None
        if n_axes >= 3 and 1 in shape[-3:-1]:
            kind = "i" if shape[-3] != 1 else "j" if shape[-2] != 1 else "p"
            kind = kind if axis is None else KINDS[axis]
            expected = {"i": shape[-2] == 1, "j": shape[-3] == 1, "p": shape[-3:-1] == (1, 1)}
            if not expected[kind]:
                raise ValueError(f"axis: is {axis}, which an array of shape {shape} does not fit")
            batch = shape[:-3] or None
            x = x[..., 0, :] if kind == "i" else x[..., 0, :, :] if kind == "j" else x[..., 0, 0, :]
        elif n_axes == 2 and axis in (0, 1):
            kind = KINDS[axis]
        elif n_axes < 2 and axis in (None, 2):
            x = x.reshape(1) if n_axes == 0 else x
        else:
            raise ValueError(
                "x: expected shape (..., M, 1, D), (..., 1, N, D) or (..., 1, 1, D); (M, D) with axis=0 or (N, D) "
                f"with axis=1; or (D,) for parameters; got {shape}"
                + ("" if axis is None else f" with axis={axis}")
                + _shape_remedy(shape, axis)
            )
        shape = tuple(x.shape)
        if shape[-1] == 0:
            raise ValueError(f"x: expected at least one feature, got shape {shape}")
        n_i = shape[-2] if kind == "i" else None
        n_j = shape[-2] if kind == "j" else None
        self._leaf(Leaf(x, kind, shape[-1]), Meta(n_i, n_j, batch, dtype, _location(x)))

    def _leaf(self, leaf: Leaf, meta: Meta) -> None:
        self._op, self._args, self.ndim, self._meta = None, (leaf,), leaf.dim, meta

    # ---- properties --------------------------------------------------------------------------------------------

    ni = _of_meta("ni", "The number of rows; None if no variable is indexed by i.")
    nj = _of_meta("nj", "The number of columns; None if no variable is indexed by j.")
    batchdims = _of_meta("batch", "The batch dimensions.")
    dtype = _of_meta("dtype", "The name of the arrays' dtype.")

    @property
    def nbatchdims(self) -> int:
        """The number of batch dimensions."""
        return 0 if self._meta.batch is None else len(self._meta.batch)

    @property
    def axis(self) -> int | None:
        """Of a variable, 0 for rows, 1 for columns, 2 for parameters."""
        return KINDS.index(self._args[0].kind) if self._op is None else None

    @property
    def formula(self) -> str:
        """The formula as text, in KeOps' language."""
        return self._text()

    @property
    def _shape(self) -> tuple[int, ...]:
        n_i, n_j, batch, _, _ = self._meta
        return (*(batch or ()), 1 if n_i is None else n_i, 1 if n_j is None else n_j, self.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch dimensions, rows, columns, and features if there are several."""
        shape = self._shape
        return shape[:-1] if shape[-1] == 1 else shape

    def __str__(self) -> str:
        return describe_expression(self)

    __repr__ = __str__

    # ---- as a matrix -------------------------------------------------------------------------------------------

    @_shows("K @ np.array([1.0, 1.0])", "array([4., 8.])")
    def __matmul__(self, v: Any, **kwargs: Any) -> Any:
        """The product with a vector (N,) or a matrix (..., N, D), for formulas of dim 1."""
        if self.ndim != 1:
            raise ValueError(f"K @ v: expected K of dim 1, got shape {self.shape}")
        if not _arrays.any_torch(v):
            _arrays.refuse_labels(v=v)
        if isinstance(v, list) and self._meta.location in (None, "numpy"):
            v = np.asarray(v)
        if isinstance(v, np.ndarray) and v.dtype.kind in "biu":
            v = v.astype(self.dtype or "float64")
        if not hasattr(v, "shape") or len(v.shape) == 0 or isinstance(v, LazyTensor):
            kind, remedy = _arrays.type_name(v), "; make it one of K's library and dtype" * isinstance(v, list)
            if isinstance(v, LazyTensor):
                kind, remedy = "LazyTensor", "; a product with v of each column is (K * v).sum(axis=1)"
            raise TypeError(f"v: expected an array of shape (N,) or (..., N, D), got {kind}{remedy}")
        flat = len(v.shape) == 1
        columns = LazyTensor((v[:, None] if flat else v)[..., None, :, :], axis=1)
        n_j = 1 if self.nj is None else self.nj
        if columns.nj != n_j and self.nj is not None:
            raise ValueError(f"v: expected {n_j} rows, as K has columns, got shape {tuple(v.shape)}")
        product = self * columns
        result = product.sum(product.dim() - 2, **kwargs)
        return result[..., 0] if flat else result

    @_shows("K.matvec(np.array([1.0, 1.0]))", "array([4., 8.])")
    def matvec(self, v: Any) -> Any:
        """``K @ v``, by scipy's name: v is converted to K's dtype, as scipy's vectors are float64."""
        return self @ (self._as_own_dtype(v) if hasattr(v, "dtype") else v)

    @_shows("K.rmatvec(np.array([1.0, 1.0]))", "array([3., 9.])")
    def rmatvec(self, v: Any) -> Any:
        """``K.T @ v``, by scipy's name."""
        return self.T.matvec(v)

    def solve(self, other: Any, var: Any = None, call: bool = True, **kwargs: Any) -> Any:
        """The solution a of ``sum_j K(i, j) * a_j + alpha * a_i = other_i``.

        By conjugate gradients, and by a dense matrix where these are slower; see the notes of `KernelSolve`.

        Parameters
        ----------
        other : array (..., M, D) or LazyTensor of rows
            The right-hand side.
        var : LazyTensor, optional
            A symbolic variable in which the formula is linear; by default the formula is multiplied by one.
        call : bool
            False returns a function of the arrays of symbolic variables.
        **kwargs
            Of a call of `KernelSolve`: `alpha`, added to the diagonal (1e-10); `eps`, the root mean square of the
            residual to reach (1e-6); `max_iterations`; `ranges`; `progress=False` for silence; `return_info`.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> x = np.array([[0.0], [0.1], [2.0]])
        >>> K = (-Vi(x).sqdist(Vj(x))).exp()
        >>> a = K.solve(np.array([[1.0], [2.0], [3.0]]), alpha=0.1)
        >>> np.allclose(K @ a + 0.1 * a, [[1.0], [2.0], [3.0]])
        True
        """
        options = take_formula_options(kwargs)
        kwargs.setdefault("ranges", self.ranges)
        right, rows = self._right_side(other)
        if var is None:
            index = 0
            linear = self * LazyTensor((index, right.ndim, KINDS.index("j" if rows == "i" else "i")))
        elif var._op is not None or var._args[0].index is None:
            raise ValueError("var: expected a symbolic variable of the formula")
        else:
            linear, index = self, var._args[0].index
        function, leaves = function_of((linear,), "sum", rows, **formula_settings("sum", **options))
        right_leaf = right._args[0]
        others = {leaf.index for leaf in leaves if leaf.index is not None} - {index}

        def solved(*args: Any, **more: Any) -> Any:
            arrays = iter(args)
            b = next(arrays) if right_leaf.index is not None else right_leaf.array
            values = [
                b if leaf.index == index else next(arrays) if leaf.index in others else leaf.array
                for leaf in leaves
            ]
            return solve(function, with_numbers_as_arrays(values), index, **{**kwargs, **more})

        return solved() if call and right_leaf.index is None and not others else solved

    def _right_side(self, other: Any) -> tuple[LazyTensor, str]:
        """The right-hand side of `solve`, and the axis, "i" or "j", that indexes it."""
        if not isinstance(other, LazyTensor) and len(getattr(other, "shape", ())) < 2:
            shape = getattr(other, "shape", type(other).__name__)
            remedy = "; write K.solve(b[:, None])" if len(getattr(other, "shape", ())) == 1 else ""
            raise ValueError(f"other: expected an array of shape (..., M, D), got {shape}{remedy}")
        if not isinstance(other, LazyTensor) and len(other.shape) > 2 and other.shape[-2] != 1:
            other = other[..., :, None, :]
        right = other if isinstance(other, LazyTensor) else LazyTensor(other, axis=0)
        if right._op is not None or right._args[0].kind == "p":
            raise ValueError("other: expected an array of rows, or a LazyTensor of one")
        rows = right._args[0].kind
        self._join("solve", (self, right))
        n_rows, n_columns = (right.ni, self.nj) if rows == "i" else (right.nj, self.ni)
        if None not in (n_rows, n_columns) and n_rows != n_columns:
            raise ValueError(f"other: has {n_rows} rows, and the matrix is of shape {self.shape}")
        return right, rows


def _shape_remedy(shape: tuple[int, ...], axis: int | None) -> str:
    """How to pass an array of this shape, after a message."""
    n_axes = len(shape)
    if n_axes == 1:
        return "; write x[:, None] for one number in each row"
    if n_axes == 2 and axis is None and shape[0] == 1 < shape[1]:
        return "; write Vj(x.T), or x[None, :, None], for one number in each column, Vi(x.T) in each row"
    if n_axes > 2 and axis in (0, 1):
        return f"; write LazyTensor(x[..., {(':, None, :', 'None, :, :')[axis]}]) for a batch"
    if n_axes == 2 and axis is None:
        return "; write Vi(x) for rows, Vj(x) for columns"
    if n_axes == 2:
        return "; parameters are one vector, rows are Vi(x), columns Vj(x)"
    return ""


def _location(x: Any) -> str | None:
    """The library of an array, and its device."""
    if isinstance(x, np.ndarray):
        return "numpy"
    if _arrays.any_dask(x):
        return None  # may be combined with arrays in memory
    device = getattr(x, "device", None)
    return f"{type(x).__module__.partition('.')[0]}" + ("" if device is None else f" on {device}")


def _variable(x_or_ind: Any, dim: int | None, axis: int) -> LazyTensor:
    return LazyTensor(x_or_ind, axis) if dim is None else LazyTensor((x_or_ind, dim, axis))


_VARIABLE_PARAMETERS = """
    Parameters
    ----------
    x_or_ind : array, number, list of numbers or int
        The array; numbers for `Pm` alone; with `dim`, the index of a symbolic variable.
    dim : int, optional
        The number of features of a symbolic variable.

    Returns
    -------
    LazyTensor
"""
_constructor = functools.partial(with_example, *_IMPORTS, sections=_VARIABLE_PARAMETERS)


@_constructor(">>> Vi(np.zeros((5, 3))).shape, Vi(0, 3).shape", "((5, 1, 3), (1, 1, 3))")
def Vi(x_or_ind: Any, dim: int | None = None) -> LazyTensor:
    """A LazyTensor of rows, indexed by i: an array (M, D), or a symbolic variable (index, D)."""
    return _variable(x_or_ind, dim, 0)


@_constructor(">>> Vj(np.zeros((5, 3))).shape", "(1, 5, 3)")
def Vj(x_or_ind: Any, dim: int | None = None) -> LazyTensor:
    """A LazyTensor of columns, indexed by j: an array (N, D), or a symbolic variable (index, D)."""
    return _variable(x_or_ind, dim, 1)


@_constructor(">>> Pm([1.0, 2.0]).shape", "(1, 1, 2)")
def Pm(x_or_ind: Any, dim: int | None = None) -> LazyTensor:
    """A LazyTensor of parameters, of all pairs: an array (D,), numbers or a symbolic variable (index, D)."""
    return _variable(x_or_ind, dim, 2)
