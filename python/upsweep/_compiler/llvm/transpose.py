"""Transposes squares of vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence

from upsweep._compiler.llvm.vectors import Value, Vectors

_PIECE = 16  # bytes, within which the machine's cheapest shuffles stay


def turned(v: Vectors, rows: Sequence[Value]) -> list[Value]:
    """As many vectors as one has lanes, with rows for columns.

    First numbers find their places within pieces, then pieces do. So every shuffle has its pattern in the
    instruction; one that takes any number from anywhere has it in a register, and half the rate.
    """
    piece = _PIECE // (v.bits // 8)
    within = _turn_pieces(v, list(rows), piece)
    result: list[Value] = [""] * v.lanes
    for column in range(piece):
        for place, value in enumerate(_turn_whole(v, within[column::piece], piece)):
            result[place * piece + column] = value
    return result


def _turn_pieces(v: Vectors, rows: list[Value], piece: int) -> list[Value]:
    """Of `piece` rows each, every piece turned."""
    size = 1  # of numbers that have found each other
    while size < piece:
        merged = list(rows)
        for first in range(0, v.lanes, 2 * size):
            for k in range(size):
                a, b = rows[first + k], rows[first + size + k]
                for half in range(2):
                    lanes = [
                        start + half * (piece // 2) + part + place + v.lanes * which
                        for start in range(0, v.lanes, piece)
                        for part in range(0, piece // 2, size)
                        for which in range(2)
                        for place in range(size)
                    ]
                    merged[first + 2 * k + half] = v.shuffle(a, b, lanes)
        rows = merged
        size *= 2
    return rows


def _turn_whole(v: Vectors, values: list[Value], piece: int) -> list[Value]:
    """A square of pieces, turned; one, two or four a side."""

    def picked(a: Value, b: Value, of_each: tuple[int, ...]) -> Value:
        places = (*of_each, *(n + len(values) for n in of_each))
        return v.shuffle(a, b, [n * piece + k for n in places for k in range(piece)])

    if len(values) == 1:
        return values
    if len(values) == 2:
        return [picked(values[0], values[1], (place,)) for place in range(2)]
    a, b, c, d = values
    result = []
    for half in ((0, 1), (2, 3)):
        two = picked(a, b, half), picked(c, d, half)
        result += [picked(*two, (0, 2)), picked(*two, (1, 3))]
    return result
