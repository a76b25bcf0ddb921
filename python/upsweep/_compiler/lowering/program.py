"""The scalar program: what a renderer reads.

A program is a list of instructions in order of evaluation; the id of a value is its place in the list. For small
dims there is straight-line code only; more features are walked by loops, which are brackets in the list.

Every instruction has a level, which says how often its value changes: "p" once a call, "i" once a row, "j" once a
column, "ij" once a pair. Arguments are of the same level or a part of it, so that a renderer hoists by taking the
instructions of one level after another, each in the order of the list. All of a loop, from `loop` to `end`, is of
one level; what does not depend on its index or carries lies before it.

Numbers (values of the reduction's dtype; `const` holds float64, rounded when rendered):

    const ()          static (value,)
    load (loops...)   static (kind, offset, strides...): the number at offset + sum(loop * stride) in the packed
                      record of kind "i", "j" or "p"; `Program.i_components` and so on say what lies where
    add sub mul div   (a, b)    a product that is added or subtracted may be fused with the sum into one fma
    neg abs floor     (a)
    sqrt rsqrt        (a)       rsqrt(a) = 1 / sqrt(a), infinite at 0
    exp log sin cos asin acos atan tanh   (a)
    atan2 pow         (a, b)    as in C
    select            (mask, a, b)   a where the mask is true, else b
    sqdist dot ()     static (offset_i, offset_j, dim): the sum over k of (x_k - y_k)^2, of x_k * y_k, where x
                      and y are dim numbers in a row in the records of i and j; only for dim > `LONG`, level "ij"

Masks, which only `select` reads:

    lt le eq ne       (a, b)    false where one is NaN, but for ne

Loops over features:

    loop ()           static (extent,): its value is the index 0 .. extent - 1, an integer
    carry (init, loop)   directly behind `loop`: a number that starts as init; behind `end` its id is the last one
    end (loop, next...)  closes the loop and says what its carries become, in their order and all at once
    number (loop)     the index as a number
    array ()          static (extent,): numbers that are kept, `put` before they are `get`
    put (array, value, loops...)  static (offset, strides...)
    get (array, loops...)         static (offset, strides...)
    result weight (value, loops...)   static (offset, strides...): this component of the formula, or of the
                      weight, is value; only where `results` or `weights` is empty though there are some

Nothing but loads and levels knows of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LONG", "Instruction", "Program", "join"]

LONG = 32
"""Squared distances and scalar products of more features are one instruction; a renderer may set another limit."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step: an operation on the values with these ids, and its numbers."""

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
        The ids of the components of the formula and of the weight; empty where loops hand them out.
    n_results, n_weights : int
        How many there are in any case.
    i_components, j_components, p_components : tuple of (position, dim)
        The packed records: these variables, one behind the other.
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
        return f"v{n} = {step.static[0]}[{_place(args, step.static[1:])}]"
    if step.op == "get":
        return f"v{n} = {args[0]}[{_place(args[1:], step.static)}]"
    if step.op == "put":
        return f"{args[0]}[{_place(args[2:], step.static)}] = {args[1]}"
    if step.op in ("result", "weight"):
        return f"{step.op}[{_place(args[1:], step.static)}] = {args[0]}"
    if step.op == "loop":
        return f"for v{n} in 0 .. {step.static[0]}:"
    if step.op == "end":
        return f"again with {', '.join(args[1:])}" if args[1:] else "again"
    written = ", ".join([*args, *map(repr, step.static)])
    return f"v{n} = {step.op}({written})"


def _place(loops: list[str], static: tuple[int, ...]) -> str:
    offset, *strides = static
    terms = [loop if stride == 1 else f"{stride} {loop}" for loop, stride in zip(loops, strides)]
    return " + ".join([*([str(offset)] if offset or not terms else []), *terms])
