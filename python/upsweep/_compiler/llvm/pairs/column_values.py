"""Hoists the values of a formula that depend on the column alone out of the loop over pairs.

A packed column is extended by the values that instructions of pairs read from instructions of its level. A
separate function computes them, with columns in the lanes, before the tiles run:

    void prepare(columns, columns_stride, params, n_columns)

`columns` has the layout that the tile reads. The function works on whole vectors, so the buffer must extend
beyond the last column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from upsweep._compiler.llvm.instructions import Steps, cost_of
from upsweep._compiler.llvm.target import BITS, Target
from upsweep._compiler.llvm.vectors import Body, Value, Vectors
from upsweep._compiler.lowering.program import MASKS, Instruction, Program

if TYPE_CHECKING:
    from upsweep._compiler.formulas.reduction import PairReduction

_WORTH = 4  # instructions for each vector of pairs that a pass before them is worth
_CHEAP = ("load", "const")
_LOOPS = ("loop", "carry", "end", "number", "array", "put", "get", "result", "weight")


def part(program: Program, columns_kind: str) -> tuple[Program, tuple[int, ...]]:
    """The program of pairs, which loads what columns have been given, and the ids of those values.

    Where columns have loops over features, or masks for pairs, or nothing that is worth it, all stays as it is,
    and there are no ids.
    """
    own = {n for n, step in enumerate(program.values) if step.level == columns_kind}
    if any(program.values[n].op in _LOOPS for n in own):
        return program, ()
    selected = {*program.results, *program.weights}
    for step in program.values:
        if step.level != columns_kind:
            selected.update(step.args)
    ids = tuple(sorted(n for n in own & selected if program.values[n].op not in _CHEAP))
    if sum(cost_of(program.values[n]) for n in own) < _WORTH or any(program.values[n].op in MASKS for n in ids):
        return program, ()
    width, values = program.width(columns_kind), list(program.values)
    for n in own:
        if n in ids:
            values[n] = Instruction("load", (), (columns_kind, width + ids.index(n)), columns_kind)
        elif values[n].op != "load" or n not in selected:
            values[n] = Instruction("const", (), (0.0,), "p")  # nobody reads it any more
    return replace(program, values=tuple(values)), ids


def prepare_function(
    program: Program, reduction: PairReduction, target: Target, lanes_are: str, ids: tuple[int, ...]
) -> tuple[str, dict[str, str]]:
    """The text of `prepare` for the program before it was parted, and what it needs of the module."""
    body = Body()
    v = Vectors(body, target, BITS[reduction.dtype])
    kind = "j" if reduction.rows == "i" else "i"
    first = program.width(kind)
    width = first + len(ids)
    column, record = "", ""  # the index of the first column in the lanes, and where its record begins

    def address(place: int, lane: int) -> Value:
        """A number of a column; where lanes hold columns, of a vector of them."""
        if lanes_are == "columns":
            row = body.emit(f"mul i64 %columns_stride, {place}")
            at = body.emit(f"add i64 {row}, {column}")
        else:
            at = body.emit(f"add i64 {record}, {lane * width + place}")
        return v.at("%columns", at)

    def load(of: str, place: Value | int, column: int) -> Value:
        assert isinstance(place, int)  # there are no loops
        if of == "p":
            return v.number("%params", place)
        if lanes_are == "columns":
            return v.load(address(place, 0))
        result = "poison"
        for lane in range(v.lanes):
            one = body.emit(f"load {v.scalar}, ptr {address(place, lane)}")
            result = body.emit(f"insertelement {v.kind} {result}, {v.scalar} {one}, i64 {lane}")
        return result

    steps = Steps(v, program, frozenset({kind}), {}, 1, load, flush=False)
    steps.write_level("p")
    with body.loop("group", "%n_columns", step=v.lanes, guarded=True) as group:
        column = group.index
        record = body.emit(f"mul i64 {column}, {width}")
        steps.write_level(kind)
        for place, n in enumerate(ids, first):
            value = steps.value(n, 0)
            if lanes_are == "columns":
                v.store(value, address(place, 0))
                continue
            for lane in range(v.lanes):
                one = body.emit(f"extractelement {v.kind} {value}, i64 {lane}")
                body.do(f"store {v.scalar} {one}, ptr {address(place, lane)}")
    signature = "void @prepare(ptr noalias %columns, i64 %columns_stride, ptr noalias %params, i64 %n_columns) #0"
    return body.define(signature), body.needs
