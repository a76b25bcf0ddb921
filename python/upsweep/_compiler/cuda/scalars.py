"""CUDA C++ expressions of scalar instructions: a table with one row per operation.

`real` is the type of the computation; functions that C does not have are in kernels/numbers.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from upsweep._compiler.loops.expression_text import SIGNS
from upsweep._compiler.lowering.program import MASKS

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Instruction

# Operations that are functions of C with the same name.
FUNCTIONS = (
    "floor", "rint", "sqrt", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
)  # fmt: skip

# {0}, {1}, ... are the arguments.
OPERATIONS: dict[str, str] = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in SIGNS.items()},
    **{op: f"{op}({{0}})" for op in (*FUNCTIONS, "rsqrt")},
    **{op: f"{op}({{0}}, {{1}})" for op in ("atan2", "pow", "fmod", "hypot", "copysign")},
    "neg": "-{0}",
    "abs": "fabs({0})",
    "exp": "do_exp({0})",
    "select": "{0} ? {1} : {2}",
    "number": "real({0})",
    # Of integers in words, in kernels/integers.cuh.
    **{
        f"i{op}": f"word(bits({{0}}) {sign} bits({{1}}))"
        for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("and", "&"), ("or", "|"), ("xor", "^"))
    },
    **{f"i{op}": f"bits({{0}}) {sign} bits({{1}})" for op, sign in (("eq", "=="), ("ne", "!="))},
    **{f"i{op}": f"integer({{0}}) {sign} integer({{1}})" for op, sign in (("lt", "<"), ("le", "<="))},
    **{f"unsigned_i{op}": f"bits({{0}}) {sign} bits({{1}})" for op, sign in (("lt", "<"), ("le", "<="))},
    **{
        op: f"{op}({{0}}, {{1}})"
        for op in ("ishl", "ishr", "unsigned_ishr", "idiv", "imod", "unsigned_idiv", "unsigned_imod")
    },
    "to_float": "real(integer({0}))",
    "unsigned_to_float": "real(bits({0}))",
    "to_integer": "truncated({0})",
    # Made by the rewrites in fold.py.
    "exp2": "exp2_fast({0})",
    "mul_rounded": "multiply_rounded({0}, {1})",
    "at_least_tiny": "at_least_tiny({0})",
    "directed": "(UPWARDS ? {0} : -{0})",
}

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


def names_at(level: str, values: Sequence[Instruction], stored: Mapping[int, str]) -> dict[int, str]:
    """The expressions that code of a level can use: constants, values of the level, and those in `stored`."""
    names = {}
    for number, value in enumerate(values):
        if value.op == "const":
            names[number] = literal(float(value.static[0]))
        elif value.op == "integer":
            names[number] = f"word({value.static[0] % 2**64}ull)"
        elif value.level == level:
            names[number] = f"v{number}"
        elif number in stored:
            names[number] = stored[number]
    return names


def constants(values: Mapping[str, int]) -> list[str]:
    """Lines that define constants of type int, or of type bool."""
    kinds = {name: "bool" if isinstance(value, bool) else "int" for name, value in values.items()}
    return [f"constexpr {kinds[name]} {name} = {str(value).lower()};" for name, value in values.items()]


def function(head: str, lines: Sequence[str]) -> str:
    """A function of the device."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"__device__ __forceinline__ {head} {{\n{body}}}\n"
