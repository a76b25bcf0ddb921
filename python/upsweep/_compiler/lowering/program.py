"""The scalar program: the intermediate representation between formulas and the code generators.

A program is a list of instructions in order of evaluation; the id of a value (its value number) is its position in
the list. Vectors of few features are straight-line code; longer ones are processed by loops, which are brackets in
the list.

Every instruction has a level, which says how often its value changes: "p" once a call, "i" once a row, "j" once a
column, "ij" once a pair. Operands are of the same level or a part of it, so that a code generator hoists invariant
code by emitting the instructions of one level after another, each in the order of the list. A loop, from `loop` to
`end`, is of one level; instructions that do not depend on its index or carries precede it.

Numbers (values of the reduction's dtype; `const` holds float64, rounded when rendered):

    const ()          static (value,)
    load (loops...)   static (kind, offset, strides...): the number at offset + sum(loop * stride) in the packed
                      record of kind "i", "j" or "p", whose layout is `Program.i_components` and so on
    add sub mul div   (a, b)    a product that is added or subtracted may be fused with the sum into one fma
    neg abs floor     (a)
    sqrt rsqrt        (a)       rsqrt(a) = 1 / sqrt(a), infinite at 0
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf (a)
    rint              (a)       to the nearest integer, halves to the even one
    atan2 pow fmod hypot copysign    (a, b)    as in C
    select            (mask, a, b)   a where the mask is true, else b
    sqdist dot ()     static (offset_i, offset_j, dim): the sum over k of (x_k - y_k)^2, of x_k * y_k, where x
                      and y are dim consecutive numbers of the records of i and j; for dim > `LONG`, level "ij"

Integers, in recurrences of words of 64 bits, where a number may be the bits of an integer; `formulas.ops.INTEGER`:

    integer ()        static (value,)
    iadd isub imul iand ior ixor ishl ishr idiv imod   (a, b)    ishr, idiv and imod also unsigned_
    to_float unsigned_to_float to_integer              (a)       a cast
    wrap                                               (a)       static (bits, is_signed)
    lookup integer_lookup                              (a)       static: the words of a table, of floats or of
                      integers; the entry at the number a, or at another place of the table if a is none

Masks, which only `select` reads:

    lt le eq ne       (a, b)    false where one is NaN, but for ne
    ilt ile ieq ine   (a, b)    of integers; ilt and ile also unsigned_

Loops over features:

    loop ()           static (extent,): its value is the index 0 .. extent - 1, an integer
    carry (init, loop)   directly after `loop`: a loop-carried number, at first init; after `end` its final value
    end (loop, next...)  closes the loop and assigns the next values to its carries, in order and simultaneously
    number (loop)     the index as a number
    array ()          static (extent,): a local array, `put` before `get`
    put (array, value, loops...)  static (offset, strides...)
    get (array, loops...)         static (offset, strides...)
    result weight (value, loops...)   static (offset, strides...): stores a component of the formula or of the
                      weight, where it is a loop that computes them and `results` or `weights` is empty

Only loads and levels depend on pairs; recurrences are lowered to the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import KINDS


class Function(NamedTuple):
    """A scalar instruction that computes a number from numbers: the number of operands, and its numpy function."""

    n_args: int
    numpy: Callable[..., Any]


LOWERED = ("where", "minimum", "maximum", "logaddexp", "sigmoid")
"""Operations of `ops.SCALAR` that take several instructions; each of the others is one."""

FUNCTIONS: dict[str, Function] = {
    **{
        op: Function(ops.arity(op), ops.numpy_function(op))
        for op in ("add", "sub", "mul", "div", "neg", "abs", "floor", "sqrt", "exp", "log", "sin", "cos", "tanh",
                   "asin", "acos", "atan", "atan2", *(op for op in ops.SCALAR if op not in LOWERED))
    },
    "rsqrt": Function(1, lambda a: 1 / np.sqrt(a)), "pow": Function(2, np.power),
}  # fmt: skip
"""Scalar functions; the builder folds constants by them."""

COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
"""Instructions that compute a mask from two numbers."""

MASKS = (*COMPARISONS, *ops.INTEGER_COMPARISONS)

LONG = 32
"""Squared distances and scalar products of more features are one instruction; a code generator may use another
limit."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An operation, the ids of its operands, its static arguments, and its level."""

    op: str
    args: tuple[int, ...]
    static: tuple[Any, ...]
    level: str


@dataclass(frozen=True, slots=True)
class Program:
    """A formula, and a weight, for one pair."""

    values: tuple[Instruction, ...]  # in order of evaluation
    results: tuple[int, ...]  # the ids of the components of the formula; empty where loops store them
    weights: tuple[int, ...]  # those of the weight
    n_results: int  # the numbers of components, in either case
    n_weights: int
    i_components: tuple[tuple[int, int], ...]  # position and dim of the variables of each packed record, in order
    j_components: tuple[tuple[int, int], ...]
    p_components: tuple[tuple[int, int], ...]

    def components(self, kind: str) -> tuple[tuple[int, int], ...]:
        """The variables in the packed record of a kind."""
        return {"i": self.i_components, "j": self.j_components, "p": self.p_components}[kind]

    def width(self, kind: str) -> int:
        """The numbers in the packed record of a kind."""
        return sum(dim for _, dim in self.components(kind))

    def __str__(self) -> str:
        lines, depth = [], 0
        for n, step in enumerate(self.values):
            depth -= step.op == "end"
            lines.append(f"{step.level:3}{'    ' * depth}{_line(n, step)}")
            depth += step.op == "loop"
        for name, ids in (("results", self.results), ("weights", self.weights)):
            if ids:
                lines.append(f"{name}: {' '.join(f'v{n}' for n in ids)}")
        return "\n".join(lines)


def join(*levels: str) -> str:
    """The level of what depends on values of these levels."""
    moving = {*levels} - {"p"}
    return "ij" if len(moving) > 1 else moving.pop() if moving else "p"


def _line(n: int, step: Instruction) -> str:
    args = [f"v{arg}" for arg in step.args]
    if step.op == "load":
        return f"v{n} = {step.static[0]}[{_index_text(args, step.static[1:])}]"
    if step.op == "get":
        return f"v{n} = {args[0]}[{_index_text(args[1:], step.static)}]"
    if step.op == "put":
        return f"{args[0]}[{_index_text(args[2:], step.static)}] = {args[1]}"
    if step.op in ("result", "weight"):
        return f"{step.op}[{_index_text(args[1:], step.static)}] = {args[0]}"
    if step.op == "loop":
        return f"for v{n} in 0 .. {step.static[0]}:"
    if step.op == "end":
        return f"again with {', '.join(args[1:])}" if args[1:] else "again"
    written = ", ".join([*args, *map(repr, step.static)])
    return f"v{n} = {step.op}({written})"


def _index_text(loops: list[str], static: tuple[int, ...]) -> str:
    offset, *strides = static
    terms = [loop if stride == 1 else f"{stride} {loop}" for loop, stride in zip(loops, strides)]
    return " + ".join([*([str(offset)] if offset or not terms else []), *terms])


# ---- verifier --------------------------------------------------------------------------------------------------

# The number of operands of instructions that access no features by index and are not scalar functions.
_N_ARGS = {"const": 0, "integer": 0, "select": 3, "number": 1, "carry": 2, "loop": 0, "array": 0, **ops.INTEGER}
# Instructions that access features: the operands and the static arguments before the index.
_INDEXED = {"load": (0, 1), "put": (2, 0), "get": (1, 0), "result": (1, 0), "weight": (1, 0)}
_NO_VALUE = ("end", "put", "result", "weight")


def check_program(program: Program) -> None:
    """Assert, on each program that lowering produces, that no pass has a defect.

    Checked are operands, levels, nesting of loops, bounds of accesses, and completeness of the results.
    """
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
        are_numbers = all(visible.has(n) and values[n].op not in (*MASKS, *_NO_VALUE) for n in ids)
        assert are_numbers, f"{op}s are no numbers"


def _check_arguments(program: Program, n: int, step: Instruction, widths: Mapping[str, int]) -> None:
    """Check the number and the types of the operands, and the bounds of an access."""
    values, read = program.values, [program.values[arg].op for arg in step.args]
    name = f"v{n}, {step.op}"
    masks = [op in MASKS for op in read]
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
        self._values, self.loops, self._visible = values, list[int](), set[int]()

    def has(self, n: int) -> bool:
        return n in self._visible

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
        self._visible.add(n)
        step = self._values[n]
        if step.op == "end":
            assert self.loops and step.args[0] == self.loops[-1], f"v{n}, end, is not that of the innermost loop"
            loop = self.loops.pop()
            carries = [m for m in range(loop, n) if self._values[m].op == "carry" and loop in self._values[m].args]
            assert len(step.args) == 1 + len(carries), f"v{n}, end, does not give all carries their values"
            self._visible -= set(range(loop, n + 1)) - set(carries)
