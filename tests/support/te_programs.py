"""Random programs of one scan, for hypothesis, and random schedules of them."""

import numpy as np
from hypothesis import strategies as some
from te_reference import Reference
from upsweep import te
from upsweep.te.tensors import inputs_of

SIZES = some.sampled_from([1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 40])


@some.composite
def values(draw, leaves, depth=0):
    """An expression of some reads, whose size stays bounded."""
    kind = draw(some.integers(0, 7 if depth < 3 else 0))
    if kind == 0:
        return draw(some.sampled_from(leaves))()
    a = draw(values(leaves, depth + 1))
    if kind == 1:
        return te.tanh(a)
    b = draw(values(leaves, depth + 1))
    if kind == 2:
        return a * 0.5 + b * 0.25
    if kind == 3:
        return te.max(a, b) - 0.5 * te.min(a, b)
    if kind == 4:
        return te.select(a > b, te.exp(-te.abs(a)), b * 0.5)
    if kind == 5:
        return te.sigmoid(a) * b
    if kind == 6:
        return te.cast("float64", te.cast("int32", a * 8.0)) * 0.125
    return a - b * 0.75


class Program:
    """A scan with its sizes and arguments."""

    def __init__(self, draw):
        self.m, self.n = te.var("m"), te.var("n")
        self.depth = draw(some.integers(1, 3))
        self.sizes = {self.m: self.depth + draw(some.integers(0, 5)), self.n: draw(SIZES)}
        shape = (self.m, self.n)
        self.X = te.placeholder(shape, "float64", "X")
        n_states = draw(some.integers(1, 2))
        states = [te.placeholder(shape, "float64", f"h{s}") for s in range(n_states)]
        inits = [te.compute((self.depth, self.n), lambda t, i, s=s: self.X[t, i] * (s + 1.0), name=f"init{s}")
                 for s in range(n_states)]  # fmt: skip
        self.init = inits[0]
        self.middle = None

        def neighbour(tensor, t, i):
            return te.if_then_else(i > 0, tensor[t, i - 1], 0.25)

        def leaves(t, i, others):
            reads = [lambda: self.X[t, i], lambda: neighbour(self.X, t, i), lambda: te.cast("float64", i) * 0.125]
            for state in states:
                back = draw(some.integers(1, self.depth))
                reads.append(lambda state=state, back=back: state[t - back, i])
                if draw(some.booleans()):
                    reads.append(lambda state=state, back=back: neighbour(state, t - back, i))
                if draw(some.integers(0, 3)) == 0:
                    reads.append(lambda state=state, back=back: state[t - back, 0])
            return reads + others

        stages = []
        if draw(some.booleans()):
            if draw(some.booleans()):
                k = te.reduce_axis((0, self.n), "k")
                self.middle = te.compute(
                    shape, lambda t, i: te.sum(states[0][t - 1, k] * self.X[t, i] * 0.03125, axis=k), name="middle"
                )
            else:
                self.middle = te.compute(
                    shape,
                    lambda t, i: (
                        draw(values([*leaves(t, i, []), lambda: states[0][t - 1, i]])) + states[0][t - 1, i] * 0.5
                    ),
                    name="middle",
                )
            stages.append(self.middle)
        self.updates = []
        for s in range(n_states):
            self.updates.append(te.compute(
                shape,
                lambda t, i: te.tanh(draw(values(leaves(t, i, [lambda s=s: s[t, i] for s in stages])))),
                name=f"update{s}",
            ))  # fmt: skip
        result = te.scan(inits, self.updates, states, inputs=[self.X])
        self.results = result if isinstance(result, list) else [result]
        self.tail = None
        if draw(some.booleans()):
            first = self.results[0]
            self.tail = te.compute(
                shape, lambda t, i: te.select(t > 0, first[t - 1, i], 0.0) + first[t, i], name="tail"
            )

    def schedule(self, draw):
        last = self.tail if self.tail is not None else self.results[0]
        s = te.create_schedule([last.op, self.results[0].op])
        if self.middle in s and self.middle.op.reduce_axis and draw(some.booleans()):
            loops = s[self.middle].split(self.middle.op.reduce_axis[0], factor=draw(some.sampled_from([1, 3, 50])))
            s.rfactor(self.middle, draw(some.sampled_from(loops)), draw(some.sampled_from([0, 1, -1])))
        sources = inputs_of(s[self.updates[0]].op)  # none if the update is one of indices alone
        if sources and draw(some.booleans()):
            s.cache_read(draw(some.sampled_from(sources)), "local", [self.updates[0]])
        if draw(some.booleans()):
            s.cache_write(draw(some.sampled_from(self.updates)), "local")
        for tensor in [self.init, *self.updates, *([self.tail] if self.tail is not None else [])]:
            axis = tensor.op.axis[1]
            how = draw(some.integers(0, 8))
            stage = s[tensor]
            if how in (1, 2, 3):
                outer, inner = stage.split(axis, factor=draw(some.sampled_from([1, 3, 4, 16])))
                if how == 2:
                    stage.vectorize(inner)
                    stage.parallel(outer)
                if how == 3:
                    stage.bind(outer, te.thread_axis("blockIdx.x"))
                    stage.bind(inner, te.thread_axis("threadIdx.x"))
            elif how == 4:
                outer, inner = stage.split(axis, nparts=3)
                stage.reorder(inner, outer)
                stage.unroll(outer)
            elif how == 5:
                stage.vectorize(axis)
            elif how == 6:
                stage.parallel(axis)
            if tensor is self.updates[0] and self._middle_is_its_own(s) and draw(some.booleans()):
                if draw(some.booleans()) and not s[self.middle].op.reduce_axis:
                    s[self.middle].compute_inline()
                else:
                    s[self.middle].compute_at(stage, draw(some.sampled_from(stage.leaves)))
        if draw(some.booleans()):
            s[self.results[0]].split(self.results[0].op.scan_axis, factor=draw(some.sampled_from([2, 3])))
        return s

    def _middle_is_its_own(self, s):
        if self.middle not in s:
            return False
        readers = [stage for stage in s.stages if stage.time is not None and self.middle in inputs_of(stage.op)]
        return [stage.op.name for stage in readers] == [self.updates[0].op.name]

    def args(self):
        """Its input and all of its results."""
        return [self.X, *self.results] + ([self.tail] if self.tail is not None else [])

    def case(self, draw):
        """A random input, and what the definitions make of it: the other arguments."""
        x = np.random.default_rng(draw(some.integers(0, 9))).normal(size=tuple(self.sizes.values()))
        reference = Reference(self.sizes, {self.X: x})
        return x, [reference[tensor] for tensor in self.args()[1:]]
