"""Recurrences and other loops over tensors, described symbolically, scheduled, compiled, under TVM's names.

A tensor is a `placeholder`, an argument of the call, or a `compute`: a function from indices to an element.
`scan` is a recurrence over the first dimension. `create_schedule` decides the order of the loops, `lower` shows
them, `build` compiles them. A recurrence is proven to read only steps that are computed already. Every index
is proven to stay inside of its tensor when the program is built, or checked at the call if that depends on sizes.

    program     tensors, mathematics, scans       symbolic tensors; bounds_checks proves their indices
       |
    schedule    schedule, stages                  split, fuse, reorder, bind, compute_at, cache_read, rfactor, ...
       |
    lowering    lowering, stage_loops, storage    a loop nest; bounds_inference and strip_mining decide memory
       |                                          and threads
    loop nest   _compiler.loops                   statements and expressions, the same for all targets
       |
    code        _compiler.llvm.loops              LLVM IR for the CPU
                _compiler.cuda.loops              CUDA C++ for NVRTC
       |
    call        function, cuda_function           argument checks; _backends.cpu.loops and _backends.cuda.loops

`build` goes down all of it. Start reading at `build`, then `lowering`. The README has the rules of the language.
"""

from typing import TYPE_CHECKING

from upsweep.te import mathematics
from upsweep.te.build import build, lower
from upsweep.te.function import Function
from upsweep.te.mathematics import *  # noqa: F403 - the names of mathematics.__all__
from upsweep.te.scans import scan
from upsweep.te.schedule import Schedule, create_schedule
from upsweep.te.stages import thread_axis
from upsweep.te.tensors import Tensor, compute, placeholder, reduce_axis, size_var, sum, var

__all__ = [
    "Function", "Schedule", "Tensor", "build", "compute", "create_schedule", "lower", "placeholder", "reduce_axis",
    "scan", "size_var", "sum", "thread_axis", "var",
]  # fmt: skip
__all__ += mathematics.__all__
__all__.sort()

if not TYPE_CHECKING:  # it would make every misspelt name an Any

    def __getattr__(name):
        hint = "write te.select(condition, a, b); " if name == "where" else ""
        raise AttributeError(
            f"module 'upsweep.te' has no attribute {name!r}; {hint}functions of elements are "
            f"{', '.join(mathematics.__all__)}, sum"
        )
