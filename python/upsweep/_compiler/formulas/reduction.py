"""A reduction over pairs: the formula, the kind of reduction, and the axis.

`PairReduction` is the problem that front ends (`pairs`, `_torch`, `_dask`) hand to the backends. It holds no
arrays, and is the key of their caches of compiled kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from upsweep._compiler.formulas.nodes import Node, key_text, text, variables
from upsweep._compiler.formulas.ops import suggestion

REDUCTIONS = (
    "sum", "logsumexp", "sumsoftmaxweight", "min", "max", "argmin", "argmax", "min_argmin", "max_argmax",
    "kmin", "argkmin", "kmin_argkmin",
)  # fmt: skip
PRECISIONS = ("ieee", "split", "tf32", "f16")
_SUMS = ("sum", "logsumexp", "sumsoftmaxweight")
_KMIN = ("kmin", "argkmin", "kmin_argkmin")
_DTYPES = {"float64": ("float64",), "float32": ("float32", "float64"),
           "float16": ("float32",), "bfloat16": ("float32",)}  # fmt: skip


def check_precision(precision: Any) -> None:
    """Raise ValueError if this is none of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")


@dataclass(frozen=True)
class PairReduction:
    """``result[i] = reduce over j of formula(i, j)``, or over i for each j.

    Of equal values the one with the smallest index wins. NaN behaves as in numpy: "min" and "max" are NaN if any
    value is, and their indices are those of the first NaN; the "kmin" family sorts NaN last. Results have shape
    (rows, dim) with the dims of `outputs`; those of the "kmin" family are (k, dim), row-major. A row without
    columns gets the value of `fill`.
    """

    formula: Node  # of dim 1 for "logsumexp" and "sumsoftmaxweight"
    reduction: str  # one of `REDUCTIONS`
    # The w of "logsumexp", log(sum(exp(F) * w)), and of "sumsoftmaxweight", sum(exp(F) * w) / sum(exp(F)).
    weight: Node | None = None
    rows: str = "i"  # the axis of the result: "i" reduces over j, KeOps' axis 1; "j" over i, KeOps' axis 0
    k: int = 0  # the number of values of the "kmin" family
    dtype: str = "float32"  # of the arrays, or "float64"; on CUDA "float16" and "bfloat16", computed in float32
    dtype_acc: str = "float64"  # the accumulator's dtype for sums over blocks
    precision: str = "split"  # of products of long vectors on CUDA: at least this, one of `PRECISIONS`
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            near = suggestion(self.reduction, list(REDUCTIONS))
            raise ValueError(f"there is no reduction {self.reduction!r}{near}; there are {', '.join(REDUCTIONS)}")
        if self.rows not in ("i", "j"):
            raise ValueError(f"rows has to be 'i' or 'j', not {self.rows!r}")
        if self.dtype_acc not in _DTYPES.get(self.dtype, ()):
            raise ValueError(f"sums of {self.dtype} cannot be kept in {self.dtype_acc}; dtypes: {_DTYPES}")
        if (self.k < 1) == (self.reduction in _KMIN):
            raise ValueError(f"k has to be at least 1 for {', '.join(_KMIN)} and 0 for others, not {self.k}")
        if (self.reduction in _SUMS[1:]) and self.formula.dim != 1:
            raise ValueError(
                f"{self.reduction} takes a formula of dim 1, not {self.formula.dim}: {text(self.formula, 200)}"
            )
        if self.weight is None and self.reduction == "sumsoftmaxweight":
            raise ValueError("sumsoftmaxweight takes a weight")
        if self.weight is not None and self.reduction not in _SUMS[1:]:
            raise ValueError(f"{self.reduction} takes no weight")
        check_precision(self.precision)
        object.__setattr__(self, "_hash", hash(self._arguments()))

    def __hash__(self) -> int:  # computed once: each call looks its kernel up by the reduction
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # without the hash, which is that of this process
        return PairReduction, self._arguments()

    def _arguments(self) -> tuple[Any, ...]:
        return (
            self.formula, self.reduction, self.weight, self.rows, self.k, self.dtype, self.dtype_acc,
            self.precision,
        )  # fmt: skip

    @cached_property
    def variables(self) -> tuple[Node, ...]:
        """The variables of formula and weight, by position."""
        return variables(*self._formulas())

    def key(self) -> str:
        """A text that identifies the reduction but for `precision` in any process: the key of the disk cache."""
        settings = (self.reduction, self.weight is not None, self.rows, self.k, self.dtype, self.dtype_acc)
        return f"{settings}\n{key_text(*self._formulas())}"

    def _formulas(self) -> tuple[Node, ...]:
        return (self.formula,) if self.weight is None else (self.formula, self.weight)


def outputs(reduction: PairReduction) -> tuple[tuple[int, str], ...]:
    """The dim and the type, "float" or "index" (int64), of each array that a reduction returns."""
    dim, name = reduction.formula.dim, reduction.reduction
    if name in _SUMS:
        return ((dim if reduction.weight is None else reduction.weight.dim, "float"),)
    dim *= reduction.k or 1
    return tuple((dim, "index" if part.startswith("arg") else "float") for part in name.split("_"))


def fill(reduction: PairReduction) -> tuple[float, ...]:
    """The value of each output for rows without columns, and of "kmin" where there are fewer than k columns."""
    values = {"sum": 0.0, "logsumexp": -math.inf, "sumsoftmaxweight": 0.0, "min": math.inf, "max": -math.inf,
              "kmin": math.inf}  # fmt: skip
    return tuple(values.get(part, -1.0) for part in reduction.reduction.split("_"))
