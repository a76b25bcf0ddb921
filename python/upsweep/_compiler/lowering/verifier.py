"""Verifier of scalar programs, run on each program that lowering produces.

A violation is a defect of a pass, and an AssertionError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upsweep._compiler.formulas.nodes import KINDS
from upsweep._compiler.lowering.program import COMPARISONS, FUNCTIONS, Instruction, Program, join

__all__ = ["check_program"]

# The number of operands of instructions that access no features by index and are not scalar functions.
_N_ARGS = {"const": 0, "select": 3, "number": 1, "carry": 2, "loop": 0, "array": 0}
# Instructions that access features: the operands and the static arguments before the index.
_INDEXED = {"load": (0, 1), "put": (2, 0), "get": (1, 0), "result": (1, 0), "weight": (1, 0)}
_NO_VALUE = ("end", "put", "result", "weight")


def check_program(program: Program) -> None:
    """Check operands, levels, nesting of loops, bounds of accesses, and completeness of the results."""
    values = program.values
    widths = {kind: program.width(kind) for kind in KINDS}
    visible = _Scopes(values)
    for n, step in enumerate(values):
        visible.before(n, step)
        _check_arguments(program, n, step, widths)
        for arg in step.args:
            assert visible.has(arg), f"v{n}, {step.op}, reads v{arg} outside of its loop"
            below = values[arg].level
            assert join(below, step.level) == step.level, f"v{n} of level {step.level} reads v{arg} of {below}"
        visible.after(n)
    assert not visible.loops, "a loop without an end"
    components = (("result", program.results, program.n_results), ("weight", program.weights, program.n_weights))
    for op, ids, count in components:
        stored_in_loops = not ids and any(step.op == op for step in values)
        assert len(ids) == count or stored_in_loops, f"{op}s are missing"
        are_numbers = all(visible.has(n) and values[n].op not in (*COMPARISONS, *_NO_VALUE) for n in ids)
        assert are_numbers, f"{op}s are no numbers"


def _check_arguments(program: Program, n: int, step: Instruction, widths: Mapping[str, int]) -> None:
    """Check the number and the types of the operands, and the bounds of an access."""
    values, read = program.values, [program.values[arg].op for arg in step.args]
    name = f"v{n}, {step.op}"
    masks = [op in COMPARISONS for op in read]
    expected = [True, False, False] if step.op == "select" else [False] * len(read)
    assert masks == expected, f"{name}, reads a mask as a number, or a number as a mask"
    assert not set(read) & set(_NO_VALUE), f"{name}, reads what has no value"
    if step.op in _INDEXED:
        n_args, n_static = _INDEXED[step.op]
        loops, (offset, *strides) = step.args[n_args:], step.static[n_static:]
        assert len(loops) == len(strides) and all(values[loop].op == "loop" for loop in loops), f"{name}: no place"
        ends = [stride * (values[loop].static[0] - 1) for loop, stride in zip(loops, strides)]
        first, last = offset + sum(min(0, end) for end in ends), offset + sum(max(0, end) for end in ends)
        assert first >= 0 and last < _extent(program, step, widths), (
            f"{name}, leaves what it reads or writes: {step.static}"
        )
    elif step.op == "end":
        assert read[0] == "loop", f"{name}, of no loop"
    elif step.op in ("sqdist", "dot"):
        at_i, at_j, dim = step.static
        assert dim > 0 and at_i + dim <= widths["i"] and at_j + dim <= widths["j"], name
    else:
        function = FUNCTIONS.get(step.op)
        n_args = 2 if step.op in COMPARISONS else _N_ARGS[step.op] if function is None else function.n_args
        assert len(read) == n_args, f"{name} of {len(read)} arguments"


def _extent(program: Program, step: Instruction, widths: Mapping[str, int]) -> int:
    if step.op == "load":
        return widths[step.static[0]]
    if step.op in ("put", "get"):
        array: int = program.values[step.args[0]].static[0]
        return array
    return program.n_results if step.op == "result" else program.n_weights


class _Scopes:
    """The values in scope at a point of a program: earlier ones, but for those inside loops that have ended."""

    def __init__(self, values: Sequence[Instruction]) -> None:
        self._values = values
        self.loops: list[int] = []
        self._levels: list[str] = []
        self._hidden: set[int] = set()
        self._known = 0

    def has(self, n: int) -> bool:
        return n < self._known and n not in self._hidden

    def before(self, n: int, step: Instruction) -> None:
        if step.op == "loop":
            self.loops.append(n)
        if self.loops:
            level = self._values[self.loops[0]].level
            assert step.level == level, f"v{n} of level {step.level} in a loop of {level}"
        if step.op == "carry":
            behind = all(self._values[m].op == "carry" for m in range(step.args[1] + 1, n))
            assert behind and step.args[1] == self.loops[-1], f"v{n}, carry, is not directly behind its loop"

    def after(self, n: int) -> None:
        self._known = n + 1
        step = self._values[n]
        if step.op == "end":
            assert self.loops and step.args[0] == self.loops[-1], f"v{n}, end, is not that of the innermost loop"
            loop = self.loops.pop()
            carries = [m for m in range(loop, n) if self._values[m].op == "carry" and loop in self._values[m].args]
            assert len(step.args) == 1 + len(carries), f"v{n}, end, does not give all carries their values"
            self._hidden.update(set(range(loop, n + 1)) - set(carries))
