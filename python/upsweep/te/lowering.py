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
    constant_of,
    contains,
    index_const,
    key,
    load,
)
from upsweep._compiler.loops.linear import Linear, last_index, linear, same, simplified
from upsweep._compiler.loops.ranges import Ranges
from upsweep._compiler.loops.rewrite import allocate_around, block_of
from upsweep._compiler.loops.statements import Allocate, Buffer, For, If, Produce, Statement, Store, all_statements
from upsweep._compiler.loops.traversal import walk
from upsweep.te.bounds_checks import SizeCheck, check_memory
from upsweep.te.bounds_inference import (
    Consumer,
    Span,
    consumer_of,
    expanded_reads,
    length_of,
    region_of,
    whole,
)  # fmt: skip
from upsweep.te.scans import ScanOp
from upsweep.te.schedule import Schedule
from upsweep.te.stage_loops import StageLoops, extent_of
from upsweep.te.stages import Stage
from upsweep.te.storage import StorageMap
from upsweep.te.strip_mining import find_strips
from upsweep.te.tensors import COMBINERS, ComputeOp, PlaceholderOp, Tensor, initial_value

_MAX_UNROLLED = 128


# Statements that are computed at a loop, by its leaf and depth.
Attach = Callable[[Axis, int], Sequence[Statement]]


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

    def __init__(self, schedule: Schedule, args: Sequence[Tensor], regions: dict[Tensor, list[Span]]) -> None:
        self.schedule = schedule
        self.regions = regions  # what is computed of each tensor
        self.storage = StorageMap(schedule.inlined)
        self.ranges: dict[Axis, Span] = {}  # of the loops around what is being written
        self.at: dict[tuple[Stage, Axis], list[Stage]] = {}
        self.position = {stage: n for n, stage in enumerate(schedule.stages)}
        # Regions that a stage stays inside of: what is used, and what it may read of copies in loops around it.
        self.bounds = {s: [regions[s.op.outputs[0]]] for s in schedule.stages if isinstance(s.op, ComputeOp)}
        self.written: set[Stage] = set()
        names = [tensor.name for tensor in args]
        counts = [names[:n].count(name) for n, name in enumerate(names)]  # placeholder, placeholder_1, ...
        names = [f"{name}_{count}" if count else name for name, count in zip(names, counts)]
        self.buffers = [Buffer(name, tensor.shape, tensor.dtype) for name, tensor in zip(names, args)]
        for tensor, buffer in zip(args, self.buffers):
            self.storage.assign(tensor, buffer)
        for stage in schedule.stages:
            place = stage.attached
            if stage.group is not None and stage.time is None and place is None and not stage.inlined:
                scan = schedule[stage.group]  # a copy of its state
                place = scan, scan.leaves[-1]
            if place is not None:
                self.at.setdefault(place, []).append(stage)

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
        return self._stage(stage, self.regions[stage.op.outputs[0]], fixed or {}, target)

    def _stage(
        self, stage: Stage, region: Sequence[Span], fixed: dict[Expr, Expr], target: Tensor | None = None
    ) -> Statement:
        """The loops of a compute over a region, stored to `target`; `fixed` are values of axes without a loop."""
        op = stage.op
        assert isinstance(op, ComputeOp)
        self.written.add(stage)
        first = [low for low, _ in region]
        extents = self._extents(op.outputs[0], region)
        looped = [(axis, extent) for axis, extent in zip(op.axis, extents) if axis not in fixed]
        looped += [(axis, extent_of(axis)) for axis in op.reduce_axis]
        loops = StageLoops(stage, [axis for axis, _ in looped], [extent for _, extent in looped], self.ranges)
        values = dict(fixed)
        for axis, low in zip(op.axis, first):
            if axis not in fixed:
                values[axis] = simplified(binary("add", low, loops.values[axis]))
        for axis in op.reduce_axis:
            values[axis] = loops.values[axis]
        loops.guards += self._region_guards(stage, op.axis, values, region)
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
            return self._attached(
                self.at[stage, leaf], self._stages_inside(stage, inside), [Consumer(op, roots, inner)]
            )

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
            start = initial_value(combiner, dtype)
            begin = self._nest(
                loops, data_leaves, lambda: Store(*element(), start), None, data_guards, depth=outside
            )
            return block_of(begin, self._nest(loops, stage.leaves, accumulate, attach, depth=outside))

        return self._nest(loops, stage.leaves[:outside], initialise_and_accumulate, attach)

    def _extents(self, tensor: Tensor, region: Sequence[Span]) -> list[Expr]:
        """The extents of a region; none is negative, whatever the sizes."""
        # Those of scans are not: it is checked at the call.
        steps = [linear(extent_of(scan.scan_axis)) for scan in self.schedule.scans]
        extents = []
        for size, (low, high), (first, last) in zip(tensor.shape, whole(tensor), region):
            length = length_of(first, last)
            is_whole = same(first, low) and same(last, high)
            if is_whole or any(length.plus(least, -1).at_least_zero() for least in (Linear(0), *steps)):
                extents.append(size if is_whole else length.expr())
            else:
                extents.append(binary("max", length.expr(), index_const(0)))
        return extents

    def _region_guards(
        self, stage: Stage, axes: Sequence[Axis], values: dict[Expr, Expr], region: Sequence[Span]
    ) -> list[Expr]:
        """The conditions that keep a region inside of its bounds, which its readers' guards let it leave."""
        guards = []
        for bounds in self.bounds[stage]:
            for axis, (first, last), (low, high) in zip(axes, region, bounds):
                if axis is stage.time or (same(first, low) and same(last, high)):
                    continue
                ranges = Ranges(self.ranges)
                if not ranges.always(linear(high).plus(linear(last), -1)):
                    guards.append(binary("lt", values[axis], linear(high).plus(Linear(1)).expr()))
                if not ranges.always(linear(first).plus(linear(low), -1)):
                    guards.append(binary("ge", values[axis], low))
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
        if "unrolled" in marks and size is None:
            raise ValueError(
                f"{stage.op.line}: {stage.op.name}: unroll: {axis.name} has {extent!r} steps; expected a constant"
            )
        if size is not None and size > _MAX_UNROLLED:
            marks = marks - {"unrolled"}
        if any(isinstance(inner, (Produce, Allocate)) for inner in all_statements(body)):
            marks = marks - {"vectorized"}  # lanes would share the memory of what is computed inside
        return For(axis, extent, body, marks, stage.threads[leaf].static[0] if leaf in stage.threads else "")

    # ---- stages computed at a loop ----

    def _stages_inside(self, stage: Stage, leaves: Sequence[Axis]) -> list[Stage]:
        """The stages that are computed in some loops of a stage, and in their loops."""
        inside = [each for leaf in leaves for each in self.at.get((stage, leaf), [])]
        return inside + [deeper for each in inside for deeper in self._stages_inside(each, each.leaves)]

    def _attached(
        self, producers: Sequence[Stage], inside: Sequence[Stage], consumers: list[Consumer]
    ) -> list[Statement]:
        """The stages that are computed at a loop, for the consumers in it and the stages further `inside`."""
        regions: list[tuple[Stage, list[Span]]] = []
        inside = [*inside, *(deeper for each in producers for deeper in self._stages_inside(each, each.leaves))]
        for producer in sorted({*producers, *inside}, key=self.position.__getitem__, reverse=True):
            op = producer.op
            assert isinstance(op, ComputeOp)
            tensor = op.outputs[0]
            region = region_of(tensor, consumers, self.ranges, self.schedule.inlined, self.bounds[producer][-1])
            consumers.append(consumer_of(op, region, {}))
            if producer not in producers:
                spans = zip(region, self.bounds[producer][-1])
                if not all(same(x, y) for span, known in spans for x, y in zip(span, known)):
                    self.bounds[producer].append(region)
                continue
            self._check_all_readers(producer, consumers)
            extents = self._extents(tensor, region)
            dims = [d for d, extent in enumerate(extents) if constant_of(extent) != 1]
            self.storage.allocate(tensor, [low for low, _ in region], extents, dims, scope=-1)
            regions.append((producer, region))
        steps: list[Statement] = []
        for producer, region in reversed(regions):
            op = producer.op
            assert isinstance(op, ComputeOp)
            fixed: dict[Expr, Expr] = {
                axis: low for axis, (low, _) in zip(op.axis, region) if axis is producer.time
            }
            steps.append(Produce(op.name, self._stage(producer, region, fixed)))
        return steps

    def _check_all_readers(self, producer: Stage, consumers: list[Consumer]) -> None:
        inside = {id(consumer.op) for consumer in consumers}
        for stage in self.schedule.stages:
            op = stage.op
            if isinstance(op, ComputeOp) and not stage.inlined and id(op) not in inside:
                reads = expanded_reads(op.body, self.schedule.inlined)
                if any(read.static[0] is producer.op.outputs[0] for read in reads):
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
            body = self.schedule.body_of(op)
            consumers = [self._body_consumer(each, t) for each in body]
            producers = [each for each in self.at[stage, leaf] if each.time is None]
            inside = [deeper for each in body for deeper in self._stages_inside(each, each.leaves)]
            return self._attached(producers, [each for each in inside if each.time is None], consumers)

        steps.append(self._nest(loops, stage.leaves, lambda: self._step(stage, op, t), attach))
        produce = Produce(op.name, block_of(*steps))
        find_strips(produce, lambda loop: not self._is_scheduled(loop))
        return produce

    def _body_consumer(self, stage: Stage, t: Expr) -> Consumer:
        """A stage of a scan's body, computed at step t."""
        assert isinstance(stage.op, ComputeOp) and stage.time is not None
        return consumer_of(stage.op, self.regions[stage.op.outputs[0]], {stage.time: t})

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
        for stage in self.schedule.body_of(op):
            tensor = stage.op.outputs[0]
            in_scan = stage.attached is not None and stage.attached[0] is scan
            if stage.inlined or (stage.attached is not None and not in_scan):
                continue
            assert isinstance(stage.op, ComputeOp) and stage.time is not None
            fixed: dict[Expr, Expr] = {stage.time: t}
            result = next((r for r, u in zip(op.outputs, op.update) if u is tensor), None)
            if result is not None:
                steps.append(self._whole_stage(stage, fixed, result))
                continue
            first = [t if axis is stage.time else index_const(0) for axis in stage.op.axis]
            dims = [d for d, axis in enumerate(stage.op.axis) if axis is not stage.time]
            self.storage.allocate(tensor, first, tensor.shape, dims)
            steps.append(Produce(tensor.name, self._whole_stage(stage, fixed)))
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
    for tensor in tensors:
        if tensor not in schedule and not isinstance(tensor.op, PlaceholderOp):
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
        if tensor in schedule and schedule[tensor].is_inside:
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
    regions, checks = schedule.regions_for(tensors)
    lowering = _Lowering(schedule, tensors, regions)
    body = lowering.run()
    open_stages = [stage for stage in schedule.stages if not stage.touched]
    free_axes = [leaf for stage in open_stages for leaf in stage.leaves if leaf.kind == "data"]
    sizes = _sizes_of(schedule, args, tensors)
    return LoweredSchedule(name, list(args), device, body, lowering.buffers, sizes, checks, free_axes)
