"""Lowering of a schedule to a loop nest, for calls with some arguments.

A stage's loops follow its leaf axes; an `If` in the first loop that decides it cuts off the excess of an inexact
split. A stage computed at a loop of another one gets memory for what one step of that loop reads (its region, see
`bounds_inference`). A state is stored in the result; a stage of a scan's body has memory for one step. Functions
are compiled from a `LoweredSchedule`, and pickled as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from upsweep._compiler.loops.expressions import (
    ITEM_BYTES,
    Axis,
    Expr,
    binary,
    const,
    constant_of,
    contains,
    index_const,
    key,
    load,
    lowest,
)
from upsweep._compiler.loops.linear import last_index, linear, same, simplified
from upsweep._compiler.loops.ranges import Ranges
from upsweep._compiler.loops.rewrite import allocate_around, block_of
from upsweep._compiler.loops.statements import Allocate, Buffer, For, If, Produce, Statement, Store, all_statements
from upsweep._compiler.loops.traversal import walk
from upsweep.te.bounds_checks import SizeCheck, check_memory
from upsweep.te.bounds_inference import Consumer, expanded_reads, region_of
from upsweep.te.scans import ScanOp
from upsweep.te.schedule import Schedule, Stage
from upsweep.te.stage_loops import StageLoops, extent_of
from upsweep.te.storage import StorageMap
from upsweep.te.strip_mining import find_strips
from upsweep.te.tensors import COMBINERS, ComputeOp, PlaceholderOp, Tensor

_INITIAL = {"sum": 0, "prod": 1}
_MAX_UNROLLED = 128

# Statements that are computed at a loop, by its leaf and depth.
Attach = Callable[[Axis, int], Sequence[Statement]]


def _initial(combiner: str, dtype: str) -> Expr:
    if combiner in _INITIAL:
        return const(_INITIAL[combiner], dtype)
    if dtype in ("int32", "int64"):
        return const(lowest(dtype) if combiner == "max" else -1 - lowest(dtype), dtype)
    return const(float("-inf") if combiner == "max" else float("inf"), dtype)


def _never_reached(stage: Stage) -> ValueError:
    """The error for a stage that is computed at a loop which does not exist."""
    assert stage.attached is not None
    parent, axis = stage.attached
    name, names = parent.op.name, ", ".join(leaf.name for leaf in parent.leaves)
    why = f"{name} is not computed itself"
    if parent.inlined:
        why = f"{name} is computed inline and has no loops"
    elif not any(leaf is axis for leaf in parent.leaves):
        why = f"{axis.name} is none of the loops of {name} ({names}) any more; split and fuse it first"
    return ValueError(f"{stage.attached_line}: {stage.op.name}: compute_at: {why}")


class _Lowering:
    """The lowering of one schedule."""

    def __init__(self, schedule: Schedule, args: Sequence[Tensor]) -> None:
        self.schedule = schedule
        self.storage = StorageMap(schedule)
        self.ranges: dict[Axis, tuple[Expr, Expr]] = {}  # of the loops around what is being written
        self.at: dict[tuple[Stage, Axis], list[Stage]] = {}
        self.written: set[Stage] = set()
        self.buffers = [Buffer(tensor.name, tensor.shape, tensor.dtype) for tensor in args]
        for tensor, buffer in zip(args, self.buffers):
            self.storage.assign(tensor, buffer)
        for stage in schedule.stages:
            if stage.attached is not None:
                self.at.setdefault(stage.attached, []).append(stage)

    def run(self) -> Statement:
        steps: list[Statement] = []
        for stage in self.schedule.stages:
            op = stage.op
            if isinstance(op, ScanOp):
                steps.append(self._scan(stage, op))
            elif isinstance(op, ComputeOp) and not (op in self.schedule.inits or stage.is_inside):
                tensor = op.outputs[0]
                self.storage.of(tensor)
                steps.append(Produce(tensor.name, self._whole_stage(stage)))
        for stage in self.schedule.stages:
            if isinstance(stage.op, ComputeOp) and not stage.inlined and stage not in self.written:
                raise _never_reached(stage)
        return allocate_around(self.storage.scopes[0], block_of(*steps))

    # ---- stages ----

    def _whole_stage(
        self, stage: Stage, fixed: dict[Expr, Expr] | None = None, target: Tensor | None = None
    ) -> Statement:
        shape = stage.op.outputs[0].shape
        return self._stage(stage, [index_const(0)] * len(shape), shape, fixed or {}, target)

    def _stage(
        self, stage: Stage, first: Sequence[Expr], extents: Sequence[Expr], fixed: dict[Expr, Expr],
        target: Tensor | None = None,
    ) -> Statement:  # fmt: skip
        """The loops of a compute over a region, stored to `target`; `fixed` are values of axes without a loop."""
        op = stage.op
        assert isinstance(op, ComputeOp)
        self.written.add(stage)
        looped = [(axis, extent) for axis, extent in zip(op.axis, extents) if axis not in fixed]
        looped += [(axis, extent_of(axis)) for axis in op.reduce_axis]
        loops = StageLoops(stage, [axis for axis, _ in looped], [extent for _, extent in looped], self.ranges)
        values = dict(fixed)
        for axis, low in zip(op.axis, first):
            if axis not in fixed:
                values[axis] = simplified(binary("add", low, loops.values[axis]))
        for axis in op.reduce_axis:
            values[axis] = loops.values[axis]
        loops.guards += self._region_guards(op, values, first, extents, fixed)
        if not stage.touched:
            loops.marks = self._default_marks(stage, loops)
        tensor = op.outputs[0] if target is None else target
        dtype = op.outputs[0].dtype

        def element() -> tuple[Buffer, tuple[Expr, ...]]:
            return self.storage.element(tensor, [values[axis] for axis in op.axis])

        def attach(leaf: Axis, depth: int) -> Sequence[Statement]:
            if (stage, leaf) not in self.at:
                return ()
            roots = {root: values[root] for root in (*op.axis, *op.reduce_axis)}
            inside = stage.leaves[depth + 1 :]
            inner = {v: loops.extents[leaf] for leaf in inside if isinstance(v := loops.values[leaf], Axis)}
            return self._attached(self.at[stage, leaf], [Consumer(op, roots, inner)])

        if not op.reduce_axis:
            return self._nest(
                loops, stage.leaves, lambda: Store(*element(), self.storage.translated(op.body, values)), attach
            )
        combiner = op.body.static[0]
        outside = next(n for n, leaf in enumerate(stage.leaves) if leaf.kind == "reduce")
        data_leaves = [leaf for n, leaf in enumerate(stage.leaves) if n < outside or leaf.kind == "data"]
        reduce_indices = loops.indices(leaf for leaf in stage.leaves if leaf.kind == "reduce")
        data_guards = [guard for guard in loops.guards if not contains(guard, reduce_indices)]

        def accumulate() -> Statement:
            where = element()
            value = self.storage.translated(op.body.args[0], values)
            return Store(*where, Expr(COMBINERS[combiner], (load(*where), value), dtype))

        def initialise_and_accumulate() -> Statement:
            start = _initial(combiner, dtype)
            begin = self._nest(
                loops, data_leaves, lambda: Store(*element(), start), None, data_guards, depth=outside
            )
            return block_of(begin, self._nest(loops, stage.leaves, accumulate, attach, depth=outside))

        return self._nest(loops, stage.leaves[:outside], initialise_and_accumulate, attach)

    def _region_guards(
        self, op: ComputeOp, values: dict[Expr, Expr], first: Sequence[Expr], extents: Sequence[Expr],
        fixed: dict[Expr, Expr],
    ) -> list[Expr]:  # fmt: skip
        """The conditions that keep a region inside of the tensor, which its readers' guards let it leave."""
        guards = []
        for axis, low, extent, size in zip(op.axis, first, extents, op.outputs[0].shape):
            if axis in fixed or (same(extent, size) and same(low, index_const(0))):
                continue
            ranges = Ranges(self.ranges)
            last = linear(size).plus(linear(low), -1).plus(linear(extent), -1)
            if not ranges.always(last):
                guards.append(binary("lt", values[axis], size))
            if not ranges.always(linear(low)):
                guards.append(binary("ge", values[axis], index_const(0)))
        return guards

    def _default_marks(self, stage: Stage, loops: StageLoops) -> dict[Axis, frozenset[str]]:
        """The marks of a stage that the schedule leaves open: its last axis vectorized, its first one parallel."""
        data = [leaf for leaf in stage.leaves if leaf.kind == "data" and isinstance(loops.values[leaf], Axis)]
        marks: dict[Axis, set[str]] = {leaf: set() for leaf in data}
        if data:
            marks[data[-1]].add("vectorized")
            # The initial steps of a scan are shared among threads as the others are, by columns.
            op = stage.op
            is_init = isinstance(op, ComputeOp) and op in self.schedule.inits and data[0] is op.axis[0]
            columns = data[1:] if is_init else data
            if columns and len(self.storage.scopes) == 1:  # outside of parallel loops
                marks[columns[0]].add("parallel")
        return {leaf: frozenset(each) for leaf, each in marks.items()}

    # ---- loops ----

    def _nest(
        self, loops: StageLoops, leaves: Sequence[Axis], innermost: Callable[[], Statement],
        attach: Attach | None = None, guards: Sequence[Expr] | None = None, depth: int = 0,
    ) -> Statement:  # fmt: skip
        """The loops ``leaves[depth:]``, each guard in the first loop that decides it."""
        if depth == len(leaves):
            return innermost()
        guards = loops.guards if guards is None else guards
        leaf = leaves[depth]
        axis, extent = loops.values[leaf], loops.extents[leaf]
        marks = loops.marks.get(leaf, frozenset())
        is_parallel = "parallel" in marks and isinstance(axis, Axis)
        if is_parallel:
            self.storage.scopes.append([])
        if isinstance(axis, Axis):
            self.ranges[axis] = (index_const(0), last_index(extent))
        steps = [] if attach is None else [*attach(leaf, depth)]
        steps.append(self._nest(loops, leaves, innermost, attach, guards, depth + 1))
        body = block_of(*steps)
        for guard in reversed(loops.guards_at(leaves, depth, guards)):
            body = If(guard, body)
        if is_parallel:
            body = allocate_around(self.storage.scopes.pop(), body)
        if not isinstance(axis, Axis):
            return body
        del self.ranges[axis]
        return self._loop(loops.stage, leaf, axis, extent, marks, body)

    def _loop(
        self, stage: Stage, leaf: Axis, axis: Axis, extent: Expr, marks: frozenset[str], body: Statement
    ) -> Statement:
        size = constant_of(extent)
        if "unrolled" in marks and (size is None or size > _MAX_UNROLLED):
            raise ValueError(
                f"{stage.op.line}: {stage.op.name}: unroll: {axis.name} has {extent!r} steps; "
                f"expected a constant up to {_MAX_UNROLLED}"
            )
        if any(isinstance(inner, (Produce, Allocate)) for inner in all_statements(body)):
            marks = marks - {"vectorized"}  # lanes would share the memory of what is computed inside
        return For(axis, extent, body, marks, stage.threads[leaf].static[0] if leaf in stage.threads else "")

    # ---- stages computed at a loop ----

    def _attached(self, producers: Sequence[Stage], consumers: list[Consumer]) -> list[Statement]:
        """The stages that are computed at a loop, for the consumers in it."""
        regions: list[tuple[Stage, list[Expr], list[Expr]]] = []
        for producer in reversed(producers):
            op = producer.op
            assert isinstance(op, ComputeOp)
            self._check_all_readers(producer, consumers)
            first, extents = region_of(op.outputs[0], consumers, self.ranges, self.schedule)
            dims = [d for d, extent in enumerate(extents) if constant_of(extent) != 1]
            self.storage.allocate(op.outputs[0], first, extents, dims, scope=-1)
            inner = dict(zip(op.axis, extents)) | {axis: extent_of(axis) for axis in op.reduce_axis}
            values = {axis: binary("add", low, axis) for axis, low in zip(op.axis, first)}
            consumers.append(Consumer(op, values, inner))
            regions.append((producer, first, extents))
        steps: list[Statement] = []
        for producer, first, extents in reversed(regions):
            fixed: dict[Expr, Expr] = {} if producer.time is None else {producer.time: first[0]}
            steps.append(Produce(producer.op.name, self._stage(producer, first, extents, fixed)))
        return steps

    def _check_all_readers(self, producer: Stage, consumers: list[Consumer]) -> None:
        inside = {id(consumer.op) for consumer in consumers}
        for stage in self.schedule.stages:
            op = stage.op
            if isinstance(op, ComputeOp) and not stage.inlined and id(op) not in inside:
                reads = expanded_reads(op.body, self.schedule)
                if any(read.static[0].op is producer.op for read in reads):
                    raise ValueError(
                        f"{producer.op.line}: {producer.op.name} is read by {op.name} too, outside of the "
                        "loop that it is computed at"
                    )

    # ---- scans ----

    def _scan(self, stage: Stage, op: ScanOp) -> Statement:
        for init, result, state, update in zip(op.init, op.outputs, op.state, op.update):
            storage = self.storage.of(result)
            for tensor in (state, update, *([init] if isinstance(init.op, ComputeOp) else [])):
                self.storage.by_tensor[tensor] = storage
        steps = [self._initial_steps(init, result) for init, result in zip(op.init, op.outputs)]
        loops = StageLoops(stage, [op.scan_axis], [extent_of(op.scan_axis)], self.ranges)
        t = simplified(binary("add", loops.values[op.scan_axis], index_const(op.depth)))

        def attach(leaf: Axis, depth: int) -> Sequence[Statement]:
            if (stage, leaf) not in self.at:
                return ()
            if depth < len(stage.leaves) - 1:
                raise ValueError(
                    f"{op.line}: {op.name}: compute_at: only the innermost loop of the scan axis takes other "
                    "stages"
                )
            consumers = []
            for each in op.body:
                inner = {axis: extent_of(axis) for axis in (*each.axis[1:], *each.reduce_axis)}
                consumers.append(Consumer(each, {each.axis[0]: t, **{axis: axis for axis in inner}}, inner))
            return self._attached([each for each in self.at[stage, leaf] if each.group is None], consumers)

        steps.append(self._nest(loops, stage.leaves, lambda: self._step(stage, op, t), attach))
        produce = Produce(op.name, block_of(*steps))
        find_strips(produce, lambda loop: not self._is_scheduled(loop))
        return produce

    def _is_scheduled(self, loop: For) -> bool:
        """Whether the user's schedule has asked for a loop as it is."""
        stages = [stage for stage in self.schedule.stages if stage.touched]
        return bool(loop.tag) or any(leaf is loop.axis for stage in stages for leaf in stage.leaves)

    def _initial_steps(self, init: Tensor, result: Tensor) -> Statement:
        """The loops over the initial steps of a state, which are computed, or copied from an argument."""
        if isinstance(init.op, ComputeOp):
            return self._whole_stage(self.schedule[init.op], target=result)
        axes = [Axis(f"i{d}", size) for d, size in enumerate(init.shape)]
        value = load(*self.storage.element(init, axes))
        body: Statement = Store(*self.storage.element(result, axes), value)
        for d, (axis, size) in reversed(list(enumerate(zip(axes, init.shape)))):
            marks = {"vectorized"} if d == init.ndim - 1 and d else set()
            marks |= {"parallel"} if d == 1 else set()
            body = For(axis, size, body, frozenset(marks))
        return body

    def _step(self, scan: Stage, op: ScanOp, t: Expr) -> Statement:
        """The stages of a scan's body at one step, each after those it reads."""
        steps: list[Statement] = []
        for each in op.body:
            stage, tensor = self.schedule[each], each.outputs[0]
            in_scan = stage.attached is not None and stage.attached[0] is scan
            if stage.inlined or (stage.attached is not None and not in_scan):
                continue
            result = next((r for r, u in zip(op.outputs, op.update) if u is tensor), None)
            if result is not None:
                steps.append(self._whole_stage(stage, {each.axis[0]: t}, result))
                continue
            first = (t, *[index_const(0)] * (tensor.ndim - 1))
            self.storage.allocate(tensor, first, tensor.shape, range(1, tensor.ndim))
            steps.append(Produce(tensor.name, self._whole_stage(stage, {each.axis[0]: t})))
        return block_of(*steps)


class LoweredSchedule(NamedTuple):
    """A loop nest with the arguments of its calls."""

    name: str
    args: list[Tensor | Expr]
    device: int | None  # of CUDA; None: the CPU
    body: Statement
    buffers: list[Buffer]
    sizes: list[Expr]
    checks: list[SizeCheck]  # of the schedule
    free_axes: list[Axis]  # of stages that the schedule leaves open


def _check_arguments(schedule: Any, args: Any) -> list[Tensor]:
    """The tensors among the arguments; raises where there cannot be a function of these."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected te.create_schedule(...), got {schedule!r}")
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args: expected a list of tensors, got {args!r}")
    for position, arg in enumerate(args):
        if not isinstance(arg, Tensor) and not (isinstance(arg, Expr) and arg.op == "var"):
            raise TypeError(f"args: expected tensors, and sizes from te.var; args[{position}] is {arg!r}")
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    _check_tensors(schedule, tensors)
    return tensors


def _check_tensors(schedule: Schedule, tensors: list[Tensor]) -> None:
    """Raise unless these are results and all placeholders that they need, once each, or other placeholders."""
    own = {id(stage.op) for stage in schedule.stages}
    for tensor in tensors:
        if id(tensor.op) not in own and not isinstance(tensor.op, PlaceholderOp):
            raise ValueError(
                f"args: {tensor.name} (made at {tensor.op.line}) is neither a result of the schedule nor what "
                "one is computed from"
            )
        if tensors.count(tensor) > 1:
            raise ValueError(f"args: {tensor.name} is given twice")
    for stage in schedule.stages:
        is_needed = isinstance(stage.op, PlaceholderOp) and stage.op not in schedule.states
        if is_needed and stage.op.outputs[0] not in tensors:
            name, line = stage.op.outputs[0].name, stage.op.line
            raise ValueError(f"args: {name} (made at {line}) is read, but not among the arguments")
    for tensor in tensors:
        if tensor.op in schedule.states:
            raise ValueError(f"args: {tensor.name} is a scan's state; the scan's result is what can be asked for")
        if id(tensor.op) in own and schedule[tensor].is_inside:
            raise ValueError(
                f"args: {tensor.name} lives inside of another stage's loops and cannot be an argument"
            )
        if tensor.op in schedule.inits:
            raise ValueError(f"args: {tensor.name} is the init of a scan; it is in the first steps of the result")


def _sizes_of(schedule: Schedule, args: Sequence[Tensor | Expr], tensors: Sequence[Tensor]) -> list[Expr]:
    """All symbolic sizes of a schedule, those among the arguments first."""
    tensors = [*tensors, *(tensor for stage in schedule.stages for tensor in stage.op.outputs)]
    exprs = [arg for arg in args if isinstance(arg, Expr)]
    exprs += [extent for tensor in tensors for extent in tensor.shape]
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp):
            exprs += [axis.extent for axis in stage.op.reduce_axis if axis.extent is not None]
            exprs.append(stage.op.body)
    sizes: dict[str, Expr] = {}
    for node in (node for expr in exprs for node in walk(expr) if node.op == "var"):
        sizes.setdefault(key(node), node)
    return list(sizes.values())


def memory_checks(body: Statement) -> list[SizeCheck]:
    """The checks that the buffers of a nest are not too large for int64."""
    buffers = [each.buffer for each in all_statements(body) if isinstance(each, Allocate)]
    return [check for b in buffers for check in check_memory(b.name, b.shape, ITEM_BYTES[b.dtype])]


def lower_for(
    schedule: Schedule, args: Sequence[Tensor | Expr], name: str = "lower", device: int | None = None
) -> LoweredSchedule:
    """Lower a schedule for calls with these arguments, which are checked."""
    tensors = _check_arguments(schedule, args)
    lowering = _Lowering(schedule, tensors)
    body = lowering.run()
    open_stages = [stage for stage in schedule.stages if not stage.touched]
    free_axes = [leaf for stage in open_stages for leaf in stage.leaves if leaf.kind == "data"]
    sizes = _sizes_of(schedule, args, tensors)
    return LoweredSchedule(name, list(args), device, body, lowering.buffers, sizes, schedule.checks, free_axes)
