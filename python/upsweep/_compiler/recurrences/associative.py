"""Recognises updates whose composition is associative, which a scan can therefore run in parallel in time.

The steps of such an update form a monoid: what a run of steps does to the state is a few numbers.

affine                  s -> M s + c; up to four coupled states, M and c depend on the inputs alone. "integers" are
                        the same of int64 or uint64 states, modulo 2^64: M counts as varying, and is in the bits
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upsweep._compiler.formulas.nodes import Node, constant, fold, make, operation, order
from upsweep._compiler.recurrences.integers import integer, integer_variable, is_integer
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, state

_MAX_STATES = 4


@dataclass(frozen=True)
class Monoid:
    """How the steps of a recurrence are combined."""

    kind: str  # "affine", "integers", "max", "min", "logaddexp", "argmax" or "argmin"
    # Computes what a run of steps does: the matrix (or shift) if it varies in time, then the vector (or bound).
    reduce: Recurrence
    start: tuple[float, ...]  # the identity, from which `reduce` starts
    varies: bool  # whether the matrix or shift depends on the inputs
    matrix: tuple[Node, ...]  # the matrix or shift of one step, if it does not vary
    key_state: int = 0  # the state that argmax and argmin compare
    keeps_ties: bool = True  # whether argmax and argmin keep the earlier one of equal keys
    bias: Recurrence | None = None  # of an affine update that does not vary: its outputs are what a step adds
    can_reset: bool = False  # of max, min, logaddexp: whether a shift of -inf (min: inf) may reset the state
    # Of an affine update of one float: the factor and the summand of a step. Where what an infinite factor makes
    # of a finite state does not follow from the state's sign alone, those of the steps that make it up; or none.
    parts: tuple[Node, ...] = ()

    @property
    def is_affine(self) -> bool:
        """Whether steps are s -> M s + c, of floats or of integers."""
        return self.kind in ("affine", "integers")


@functools.lru_cache(512)
def find_monoid(recurrence: Recurrence) -> tuple[Monoid | None, str]:
    """The monoid of a recurrence, if it has one, and a sentence that says why or why not."""
    if recurrence.n_states > _MAX_STATES:
        return None, f"it has {recurrence.n_states} states, and at most {_MAX_STATES} are combined"
    affine = _affine(recurrence)
    if affine is not None:
        many = "its state" if recurrence.n_states == 1 else f"its {recurrence.n_states} states"
        how = "factors that vary in time" if affine.varies else "constant factors"
        if affine.kind == "integers":
            how = "integer factors"
        return affine, f"the update is affine in {many}, with {how}"
    if any(recurrence.integer_states):
        return None, "a state is an integer, and the new one is no sum of products of it modulo 2**64"
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

    Empty for argmax and argmin, which have neither, and for integers, whose matrix varies.
    """
    if monoid.kind in ("argmax", "argmin", "integers"):
        return ()
    factor = np.array([evaluate(node, dtype) for node in monoid.matrix], np.float64)
    if monoid.kind == "affine":
        return tuple(matrix_powers(tuple(factor.tolist()), n_steps).ravel().tolist())
    with np.errstate(all="ignore"):
        return tuple((factor * n_steps).tolist())


_ONE, _ZERO = constant(1), constant(0)
_INTEGER_ONE, _INTEGER_ZERO = integer(1), integer(0)
_NEUTRAL = {"add": 0.0, "maximum": -math.inf, "logaddexp": -math.inf, "minimum": math.inf}


def is_free(node: Node) -> bool:
    """Whether a node depends on no state."""
    return "i" not in node.kinds


def _joined(op: str, a: Node | None, b: Node | None) -> Node | None:
    """``op(a, b)``, of which a missing operand is the neutral element."""
    return operation(op, a, b) if a is not None and b is not None else a or b


def _times(a: Node, b: Node) -> Node:
    if is_integer(a):
        return b if a is _INTEGER_ONE else a if b is _INTEGER_ONE else operation("imul", a, b)
    return b if a is _ONE else a if b is _ONE else make("mul", a, b)


def _negative(node: Node) -> Node:
    return operation("isub", _INTEGER_ZERO, node) if is_integer(node) else make("neg", node)


def _neutral(plus: str) -> Node:
    return _INTEGER_ZERO if plus == "iadd" else constant(_NEUTRAL[plus])


def _chosen(condition: Node, a: Node, b: Node) -> Node:
    """``where(condition, a, b)``; `a` itself if both are the same node, so that a constant factor stays one."""
    return a if a is b else operation("where", condition, a, b)


# A number as a combination of the states, by position, and what depends on no state; a missing part is neutral.
# Combinations are sum(coefficient * state) + bias, or max(state + shift, bound) with min or logaddexp for max.
_Form = tuple[dict[int, Node], Node | None]


def _form_of(node: Node, args: list[_Form | None], plus: str, own: _Form | None) -> _Form | None:
    """The form of a node from those of its operands; `plus` adds terms, `own` is the form of a single state."""
    known = [arg for arg in args if arg is not None]
    if is_free(node):
        return {}, node
    if node.op == "variable":
        return own or ({node.static[0]: _INTEGER_ONE if is_integer(node) else _ONE}, None)
    if len(known) < len(args):
        return None
    if node.op == plus or (plus, node.op) in (("add", "sub"), ("iadd", "isub")):
        (a, bias_a), (b, bias_b) = known
        if node.op != plus:
            b, bias_b = _each((b, bias_b), _negative)
        total = {p: _joined(plus, a.get(p), b.get(p)) for p in {**a, **b}}
        return {p: c for p, c in total.items() if c is not None}, _joined(plus, bias_a, bias_b)
    if node.op == "where" and is_free(node.args[0]):
        (a, bias_a), (b, bias_b) = known[1:]
        condition, neutral = node.args[0], _neutral(plus)
        chosen = {p: _chosen(condition, a.get(p, neutral), b.get(p, neutral)) for p in sorted({**a, **b})}
        if plus not in ("add", "iadd") and bias_a is bias_b is None:
            return chosen, None
        return chosen, _chosen(condition, bias_a or neutral, bias_b or neutral)
    return (_scaled if plus in ("add", "iadd") else _shifted)(node, known)


def _scaled(node: Node, known: list[_Form]) -> _Form | None:
    """The form of a sum that is multiplied with a number that depends on no state."""
    if node.op == "neg":
        return _each(known[0], lambda part: make("neg", part))
    for factor, other in zip(node.args, known[::-1]):
        if node.op in ("mul", "imul") and is_free(factor):
            return _each(other, functools.partial(_times, b=factor))
    if node.op == "div" and is_free(node.args[1]):
        return _each(known[0], lambda part: make("div", part, node.args[1]))
    return None


def _shifted(node: Node, known: list[_Form]) -> _Form | None:
    """The form of an extreme to which a number that depends on no state is added."""
    places = {"add": (0, 1), "sub": (1,)}.get(node.op, ())
    place = next((n for n in places if is_free(node.args[n])), None)
    return None if place is None else _each(known[1 - place], lambda x: make(node.op, x, node.args[place]))


def _each(form: _Form, change: Callable[[Node], Node]) -> _Form:
    """The form with a function applied to all of its parts."""
    terms, bias = form
    return {p: change(term) for p, term in terms.items()}, None if bias is None else change(bias)


def _form(root: Node, plus: str, own: _Form | None = None) -> _Form | None:
    return fold(root, lambda node, args: _form_of(node, args, plus, own))


def _affine(recurrence: Recurrence) -> Monoid | None:
    k, are_integers = recurrence.n_states, all(recurrence.integer_states)
    if any(recurrence.integer_states) and not are_integers:
        return None
    plus = "iadd" if are_integers else "add"
    rows = [_form(root, plus) for root in recurrence.states]
    known = [row for row in rows if row is not None]
    if len(known) < k:
        return None
    # Of integers no power of the matrix is computed here: a chunk's is one of its results.
    varies = are_integers or any("j" in c.kinds for coefs, _ in known for c in coefs.values())
    first = k * k if varies else 0  # position of the vector among the states of the reduction
    states: list[Node] = []

    def values(place: int, stride: int) -> list[Node]:
        places = [place + m * stride for m in range(k)]
        return [integer_variable(p, "i") if are_integers else state(p) for p in places]

    if varies:
        for coefs, _ in known:
            states += [_combination(coefs, values(j, k), None, plus) for j in range(k)]
    states += [_combination(coefs, values(first, 1), bias, plus) for coefs, bias in known]
    start = [float(n % (k + 1) == 0) for n in range(first)] + [0.0] * k
    matrix = () if varies else tuple(coefs.get(m, _ZERO) for coefs, _ in known for m in range(k))
    reduce = Recurrence(tuple(states), (), recurrence.n_inputs)
    bias = None if varies else Recurrence((), tuple(bias or _ZERO for _, bias in known), recurrence.n_inputs)
    parts: tuple[Node, ...] = ()
    if k == 1 and not are_integers and _keeps_signs(recurrence.states[0]):
        coefs, summand = known[0]
        parts = (coefs.get(0, _ZERO), summand or _ZERO)
    elif k == 1 and not are_integers:
        parts = tuple(number for step in fold(recurrence.states[0], _steps_of) or () for number in step)
    kind = "integers" if are_integers else "affine"
    return Monoid(kind, reduce, tuple(start), varies, matrix, bias=bias, parts=parts)


def _keeps_signs(root: Node) -> bool:
    """Whether no sum of a state and another number is multiplied with a factor that is no ordinary constant.

    ``x * (s + 1)`` with an infinite x depends on the sign of s + 1, and ``x * s + x`` on that of s.
    """
    for node in order(root):
        if node.op not in ("mul", "div") or is_free(node):
            continue
        factors = [arg for arg in node.args if is_free(arg)]
        sums = [arg for arg in node.args if not is_free(arg)]
        plain = all(arg.op == "constant" and 0 < abs(arg.static[0]) < math.inf for arg in factors)
        if not plain and any((_form(arg, "add") or ({}, None))[1] for arg in sums):
            return False
    return True


_Steps = tuple[tuple[Node, Node], ...]  # factors and summands, one after the other
_MOST_STEPS = 3


def _steps_of(node: Node, args: list[_Steps | None]) -> _Steps | None:
    """A node as steps of the state, of which each multiplies what the one before has added up; None if it is none.

    ``x * (s + 1)`` is ``s + 1`` and then ``x * s``: an infinite x meets the sign of s + 1.
    """
    if is_free(node):
        return ((_ZERO, node),)
    if node.op == "variable":
        return ()
    if node.op == "where" and is_free(node.args[0]) and args[1] is not None and args[2] is not None:
        n = max(len(args[1]), len(args[2]))
        a, b = (((_ONE, _ZERO),) * (n - len(steps)) + steps for steps in (args[1], args[2]))
        return tuple(
            (_chosen(node.args[0], *factors), _chosen(node.args[0], *summands))
            for factors, summands in (zip(x, y) for x, y in zip(a, b))
        )
    own = [(n, steps) for n, (arg, steps) in enumerate(zip(node.args, args)) if not is_free(arg)]
    if len(own) > 1 or node.op not in ("add", "sub", "mul", "neg"):
        return None
    ((place, steps),) = own
    if steps is None or len(steps) == _MOST_STEPS:
        return None
    if node.op == "neg":
        return (*steps, (constant(-1), _ZERO))
    other = node.args[1 - place]
    if node.op == "mul":
        return (*steps, (other, _ZERO))
    summand = make("neg", other) if node.op == "sub" and place == 0 else other
    return (*steps, (constant(-1) if node.op == "sub" and place == 1 else _ONE, summand))


def _combination(coefs: dict[int, Node], values: list[Node], bias: Node | None, plus: str) -> Node:
    total: Node | None = None
    for place, coef in sorted(coefs.items()):
        total = _joined(plus, total, _times(coef, values[place]))
    return _joined(plus, total, bias) or _neutral(plus)


def _tropical(recurrence: Recurrence, op: str, name: str) -> Monoid | None:
    terms, bound = _form(recurrence.states[0], op, ({0: _ZERO}, None)) or ({}, None)
    if not terms or bound is None:
        return None
    shift = terms[0]
    if "j" in shift.kinds:
        # The step applied to the pair of the steps before it: a reset then drops a pair that is not finite, too.
        joined = _form(recurrence.states[0], op, ({0: state(0)}, state(1)))
        assert joined is not None and joined[1] is not None
        reduce = Recurrence((joined[0][0], joined[1]), (), recurrence.n_inputs)
        can_reset = any(node.op == "where" for node in order(shift))
        return Monoid(name, reduce, (0.0, _NEUTRAL[op]), True, (), can_reset=can_reset)
    moved = state(0) if shift is _ZERO else make("add", state(0), shift)
    reduce = Recurrence((operation(op, moved, bound),), (), recurrence.n_inputs)
    return Monoid(name, reduce, (_NEUTRAL[op],), False, (shift,))


def _winner(recurrence: Recurrence) -> Monoid | None:
    """The monoid of an update that replaces all states where a new key beats the key state."""
    condition = recurrence.states[0].args[0] if recurrence.states[0].op == "where" else None
    if condition is None or condition.op not in ("lt", "le"):
        return None
    for p, root in enumerate(recurrence.states):
        if root.op != "where" or root.args[0] is not condition or root.args[2] is not state(p):
            return None
        if not is_free(root.args[1]):
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


def _dropping_winner(recurrence: Recurrence) -> Monoid | None:
    """`_winner` of an update that also replaces all states where a condition on the inputs holds, as a reset does.

    What a run does begins with a number that is 1 if it replaces any state.
    """
    k = recurrence.n_states
    for rest, condition in _without_drops(recurrence):
        winner = _winner(Recurrence(rest, (), recurrence.n_inputs))
        if winner is not None:
            moved = recurrence.rewritten({state(p): state(p + 1) for p in range(k)}).states
            replaces = operation("where", condition, _ONE, state(0))
            reduce = Recurrence((replaces, *moved), (), recurrence.n_inputs)
            return replace(winner, reduce=reduce, start=(0.0, *winner.start), varies=True)
    return None


def _without_drops(recurrence: Recurrence) -> Iterator[tuple[tuple[Node, ...], Node]]:
    """The new states where a condition does not hold that replaces the states, before the step or after it."""
    after = [root.args for root in recurrence.states if root.op == "where"]
    condition = after[0][0] if len(after) == recurrence.n_states else _ZERO
    if after and is_free(condition) and all(own is condition and is_free(new) for own, new, _ in after):
        yield tuple(rest for *_, rest in after), condition
    states = {state(p) for p in range(recurrence.n_states)}
    drops = [
        node
        for node in order(*recurrence.states)
        if node.op == "where" and node.args[2] in states and is_free(node.args[0]) and is_free(node.args[1])
    ]
    if drops and all(node.args[0] is drops[0].args[0] for node in drops):
        undropped: dict[Node, Node] = {node: node.args[2] for node in drops}
        if not states & {*order(*recurrence.rewritten(dict.fromkeys(drops, _ONE)).states)}:
            yield recurrence.rewritten(undropped).states, drops[0].args[0]


class Part(NamedTuple):
    """States that depend on each other alone, from position `first` on: their recurrence and its monoid."""

    first: int
    recurrence: Recurrence
    monoid: Monoid


@dataclass(frozen=True)
class Product:
    """Monoids of states that are independent of each other, each of which is combined by its own."""

    parts: tuple[Part, ...]

    @property
    def reduce(self) -> Recurrence:
        """What a run of steps does: the numbers of each part, one part after the other."""
        states: list[Node] = []
        for part in self.parts:
            states += _renumbered(part.monoid.reduce, len(states)).states
        return Recurrence(tuple(states), (), self.parts[0].recurrence.n_inputs)


def _renumbered(recurrence: Recurrence, by: int) -> Recurrence:
    """The recurrence with `by` added to the positions of its states' variables."""
    states = {n for n in order(*recurrence.roots) if n.op == "variable" and n.static[1] == "i"}
    return recurrence.rewritten(
        {
            node: integer_variable(node.static[0] + by, "i") if is_integer(node) else state(node.static[0] + by)
            for node in states
        }
    )


@functools.lru_cache(512)
def find_product(recurrence: Recurrence) -> tuple[Product | None, str]:
    """The monoids of the independent states of a recurrence that has none of its own, and why, or why not."""
    parts: list[Part] = []
    reads = [
        {n.static[0] for n in order(root) if n.op == "variable" and n.static[1] == "i"}
        for root in recurrence.states
    ]
    first = 0
    for end in range(1, recurrence.n_states + 1):
        inside = set(range(first, end))
        if any(reads[p] - inside for p in inside) or any(
            reads[p] & inside for p in range(end, recurrence.n_states)
        ):
            continue
        of_part = Recurrence(recurrence.states[first:end], (), recurrence.n_inputs)
        own = _renumbered(of_part, -first)
        monoid = find_monoid(own)[0] or _dropping_winner(own)
        if monoid is None:
            return None, find_monoid(own)[1] if end - first < recurrence.n_states else ""
        parts.append(Part(first, own, monoid))
        first = end
    names = ", ".join(dict.fromkeys(part.monoid.kind for part in parts))
    return Product(tuple(parts)), f"its states are combined each by itself: {names}"


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
