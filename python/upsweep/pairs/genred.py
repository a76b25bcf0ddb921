"""Reductions over pairs of formulas written as text: `Genred` and KeOps' ``generic_*`` functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from upsweep._compiler.formulas.nodes import KINDS, Node, variable, variables
from upsweep._compiler.formulas.parser import parse, parse_aliases, reduction_name
from upsweep._utils.examples import with_example
from upsweep.pairs.function import Input, PairFunction, check_dtypes, check_k, formula_settings
from upsweep.pairs.gradients import value_and_grad
from upsweep.pairs.printing import describe

_Function = TypeVar("_Function", bound=Callable[..., Any])
_VARIABLE = re.compile(r"\bVar\(\s*(\d+)\s*,\s*(\d+)\s*,\s*([012])\s*\)")


class Genred:
    """A reduction over pairs of a formula.

    Parameters
    ----------
    formula : str
        The formula in KeOps' language, such as ``"Exp(-SqDist(x, y)) * b"``.
    aliases : sequence of str
        The inputs in their order: ``"x = Vi(3)"`` for rows of 3 features, an array (M, 3); ``"y = Vj(3)"`` for
        columns; ``"g = Pm(1)"`` for parameters, an array (1,). Also ``"x = Vi(0, 3)"`` with the position, and
        without a name for formulas with ``Var(0, 3, 0)``.
    reduction_op : str
        "Sum", "LogSumExp", "SumSoftMaxWeight", "Min", "Max", "ArgMin", "ArgMax", "Min_ArgMin", "Max_ArgMax",
        "KMin", "ArgKMin", "KMin_ArgKMin".
    axis : {0, 1}
        0 reduces over rows, i; 1 over columns, j.
    dtype, cuda_type : {"auto", "float16", "float32", "float64", "half", "float", "double"}, optional
        Without effect, as in KeOps: the arrays determine the dtype.
    opt_arg : int, optional
        K of the "KMin" family.
    formula2 : str, optional
        The weight of "LogSumExp" and "SumSoftMaxWeight".
    dtype_acc : {"auto", "float32", "float64"}
        The dtype in which sums of blocks of columns are added; by default float64.
    use_double_acc : bool
        The same as ``dtype_acc="float64"``.
    sum_scheme : {"auto", "block_sum", "direct_sum", "kahan_scheme"}
        Accepted for compatibility: all are block sums.
    enable_chunks, rec_multVar_highdim, use_fast_math : ignored
        Hints for KeOps' compiler.
    precision : {"split", "ieee", "tf32", "f16"}
        How exact the squared distance or the scalar product of two vectors has to be at least, of which CUDA
        multiplies long ones on tensor cores: "split" takes the 22 leading bits of each number, "tf32" and "f16"
        11 bits, in a third of the time for 16 to 128 features; "ieee" computes in the arrays' dtype.
        Where a formula, a reduction or a dtype has no such kernel, and on the CPU, a more exact one runs.

    Raises
    ------
    ValueError
        The text is no formula, alias or reduction; the nearest names are suggested. An option has a value that is
        not listed.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import Genred
    >>> inputs = ["x = Vi(1)", "y = Vj(1)", "b = Vj(1)", "g = Pm(1)"]
    >>> gaussian = Genred("Exp(-g * SqDist(x, y)) * b", inputs, axis=1)
    >>> x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0], [3.0]])
    >>> gaussian(x, y, np.ones((3, 1)), np.array([0.5])).round(4)
    array([[1.1464],
           [1.3484]])
    """

    def __init__(
        self, formula: str, aliases: Sequence[str], reduction_op: str = "Sum", axis: int = 0, dtype: Any = None,
        opt_arg: int | None = None, formula2: str | None = None, cuda_type: Any = None, dtype_acc: str = "auto",
        use_double_acc: bool = False, sum_scheme: str = "auto", enable_chunks: bool = True,
        rec_multVar_highdim: Any = False, use_fast_math: bool = True, *, precision: str = "split",
    ) -> None:  # fmt: skip
        name = reduction_name(reduction_op)
        if axis not in (0, 1):
            raise ValueError(f"axis: expected 0 or 1, got {axis!r}")
        k = check_k(opt_arg, "opt_arg", reduction_op) if "kmin" in name else 0
        if reduction_op == "LogSumExpWeight" and formula2 is None:
            raise ValueError("formula2: LogSumExpWeight takes the formula of a weight")
        check_dtypes(dtype=dtype, cuda_type=cuda_type)
        settings = formula_settings(
            name, precision, dtype_acc=dtype_acc, use_double_acc=use_double_acc, sum_scheme=sum_scheme
        )
        inputs, nodes = _parsed([formula] if formula2 is None else [formula, formula2], aliases)
        weight = nodes[1] if len(nodes) > 1 else None
        self.formula, self.aliases, self.axis, self.reduction_op = formula, list(aliases), axis, reduction_op
        self._function = PairFunction(
            inputs, nodes[0], name, "j" if axis == 0 else "i", weight=weight, k=k, **settings
        )

    def __call__(
        self, *args: Any, backend: str = "auto", device_id: int = -1, ranges: Any = None, out: Any = None,
        n_threads: int | None = None, method: str | None = None,
    ) -> Any:  # fmt: skip
        """Reduce for these arrays.

        Parameters
        ----------
        *args : arrays
            One for each alias, of one dtype: (M, D) for rows, (N, D) for columns, (D,) for parameters; any
            strides. Dimensions before these are a batch, and broadcast.
        backend : {"auto", "CPU", "GPU", "GPU_1D", "GPU_2D"}
            For numpy arrays, "GPU" computes on a CUDA device. Arrays on a device are computed there.
        device_id : int
            The ordinal of the device.
        ranges : BlockRanges or tuple of six integer arrays, optional
            The pairs to reduce over; by default all. See `BlockRanges`.
        out : array, optional
            The result is written to it.
        n_threads : int, optional
            On the CPU; see `get_num_threads` for the default. Of dask arrays, of each task: by default 1.
        method : {"sequential", "tree"}, optional
            For dask arrays, how the blocks that are reduced over are combined: one after the other (the default),
            which keeps one of them in memory, or all in parallel, by a tree.

        Returns
        -------
        array of shape batch + (rows, dim), or a pair of arrays
            Of the "KMin" family batch + (rows, K, dim), without the last axis if dim is 1. Indices are int64.
            Rows without columns have the neutral element.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Genred
        >>> nearest = Genred("SqDist(x, y)", ["x = Vi(1)", "y = Vj(1)"], "ArgKMin", axis=1, opt_arg=2)
        >>> nearest(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0], [5.0]]))
        array([[0, 1],
               [1, 0]])
        """
        return self._function(args, ranges, out, n_threads, backend, device_id, method)

    def value_and_grad(
        self, *args: Any, cotangent: Any = None, wrt: Sequence[int] | None = None, ranges: Any = None,
        n_threads: int | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The result, and the gradients of ``sum(cotangent * result)`` in the inputs.

        Parameters
        ----------
        *args : arrays
            As for a call. Of dask arrays, the sums, logsumexp and softmax weights have gradients, as dask arrays.
        cotangent : array, optional
            An array of the result's shape, or that of the values of "Min_ArgMin" and similar; 1 by default.
        wrt : sequence of int, optional
            The positions of the inputs to differentiate by; by default all.
        ranges, n_threads
            As for a call.

        Returns
        -------
        value : as of a call
        gradients : tuple of arrays
            One for each position, of the input's shape.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Genred
        >>> squares = Genred("SqDist(x, y)", ["x = Vi(1)", "y = Vj(1)"], axis=1)
        >>> value, (dx, dy) = squares.value_and_grad(np.array([[1.0]]), np.array([[0.0], [3.0]]))
        >>> value.tolist(), dx.tolist(), dy.tolist()
        ([[5.0]], [[-2.0]], [[-2.0], [4.0]])
        """
        return value_and_grad(self._function, args, cotangent, wrt, ranges, n_threads)

    def __str__(self) -> str:
        return describe(self._function, (None, None), (), f"{self.reduction_op} (axis={self.axis})")


def _parsed(formulas: list[str], aliases: Sequence[str]) -> tuple[list[Input], list[Node]]:
    """The inputs by position, and the nodes of the formulas, which may read inputs that no alias declares.

    An input that is in the text counts even if it drops out of the formula, as in a derivative that is zero.
    """
    declared = parse_aliases(aliases)
    nodes = [parse(formula, declared) for formula in formulas]
    names = {node: name for name, node in declared.names.items()}
    inputs = list(declared.variables)
    matches = {tuple(map(int, numbers)) for formula in formulas for numbers in _VARIABLE.findall(formula)}
    others = {variable(position, dim, KINDS[category]) for position, dim, category in matches}
    for node in sorted(others.union(variables(*nodes)) - set(inputs), key=lambda node: int(node.static[0])):
        if node.static[0] != len(inputs):
            raise ValueError(
                f"aliases: the formula reads {node!r}, but there are {len(inputs)}; declare what is before"
            )
        inputs.append(node)
    return [Input(names.get(node, repr(node)), node.static[1], node.dim) for node in inputs], nodes


def _of_output(output: str) -> tuple[int, int]:
    """The axis that is reduced over, and the dim, of an output such as "a = Vi(3)"."""
    kind, dim = next((node.static[1], node.dim) for node in parse_aliases([output]).variables)
    if kind == "p":
        raise ValueError(f"output: expected Vi or Vj, got {output!r}")
    return (1 if kind == "i" else 0), dim


_GENERIC_PARAMETERS = """
    Parameters
    ----------
    formula : str
        The formula; of dim 1 for `generic_logsumexp`.
    output : str
        The declaration of the result: ``"a = Vi(3)"`` has 3 features for each row.
    *aliases : str
        The inputs.
    **kwargs
        As of `Genred`.

    Returns
    -------
    Genred
"""


def _documented(name: str, arguments: str, result: str) -> Callable[[_Function], _Function]:
    """A decorator that appends the parameters and the example of a ``generic_*`` function to its docstring."""
    return with_example(
        ">>> import numpy as np", f">>> from upsweep import {name}", f">>> reduction = {name}({arguments})",
        ">>> reduction(np.zeros((1, 1)), np.array([[3.0], [1.0], [-2.0]]))", result, sections=_GENERIC_PARAMETERS,
    )  # fmt: skip


@_documented("generic_sum", '"SqDist(x, y)", "a = Vi(1)", "x = Vi(1)", "y = Vj(1)"', "array([[14.]])")
def generic_sum(formula: str, output: str, *aliases: str, **kwargs: Any) -> Genred:
    """A `Genred` of a sum, from a declaration of the result."""
    return Genred(formula, aliases, "Sum", _of_output(output)[0], **kwargs)


@_documented("generic_logsumexp", '"x * y", "a = Vi(1)", "x = Vi(1)", "y = Vj(1)"', "array([[1.09861229]])")
def generic_logsumexp(formula: str, output: str, *aliases: str, **kwargs: Any) -> Genred:
    """A `Genred` of log(sum(exp(formula))), from a declaration of the result."""
    return Genred(formula, aliases, "LogSumExp", _of_output(output)[0], **kwargs)


@_documented("generic_argkmin", '"SqDist(x, y)", "a = Vi(2)", "x = Vi(1)", "y = Vj(1)"', "array([[1, 2]])")
def generic_argkmin(formula: str, output: str, *aliases: str, **kwargs: Any) -> Genred:
    """A `Genred` of the indices of the K smallest values of each row, for a result ``"a = Vi(K)"``."""
    axis, k = _of_output(output)
    return Genred(formula, aliases, "ArgKMin", axis, opt_arg=k, **kwargs)


@_documented("generic_argmin", '"SqDist(x, y)", "a = Vi(1)", "x = Vi(1)", "y = Vj(1)"', "array([[1]])")
def generic_argmin(formula: str, output: str, *aliases: str, **kwargs: Any) -> Genred:
    """A `Genred` of the index of the smallest value, from a declaration of the result."""
    return Genred(formula, aliases, "ArgMin", _of_output(output)[0], **kwargs)
