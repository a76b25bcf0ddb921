"""States of a scan in registers or shared memory, so that no step reads the result it has just written.

    for (t) { scan[t + 1, i] = f(scan[t, i], x[t + 1, i]) }

becomes, with buffers in a thread's registers or a block's shared memory,

    scan.1[i] = scan[0, i]
    for (t) { scan.new[i] = f(scan.1[i], x[t + 1, i]);  scan[t + 1, i] = scan.new[i];  scan.1[i] = scan.new[i] }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.memory_scopes import memory_scopes
from upsweep._compiler.loops.accesses import Access, accesses_by_buffer
from upsweep._compiler.loops.expressions import (
    Axis,
    Expr,
    constant_of,
    constant_product,
    contains,
    index_const,
    load,
    substitute,
)
from upsweep._compiler.loops.linear import Linear, linear, simplified
from upsweep._compiler.loops.rewrite import (
    allocate_around,
    block_of,
    mapped,
    paths_to,
    replace_statement,
    rewritten,
)
from upsweep._compiler.loops.statements import Block, Buffer, For, If, Statement, Store, loops_in, stores_in
from upsweep._compiler.loops.traversal import walk

MAX_UNROLLED = 16
_MAX_BACK = 8


def scan_loops(statement: Statement) -> list[For]:
    """The loops over the steps of scans."""
    return [loop for loop in loops_in(statement) if loop.axis.kind == "scan"]


def is_long(loop: For) -> bool:
    """Whether a loop of no thread axis is too long to be unrolled."""
    return not loop.tag and (constant_of(loop.extent) or MAX_UNROLLED + 1) > MAX_UNROLLED


@dataclass
class _State:
    """A buffer that a scan writes at step t and reads at earlier steps."""

    buffer: Buffer
    time: Linear
    depth: int
    new: Buffer
    before: list[Buffer]
    path: tuple[Statement, ...]  # the loops over its elements, and conditions
    indices: tuple[Expr, ...]  # after the step


def keep_states(statement: Statement, axes: Mapping[str, Axis]) -> Statement:
    """The kernel with those states kept that fit the memory of threads or blocks."""
    loops = scan_loops(statement)
    if not loops:
        return statement
    outer, step = loops[0], loops[-1]
    written = dict.fromkeys(store.buffer for store in stores_in(step))
    accesses = accesses_by_buffer(step)
    states = [state for buffer in written if (state := _state(buffer, accesses[buffer], step)) is not None]
    while states:
        result = _with_states(statement, outer, step, states)
        scopes = memory_scopes(result, axes)
        too_large = [s for s in states if any(scopes[b].level == "grid" for b in (s.new, *s.before))]
        if not too_large:
            return result
        states = [state for state in states if state not in too_large]
    return statement


def _state(buffer: Buffer, accesses: list[Access], step: For) -> _State | None:
    """The state that a buffer's accesses in the loop describe; None if it is none, or cannot be kept."""
    stores = [access for access in accesses if access.is_store]
    if not buffer.shape or not contains(stores[0].indices[0], [step.axis]):
        return None
    time = stores[0].forms[0]
    backs = []
    for access in accesses:
        distance = time.plus(access.forms[0], -1)
        if distance.terms or distance.constant < 0 or (access.is_store and distance.constant):
            return None
        backs.append(distance.constant)
    depth = max(backs)
    if not 1 <= depth <= _MAX_BACK:
        return None
    store, path = next((s, p) for s, p in paths_to(step.body) if s.buffer is buffer)
    n_elements = constant_product(each.extent for each in path if isinstance(each, For) and not each.tag)
    if n_elements is None or n_elements > MAX_UNROLLED:  # of a thread
        return None
    shape = buffer.shape[1:]
    before = [Buffer(f"{buffer.name}.{d + 1}", shape, buffer.dtype) for d in range(depth)]
    new = Buffer(f"{buffer.name}.new", shape, buffer.dtype)
    return _State(buffer, time, depth, new, before, path, store.indices[1:])


def around(path: tuple[Statement, ...], body: Statement) -> Statement:
    """Loops and conditions like those of a path around a body; loops of no thread axis are unrolled."""
    for each in reversed(path):
        if isinstance(each, For):
            marks = each.marks if each.tag else frozenset({"unrolled"})
            body = For(each.axis, each.extent, body, marks, each.tag)
        elif isinstance(each, If):
            body = If(each.condition, body)
    return body


def _with_states(statement: Statement, outer: Statement, step: For, states: list[_State]) -> Statement:
    def change(expr: Expr) -> Expr:
        values = {}
        for node in walk(expr):
            if node.op == "load" and node not in values:
                state = next((s for s in states if s.buffer is node.static[0]), None)
                if state is not None:
                    back = state.time.plus(linear(node.args[0]), -1).constant
                    buffer = state.before[back - 1] if back else state.new
                    values[node] = load(buffer, tuple(change(index) for index in node.args[1:]))
        return substitute(expr, values)

    def redirected(each: Statement) -> Statement:
        if isinstance(each, For) and not (each.tag or each.axis.kind == "scan" or is_long(each)):
            return For(each.axis, each.extent, each.body, each.marks | {"unrolled"})
        if isinstance(each, Store):
            state = next((s for s in states if s.buffer is each.buffer), None)
            if state is not None:
                return Store(state.new, each.indices[1:], each.value)
        return each

    body = rewritten(mapped(step.body, change), redirected)
    body = block_of(body, *(around(state.path, _commit(state)) for state in states))
    scans = [loop.axis for loop in scan_loops(outer)]
    zeros: dict[Expr, Expr] = {axis: index_const(0) for axis in scans}
    first = []
    for state in states:  # without the conditions on the step
        path = [each for each in state.path if not (isinstance(each, If) and contains(each.condition, scans))]
        first.append(around(tuple(path), _initialise(state, zeros)))
    new_outer = replace_statement(outer, step, For(step.axis, step.extent, body, step.marks, step.tag))
    result = replace_statement(statement, outer, block_of(*first, new_outer))
    buffers = [buffer for state in states for buffer in (state.new, *state.before)]
    return allocate_around(buffers[::-1], result)


def _commit(state: _State) -> Statement:
    """The end of a step: the new value is stored to the result, and the earlier ones move back by one step."""
    value = load(state.new, state.indices)
    steps: list[Statement] = [Store(state.buffer, (simplified(state.time.expr()), *state.indices), value)]
    for d in range(state.depth - 1, 0, -1):
        steps.append(Store(state.before[d], state.indices, load(state.before[d - 1], state.indices)))
    steps.append(Store(state.before[0], state.indices, value))
    return Block(steps)


def _initialise(state: _State, zeros: dict[Expr, Expr]) -> Statement:
    """The states before the loop: the initial steps."""
    steps: list[Statement] = []
    for d, buffer in enumerate(state.before):
        time = substitute(state.time.plus(Linear(d + 1), -1).expr(), zeros)
        steps.append(Store(buffer, state.indices, load(state.buffer, (simplified(time), *state.indices))))
    return block_of(*steps)
