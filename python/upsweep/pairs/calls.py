"""A reduction over pairs that is ready to be called on arrays: their sizes, libraries, ranges, gradients.

`Genred` and `LazyTensor` make a :class:`PairCall` of a formula once, and call it with arrays in the order of its
inputs. Of arrays that numpy holds, what follows from shapes and dtypes is kept from call to call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays, _backends
from upsweep._arrays.dispatch import handlers
from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.formulas.reduction import PairReduction
from upsweep._utils.integers import as_integer
from upsweep.pairs.ranges import as_ranges

__all__ = [
    "AUTO",
    "Input",
    "Options",
    "PairCall",
    "Sizes",
    "device_of",
    "number_of_least",
    "options_of",
    "refuse_lazy_ranges",
]

Array = NDArray[Any]
_KEPT = 64  # combinations of shapes and dtypes whose checks are remembered

_SUMS = ("sum", "logsumexp", "sumsoftmaxweight")
_SCHEMES = ("auto", "direct_sum", "block_sum", "kahan_scheme")
_BACKENDS = ("auto", "CPU", "GPU", "GPU_1D", "GPU_2D")


class Options(NamedTuple):
    """How sums are kept."""

    dtype_acc: str = "auto"


AUTO = Options()


def options_of(
    reduction: str, dtype_acc: str = "auto", use_double_acc: bool = False, sum_scheme: str = "auto"
) -> Options:  # fmt: skip
    """The options of KeOps' `Genred`, checked.

    Every scheme adds float32 in blocks whose sums are kept in `dtype_acc`, by default float64: "direct_sum" is no
    faster here, and "kahan_scheme" no more exact.
    """
    if sum_scheme not in _SCHEMES:
        raise ValueError(f"sum_scheme: expected one of {', '.join(_SCHEMES)}, got {sum_scheme!r}")
    if sum_scheme in ("block_sum", "kahan_scheme") and reduction not in _SUMS:
        raise ValueError(f"sum_scheme: {sum_scheme!r} is for sums, not for {reduction}")
    if dtype_acc not in ("auto", "float16", "float32", "float64"):
        raise ValueError(f"dtype_acc: expected 'auto', 'float16', 'float32' or 'float64', got {dtype_acc!r}")
    if dtype_acc != "auto" and use_double_acc:
        raise ValueError("use_double_acc: give either this or dtype_acc")
    if dtype_acc != "auto" and reduction not in _SUMS:
        raise ValueError(f"dtype_acc: is for sums, not for {reduction}; leave it at 'auto'")
    return Options("float64" if use_double_acc and reduction in _SUMS else dtype_acc)


def number_of_least(value: Any, name: str, reduction_op: str) -> int:
    """K of "kmin" and its kin."""
    k = 0 if value is None else as_integer(value, name)
    if k < 1:
        raise ValueError(f"{name}: expected at least 1, as K of {reduction_op}, got {value!r}")
    return k


def refuse_lazy_ranges(ranges: Any) -> None:
    """Raise where ranges are given for dask arrays."""
    if ranges is not None:
        raise ValueError(
            "ranges: do not go with dask arrays, whose blocks would cut them; call each block of rows with its own"
        )


def device_of(backend: str | None, device_id: int) -> str | None:
    """The `device` that KeOps' backend names mean for numpy's arrays."""
    if backend is None:
        backend = "auto"
    if backend not in _BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r}")
    ordinal = as_integer(device_id, "device_id")
    if backend in ("auto", "CPU"):
        return None
    return "cuda" if ordinal < 0 else f"cuda:{ordinal}"


class Input(NamedTuple):
    """An array that a formula reads: rows ("i") or columns ("j") of dim features, or one vector of parameters."""

    name: str
    kind: str
    dim: int


class Sizes(NamedTuple):
    n_i: int
    n_j: int
    batch: tuple[int, ...]


class PairCall:
    """A formula of inputs and how it is reduced, for arrays of any dtype.

    Parameters
    ----------
    inputs : sequence of Input
        By position.
    formula, weight : Node
        What is reduced.
    reduction : str
        One of `_expr.reduction.REDUCTIONS`.
    rows : {"i", "j"}
        What remains.
    k : int
        Of "kmin" and its kin.
    """

    def __init__(
        self, inputs: Sequence[Input], formula: Node, reduction: str, rows: str, *, weight: Node | None = None,
        k: int = 0, options: Options = AUTO,
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self.formula, self.weight = formula, weight
        self.reduction, self.rows, self.k, self.options = reduction, rows, k, options
        self._of: dict[str, PairReduction] = {}
        self._known: dict[Any, tuple[PairReduction, Sizes]] = {}
        PairReduction(
            formula, reduction, weight, rows, k, "float64", "float64"
        )  # refuses now what no dtype can do

    def of(self, dtype: str) -> PairReduction:
        """The reduction of arrays of this dtype."""
        found = self._of.get(dtype)
        if found is None:
            found = self._of[dtype] = PairReduction(
                self.formula, self.reduction, self.weight, self.rows, self.k, dtype, self._accumulator(dtype)
            )
        return found

    def _accumulator(self, dtype: str) -> str:
        asked = self.options.dtype_acc
        if dtype in ("float16", "bfloat16"):
            if asked == "float64":
                raise ValueError(f"dtype_acc: sums of {dtype} are kept in float32, not in float64")
            return "float32"
        if asked == "float16" or (asked == "float32" and dtype == "float64"):
            raise ValueError(f"dtype_acc: sums of {dtype} cannot be kept in {asked}")
        return "float64" if asked == "auto" else asked

    # ---- calls -------------------------------------------------------------------------------------------------

    def __call__(
        self, arrays: Sequence[Any], ranges: Any = None, *, n_threads: int | None = None,
        device: str | None = None, method: str | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The results, each of shape batch + (rows, dim), of the library of the arrays."""
        if ranges is None and device is None and method is None:
            try:
                key = [(array.shape, array.dtype) for array in arrays]
                known = self._known.get(tuple(key))
            except (AttributeError, TypeError):
                known = None
            if known is not None:
                for array in arrays:
                    if type(array) is not np.ndarray:
                        break
                else:
                    reduction, sizes = known
                    return _backends.run_pairs(
                        reduction, arrays, sizes.n_i, sizes.n_j, sizes.batch, None, n_threads=n_threads
                    )
        if _arrays.any_dask(*arrays):
            return self._lazy(arrays, ranges, n_threads, device, method)
        if method is not None:
            raise ValueError(f"method: goes with dask arrays only, got {method!r}")
        return self._checked(arrays, ranges, n_threads, device)

    def _lazy(
        self, arrays: Sequence[Any], ranges: Any, n_threads: int | None, device: str | None, method: str | None
    ) -> tuple[Any, ...]:  # fmt: skip
        _arrays.refuse_device(device, "dask arrays")
        refuse_lazy_ranges(ranges)
        self.check_number(len(arrays))
        given = self.lazy_operands(arrays)
        dtype = self.check_dtypes([array.dtype.name for array in given])
        if not _arrays.any_on_device(*(getattr(array, "_meta", None) for array in given)):
            self._refuse_half(dtype)
        reduction = self.of(dtype)
        sizes, ready = self.measure(given)
        return handlers("dask").pairs.run_pairs(reduction, ready, *sizes, method=method, n_threads=n_threads)

    def lazy_operands(self, arrays: Sequence[Any], cotangent: Any = None) -> list[Any]:
        """The arguments as graphs take them: dask arrays, also of such as lie in memory, and parameters."""
        named = [(each.name, array) for each, array in zip(self.inputs, arrays)]
        return handlers("dask").pairs.operands(named if cotangent is None else [*named, ("cotangent", cotangent)])

    def _checked(
        self, arrays: Sequence[Any], ranges: Any, n_threads: int | None, device: str | None
    ) -> tuple[Any, ...]:  # fmt: skip
        if _arrays.any_torch(*arrays):
            _arrays.refuse_device(device, "torch tensors")
            return handlers("torch").pairs.reduce(self, arrays, ranges, n_threads)
        if _arrays.any_dlpack_only(*arrays):
            _arrays.refuse_device(device, "arrays of other libraries")
            self.check_number(len(arrays))
            named = {each.name: array for each, array in zip(self.inputs, arrays)}
            return _arrays.call_via_dlpack(
                lambda **lent: self(tuple(lent.values()), ranges, n_threads=n_threads), named
            )
        self.check_number(len(arrays))
        ordinal = _arrays.check_device(device)
        given = [self.operand(place, array) for place, array in enumerate(arrays)]
        placement = _arrays.common_placement({each.name: array for each, array in zip(self.inputs, given)})
        if placement is not None:
            _arrays.refuse_device(device, f"a {placement.library.name}")
        dtype = self.check_dtypes([array.dtype.name for array in given])
        if placement is None and ordinal is None:
            self._refuse_half(dtype)
        sizes, ready = self.measure(given)
        reduction = self.of(dtype)
        if ranges is None and placement is None and not sizes.batch and all(a is b for a, b in zip(arrays, ready)):
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[tuple((array.shape, array.dtype) for array in arrays)] = reduction, sizes
        triple = self.triple(ranges, sizes, self.rows)
        return _backends.run_pairs(
            reduction, ready, sizes.n_i, sizes.n_j, sizes.batch, triple, n_threads=n_threads, device=ordinal
        )

    def _refuse_half(self, dtype: str) -> None:
        if dtype in ("float16", "bfloat16"):
            raise TypeError(f"{self.inputs[0].name}: {dtype} is reduced on CUDA only; convert to float32")

    def operand(self, place: int, value: Any) -> Array:
        """One argument as an array, or as a view of one on a device."""
        name = self.inputs[place].name
        array = _arrays.as_operand(value, name)
        if not array.dtype.isnative and array.dtype.kind == "f":
            array = array.astype(array.dtype.newbyteorder("="))
        return array

    def check_number(self, n_arrays: int) -> None:
        """Raise unless there is an array for each input."""
        if n_arrays != len(self.inputs):
            raise TypeError(f"expected {len(self.inputs)} arrays, {self._listed()}, got {n_arrays}")

    def _listed(self) -> str:
        return ", ".join(f"{each.name} = V{each.kind}({each.dim})".replace("Vp", "Pm") for each in self.inputs)

    def check_dtypes(self, dtypes: Sequence[str]) -> str:
        """The one floating dtype that all arrays have."""
        for each, dtype in zip(self.inputs, dtypes):
            if dtype not in ("float16", "bfloat16", "float32", "float64"):
                raise TypeError(f"{each.name}: expected float32 or float64, got {dtype}")
            if dtype != dtypes[0]:
                raise TypeError(
                    f"{each.name}: is of dtype {dtype}, and {self.inputs[0].name} of {dtypes[0]}; convert one"
                )
        return dtypes[0] if dtypes else "float64"

    def measure(self, arrays: Sequence[Any]) -> tuple[Sizes, list[Any]]:
        """How many rows, columns and batch entries there are, and the arrays as engines take them."""
        n_batch = 0
        for each, array in zip(self.inputs, arrays):
            n_own = 1 if each.kind == "p" else 2
            if array.ndim < n_own:
                shape = "(dim,)" if n_own == 1 else "(n, dim)"
                raise ValueError(f"{each.name}: expected shape {shape}, got {tuple(array.shape)}")
            if array.shape[-1] != each.dim:
                raise ValueError(
                    f"{each.name}: expected {each.dim} features, as in the formula, got shape {tuple(array.shape)}"
                )
            n_batch = max(n_batch, array.ndim - n_own)
        found: dict[str, tuple[int, str]] = {}
        batch = [1] * n_batch
        ready = []
        for each, array in zip(self.inputs, arrays):
            own = tuple(array.shape[: -1 if each.kind == "p" else -2])
            for axis, size in enumerate(own, n_batch - len(own)):
                if size != 1 and batch[axis] not in (1, size):
                    raise ValueError(
                        f"{each.name}: batch dimensions {own} do not go with those of the arrays before, {batch}"
                    )
                batch[axis] = size if batch[axis] == 1 else batch[axis]
            if each.kind != "p":
                size, first = found.setdefault(each.kind, (int(array.shape[-2]), each.name))
                if size != array.shape[-2]:
                    what = "rows" if each.kind == "i" else "columns"
                    raise ValueError(f"{each.name}: has {array.shape[-2]} {what}, and {first} has {size}")
            ready.append(array if n_batch == 0 else _padded(array, each.kind, n_batch))
        sizes = Sizes(found.get("i", (1, ""))[0], found.get("j", (1, ""))[0], tuple(batch))
        return sizes, ready

    def shaped(self, results: tuple[Any, ...]) -> Any:
        """The results as KeOps has them: (rows, dim); of "kmin" and its kin (rows, K, dim), (rows, K) of dim 1."""
        if self.k:
            results = tuple(part.reshape(*part.shape[:-1], self.k, part.shape[-1] // self.k) for part in results)
            results = tuple(part[..., 0] if part.shape[-1] == 1 else part for part in results)
        return results if len(results) > 1 else results[0]

    def triple(self, ranges: Any, sizes: Sizes, rows: str) -> Any:
        """What engines are told of `ranges`: nothing, one triple, or one for each entry of the batch."""
        n_entries = int(np.prod(sizes.batch, dtype=np.int64))
        made = as_ranges(ranges, sizes.n_i, sizes.n_j, n_entries)
        if made is None:
            return None
        return made.for_batch(rows, sizes.n_i, sizes.n_j, n_entries)


def _padded(array: Any, kind: str, n_batch: int) -> Any:
    """With all batch dimensions, and one for the rows of parameters: (*batch, n, dim)."""
    if kind == "p":
        if array.ndim == 1:
            return array
        array = array[..., None, :]
    missing = n_batch + 2 - array.ndim
    return array[(None,) * missing] if missing else array
