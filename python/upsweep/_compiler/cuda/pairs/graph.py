"""The scalar program of a formula as a graph that CUDA code generation can rewrite.

Each value has a level: it is computed once a call ("p"), once a row ("i"), once a column ("j") or once a pair
("ij"). The level follows from its operands. Only values of pairs cost time, so rewrites move work to the other
levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from upsweep._compiler.lowering.program import Instruction, Program, join

Static = tuple[int | float | str, ...]


class Graph:
    """Values that are computed once each: the same instruction has the same number."""

    def __init__(self) -> None:
        self.values: list[Instruction] = []
        self._numbers: dict[tuple[str, tuple[int, ...], Static], int] = {}

    @classmethod
    def of(cls, program: Program, parts: Mapping[str, str]) -> tuple[Graph, list[int]]:
        """The graph of a program, and the numbers that its values have in it; `parts` are its levels there."""
        graph, numbers = cls(), list[int]()
        for value in program.values:
            args, static = tuple(numbers[arg] for arg in value.args), value.static
            if parts["i"] == "j" and value.op in ("sqdist", "dot"):
                static = (static[1], static[0], *static[2:])
            numbers.append(graph.add(value.op, *args, static=static, level=parts[value.level]))
        return graph, numbers

    def add(self, op: str, *args: int, static: Static = (), level: str | None = None) -> int:
        """The number of this instruction; `level` is that of a load, else it follows from the arguments.

        A "centre" is what its argument, known a row, is in the first row of a tile: there it is a parameter.
        """
        if op == "centre":
            level = "p"
        elif op in ("sqdist", "dot"):
            level = "ij"
        elif op != "load" or level is None:
            level = join(*(self.values[arg].level for arg in args))
        key = (op, args, (*static, level) if op == "load" else static)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(Instruction(op, args, static, level))
        return self._numbers[key]

    def constant(self, value: float) -> int:
        return self.add("const", static=(value,))

    def constant_of(self, number: int) -> float | None:
        value = self.values[number]
        return float(value.static[0]) if value.op == "const" else None

    def level(self, number: int) -> str:
        return self.values[number].level

    def multiply(self, a: int, b: int) -> int:
        """Their product; of constants, and with 1, without an instruction."""
        known = self.constant_of(a), self.constant_of(b)
        if known[0] is not None and known[1] is not None:
            return self.constant(known[0] * known[1])
        if known[0] == 1:
            return b
        return a if known[1] == 1 else self.add("mul", a, b)

    def product(self, factors: Iterable[int]) -> int:
        """Their product, what is known earliest multiplied first."""
        total = self.constant(1.0)
        for factor in sorted(factors, key=lambda number: ("p", "i", "j", "ij").index(self.level(number))):
            total = self.multiply(total, factor)
        return total

    def uses(self, roots: Iterable[int]) -> Counter[int]:
        """How often each value that the roots need is read."""
        counts: Counter[int] = Counter()
        left = list(roots)
        counts.update(left)
        seen = set[int]()
        while left:
            number = left.pop()
            if number not in seen:
                seen.add(number)
                counts.update(self.values[number].args)
                left.extend(self.values[number].args)
        return counts
