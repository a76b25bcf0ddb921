"""Recognises updates whose composition is associative, which a scan can therefore run in parallel in time.

The steps of such an update form a monoid: what a run of steps does to the state is a few numbers.

affine                  s -> M s + c; up to four coupled states, M and c depend on the inputs alone
max, min, logaddexp     s -> max(s + shift, bound); one state. A choice among such steps by the inputs alone,
                        for example a reset, has the same form
argmax, argmin          several states that are replaced together where one of them, the key, is beaten

The numbers of a run of steps are computed by a recurrence as well, `Monoid.reduce`, which starts from the
identity. `_core.user_scan` chooses the path of a scan by `find_monoid`; the backends and `_user_scan.aggregates`
combine runs. `find_linear` recognises updates that `linear_recurrence` runs on CUDA.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upsweep._compiler.formulas.nodes import Node, constant, fold, make, operation, order
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, state

_MAX_STATES = 4


@dataclass(frozen=True)
class Monoid:
    """How the steps of a recurrence are combined."""

    kind: str  # "affine", "max", "min", "logaddexp", "argmax" or "argmin"
    # Computes what a run of steps does: the matrix (or shift) if it varies in time, then the vector (or bound).
    reduce: Recurrence
    start: tuple[float, ...]  # the identity, from which `reduce` starts
    varies: bool  # whether the matrix or shift depends on the inputs
    matrix: tuple[Node, ...]  # the matrix or shift of one step, if it does not vary
    key_state: int = 0  # the state that argmax and argmin compare
    keeps_ties: bool = True  # whether argmax and argmin keep the earlier one of equal keys
    bias: Recurrence | None = None  # of an affine update that does not vary: its outputs are what a step adds
    can_reset: bool = False  # of max, min, logaddexp: whether a shift of -inf (min: inf) may reset the state


@functools.lru_cache(512)
def find_monoid(recurrence: Recurrence) -> tuple[Monoid | None, str]:
    """The monoid of a recurrence, if it has one, and a sentence that says why or why not."""
    if recurrence.n_states > _MAX_STATES:
        return None, f"it has {recurrence.n_states} states, and at most {_MAX_STATES} are combined"
    affine = _affine(recurrence)
    if affine is not None:
        many = "its state" if recurrence.n_states == 1 else f"its {recurrence.n_states} states"
        how = "factors that vary in time" if affine.varies else "constant factors"
        return affine, f"the update is affine in {many}, with {how}"
    if recurrence.n_states == 1:
        for op, name in (("maximum", "max"), ("minimum", "min"), ("logaddexp", "logaddexp")):
            monoid = _tropical(recurrence, op, name)
            if monoid is not None:
                return monoid, f"the update is {op}(state + shift, bound)"
    winner = _winner(recurrence)
    if winner is not None:
        return winner, f"the states are replaced together where state {winner.key_state} is beaten"
    return None, "the new state is neither affine in the state nor a known associative form of it"


# The entries of a power can be 1e6 times larger than the states that it yields, for example of a filter with
# nearly equal poles, and the next power squares them: the digits of float64 are not enough.
_DIGITS = decimal.Context(prec=40, traps=[])


@functools.lru_cache(256)
def matrix_powers(numbers: tuple[float, ...], n: int, count: int = 1) -> NDArray[np.float64]:
    """The matrix with these entries, row by row, to the powers n, 2 n, 4 n and so on: `count` of them.

    Each entry is right to the last bit or two.
    """
    k = math.isqrt(len(numbers))
    square = np.array([decimal.Decimal(number) for number in numbers], object).reshape(k, k)
    with decimal.localcontext(_DIGITS):
        powers = [np.linalg.matrix_power(square, n)]
        while len(powers) < count:
            powers.append(powers[-1] @ powers[-1])
        return np.array([_as_double(power) for power in powers])


def _as_double(power: NDArray[Any]) -> NDArray[np.float64]:
    """The matrix in float64. A single factor that underflows stays nonzero: 0 would reset an infinite state."""
    result = power.astype(np.float64)
    if result.size == 1 and result[0, 0] == 0 and not power[0, 0].is_zero():
        result[0, 0] = np.copysign(np.finfo(np.float64).smallest_subnormal, result[0, 0])
    return result


@functools.lru_cache(512)
def repeated_factor(monoid: Monoid, dtype: np.dtype[np.floating], n_steps: int) -> tuple[float, ...]:
    """What `n_steps` equal steps multiply with: the matrix to that power, or that many times the shift.

    Empty for argmax and argmin, which have neither.
    """
    if monoid.kind in ("argmax", "argmin"):
        return ()
    factor = np.array([evaluate(node, dtype) for node in monoid.matrix], np.float64)
    if monoid.kind == "affine":
        return tuple(matrix_powers(tuple(factor.tolist()), n_steps).ravel().tolist())
    with np.errstate(all="ignore"):
        return tuple((factor * n_steps).tolist())


_ONE, _ZERO = constant(1), constant(0)


def _is_free(node: Node) -> bool:
    """Whether a node depends on no state."""
    return "i" not in node.kinds


def _joined(op: str, a: Node | None, b: Node | None) -> Node | None:
    """``op(a, b)``, of which a missing operand is the neutral element."""
    return operation(op, a, b) if a is not None and b is not None else a or b


def _times(a: Node, b: Node) -> Node:
    return b if a is _ONE else a if b is _ONE else make("mul", a, b)


def _chosen(condition: Node, a: Node, b: Node) -> Node:
    """``where(condition, a, b)``; `a` itself if both are the same node, so that a constant factor stays one."""
    return a if a is b else operation("where", condition, a, b)


# A number as sum(coefficient * state) + bias; a missing part is 0.
_Linear = tuple[dict[int, Node], Node | None]


def _linear_of(node: Node, args: list[_Linear | None]) -> _Linear | None:
    if _is_free(node):
        return {}, node
    if node.op == "variable":
        return {node.static[0]: _ONE}, None
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if node.op in ("add", "sub"):
        (a, bias_a), (b, bias_b) = known
        if node.op == "sub":
            b, bias_b = _each((b, bias_b), lambda part: make("neg", part))
        total = {p: _joined("add", a.get(p), b.get(p)) for p in {**a, **b}}
        return {p: c for p, c in total.items() if c is not None}, _joined("add", bias_a, bias_b)
    if node.op == "neg":
        return _each(known[0], lambda part: make("neg", part))
    for factor, other in zip(node.args, known[::-1]):
        if node.op == "mul" and _is_free(factor):
            return _each(other, functools.partial(_times, b=factor))
    if node.op == "div" and _is_free(node.args[1]):
        return _each(known[0], lambda part: make("div", part, node.args[1]))
    if node.op == "where" and _is_free(node.args[0]):
        condition = node.args[0]
        (a, bias_a), (b, bias_b) = known[1:]
        chosen = {p: _chosen(condition, a.get(p, _ZERO), b.get(p, _ZERO)) for p in sorted({**a, **b})}
        return chosen, _chosen(condition, bias_a or _ZERO, bias_b or _ZERO)
    return None


def _each(form: _Linear, change: Callable[[Node], Node]) -> _Linear:
    """The form with a linear function applied to all of its parts."""
    coefficients, bias = form
    return {p: change(c) for p, c in coefficients.items()}, None if bias is None else change(bias)


def _affine(recurrence: Recurrence) -> Monoid | None:
    k = recurrence.n_states
    rows = [fold(root, _linear_of) for root in recurrence.states]
    known = [row for row in rows if row is not None]
    if len(known) < k:
        return None
    varies = any("j" in c.kinds for coefs, _ in known for c in coefs.values())
    first = k * k if varies else 0  # position of the vector among the states of the reduction
    states: list[Node] = []
    if varies:
        for coefs, _ in known:
            states += [_combination(coefs, [state(m * k + j) for m in range(k)], None) for j in range(k)]
    states += [_combination(coefs, [state(first + m) for m in range(k)], bias) for coefs, bias in known]
    start = [float(n % (k + 1) == 0) for n in range(first)] + [0.0] * k
    matrix = () if varies else tuple(coefs.get(m, _ZERO) for coefs, _ in known for m in range(k))
    reduce = Recurrence(tuple(states), (), recurrence.n_inputs)
    bias = None if varies else Recurrence((), tuple(bias or _ZERO for _, bias in known), recurrence.n_inputs)
    return Monoid("affine", reduce, tuple(start), varies, matrix, bias=bias)


def _combination(coefs: dict[int, Node], values: list[Node], bias: Node | None) -> Node:
    total: Node | None = None
    for place, coef in sorted(coefs.items()):
        total = _joined("add", total, _times(coef, values[place]))
    return _joined("add", total, bias) or _ZERO


# A number as op(state + shift, bound); a missing part is the neutral element of op.
_Tropical = tuple[Node | None, Node | None]


def _tropical_of(node: Node, args: list[_Tropical | None], op: str, own: _Tropical) -> _Tropical | None:
    """The pair of a node, from the pairs of its arguments; `own` is the pair of the state."""
    if _is_free(node):
        return None, node
    if node.op == "variable":
        return own
    if node.op == "where" and _is_free(node.args[0]) and args[1] is not None and args[2] is not None:
        neutral = constant(_neutral(op))
        parts = [
            None if a is None and b is None else _chosen(node.args[0], a or neutral, b or neutral)
            for a, b in zip(args[1], args[2])
        ]
        return parts[0], parts[1]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    if node.op == op:
        (shift_a, bound_a), (shift_b, bound_b) = known
        return _joined(op, shift_a, shift_b), _joined(op, bound_a, bound_b)
    for place, other in enumerate(node.args):
        if _is_free(other) and (node.op == "add" or (node.op == "sub" and place == 1)):
            shift, bound = known[1 - place]
            pair = [None if part is None else make(node.op, part, other) for part in (shift, bound)]
            return pair[0], pair[1]
    return None


def _neutral(op: str) -> float:
    return math.inf if op == "minimum" else -math.inf


def _pair(root: Node, op: str, own: _Tropical) -> _Tropical | None:
    return fold(root, lambda node, args: _tropical_of(node, args, op, own))


def _tropical(recurrence: Recurrence, op: str, name: str) -> Monoid | None:
    shift, bound = _pair(recurrence.states[0], op, (_ZERO, None)) or (None, None)
    if shift is None or bound is None:
        return None
    if "j" in shift.kinds:
        # The step applied to the pair of the steps before it: a reset then drops a pair that is not finite, too.
        joined = _pair(recurrence.states[0], op, (state(0), state(1)))
        assert joined is not None and joined[0] is not None and joined[1] is not None
        reduce = Recurrence((joined[0], joined[1]), (), recurrence.n_inputs)
        can_reset = any(node.op == "where" for node in order(shift))
        return Monoid(name, reduce, (0.0, _neutral(op)), True, (), can_reset=can_reset)
    moved = state(0) if shift is _ZERO else make("add", state(0), shift)
    reduce = Recurrence((operation(op, moved, bound),), (), recurrence.n_inputs)
    return Monoid(name, reduce, (_neutral(op),), False, (shift,))


def _winner(recurrence: Recurrence) -> Monoid | None:
    """The monoid of an update that replaces all states where a new key beats the key state."""
    condition = recurrence.states[0].args[0] if recurrence.states[0].op == "where" else None
    if condition is None or condition.op not in ("lt", "le"):
        return None
    for p, root in enumerate(recurrence.states):
        if root.op != "where" or root.args[0] is not condition or root.args[2] is not state(p):
            return None
        if not _is_free(root.args[1]):
            return None
    for key_state, root in enumerate(recurrence.states):
        own = state(key_state)
        if set(condition.args) == {own, root.args[1]}:
            is_max = condition.args[0] is own
            start = [0.0] * recurrence.n_states
            start[key_state] = -math.inf if is_max else math.inf
            reduce = Recurrence(recurrence.states, (), recurrence.n_inputs)
            kind = "argmax" if is_max else "argmin"
            return Monoid(kind, reduce, tuple(start), False, (), key_state, condition.op == "lt")
    return None


class LinearUpdate(NamedTuple):
    """y[t] = gates[t] * y[t-1] + tokens[t], by the positions of inputs; without gates, `factor` is the gate."""

    gates: int | None
    factor: float
    tokens: int


@functools.lru_cache(512)
def find_linear(recurrence: Recurrence) -> LinearUpdate | None:
    """The linear form of a recurrence with one state that is its only output; None if it has none."""
    if recurrence.n_states != 1 or recurrence.outputs not in ((), recurrence.states):
        return None
    (root,) = recurrence.states
    for moved, tokens in (root.args, root.args[::-1]) if root.op == "add" else ():
        place = _input(tokens)
        if place is None:
            continue
        if moved is state(0):
            return LinearUpdate(None, 1.0, place)
        if moved.op == "mul" and state(0) in moved.args:
            factor = moved.args[0] if moved.args[1] is state(0) else moved.args[1]
            if factor.op == "constant":
                return LinearUpdate(None, float(factor.static[0]), place)
            gates = _input(factor)
            if gates is not None and gates != place:
                return LinearUpdate(gates, 1.0, place)
    return None


def _input(node: Node) -> int | None:
    is_input = node.op == "variable" and node.static[1] == "j"
    return int(node.static[0]) if is_input else None
