"""LLVM IR of the instructions on integers, of words of 64 bits that hold the bits of an int64 or a uint64.

`instructions` calls `integer`. Operations that have no result in LLVM have one here, as in numpy: a quotient by 0
is 0, and shifts by 64 bits and more leave nothing but the sign. Casts of floats saturate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._compiler.llvm.vectors import Value, Vectors

_PLAIN = {"iadd": "add", "isub": "sub", "imul": "mul", "iand": "and", "ior": "or", "ixor": "xor"}
_COMPARED = {"ieq": "eq", "ine": "ne", "ilt": "slt", "ile": "sle", "unsigned_ilt": "ult", "unsigned_ile": "ule"}


def integer(v: Vectors, op: str, args: Sequence[Value], static: tuple[Any, ...]) -> Value:
    """The word, or the mask, of an instruction."""
    if op == "to_integer":
        name = f"llvm.fptosi.sat.v{v.lanes}i64.v{v.lanes}f64"
        return v.from_bits(v.body.call(v.ints, name, (v.kind, args[0])))
    if op in ("lookup", "integer_lookup"):
        return _lookup(v, args[0], static)
    if op == "integer":
        return v.from_bits(v.int_const(static[0]))
    a, *rest = map(v.to_bits, args)
    if op in ("to_float", "unsigned_to_float"):
        return v.body.emit(f"{'sitofp' if op == 'to_float' else 'uitofp'} {v.ints} {a} to {v.kind}")
    if op == "wrap":
        bits, is_signed = static
        upper = v.integer("shl", a, 64 - bits)
        return v.from_bits(v.integer("ashr" if is_signed else "lshr", upper, 64 - bits))
    (b,) = rest
    if op in _COMPARED:
        return v.body.emit(f"icmp {_COMPARED[op]} {v.ints} {a}, {b}")
    if op in _PLAIN:
        return v.from_bits(v.integer(_PLAIN[op], a, b))
    return v.from_bits(_shift(v, op, a, b) if op in _SHIFTS else _division(v, op, a, b))


def _lookup(v: Vectors, place: Value, words: tuple[int, ...]) -> Value:
    """The entries of a table of constants. Whatever the places are, no other memory is read."""
    entries = np.array(words, np.int64)
    if v.bits == 32:
        with np.errstate(over="ignore"):
            entries = entries.view(np.float64).astype(np.float32).view(np.int32)
    kind, body = f"i{v.bits}", v.body
    table = f"[{len(words)} x {kind}] [{', '.join(f'{kind} {entry}' for entry in entries.tolist())}]"
    name = f"@table_{hashlib.sha256(table.encode()).hexdigest()[:24]}"
    body.needs[name] = f"{name} = private unnamed_addr constant {table}, align 64\n"
    index = body.call(v.ints, f"llvm.fptosi.sat.v{v.lanes}{kind}.v{v.lanes}f{v.bits}", (v.kind, place))
    index = body.emit(f"freeze {v.ints} {index}")  # of lanes without data: the limit would not hold for poison
    last = v.int_const(len(words) - 1)
    index = body.call(v.ints, f"llvm.umin.v{v.lanes}{kind}", (v.ints, index), (v.ints, last))
    result = "poison"
    for lane in range(v.lanes):
        at = body.emit(f"extractelement {v.ints} {index}, i32 {lane}")
        entry = body.emit(f"load {v.scalar}, ptr {body.emit(f'getelementptr {kind}, ptr {name}, {kind} {at}')}")
        result = body.emit(f"insertelement {v.kind} {result}, {v.scalar} {entry}, i32 {lane}")
    return result


_SHIFTS = {"ishl": "shl", "ishr": "ashr", "unsigned_ishr": "lshr"}


def _shift(v: Vectors, op: str, a: Value, b: Value) -> Value:
    few = v.body.emit(f"icmp ult {v.ints} {b}, {v.int_const(64)}")
    result = v.integer(_SHIFTS[op], a, v.int_select(few, b, v.int_const(63)))
    return result if op == "ishr" else v.int_select(few, result, v.int_const(0))


def _division(v: Vectors, op: str, a: Value, b: Value) -> Value:
    """The quotient, rounded down, or the remainder, which has the sign of b; both are 0 where b is."""
    zero, is_signed = v.int_const(0), not op.startswith("unsigned_")
    by_zero = v.body.emit(f"icmp eq {v.ints} {b}, {zero}")
    # Of the least integer and -1 the quotient overflows, which traps: it is the negative of a.
    by_minus = v.body.emit(f"icmp eq {v.ints} {b}, {v.int_const(-1)}") if is_signed else v.bool_const(False)
    is_special = v.logical("or", by_zero, by_minus)
    divisor = v.int_select(is_special, v.int_const(1), b)
    quotient = v.integer("sdiv" if is_signed else "udiv", a, divisor)
    rest = v.integer("sub", a, v.integer("mul", quotient, divisor))
    if is_signed:
        differs = v.body.emit(f"icmp slt {v.ints} {v.integer('xor', rest, divisor)}, {zero}")
        is_above = v.logical("and", differs, v.body.emit(f"icmp ne {v.ints} {rest}, {zero}"))
        quotient = v.int_select(is_above, v.integer("sub", quotient, 1), quotient)
        rest = v.int_select(is_above, v.integer("add", rest, divisor), rest)
        quotient = v.int_select(by_minus, v.integer("sub", zero, a), quotient)
    if op.endswith("imod"):
        return v.int_select(is_special, zero, rest)
    return v.int_select(by_zero, zero, quotient)
