"""Leads functions of numpy, scipy and torch, and methods, of symbols to `functions`, by their names.

Importing this module adds the protocols of these libraries to `Symbol` and `Vector`: ``__array_ufunc__``,
``__array_function__`` and ``__torch_function__``. torch is never imported.
"""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import numpy as np

from upsweep._compiler.recurrences.functions import ALIASES, FUNCTIONS, KNOWN, apply, near_function
from upsweep._compiler.recurrences.operations import apply_symbolic, cast
from upsweep._compiler.recurrences.promotion import common_dtype, operand
from upsweep._compiler.recurrences.symbols import (
    Symbol,
    Vector,
    as_objects,
    as_vector,
    is_tensor,
    number_of,
    refusal,
)

# Functions of numpy that only move, multiply and add elements: their own code runs on arrays of objects.
_STRUCTURAL = frozenset({
    "stack", "hstack", "vstack", "column_stack", "concatenate", "append", "reshape", "ravel", "squeeze",
    "expand_dims", "atleast_1d", "atleast_2d", "transpose", "swapaxes", "moveaxis", "roll", "flip", "diag",
    "trace", "broadcast_to", "repeat", "tile", "copy", "dot", "vdot", "inner", "outer", "kron", "cross",
    "tensordot", "einsum", "sum", "prod", "cumsum", "cumprod", "max", "amax", "min", "amin", "shape", "size",
    "ndim",
})  # fmt: skip

_REDUCED = "an update is of single numbers: reduce xs before the scan, and add up in a state"
# What to write in place of functions that are not known.
_ALTERNATIVES = {
    **dict.fromkeys(("sum", "prod", "std", "var", "median", "argmax", "argmin", "any", "all"), _REDUCED),
    **dict.fromkeys(("cumsum", "cumprod", "diff", "convolve", "roll", "sort", "argsort", "softmax"), _REDUCED),
    "mean": f"{_REDUCED}; of several states write np.sum(s) / len(s)",
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), "write the number itself"),
    **dict.fromkeys(("isclose", "allclose"), "write abs(a - b) <= tolerance"),
    **dict.fromkeys(("dropout", "bernoulli", "rand_like", "randn_like"), "draw before the scan, into xs"),
    **dict.fromkeys(("linear", "bilinear"), "several states are a tuple: W @ np.stack(state) + b"),
    "sinc": "take np.where(x == 0, 1.0, np.sin(np.pi * x) / (np.pi * x))",
    "piecewise": "choose by np.where or np.select",
    **dict.fromkeys(("max", "amax", "min", "amin"), "of two numbers, take np.maximum or np.minimum"),
    "cbrt": "take np.copysign(np.abs(x) ** (1 / 3), x)",
    "logaddexp2": "take np.logaddexp",
    "matmul": "several states are a tuple, init=tuple(init): A @ np.stack(state)",
    "einsum": "take A @ np.stack(state)",
    "interp": "write the pieces by np.where or np.select",
    "take": "a small table is indexed, table[state]",
    "searchsorted": "sum comparisons, (x > a) * 1.0 + (x > b) * 1.0",
}


def _unknown(name: str, library: str) -> TypeError:
    remedy = _ALTERNATIVES.get(name, "compose it of functions that are known, or apply it to xs before the scan")
    return refusal(f"{library}.{name} is not known for symbolic values", f"{remedy}; {KNOWN}")


def _called(name: str, library: str, *args: Any, **keywords: Any) -> Any:
    """The value of a function that the user calls by its name in a library, or as a method."""
    known = ALIASES.get(name, name)
    if known not in FUNCTIONS:
        raise _unknown(name, library)
    if keywords:
        defaults = ("out", None), ("dtype", None), ("inplace", False), ("rounding_mode", None)
        keywords = {key: value for key, value in keywords.items() if (key, value) not in defaults}
        if "input" in keywords:
            args = keywords.pop("input"), *args
    try:
        return apply_symbolic(known, args, keywords)
    except TypeError as error:
        assert error.__traceback__ is not None
        inner = error.__traceback__.tb_next
        if inner is None or inner.tb_next is not None:  # raised inside of the function, not by its call
            raise
        signature = inspect.signature(FUNCTIONS[known])
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        takes = signature.replace(parameters=parameters, return_annotation=signature.empty)
        raise refusal(f"{library}.{name} with other arguments", f"for symbolic values it takes {takes}") from None


def _of_ufunc(_: Any, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    if method == "__call__" and ufunc.signature is None:
        return _called(ufunc.__name__, "np", *inputs, **keywords)
    objects = [*map(as_objects, inputs)]
    if any(not array.ndim for array in objects):
        raise _unknown(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", "np")
    if ufunc.signature is None:
        name = ALIASES.get(ufunc.__name__, ufunc.__name__)
        if method in ("reduce", "accumulate") and name in ("add", "multiply"):
            objects[0] = _widened(objects[0])
        ufunc = np.frompyfunc(functools.partial(apply, name), ufunc.nin, ufunc.nout)
    return as_vector(getattr(ufunc, method)(*objects, **keywords))


def _widened(array: Any) -> Any:
    """Elements of bool or of narrow integers in the dtype in which numpy adds them up."""
    dtype = common_dtype([operand(value)[1] for value in array.flat])
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biu":
        return array
    zero = np.uint64(0) if dtype.kind == "u" else np.int64(0)
    return np.frompyfunc(lambda value: apply("add", value, zero), 1, 1)(array)


def _of_function(_: Any, func: Any, types: Any, args: Any, keywords: Any) -> Any:
    name = func.__name__
    if _is_known(name):
        return _called(name, "np", *args, **keywords)
    is_single = isinstance(args[0], Symbol) if args else True
    if name not in _STRUCTURAL or is_single:
        raise _unknown(name, func.__module__.replace("numpy", "np"))
    return func(*map(_boxed, args), **keywords)


def _boxed(value: Any) -> Any:
    """An argument of a structural function, with symbols as arrays without axes."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_boxed, value))
    return as_objects(value).view(Vector) if isinstance(value, Symbol) else value


def _is_known(name: str) -> bool:
    return ALIASES.get(name, name) in FUNCTIONS


_TORCH_ONLY = {"max": "maximum", "min": "minimum"}  # of two numbers
_STRUCTURAL_IN_TORCH = {"mv": "matmul", "mm": "matmul", "cat": "concatenate"}


def _of_torch(cls: Any, func: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
    name, keywords = func.__name__.strip("_"), keywords or {}
    if name == "getitem":
        place = args[1] if isinstance(args[1], tuple) else (args[1],)
        are_symbols = (isinstance(n, Symbol) for n in place)
        return func(args[0], tuple(operator.index(n) if is_one else n for n, is_one in zip(place, are_symbols)))
    if name[0] == "r" and not _is_known(name) and _is_known(name[1:]):
        name, args = name[1:], args[::-1]  # a reflected operator
    name = _TORCH_ONLY.get(name, name) if len(args) == 2 else name
    structural = _STRUCTURAL_IN_TORCH.get(name, name)
    if structural in (*_STRUCTURAL, "matmul") and not isinstance(args[0], Symbol):
        keywords = {"axis" if key == "dim" else key: value for key, value in keywords.items()}
        return getattr(np, structural)(*map(_boxed, map(_as_array, args)), **keywords)
    return _called(name, "torch", *args, **keywords)


def _as_array(value: Any) -> Any:
    return number_of(value) if is_tensor(value) else value


class Several(tuple[Any, ...]):
    """Several states or inputs: a tuple that a tensor multiplies as an array does, ``A @ state``."""

    def __rmatmul__(self, matrix: Any) -> Any:
        return _as_array(matrix) @ np.stack(self)

    def __setitem__(self, place: Any, value: Any) -> None:
        raise refusal("an assignment to one of several states or inputs", "return new ones: (s[0] + x, s[1])")


Several.__name__ = Several.__qualname__ = "tuple"  # as messages of Python name it


# ---- methods ---------------------------------------------------------------------------------------------------

_CASTS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
}


class _NoAttribute(TypeError, AttributeError):
    """A TypeError, as for every refused operation, that `hasattr` and `getattr` also accept."""

    def __reduce__(self) -> tuple[type[TypeError], tuple[Any, ...]]:
        return TypeError, self.args


_NoAttribute.__module__, _NoAttribute.__qualname__ = "builtins", "TypeError"  # as tracebacks name it


def _attribute(symbol: Symbol, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _CASTS:
        return functools.partial(cast, symbol, _CASTS[name])
    if name == "where":  # of a tensor
        return lambda condition, other: apply("where", condition, symbol, other)
    if _is_known(name) and name != "select":
        return functools.partial(_called, name, "x", symbol)
    if name.endswith("_"):
        remedy = f"numbers do not change in place: x = x.{name.rstrip('_')}(...)"
    else:
        remedy = f"{_ALTERNATIVES.get(name, 'take functions of numbers, and the method astype')}; {KNOWN}"
    near = near_function(name).rstrip("?")
    raise _NoAttribute(*refusal(f"a symbolic number has no attribute {name!r}{near}", remedy).args)


def _of_vectors(vector: Vector, func: Any, types: Any, args: Any, keywords: Any) -> Any:
    if func.__name__ in _STRUCTURAL:
        return as_vector(np.ndarray.__array_function__(vector, func, (Vector,), args, keywords))
    return _of_function(vector, func, types, args, keywords)


for _class, _function in ((Symbol, _of_function), (Vector, _of_vectors)):
    for _name, _method in {
        "__array_ufunc__": _of_ufunc,
        "__array_function__": _function,
        "__torch_function__": classmethod(_of_torch),
    }.items():
        setattr(_class, _name, _method)
setattr(Symbol, "__getattr__", _attribute)  # noqa: B010 - mypy knows no assignment to a method
