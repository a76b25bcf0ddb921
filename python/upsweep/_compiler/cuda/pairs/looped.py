"""Code generation for formulas that are too long to unroll: the loops of the program stay loops.

Instructions are written level after level, in the program's order. A value that a later level reads is stored:
a value of the call in `p`, of a row in `x`, of a column in its record. Arrays are stored likewise, and so is a
packed record that is indexed by a loop variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from upsweep._compiler.cuda.pairs.sizes import Product, Request, Sizes
from upsweep._compiler.cuda.scalars import declaration, expression, function, literal, names_at

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Instruction, Program

_LOOPS = frozenset({"loop", "carry", "end", "number", "array", "put", "get", "result", "weight"})
_ORDER = ("p", "i", "j", "ij")
KNOWN = "const Call& call, const Bases& bases"  # the first arguments of the functions
STORES = {"p": "p[{}]", "i": "x[{}]", "j": "y.value({})"}


class StoredValues(NamedTuple):
    """Where what a level leaves for later ones lies: values, arrays and the packed record; how much it is."""

    values: dict[int, int]
    record: int | None
    size: int


def is_looped(program: Program) -> bool:
    """Whether a program has loops."""
    return any(value.op in _LOOPS for value in program.values)


def pair_struct(n_results: int, n_weights: int, lines: list[str]) -> str:
    """The struct `Pair`, whose constructor has these lines."""
    constructor = function("Pair(const real* p, const real* x, const Column& y)", lines).rstrip()
    members = [
        "static constexpr bool UPWARDS = FORM & 1, EXPANDED = FORM & 2;",
        f"real result[{n_results}], weight[{max(n_weights, 1)}];",
        *constructor.splitlines(),
    ]
    return "template <int FORM>\nstruct Pair {\n    " + "\n    ".join(members) + "\n};\n"


class LoopedFunctions:
    """The functions of a formula with loops, which is not rewritten; results are multiplied with `scale`."""

    product: Product | None = None
    sign: int | None = None
    near: int | None = None
    near_points = n_row_reads = n_near = 0

    def __init__(self, program: Program, request: Request, scale: float) -> None:
        self.program, self.scale = program, scale
        self.part = request.parts
        self.stored = {self.part[level]: self._keep(level) for level in "pij"}
        p, i, j = (self.stored[part].size for part in "pij")
        self.sizes = Sizes(program.n_results, program.n_weights, p, i, j, len(program.values))

    def _keep(self, level: str) -> StoredValues:
        values, places, size = self.program.values, dict[int, int](), 0
        read = {arg for v in values if _ORDER.index(v.level) > _ORDER.index(level) for arg in v.args}
        if self.part[level] != "p" and any(values[n].level == level for n in self.program.results):
            read.update(self.program.results)
        read.update(n for n in (*self.program.results, *self.program.weights) if values[n].level == level)
        for number in sorted(read):
            value = values[number]
            if value.level == level and value.op not in ("const", "loop"):
                places[number] = size
                size += int(value.static[0]) if value.op == "array" else 1
        record = None
        is_indexed = any(v.op == "load" and v.static[0] == level != v.level for v in values)
        if is_indexed or (level != "p" and any(v.op in ("sqdist", "dot") for v in values)):  # read at later levels
            record, size = size, size + self.program.width(level)
        return StoredValues(places, record, size)

    def texts(self) -> list[str]:
        """Return the text of all functions."""
        program, names = self.program, self._names("ij")
        lines = self._lines("ij", names, "0")
        for what, numbers in (("result", program.results), ("weight", program.weights)):
            lines += [self._hand_out(what, str(k), names[n]) for k, n in enumerate(numbers)]
        return [
            function(f"void load_parameters({KNOWN}, long long, real* p)", self._level("p", "p", "0")),
            function(f"void load_row({KNOWN}, const real* p, long long at, real* x)", self._level("i", "x", "at")),
            function(
                f"void load_column({KNOWN}, const real* p, long long at, real* y)", self._level("j", "y", "at")
            ),
            pair_struct(program.n_results, program.n_weights, lines),
            function(f"void finish_sum({KNOWN}, const real*, long long, wide*)", []),
            function("void scale_row(real*, real)", []),
        ]

    def _hand_out(self, what: str, place: str, value: str) -> str:
        scaled = what == "result" and self.scale != 1
        return f"{what}[{place}] = {value}{f' * {literal(self.scale)}' if scaled else ''};"

    def _level(self, part: str, store: str, at: str) -> list[str]:
        """The lines of a function that computes a level and keeps what others read."""
        level = next(level for level, played in self.part.items() if played == part)
        stored, names = self.stored[part], self._names(level)
        lines = self._lines(level, names, at)
        for number, place in stored.values.items():
            value = self.program.values[number]
            if value.op == "array":
                extent = value.static[0]
                lines.append(f"for (int k = 0; k < {extent}; ++k) {store}[{place} + k] = {names[number]}[k];")
            else:
                lines.append(f"{store}[{place}] = {names[number]};")
        if stored.record is not None:
            place = stored.record
            for position, dim in self.program.components(level):
                load = f"load(call, bases, {position}, {at}, k)"
                lines.append(f"for (int k = 0; k < {dim}; ++k) {store}[{place} + k] = {load};")
                place += dim
        return lines

    def _names(self, level: str) -> dict[int, str]:
        stored = {
            number: STORES[part].format(place)
            for part, level_values in self.stored.items()
            for number, place in level_values.values.items()
        }
        return names_at(level, self.program.values, stored)

    def _lines(self, level: str, names: dict[int, str], at: str) -> list[str]:
        values, lines, depth = self.program.values, list[str](), 0
        for number, value in enumerate(values):
            if value.level != level or value.op in ("const", "carry"):
                continue
            depth -= value.op == "end"
            for line in self._line(number, value, level, names, at):
                lines.append("    " * depth + line)
            depth += value.op == "loop"
        return lines

    def _carries(self, loop: int) -> list[int]:
        """The carries of a loop, which stand directly behind it."""
        result, number = list[int](), loop + 1
        while number < len(self.program.values) and self.program.values[number].op == "carry":
            result.append(number)
            number += 1
        return result

    def _line(self, number: int, value: Instruction, level: str, names: dict[int, str], at: str) -> list[str]:
        args, name = value.args, f"v{number}"
        if value.op == "loop":
            inits = [(carry, self.program.values[carry].args[0]) for carry in self._carries(number)]
            head = f"for (int {name} = 0; {name} < {value.static[0]}; ++{name}) {{"
            return [*(f"real v{carry} = {names[init]};" for carry, init in inits), head]
        if value.op == "end":
            carries = self._carries(args[0])
            following = [f"const real n{c} = {names[n]};" for c, n in zip(carries, args[1:])]
            return [*("    " + line for line in [*following, *(f"v{c} = n{c};" for c in carries)]), "}"]
        if value.op == "array":
            return [f"real {name}[{value.static[0]}];"]
        if value.op == "put":
            return [f"v{args[0]}[{_place(args[2:], value.static)}] = {names[args[1]]};"]
        if value.op in ("result", "weight"):
            return [self._hand_out(value.op, _place(args[1:], value.static), names[args[0]])]
        if value.op in ("sqdist", "dot"):
            a, b = value.static[:2] if self.part["i"] == "i" else (value.static[1], value.static[0])
            row, column = self.stored["i"].record, self.stored["j"].record
            assert row is not None and column is not None
            return long_pair(name, value.op, row + a, column + b, value.static[2])
        if value.op == "get":
            right = self._get(args, value, level)
        elif value.op == "load":
            right = self._load(value, level, at)
        else:
            right = expression(value.op, [names.get(arg, f"v{arg}") for arg in args])
        return [declaration(value.op, number, right)]

    def _get(self, args: tuple[int, ...], value: Instruction, level: str) -> str:
        place, array = _place(args[1:], value.static), self.program.values[args[0]]
        if array.level == level:
            return f"v{args[0]}[{place}]"
        part = self.part[array.level]
        return STORES[part].format(f"{self.stored[part].values[args[0]]} + {place}")

    def _load(self, value: Instruction, level: str, at: str) -> str:
        kind, offset, *strides = value.static
        loops = _place(value.args, (0, *strides))
        if kind != level:
            record = self.stored[self.part[kind]].record
            return STORES[self.part[kind]].format(f"{record} + {offset} + {loops}")
        for position, dim in self.program.components(kind):
            if offset < dim:
                return f"load(call, bases, {position}, {at}, {offset} + {loops})"
            offset -= dim
        raise AssertionError(f"{kind}[{value.static[1]}] is beyond its record")


def long_pair(name: str, op: str, row: int, column: int, dim: int) -> list[str]:
    """A squared distance or a scalar product of numbers that are contiguous in `x` and in the record."""
    x, y = f"x[{row} + k]", f"y.value({column} + k)"
    term = f"({x} - {y}) * ({x} - {y})" if op == "sqdist" else f"{x} * {y}"
    return [
        f"real {name} = 0;",
        f"#pragma unroll {dim if dim <= 128 else 8}",
        f"for (int k = 0; k < {dim}; ++k) {name} += {term};",
    ]


def _place(loops: tuple[int, ...], static: tuple[int, ...]) -> str:
    offset, *strides = static
    return " + ".join([str(offset), *(f"{stride} * v{loop}" for loop, stride in zip(loops, strides))])
