"""Serialisation of recurrences: torch's registered operations and exported programs take them as strings."""

from __future__ import annotations

import functools
import json
from typing import Any

from upsweep._compiler.formulas.nodes import as_rows, from_rows, order
from upsweep._compiler.recurrences.recurrence import Recurrence

__all__ = ["parsed", "written"]


@functools.lru_cache(256)
def written(recurrence: Recurrence) -> str:
    """The recurrence as JSON text, which `parsed` reads in any process."""
    roots = recurrence.roots
    number = {node: place for place, node in enumerate(order(*roots))}
    places = [number[root] for root in roots]
    return json.dumps([recurrence.n_inputs, recurrence.n_states, places, as_rows(*roots)])


@functools.lru_cache(256)
def parsed(text: str) -> Recurrence:
    """The recurrence that `written` serialised."""
    n_inputs, n_states, places, rows = json.loads(text)
    nodes = from_rows((op, args, _tuples(static), dim) for op, args, static, dim in rows)
    roots = tuple(nodes[place] for place in places)
    return Recurrence(roots[:n_states], roots[n_states:], n_inputs)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
