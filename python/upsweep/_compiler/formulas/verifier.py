"""The grammar of formulas and of programs, checked between passes: a bad graph dies where it was made.

`check_formula` holds for every graph of nodes, `check_program` for every scalar program. What they find is a
mistake in a pass, an AssertionError; what is found in a user's own variables is a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import KINDS, Node, order
from upsweep._compiler.lowering.program import Instruction, Program, join

__all__ = ["check_formula", "check_program", "check_variables"]

_LEAVES = {"variable": 2, "constant": 1, "zero": 1}

# How many arguments an instruction has, and how many of its static numbers come before the place of a load.
_NUMBERS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "atan2", "pow"), 2),
    **dict.fromkeys(("neg", "abs", "floor", "sqrt", "rsqrt", "exp", "log"), 1),
    **dict.fromkeys(("sin", "cos", "asin", "acos", "atan", "tanh"), 1),
    "const": 0, "select": 3, "sqdist": 0, "dot": 0, "number": 1, "carry": 2, "loop": 0, "array": 0,
}  # fmt: skip
_MASKS = ("lt", "le", "eq", "ne")
_PLACED = {"load": (0, 1), "put": (2, 0), "get": (1, 0), "result": (1, 0), "weight": (1, 0)}
_NO_VALUE = ("end", "put", "result", "weight")


def check_variables(*roots: Node) -> None:
    """Each array is read with one dim and one kind.

    Raises
    ------
    ValueError
        If formulas of one reduction disagree about an array.
    """
    declared: dict[int, Node] = {}
    for node in order(*roots):
        if node.op == "variable":
            other = declared.setdefault(node.static[0], node)
            if other is not node:
                raise ValueError(f"array {node.static[0]} cannot be {other!r} and {node!r} in one formula")


def check_formula(*roots: Node) -> None:
    """Every node is an operation of the table on arguments that it takes, with the dim that follows from them."""
    for node in order(*roots):
        if node.op in _LEAVES:
            assert not node.args and len(node.static) == _LEAVES[node.op], f"a malformed {node.op}"
            assert node.op != "variable" or node.static[1] in KINDS, f"a variable of kind {node.static[1]}"
            continue
        row = ops.TABLE.get(node.op)
        assert row is not None, f"no operation {node.op}"
        assert row.expand is None, f"{row.keops} was not written in terms of others"
        assert len(node.args) == row.arity, f"{row.keops} of {len(node.args)} arguments"
        assert row.n_static[0] <= len(node.static) <= row.n_static[1], (
            f"{row.keops} with the numbers {node.static}"
        )
        dim = row.dim(tuple(arg.dim for arg in node.args), node.static)
        assert node.dim == dim, f"{row.keops} of dim {node.dim}, which should be {dim}"


def check_program(program: Program) -> None:
    """Instructions read what is there, at a level that holds theirs; loops are whole, and results complete."""
    values = program.values
    widths = {kind: program.width(kind) for kind in KINDS}
    visible = _Visible(values)
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
        handed_out = not ids and any(step.op == op for step in values)
        assert len(ids) == count or handed_out, f"{op}s are missing"
        assert all(visible.has(n) and values[n].op not in (*_MASKS, *_NO_VALUE) for n in ids), (
            f"{op}s are no numbers"
        )


def _check_arguments(program: Program, n: int, step: Instruction, widths: Mapping[str, int]) -> None:
    """The number and the kind of what an instruction reads, and that its place is inside of what it reads from."""
    values, read = program.values, [program.values[arg].op for arg in step.args]
    known = f"v{n}, {step.op}"
    masks = [op in _MASKS for op in read]
    expected = [True, False, False] if step.op == "select" else [False] * len(read)
    assert masks == expected, f"{known}, reads a mask as a number, or a number as a mask"
    assert not set(read) & set(_NO_VALUE), f"{known}, reads what has no value"
    if step.op in _PLACED:
        n_args, n_static = _PLACED[step.op]
        loops, (offset, *strides) = step.args[n_args:], step.static[n_static:]
        assert len(loops) == len(strides) and all(values[loop].op == "loop" for loop in loops), (
            f"{known}: no place"
        )
        ends = [stride * (values[loop].static[0] - 1) for loop, stride in zip(loops, strides)]
        first, last = offset + sum(min(0, end) for end in ends), offset + sum(max(0, end) for end in ends)
        assert first >= 0 and last < _extent(program, step, widths), (
            f"{known}, leaves what it reads or writes: {step.static}"
        )
    elif step.op == "end":
        assert read[0] == "loop", f"{known}, of no loop"
    elif step.op in ("sqdist", "dot"):
        at_i, at_j, dim = step.static
        assert dim > 0 and at_i + dim <= widths["i"] and at_j + dim <= widths["j"], known
    else:
        assert len(read) == (2 if step.op in _MASKS else _NUMBERS[step.op]), f"{known} of {len(read)} arguments"


def _extent(program: Program, step: Instruction, widths: Mapping[str, int]) -> int:
    if step.op == "load":
        return widths[step.static[0]]
    if step.op in ("put", "get"):
        array: int = program.values[step.args[0]].static[0]
        return array
    return program.n_results if step.op == "result" else program.n_weights


class _Visible:
    """What can be read at a place of a program: what was computed before, outside of loops that have ended."""

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
