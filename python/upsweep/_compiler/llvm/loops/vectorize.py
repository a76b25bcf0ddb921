"""Expressions as vectors in LLVM IR: a value has the lanes of its vector loop, or one lane outside of any.

Indices are scalars of 64 bits at the first lane. A load is of neighbours where its index moves by 1 from lane
to lane in the last dimension, one number for all lanes where it does not move, else a gather. Lanes beyond
the end of a loop, and those whose select takes the other side, are masked and read nothing.

A product that is added or subtracted is fused with the sum by the expression, not by LLVM: all copies of a
computation (the body of a loop and its rest, one row and several) have the same bits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from upsweep._compiler.llvm.mathematics import function
from upsweep._compiler.llvm.target import Target
from upsweep._compiler.llvm.transpose import turned
from upsweep._compiler.llvm.vectors import Body, Value, Vectors
from upsweep._compiler.loops.expressions import FLOATS, ITEM_BYTES, LOGICAL, Axis, Expr, mentions
from upsweep._compiler.loops.linear import linear
from upsweep._compiler.loops.statements import Buffer, Statement, stored_buffers
from upsweep._compiler.loops.traversal import fold, walk

_BITS = {dtype: 8 * size for dtype, size in ITEM_BYTES.items()}
_SCALARS = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "bool": "i1"}
_IN_MEMORY = {**_SCALARS, "bool": "i8"}
_COMPARED = {"lt": ("olt", "slt"), "le": ("ole", "sle"), "gt": ("ogt", "sgt"), "ge": ("oge", "sge"),
             "eq": ("oeq", "eq"), "ne": ("une", "ne")}  # fmt: skip


@dataclass
class View:
    """The address of a buffer and its strides in elements; the last one is 1."""

    pointer: Value
    strides: list[Value]


def _is_guard(expr: Expr) -> bool:
    """Whether an expression is a choice that may keep an index inside: by a comparison of integers."""
    if expr.op != "select":
        return False
    comparisons = walk(expr.args[0], lambda node: node.args if node.op in LOGICAL else ())
    return any(node.op in _COMPARED and node.args[0].dtype not in FLOATS for node in comparisons)


def _evaluated(expr: Expr) -> dict[int, Expr]:
    """The operations and loads, operands first, that are evaluated whatever the guards decide; by id."""
    nodes: dict[int, Expr] = {}

    def note(node: Expr, args: list[None]) -> None:
        if node.args:
            nodes[id(node)] = node

    def operands(node: Expr) -> Sequence[Expr]:
        return () if node.op == "load" else node.args[:1] if _is_guard(node) else node.args

    fold(expr, note, None, operands)
    return nodes


@dataclass
class Lanes:
    """The evaluation of expressions: the function body, the values of indices, and the loop over lanes."""

    body: Body
    target: Target
    indices: dict[Expr, Value]
    views: dict[Buffer, View]
    count: int = 1
    axis: Axis | None = None
    mask: Value | None = None
    guarded: bool = False  # whether a condition is in the mask, which may then leave out all lanes
    last: Value | None = None  # the last lane of a mask that is not guarded
    known: dict[tuple[int, Value | None], tuple[Expr, Value]] = field(default_factory=dict)
    # Values by id that are known in more lanes than these, or are in registers already.
    wider: dict[int, Value] = field(default_factory=dict)

    # ---- types ----

    def kind(self, dtype: str) -> str:
        return f"<{self.count} x {_SCALARS[dtype]}>"

    def _stored(self, dtype: str) -> str:
        return f"<{self.count} x {_IN_MEMORY[dtype]}>"

    def _vectors(self, dtype: str) -> Vectors:
        return Vectors(self.body, self.target, _BITS[dtype], self.count)

    def _suffix(self, dtype: str) -> str:
        return f"v{self.count}{'f' if dtype in FLOATS else 'i'}{_BITS[dtype]}"

    def constant(self, dtype: str, value: float | int | bool) -> Value:
        """A constant in all lanes."""
        if dtype in FLOATS:
            return self._vectors(dtype).const(float(value))
        return self.body.fill(_SCALARS[dtype], int(value), self.count)

    def splat(self, scalar: Value, dtype: str) -> Value:
        """A scalar in all lanes."""
        return self.body.splat(_SCALARS[dtype], scalar, self.count)

    def sequence(self) -> Value:
        """0, 1, 2, ... in the lanes."""
        return self.body.sequence("i64", self.count)

    def first_lanes(self, count: Value) -> Value:
        """The mask of the first `count` lanes, fewer than all."""
        return self._vectors("float32").first_lanes(count)

    def choose(self, dtype: str, mask: Value, yes: Value, no: Value) -> Value:
        """A value where a mask is set, another one elsewhere."""
        kind = self.kind(dtype)
        return self.body.emit(f"select {self.kind('bool')} {mask}, {kind} {yes}, {kind} {no}")

    def _opposite(self, mask: Value) -> Value:
        return self.body.emit(f"xor {self.kind('bool')} {mask}, {self.constant('bool', True)}")

    # ---- scalars of 64 bits ----

    def plus(self, a: Value, b: Value) -> Value:
        return b if a == "0" else a if b == "0" else self.body.emit(f"add i64 {a}, {b}")

    def times(self, a: Value, b: Value) -> Value:
        if "0" in (a, b):
            return "0"
        return b if a == "1" else a if b == "1" else self.body.emit(f"mul i64 {a}, {b}")

    def index(self, expr: Expr) -> Value:
        """An integer expression at the first lane."""
        op = expr.op
        if op == "const":
            return str(expr.static[0])
        if op in ("axis", "var"):
            return self.indices[expr]
        if op in ("add", "sub", "mul", "min", "max", "floordiv", "mod") and expr.dtype == "int64":
            a, b = (self.index(arg) for arg in expr.args)
            if op == "add":
                return self.plus(a, b)
            if op == "mul":
                return self.times(a, b)
            if op == "sub":
                return a if b == "0" else self.body.emit(f"sub i64 {a}, {b}")
            if op in ("min", "max"):
                return self.body.extreme(f"s{op}", a, b)
            return self._divided(op, "i64", a, b)
        return self._first_lane(expr)

    def _first_lane(self, expr: Expr) -> Value:
        one = Lanes(self.body, self.target, self.indices, self.views, guarded=self.guarded)
        if self.guarded:  # read where any lane does
            bits = self.body.emit(f"bitcast {self.kind('bool')} {self.mask} to i{self.count}")
            one.mask = one.splat(self.body.emit(f"icmp ne i{self.count} {bits}, 0"), "bool")
        value = one.value(expr)
        scalar = self.body.emit(f"extractelement {one.kind(expr.dtype)} {value}, i64 0")
        return scalar if expr.dtype == "int64" else self.body.emit(f"sext i32 {scalar} to i64")

    def _divided(self, op: str, kind: str, a: Value, b: Value) -> Value:
        """Division rounded down, by a positive number."""
        emit = self.body.emit
        zero = "0" if kind == "i64" else "zeroinitializer"
        rest = emit(f"srem {kind} {a}, {b}")
        negative = emit(f"icmp slt {kind} {rest}, {zero}")
        bools = "i1" if kind == "i64" else f"<{self.count} x i1>"
        if op == "mod":
            return emit(f"select {bools} {negative}, {kind} {emit(f'add {kind} {rest}, {b}')}, {kind} {rest}")
        return emit(f"add {kind} {emit(f'sdiv {kind} {a}, {b}')}, {emit(f'sext {bools} {negative} to {kind}')}")

    # ---- values ----

    def value(self, expr: Expr) -> Value:
        """An expression in all lanes; what was computed in this block or before it is not computed again."""
        stack = [self._writing(expr)]
        while stack:  # instead of recursion: expressions may be deeper than Python's stack
            operand = next(stack[-1], None)
            if operand is None:
                stack.pop()
            else:
                lanes, each = operand
                stack.append(lanes._writing(each))
        known = self._known(expr)
        assert known is not None
        return known

    def _known(self, expr: Expr) -> Value | None:
        known = self.known.get((id(expr), self.mask))
        return self.wider.get(id(expr)) if known is None else known[1]

    def _writing(self, expr: Expr) -> Iterator[tuple[Lanes, Expr]]:
        """Write an expression, after yielding each operand with the lanes in which it has to be known by then."""
        if self._known(expr) is not None:
            return
        if _is_guard(expr):
            value = yield from self._select_masked(expr)
            self.known[id(expr), self.mask] = (expr, value)
            return
        if expr.op != "load":
            yield from ((self, arg) for arg in expr.args)
        self.known[id(expr), self.mask] = (expr, self._written(expr))

    def _written(self, expr: Expr) -> Value:
        op = expr.op
        if op == "const":
            return self.constant(expr.dtype, expr.static[0])
        if op in ("axis", "var"):
            splat = self.splat(self.indices[expr], "int64")
            is_lanes = expr is self.axis
            return self.body.emit(f"add {self.kind('int64')} {splat}, {self.sequence()}") if is_lanes else splat
        if op == "load":
            return self._load(expr)
        if op == "select":
            return self.choose(expr.dtype, *(self.value(arg) for arg in expr.args))
        if op == "cast":
            return self._cast(expr.args[0], expr.dtype)
        args = [self.value(arg) for arg in expr.args]
        if op in ("add", "sub") and expr.dtype in FLOATS:
            factors = [[self.value(x) for x in arg.args] if arg.op == "mul" else None for arg in expr.args]
            return self._vectors(expr.dtype).fused(op, args, factors)
        if op in _COMPARED:
            dtype = expr.args[0].dtype
            compare = f"fcmp {_COMPARED[op][0]}" if dtype in FLOATS else f"icmp {_COMPARED[op][1]}"
            return self.body.emit(f"{compare} {self.kind(dtype)} {args[0]}, {args[1]}")
        if op in ("and", "or"):
            return self.body.emit(f"{op} {self.kind('bool')} {args[0]}, {args[1]}")
        if op == "not":
            return self._opposite(args[0])
        write = self._of_floats if expr.dtype in FLOATS else self._of_ints
        return write(op, expr.dtype, args)

    def _of_ints(self, op: str, dtype: str, args: list[Value]) -> Value:
        kind, emit = self.kind(dtype), self.body.emit
        if op in ("add", "sub", "mul"):
            return emit(f"{op} {kind} {args[0]}, {args[1]}")
        if op in ("floordiv", "mod"):
            return self._divided(op, kind, args[0], args[1])
        if op in ("min", "max"):
            smaller = emit(f"icmp {'slt' if op == 'min' else 'sgt'} {kind} {args[0]}, {args[1]}")
            return self.choose(dtype, smaller, *args)
        negative = emit(f"sub {kind} zeroinitializer, {args[0]}")
        if op == "neg":
            return negative
        assert op == "abs", op
        below = emit(f"icmp slt {kind} {args[0]}, zeroinitializer")
        return self.choose(dtype, below, negative, args[0])

    def _of_floats(self, op: str, dtype: str, args: list[Value]) -> Value:
        v = self._vectors(dtype)
        if op in ("mul", "div", "neg"):
            return Value(getattr(v, op)(*args))
        if op in ("min", "max"):
            first = v.select(v.compare("ult" if op == "min" else "ugt", args[0], args[1]), args[0], args[1])
            return v.select(v.compare("uno", args[1], args[1]), args[1], first)
        if op == "sigmoid":
            one = v.const(1.0)
            return v.div(one, v.add(one, function(v, "exp", v.neg(args[0]))))
        if op == "pow" and self.count == 1:  # which works on halves of vectors
            pair = v.with_bits(v.bits, 2)
            wide = [v.shuffle(arg, "poison", (0, 0)) for arg in args]
            return pair.part(function(pair, "pow", *wide), [0])
        return function(v, op, *args)

    def _cast(self, arg: Expr, to: str) -> Value:
        value, source, emit = self.value(arg), arg.dtype, self.body.emit
        old, new = self.kind(source), self.kind(to)
        if to == "bool":
            compare = "fcmp une" if source in FLOATS else "icmp ne"
            return emit(f"{compare} {old} {value}, zeroinitializer")
        if source in FLOATS and to in FLOATS:
            return emit(f"{'fpext' if to == 'float64' else 'fptrunc'} {old} {value} to {new}")
        if source in FLOATS:  # saturated: a value out of range is otherwise undefined
            name = f"llvm.fptosi.sat.{self._suffix(to)}.{self._suffix(source)}"
            return self.body.call(new, name, (old, value))
        if to in FLOATS:
            return emit(f"{'uitofp' if source == 'bool' else 'sitofp'} {old} {value} to {new}")
        if _BITS[to] < _BITS[source]:
            return emit(f"trunc {old} {value} to {new}")
        return emit(f"{'zext' if source == 'bool' else 'sext'} {old} {value} to {new}")

    def _select_masked(self, expr: Expr) -> Generator[tuple[Lanes, Expr], None, Value]:
        """A choice of which each lane evaluates one side.

        What both sides evaluate in any case is evaluated before, in all lanes; else nested choices that share
        parts would evaluate these once for each path.
        """
        condition, yes, no = expr.args
        yield self, condition
        in_yes = _evaluated(yes)
        shared = [node for name, node in _evaluated(no).items() if name in in_yes]
        yield from ((self, node) for node in shared)
        wider = {**self.wider, **{id(node): self.value(node) for node in shared}} if shared else self.wider
        mask = self.value(condition)
        inside = self.masked(mask, wider)
        yield inside, yes
        outside = self.masked(self._opposite(mask), wider)
        yield outside, no
        return self.choose(expr.dtype, mask, inside.value(yes), outside.value(no))

    def masked(self, condition: Value, wider: dict[int, Value] | None = None) -> Lanes:
        """The same lanes where a further condition holds. `wider` are values, by id, known without it."""
        both = condition
        if self.mask is not None:
            both = self.body.emit(f"and {self.kind('bool')} {self.mask}, {condition}")
        return replace(self, mask=both, guarded=True, wider=self.wider if wider is None else wider)

    def accumulated(self, expr: Expr, total: Value) -> Value:
        """An accumulation, an operation of an element and a term, where the element's value is `total`."""
        self.known[id(expr.args[0]), self.mask] = (expr.args[0], total)
        self.known.pop((id(expr), self.mask), None)
        return self.value(expr)

    # ---- memory ----

    def varies(self, expr: Expr) -> bool:
        """Whether an expression may differ from lane to lane."""
        return self.axis is not None and mentions(expr, self.axis)

    def _steps(self, indices: tuple[Expr, ...]) -> list[int] | None:
        """By how much each index moves from lane to lane; None if it is unknown."""
        if self.axis is None:
            return [0] * len(indices)
        steps = []
        for index in indices:
            form = linear(index)
            if self.varies(form.without(self.axis).expr()):
                return None
            steps.append(form.coefficient(self.axis))
        return steps

    def _address(self, buffer: Buffer, view: View, indices: tuple[Expr, ...]) -> Value:
        offset = "0"
        for index, stride in zip(indices, view.strides):
            offset = self.plus(offset, self.times(self.index(index), stride))
        return self.body.emit(f"getelementptr {_IN_MEMORY[buffer.dtype]}, ptr {view.pointer}, i64 {offset}")

    def _addresses(self, buffer: Buffer, view: View, indices: tuple[Expr, ...], steps: list[int] | None) -> Value:
        """One pointer for each lane."""
        emit, kind = self.body.emit, self.kind("int64")
        one = _IN_MEMORY[buffer.dtype]
        if steps is not None:
            move = "0"
            for step, stride in zip(steps, view.strides):
                move = self.plus(move, self.times(str(step), stride))
            offsets = emit(f"mul {kind} {self.splat(move, 'int64')}, {self.sequence()}")
            return emit(f"getelementptr {one}, ptr {self._address(buffer, view, indices)}, {kind} {offsets}")
        total = self.constant("int64", 0)
        for index, stride in zip(indices, view.strides):
            offsets = self.value(index)
            if index.dtype != "int64":
                offsets = emit(f"sext {self.kind(index.dtype)} {offsets} to {kind}")
            moved = emit(f"mul {kind} {offsets}, {self.splat(stride, 'int64')}")
            total = emit(f"add {kind} {total}, {moved}")
        return emit(f"getelementptr {one}, ptr {view.pointer}, {kind} {total}")

    def _masked_call(self, operation: str, dtype: str, result: str, *operands: tuple[str, Value]) -> Value:
        """A call of a masked intrinsic with operands (type, value)."""
        pointers = "p0" if operation in ("load", "store") else f"v{self.count}p0"
        return self.body.call(result, f"llvm.masked.{operation}.{self._suffix(dtype)}.{pointers}", *operands)

    def _pointers(
        self, buffer: Buffer, indices: tuple[Expr, ...], steps: list[int] | None
    ) -> tuple[bool, tuple[str, Value]]:
        """Whether the lanes are neighbours; the type and value of their address, or else of one for each lane."""
        view = self.views[buffer]
        if self.count == 1 or (steps is not None and not any(steps[:-1]) and steps[-1:] == [1]):
            return True, ("ptr", self._address(buffer, view, indices))
        return False, (f"<{self.count} x ptr>", self._addresses(buffer, view, indices, steps))

    def _load(self, expr: Expr) -> Value:
        buffer: Buffer = expr.static[0]
        kind, dtype, emit = self._stored(buffer.dtype), buffer.dtype, self.body.emit
        steps, align = self._steps(expr.args), ITEM_BYTES[dtype]
        if steps is not None and not any(steps) and not self.guarded:  # some lane reads it
            address = self._address(buffer, self.views[buffer], expr.args)
            scalar = emit(f"load {_IN_MEMORY[dtype]}, ptr {address}, align {align}")
            return self.splat(emit(f"trunc i8 {scalar} to i1") if dtype == "bool" else scalar, dtype)
        is_contiguous, pointer = self._pointers(buffer, expr.args, steps)
        if is_contiguous and self.mask is None:
            value = emit(f"load {kind}, ptr {pointer[1]}, align {align}")
        else:
            mask, others = self._mask(), (kind, "zeroinitializer")
            operation = "load" if is_contiguous else "gather"
            value = self._masked_call(operation, dtype, kind, pointer, ("i32", str(align)), mask, others)
        return emit(f"icmp ne {kind} {value}, zeroinitializer") if dtype == "bool" else value

    def rows_along(self, expr: Expr, axis: Axis) -> list[Expr]:
        """The loads of an expression that gather rows' numbers, each row contiguous along an axis.

        Vectors of rows, transposed, read each cache line once. A gather reads it for each number, and rows whose
        strides are powers of two, which share a few cache sets, drive each other's lines out between.
        """
        if self.guarded:
            return []
        return [node for node in _evaluated(expr).values() if node.op == "load" and self._is_row_along(node, axis)]

    def _is_row_along(self, load: Expr, axis: Axis) -> bool:
        dtype, steps = load.dtype, self._steps(load.args)
        if dtype not in FLOATS or steps is None or not any(steps) or steps[-1]:
            return False
        *outer, last = load.args
        form = linear(last)
        is_row = form.coefficient(axis) == 1 and not mentions(form.without(axis).expr(), axis)
        is_whole = self.count * ITEM_BYTES[dtype] == self.target.vector_bytes
        return is_row and is_whole and not any(mentions(index, axis) for index in outer)

    def load_rows(self, load: Expr) -> list[Value]:
        """The values of a load of `rows_along` at as many steps of the axis as there are lanes."""
        buffer: Buffer = load.static[0]
        v, view, move = self._vectors(buffer.dtype), self.views[buffer], "0"
        for step, stride in zip(self._steps(load.args) or (), view.strides):
            move = self.plus(move, self.times(str(step), stride))
        first, last = self._address(buffer, view, load.args), self.last
        rows = [str(lane) if last is None else self.body.extreme("umin", last, lane) for lane in range(self.count)]
        return turned(
            v, [v.load(v.at(first, self.times(row, move))) for row in rows]
        )  # beyond the last row that row

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        """Store a value of the buffer's dtype."""
        kind, dtype, align = self._stored(buffer.dtype), buffer.dtype, ITEM_BYTES[buffer.dtype]
        if dtype == "bool":
            value = self.body.emit(f"zext {self.kind('bool')} {value} to {kind}")
        is_contiguous, pointer = self._pointers(buffer, indices, self._steps(indices))
        if is_contiguous and self.mask is None:
            self.body.do(f"store {kind} {value}, ptr {pointer[1]}, align {align}")
            return
        operands = ((kind, value), pointer, ("i32", str(align)), self._mask())
        self._masked_call("store" if is_contiguous else "scatter", dtype, "void", *operands)

    def _mask(self) -> tuple[str, Value]:
        return self.kind("bool"), self.mask or self.constant("bool", True)


def lanes_of(body: Statement, target: Target) -> int:
    """As many lanes as a vector of the widest numbers that are stored has."""
    widest = max((ITEM_BYTES[buffer.dtype] for buffer in stored_buffers(body)), default=4)
    return target.vector_bytes // max(widest, 4)
