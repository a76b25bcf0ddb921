"""Reference implementation in numpy of formulas and of their reductions over pairs: the oracle of the tests.

`evaluate` computes a formula's value for every pair; `pair_reduction` reduces these values in float64. Both take
time and memory in proportion to the number of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, check_variables, fold
from upsweep._compiler.formulas.reduction import PairReduction, fill, outputs

Array = NDArray[Any]
_BLOCK = 2_000_000  # float64 numbers of a formula's largest vector in one block of rows: 16 MB


def evaluate(formula: Node, arrays: Sequence[Array], dtype: Any = np.float64) -> Array:
    """The value of a formula for every pair, of shape (..., formula.dim); one numpy operation for each node.

    `arrays` are the variables by position, of shapes (..., dim) that broadcast: (M, 1, dim) for rows, (1, N, dim)
    for columns, (dim,) for parameters.

    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> x, y = variable(0, 1, "i"), variable(1, 1, "j")
    >>> evaluate(make("sqdist", x, y), [np.array([[[0.0]], [[1.0]]]), np.array([[[1.0], [3.0]]])])[..., 0]
    array([[1., 9.],
           [0., 4.]])
    """

    def value_of(node: Node, args: list[Array]) -> Array:
        if node.op == "variable":
            return _input(node, arrays, dtype)
        if node.op in ("constant", "zero"):
            return np.full(node.dim, node.static[0] if node.op == "constant" else 0, dtype)
        return np.asarray(ops.numpy_function(node.op)(*args, *node.static)).astype(dtype, copy=False)

    with np.errstate(all="ignore"):
        return fold(formula, value_of)


def _input(node: Node, arrays: Sequence[Array], dtype: Any) -> Array:
    position = node.static[0]
    if not 0 <= position < len(arrays):
        raise ValueError(f"the formula reads array {position}, and there are {len(arrays)}")
    array = np.asarray(arrays[position])
    if array.shape[-1:] != (node.dim,):
        raise ValueError(f"array {position} has to have {node.dim} features, and is of shape {array.shape}")
    return array.astype(dtype, copy=False)


def pair_reduction(
    reduction: PairReduction,
    arrays: Sequence[Array],
    n_i: int,
    n_j: int,
    batch: tuple[int, ...] = (),
    ranges: Any = None,
) -> tuple[Array, ...]:
    """The results of a reduction over pairs, one block of rows after the other, of shape batch + (rows, dim).

    They are float64, or int64 for indices.

    Parameters
    ----------
    arrays : sequence of ndarray
        By position, of shapes (..., n_i, dim), (..., n_j, dim), and (..., 1, dim) or (dim,) for parameters, where
        ``...`` broadcasts to `batch`.
    ranges : triple, optional
        ``(blocks, slices, columns)``: the rows ``blocks[k, 0]`` to ``blocks[k, 1]`` reduce over the intervals
        ``columns[slices[k-1]:slices[k]]`` only, rows of no block over no columns. Columns in several intervals
        count several times. One for all batch entries, or a list of one for each.

    Examples
    --------
    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> distance = make("sqdist", variable(0, 1, "i"), variable(1, 1, "j"))
    >>> x, y = np.array([[0.0], [4.0]]), np.array([[1.0], [3.0], [3.0]])
    >>> pair_reduction(PairReduction(distance, "min_argmin"), [x, y], 2, 3)
    (array([[1.],
           [1.]]), array([[0],
           [1]]))
    """
    n_rows, n_columns = (n_i, n_j) if reduction.rows == "i" else (n_j, n_i)
    check_variables(*reduction.variables)
    kinds = {v.static[0]: v.static[1] for v in reduction.variables}
    results = tuple(
        np.full((*batch, n_rows, dim), value, np.int64 if kind == "index" else np.float64)
        for (dim, kind), value in zip(outputs(reduction), fill(reduction))
    )
    nodes = (reduction.formula, reduction.weight, *reduction.variables)
    widest = max(node.dim for node in nodes if node is not None)
    step = max(1, _BLOCK // max(1, n_columns * widest))
    for n, entry in enumerate(np.ndindex(*batch)):
        of_entry = [_entry(array, kinds.get(p), batch, entry) for p, array in enumerate(arrays)]
        of_n = ranges[n] if isinstance(ranges, list) else ranges
        for begin, end, columns in _blocks(of_n, n_rows, n_columns, step):
            if len(columns):
                _reduce(reduction, of_entry, kinds, slice(begin, end), columns, [r[entry] for r in results])
    return results


def _entry(array: Array, kind: str | None, batch: tuple[int, ...], entry: tuple[int, ...]) -> Array:
    """One batch entry of an array: (rows, dim), or (1, dim)."""
    array = np.atleast_2d(array)
    return np.asarray(np.broadcast_to(array, (*batch, *array.shape[-2:]))[entry])


def _blocks(ranges: Any, n_rows: int, n_columns: int, step: int) -> Iterator[tuple[int, int, Array]]:
    """Blocks of rows with the columns that they reduce over."""
    if ranges is None:
        whole = [(0, n_rows, np.arange(n_columns))]
    else:
        blocks, slices, intervals = (np.asarray(part) for part in ranges)
        starts = np.concatenate([[0], slices[:-1]]).astype(int)
        whole = [
            (int(begin), int(end), np.concatenate([np.arange(0), *(np.arange(a, b) for a, b in intervals[s:e])]))
            for (begin, end), s, e in zip(blocks, starts, slices)
        ]
    for begin, end, columns in whole:
        for row in range(begin, end, step):
            yield row, min(row + step, end), columns


def _reduce(
    reduction: PairReduction,
    arrays: list[Array],
    kinds: dict[int, str],
    rows: slice,
    columns: Array,
    results: list[Array],
) -> None:
    operands: list[Array] = []
    for position, array in enumerate(arrays):
        kind = kinds.get(position, "p")
        if kind == "p":
            operands.append(array.reshape(1, 1, -1))
        else:
            operands.append(array[rows][:, None] if kind == reduction.rows else array[columns][None])
    pairs = (rows.stop - rows.start, len(columns))
    values, weights = (
        None if formula is None else np.broadcast_to(evaluate(formula, operands), (*pairs, formula.dim))
        for formula in (reduction.formula, reduction.weight)
    )
    assert values is not None
    for result, value in zip(results, _values(reduction, values, weights, columns)):
        result[rows] = value.reshape(pairs[0], -1)


def _values(reduction: PairReduction, values: Array, weights: Array | None, columns: Array) -> tuple[Array, ...]:
    """The outputs of one block, of shape (rows, ...), from all its pairs of shape (rows, columns, dim)."""
    name = reduction.reduction
    if name in ("sum", "min", "max"):
        return (getattr(values, name)(1),)
    if name in ("logsumexp", "sumsoftmaxweight"):
        return (_exponentials(name, values, weights),)
    if "kmin" in name:
        return _smallest(reduction, values, columns)
    best = values.argmin(1) if name.endswith("argmin") else values.argmax(1)
    chosen = np.take_along_axis(values, best[:, None], 1)
    # Intervals may be in any order; of equal values the one with the smallest column index wins.
    by_index = np.argsort(columns, kind="stable")
    same = (values == chosen) | (np.isnan(values) & np.isnan(chosen))
    first = columns[by_index[same[:, by_index].argmax(1)]]
    return (first,) if name.startswith("arg") else (chosen[:, 0], first)


def _exponentials(name: str, values: Array, weights: Array | None) -> Array:
    top = values.max(1, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0)
    with np.errstate(all="ignore"):
        terms = np.exp(values - shift)
        total = (terms if weights is None else terms * weights).sum(1)
        if name == "logsumexp":
            return np.asarray(np.log(total) + shift[:, 0])
        return np.asarray(total / terms.sum(1))


def _smallest(reduction: PairReduction, values: Array, columns: Array) -> tuple[Array, ...]:
    by_index = np.argsort(columns, kind="stable")
    order = by_index[np.argsort(values[:, by_index], axis=1, kind="stable")[:, : reduction.k]]
    missing = ((0, 0), (0, reduction.k - order.shape[1]), (0, 0))
    least = np.pad(np.take_along_axis(values, order, 1), missing, constant_values=np.inf)
    places = np.pad(columns[order], missing, constant_values=-1)
    return {"kmin": (least,), "argkmin": (places,), "kmin_argkmin": (least, places)}[reduction.reduction]
