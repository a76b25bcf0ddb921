"""Functions of arrays that reduce a formula over pairs: checks, sizes, and dispatch by array library.

`Genred` and `LazyTensor` construct a :class:`PairFunction` once for a formula and call it with arrays in the order
of its inputs. `PairFunction.dispatch` is the one place that decides where a call runs: tensors go to
`_torch.pairs`, arrays that only DLPack describes are imported, and all others become a :class:`PairProblem`, whose
`run` calls the backends or `_dask`. For calls on numpy arrays alone, the results of the checks are cached by
shapes and dtypes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays, _backends
from upsweep._arrays.dispatch import handlers, refuse_method
from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.formulas.reduction import PairReduction, check_precision
from upsweep._core.checks import check_output, check_writeable, shape_error
from upsweep._utils.integers import as_integer
from upsweep._utils.lru_cache import LRUCache
from upsweep.pairs.ranges import as_ranges

Array = NDArray[Any]

_SUMS = ("sum", "logsumexp", "sumsoftmaxweight")
_SCHEMES = ("auto", "direct_sum", "block_sum", "kahan_scheme")
_BACKENDS = ("auto", "CPU", "GPU", "GPU_1D", "GPU_2D")
_HALF = ("float16", "bfloat16")
_DTYPE_NAMES = ("auto", "float16", "float32", "float64", "half", "float", "double")  # the last of older KeOps


def check_accumulator(
    reduction: str, dtype_acc: str = "auto", use_double_acc: bool = False, sum_scheme: str = "auto"
) -> str:
    """The accumulator's dtype, or "auto", from the options of KeOps' `Genred`.

    Every scheme adds float32 in blocks whose sums are added in that dtype, by default float64: "direct_sum" would
    not be faster, nor "kahan_scheme" more accurate.
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
    return "float64" if use_double_acc and reduction in _SUMS else dtype_acc


def formula_settings(reduction: str, precision: str = "split", **options: Any) -> dict[str, Any]:
    """The keywords of `PairFunction` that options of a reduction stand for."""
    check_precision(precision)  # before it is part of a key of a cache
    return {"dtype_acc": check_accumulator(reduction, **options), "precision": precision}


def check_dtypes(**options: Any) -> None:
    """Raise for options without effect, `dtype` and `cuda_type`, that do not name a dtype."""
    for option, value in options.items():
        if value is not None and value not in _DTYPE_NAMES:
            names = ", ".join(map(repr, _DTYPE_NAMES))
            raise ValueError(
                f"{option}: expected None or one of {names}, got {value!r}; the arrays determine the dtype, leave "
                "it out"
            )


def check_k(value: Any, name: str, reduction_op: str) -> int:
    """K of the "kmin" family."""
    k = 0 if value is None else as_integer(value, name)
    if k < 1:
        raise ValueError(f"{name}: expected at least 1, as K of {reduction_op}, got {value!r}")
    return k


def _device_of_backend(arrays: Sequence[Any], backend: str | None, device_id: int) -> str | None:
    """The `device` that KeOps' name of a backend means for numpy arrays; None for arrays that are on a device."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r}")
    ordinal = as_integer(device_id, "device_id")
    device = None if backend in ("auto", "CPU") else "cuda" if ordinal < 0 else f"cuda:{ordinal}"
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


class Input(NamedTuple):
    """An array that a formula reads: rows ("i") or columns ("j") of dim features, or one vector of parameters."""

    name: str
    kind: str
    dim: int


class Sizes(NamedTuple):
    """The numbers of rows and columns, and the batch dimensions."""

    n_i: int
    n_j: int
    batch: tuple[int, ...]


@dataclass(frozen=True)
class PairProblem:
    """A checked reduction over pairs, without its arrays: derivatives are other reductions of the same sizes.

    `intervals` maps the axis of the result, "i" or "j", to the pairs to reduce over: None for all, one
    `BlockIntervals` for all batch entries, or a list of one for each.
    """

    reduction: PairReduction
    sizes: Sizes
    intervals: Callable[[str], Any]
    n_threads: int | None = None
    device: int | None = None
    method: str | None = None

    def with_reduction(self, reduction: PairReduction) -> PairProblem:
        """Another reduction of arrays of the same sizes, over the same pairs."""
        return replace(self, reduction=reduction)

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The results, each of shape batch + (rows, dim), of the library of the arrays."""
        if _arrays.any_dask(*arrays):
            lazy: tuple[Any, ...] = handlers("dask").pairs.run_pairs(
                self.reduction, arrays, *self.sizes, method=self.method, n_threads=self.n_threads
            )
            return lazy
        intervals = self.intervals(self.reduction.rows)
        return _backends.run_pairs(
            self.reduction, arrays, *self.sizes, intervals, n_threads=self.n_threads, device=self.device
        )


class BoundCall(NamedTuple):
    """A problem with its arrays: as backends read them, and as they were passed."""

    problem: PairProblem
    operands: Sequence[Any]
    arguments: Sequence[Any]
    cotangent: Any
    placement: _arrays.Placement | None

    def run(self) -> tuple[Any, ...]:
        return self.problem.run(self.operands)


class PairFunction:
    """A formula of inputs and its reduction, for arrays of any dtype.

    `rows`, "i" or "j", is the axis of the result; `k` is that of the "kmin" family.
    """

    def __init__(
        self, inputs: Sequence[Input], formula: Node, reduction: str, rows: str, *, weight: Node | None = None,
        k: int = 0, dtype_acc: str = "auto", precision: str = "split",
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self.formula, self.weight = formula, weight
        self.reduction, self.rows, self.k, self.dtype_acc = reduction, rows, k, dtype_acc
        self.precision = precision
        self._reductions: dict[str, PairReduction] = {}  # by dtype
        self._checked: LRUCache[Any, PairProblem] = LRUCache(64)  # by shapes and dtypes
        # Errors that do not depend on the dtype are raised here.
        PairReduction(formula, reduction, weight, rows, k, "float64", "float64", precision)

    def of(self, dtype: str | None = None) -> PairReduction:
        """The reduction of arrays of this dtype; by default the most recent new one, at first that of float64."""
        dtype = dtype or next(reversed(self._reductions), "float64")
        reduction = self._reductions.get(dtype)
        if reduction is None:
            reduction = self._reductions[dtype] = PairReduction(
                self.formula, self.reduction, self.weight, self.rows, self.k, dtype, self._accumulator(dtype),
                self.precision,
            )  # fmt: skip
        return reduction

    def _accumulator(self, dtype: str) -> str:
        if dtype in _HALF:
            if self.dtype_acc == "float64":
                raise ValueError(f"dtype_acc: sums of {dtype} are kept in float32, not in float64")
            return "float32"
        if self.dtype_acc == "float16" or (self.dtype_acc == "float32" and dtype == "float64"):
            raise ValueError(f"dtype_acc: sums of {dtype} cannot be kept in {self.dtype_acc}")
        return "float64" if self.dtype_acc == "auto" else self.dtype_acc

    # ---- calls -------------------------------------------------------------------------------------------------

    def __call__(
        self, arrays: Sequence[Any], ranges: Any = None, out: Any = None, n_threads: int | None = None,
        backend: str | None = None, device_id: int = -1, method: str | None = None,
    ) -> Any:  # fmt: skip
        """The result, or a pair of them, in KeOps' shapes: batch + (rows, dim)."""
        device = results = None
        if backend is not None and not (backend == "auto" and device_id == -1):
            device = _device_of_backend(arrays, backend, device_id)
        if ranges is None and device is None and method is None:
            try:
                problem = self._checked.get(tuple([(array.shape, array.dtype) for array in arrays]))
            except (AttributeError, TypeError):
                problem = None
            if problem is not None:
                for array in arrays:
                    if type(array) is not np.ndarray:
                        break
                else:
                    results = _backends.run_pairs(
                        problem.reduction, arrays, *problem.sizes, None, n_threads=n_threads
                    )
        if results is None:
            if _arrays.any_torch(*arrays):
                # Load the package here: torch.compile runs this frame eagerly, but traces `dispatch`, and a trace
                # fails if an import changes the registry of packages that it guards.
                handlers("torch")
            results = self.dispatch(
                BoundCall.run, "reduce", arrays, ranges=ranges, n_threads=n_threads, device=device, method=method
            )
        if len(results) == 1 and out is None and not self.k:
            return results[0]
        return self._into(out, self.shaped(results))

    def dispatch(
        self, run: Callable[[BoundCall], Any], torch_handler: str, arrays: Sequence[Any], *, cotangent: Any = None,
        ranges: Any = None, n_threads: int | None = None, device: str | None = None, method: str | None = None,
        **keywords: Any,
    ) -> Any:  # fmt: skip
        """Check the arguments of a call and run it where the arrays are.

        `run` computes the result of a `BoundCall` on arrays of numpy, dask, or of a device; tensors go to the
        function `torch_handler` of `_torch.pairs`, with the other keywords.
        """
        self.check_number(len(arrays))
        if _arrays.any_dask(*arrays, cotangent):
            return run(self._bind_lazy(arrays, cotangent, ranges, n_threads, device, method))
        refuse_method(method)
        if _arrays.any_torch(*arrays):
            _arrays.refuse_device(device, "torch tensors")
            if cotangent is not None:
                keywords["cotangent"] = cotangent
            handler = getattr(handlers("torch").pairs, torch_handler)
            return handler(self, arrays, ranges, n_threads, **keywords)
        if _arrays.any_dlpack_only(*arrays):
            _arrays.refuse_device(device, "arrays of other libraries")

            def run_on_views(**views: Any) -> Any:
                # The importing library's arrays, not views of them, because gradients compute with them.
                *imported, seed = map(_arrays.user_array, views.values())
                return self.dispatch(
                    run, torch_handler, imported, cotangent=seed, ranges=ranges, n_threads=n_threads
                )

            named = {each.name: array for each, array in zip(self.inputs, arrays)}
            return _arrays.call_via_dlpack(run_on_views, {**named, "the cotangent": cotangent})
        return run(self._bind(arrays, cotangent, ranges, n_threads, device))

    def _bind_lazy(
        self, arrays: Sequence[Any], cotangent: Any, ranges: Any, n_threads: int | None, device: str | None,
        method: str | None,
    ) -> BoundCall:  # fmt: skip
        """The checked call of dask arrays, and of arrays in memory that go with them."""
        _arrays.refuse_device(device, "dask arrays")
        if ranges is not None:
            raise ValueError(
                "ranges: do not go with dask arrays, whose blocks would cut them; call each block of rows with "
                "its own"
            )
        named = [(each.name, array) for each, array in zip(self.inputs, arrays)]
        seed = [] if cotangent is None else [("cotangent", cotangent)]
        operands = handlers("dask").pairs.operands(named + seed)
        cotangent = operands.pop() if seed else None
        on_device = _arrays.any_on_device(*(getattr(array, "_meta", None) for array in operands))
        problem, padded = self.problem(
            operands, [array.dtype.name for array in operands], on_device, None, n_threads
        )
        return BoundCall(replace(problem, method=method), padded, operands, cotangent, None)

    def _bind(
        self, arrays: Sequence[Any], cotangent: Any, ranges: Any, n_threads: int | None, device: str | None
    ) -> BoundCall:  # fmt: skip
        """The checked call of arrays of numpy, or of a device."""
        ordinal = _arrays.check_device(device)
        _arrays.refuse_labels(**{each.name: x for each, x in zip(self.inputs, arrays)})
        operands = {each.name: _native(_arrays.as_operand(x, each.name)) for each, x in zip(self.inputs, arrays)}
        placement = _arrays.common_placement({**operands})
        if placement is not None:
            _arrays.refuse_device(device, f"a {placement.library.name}")
            if cotangent is not None:
                _arrays.common_placement({**operands, "cotangent": _arrays.as_operand(cotangent, "cotangent")})
        on_device = placement is not None or ordinal is not None
        dtypes = [array.dtype.name for array in operands.values()]
        problem, padded = self.problem([*operands.values()], dtypes, on_device, ranges, n_threads)
        problem = replace(problem, device=ordinal)
        if ranges is None and not on_device and not problem.sizes.batch and all(map(operator.is_, arrays, padded)):
            self._checked[tuple((array.shape, array.dtype) for array in arrays)] = problem
        arguments = [*operands.values()] if placement is None else arrays
        return BoundCall(problem, padded, arguments, cotangent, placement)

    # ---- checks of arguments -----------------------------------------------------------------------------------

    def problem(
        self, arrays: Sequence[Any], dtypes: Sequence[str], on_device: bool, ranges: Any, n_threads: int | None
    ) -> tuple[PairProblem, list[Any]]:
        """Check arrays of any library; return the problem, and the arrays with all batch dimensions."""
        dtype = self._common_dtype(dtypes)
        if dtype in _HALF and not on_device:
            raise TypeError(f"{self.inputs[0].name}: {dtype} is reduced on CUDA only; convert to float32")
        sizes, padded = self.measure(arrays)

        def intervals(rows: str) -> Any:
            n_entries = math.prod(sizes.batch)
            blocks = None if ranges is None else as_ranges(ranges, sizes.n_i, sizes.n_j, n_entries)
            return None if blocks is None else blocks.for_batch(rows, sizes.n_i, sizes.n_j, n_entries)

        return PairProblem(self.of(dtype), sizes, intervals, n_threads), padded

    def check_number(self, n_arrays: int) -> None:
        """Raise unless there is one array for each input."""
        if n_arrays != len(self.inputs):
            inputs = ", ".join(f"{each.name} = V{each.kind}({each.dim})" for each in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} arrays, {inputs.replace('Vp', 'Pm')}, got {n_arrays}")

    def _common_dtype(self, dtypes: Sequence[str]) -> str:
        """The one floating dtype of all arrays."""
        for each, dtype in zip(self.inputs, dtypes):
            if dtype not in (*_HALF, "float32", "float64"):
                raise TypeError(f"{each.name}: expected float32 or float64, got {dtype}")
            if dtype != dtypes[0]:
                raise TypeError(
                    f"{each.name}: is of dtype {dtype}, and {self.inputs[0].name} of {dtypes[0]}; convert one"
                )
        return dtypes[0] if dtypes else "float64"

    def measure(self, arrays: Sequence[Any]) -> tuple[Sizes, list[Any]]:
        """The sizes of a call, and the arrays with all batch dimensions."""
        n_batch = 0
        for each, array in zip(self.inputs, arrays):
            n_own = 1 if each.kind == "p" else 2
            if array.ndim < n_own:
                expected, remedy = ("(dim,)", "[x]") if n_own == 1 else ("(n, dim)", "x[:, None]")
                raise ValueError(f"{shape_error(each.name, expected, array)}; write {remedy}")
            if array.shape[-1] != each.dim:
                raise ValueError(
                    f"{each.name}: expected {each.dim} features, as in the formula, got shape {tuple(array.shape)}"
                )
            n_batch = max(n_batch, array.ndim - n_own)
        extents: dict[str, tuple[int, str]] = {}  # by kind: the number, and the input that was first
        batch = [1] * n_batch
        padded = []
        for each, array in zip(self.inputs, arrays):
            own = tuple(array.shape[: -1 if each.kind == "p" else -2])
            for axis, size in enumerate(own, n_batch - len(own)):
                if size != 1 and batch[axis] not in (1, size):
                    raise ValueError(
                        f"{each.name}: batch dimensions {own} do not go with those of the arrays before, {batch}"
                    )
                batch[axis] = size if batch[axis] == 1 else batch[axis]
            if each.kind != "p":
                size, first = extents.setdefault(each.kind, (int(array.shape[-2]), each.name))
                if size != array.shape[-2]:
                    what = "rows" if each.kind == "i" else "columns"
                    raise ValueError(f"{each.name}: has {array.shape[-2]} {what}, and {first} has {size}")
            padded.append(array if n_batch == 0 else _with_batch(array, each.kind, n_batch))
        return Sizes(extents.get("i", (1, ""))[0], extents.get("j", (1, ""))[0], tuple(batch)), padded

    # ---- results -----------------------------------------------------------------------------------------------

    def shaped(self, results: tuple[Any, ...]) -> Any:
        """The results in KeOps' shapes: (rows, dim); of the "kmin" family (rows, K, dim) or (rows, K)."""
        if self.k:
            results = tuple(part.reshape(*part.shape[:-1], self.k, part.shape[-1] // self.k) for part in results)
            results = tuple(part[..., 0] if part.shape[-1] == 1 else part for part in results)
        return results if len(results) > 1 else results[0]

    def _into(self, out: Any, result: Any) -> Any:
        """The result, written to `out` if that is an array."""
        if out is None:
            return result
        if _arrays.any_dask(*(result if isinstance(result, tuple) else (result,))):
            raise ValueError("out: does not go with dask arrays, which are computed later, and elsewhere")
        if isinstance(result, tuple):
            raise ValueError(f"out: one array cannot take the {len(result)} results of {self.reduction}")
        check_output(out, result.shape, result.dtype)
        if isinstance(out, np.ndarray):
            check_writeable(out)
        out[...] = result
        return out


def _native(array: Array) -> Array:
    """The array in native byte order."""
    if array.dtype.kind == "f" and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _with_batch(array: Any, kind: str, n_batch: int) -> Any:
    """The array with all batch dimensions, and one for the rows of parameters: (*batch, n, dim)."""
    if kind == "p":
        if array.ndim == 1:
            return array
        array = array[..., None, :]
    missing = n_batch + 2 - array.ndim
    return array[(None,) * missing] if missing else array
