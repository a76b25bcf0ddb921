"""`scan`: a recurrence over the first dimension, checked when it is defined.

Every read of a state is at ``t - d`` with 1 <= d <= k, where k first steps are given; every read of another
stage of the body is at ``t``. So the order of time is the only one that the loop needs, and a state needs no
memory but its result's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upsweep._compiler.loops.expressions import Axis, Expr, binary, const, index_const, users_line
from upsweep._compiler.loops.linear import linear, same
from upsweep.te.bounds_checks import check_reads
from upsweep.te.tensors import ComputeOp, Operation, PlaceholderOp, Tensor, inputs_of, producers, reads_of, retyped


class ScanOp(Operation):
    """A recurrence; `times` are the first and the last step that are computed.

    `body` are the stages computed at each step, updates too, each after those it reads.
    """

    def __init__(self, name: str, init: list[Tensor], update: list[Tensor], state: list[Tensor]) -> None:
        super().__init__(name)
        self.init, self.update, self.state = init, update, state
        self.depth = int(linear(init[0].shape[0]).constant)
        self.length = update[0].shape[0]
        extent = binary("sub", self.length, const(self.depth, "int64"))
        self.times = const(self.depth, "int64"), linear(binary("sub", self.length, index_const(1))).expr()
        self.scan_axis = Axis(f"{name}.idx", linear(extent).expr(), "scan")
        states = {id(placeholder.op) for placeholder in state}
        self.body: list[ComputeOp] = []
        for op in producers(update):
            read = {id(tensor.op) for tensor in inputs_of(op)}
            if read & states or read & {id(stage) for stage in self.body} or any(t.op is op for t in update):
                assert isinstance(op, ComputeOp)
                self.body.append(op)
        inside = states | {id(stage) for stage in self.body}
        outer = [*init, *(t for stage in self.body for t in inputs_of(stage) if id(t.op) not in inside)]
        self.outer_inputs = list(dict.fromkeys(outer))


def _as_list(value: Any, what: str) -> list[Tensor]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    for each in values:
        if not isinstance(each, Tensor):
            raise TypeError(f"{what}: expected a tensor or a list of them, got {each!r}")
    return values


def _shape_text(tensor: Tensor) -> str:
    return f"({', '.join(map(repr, tensor.shape))})"


def _check_lists(init: list[Tensor], update: list[Tensor], state: list[Tensor]) -> None:
    if not len(init) == len(update) == len(state) or not state:
        raise ValueError(
            f"{users_line()}: scan: as many inits, updates and states, at least one of each; "
            f"got {len(init)}, {len(update)} and {len(state)}"
        )
    if len(set(state)) < len(state):
        raise ValueError(f"{users_line()}: scan: a state is given twice")
    if len(set(update)) < len(update):
        raise ValueError(f"{users_line()}: scan: an update is given twice; write a te.compute for each state")
    for each in state:
        if not isinstance(each.op, PlaceholderOp):
            raise TypeError(f"{each.op.line}: {each.name}: a state is a te.placeholder")
    for each in update:
        if not isinstance(each.op, ComputeOp):
            raise TypeError(f"{each.op.line}: {each.name}: an update is a te.compute")


def _check_shapes(init: Tensor, update: Tensor, state: Tensor, depth: Any, length: Any) -> None:
    line, own = state.op.line, f"its state {state.name} of shape {_shape_text(state)}"
    texts = {
        tensor: f"{tensor.op.line}: {what} {tensor.name} of shape {_shape_text(tensor)}"
        for what, tensor in (("init", init), ("update", update), ("state", state))
    }
    for tensor in (init, update):
        if tensor.ndim != state.ndim:
            raise ValueError(
                f"{texts[tensor]} has not the same number of dimensions as {own}, made at {line}; the first "
                "is time"
            )
    for tensor in (update, state):
        if not same(tensor.shape[0], length):
            raise ValueError(
                f"{texts[tensor]}: the first dimension of states and updates is the scan's, {length!r}"
            )
    steps = linear(init.shape[0])
    if steps.terms or steps.constant < 1 or steps.constant != depth:
        raise ValueError(
            f"{init.op.line}: init {init.name} of state {state.name}: its first dimension is how many steps are "
            f"given, an integer from 1, the same for all states; got {_shape_text(init)}"
        )
    for tensor in (init, update):
        for d in range(1, state.ndim):
            if not same(tensor.shape[d], state.shape[d]):
                raise ValueError(f"{texts[tensor]} disagrees in dimension {d} with {own}, made at {line}")
    if not init.dtype == update.dtype == state.dtype:
        raise TypeError(
            f"{line}: state {state.name} is {state.dtype}, its init {init.dtype}, its update {update.dtype}; "
            "cast them to one"
        )


def _check_time(op: ScanOp, stage: ComputeOp, read: Expr) -> None:
    """Raise where a state or a stage of the body is read at a step that is not computed yet, or not stored."""
    tensor: Tensor = read.static[0]
    time = stage.axis[0]
    offset = linear(read.args[0]).plus(linear(time), -1)
    is_state = any(tensor is each for each in op.state)
    access = f"{read.where}: {tensor.name}[{', '.join(map(repr, read.args))}] in {stage.name}"
    if offset.terms:
        expected = f"{time.name} - d with 1 <= d <= {op.depth}" if is_state else f"{time.name}"
        raise ValueError(f"{access}: the first index is time, expected {expected}")
    if is_state:
        if offset.constant >= 0:
            update = op.update[next(n for n, each in enumerate(op.state) if each is tensor)]
            raise ValueError(
                f"{access}: a state is read before the step, at {time.name} - d with 1 <= d <= {op.depth}; "
                f"for another state's new value read its update, {update.name}[{time.name}, ...], which says the "
                "order"
            )
        if -offset.constant > op.depth:
            raise ValueError(
                f"{access}: {-offset.constant} steps back, but the init gives {op.depth}; the init's first "
                "dimension is how far back a read may reach"
            )
    elif offset.constant:
        raise ValueError(
            f"{access}: {tensor.name} is computed anew at each step and read at {time.name} only; make it a state "
            "to keep it from step to step"
        )


def _check_body(op: ScanOp) -> None:
    inside = {id(stage) for stage in op.body}
    states = {id(each) for each in op.state}
    for stage in op.body:
        line = f"{stage.line}: {stage.name}"
        if not stage.axis or not same(stage.outputs[0].shape[0], op.length):
            raise ValueError(
                f"{line} reads the scan's state, so that its first dimension is the scan's, {op.length!r}; "
                f"got {_shape_text(stage.outputs[0])}"
            )
        for read in reads_of(stage.body):
            tensor = read.static[0]
            if id(tensor) in states or id(tensor.op) in inside:
                _check_time(op, stage, read)
        if any(tensor.op is stage for tensor in op.update):  # of others the schedule knows what is used
            check_reads(stage, {stage.axis[0]: op.times})
    for tensor in op.init:
        reached = {id(each.op) for each in op.state} & {id(o) for o in producers([tensor])}
        if reached:
            raise ValueError(f"{tensor.op.line}: init {tensor.name} reads the state that it begins")


def scan(
    init: Tensor | Sequence[Tensor], update: Tensor | Sequence[Tensor],
    state_placeholder: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor] | None = None, name: str = "scan",
) -> Any:  # fmt: skip
    """Define a recurrence over the first dimension.

    Parameters
    ----------
    init : Tensor or list of Tensor
        Of shape (k, ...): the first k steps of each state.
    update : Tensor or list of Tensor
        Of shape (T, ...): the value of each state at step t >= k, a `compute`.
    state_placeholder : Tensor or list of Tensor
        Placeholders of shape (T, ...), which updates read at steps t - k to t - 1.
    inputs : Tensor or list of Tensor, optional
        A hint for readers: the other tensors that the updates read, or some of them.
    name : str
        The name of the result.

    Returns
    -------
    Tensor or list of Tensor
        All steps of each state, of shape (T, ...).

    Raises
    ------
    ValueError
        A state is read at t or later, or before t - k; an index leaves its tensor; shapes disagree. The
        message begins with the line of the program that wrote it.

    Examples
    --------
    The cumulative sum over the rows of X:

    >>> import numpy as np
    >>> from upsweep import te
    >>> m, n = te.var("m"), te.var("n")
    >>> X = te.placeholder((m, n), name="X")
    >>> state = te.placeholder((m, n))
    >>> init = te.compute((1, n), lambda _, i: X[0, i])
    >>> update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    >>> result = te.scan(init, update, state, inputs=[X])
    >>> cumsum = te.build(te.create_schedule(result.op), [X, result])
    >>> cumsum(np.ones((3, 2), np.float32))
    array([[1., 1.],
           [2., 2.],
           [3., 3.]], dtype=float32)
    """
    inits, updates = _as_list(init, "init"), _as_list(update, "update")
    states = _as_list(state_placeholder, "state_placeholder")
    _check_lists(inits, updates, states)
    for each in (*states, *inits, *updates):
        if each.ndim == 0:
            raise ValueError(f"{each.op.line}: {each.name}: the first dimension of a scan is time, got ()")
    depth = linear(inits[0].shape[0]).constant
    for each_init, each_update, each_state in zip(inits, updates, states):
        retyped(each_init, each_state.dtype)
        _check_shapes(each_init, each_update, each_state, depth, states[0].shape[0])
    op = ScanOp(name, inits, updates, states)
    if inputs is not None:
        _as_list(inputs, "inputs")
    _check_body(op)
    names = [f"{name}.v{n}" for n in range(len(states))] if len(states) > 1 else [name]
    outputs = [Tensor(op, each.shape, each.dtype, own) for own, each in zip(names, updates)]
    return outputs if len(outputs) > 1 else outputs[0]
