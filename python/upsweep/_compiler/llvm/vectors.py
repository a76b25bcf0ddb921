"""A writer for LLVM IR text: a function's body, and arithmetic on vectors of one width.

The IR is written as text, because building it from objects takes longer than compiling it. A value is
represented by its name in the text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from upsweep._compiler.llvm.target import Target

__all__ = ["Body", "Vectors"]

Value = str

_LINE = 64  # bytes, of the cache
_MOST_ON_STACK = 4096


class Body:
    """The lines of one function, its constants, and what it needs of the module."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []  # what comes before all lines: constants, memory of the stack
        self.needs: dict[str, str] = {}  # declarations and functions, by name
        self._n_names = 0
        self._constants: dict[str, Value] = {}
        self.block = "start"  # the label of the block that is being written
        self.workspace = 0  # bytes of the memory that the caller brings

    def name(self, hint: str = "v") -> Value:
        """A name that nothing has yet."""
        self._n_names += 1
        return f"%{hint}{self._n_names}"

    def emit(self, text: str) -> Value:
        """Append an instruction and return the name of its result."""
        result = self.name()
        self.lines.append(f"  {result} = {text}")
        return result

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def label(self, hint: str) -> str:
        """A new label, to be placed later."""
        return self.name(hint)[1:]

    def place(self, label: str) -> None:
        """Begin the block of a label."""
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, condition: Value, yes: str, no: str, *, rarely: bool = False) -> None:
        """End the block by a branch; `rarely` keeps the first target out of the way of the second."""
        weights = ", !prof !0" if rarely else ""
        self.do(f"br i1 {condition}, label %{yes}, label %{no}{weights}")

    def constant(self, kind: str, text: str) -> Value:
        """A constant that is spelled out once; the no-op that names it is folded away."""
        key = f"{kind} {text}"
        if key not in self._constants:
            self._constants[key] = self.name("k")
            self.entry.append(f"  {self._constants[key]} = bitcast {key} to {kind}")
        return self._constants[key]

    def room(self, n_bytes: int) -> Value:
        """Memory for the time of the call: little from the stack, which may be small, much from the caller."""
        if n_bytes <= _MOST_ON_STACK:
            return self.stack("i8", n_bytes, _LINE)
        result = self.name("m")
        self.entry.append(f"  {result} = getelementptr i8, ptr %workspace, i64 {self.workspace}")
        self.workspace += -(-n_bytes // _LINE) * _LINE
        return result

    def stack(self, kind: str, count: int, align: int) -> Value:
        """Memory of the stack for the time of the call."""
        result = self.name("m")
        self.entry.append(f"  {result} = alloca {kind}, i64 {count}, align {align}")
        return result

    def define(self, signature: str) -> str:
        """The whole function, with what it needs after it."""
        lines = [f"define {signature} {{", "start:", *self.entry, *self.lines, "}"]
        return "\n".join(lines) + "\n"


def _bits(bits: int, value: float) -> int:
    form = "<f" if bits == 32 else "<d"
    return int.from_bytes(struct.pack(form, value), "little")


class Vectors:
    """Arithmetic on vectors of `lanes` floats of 32 or 64 bits.

    Each operation rounds once, as written: LLVM may not contract a product and a sum. Where it does depends on the
    code around them, so that two copies of one computation (the body and the rest of a loop, one row and several)
    would differ in their last bits.
    """

    def __init__(self, body: Body, target: Target, bits: int, lanes: int) -> None:
        self.body, self.target, self.bits, self.lanes = body, target, bits, lanes
        self.scalar = "float" if bits == 32 else "double"
        self.kind = f"<{lanes} x {self.scalar}>"
        self.ints = f"<{lanes} x i{bits}>"
        self.bools = f"<{lanes} x i1>"
        self.mantissa = 23 if bits == 32 else 52
        self.bias = 127 if bits == 32 else 1023
        self.suffix = f"v{lanes}f{bits}"

    def with_bits(self, bits: int, lanes: int) -> Vectors:
        """Vectors of another width in the same body."""
        return Vectors(self.body, self.target, bits, lanes)

    # ---- constants ----

    def spelled(self, value: float) -> str:
        """A scalar constant: LLVM spells floats as doubles in hexadecimal."""
        if self.bits == 32:
            (value,) = (
                struct.unpack("<f", struct.pack("<f", value)) if abs(value) <= 3.4028235677973362e38 else (value,)
            )
        return f"0x{_bits(64, value):016X}"

    def const(self, value: float) -> Value:
        one = f"{self.scalar} {self.spelled(value)}"
        return self.body.constant(self.kind, "<" + ", ".join([one] * self.lanes) + ">")

    def int_const(self, value: int) -> Value:
        return self.body.constant(self.ints, "<" + ", ".join([f"i{self.bits} {value}"] * self.lanes) + ">")

    def int_sequence(self, step: int = 1) -> Value:
        items = ", ".join(f"i{self.bits} {step * lane}" for lane in range(self.lanes))
        return self.body.constant(self.ints, f"<{items}>")

    # ---- arithmetic ----

    def _two(self, op: str, a: Value, b: Value) -> Value:
        return self.body.emit(f"{op} {self.kind} {a}, {b}")

    def add(self, a: Value, b: Value) -> Value:
        return self._two("fadd", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self._two("fsub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self._two("fmul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self._two("fdiv", a, b)

    def neg(self, a: Value) -> Value:
        return self.body.emit(f"fneg {self.kind} {a}")

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An intrinsic of LLVM whose arguments and result are such vectors."""
        full = f"@llvm.{name}.{self.suffix}"
        kinds = ", ".join([self.kind] * len(args))
        self.body.needs[full] = f"declare {self.kind} {full}({kinds})\n"
        return self.body.emit(f"call {self.kind} {full}({', '.join(f'{self.kind} {arg}' for arg in args)})")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the machine can: what uses it holds for two roundings too."""
        if self.target.fma:
            return self.intrinsic("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def fused(self, op: str, args: Sequence[Value], factors: Sequence[Sequence[Value] | None]) -> Value:
        """The sum or difference ("add", "sub") of two values, fused with one that is a product.

        `factors` are the two factors of each value that is a product, else None. The first product is the one that
        is fused.
        """
        (a, b), (of_a, of_b) = args, factors
        if self.target.fma and of_a is not None:
            x, y = of_a
            return self.fma(x, y, b if op == "add" else self.neg(b))
        if self.target.fma and of_b is not None:
            x, y = of_b
            return self.fma(x if op == "add" else self.neg(x), y, a)
        return self.add(a, b) if op == "add" else self.sub(a, b)

    def sqrt(self, a: Value) -> Value:
        return self.intrinsic("sqrt", a)

    def abs(self, a: Value) -> Value:
        return self.intrinsic("fabs", a)

    def floor(self, a: Value) -> Value:
        return self.intrinsic("floor", a)

    def copysign(self, size: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", size, sign)

    # ---- comparisons ----

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        return self.body.emit(f"fcmp {predicate} {self.kind} {a}, {b}")

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.body.emit(f"select {self.bools} {mask}, {self.kind} {a}, {self.kind} {b}")

    def at_most(self, x: Value, limit: Value) -> Value:
        """min(x, limit); NaN stays."""
        return self.select(self.compare("ogt", x, limit), limit, x)

    def at_least(self, x: Value, limit: Value) -> Value:
        """max(x, limit); NaN stays."""
        return self.select(self.compare("olt", x, limit), limit, x)

    def logical(self, op: str, a: Value, b: Value) -> Value:
        return self.body.emit(f"{op} {self.bools} {a}, {b}")

    def any(self, mask: Value) -> Value:
        """Whether a lane is set."""
        as_bits = self.body.emit(f"bitcast {self.bools} {mask} to i{self.lanes}")
        return self.body.emit(f"icmp ne i{self.lanes} {as_bits}, 0")

    # ---- integers ----

    def to_bits(self, a: Value) -> Value:
        return self.body.emit(f"bitcast {self.kind} {a} to {self.ints}")

    def from_bits(self, a: Value) -> Value:
        return self.body.emit(f"bitcast {self.ints} {a} to {self.kind}")

    def integer(self, op: str, a: Value, b: Value | int) -> Value:
        other = self.int_const(b) if isinstance(b, int) else b
        return self.body.emit(f"{op} {self.ints} {a}, {other}")

    def int_select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.body.emit(f"select {self.bools} {mask}, {self.ints} {a}, {self.ints} {b}")

    def bits_of(self, value: float) -> int:
        return _bits(self.bits, value)

    # ---- memory and widths ----

    def room(self, count: int) -> Value:
        """Memory for so many vectors."""
        return self.body.room(count * self.lanes * self.bits // 8)

    def load(self, pointer: Value, align: int | None = None) -> Value:
        return self.body.emit(f"load {self.kind}, ptr {pointer}, align {align or self.bits // 8}")

    def store(self, a: Value, pointer: Value, align: int | None = None, past_caches: bool = False) -> None:
        how = ", !nontemporal !1" if past_caches else ""
        self.body.do(f"store {self.kind} {a}, ptr {pointer}, align {align or self.bits // 8}{how}")

    def splat(self, scalar: Value) -> Value:
        one = self.body.emit(f"insertelement {self.kind} poison, {self.scalar} {scalar}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.body.emit(f"shufflevector {self.kind} {one}, {self.kind} poison, {zeros}")

    def int_splat(self, scalar: Value) -> Value:
        one = self.body.emit(f"insertelement {self.ints} poison, i{self.bits} {scalar}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.body.emit(f"shufflevector {self.ints} {one}, {self.ints} poison, {zeros}")

    def part(self, a: Value, lanes: Sequence[int]) -> Value:
        """Some lanes, as a shorter vector."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.body.emit(f"shufflevector {self.kind} {a}, {self.kind} poison, <{len(lanes)} x i32> <{mask}>")

    def joined(self, a: Value, b: Value) -> Value:
        """Concatenate two vectors."""
        mask = ", ".join(f"i32 {lane}" for lane in range(2 * self.lanes))
        return self.body.emit(f"shufflevector {self.kind} {a}, {self.kind} {b}, <{2 * self.lanes} x i32> <{mask}>")

    def widened(self, a: Value) -> Value:
        """To 64 bits, with the same number of lanes."""
        return self.body.emit(f"fpext {self.kind} {a} to <{self.lanes} x double>")

    def narrowed(self, a: Value) -> Value:
        """From 64 bits to 32, with the same number of lanes."""
        return self.body.emit(f"fptrunc {self.kind} {a} to <{self.lanes} x float>")
