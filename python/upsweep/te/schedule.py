"""Schedules: the stages of some results, and `cache_read`, `cache_write`, `rfactor`, which change these stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from upsweep._compiler.loops.expressions import Axis, Expr, contains, select, substitute, users_line
from upsweep._compiler.loops.linear import linear, simplified
from upsweep._compiler.loops.traversal import fold
from upsweep._utils.examples import with_example
from upsweep.te.bounds_checks import SizeCheck, check_reads
from upsweep.te.bounds_inference import Span, used_regions
from upsweep.te.scans import ScanOp
from upsweep.te.stage_loops import StageLoops, extent_of
from upsweep.te.stages import NamesOfTVM, Stage
from upsweep.te.tensors import ComputeOp, Operation, Tensor, initial_value, inputs_of, producers, reduction

_shows = partial(
    with_example,
    ">>> from upsweep import te",
    '>>> X, k = te.placeholder((8, 64), name="X"), te.reduce_axis((0, 64), name="k")',
    '>>> Y = te.compute((8,), lambda i: te.sum(X[i, k], axis=k), name="Y")',
    ">>> s = te.create_schedule(Y.op)",
)


class Schedule(NamesOfTVM):
    """The stages of some results, from `create_schedule`; ``s[tensor]`` or ``s[tensor.op]`` is one of them.

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((8,), name="X")
    >>> Y = te.compute((8,), lambda i: 2 * X[i], name="Y")
    >>> Z = te.compute((8,), lambda i: Y[i] + 1, name="Z")
    >>> s = te.create_schedule(Z.op)
    >>> s[Y].compute_inline()
    >>> s[Z].vectorize(Z.op.axis[0])
    >>> print(te.lower(s, [X, Z]))
    produce Z {
      vectorized (i, 0, 8) {
        Z[i] = (2f*X[i]) + 1f
      }
    }
    <BLANKLINE>
    """

    def __init__(self, outputs: list[Tensor]) -> None:
        self.outputs = outputs
        order: list[Operation] = []
        for op in producers(outputs):
            order += [*op.body, *(state.op for state in op.state), op] if isinstance(op, ScanOp) else [op]
        order = list(dict.fromkeys(order))
        self.scans = [op for op in order if isinstance(op, ScanOp)]
        # The scan in whose loop a stage is computed, a state is stored, or an init is computed.
        bodies: dict[Operation, ScanOp] = {stage: scan for scan in self.scans for stage in scan.body}
        self.states: dict[Operation, ScanOp] = {state.op: scan for scan in self.scans for state in scan.state}
        inits = [(init.op, scan) for scan in self.scans for init in scan.init]
        self.inits: dict[Operation, ScanOp] = {op: scan for op, scan in inits if isinstance(op, ComputeOp)}
        self.stages = [self._new_stage(op, bodies.get(op)) for op in order]
        self._stage_of = {stage.op: stage for stage in self.stages}
        self._checks: list[SizeCheck] = []
        self._narrow: dict[Tensor, ComputeOp | None] = {}
        for stage in self.stages:
            self._check_reads(stage)
        self.regions_for(outputs)
        for scan in self.scans:
            short = (
                f"{scan.line}: {scan.name}: {scan.length!r} steps, of which its init gives {scan.depth} already"
            )
            self._checks.append(SizeCheck(linear(scan.length - scan.depth).expr(), (), short))
        self._check_readers(order, bodies | self.states)

    def _new_stage(self, op: Operation, group: ScanOp | None) -> Stage:
        fixed = "it is a result of the schedule" if any(tensor.op is op for tensor in self.outputs) else ""
        for scan in self.scans:
            if any(tensor.op is op for tensor in (*scan.update, *scan.init)):
                fixed = f"it writes a state of {scan.name}, in the scan's own loop"
        time = op.axis[0] if group is not None and isinstance(op, ComputeOp) else None
        return Stage(self, op, group, time, fixed)

    def _check_reads(self, stage: Stage) -> None:
        """Check the indices of a stage, or let it compute only what is read of it, if it cannot compute all."""
        op = stage.op
        if not isinstance(op, ComputeOp):
            return
        times = {} if stage.time is None or stage.group is None else {stage.time: stage.group.times}
        if stage.fixed:
            self._checks += check_reads(op, times)
            return
        try:
            checks = check_reads(op, times)
        except ValueError:
            checks = None
        if checks == [] and all(tensor not in self._narrow for tensor in inputs_of(op)):
            return
        self._narrow[op.outputs[0]] = op

    @_shows(">>> s.regions_for([Y])", "({Tensor(name=Y, shape=(8), dtype=float32): [(0, 7)]}, [])")
    def regions_for(self, tensors: Sequence[Tensor]) -> tuple[dict[Tensor, list[Span]], list[SizeCheck]]:
        """The regions that stages compute where all of these tensors is wanted, and the checks of all indices.

        Raises ValueError where the index of one leaves its tensor.
        """
        regions = used_regions(self.stages, set(self._narrow) - set(tensors))
        narrow = [op for op in self._narrow.values() if op is not None]
        checks = [check for op in narrow for check in check_reads(op, dict(zip(op.axis, regions[op.outputs[0]])))]
        return regions, self._checks + checks

    def _check_readers(self, order: list[Operation], owners: dict[Operation, ScanOp]) -> None:
        """Raise where a stage of a scan's loop is read from outside of it."""
        for op in order:
            for tensor in inputs_of(op):
                access = f"{op.line}: {op.name} reads {tensor.name}"
                owner, init_of = owners.get(tensor.op), self.inits.get(tensor.op)
                if owner is not None and owners.get(op) is not owner:
                    raise ValueError(
                        f"{access} of {owner.name}'s loop from outside of it; read the scan's result instead"
                    )
                if init_of is not None and op is not init_of:
                    raise ValueError(
                        f"{access}, which is the init of a scan; write a te.compute of its own for it"
                    )

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        op = key.op if isinstance(key, Tensor) else key
        stage = self._stage_of.get(op) if isinstance(op, Operation) else None
        if stage is None:
            raise KeyError(f"{getattr(key, 'name', key)} is not part of this schedule")
        return stage

    def __contains__(self, tensor: object) -> bool:
        return isinstance(tensor, Tensor) and tensor.op in self._stage_of

    @_shows(">>> s.inlined(Y) is None", "True")
    def inlined(self, tensor: Tensor) -> ComputeOp | None:
        """What is computed where a tensor is read, if it is inlined."""
        stage = self._stage_of[tensor.op]
        return stage.op if stage.inlined and isinstance(stage.op, ComputeOp) else None

    @_shows(">>> [stage for scan in s.scans for stage in s.body_of(scan)]", "[]")
    def body_of(self, scan: ScanOp) -> list[Stage]:
        """The stages that are computed at each step of a scan, each after those it reads."""
        return [stage for stage in self.stages if stage.group is scan and stage.time is not None]

    @_shows(">>> s.normalize() is s", "True")
    def normalize(self) -> Schedule:
        """The schedule itself: TVM's step before its passes; here `lower` and `build` do all that is needed."""
        return self

    # ---- changes of what is computed ----

    def _replace(self, stage: Stage, body: Expr) -> None:
        """Let a stage compute its tensor in another way."""
        assert isinstance(stage.op, ComputeOp)
        op = stage.op.with_body(body)
        self._stage_of[op] = stage
        if stage.op in self.inits:
            self.inits[op] = self.inits[stage.op]
        stage.op = op

    def _insert(self, op: ComputeOp, before: Stage, like: Tensor, own: Sequence[Axis] = ()) -> Tensor:
        """Add a stage in the loop that the one of `like` is in, whose axes are the new one's `own`, in order."""
        source = self[like]
        roots = source.op.axis if isinstance(source.op, ComputeOp) else ()
        time = next((new for new, root in zip(own or op.axis, roots) if root is source.time), None)
        stage = Stage(self, op, self.states.get(like.op, source.group), time)
        self.stages.insert(self.stages.index(before), stage)
        self._stage_of[op] = stage
        tensor = Tensor(op, tuple(map(extent_of, op.axis)), like.dtype, op.name)
        if like in self._narrow:
            self._narrow[tensor] = None
        return tensor

    @_shows('>>> s.cache_read(X, "shared", [Y])', "Tensor(name=X.shared, shape=(8, 64), dtype=float32)")
    def cache_read(
        self, tensor: Tensor, scope: str, readers: Tensor | Operation | Sequence[Tensor | Operation]
    ) -> Tensor:
        """Let some stages read a copy of a tensor, which is computed where the schedule says.

        A copy of a scan's state is made in the scan's loop, by default at each step, of the steps that are read.

        Parameters
        ----------
        tensor : Tensor
            Any tensor of the schedule.
        scope : str
            A hint: on a CUDA device accesses decide the memory scope. It is part of the copy's name.
        readers : Tensor, Operation or list of them
            The stages that read the copy.

        Returns
        -------
        Tensor
            The copy, a stage of the schedule.

        Raises
        ------
        ValueError
            One of `readers` does not read the tensor.
        """
        line = users_line()
        listed = readers if isinstance(readers, Sequence) else [readers]
        stages = [self[each] for each in listed]
        if not stages:
            raise ValueError(
                f"{line}: {tensor.name}: cache_read: expected the stages that read the copy, got none"
            )
        for stage in stages:
            if not isinstance(stage.op, ComputeOp) or all(each is not tensor for each in inputs_of(stage.op)):
                raise ValueError(f"{line}: {tensor.name}: cache_read: {stage.op.name} does not read it")
        axes = tuple(Axis(f"i{d}", size) for d, size in enumerate(tensor.shape))
        op = ComputeOp(f"{tensor.name}.{scope}", axes, tensor[axes])
        copy = self._insert(op, min(stages, key=self.stages.index), tensor)

        def redirect(node: Expr, args: list[Expr]) -> Expr:
            if not args:
                return node
            static = (copy,) if node.op == "read" and node.static[0] is tensor else node.static
            return Expr(node.op, tuple(args), node.dtype, static, node.where)

        for stage in dict.fromkeys(stages):
            assert isinstance(stage.op, ComputeOp)
            self._replace(stage, fold(stage.op.body, redirect))
        return copy

    @_shows('>>> s.cache_write(Y, "local")', "Tensor(name=Y.local, shape=(8), dtype=float32)")
    def cache_write(self, tensor: Tensor, scope: str) -> Tensor:
        """Compute a tensor in another one, where the schedule says, of which it becomes a copy.

        Parameters
        ----------
        tensor : Tensor
            Of a te.compute, whose loops are not scheduled yet; the new stage has its reduction.
        scope : str
            A hint, as in `cache_read`.

        Returns
        -------
        Tensor
            What is computed, a stage of the schedule.

        Raises
        ------
        ValueError
            The tensor is not computed, or its loops are scheduled already.
        """
        stage = self[tensor]
        op = stage.op
        if not isinstance(op, ComputeOp) or stage.touched:
            raise ValueError(
                f"{users_line()}: {tensor.name}: cache_write: expected a te.compute whose loops are not scheduled "
                "yet"
            )
        axes = tuple(Axis(each.name, each.extent) for each in op.axis)
        source_op = ComputeOp(f"{tensor.name}.{scope}", axes, substitute(op.body, dict(zip(op.axis, axes))))
        source = self._insert(source_op, stage, tensor)
        self._replace(stage, source[op.axis])
        stage.reset()
        return source

    @_shows(
        ">>> outer, inner = s[Y].split(k, factor=16)",
        ">>> parts = s.rfactor(Y, inner)",
        ">>> parts.shape",
        "(16, 8)",
    )
    def rfactor(self, tensor: Tensor, axis: Axis, factor_axis: int = 0) -> Tensor:
        """Split a reduction in two: each step of one of its loops first reduces by itself.

        The steps become elements of a new tensor, which the stage then reduces; floats are summed in that order.
        All loops of the stage are open again.

        Parameters
        ----------
        tensor : Tensor
            A reduction.
        axis : Axis
            One of its reduction's loops, also one of `split`.
        factor_axis : int
            The dimension of the new tensor that the loop becomes.

        Returns
        -------
        Tensor
            The reductions of the single steps, a stage of the schedule.

        Raises
        ------
        ValueError
            The tensor is no reduction, or the axis none of its loops.
        """
        stage = self[tensor]
        op = stage.op
        what = f"{users_line()}: {tensor.name}: rfactor"
        if not isinstance(op, ComputeOp) or not op.reduce_axis:
            raise ValueError(f"{what}: only a reduction has parts, te.sum and the like in a te.compute")
        if all(leaf is not axis for leaf in stage.leaves) or axis.kind != "reduce":
            names = ", ".join(leaf.name for leaf in stage.leaves if leaf.kind == "reduce")
            raise ValueError(f"{what}: {axis!r} is none of the loops of its reduction ({names})")
        place = factor_axis + (tensor.ndim + 1 if factor_axis < 0 else 0)
        if not 0 <= place <= tensor.ndim:
            raise ValueError(
                f"{what}: factor_axis: expected one of {tensor.ndim + 1} dimensions, got {factor_axis}"
            )
        roots = [each for each in (*op.axis, *op.reduce_axis) if each is not stage.time]
        loops = StageLoops(stage, roots, [extent_of(each) for each in roots], ())
        steps = loops.extents[axis]
        own = [Axis(each.name, each.extent) for each in op.axis]
        factor = Axis(axis.name, steps)
        rest = [leaf for leaf in stage.leaves if leaf.kind == "reduce" and leaf is not axis]
        inner = [Axis(leaf.name, loops.extents[leaf], "reduce") for leaf in rest]
        index: dict[Expr, Expr] = {**dict(zip((*op.axis, *rest), (*own, *inner))), axis: factor}
        values: dict[Expr, Expr] = {**dict(zip(op.axis, own))}
        values |= {root: simplified(substitute(loops.values[root], index)) for root in op.reduce_axis}
        combiner = op.body.static[0]
        value = substitute(op.body.args[0], values)
        for guard in loops.guards:
            if contains(guard, [axis, *rest]):
                value = select(substitute(guard, index), value, initial_value(combiner, value.dtype))
        axes = (*own[:place], factor, *own[place:])
        parts_op = ComputeOp(f"{tensor.name}.rf", axes, reduction(combiner, value, inner) if inner else value)
        parts = self._insert(parts_op, stage, tensor, own)
        k = Axis(axis.name, steps, "reduce")
        self._replace(stage, reduction(combiner, parts[(*op.axis[:place], k, *op.axis[place:])], k))
        stage.reset()
        return parts


def create_schedule(ops: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """Create a schedule of some operations and of all that they need, with every loop left open.

    Parameters
    ----------
    ops : Operation, Tensor or list of them
        The results, as ``Y.op`` or ``Y``.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((8,), name="X")
    >>> Y = te.compute((8,), lambda i: 2 * X[i], name="Y")
    >>> s = te.create_schedule(Y.op)
    >>> outer, inner = s[Y].split(Y.op.axis[0], factor=4)
    >>> print(te.lower(s, [X, Y], simple_mode=True))
    produce Y {
      for (i.outer, 0, 2) {
        for (i.inner, 0, 4) {
          Y[(i.outer*4) + i.inner] = 2f*X[(i.outer*4) + i.inner]
        }
      }
    }
    <BLANKLINE>
    """
    outputs: list[Tensor] = []
    for each in ops if isinstance(ops, (tuple, list)) else [ops]:
        op = each.op if isinstance(each, Tensor) else each
        if not isinstance(op, (ComputeOp, ScanOp)):
            raise TypeError(f"ops: expected results of te.compute or te.scan, got {each!r}")
        outputs += op.outputs
    return Schedule(list(dict.fromkeys(outputs)))
