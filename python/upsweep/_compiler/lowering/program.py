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
    exp log sin cos asin acos atan tanh   (a)
    atan2 pow         (a, b)    as in C
    select            (mask, a, b)   a where the mask is true, else b
    sqdist dot ()     static (offset_i, offset_j, dim): the sum over k of (x_k - y_k)^2, of x_k * y_k, where x
                      and y are dim consecutive numbers of the records of i and j; for dim > `LONG`, level "ij"

Masks, which only `select` reads:

    lt le eq ne       (a, b)    false where one is NaN, but for ne

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["COMPARISONS", "FUNCTIONS", "LONG", "Instruction", "Program", "join"]


class Function(NamedTuple):
    """A scalar instruction that computes a number from numbers: the number of operands, and its numpy function."""

    n_args: int
    numpy: Callable[..., Any]


FUNCTIONS: dict[str, Function] = {
    **{op: Function(1, getattr(np, op)) for op in ("abs", "floor", "sqrt", "exp", "log", "sin", "cos", "tanh")},
    "neg": Function(1, np.negative), "rsqrt": Function(1, lambda a: 1 / np.sqrt(a)),
    "asin": Function(1, np.arcsin), "acos": Function(1, np.arccos), "atan": Function(1, np.arctan),
    "add": Function(2, np.add), "sub": Function(2, np.subtract), "mul": Function(2, np.multiply),
    "div": Function(2, np.divide), "atan2": Function(2, np.arctan2), "pow": Function(2, np.power),
}  # fmt: skip
"""Scalar functions; the builder folds constants by them."""

COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
"""Instructions that compute a mask from two numbers."""

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
    """A formula, and a weight, for one pair.

    Attributes
    ----------
    values : tuple of Instruction
        In order of evaluation.
    results, weights : tuple of int
        The ids of the components of the formula and of the weight; empty where loops store them.
    n_results, n_weights : int
        The numbers of components, in either case.
    i_components, j_components, p_components : tuple of (position, dim)
        The variables of each packed record, in order.
    """

    values: tuple[Instruction, ...]
    results: tuple[int, ...]
    weights: tuple[int, ...]
    n_results: int
    n_weights: int
    i_components: tuple[tuple[int, int], ...]
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
    kinds = sorted({kind for level in levels for kind in level if kind != "p"})
    return "".join(kinds) or "p"


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
