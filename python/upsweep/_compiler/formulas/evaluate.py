"""A formula's value on numpy arrays, operation by operation: what compiled formulas have to agree with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, order

__all__ = ["evaluate"]

Array = NDArray[Any]


def evaluate(formula: Node, arrays: Sequence[Array], dtype: Any = np.float64) -> Array:
    """The value of `formula` for every pair.

    Parameters
    ----------
    formula : Node
        A formula of the arrays.
    arrays : sequence of ndarray
        The variables by position, of shapes (..., dim) that broadcast: (M, 1, dim) for rows, (1, N, dim) for
        columns, (dim,) for parameters.
    dtype : dtype, optional
        What is computed in.

    Returns
    -------
    ndarray of shape (..., formula.dim)

    Examples
    --------
    >>> from upsweep._compiler.formulas.nodes import make, variable
    >>> x, y = variable(0, 1, "i"), variable(1, 1, "j")
    >>> evaluate(make("sqdist", x, y), [np.array([[[0.0]], [[1.0]]]), np.array([[[1.0], [3.0]]])])[..., 0]
    array([[1., 9.],
           [0., 4.]])
    """
    values: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in order(formula):
            if node.op == "variable":
                values[node] = _input(node, arrays, dtype)
            elif node.op in ("constant", "zero"):
                values[node] = np.full(node.dim, node.static[0] if node.op == "constant" else 0, dtype)
            else:
                meaning = ops.TABLE[node.op].meaning
                assert meaning is not None, f"{node.op} is written in terms of others"
                args = [values[arg] for arg in node.args]
                values[node] = np.asarray(meaning(*args, *node.static)).astype(dtype, copy=False)
    return values[formula]


def _input(node: Node, arrays: Sequence[Array], dtype: Any) -> Array:
    position = node.static[0]
    if not 0 <= position < len(arrays):
        raise ValueError(f"the formula reads array {position}, and there are {len(arrays)}")
    array = np.asarray(arrays[position])
    if array.shape[-1:] != (node.dim,):
        raise ValueError(f"array {position} has to have {node.dim} features, and is of shape {array.shape}")
    return array.astype(dtype, copy=False)
