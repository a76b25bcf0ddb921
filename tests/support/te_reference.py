"""Reference implementations: of a te program, element by element, and of a loop nest, by interpretation."""

import itertools

import numpy as np
from upsweep._compiler.loops import statements as st
from upsweep._compiler.loops.expressions import OPERATIONS
from upsweep.te.scans import ScanOp
from upsweep.te.tensors import ComputeOp

STARTS = {"sum": (0, np.add), "prod": (1, np.multiply), "max": (-np.inf, np.maximum), "min": (np.inf, np.minimum)}


def evaluate(expr, values, element):
    """An expression, with values of axes and sizes by identity, and a function for elements of tensors."""
    if expr.op == "const":
        return np.dtype(expr.dtype).type(expr.static[0])
    if expr.op in ("axis", "var"):
        return values[id(expr)]
    if expr.op in ("read", "load"):
        return element(expr.static[0], tuple(int(evaluate(index, values, element)) for index in expr.args))
    if expr.op == "select":
        condition, yes, no = expr.args
        return evaluate(yes if evaluate(condition, values, element) else no, values, element)
    if expr.op == "cast":
        return np.dtype(expr.dtype).type(evaluate(expr.args[0], values, element))
    args = [evaluate(arg, values, element) for arg in expr.args]
    return np.dtype(expr.dtype).type(OPERATIONS[expr.op][1](*args))


class Reference:
    """The tensors of a program, given sizes {var: int} and arrays {placeholder: array}."""

    def __init__(self, sizes, arrays):
        self.sizes = {id(size): np.int64(value) for size, value in sizes.items()}
        self.arrays = dict(arrays)

    def shape(self, tensor):
        return tuple(int(evaluate(extent, self.sizes, None)) for extent in tensor.shape)

    def __getitem__(self, tensor):
        if tensor not in self.arrays:
            if isinstance(tensor.op, ScanOp):
                self.scan(tensor.op)
            else:
                array = np.empty(self.shape(tensor), tensor.dtype)
                for place in np.ndindex(*array.shape):
                    array[place] = self.element(tensor.op, place, self.read)
                self.arrays[tensor] = array
        return self.arrays[tensor]

    def read(self, tensor, place):
        assert all(0 <= index < size for index, size in zip(place, self[tensor].shape)), (tensor, place)
        return self[tensor][place]

    def element(self, op, place, read):
        assert isinstance(op, ComputeOp)
        values = self.sizes | {id(axis): np.int64(index) for axis, index in zip(op.axis, place)}
        if op.body.op != "reduce":
            return evaluate(op.body, values, read)
        combiner, axes = op.body.static
        start, combine = STARTS[combiner]
        ranges = [range(int(evaluate(axis.extent, self.sizes, None))) for axis in axes]
        dtype = np.dtype(op.body.dtype)
        if dtype.kind == "i" and np.isinf(start):
            start = np.iinfo(dtype).min if start < 0 else np.iinfo(dtype).max
        total = dtype.type(start)
        for indices in itertools.product(*ranges):
            inner = values | {id(axis): np.int64(index) for axis, index in zip(axes, indices)}
            total = combine(total, evaluate(op.body.args[0], inner, read))
        return total

    def scan(self, op):
        results = {state: np.empty(self.shape(out), out.dtype) for state, out in zip(op.state, op.outputs)}
        for init, state in zip(op.init, op.state):
            results[state][: op.depth] = self[init]
        length = self.shape(op.outputs[0])[0]
        for t in range(op.depth, length):
            new = {}

            def read(tensor, place, t=t, new=new):
                if tensor in results:
                    assert t - op.depth <= place[0] < t
                    return results[tensor][place]
                if any(tensor.op is stage for stage in op.body):
                    assert place[0] == t
                    key = (tensor, place)
                    if key not in new:
                        new[key] = self.element(tensor.op, place, read)
                    return new[key]
                return self.read(tensor, place)

            for update, state in zip(op.update, op.state):
                for place in np.ndindex(*results[state].shape[1:]):
                    value = read(update, (t, *place))
                    new[state, place] = value
            for state in op.state:
                for place in np.ndindex(*results[state].shape[1:]):
                    results[state][(t, *place)] = new[state, place]
        for state, out in zip(op.state, op.outputs):
            self.arrays[out] = results[state]


def run_nest(body, buffers, arrays, sizes):
    """Interpret a loop nest on the arrays of its buffers, which hold NaN where nothing was stored."""
    memory = dict(zip(buffers, arrays))
    values = {id(size): np.int64(value) for size, value in sizes.items()}

    def at(buffer, place):
        array = memory[buffer]
        assert all(0 <= index < size for index, size in zip(place, array.shape)), (buffer.name, place, array.shape)
        return array[place]

    def walk(step):
        if isinstance(step, st.Store):
            place = tuple(int(evaluate(index, values, at)) for index in step.indices)
            at(step.buffer, place)
            memory[step.buffer][place] = evaluate(step.value, values, at)
        elif isinstance(step, st.For):
            for index in range(int(evaluate(step.extent, values, at))):
                values[id(step.axis)] = np.int64(index)
                walk(step.body)
        elif isinstance(step, st.If):
            if evaluate(step.condition, values, at):
                walk(step.body)
        else:
            if isinstance(step, st.Allocate):
                shape = [int(evaluate(size, values, at)) for size in step.buffer.shape]
                memory[step.buffer] = np.zeros(shape, step.buffer.dtype)
                if step.buffer.dtype.startswith("float"):
                    memory[step.buffer][...] = np.nan
            for inner in st.inner_statements(step):
                walk(inner)

    walk(body)
