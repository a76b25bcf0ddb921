"""Recurrences as text, for whoever can hand on nothing else: torch's operations, programs in files."""

from __future__ import annotations

import functools
import json
from typing import Any

from .nodes import Node, node_of, order
from .recurrence import Recurrence

__all__ = ["parsed", "written"]


@functools.lru_cache(256)
def written(recurrence: Recurrence) -> str:
    """The recurrence as text, from which `parsed` makes it again, in any process."""
    roots = (*recurrence.states, *recurrence.outputs)
    number: dict[Node, int] = {}
    nodes = []
    for node in order(*roots):
        number[node] = len(number)
        nodes.append([node.op, [number[arg] for arg in node.args], node.static, node.dim])
    return json.dumps([recurrence.n_inputs, recurrence.n_states, [number[root] for root in roots], nodes])


@functools.lru_cache(256)
def parsed(text: str) -> Recurrence:
    """The recurrence that `written` wrote."""
    n_inputs, n_states, places, rows = json.loads(text)
    nodes: list[Node] = []
    for op, args, static, dim in rows:
        nodes.append(node_of(op, tuple(nodes[arg] for arg in args), _tuples(static), dim))
    roots = tuple(nodes[place] for place in places)
    return Recurrence(roots[:n_states], roots[n_states:], n_inputs)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
