"""Which recurrences can be parallel in time: those of which what many steps do to a state is a few numbers.

affine      s -> M s + c, up to four states that may be coupled; M and c of the inputs alone
max, min, logaddexp     s -> max(s + shift, bound), one state; so that a product of steps is of the same form.
                        What inputs alone choose among such, as to drop the state, is of this form too
argmax, argmin          several states that are taken together where one of them is beaten

The numbers are found by a recurrence too, which starts from the step that does nothing.
"""

from __future__ import annotations

import decimal
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._compiler.formulas.nodes import Node, constant, make, order
from upsweep._compiler.formulas.scalar_ops import operation
from upsweep._compiler.recurrences.recurrence import Recurrence, state

__all__ = ["MOST_STATES", "Monoid", "find_monoid", "matrix_power", "matrix_powers"]

MOST_STATES = 4


@dataclass(frozen=True)
class Monoid:
    """How steps are combined.

    `reduce` computes the matrix (or shift), if it `varies` with time, then the vector (or bound); `start` is
    the step that does nothing. `matrix` are the nodes of one step's matrix or shift where it does not vary. Then
    an affine one has `rests`, whose outputs are what a step adds.
    """

    kind: str
    reduce: Recurrence
    start: tuple[float, ...]
    varies: bool
    matrix: tuple[Node, ...]
    decides: int = 0  # of argmax and argmin: the state that is compared
    keeps_ties: bool = True
    rests: Recurrence | None = None
    drops: bool = False  # of max, min and logaddexp: whether a shift that is the worst of all may drop the state


def find_monoid(recurrence: Recurrence) -> tuple[Monoid | None, str]:
    """The form of a recurrence, if it has one, and why or why not."""
    if recurrence.n_states > MOST_STATES:
        return None, f"it has {recurrence.n_states} states, and at most {MOST_STATES} are combined"
    affine = _affine(recurrence)
    if affine is not None:
        many = "its state" if recurrence.n_states == 1 else f"its {recurrence.n_states} states"
        how = "factors that vary in time" if affine.varies else "constant factors"
        return affine, f"the update is affine in {many}, with {how}"
    if recurrence.n_states == 1:
        for op, name in (("maximum", "max"), ("minimum", "min"), ("logaddexp", "logaddexp")):
            form = _tropical(recurrence, op, name)
            if form is not None:
                return form, f"the update is {op}(state + shift, bound)"
    winner = _winner(recurrence)
    if winner is not None:
        return winner, f"the states are replaced together where state {winner.decides} is beaten"
    return None, "the new state is neither affine in the state nor a known associative form of it"


# Of a filter whose poles are nearly equal, the numbers of a power are 1e6 times what becomes of its states, and
# squared for the next power: a double's digits are not enough.
_DIGITS = decimal.Context(prec=40, traps=[])


@functools.lru_cache(256)
def matrix_power(numbers: tuple[float, ...], n: int) -> NDArray[np.float64]:
    """The matrix of these numbers, row by row, to the power n, right to the last bit or two of each number."""
    power: NDArray[np.float64] = matrix_powers(numbers, n, 1)[0]
    return power


@functools.lru_cache(256)
def matrix_powers(numbers: tuple[float, ...], n: int, count: int) -> NDArray[np.float64]:
    """So many powers of the matrix, one after the other: to the power n, twice n, four times n and so on."""
    k = math.isqrt(len(numbers))
    square = np.array([decimal.Decimal(number) for number in numbers], object).reshape(k, k)
    with decimal.localcontext(_DIGITS):
        powers = [np.linalg.matrix_power(square, n)]
        while len(powers) < count:
            powers.append(powers[-1] @ powers[-1])
        return np.array([_as_double(power) for power in powers])


def _as_double(power: NDArray[Any]) -> NDArray[np.float64]:
    """Doubles; of a single factor that is too small for one not 0, which would drop a state that is not finite."""
    found = power.astype(np.float64)
    if found.size == 1 and found[0, 0] == 0 and not power[0, 0].is_zero():
        found[0, 0] = np.copysign(np.finfo(np.float64).smallest_subnormal, found[0, 0])
    return found


def _is_free(node: Node) -> bool:
    """Whether a node is the same for all states."""
    return "i" not in node.kinds


def _add(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return a if b is None else b
    return make("add", a, b)


def _times(a: Node, b: Node) -> Node:
    if a is _ONE:
        return b
    return a if b is _ONE else make("mul", a, b)


_ONE, _ZERO = constant(1), constant(0)

# A number as sum(coefficient * state) + rest; what is not there is 0.
_Linear = tuple[dict[int, Node], Node | None]


def _linear(root: Node) -> _Linear | None:
    forms: dict[Node, _Linear | None] = {}
    for node in order(root):
        forms[node] = ({}, node) if _is_free(node) else _linear_of(node, [forms[arg] for arg in node.args])
    return forms[root]


def _linear_of(node: Node, args: list[_Linear | None]) -> _Linear | None:
    if node.op == "variable":
        return {node.static[0]: _ONE}, None
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if node.op in ("add", "sub"):
        (a, rest_a), (b, rest_b) = known
        if node.op == "sub":
            b = {p: make("neg", c) for p, c in b.items()}
            rest_b = None if rest_b is None else make("neg", rest_b)
        total = {p: _add(a.get(p), b.get(p)) for p in {**a, **b}}
        return {p: c for p, c in total.items() if c is not None}, _add(rest_a, rest_b)
    if node.op == "neg":
        ((a, rest),) = known
        return {p: make("neg", c) for p, c in a.items()}, None if rest is None else make("neg", rest)
    if node.op in ("mul", "div"):
        for place, factor in enumerate(node.args):
            if _is_free(factor) and (node.op == "mul" or place == 1):
                a, rest = known[1 - place]
                scaled = {p: _scaled(node.op, c, factor) for p, c in a.items()}
                return scaled, None if rest is None else _scaled(node.op, rest, factor)
        return None
    if node.op == "where" and _is_free(node.args[0]):
        condition = node.args[0]
        (a, rest_a), (b, rest_b) = known[1:]
        chosen = {p: _chosen(condition, a.get(p, _ZERO), b.get(p, _ZERO)) for p in sorted({**a, **b})}
        return chosen, _chosen(condition, rest_a or _ZERO, rest_b or _ZERO)
    return None


def _chosen(condition: Node, a: Node, b: Node) -> Node:
    """A choice; none between equals, so that a factor which is the same at all steps is known to be."""
    return a if a is b else operation("where", condition, a, b)


def _scaled(op: str, node: Node, factor: Node) -> Node:
    return _times(node, factor) if op == "mul" else make("div", node, factor)


def _affine(recurrence: Recurrence) -> Monoid | None:
    k = recurrence.n_states
    rows = [_linear(root) for root in recurrence.states]
    known = [row for row in rows if row is not None]
    if len(known) < k:
        return None
    varies = any("j" in c.kinds for coefs, _ in known for c in coefs.values())
    first = k * k if varies else 0  # where the vector is among the reduction's states
    states: list[Node] = []
    if varies:
        for coefs, _ in known:
            states += [_combination(coefs, [state(m * k + j) for m in range(k)], None) for j in range(k)]
    states += [_combination(coefs, [state(first + m) for m in range(k)], rest) for coefs, rest in known]
    start = [float(n % (k + 1) == 0) for n in range(first)] + [0.0] * k
    matrix = () if varies else tuple(coefs.get(m, _ZERO) for coefs, _ in known for m in range(k))
    reduce = Recurrence(tuple(states), (), recurrence.n_inputs)
    rests = None if varies else Recurrence((), tuple(rest or _ZERO for _, rest in known), recurrence.n_inputs)
    return Monoid("affine", reduce, tuple(start), varies, matrix, rests=rests)


def _combination(coefs: dict[int, Node], values: list[Node], rest: Node | None) -> Node:
    total: Node | None = None
    for place, coef in sorted(coefs.items()):
        total = _add(total, _times(coef, values[place]))
    return _add(total, rest) or _ZERO


# A number as op(state + shift, bound); what is not there is the worst of all.
_Tropical = tuple[Node | None, Node | None]


def _either(op: str, a: Node | None, b: Node | None) -> Node | None:
    return operation(op, a, b) if a is not None and b is not None else a or b


def _tropical_of(node: Node, args: list[_Tropical | None], op: str, own: _Tropical) -> _Tropical | None:
    """The pair of a node, from those of its arguments; `own` is that of the state."""
    if _is_free(node):
        return None, node
    if node.op == "variable":
        return own
    if node.op == "where" and _is_free(node.args[0]) and args[1] is not None and args[2] is not None:
        worst = constant(_worst(op))
        parts = [
            None if a is None and b is None else _chosen(node.args[0], a or worst, b or worst)
            for a, b in zip(args[1], args[2])
        ]
        return parts[0], parts[1]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if node.op == op:
        (shift_a, bound_a), (shift_b, bound_b) = known
        return _either(op, shift_a, shift_b), _either(op, bound_a, bound_b)
    for place, other in enumerate(node.args):
        if _is_free(other) and (node.op == "add" or (node.op == "sub" and place == 1)):
            shift, bound = known[1 - place]
            pair = [None if part is None else make(node.op, part, other) for part in (shift, bound)]
            return pair[0], pair[1]
    return None


def _worst(op: str) -> float:
    return math.inf if op == "minimum" else -math.inf


def _pair(root: Node, op: str, own: _Tropical) -> _Tropical | None:
    forms: dict[Node, _Tropical | None] = {}
    for node in order(root):
        forms[node] = _tropical_of(node, [forms[arg] for arg in node.args], op, own)
    return forms[root]


def _tropical(recurrence: Recurrence, op: str, name: str) -> Monoid | None:
    form = _pair(recurrence.states[0], op, (_ZERO, None))
    if form is None:
        return None
    shift, bound = form
    if shift is None or bound is None:
        return None
    if "j" in shift.kinds:
        # The step after those before it, so that a choice which drops the state drops what is not finite, too.
        joined = _pair(recurrence.states[0], op, (state(0), state(1)))
        assert joined is not None and joined[0] is not None and joined[1] is not None
        reduce = Recurrence((joined[0], joined[1]), (), recurrence.n_inputs)
        drops = any(node.op == "where" for node in order(shift))
        return Monoid(name, reduce, (0.0, _worst(op)), True, (), drops=drops)
    moved = state(0) if shift is _ZERO else make("add", state(0), shift)
    reduce = Recurrence((operation(op, moved, bound),), (), recurrence.n_inputs)
    return Monoid(name, reduce, (_worst(op),), False, (shift,))


def _winner(recurrence: Recurrence) -> Monoid | None:
    """All states become others where one of them is beaten by what it becomes."""
    for decides, root in enumerate(recurrence.states):
        if root.op != "where" or root.args[0].op not in ("lt", "le"):
            continue
        condition, taken, kept = root.args
        own = state(decides)
        if kept is not own or set(condition.args) != {own, taken} or not _is_free(taken):
            continue
        most = condition.args[0] is own
        if all(
            other.op == "where"
            and other.args[0] is condition
            and _is_free(other.args[1])
            and other.args[2] is state(p)
            for p, other in enumerate(recurrence.states)
        ):
            start = [0.0] * recurrence.n_states
            start[decides] = -math.inf if most else math.inf
            reduce = Recurrence(recurrence.states, (), recurrence.n_inputs)
            kind = "argmax" if most else "argmin"
            return Monoid(kind, reduce, tuple(start), False, (), decides, condition.op == "lt")
    return None
