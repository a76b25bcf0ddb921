"""A writer for LLVM IR text: a function's body with loops and branches, and arithmetic on vectors of one width.

The IR is written as text, because building it from objects takes longer than compiling it. A value is
represented by its name in the text.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from upsweep._compiler.llvm.target import Target

Value = str

CACHE_LINE = 64  # bytes
_MOST_ON_STACK = 4096


def phi(kind: str, *sources: tuple[Value, str]) -> str:
    """A value by the block that execution comes from: (value, label)."""
    return f"phi {kind} " + ", ".join(f"[{value}, %{label}]" for value, label in sources)


@dataclass
class Section:
    """The lines of a function, what comes before them, and the label of the block that is being written."""

    lines: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)  # constants, memory of the stack
    constants: dict[str, Value] = field(default_factory=dict)
    block: str = "start"
    is_part: bool = False  # of a long function, see `instructions.Parts`

    def define(self, signature: str) -> str:
        """The whole function; one without a result returns at its end."""
        end = ["  ret void"] if "void @" in signature else []
        return "\n".join([f"define {signature} {{", "start:", *self.entry, *self.lines, *end, "}\n"])


@dataclass
class Join:
    """The block after code that may have been skipped: `before` leads to it, and so do `ends`, from that code."""

    body: Body
    before: str
    ends: list[str] = field(default_factory=list)

    def phi(self, kind: str, skipped: Value, run: Value) -> Value:
        """One of two values, after the code."""
        return self.body.emit(phi(kind, (skipped, self.before), *((run, end) for end in self.ends)))


@dataclass
class Loop(Join):
    """A loop while it is written. `following` are the values of the next step, in the order of `carry`."""

    index: Value = ""
    again: Value = ""  # the condition of the next step
    following: list[Value] = field(default_factory=list)
    carried: list[tuple[Value, str, Value]] = field(default_factory=list)  # name, type, start

    def carry(self, kind: str, start: Value) -> Value:
        """A value that the loop passes from step to step, in this step."""
        self.carried.append((self.body.name("c"), kind, start))
        return self.carried[-1][0]

    def phis(self, back: Sequence[str]) -> list[str]:
        """What a step begins with; `back` are the blocks that lead to it from the step before."""
        return [
            f"  {name} = {phi(kind, (start, self.before), *((following, label) for label in back))}"
            for (name, kind, start), following in zip(self.carried, self.following, strict=True)
        ]


class Body(Section):
    """The section that is being written of one function, and what the function needs of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.needs: dict[str, str] = {}  # declarations and functions, by name
        self._n_names = 0
        self.workspace = 0  # bytes of the memory that the caller brings

    def exchange(self, other: Section) -> Section:
        """Write another section from now on; return the one that was written so far."""
        before = Section(*(getattr(self, each.name) for each in fields(Section)))
        for each in fields(Section):
            setattr(self, each.name, getattr(other, each.name))
        return before

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

    def in_turn(self, writers: Iterable[Callable[[], Value]]) -> list[Value]:
        """The results of what each of some functions writes, an instruction of each in turn.

        A processor sees some 100 instructions ahead of those that wait: in turn, chains of independent ones
        overlap. Code with branches stays in order.
        """
        block, ends, results = self.block, [len(self.lines)], []
        for write in writers:
            results.append(write())
            ends.append(len(self.lines))
        if self.block == block:
            parts = [self.lines[begin:end] for begin, end in itertools.pairwise(ends)]
            self.lines[ends[0] :] = [
                line for each in itertools.zip_longest(*parts) for line in each if line is not None
            ]
        return results

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

    @contextmanager
    def when(self, condition: Value, hint: str, *, rarely: bool = False) -> Iterator[Join]:
        """Run what is written inside only if a condition holds."""
        join, inside, done = Join(self, self.block), self.label(hint), self.label("done")
        self.branch(condition, inside, done, rarely=rarely)
        self.place(inside)
        yield join
        join.ends = [self.block]
        self.do(f"br label %{done}")
        self.place(done)

    @contextmanager
    def repeat(self, hint: str, guard: Value | None = None) -> Iterator[Loop]:
        """Run what is written inside, if `guard` holds, and again as long as `again`, set inside, holds."""
        loop, inside, done = Loop(self, self.block), self.label(hint), self.label("done")
        if guard is None:
            self.do(f"br label %{inside}")
        else:
            self.branch(guard, inside, done)
        self.place(inside)
        position = len(self.lines)
        yield loop
        loop.ends = [self.block]
        self.lines[position:position] = loop.phis(loop.ends)
        self.branch(loop.again, inside, done)
        self.place(done)

    @contextmanager
    def loop(
        self, hint: str, end: Value | int, *, first: Value = "0", step: int = 1, is_less: str = "ult",
        guarded: bool = False,
    ) -> Iterator[Loop]:  # fmt: skip
        """Run what is written inside for `index` = first, first + step, ... below `end`.

        At least once, unless the loop is `guarded`. `is_less` is the comparison with `end`.
        """
        with self.repeat(hint, self.emit(f"icmp {is_less} i64 {first}, {end}") if guarded else None) as loop:
            loop.index = loop.carry("i64", first)
            yield loop
            following = self.emit(f"add i64 {loop.index}, {step}")
            loop.following.insert(0, following)
            loop.again = self.emit(f"icmp {is_less} i64 {following}, {end}")

    def call(self, result: str, name: str, *operands: tuple[str, Value | int]) -> Value:
        """A call of a function of another module, or of an intrinsic, which is declared.

        Operands are (type, value); `result` is a type.
        """
        if f"@{name}" not in self.needs:
            self.needs[f"@{name}"] = f"declare {result} @{name}({', '.join(kind for kind, _ in operands)})\n"
        text = f"call {result} @{name}({', '.join([f'{kind} {value}' for kind, value in operands])})"
        if result != "void":
            return self.emit(text)
        self.do(text)
        return ""

    def extreme(self, name: str, a: Value, b: Value | int) -> Value:
        """The smaller or the larger of two integers of 64 bits: "smin", "smax", "umin", "umax"."""
        return self.call("i64", f"llvm.{name}.i64", ("i64", a), ("i64", b))

    def at(self, kind: str, pointer: Value, place: Value | int) -> Value:
        """The address of an element of an array."""
        return self.emit(f"getelementptr {kind}, ptr {pointer}, i64 {place}")

    def load_at(self, kind: str, pointer: Value, place: Value | int) -> Value:
        """An element of an array of integers or addresses, 64 bits each."""
        return self.emit(f"load {kind}, ptr {self.at('i64', pointer, place)}")

    def sequence(self, scalar: str, lanes: int) -> Value:
        """The constant vector 0, 1, 2, ..."""
        items = ", ".join(f"{scalar} {lane}" for lane in range(lanes))
        return self.constant(f"<{lanes} x {scalar}>", f"<{items}>")

    def fill(self, scalar: str, item: object, lanes: int) -> Value:
        """A constant vector with the same number in all lanes."""
        one = f"{scalar} {item}"
        return self.constant(f"<{lanes} x {scalar}>", f"<{', '.join([one] * lanes)}>")

    def splat(self, scalar: str, value: Value, lanes: int) -> Value:
        """A vector with a scalar in all lanes."""
        kind = f"<{lanes} x {scalar}>"
        first = self.emit(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        if lanes == 1:
            return first
        return self.emit(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def constant(self, kind: str, text: str) -> Value:
        """A constant that is spelled out once; the no-op that names it is folded away."""
        key = f"{kind} {text}"
        if key not in self.constants:
            self.constants[key] = self.name("k")
            self.entry.append(f"  {self.constants[key]} = bitcast {key} to {kind}")
        return self.constants[key]

    def room(self, n_bytes: int) -> Value:
        """Memory for the time of the call: little from the stack, which may be small, much from the caller."""
        if n_bytes <= _MOST_ON_STACK:
            return self.stack("i8", n_bytes, CACHE_LINE)
        result = self.name("m")
        self.entry.append(f"  {result} = {self.in_workspace(n_bytes)}")
        return result

    def in_workspace(self, n_bytes: int) -> str:
        """The instruction that computes the address of memory that the caller brings."""
        address = f"getelementptr i8, ptr %workspace, i64 {self.workspace}"
        self.workspace += -(-n_bytes // CACHE_LINE) * CACHE_LINE
        return address

    def stack(self, kind: str, count: int, align: int) -> Value:
        """Memory of the stack for the time of the call."""
        result = self.name("m")
        self.entry.append(f"  {result} = alloca {kind}, i64 {count}, align {align}")
        return result


_ATTRIBUTES = """\
attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }
!0 = !{!"branch_weights", i32 1, i32 500}
!1 = !{i32 1}
"""


def module(functions: Iterable[str], needs: Mapping[str, str]) -> str:
    """The text of a module: functions, what they need, and the attributes and metadata that they refer to."""
    return "\n".join([*functions, *needs.values(), _ATTRIBUTES])


def _bits(bits: int, value: float) -> int:
    form = "<f" if bits == 32 else "<d"
    return int.from_bytes(struct.pack(form, value), "little")


def _binary(op: str) -> Callable[[Vectors, Value, Value], Value]:
    return lambda v, a, b: v.body.emit(f"{op} {v.kind} {a}, {b}")


def _intrinsic(name: str) -> Callable[..., Value]:
    return lambda v, *args: v.intrinsic(name, *args)


class Vectors:
    """Arithmetic on vectors of `lanes` floats of 32 or 64 bits.

    Each operation rounds once, as written: LLVM may not contract a product and a sum. Where it does depends on the
    code around them, so that two copies of one computation (the body and the rest of a loop, one row and several)
    would differ in their last bits.
    """

    def __init__(self, body: Body, target: Target, bits: int, lanes: int = 0) -> None:
        lanes = lanes or 8 * target.vector_bytes // bits
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
        if self.bits == 32 and abs(value) <= 3.4028235677973362e38:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return f"0x{_bits(64, value):016X}"

    def const(self, value: float) -> Value:
        return self.body.fill(self.scalar, self.spelled(value), self.lanes)

    def int_const(self, value: int) -> Value:
        return self.body.fill(f"i{self.bits}", value, self.lanes)

    def int_sequence(self) -> Value:
        """0, 1, 2, ... in the lanes."""
        return self.body.sequence(f"i{self.bits}", self.lanes)

    def bool_const(self, value: bool) -> Value:
        return self.body.fill("i1", int(value), self.lanes)

    # ---- arithmetic ----

    add, sub, mul, div = map(_binary, ("fadd", "fsub", "fmul", "fdiv"))
    sqrt, abs, floor, rint, copysign = map(_intrinsic, ("sqrt", "fabs", "floor", "rint", "copysign"))

    def neg(self, a: Value) -> Value:
        return self.body.emit(f"fneg {self.kind} {a}")

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An intrinsic of LLVM whose arguments and result are such vectors."""
        return self.body.call(self.kind, f"llvm.{name}.{self.suffix}", *((self.kind, arg) for arg in args))

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
        # Spelled out: LLVM makes an operand of the instruction of a constant only where it sees it in the block.
        other = f"<{', '.join([f'i{self.bits} {b}'] * self.lanes)}>" if isinstance(b, int) else b
        return self.body.emit(f"{op} {self.ints} {a}, {other}")

    def int_select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.body.emit(f"select {self.bools} {mask}, {self.ints} {a}, {self.ints} {b}")

    def bits_of(self, value: float) -> int:
        return _bits(self.bits, value)

    def sum_of_lanes(self, a: Value) -> Value:
        """The sum of the lanes, in an order that suits the machine."""
        name, zero = f"@llvm.vector.reduce.fadd.{self.suffix}", self.spelled(-0.0)
        self.body.needs[name] = f"declare {self.scalar} {name}({self.scalar}, {self.kind})\n"
        return self.body.emit(f"call reassoc {self.scalar} {name}({self.scalar} {zero}, {self.kind} {a})")

    # ---- memory and widths ----

    def room(self, count: int) -> Value:
        """Memory for so many vectors."""
        return self.body.room(count * self.lanes * self.bits // 8)

    def load(self, pointer: Value, align: int | None = None, mask: Value | None = None) -> Value:
        """A load; with a mask of some lanes, and 0 in the others."""
        if mask is None:
            return self.body.emit(f"load {self.kind}, ptr {pointer}, align {align or self.bits // 8}")
        operands = ("ptr", pointer), ("i32", self.bits // 8), (self.bools, mask), (self.kind, self.const(0.0))
        return self.body.call(self.kind, f"llvm.masked.load.{self.suffix}.p0", *operands)

    def store(
        self, a: Value, pointer: Value, align: int | None = None, past_caches: bool = False,
        mask: Value | None = None,
    ) -> None:  # fmt: skip
        if mask is None:
            how = ", !nontemporal !1" if past_caches else ""
            self.body.do(f"store {self.kind} {a}, ptr {pointer}, align {align or self.bits // 8}{how}")
            return
        operands = (self.kind, a), ("ptr", pointer), ("i32", self.bits // 8), (self.bools, mask)
        self.body.call("void", f"llvm.masked.store.{self.suffix}.p0", *operands)

    def splat(self, scalar: Value) -> Value:
        return self.body.splat(self.scalar, scalar, self.lanes)

    def int_splat(self, scalar: Value) -> Value:
        return self.body.splat(f"i{self.bits}", scalar, self.lanes)

    def at(self, pointer: Value, place: Value | int) -> Value:
        """The address of a number of an array."""
        return self.body.at(self.scalar, pointer, place)

    def number(self, pointer: Value, place: Value | int) -> Value:
        """A number of an array, in all lanes."""
        return self.splat(self.body.emit(f"load {self.scalar}, ptr {self.at(pointer, place)}"))

    def first_lanes(self, count: Value) -> Value:
        """The mask of the first `count` lanes, fewer than 2^31."""
        few = self.body.emit(f"trunc i64 {count} to i32") if self.bits == 32 else count
        return self.body.emit(f"icmp slt {self.ints} {self.int_sequence()}, {self.int_splat(few)}")

    def shuffle(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """The lanes of two vectors, those of the second counted on, in an order."""
        mask = [f"i32 {lane}" for lane in lanes]
        kinds = f"{self.kind} {a}, {self.kind} {b}, <{len(mask)} x i32>"
        return self.body.emit(f"shufflevector {kinds} <{', '.join(mask)}>")

    def part(self, a: Value, lanes: Sequence[int]) -> Value:
        """Some lanes, as a shorter vector."""
        return self.shuffle(a, "poison", lanes)

    def joined(self, a: Value, b: Value) -> Value:
        """Concatenate two vectors."""
        return self.shuffle(a, b, range(2 * self.lanes))

    def widened(self, a: Value) -> Value:
        """To 64 bits, with the same number of lanes."""
        return self.body.emit(f"fpext {self.kind} {a} to <{self.lanes} x double>")

    def narrowed(self, a: Value) -> Value:
        """From 64 bits to 32, with the same number of lanes."""
        return self.body.emit(f"fptrunc {self.kind} {a} to <{self.lanes} x float>")
