"""Schedules: the order of the loops of each stage, and what they run on. The results stay the same.

`lowering` reads the leaf axes of each stage, their marks and thread axes, and where a stage is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from upsweep._compiler.loops.expressions import Axis, as_expr, users_line
from upsweep._compiler.loops.linear import linear
from upsweep._utils.examples import with_example
from upsweep._utils.integers import as_size
from upsweep.te.bounds_checks import SizeCheck, check_reads
from upsweep.te.scans import ScanOp
from upsweep.te.tensors import ComputeOp, Operation, Tensor, inputs_of, producers

_THREADS = {"blockIdx": "parallel", "threadIdx": "vectorized", "vthread": ""}


_shows = partial(
    with_example,
    ">>> from upsweep import te",
    '>>> X = te.placeholder((64, 32), name="X")',
    '>>> Y = te.compute((64, 32), lambda i, j: 2 * X[i, j], name="Y")',
    '>>> Z = te.compute((64, 32), lambda i, j: Y[i, j] + 1, name="Z")',
    ">>> s, (i, j) = te.create_schedule(Z.op), Z.op.axis",
)


@dataclass(frozen=True)
class Split:
    """parent = outer * size of inner + inner; the size of one of the two, `fixed`, is `n_steps`."""

    parent: Axis
    outer: Axis
    inner: Axis
    n_steps: int
    fixed: Axis


@dataclass(frozen=True)
class Fuse:
    """Two adjacent axes as one."""

    outer: Axis
    inner: Axis
    fused: Axis


def thread_axis(dom: Any = None, tag: str = "", name: str = "") -> Axis:
    """Create an axis of a GPU's grid, for `Stage.bind`.

    On the CPU ``blockIdx`` is a parallel loop, ``threadIdx`` a vector loop.

    Parameters
    ----------
    dom : (0, int), optional
        Its range; by default that of the axis which is bound to it.
    tag : str
        blockIdx.x, threadIdx.y, ...; may be the first argument.
    name : str
        Its name in messages; by default the tag.

    Returns
    -------
    Axis

    Examples
    --------
    >>> from upsweep import te
    >>> te.thread_axis("threadIdx.x").name
    'threadIdx.x'
    """
    if isinstance(dom, str):
        dom, tag = None, dom
    if tag.split(".")[0] not in _THREADS:
        raise ValueError(f"tag: expected blockIdx.*, threadIdx.* or vthread, got {tag!r}")
    extent = None if dom is None else as_expr(dom[1] if isinstance(dom, (tuple, list)) else dom, "int64")
    axis = Axis(name or tag, extent, "thread")
    axis.static = (tag,)
    return axis


class Stage:
    """The loops of one operation, as ``schedule[tensor]``.

    Its methods raise ValueError, with the line of the user's program, for an axis that is none of its loops (any
    more) and for what would change results: the steps of a scan run in order, those of a reduction in one thread.

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((64, 32), name="X")
    >>> Y = te.compute((64, 32), lambda i, j: 2 * X[i, j], name="Y")
    >>> s = te.create_schedule(Y.op)
    >>> i, j = Y.op.axis
    >>> outer, inner = s[Y].split(j, factor=8)
    >>> s[Y].parallel(i)
    >>> s[Y].vectorize(inner)
    >>> print(te.lower(s, [X, Y]))
    produce Y {
      parallel (i, 0, 64) {
        for (j.outer, 0, 4) {
          vectorized (j.inner, 0, 8) {
            Y[i, (j.outer*8) + j.inner] = 2f*X[i, (j.outer*8) + j.inner]
          }
        }
      }
    }
    <BLANKLINE>
    """

    def __init__(self, schedule: Schedule, op: Operation, group: ScanOp | None) -> None:
        self.schedule, self.op, self.group = schedule, op, group
        self.leaves: list[Axis] = []
        self.time: Axis | None = None
        if isinstance(op, ScanOp):
            self.leaves = [op.scan_axis]
        elif isinstance(op, ComputeOp):
            self.leaves = [*op.axis, *op.reduce_axis]
            if group is not None:
                self.time = self.leaves.pop(0)
        self.relations: list[Split | Fuse] = []
        self.marks: dict[Axis, str] = {}
        self.threads: dict[Axis, Axis] = {}
        self.attached: tuple[Stage, Axis] | None = None
        self.attached_line = ""  # of the user's program
        self.inlined = False
        self.touched = False

    @property
    def is_inside(self) -> bool:
        """Whether the stage is computed in another one's loops."""
        return self.group is not None or self.inlined or self.attached is not None

    def _error(self, text: str) -> ValueError:
        return ValueError(f"{users_line()}: {self.op.name}: {text}")

    def _check(self, axis: Axis, *, marks: str = "") -> int:
        """The position of a leaf; `marks` is what it is to be marked with."""
        if not isinstance(axis, Axis):
            raise TypeError(f"{users_line()}: {self.op.name}: expected an axis, got {axis!r}")
        if axis is self.time:
            assert self.group is not None
            raise self._error(
                f"its first axis, {axis.name}, is the scan's time; schedule {self.group.name}.op.scan_axis instead"
            )
        if marks and axis.kind == "scan":
            raise self._error(
                f"{marks} on the scan axis {axis.name}: its steps need each other's results, in order"
            )
        if marks and axis.kind == "reduce":
            raise self._error(f"{marks} on the reduction axis {axis.name}; its steps add to one element")
        places = [n for n, leaf in enumerate(self.leaves) if leaf is axis]
        if not places:
            names = ", ".join(leaf.name for leaf in self.leaves)
            raise self._error(f"{axis.name} is none of its loops ({names}): split, fused, or of another stage")
        self.touched = True
        return places[0]

    @_shows(">>> s[Z].split(j, factor=8)", "(j.outer, j.inner)")
    def split(self, parent: Axis, factor: int | None = None, nparts: int | None = None) -> tuple[Axis, Axis]:
        """Split an axis in two: the inner one of `factor` steps, or the outer one of `nparts`.

        Parameters
        ----------
        parent : Axis
            One of the stage's loops. Where its extent is no multiple, a condition cuts off the excess.
        factor, nparts : int
            One of the two.

        Returns
        -------
        outer, inner : Axis
        """
        if (factor is None) == (nparts is None):
            raise self._error("split: one of factor= and nparts=")
        what, value = ("nparts", nparts) if factor is None else ("factor", factor)
        try:
            n_steps = as_size(value, what, 1)
        except (TypeError, ValueError):
            raise self._error(f"split: {what} is an integer from 1, got {value!r}") from None
        place = self._check(parent)
        outer = Axis(f"{parent.name}.outer", None, parent.kind)
        inner = Axis(f"{parent.name}.inner", None, parent.kind)
        self.leaves[place : place + 1] = [outer, inner]
        self.relations.append(Split(parent, outer, inner, n_steps, fixed=outer if factor is None else inner))
        return outer, inner

    @_shows(">>> s[Z].fuse(i, j)", "i.j.fused")
    def fuse(self, outer: Axis, inner: Axis) -> Axis:
        """Fuse two adjacent axes into one, which is returned. The inner extent has to be a constant."""
        place = self._check(outer)
        if self._check(inner) != place + 1 or outer.kind != inner.kind:
            raise self._error(f"fuse: {inner.name} does not follow {outer.name}")
        fused = Axis(f"{outer.name}.{inner.name}.fused", None, outer.kind)
        self.leaves[place : place + 2] = [fused]
        self.relations.append(Fuse(outer, inner, fused))
        return fused

    @_shows(">>> s[Z].tile(i, j, 4, 8)", "(i.outer, j.outer, i.inner, j.inner)")
    def tile(self, x: Axis, y: Axis, x_factor: int, y_factor: int) -> tuple[Axis, Axis, Axis, Axis]:
        """Split two axes by these factors and reorder the parts to x_outer, y_outer, x_inner, y_inner."""
        x_outer, x_inner = self.split(x, factor=x_factor)
        y_outer, y_inner = self.split(y, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    @_shows(">>> s[Z].reorder(j, i)", ">>> s[Z].leaves", "[j, i]")
    def reorder(self, *axes: Axis) -> None:
        """Put axes into this order, from the outermost; those not named keep their positions."""
        places = sorted(self._check(axis) for axis in axes)
        if len(set(places)) < len(axes):
            raise self._error("reorder: an axis is named twice")
        if any(axis.kind == "scan" for axis in axes) and len(axes) > 1:
            raise self._error("reorder: the steps of a scan run in their order")
        for place, axis in zip(places, axes):
            self.leaves[place] = axis

    def _mark(self, axis: Axis, mark: str) -> None:
        self._check(axis, marks="" if mark == "unrolled" else mark)
        if mark != "unrolled" and axis in self.marks:
            raise self._error(f"{axis.name} is {self.marks[axis]} already")
        self.marks[axis] = mark

    @_shows(">>> s[Z].parallel(i)", ">>> s[Z].marks", "{i: 'parallel'}")
    def parallel(self, axis: Axis) -> None:
        """Distribute a loop's steps over threads."""
        self._mark(axis, "parallel")

    @_shows(">>> s[Z].vectorize(j)", ">>> s[Z].marks", "{j: 'vectorized'}")
    def vectorize(self, axis: Axis) -> None:
        """Run a loop's steps in the lanes of vectors."""
        self._mark(axis, "vectorized")

    @_shows(">>> s[Z].unroll(j)", ">>> s[Z].marks", "{j: 'unrolled'}")
    def unroll(self, axis: Axis) -> None:
        """Unroll a loop, whose extent has to be a constant."""
        self._mark(axis, "unrolled")

    @_shows(">>> s[Z].bind(i, te.thread_axis('blockIdx.x'))", ">>> s[Z].threads", "{i: blockIdx.x}")
    def bind(self, axis: Axis, thread: Axis) -> None:
        """Run a loop's steps on a thread axis, from `thread_axis`."""
        if not isinstance(thread, Axis) or thread.kind != "thread":
            raise TypeError(f"{users_line()}: {self.op.name}: bind: expected te.thread_axis(...), got {thread!r}")
        if axis in self.threads:
            raise self._error(f"bind: {axis.name} is bound to {self.threads[axis].name} already")
        if any(other.static[0] == thread.static[0] for other in self.threads.values()):
            raise self._error(f"bind: {thread.static[0]} is taken by another axis of this stage")
        mark = _THREADS[thread.static[0].split(".")[0]]
        self._check(axis, marks="bind")
        if mark:
            self._mark(axis, mark)
        self.threads[axis] = thread

    @_shows(">>> s[Y].compute_at(s[Z], i)", ">>> s[Y].attached[1]", "i")
    def compute_at(self, parent: Stage, axis: Axis) -> None:
        """Compute the stage inside a loop of another one that reads it: in each step the region that is read."""
        self._check_movable("compute_at")
        if not isinstance(parent, Stage) or parent.schedule is not self.schedule or parent is self:
            raise self._error("compute_at: expected another stage of the same schedule, as s[...]")
        inside = parent.group or (parent.op if isinstance(parent.op, ScanOp) else None)
        if self.group is not None and inside is not self.group:
            raise self._error(
                f"compute_at: the body of {self.group.name} stays in its loop; {parent.op.name} is outside of it"
            )
        if isinstance(parent.op, ScanOp) and self.group is not None and axis is not parent.leaves[-1]:
            raise self._error("compute_at: a stage of the body needs the innermost loop of the scan axis")
        if not any(leaf is axis for leaf in parent.leaves):
            names = ", ".join(leaf.name for leaf in parent.leaves)
            raise self._error(f"compute_at: {axis!r} is none of the loops of {parent.op.name} ({names})")
        self.attached, self.inlined, parent.touched = (parent, axis), False, True
        self.attached_line = users_line()

    @_shows(">>> s[Y].compute_inline()", ">>> s[Y].inlined", "True")
    def compute_inline(self) -> None:
        """Compute the stage's elements where they are read, without memory."""
        self._check_movable("compute_inline")
        if isinstance(self.op, ComputeOp) and self.op.reduce_axis:
            raise self._error("compute_inline: a reduction needs memory of its own")
        self.inlined, self.attached = True, None

    @_shows(">>> s[Y].compute_root()", ">>> s[Y].inlined", "False")
    def compute_root(self) -> None:
        """Compute all of the stage before those that read it, which is the default."""
        self.inlined, self.attached = False, None

    def _check_movable(self, what: str) -> None:
        if not isinstance(self.op, ComputeOp):
            raise self._error(f"{what}: only a te.compute can be moved")
        for scan in self.schedule.scans:
            if any(tensor.op is self.op for tensor in (*scan.update, *scan.init)):
                raise self._error(f"{what}: it writes a state of {scan.name}, in the scan's own loop")
        if any(tensor.op is self.op for tensor in self.schedule.outputs):
            raise self._error(f"{what}: it is a result of the schedule")


class Schedule:
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
        self.checks: list[SizeCheck] = []
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
        self.stages = [Stage(self, op, bodies.get(op)) for op in order]
        for stage in self.stages:
            self._check_sizes(stage)
        self._check_readers(order, bodies | self.states)

    def _check_sizes(self, stage: Stage) -> None:
        op = stage.op
        if isinstance(op, ComputeOp):
            self.checks += check_reads(op, {} if stage.group is None else {op.axis[0]: stage.group.times})
        if isinstance(op, ScanOp):
            short = f"{op.line}: {op.name}: {op.length!r} steps, of which its init gives {op.depth} already"
            self.checks.append(SizeCheck(linear(op.length - op.depth).expr(), (), short))

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
        for stage in self.stages:
            if stage.op is op:
                return stage
        raise KeyError(f"{getattr(key, 'name', key)} is not part of this schedule")


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
