"""The operands of an update's operations, and the dtypes of their results, as numpy and torch promote them."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node, constant
from upsweep._compiler.recurrences import integers
from upsweep._compiler.recurrences.symbols import Symbol, is_tensor, number_of, refusal, user_line

BOOL = np.dtype(bool)
FLOAT64 = np.dtype(np.float64)
_WEAK: dict[Any, Any] = {None: 1.0, int: 1}

# The dtype of a float that Python's own numbers and integers become together, and integers by the functions of
# floats. Set while an update of tensors is traced: then an integer takes the dtype of a float, as in torch.
float_of_integers: ContextVar[np.dtype[Any] | None] = ContextVar("float_of_integers", default=None)

# A state that the update made a wider float, and its dtype. Set while it is traced again to name the line.
narrow_state: ContextVar[tuple[str, np.dtype[Any]] | None] = ContextVar("narrow_state", default=None)


def operand(value: Any) -> tuple[Node, Any]:
    """The node of an operand, and its part in dtype promotion: Python's own numbers, 1 or 1.0, are weak."""
    if isinstance(value, Symbol):
        return value.node, _WEAK.get(value.dtype, value.dtype)
    if isinstance(value, (bool, np.bool_)):
        return constant(float(value)), BOOL
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        if isinstance(value, int) and -(2**63) <= value < 2**64:
            return integers.integer(value), 1 if value < 2**63 else np.dtype(np.uint64)
        return constant(float(value)), 1.0
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        native = value.dtype.newbyteorder("=")
        return constant(float(value)) if native.kind == "f" else integers.integer(int(value)), native
    if isinstance(value, np.ndarray):
        raise refusal(
            f"an array of shape {value.shape} beside symbolic values",
            "the update is of single numbers: hand the array over in xs, where it broadcasts, or in init",
        )
    if is_tensor(value):
        return operand(number_of(value))
    if value is None:
        raise refusal("expected a number, got None", "without xs, x is None")
    raise TypeError(f"update: expected a number, got {_type_name(value)} in {user_line()}")


def _type_name(value: object) -> str:
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def is_integer_kind(kind: Any) -> bool:
    return not isinstance(kind, float) and (isinstance(kind, int) or kind.kind in "iu")


def holds_integers(dtype: Any) -> bool:
    """Whether a result of this dtype is an integer."""
    return dtype is int or (dtype is not None and dtype.kind in "iu")


def is_integer(value: Any) -> bool:
    """Whether an operand is an integer."""
    return is_integer_kind(operand(value)[1])


def is_whole(value: Any) -> bool:
    """Whether an operand is an integer, also one that has more than 64 bits, or bool."""
    if isinstance(value, int):
        return True
    kind = operand(value)[1]
    return is_integer_kind(kind) or is_truth(kind)


def is_truth(kind: Any) -> bool:
    return isinstance(kind, np.dtype) and kind == BOOL


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of an integer as a float."""
    return float_of_integers.get() or FLOAT64 if dtype.kind in "iu" else dtype


def common_dtype(kinds: Sequence[Any]) -> np.dtype[Any] | type[int] | None:
    """The promoted dtype; int or None if there are only Python's own numbers."""
    if all(isinstance(kind, (int, float)) for kind in kinds):
        return int if all(isinstance(kind, int) for kind in kinds) else None
    of_torch = float_of_integers.get()
    if of_torch is not None:
        floats = [kind for kind in kinds if isinstance(kind, np.dtype) and kind.kind == "f"]
        if floats or any(isinstance(kind, float) for kind in kinds):
            return np.result_type(*floats) if floats else of_torch
    dtype = np.result_type(*kinds)
    narrow = narrow_state.get()
    if narrow is not None and dtype.kind == "f":
        _refuse_wider(*narrow, kinds, dtype)
    if dtype.kind == "f" and all(map(is_integer_kind, kinds)):
        raise refusal(
            "int64 and uint64 together, which numpy computes in float64",
            "this is not exact above 2**53: begin the state of a generator as init=np.uint64(seed), or cast "
            "one of them by astype(np.int64) or astype(np.uint64)",
        )
    return dtype


def _refuse_wider(which: str, narrow: np.dtype[Any], kinds: Sequence[Any], dtype: np.dtype[Any]) -> None:
    """Raise if a float of the dtype of a state becomes a wider one, with the operand that makes it so."""
    if dtype == narrow or narrow not in kinds:
        return
    other = next(kind for kind in kinds if isinstance(kind, np.dtype) and kind != narrow)
    done = "1 - done of bool is an integer" if other.kind in "iu" else "1.0 - done of bool is float64"
    raise refusal(
        f"{which} is {narrow} and becomes {dtype}, as in numpy, with a number of {other}",
        f"take x.astype(np.{narrow}), and float(x) of a captured number of numpy; {done}: take "
        f"np.where(done, 0.0, s) for s * (1 - done); or give init, or x, as {dtype}",
    )


def result_dtype(kinds: Sequence[Any]) -> np.dtype[Any] | None:
    """The promoted dtype of a float; None for Python's own numbers."""
    dtype = common_dtype(kinds)
    return None if dtype is None or dtype is int else floating(dtype)  # type: ignore[arg-type]  # a dtype


def convert(node: Node, kind: Any, dtype: Any) -> Node:
    """The node of an operand of this kind in a dtype."""
    if isinstance(kind, float) or kind is dtype:
        return node
    if not holds_integers(dtype):
        return integers.as_float(node, int if kind == 1 else kind)
    if is_truth(kind):
        return integers.to_integer(node, is_truth=True)
    if node.op == "integer" and kind == 1 and dtype is not int:
        limits, value = np.iinfo(dtype), node.static[0]
        if not limits.min <= value <= limits.max:
            raise refusal(f"{value}, which is out of bounds for {dtype}", "cast the other operand by astype")
    return node


def operands(values: Sequence[Any]) -> tuple[list[Node], Any]:
    """The nodes of operands in their common dtype."""
    pairs = [*map(operand, values)]
    large = [value for value in values if isinstance(value, int) and not -(2**63) <= value < 2**64]
    if large and all(map(is_whole, values)):
        raise refusal(
            f"an integer beside {large[0]}, which has more than 64 bits,",
            "uint64 wraps around at 2**64 by itself: give init as np.uint64(...), or cast by astype(np.uint64); "
            "for floats write 2.0**64",
        )
    dtype = common_dtype([kind for _, kind in pairs])
    return [convert(node, kind, dtype) for node, kind in pairs], dtype
