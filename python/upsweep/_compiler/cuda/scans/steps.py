"""CUDA C++ text of one step of a recurrence: the parameters, which do not change during a call, and the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from upsweep._compiler.cuda.scalars import declaration, expression, function, literal, names_at
from upsweep._compiler.lowering.lower_scalars import lower_step
from upsweep._compiler.recurrences.recurrence import Recurrence

if TYPE_CHECKING:
    from upsweep._compiler.formulas.nodes import Node
    from upsweep._compiler.lowering.program import Instruction

_CONSTANTS = ("const", "integer")
_LOOKUPS = ("lookup", "integer_lookup")
# Functions of CUDA's C library that are used as they are; their error is at most two units in the last place.
_OWN_FORMS = {"exp": "exp({0})"}


def _table(number: int, lookup: Instruction) -> str:
    """The line that defines the table of a lookup."""
    if lookup.op == "lookup":
        kind, entries = "real", [*map(literal, np.array(lookup.static, np.int64).view(np.float64).tolist())]
    else:
        kind, entries = "unsigned long long", [f"{word % 2**64}ull" for word in lookup.static]
    return f"static const {kind} table{number}[] = {{{', '.join(entries)}}};"


class Steps:
    """Writes the functions `load_parameters` and `step` of a recurrence, some of whose inputs are fixed in time.

    `prefix` is the prefix of the name of `step`, `of` a part of the name of `load_parameters`.
    """

    def __init__(
        self, states: tuple[Node, ...], outputs: tuple[Node, ...], fixed: Sequence[bool], prefix: str = "",
        of: str = "",
    ) -> None:  # fmt: skip
        self.program, self.n_states, self.fixed = lower_step(states, outputs), len(states), fixed
        self.integer_inputs = Recurrence(states, outputs, len(fixed)).integer_inputs
        self.prefix, self.of = prefix, of
        values = self.program.values
        read = {arg for step in values if step.level != "p" for arg in step.args} | set(self.program.results)
        stored = [n for n in sorted(read) if values[n].level == "p" and values[n].op not in _CONSTANTS]
        self.parameters = {n: position for position, n in enumerate(stored)}
        loads = [step.static[1] for step in values if step.op == "load" and step.static[0] == "p"]
        self.n_numbers = max(loads, default=-1) + 1

    @property
    def n_parameters(self) -> int:
        """At least one, since there is no empty array in C++."""
        return max(len(self.parameters), 1)

    def load_parameters(self) -> str:
        lines = self._lines("p")
        lines += [f"p[{position}] = v{n};" for n, position in self.parameters.items()]
        return function(f"void load_{self.of}parameters(const Call& call, real* p)", lines)

    def step(self) -> str:
        names, k = self._names("j"), self.n_states
        lines = self._lines("j")
        results = self.program.results
        lines += [f"out[{p}] = {names[n]};" for p, n in enumerate(results[k:])]
        lines += [f"const real s{s} = {names[n]};" for s, n in enumerate(results[:k])]
        lines += [f"state[{s}] = s{s};" for s in range(k)]
        arguments = ["const real* p", "const Fixed& fixed", "const Inputs& x", "real* state"]
        if not self.of:
            arguments.append("real* out")
        return function(f"void {self.prefix}step({', '.join(arguments)})", lines)

    def _names(self, level: str) -> dict[int, str]:
        return names_at(level, self.program.values, {n: f"p[{place}]" for n, place in self.parameters.items()})

    def _lines(self, level: str) -> list[str]:
        names, lines = self._names(level), []
        for number, value in enumerate(self.program.values):
            if value.level == level and value.op in _LOOKUPS:
                lines.append(_table(number, value))
            if value.level == level and value.op not in _CONSTANTS:
                lines.append(declaration(value.op, number, self._right(value, names, number)))
        return lines

    def _right(self, value: Instruction, names: dict[int, str], number: int) -> str:
        args = [names[arg] for arg in value.args]
        if value.op in _LOOKUPS:
            (place,), last = args, len(value.static) - 1
            entry = f"table{number}[{place} > 0 ? ({place} < {last} ? int({place}) : {last}) : 0]"
            return entry if value.op == "lookup" else f"word({entry})"
        if value.op == "wrap":
            n_bits, is_signed = value.static
            return f"{'wrap' if is_signed else 'wrap_unsigned'}<{n_bits}>({args[0]})"
        if value.op != "load":
            own = _OWN_FORMS.get(value.op)
            return own.format(*args) if own else expression(value.op, args)
        kind, place = value.static
        if kind == "p":
            return f"real(call.numbers[{place}])"
        if place < self.n_states:
            return f"state[{place}]"
        n = place - self.n_states
        read = "integer_number" if self.integer_inputs[n] else "number"
        return f"{read}({'fixed' if self.fixed[n] else 'x'}.x{n})"
