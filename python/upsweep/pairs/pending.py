"""Reductions of a LazyTensor that have not run: printed, called with arrays, or differentiated."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep.pairs.expression import Leaf, Meta
from upsweep.pairs.function import PairFunction
from upsweep.pairs.gradients import value_and_grad
from upsweep.pairs.printing import describe


class PendingReduction:
    """A reduction that can be printed, called, and differentiated.

    Reductions return it with ``call=False``, and for formulas of symbolic variables: the arrays of these are the
    arguments of the call, in the order of their indices.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import Vi, Vj
    >>> x, y = np.array([[1.0], [2.0]]), np.array([[0.0], [3.0]])
    >>> squares = Vi(x).sqdist(Vj(y)).sum(axis=1, call=False)
    >>> squares()
    array([[5.],
           [5.]])
    >>> Vi(0, 1).sqdist(Vj(1, 1)).sum(axis=1)(x, y + 1)
    array([[9.],
           [5.]])
    """

    def __init__(
        self, function: PairFunction, leaves: list[Leaf], meta: Meta, reduction_op: str, axis: int,
        settings: dict[str, Any],
    ) -> None:  # fmt: skip
        self._function, self._leaves, self._meta = function, leaves, meta
        self.reduction_op, self.axis, self._settings = reduction_op, axis, settings
        self._n_symbols = sum([leaf.index is not None for leaf in leaves])

    @property
    def is_complete(self) -> bool:
        """Whether there are no symbolic variables, and at least one array."""
        return self._n_symbols == 0 and self._meta.dtype is not None

    def _arrays(self, args: tuple[Any, ...]) -> list[Any]:
        if len(args) != self._n_symbols:
            raise TypeError(f"expected {self._n_symbols} arrays, for the symbolic variables, got {len(args)}")
        return with_numbers_as_arrays([*args, *[leaf.array for leaf in self._leaves[self._n_symbols :]]])

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """The result for the arrays of the symbolic variables; keywords as those of the reduction."""
        merged = {**self._settings, **settings} if settings else self._settings
        return self._function(self._arrays(args), **merged)

    def value_and_grad(
        self, *args: Any, cotangent: Any = None, wrt: Any = None, **settings: Any
    ) -> tuple[Any, Any]:
        """The result and its gradients; see `Genred.value_and_grad`.

        Parameters
        ----------
        *args : arrays
            Of the symbolic variables.
        cotangent : array, optional
            An array of the result's shape; 1 by default.
        wrt : list of LazyTensor, optional
            The variables to differentiate by; by default all arrays, in the order of `print`.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> x, y = Vi(np.array([[1.0]])), Vj(np.array([[0.0], [3.0]]))
        >>> x.sqdist(y).sum(axis=1, call=False).value_and_grad(wrt=[x])
        (array([[5.]]), (array([[-2.]]),))
        """
        positions = None
        if wrt is not None:
            by_key = {_key(leaf): position for position, leaf in enumerate(self._leaves)}
            keys = [_key(each._args[0]) if each._op is None else None for each in wrt]
            if not by_key.keys() >= set(keys):
                raise ValueError("wrt: expected LazyTensors of arrays that the formula reads")
            positions = [by_key[key] for key in keys]
        merged = {**self._settings, **settings}
        for name in ("backend", "device_id", "out"):
            merged.pop(name, None)
        return value_and_grad(self._function, self._arrays(args), cotangent, positions, **merged)

    def __str__(self) -> str:
        title = f"{self.reduction_op} (axis={self.axis})"
        return describe(self._function, (self._meta.ni, self._meta.nj), self._meta.batch or (), title)

    __repr__ = __str__


def _key(leaf: Leaf) -> Any:
    """What `flatten` identifies an input by."""
    return leaf.index, id(leaf.array), leaf.kind


def with_numbers_as_arrays(values: list[Any]) -> list[Any]:
    """Replace lists of numbers by arrays of the library, device and dtype of the arrays among the values."""
    for position, value in enumerate(values):
        if type(value) is list:
            first = next((array for array in values if hasattr(array, "dtype")), None)
            if first is not None and _arrays.any_torch(first):
                values[position] = handlers("torch").pairs.numbers(tuple(value), first.dtype, first.device)
            elif first is None or isinstance(first, np.ndarray):
                values[position] = np.array(value, "float64" if first is None else first.dtype)
            elif _arrays.any_dask(first):
                values[position] = handlers("dask").blocks_like(first, np.array(value, first.dtype))
            else:
                values[position] = _array_like(value, first)
    return values


def _array_like(numbers: list[float], first: Any) -> Any:
    namespace = getattr(first, "__array_namespace__", None)
    library: Any = namespace() if namespace else sys.modules.get(type(first).__module__.partition(".")[0])
    if not hasattr(library, "asarray"):
        raise TypeError(f"numbers beside a {_arrays.type_name(first)}: make them an array of its library")
    device: Any = getattr(first, "device", None)
    with device if hasattr(device, "__enter__") else contextlib.nullcontext():
        return library.asarray(numbers, dtype=first.dtype)
