"""From a reduction's scalar program to the text of its kernels.

The text is: types and sizes, `kernels/device.cuh`, `numbers.cuh` and `call.cuh`, the formula's own functions,
then the reduction's file and `kernel.cuh`. The functions are

    load_parameters   what is known once a call or a tile of rows
    load_row          what is known once a row and read by pairs
    load_column       what is known once a column and read by pairs: the record in shared memory
    Pair              the formula and its weight for a pair
    finish_sum        factors of a row that were taken out of a sum
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from upsweep._expr.cuda.fold import LOG2_E, factor_sums, fold_exponentials
from upsweep._expr.cuda.graph import Graph
from upsweep._expr.cuda.scalars import MASKS, expression, literal

if TYPE_CHECKING:
    from upsweep._expr.lower import Program

__all__ = ["Kernels", "Request", "render"]

ELEMENTS = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}
SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
FAMILIES = {"sum": "sum", "logsumexp": "softmax", "sumsoftmaxweight": "softmax"}
THREADS = 128  # of a block
COLUMNS = 128  # in shared memory at a time, at most: the error of a float32 sum of them is bounded by it
SHARED_BYTES = 32 * 1024  # of columns at most
REGISTERS = 65536  # of a processor
CHUNK = 4  # columns that are looked at together by those who seek extremes
# Division and square root within 2 units in the last place, subnormal numbers taken as zero.
FAST = ("--ftz=true", "--prec-div=false", "--prec-sqrt=false")
MAX_BATCH = 6  # axes of a batch


class Request(NamedTuple):
    """What a kernel is made for, besides its program."""

    reduction: str
    k: int
    remaining: str  # the axis that is not reduced, "i" or "j"
    dtype: str
    dtype_acc: str
    n_arrays: int
    rows: int = 0  # of a thread, at most; 0: as many as registers hold
    wide_index: bool = False  # more than 2^31 columns


@dataclass(frozen=True)
class Kernels:
    """The text of a reduction's kernels, and what whoever launches them has to know."""

    text: str
    threads: int
    tile: int  # rows
    block: int  # columns
    partial_bytes: int  # of a row
    n_values: int  # of a row, 0: the reduction has none
    n_indices: int  # of a row
    options: tuple[str, ...]  # of the compiler
    combiners: int = THREADS


class Formula(NamedTuple):
    """A rewritten graph, and where what the pairs need is kept."""

    graph: Graph
    results: list[int]
    weights: list[int]
    outer: list[int]  # factors of the results of a sum
    parameters: dict[int, int]  # place of each value that rows, columns or pairs read
    rows: dict[int, int]
    columns: dict[int, int]


@cache
def kernel_text(name: str) -> str:
    return (Path(__file__).parent / "kernels" / f"{name}.cuh").read_text()


def render(program: Program, request: Request) -> Kernels:
    """The text of the kernels of a reduction."""
    formula = _formula(program, request)
    shape = _Shape.of(formula, request)
    family = FAMILIES.get(request.reduction) or ("extremes" if request.k == 0 else "smallest")
    parts = [
        shape.text(formula, request),
        *map(kernel_text, ("device", "numbers", "call")),
        *_Functions(program, formula, request).texts(),
        kernel_text(family),
        kernel_text("kernel"),
    ]
    return Kernels(
        "\n".join(parts), THREADS, THREADS * shape.rows, shape.block, shape.partial_bytes,
        shape.n_values, shape.n_indices, () if request.dtype == "float64" else FAST,
    )  # fmt: skip


def _formula(program: Program, request: Request) -> Formula:
    graph, numbers = Graph.of(program, transposed=request.remaining == "j")
    results = [numbers[n] for n in program.results]
    weights = [numbers[n] for n in program.weights]
    outer = [graph.constant(1.0)] * len(results)
    if request.dtype != "float64":  # whose exponentials are the library's, with their own scale
        of_softmax = FAMILIES.get(request.reduction) == "softmax"
        scales = [LOG2_E if of_softmax else 1.0] * len(results) + [1.0] * len(weights)
        roots = fold_exponentials(graph, results + weights, scales, factored=request.reduction == "sum")
        results, weights = roots[: len(results)], roots[len(results) :]
    if request.reduction == "sum":
        results, outer = factor_sums(graph, results)
    parameters, rows, columns = _kept(graph, [*results, *weights], outer)
    return Formula(graph, results, weights, outer, parameters, rows, columns)


def _kept(graph: Graph, of_pairs: list[int], of_rows: list[int]) -> tuple[dict[int, int], ...]:
    """The values that are read at a later level than they are computed at, with their places."""
    kept: dict[str, set[int]] = {"p": set(), "i": set(), "j": set()}

    def keep(number: int) -> None:
        if graph.values[number].op != "const" and graph.level(number) != "ij":
            kept[graph.level(number)].add(number)

    for number in of_pairs:
        keep(number)
    for number in graph.uses([*of_pairs, *of_rows]):
        value = graph.values[number]
        if value.op == "centre":
            kept["p"].add(number)
        for arg in value.args:
            if graph.level(arg) != value.level and value.op != "centre":
                keep(arg)
    for number in of_rows:
        if graph.level(number) == "p":
            keep(number)
    p, i, j = ({number: place for place, number in enumerate(sorted(kept[level]))} for level in "pij")
    return p, i, j


@dataclass(frozen=True)
class _Shape:
    """Sizes that the kernels are compiled for."""

    rows: int
    block: int
    record: int
    registers: int
    sums: int  # words of a sum from block to block
    partial_bytes: int
    n_values: int
    n_indices: int

    @classmethod
    def of(cls, formula: Formula, request: Request) -> _Shape:
        wide = 2 if request.dtype == "float64" else 1  # registers of a number
        sums = 1 if request.dtype == request.dtype_acc == "float32" else 2
        index = 2 if request.wide_index else 1
        n, n_weights = len(formula.results), max(len(formula.weights), 1)
        name, k = request.reduction, request.k
        if name == "sum":
            state, partial = n * (wide + sums), n * 4 * sums
        elif name in FAMILIES:
            n_sums = n_weights + (name == "sumsoftmaxweight")
            state, partial = wide + n_sums * (wide + sums), 4 * wide + n_sums * 4 * sums
        else:
            state = n * max(k, 1) * (wide + index) + n * CHUNK * wide
            partial = n * max(k, 1) * (4 * wide + 8)
        a_row = len(formula.rows) * wide + state
        rows = next((r for r, most in ((8, 64), (4, 80), (2, 150)) if r * a_row <= most), 1)
        rows = min(rows, request.rows or rows)
        record = _padded(len(formula.columns), wide)
        n_bytes = max(record, 1) * 4 * wide
        block = next(b for b in (128, 64, 32, 16, 8, 4, 1) if b * n_bytes <= SHARED_BYTES or b == 1)
        registers = min(rows * a_row + 2 * min(record, 32) * wide + 28, 255)
        is_float, indexed = not name.startswith("arg"), "arg" in name
        n_out = n_weights if name in FAMILIES and name != "sum" else n * max(k, 1)
        return cls(rows, block, record, registers, sums, partial, n_out * is_float, n_out * indexed)

    def text(self, formula: Formula, request: Request) -> str:
        blocks = max(1, min(8, REGISTERS // (THREADS * (self.registers + 7) // 8 * 8)))
        real = "double" if request.dtype == "float64" else "float"
        wide = "double" if self.sums == 2 else "float"
        names = {
            "N_ARRAYS": request.n_arrays, "MAX_BATCH": MAX_BATCH, "N_RESULTS": len(formula.results),
            "N_WEIGHTS": len(formula.weights), "PARAMETERS": max(len(formula.parameters), 1),
            "ROW_VALUES": max(len(formula.rows), 1), "COLUMN_VALUES": max(self.record, 1), "THREADS": THREADS,
            "ROWS": self.rows, "BLOCK": self.block, "BLOCKS_A_PROCESSOR": blocks, "COMBINERS": THREADS,
            "UNROLLED": self._unrolled(formula), "K": request.k, "CHUNK": CHUNK,
            "PARTIAL_BYTES": self.partial_bytes,
        }  # fmt: skip
        flags = {
            "SOFTMAX": request.reduction == "sumsoftmaxweight",
            "LARGEST": request.reduction.startswith(("max", "argmax")),
            "VALUES": self.n_values > 0,
            "INDICES": self.n_indices > 0,
        }
        lines = [
            f"typedef {real} real;",
            f"typedef {wide} wide;",
            f"typedef {'long long' if request.wide_index else 'int'} column_index;",
            "struct float16;",
            "struct bfloat16;",
            f"typedef {ELEMENTS[request.dtype]} element;",
            *(f"constexpr int {name} = {value};" for name, value in names.items()),
            *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
        ]
        return "\n".join(lines) + "\n"

    def _unrolled(self, formula: Formula) -> int:
        """Columns in one turn of the inner loop: as long as its instructions fit their cache well."""
        pairs = sum(formula.graph.level(number) == "ij" for number in formula.graph.uses(formula.results))
        return next((u for u in (8, 4, 2) if u * self.rows * max(pairs, 1) <= 640), 1)


def _padded(n: int, wide: int) -> int:
    """Numbers of a record: whole 16 bytes where that wastes little."""
    together = 4 // wide
    return n if n < together and n != 3 else -(-n // together) * together


# ---- the formula's own functions ---------------------------------------------------------------------------------


class _Functions:
    """Writes the functions of a formula."""

    def __init__(self, program: Program, formula: Formula, request: Request) -> None:
        self.formula, self.graph = formula, formula.graph
        # Offsets in the packed records, as (array, component).
        self.components = {
            kind: [(position, c) for position, dim in program.components(kind) for c in range(dim)]
            for kind in ("p", "i", "j")
        }

    def texts(self) -> list[str]:
        formula = self.formula
        row_lines, row_names = self._computed("i", formula.rows, {"p"}, "row")
        parameters, names = self._parameters()
        column_lines, column_names = self._computed("j", formula.columns, {"p"}, "column")
        known = "const Call& call, const Bases& bases"
        return [
            _function(
                f"void load_parameters({known}, long long row, real* p)",
                [*parameters, *(f"p[{place}] = {names[n]};" for n, place in formula.parameters.items())],
            ),
            _function(
                f"void load_row({known}, const real* p, long long row, real* x)",
                [*row_lines, *(f"x[{place}] = {row_names[n]};" for n, place in formula.rows.items())],
            ),
            _function(
                f"void load_column({known}, const real* p, long long column, real* y)",
                [*column_lines, *(f"y[{place}] = {column_names[n]};" for n, place in formula.columns.items())],
            ),
            kernel_text("column"),
            self._pair(),
            self._finish(known),
        ]

    def _parameters(self) -> tuple[list[str], dict[int, str]]:
        """Centres are rows' values in the tile's first row, so both levels are computed here."""
        graph = self.graph
        wanted = self.formula.parameters
        lines, names = self._computed("p", wanted, set(), "row", also={"i"})
        for number in wanted:
            if graph.values[number].op == "centre":
                names[number] = f"finite_or_0({names[graph.values[number].args[0]]})"
        return lines, names

    def _computed(
        self, level: str, wanted: Iterable[int], given: set[str], at: str, also: set[str] = frozenset()  # type: ignore[assignment]
    ) -> tuple[list[str], dict[int, str]]:
        """Lines that compute the wanted values of a level, and every value's name."""
        graph, lines, names = self.graph, list[str](), dict[int, str]()
        for number in sorted(graph.uses(wanted)):
            value = graph.values[number]
            if value.op == "const":
                names[number] = literal(float(value.static[0]))
            elif value.level in given or (value.op == "centre" and level != "p"):
                if number in self.formula.parameters:
                    names[number] = f"p[{self.formula.parameters[number]}]"
            elif value.op == "centre":
                continue
            elif value.level == level or value.level in also:
                names[number] = f"v{number}"
                lines.append(f"const {self._type(number)} v{number} = {self._right_side(number, names, at)};")
        return lines, names

    def _type(self, number: int) -> str:
        return "bool" if self.graph.values[number].op in MASKS else "real"

    def _right_side(self, number: int, names: dict[int, str], at: str) -> str:
        value = self.graph.values[number]
        if value.op == "load":
            kind, offset = str(value.static[0]), int(value.static[1])
            array, component = self.components[kind][offset]
            where = at if kind != "p" else "0"
            return f"load(call, bases, {array}, {where}, {component})"
        return expression(value.op, [names[arg] for arg in value.args])

    def _pair(self) -> str:
        formula, graph = self.formula, self.graph
        names = {number: f"p[{place}]" for number, place in formula.parameters.items()}
        names |= {number: f"x[{place}]" for number, place in formula.rows.items()}
        names |= {number: f"y.value({place})" for number, place in formula.columns.items()}
        lines = list[str]()
        for number in sorted(graph.uses([*formula.results, *formula.weights])):
            value = graph.values[number]
            if value.op == "const":
                names[number] = literal(float(value.static[0]))
            elif value.level == "ij":
                names[number] = f"v{number}"
                lines.append(f"const {self._type(number)} v{number} = {self._right_side(number, names, '0')};")
        lines += [f"result[{k}] = {names[number]};" for k, number in enumerate(formula.results)]
        lines += [f"weight[{k}] = {names[number]};" for k, number in enumerate(formula.weights)]
        head = "Pair(const real* p, const real* x, const Column& y)"
        body = _function(head, lines).replace("\n", "\n    ").rstrip()
        n_weights = max(len(formula.weights), 1)
        return f"struct Pair {{\n    real result[{len(formula.results)}], weight[{n_weights}];\n    {body}\n}};\n"

    def _finish(self, known: str) -> str:
        """Of a sum over no columns nothing is multiplied: it is 0, whatever the row."""
        formula, graph = self.formula, self.graph
        head = f"void finish_sum({known}, const real* p, long long row, wide* sum)"
        changed = {k: n for k, n in enumerate(formula.outer) if graph.constant_of(n) != 1}
        lines, names = self._computed("i", changed.values(), {"p"}, "row")
        return _function(head, [*lines, *(f"sum[{k}] *= wide({names[n]});" for k, n in changed.items())])


def _function(head: str, lines: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"__device__ __forceinline__ {head} {{\n{body}}}\n"
