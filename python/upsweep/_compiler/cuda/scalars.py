"""CUDA C++ expressions of scalar instructions: a table with one row per operation.

`real` is the type of the computation; functions that C does not have are in kernels/numbers.cuh.
"""

from __future__ import annotations

import math

# {0}, {1}, ... are the arguments.
OPERATIONS: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "fabs({0})",
    "floor": "floor({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
    "exp": "do_exp({0})",
    "log": "log({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "asin": "asin({0})",
    "acos": "acos({0})",
    "atan": "atan({0})",
    "tanh": "tanh({0})",
    "atan2": "atan2({0}, {1})",
    "pow": "pow({0}, {1})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "select": "{0} ? {1} : {2}",
    "number": "real({0})",
    # Made by the rewrites in fold.py.
    "exp2": "exp2_fast({0})",
    "mul_rounded": "multiply_rounded({0}, {1})",
    "at_least_tiny": "at_least_tiny({0})",
    "directed": "(UPWARDS ? {0} : -{0})",
}
MASKS = frozenset({"lt", "le", "eq", "ne"})

# The C++ types of elements of arrays, and their bytes.
ELEMENTS = {
    "bool": "unsigned char", "int8": "signed char", "uint8": "unsigned char", "int16": "short",
    "uint16": "unsigned short", "int32": "int", "uint32": "unsigned", "int64": "long long",
    "uint64": "unsigned long long", "float16": "float16", "bfloat16": "bfloat16", "float32": "float",
    "float64": "double",
}  # fmt: skip
SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


def literal(value: float) -> str:
    """A number as C++ reads it, to the last bit of float64."""
    if math.isnan(value):
        return "not_a_number()"
    if math.isinf(value):
        return "infinity()" if value > 0 else "(-infinity())"
    text = repr(float(value))
    return f"real({text})" if value >= 0 else f"(-real({text[1:]}))"


def declaration(op: str, number: int, right: str) -> str:
    """The line that computes a value."""
    return f"const {'bool' if op in MASKS else 'real'} v{number} = {right};"


def expression(op: str, args: list[str]) -> str:
    """The right side of an instruction's line."""
    form = OPERATIONS.get(op)
    if form is None:
        raise NotImplementedError(f"the operation {op} on scalars has no form in CUDA C++")
    return form.format(*args)
