"""An interpreter of a nest's kernels, which runs their statements in order, whatever threads are bound to them."""

import itertools

import numpy as np
from te_reference import evaluate, run_nest
from upsweep._compiler.cuda.loops.program import Program
from upsweep.te.lowering import lower_for


def program_of(schedule, args, wide=False):
    """The kernels that a schedule is built to."""
    lowered = lower_for(schedule, args)
    free = set(map(id, lowered.free_axes))
    return Program(lowered.body, lowered.buffers, lowered.sizes, free, "main", wide)


def run_kernels(program, arrays, sizes):
    """Walk all kernels over the arrays of a call; memory between them holds NaN where nothing was stored."""
    values = {id(size): np.int64(value) for size, value in sizes.items()}
    between = []
    for buffer in program.between:
        shape = [int(evaluate(size, values, None)) for size in buffer.shape]
        between.append(np.full(shape, np.nan if buffer.dtype.startswith("float") else 0, buffer.dtype))
    memory, buffers = [*arrays, *between], [*program.buffers, *program.between]

    def walk(kernels, depth):
        for loop, each in itertools.groupby(kernels, lambda kernel: kernel.loops[depth : depth + 1]):
            inside = list(each)
            if not loop:
                for kernel in inside:
                    run_nest(kernel.statement, buffers, memory, sizes)
                continue
            for step in range(int(evaluate(loop[0].extent, values, None))):
                sizes[loop[0].index] = step
                walk(inside, depth + 1)

    sizes = dict(sizes)
    walk(program.kernels, 0)
