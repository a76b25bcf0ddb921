"""Stages of a schedule: the order of an operation's loops, and what they run on. The results stay the same.

`lowering` reads the leaf axes of each stage, their marks and thread axes, and where a stage is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from upsweep._compiler.loops.expressions import Axis, Expr, as_expr, atoms, users_line
from upsweep._utils.examples import with_example
from upsweep._utils.integers import as_size
from upsweep.te.scans import ScanOp
from upsweep.te.tensors import ComputeOp, Operation

_THREADS = {"blockIdx": "parallel", "threadIdx": "vectorized", "vthread": ""}


_shows = partial(
    with_example,
    ">>> from upsweep import te",
    '>>> X = te.placeholder((64, 32), name="X")',
    '>>> Y = te.compute((64, 32), lambda i, j: 2 * X[i, j], name="Y")',
    '>>> Z = te.compute((64, 32), lambda i, j: Y[i, j] + 1, name="Z")',
    ">>> s, (i, j) = te.create_schedule(Z.op), Z.op.axis",
)


# Methods that TVM's stages and schedules have besides, and what to do instead.
_ABSENT = {
    "create_group": "move each stage by its own compute_at",
    "tensorize": "write the operation as a te.compute; vectorize and parallel choose how it runs",
    "prefetch": "on a CUDA device inputs of a scan are loaded ahead by themselves",
    "double_buffer": "on a CUDA device inputs of a scan are loaded ahead by themselves",
    "storage_align": "memory is laid out by the tensor's shape",
}


class NamesOfTVM:
    """The message for a method of TVM that has no meaning."""

    if not TYPE_CHECKING:  # which knows all attributes

        def __getattr__(self, name: str) -> Any:
            remedy = f"; {_ABSENT[name]}" if name in _ABSENT else ""
            raise AttributeError(f"{users_line()}: te's {type(self).__name__} has no {name}{remedy}")


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


class Stage(NamesOfTVM):
    """The loops of one operation, as ``schedule[tensor]``.

    Its methods raise ValueError, with the line of the user's program, for an axis that is none of its loops (any
    more) and for what would change results: the steps of a scan run in order, those of a reduction in one thread.
    `set_scope`, `set_store_predicate`, `pragma`, `env_threads`, and `bind` of a reduction are hints: they are kept
    in `hints`, and change neither the nest nor its results.

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

    def __init__(
        self, schedule: object, op: Operation, group: ScanOp | None = None, time: Axis | None = None,
        fixed: str = "",
    ) -> None:  # fmt: skip
        # `op` is what the stage computes now: `Schedule.rfactor` and `cache_read` change it. `group` is the scan
        # whose loop it is in, `time` its axis that is the scan's step, if it has one. `fixed` says why it cannot
        # be moved.
        self.schedule, self.op, self.group, self.time, self.fixed = schedule, op, group, time, fixed
        self.hints: list[tuple[Any, ...]] = []
        self.env: tuple[Axis, ...] = ()
        self.attached: tuple[Stage, Axis] | None = None
        self.attached_line = ""  # of the user's program
        self.inlined = False
        self.reset()

    @_shows(">>> s[Z].reorder(j, i)", ">>> s[Z].reset()", ">>> s[Z].leaves", "[i, j]")
    def reset(self) -> None:
        """Leave all loops of the operation open."""
        self.leaves: list[Axis] = []
        if isinstance(self.op, ScanOp):
            self.leaves = [self.op.scan_axis]
        elif isinstance(self.op, ComputeOp):
            self.leaves = [axis for axis in (*self.op.axis, *self.op.reduce_axis) if axis is not self.time]
        self.relations: list[Split | Fuse] = []
        self.marks: dict[Axis, str] = {}
        self.threads: dict[Axis, Axis] = {}
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
                f"its axis {axis.name} is the scan's time; schedule {self.group.name}.op.scan_axis instead"
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
        """Unroll a loop, whose extent has to be a constant; one of more than 128 steps stays a loop."""
        self._mark(axis, "unrolled")

    @_shows(">>> s[Z].bind(i, te.thread_axis('blockIdx.x'))", ">>> s[Z].threads", "{i: blockIdx.x}")
    def bind(self, axis: Axis, thread: Axis) -> None:
        """Run a loop's steps on a thread axis, from `thread_axis`; those of a reduction stay in one thread."""
        if not isinstance(thread, Axis) or thread.kind != "thread":
            raise TypeError(f"{users_line()}: {self.op.name}: bind: expected te.thread_axis(...), got {thread!r}")
        if axis in self.threads:
            raise self._error(f"bind: {axis.name} is bound to {self.threads[axis].name} already")
        if any(other.static[0] == thread.static[0] for other in self.threads.values()):
            raise self._error(f"bind: {thread.static[0]} is taken by another axis of this stage")
        mark = _THREADS[thread.static[0].split(".")[0]]
        if isinstance(axis, Axis) and axis.kind == "reduce":
            self._check(axis)
            self.hints.append(("bind", axis, thread))
            return
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
        around = parent.attached
        while around is not None:
            if around[0] is self:
                raise self._error(f"compute_at: {parent.op.name} is computed in its own loops")
            around = around[0].attached
        inside = parent.group or (parent.op if isinstance(parent.op, ScanOp) else None)
        if self.group is not None and inside is not self.group:
            raise self._error(
                f"compute_at: the body of {self.group.name} stays in its loop; {parent.op.name} is outside of it"
            )
        if isinstance(parent.op, ScanOp) and self.group is not None and axis is not parent.leaves[-1]:
            raise self._error("compute_at: a stage of the body needs the innermost loop of the scan axis")
        parent.touched, self.attached_line = True, users_line()
        if any(thread is axis for thread in parent.env):  # outside of the scan's loop: once, before it
            self.hints.append(("compute_at", parent.op, axis))
            self.compute_root()
            return
        if not any(leaf is axis for leaf in parent.leaves):
            names = ", ".join(leaf.name for leaf in parent.leaves)
            raise self._error(f"compute_at: {axis!r} is none of the loops of {parent.op.name} ({names})")
        self.attached, self.inlined = (parent, axis), False

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
        if self.fixed:
            raise self._error(f"{what}: {self.fixed}")

    @_shows('>>> s[Y].set_scope("shared")', ">>> s[Y].hints", "[('set_scope', 'shared')]")
    def set_scope(self, scope: str) -> None:
        """A hint: on a CUDA device accesses decide the memory scope of each buffer."""
        self.hints.append(("set_scope", scope))

    @_shows('>>> s[Y].pragma(Y.op.axis[0], "unroll_explicit")', ">>> len(s[Y].hints)", "1")
    def pragma(self, axis: Axis, name: str, value: Any = None) -> None:
        """A hint to TVM's compiler."""
        self.hints.append(("pragma", axis, name, value))

    @_shows('>>> s[Y].set_store_predicate(te.thread_axis("threadIdx.y").equal(0))', ">>> len(s[Y].hints)", "1")
    def set_store_predicate(self, predicate: Expr) -> None:
        """A hint: which threads store. Here one thread computes and stores each element.

        Raises
        ------
        ValueError
            The predicate is about other values than thread axes.
        """
        if not (isinstance(predicate, Expr) and predicate.dtype == "bool"):
            raise TypeError(f"{users_line()}: {self.op.name}: set_store_predicate: expected a condition")
        if not all(isinstance(atom, Axis) and atom.kind == "thread" for atom in atoms(predicate)):
            raise self._error(
                f"set_store_predicate: {predicate!r} is not about thread axes alone, and elements that are not "
                "stored would have no value; write te.select(condition, value, other) in its te.compute"
            )
        self.hints.append(("set_store_predicate", predicate))

    @_shows(
        ">>> state = te.placeholder((8,))",
        ">>> update = te.compute((8,), lambda t: state[t - 1] + 1)",
        ">>> scan = te.scan(te.compute((1,), lambda t: 0.0), update, state)",
        ">>> stage = te.create_schedule(scan.op)[scan]",
        ">>> stage.env_threads(te.thread_axis('blockIdx.x'))",
        ">>> stage.env",
        "(blockIdx.x,)",
    )
    def env_threads(self, threads: Axis | Sequence[Axis]) -> None:
        """Name the thread axes that a scan's whole loop runs in.

        A hint, but `compute_at` takes them as loops around the scan: what is computed there is computed once,
        before the scan.
        """
        if not isinstance(self.op, ScanOp):
            raise self._error("env_threads: only of a te.scan; bind the loops of a te.compute")
        axes = tuple(threads) if isinstance(threads, (tuple, list)) else (threads,)
        for thread in axes:
            if not isinstance(thread, Axis) or thread.kind != "thread":
                raise TypeError(f"{users_line()}: {self.op.name}: env_threads: expected te.thread_axis(...)")
        self.env = axes
        self.hints.append(("env_threads", axes))
