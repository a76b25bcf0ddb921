"""From a schedule to a loop nest.

A stage's loops follow its leaf axes; what inexact splits overshoot is cut off by an `If` in the first loop
that knows enough. A stage computed at a loop of another gets memory for what one step of that loop reads (its
region). A state has the result's memory; a stage of the body has memory for one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from upsweep._compiler.loops.expressions import Axis, Expr, binary, const, contains, index_const, load, lowest
from upsweep._compiler.loops.linear import Ranges, last_index, linear, same, simplified
from upsweep._compiler.loops.statements import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    all_statements,
)
from upsweep._compiler.loops.traversal import fold
from upsweep.te.bounds_inference import Consumer, expanded_reads, region_of
from upsweep.te.scans import ScanOp
from upsweep.te.schedule import Schedule, Stage
from upsweep.te.stage_loops import Loops, extent_of
from upsweep.te.strip_mining import strip_mine
from upsweep.te.tensors import COMBINERS, ComputeOp, Tensor

__all__ = ["lower_schedule"]

_STARTS = {"sum": 0, "prod": 1}
_MOST_UNROLLED = 128


@dataclass
class _Home:
    """Where a stage's values lie: dimension d at index - first[d], dimensions in `kept` alone."""

    buffer: Buffer
    first: tuple[Expr, ...]
    kept: tuple[int, ...]


@dataclass
class _Scope:
    """A loop, or the whole nest: buffers that live in it."""

    buffers: list[Buffer] = field(default_factory=list)

    def around(self, body: Statement) -> Statement:
        for buffer in reversed(self.buffers):
            body = Allocate(buffer, body)
        return body


def _start(combiner: str, dtype: str) -> Expr:
    if combiner in _STARTS:
        return const(_STARTS[combiner], dtype)
    if dtype in ("int32", "int64"):
        return const(lowest(dtype) if combiner == "max" else -1 - lowest(dtype), dtype)
    return const(float("-inf") if combiner == "max" else float("inf"), dtype)


def _block(steps: Sequence[Statement]) -> Statement:
    flat = [inner for step in steps for inner in (step.steps if isinstance(step, Block) else [step])]
    return flat[0] if len(flat) == 1 else Block(flat)


class _Lowering:
    """One walk over the stages of a schedule."""

    def __init__(self, schedule: Schedule, args: Sequence[Tensor]) -> None:
        self.schedule = schedule
        self.homes: dict[Tensor, _Home] = {}
        self.scopes = [_Scope()]
        self.in_scope: list[Axis] = []  # the loops around what is being written
        self.ranges: dict[Axis, tuple[Expr, Expr]] = {}
        self.at: dict[tuple[Stage, Axis], list[Stage]] = {}
        self.written: set[Stage] = set()
        self.buffers = [Buffer(tensor.name, tensor.shape, tensor.dtype) for tensor in args]
        for tensor, buffer in zip(args, self.buffers):
            self._settle(tensor, buffer)
        for stage in schedule.stages:
            if stage.attached is not None:
                self.at.setdefault(stage.attached, []).append(stage)

    # ---- where values lie ----

    def _settle(self, tensor: Tensor, buffer: Buffer) -> None:
        zeros = tuple(index_const(0) for _ in tensor.shape)
        self.homes[tensor] = _Home(buffer, zeros, tuple(range(tensor.ndim)))

    def _home(self, tensor: Tensor) -> _Home:
        if tensor not in self.homes:
            buffer = Buffer(tensor.name, tensor.shape, tensor.dtype)
            self.scopes[0].buffers.append(buffer)
            self._settle(tensor, buffer)
        return self.homes[tensor]

    def _place(self, tensor: Tensor, indices: Sequence[Expr]) -> tuple[Buffer, tuple[Expr, ...]]:
        home = self._home(tensor)
        places = tuple(simplified(binary("sub", indices[d], home.first[d])) for d in home.kept)
        return home.buffer, places

    def _translated(self, expr: Expr, values: dict[Expr, Expr]) -> Expr:
        """An expression of root axes as one of loops, its reads as loads."""

        def translated(node: Expr, args: list[Expr]) -> Expr:
            if node.op == "read":
                tensor: Tensor = node.static[0]
                indices = [simplified(index) for index in args]
                op = tensor.op
                if isinstance(op, ComputeOp) and self.schedule[op].inlined:
                    return self._translated(op.body, dict(zip(op.axis, indices)))
                return load(*self._place(tensor, indices))
            return Expr(node.op, tuple(args), node.dtype, node.static, node.where) if args else node

        return fold(expr, translated, {id(axis): value for axis, value in values.items()})

    # ---- stages ----

    def _attached(self, stage: Stage, axis: Axis, consumers: list[Consumer]) -> list[Statement]:
        """What is computed at a loop, for the stages in it."""
        found: list[tuple[Stage, list[Expr], list[Expr]]] = []
        for producer in reversed(self.at.get((stage, axis), [])):
            assert isinstance(producer.op, ComputeOp)
            op, tensor = producer.op, producer.op.outputs[0]
            self._check_all_readers(producer, consumers)
            first, extents = region_of(tensor, consumers, self.ranges, self.schedule)
            kept = tuple(
                d for d, extent in enumerate(extents) if not (extent.op == "const" and extent.static[0] == 1)
            )
            buffer = Buffer(tensor.name, tuple(extents[d] for d in kept), tensor.dtype)
            self.homes[tensor] = _Home(buffer, tuple(first), kept)
            self.scopes[-1].buffers.append(buffer)
            inner = dict(zip(op.axis, extents)) | {axis: extent_of(axis) for axis in op.reduce_axis}
            values = {axis: binary("add", low, axis) for axis, low in zip(op.axis, first)}
            consumers.append(Consumer(op, values, inner))
            found.append((producer, first, extents))
        steps: list[Statement] = []
        for producer, first, extents in reversed(found):
            time = (
                producer.op.axis[0] if isinstance(producer.op, ComputeOp) and producer.group is not None else None
            )
            fixed = {} if time is None else {time: first[0]}
            steps.append(Produce(producer.op.name, self._stage(producer, first, extents, fixed)))
        return steps

    def _check_all_readers(self, producer: Stage, consumers: list[Consumer]) -> None:
        inside = {id(consumer.op) for consumer in consumers}
        for stage in self.schedule.stages:
            op = stage.op
            if isinstance(op, ComputeOp) and not stage.inlined and id(op) not in inside:
                expanded = self.reads(op.body)
                if any(read.static[0].op is producer.op for read in expanded):
                    raise ValueError(
                        f"{producer.op.line}: {producer.op.name} is read by {op.name} too, outside of the "
                        "loop that it is computed at"
                    )

    def reads(self, expr: Expr) -> list[Expr]:
        """The reads in an expression, those of inlined stages in their place."""
        return expanded_reads(expr, self.schedule)

    def _inner_axes(self, loops: Loops, roots: Sequence[Axis], depth: int) -> dict[Axis, Expr]:
        """The loops of a stage inside of one, with their extents."""
        inside = loops.stage.leaves[depth:]
        return {value: loops.extents[leaf] for leaf in inside if isinstance(value := loops.values[leaf], Axis)}

    def _stage(
        self,
        stage: Stage,
        first: Sequence[Expr],
        extents: Sequence[Expr],
        values: dict[Axis, Expr],
        target: tuple[Tensor, Sequence[int]] | None = None,
    ) -> Statement:
        """The loops of a compute over a region; `values` are given to axes that have no loop here."""
        op = stage.op
        assert isinstance(op, ComputeOp)
        self.written.add(stage)
        roots = [axis for axis in op.axis if axis not in values]
        wanted = [extent for axis, extent in zip(op.axis, extents) if axis not in values]
        loops = Loops(stage, [*roots, *op.reduce_axis], [*wanted, *map(extent_of, op.reduce_axis)], self.ranges)
        known: dict[Any, Expr] = dict(values)
        for axis, low in zip(op.axis, first):
            if axis not in values:
                known[axis] = simplified(binary("add", low, loops.values[axis]))
        for axis in op.reduce_axis:
            known[axis] = loops.values[axis]
        guards = loops.guards + self._region_guards(op, known, first, extents, values)
        tensor = op.outputs[0]
        buffer_of = target[0] if target is not None else tensor

        def place() -> tuple[Buffer, tuple[Expr, ...]]:
            return self._place(buffer_of, [known[axis] for axis in op.axis])

        marks = self._marks(stage, loops)
        if not op.reduce_axis:
            return self._nest(stage, loops, marks, known, guards, stage.leaves, 0,
                              lambda: Store(*place(), self._translated(op.body, known)))  # fmt: skip
        combiner = op.body.static[0]
        reduce_from = next(n for n, leaf in enumerate(stage.leaves) if leaf.kind == "reduce")
        start = _start(combiner, tensor.dtype)
        data_leaves = [
            *stage.leaves[:reduce_from],
            *(leaf for leaf in stage.leaves[reduce_from:] if leaf.kind == "data"),
        ]
        reduce_values = [
            v for leaf in stage.leaves if leaf.kind == "reduce" and isinstance(v := loops.values[leaf], Axis)
        ]
        data_guards = [guard for guard in guards if not contains(guard, reduce_values)]

        def both() -> Statement:
            begin = self._nest(stage, loops, marks, known, data_guards, data_leaves, reduce_from,
                               lambda: Store(*place(), start), attach=False)  # fmt: skip

            def step() -> Statement:
                where = place()
                value = self._translated(op.body.args[0], known)
                return Store(*where, Expr(COMBINERS[combiner], (load(*where), value), tensor.dtype))

            return _block([begin, self._nest(stage, loops, marks, known, guards, stage.leaves, reduce_from, step)])

        return self._nest(stage, loops, marks, known, guards, stage.leaves[:reduce_from], 0, both)

    def _region_guards(
        self, op: ComputeOp, known: dict[Expr, Expr], first: Sequence[Expr], extents: Sequence[Expr],
        values: dict[Axis, Expr],
    ) -> list[Expr]:  # fmt: skip
        """Regions may reach past the tensor, where what they serve is cut off by a guard."""
        guards = []
        for axis, low, extent, size in zip(op.axis, first, extents, op.outputs[0].shape):
            if axis in values or (same(extent, size) and same(low, index_const(0))):
                continue
            ranges = Ranges(self.ranges)
            last = linear(size).plus(linear(low), -1).plus(linear(extent), -1)
            if not ranges.always(last):
                guards.append(binary("lt", known[axis], size))
            if not ranges.always(linear(low)):
                guards.append(binary("ge", known[axis], index_const(0)))
        return guards

    def _marks(self, stage: Stage, loops: Loops) -> dict[Axis, frozenset[str]]:
        """What is said of each loop; an untouched stage is marked by the rule of the package."""
        if stage.touched:
            return {leaf: frozenset({mark}) for leaf, mark in stage.marks.items()}
        data = [leaf for leaf in stage.leaves if leaf.kind == "data" and isinstance(loops.values[leaf], Axis)]
        marks: dict[Axis, set[str]] = {leaf: set() for leaf in data}
        if data:
            marks[data[-1]].add("vectorized")
            if not any("parallel" in scope_marks for scope_marks in self.parallel_now):
                # The first steps of a scan are shared among threads as the others are, by columns.
                columns = data if self._time_of_init(stage) is not data[0] else data[1:]
                if columns:
                    marks[columns[0]].add("parallel")
        return {leaf: frozenset(each) for leaf, each in marks.items()}

    def _time_of_init(self, stage: Stage) -> Axis | None:
        op = stage.op
        scans = [each.op for each in self.schedule.stages if isinstance(each.op, ScanOp)]
        is_init = any(tensor.op is op for scan in scans for tensor in scan.init)
        return op.axis[0] if is_init and isinstance(op, ComputeOp) else None

    parallel_now: list[frozenset[str]]

    def _nest(
        self,
        stage: Stage,
        loops: Loops,
        marks: dict[Axis, frozenset[str]],
        known: dict[Expr, Expr],
        guards: list[Expr],
        leaves: list[Axis],
        depth: int,
        innermost: Callable[[], Statement],
        attach: bool = True,
    ) -> Statement:
        """Loops `leaves[depth:]`, each guard as soon as its loops are there."""
        if depth == len(leaves):
            return innermost()
        ahead = [v for leaf in leaves[depth:] if isinstance(v := loops.values[leaf], Axis)]
        # Guards of reductions come with the loops of the reduction, which may be written later than these.
        here = set(leaves)
        later = [v for leaf in stage.leaves if leaf not in here and isinstance(v := loops.values[leaf], Axis)]
        leaf = leaves[depth]
        axis = loops.values[leaf]
        mine = [
            g
            for g in guards
            if isinstance(axis, Axis) and contains(g, [axis]) and not contains(g, ahead[1:] + later)
        ]
        if depth == 0:  # those that no loop of this stage decides
            every = [v for each in stage.leaves if isinstance(v := loops.values[each], Axis)]
            mine += [g for g in guards if not contains(g, every)]
        kinds = marks.get(leaf, frozenset())
        is_parallel = "parallel" in kinds and isinstance(axis, Axis)
        if is_parallel:
            self.scopes.append(_Scope())
        if isinstance(axis, Axis):
            self.parallel_now.append(kinds)
            self.ranges[axis] = (index_const(0), last_index(loops.extents[leaf]))
        steps: list[Statement] = []
        if attach and (stage, leaf) in self.at:
            op = stage.op
            assert isinstance(op, ComputeOp)
            roots = {root: known[root] for root in (*op.axis, *op.reduce_axis)}
            consumers = [Consumer(op, roots, self._inner_axes(loops, [], depth + 1))]
            steps = self._attached(stage, leaf, consumers)
        steps.append(self._nest(stage, loops, marks, known, guards, leaves, depth + 1, innermost, attach))
        body = _block(steps)
        for guard in reversed(mine):
            body = If(guard, body)
        if is_parallel:
            body = self.scopes.pop().around(body)
        if not isinstance(axis, Axis):
            return body
        self.parallel_now.pop()
        del self.ranges[axis]
        return self._loop(stage, leaf, axis, loops.extents[leaf], kinds, body)

    def _loop(
        self, stage: Stage, leaf: Axis, axis: Axis, extent: Expr, kinds: frozenset[str], body: Statement
    ) -> Statement:
        if "unrolled" in kinds and (extent.op != "const" or extent.static[0] > _MOST_UNROLLED):
            raise ValueError(
                f"{stage.op.line}: {stage.op.name}: unroll: {axis.name} has {extent!r} steps; "
                f"expected a constant up to {_MOST_UNROLLED}"
            )
        if any(isinstance(inner, (Produce, Allocate)) for inner in all_statements(body)):
            kinds = kinds - {"vectorized"}  # lanes would share the memory of what is computed inside
        tag = stage.threads[leaf].static[0] if leaf in stage.threads else ""
        return For(axis, extent, body, kinds, tag)

    # ---- scans ----

    def _scan(self, stage: Stage) -> Statement:
        op = stage.op
        assert isinstance(op, ScanOp)
        for init, result, state, update in zip(op.init, op.outputs, op.state, op.update):
            home = self._home(result)
            self.homes[state] = self.homes[update] = home
            if isinstance(init.op, ComputeOp):
                self.homes[init] = home
        steps: list[Statement] = []
        for init, result in zip(op.init, op.outputs):
            if isinstance(init.op, ComputeOp):
                inner = self.schedule[init.op]
                zeros = [index_const(0)] * init.ndim
                steps.append(self._stage(inner, zeros, init.shape, {}, (result, ())))
            else:
                steps.append(self._copied(init, result))
        loops = Loops(stage, [op.scan_axis], [extent_of(op.scan_axis)], self.ranges)
        t = simplified(binary("add", loops.values[op.scan_axis], const(op.depth, "int64")))
        steps.append(self._time_loops(stage, loops, t, 0))
        produce = Produce(op.name, _block(steps))
        strip_mine(produce, lambda loop: not self._is_touched(loop))
        return produce

    def _is_touched(self, loop: For) -> bool:
        return any(
            leaf is loop.axis and stage.touched for stage in self.schedule.stages for leaf in stage.leaves
        ) or bool(loop.tag)

    def _copied(self, init: Tensor, result: Tensor) -> Statement:
        """Loops that copy a given init into the first steps."""
        axes = [Axis(f"i{d}", size) for d, size in enumerate(init.shape)]
        value = load(*self._place(init, axes))
        body: Statement = Store(*self._place(result, axes), value)
        for d, (axis, size) in reversed(list(enumerate(zip(axes, init.shape)))):
            marks = {"vectorized"} if d == init.ndim - 1 and d else set()
            marks |= {"parallel"} if d == 1 else set()
            body = For(axis, size, body, frozenset(marks))
        return body

    def _time_loops(self, stage: Stage, loops: Loops, t: Expr, depth: int) -> Statement:
        op = stage.op
        assert isinstance(op, ScanOp)
        if depth == len(stage.leaves):
            return self._step(stage, t)
        leaf = stage.leaves[depth]
        axis = loops.values[leaf]
        if isinstance(axis, Axis):
            self.ranges[axis] = (index_const(0), last_index(loops.extents[leaf]))
        steps = []
        if (stage, leaf) in self.at and depth == len(stage.leaves) - 1:
            consumers = [Consumer(each, {each.axis[0]: t, **{a: a for a in (*each.axis[1:], *each.reduce_axis)}},
                                  {a: a.extent for a in (*each.axis[1:], *each.reduce_axis)})  # type: ignore[misc]
                         for each in op.body]  # fmt: skip
            moved = self.at[(stage, leaf)]
            outside = [each for each in moved if each.group is None]
            self.at[(stage, leaf)] = outside
            steps = self._attached(stage, leaf, consumers)
            self.at[(stage, leaf)] = moved
        elif (stage, leaf) in self.at:
            raise ValueError(
                f"{op.line}: {op.name}: compute_at: only the innermost loop of the scan axis takes other stages"
            )
        body = _block([*steps, self._time_loops(stage, loops, t, depth + 1)])
        ahead = [v for each in stage.leaves[depth + 1 :] if isinstance(v := loops.values[each], Axis)]
        for guard in loops.guards:
            if isinstance(axis, Axis) and contains(guard, [axis]) and not contains(guard, ahead):
                body = If(guard, body)
        if not isinstance(axis, Axis):
            return body
        del self.ranges[axis]
        kinds = frozenset({stage.marks[leaf]}) if leaf in stage.marks else frozenset()
        return self._loop(stage, leaf, axis, loops.extents[leaf], kinds, body)

    def _step(self, stage: Stage, t: Expr) -> Statement:
        """The body's stages at one step, in an order in which each finds what it reads."""
        op = stage.op
        assert isinstance(op, ScanOp)
        steps: list[Statement] = []
        for each in op.body:
            inner = self.schedule[each]
            in_scan = inner.attached is not None and inner.attached[0] is stage
            if inner.inlined or (inner.attached is not None and not in_scan):
                continue
            tensor = each.outputs[0]
            zeros = [index_const(0)] * tensor.ndim
            result = next((r for r, u in zip(op.outputs, op.update) if u is tensor), None)
            if result is not None:
                steps.append(self._stage(inner, zeros, tensor.shape, {each.axis[0]: t}, (result, ())))
                continue
            kept = tuple(range(1, tensor.ndim))
            buffer = Buffer(tensor.name, tensor.shape[1:], tensor.dtype)
            self.homes[tensor] = _Home(buffer, (t, *zeros[1:]), kept)
            self.scopes[0].buffers.append(buffer)
            steps.append(Produce(tensor.name, self._stage(inner, zeros, tensor.shape, {each.axis[0]: t})))
        return _block(steps)

    # ---- all ----

    def run(self) -> Statement:
        self.parallel_now = []
        inits = {id(t.op) for s in self.schedule.stages if isinstance(s.op, ScanOp) for t in s.op.init}
        steps: list[Statement] = []
        for stage in self.schedule.stages:
            op = stage.op
            if isinstance(op, ScanOp):
                steps.append(self._scan(stage))
            elif isinstance(op, ComputeOp) and not (
                stage.group is not None or id(op) in inits or stage.inlined or stage.attached is not None
            ):
                tensor = op.outputs[0]
                self._home(tensor)
                zeros = [index_const(0)] * tensor.ndim
                steps.append(Produce(tensor.name, self._stage(stage, zeros, tensor.shape, {})))
        for stage in self.schedule.stages:
            if isinstance(stage.op, ComputeOp) and not stage.inlined and stage not in self.written:
                raise stage.never_reached()
        return self.scopes[0].around(_block(steps))


def lower_schedule(schedule: Schedule, args: Sequence[Tensor]) -> tuple[Statement, list[Buffer]]:
    """The loop nest of a schedule, and its buffers of the arguments."""
    schedule.check_args(args)
    lowering = _Lowering(schedule, args)
    return lowering.run(), lowering.buffers
