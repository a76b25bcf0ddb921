"""What a reduction of a LazyTensor is before it is called."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep.pairs.calls import PairCall, device_of
from upsweep.pairs.describe import describe
from upsweep.pairs.graph import Leaf, Meta

__all__ = ["Reduced", "finish", "values_of"]


class Reduced:
    """A reduction that can be printed, called, and differentiated.

    Made by reductions with ``call=False``, and by those of symbolic variables, whose arrays it is called with, in
    the order of their indices.

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
        self, call: PairCall, leaves: list[Leaf], meta: Meta, reduction_op: str, axis: int,
        settings: dict[str, Any],
    ) -> None:  # fmt: skip
        self._call, self._leaves, self._meta = call, leaves, meta
        self.reduction_op, self.axis, self._settings = reduction_op, axis, settings
        self._n_symbols = sum(leaf.index is not None for leaf in leaves)

    @property
    def is_complete(self) -> bool:
        """Whether all its arrays are there."""
        return self._n_symbols == 0 and self._meta.dtype is not None

    def _arrays(self, args: tuple[Any, ...]) -> list[Any]:
        if len(args) != self._n_symbols:
            raise TypeError(f"expected {self._n_symbols} arrays, for the symbolic variables, got {len(args)}")
        return values_of([*args, *[leaf.array for leaf in self._leaves[self._n_symbols :]]], self._meta.dtype)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """The result, for the arrays of the symbolic variables; keywords as those of the reduction."""
        merged = {**self._settings, **settings} if settings else self._settings
        return _run(self._call, self._arrays(args), **merged)

    def value_and_grad(
        self, *args: Any, cotangent: Any = None, wrt: Any = None, **settings: Any
    ) -> tuple[Any, Any]:
        """The result and its gradients; see `Genred.value_and_grad`.

        Parameters
        ----------
        *args : arrays
            Of the symbolic variables.
        cotangent : array, optional
            Of the result's shape; 1 by default.
        wrt : list of LazyTensor, optional
            The variables whose gradients are wanted; by default all arrays in the order of `print`.
        """
        from upsweep.pairs.gradients import value_and_grad

        places = None
        if wrt is not None:
            found = {id(leaf): place for place, leaf in enumerate(self._leaves)}
            arrays = {(id(leaf.array), leaf.kind): place for place, leaf in enumerate(self._leaves)}
            places = []
            for each in wrt:
                leaf = each._args[0] if each._op is None else None
                place = found.get(id(leaf), arrays.get((id(leaf.array), leaf.kind)) if leaf is not None else None)
                if place is None:
                    raise ValueError("wrt: expected LazyTensors of arrays that the formula reads")
                places.append(place)
        merged = {**self._settings, **settings}
        for name in ("backend", "device_id", "out"):
            merged.pop(name, None)
        return value_and_grad(self._call, self._arrays(args), cotangent, places, **merged)

    def __str__(self) -> str:
        sizes = self._meta.ni, self._meta.nj
        title = f"{self.reduction_op} (axis={self.axis})"
        return describe(self._call, sizes, self._meta.batch or (), title)

    __repr__ = __str__


def values_of(arrays: list[Any], dtype: str | None) -> list[Any]:
    """The arrays, and lists of numbers as arrays of the library and dtype of the others."""
    for place, value in enumerate(arrays):
        if type(value) is list:
            first = next((array for array in arrays if hasattr(array, "dtype")), None)
            if first is not None and _arrays.any_torch(first):
                arrays[place] = handlers("torch").pairs.numbers(tuple(value), first.dtype, first.device)
            elif first is None or isinstance(first, np.ndarray):
                arrays[place] = np.array(value, "float64" if first is None else first.dtype)
            elif _arrays.any_dask(first):
                arrays[place] = handlers("dask").blocks_like(first, np.array(value, first.dtype))
            else:
                arrays[place] = _made_like(value, first)
    return arrays


def _made_like(value: list[float], first: Any) -> Any:
    ask = getattr(first, "__array_namespace__", None)
    library: Any = sys.modules.get(type(first).__module__.partition(".")[0]) if ask is None else ask()
    if not hasattr(library, "asarray"):
        raise TypeError(f"numbers beside a {_arrays.type_name(first)}: make them an array of its library")
    device: Any = getattr(first, "device", None)
    with device if hasattr(device, "__enter__") else contextlib.nullcontext():
        return library.asarray(value, dtype=first.dtype)


def _run(
    call: PairCall, arrays: list[Any], ranges: Any = None, out: Any = None, n_threads: int | None = None,
    backend: str | None = None, device_id: int = -1, method: str | None = None,
) -> Any:  # fmt: skip
    device = None
    if backend is not None and backend != "auto":
        device = device_for(arrays, backend, device_id)
    results = call(arrays, ranges, n_threads=n_threads, device=device, method=method)
    return finish(call, results, out)


def device_for(arrays: list[Any], backend: str, device_id: int) -> str | None:
    """Where numpy's arrays are computed; of others, whether the backend is where they are.

    Raises
    ------
    ValueError
        There is no such backend, or the arrays are elsewhere.
    """
    device = device_of(backend, device_id)
    for array in arrays:
        if isinstance(array, np.ndarray):
            continue
        on_cuda = bool(getattr(array, "is_cuda", _arrays.any_on_device(array)))
        if backend == "CPU" and on_cuda:
            raise ValueError("backend: 'CPU' is not where the arrays are; move them first")
        if device is not None and not on_cuda:
            raise ValueError(f"backend: {backend!r} is not where the arrays are; move them first")
        device = None if on_cuda else device
    return device


def finish(call: PairCall, results: tuple[Any, ...], out: Any) -> Any:
    """The results in KeOps' shapes, in `out` if that is given."""
    if len(results) == 1 and out is None and not call.k:
        return results[0]
    result = call.shaped(results)
    if out is None:
        return result
    if _arrays.any_dask(*results):
        raise ValueError("out: does not go with dask arrays, which are computed later, and elsewhere")
    if isinstance(result, tuple):
        raise ValueError(f"out: one array cannot take the {len(result)} results of {call.reduction}")
    if tuple(out.shape) != tuple(result.shape):
        raise ValueError(f"out: expected shape {tuple(result.shape)}, got {tuple(out.shape)}")
    if out.dtype != result.dtype:
        raise TypeError(f"out: expected dtype {result.dtype}, got {out.dtype}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out: is read-only")
    out[...] = result
    return out
