"""Recurrences: state[t] = f(state[t-1], x[t]) and out[t] = g(state[t-1], x[t]), with f and g as expression graphs.

The nodes are those of `_compiler.formulas`, of dimension 1. States are variables of kind "i", inputs of kind "j".
Parameters are of kind "p": numbers that a call passes beside its arrays, then those that were lifted out of the
expressions. Other numbers need no other code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._compiler.formulas.cotangents import pull_back
from upsweep._compiler.formulas.derivative import SCALAR_RULES
from upsweep._compiler.formulas.nodes import Node, as_rows, constant, from_rows, make, order, substitute, variable
from upsweep._compiler.formulas.reference import evaluate as evaluate_formula
from upsweep._compiler.recurrences.integers import integer, integer_variable, is_integer


def state(position: int) -> Node:
    """The variable of a state before the step."""
    return variable(position, 1, "i")


def input_(position: int) -> Node:
    """The variable of an input at the step."""
    return variable(position, 1, "j")


@dataclass(frozen=True)
class Recurrence:
    """What one step computes from the states and the inputs; it need not read all of its `n_inputs` inputs."""

    states: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_inputs: int

    @property
    def n_states(self) -> int:
        return len(self.states)

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*self.states, *self.outputs)

    @property
    def integer_states(self) -> tuple[bool, ...]:
        """Which states are integers."""
        return _integers_of(self)[0]

    @property
    def integer_outputs(self) -> tuple[bool, ...]:
        return _integers_of(self)[1]

    @property
    def integer_inputs(self) -> tuple[bool, ...]:
        return _integers_of(self)[2]

    @property
    def has_integers(self) -> bool:
        """Whether it is computed in words of 64 bits."""
        return _integers_of(self)[3]

    def rewritten(self, nodes: Mapping[Node, Node], n_inputs: int | None = None) -> Recurrence:
        """The recurrence with some nodes replaced by others."""
        new = tuple(substitute(root, {**nodes}) for root in self.roots)
        k = self.n_states
        return Recurrence(new[:k], new[k:], self.n_inputs if n_inputs is None else n_inputs)


@functools.lru_cache(512)
def _integers_of(recurrence: Recurrence) -> tuple[tuple[bool, ...], tuple[bool, ...], tuple[bool, ...], bool]:
    """Which states, outputs and inputs are integers, and whether there is any integer."""
    nodes = order(*recurrence.roots)
    inputs = {n.static[0] for n in nodes if n.op == "variable" and n.static[1] == "j" and is_integer(n)}
    return (
        tuple(map(is_integer, recurrence.states)), tuple(map(is_integer, recurrence.outputs)),
        tuple(n in inputs for n in range(recurrence.n_inputs)), any(map(is_integer, nodes)),
    )  # fmt: skip


@functools.lru_cache(256)
def written(recurrence: Recurrence) -> str:
    """The recurrence as JSON text, which `parsed` reads: torch's operations and cache keys take strings."""
    number = {node: place for place, node in enumerate(order(*recurrence.roots))}
    places = [number[root] for root in recurrence.roots]
    return json.dumps([recurrence.n_inputs, recurrence.n_states, places, as_rows(*recurrence.roots)])


@functools.lru_cache(256)
def parsed(text: str) -> Recurrence:
    """The recurrence that `written` serialised, in any process."""
    n_inputs, n_states, places, rows = json.loads(text)
    nodes = from_rows((op, args, _tuples(static), dim) for op, args, static, dim in rows)
    roots = tuple(nodes[place] for place in places)
    return Recurrence(roots[:n_states], roots[n_states:], n_inputs)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# Numbers that stay in the code: it is shorter with them, and many recurrences have them.
_INLINE = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def _is_inline(number: float) -> bool:
    return number in _INLINE or number != number


class Parameter(NamedTuple):
    """A number that a call passes as its parameter at this position."""

    place: int


@functools.lru_cache(512)
def parameters_of(numbers: tuple[float, ...]) -> tuple[tuple[float | Parameter, ...], tuple[float, ...]]:
    """Numbers with those that need not stay in the code as parameters; and the parameters, each number once.

    `lifted` makes the same choice. So the code with parameters is that which it makes of an update with numbers.
    """
    places: dict[float, Parameter] = {}
    pattern = tuple(x if _is_inline(x) else places.setdefault(x, Parameter(len(places))) for x in numbers)
    return pattern, tuple(places)


@functools.lru_cache(512)
def with_parameters(recurrence: Recurrence, count: int) -> Recurrence:
    """The recurrence with its last `count` inputs as parameters."""
    first = recurrence.n_inputs - count
    return recurrence.rewritten({input_(first + n): variable(n, 1, "p") for n in range(count)}, first)


@functools.lru_cache(512)
def n_parameters(recurrence: Recurrence) -> int:
    """How many of the parameters of a call the recurrence needs, from the first to the last that it reads."""
    nodes = order(*recurrence.roots)
    return max((n.static[0] + 1 for n in nodes if n.op == "variable" and n.static[1] == "p"), default=0)


@functools.lru_cache(256)
def lifted(recurrence: Recurrence) -> tuple[Recurrence, tuple[float, ...]]:
    """The recurrence with its numbers as further parameters, and the numbers: other numbers need no other code."""
    first = n_parameters(recurrence)
    parameters: dict[float, Node] = {}
    replaced: dict[Node, Node] = {}
    for node in order(*recurrence.roots):
        if node.op == "constant" and not _is_inline(node.static[0]):
            value = node.static[0]
            replaced[node] = parameters.setdefault(value, variable(first + len(parameters), 1, "p"))
    return recurrence.rewritten(replaced) if replaced else recurrence, tuple(parameters)


def keeping_states(recurrence: Recurrence, states: Iterable[int] | None = None) -> Recurrence:
    """The recurrence with these states before each step, or all of them, appended to its outputs."""
    kinds = recurrence.integer_states
    places = range(recurrence.n_states) if states is None else states
    added = (integer_variable(p, "i") if kinds[p] else state(p) for p in places)
    return replace(recurrence, outputs=(*recurrence.outputs, *added))


def inputs_read(recurrence: Recurrence) -> list[int]:
    """The positions of the inputs that the recurrence reads, in order."""
    nodes = order(*recurrence.roots)
    return sorted({node.static[0] for node in nodes if node.op == "variable" and node.static[1] == "j"})


def with_constants(recurrence: Recurrence, numbers: Mapping[int, int | float]) -> Recurrence:
    """The recurrence with inputs replaced by numbers."""
    if not numbers:
        return recurrence
    texts = tuple((n, str(x) if isinstance(x, int) else x.hex()) for n, x in numbers.items())
    return _with_constants(recurrence, texts)


# Numbers are cached by their texts: -0.0 and 0.0 differ in them, and NaN is equal to itself.
@functools.lru_cache(512)
def _with_constants(recurrence: Recurrence, numbers: tuple[tuple[int, str], ...]) -> Recurrence:
    kinds, nodes = recurrence.integer_inputs, {}
    for place, text in numbers:
        is_float = "x" in text or "n" in text  # hexadecimal, or not finite
        if kinds[place]:
            nodes[integer_variable(place, "j")] = integer(int(text))
        else:
            nodes[input_(place)] = constant(float.fromhex(text) if is_float else float(int(text)))
    return recurrence.rewritten(nodes)


def evaluate(node: Node, dtype: np.dtype[np.floating], parameters: Sequence[float] = ()) -> float:
    """The value of a node without variables but parameters, computed in a dtype."""
    return float(evaluate_formula(node, [np.array([number]) for number in parameters], dtype)[0])


@functools.lru_cache(256)
def adjoint(recurrence: Recurrence) -> Recurrence:
    """The recurrence of the cotangents, which runs backwards in time and is affine in its state.

    With r the cotangent of the state after step t, and g the cotangent of the output of step t,

        r' = r df/ds + g dg/ds        is the new state of the adjoint, and
             r df/dx + g dg/dx        its output: the gradient by the inputs of step t.

    Its inputs are the inputs of the recurrence, the states before each step, and the cotangents of the outputs.
    Integers have no derivative: their cotangents are not read, and are 0.
    """
    k, n = recurrence.n_states, recurrence.n_inputs
    places: dict[Node, Node] = {integer_variable(p, "i"): integer_variable(n + p, "j") for p in range(k)}
    floats = {state(p): input_(n + p) for p in range(k)}
    places |= floats
    cotangents: dict[Node, Node] = {}
    incoming = [state(p) for p in range(k)] + [input_(n + k + p) for p in range(len(recurrence.outputs))]
    for root, cotangent in zip((substitute(root, places) for root in recurrence.roots), incoming):
        cotangents[root] = make("add", cotangents[root], cotangent) if root in cotangents else cotangent
    variables = *floats.values(), *(input_(p) for p in range(n))
    cotangents = {root: cotangent for root, cotangent in cotangents.items() if not is_integer(root)}
    gradients = pull_back(cotangents, variables, SCALAR_RULES, "where")
    nodes = tuple(constant(0) if node is None or node.op == "zero" else node for node in gradients)
    return Recurrence(nodes[:k], nodes[k:], n + k + len(recurrence.outputs))
