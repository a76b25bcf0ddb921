"""Recurrences and other loops over tensors, described symbolically, scheduled, compiled, under TVM's names.

A tensor is a `placeholder`, which is given at the call, or a `compute`: a function from indices to an
element. `scan` is a recurrence over the first dimension. `create_schedule` says in which order loops run,
`lower` shows them, `build` compiles them. Every index is shown to stay inside of its tensor before anything
runs, and a recurrence to read what is there already.
"""

from upsweep._compiler.loops.expressions import select
from upsweep.te.build import build, lower
from upsweep.te.function import Function
from upsweep.te.mathematics import (
    abs,
    acos,
    all,
    any,
    asin,
    atan,
    cast,
    cos,
    exp,
    floor,
    if_then_else,
    log,
    logical_not,
    max,
    maximum,
    min,
    minimum,
    power,
    prod,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
)
from upsweep.te.scans import scan
from upsweep.te.schedule import Schedule, create_schedule, thread_axis
from upsweep.te.tensors import Tensor, compute, placeholder, reduce_axis, sum, var

__all__ = [
    "Function", "Schedule", "Tensor", "abs", "acos", "all", "any", "asin", "atan", "build", "cast", "compute",
    "cos", "create_schedule", "exp", "floor", "if_then_else", "log", "logical_not", "lower", "max", "maximum",
    "min", "minimum", "placeholder", "power", "prod", "reduce_axis", "rsqrt", "scan", "select", "sigmoid",
    "sin", "sqrt", "sum", "tanh", "thread_axis", "var",
]  # fmt: skip
