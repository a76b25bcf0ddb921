"""Code generation for a formula: the CUDA C++ functions that `render` combines with the kernel templates."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from upsweep._compiler.cuda.pairs.fold import factor_sums, fold_exponentials
from upsweep._compiler.cuda.pairs.graph import Graph
from upsweep._compiler.cuda.pairs.looped import KNOWN, STORES, long_pair, pair_struct
from upsweep._compiler.cuda.pairs.sizes import Product, Request, Sizes
from upsweep._compiler.cuda.scalars import declaration, expression, function, literal, names_at

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Program

LONG_PAIRS = ("sqdist", "dot")
MOST_TILED = 8  # results of a sum, up to which a thread has registers for those of four rows
LONGEST_CENTRE = 4096  # features: with more, a tile's centre leaves too little shared memory


def _stored(
    graph: Graph, of_pairs: list[int], of_rows: list[int], of_calls: list[int]
) -> tuple[dict[int, int], ...]:
    """The values that are read at a later level than they are computed at, with their places."""
    stored: dict[str, set[int]] = {"p": set(of_calls), "i": set(), "j": set()}

    def keep(number: int) -> None:
        if graph.values[number].op != "const" and graph.level(number) != "ij":
            stored[graph.level(number)].add(number)

    for number in of_pairs:
        keep(number)
    for number in graph.uses([*of_pairs, *of_rows]):
        value = graph.values[number]
        if value.op == "centre":
            stored["p"].add(number)
        for arg in value.args:
            if graph.level(arg) != value.level and value.op != "centre":
                keep(arg)
    for number in of_rows:
        if graph.level(number) == "p":
            keep(number)
    p, i, j = ({number: place for place, number in enumerate(sorted(stored[level]))} for level in "pij")
    return p, i, j


class Functions:
    """The functions of a formula that is written out, instruction after instruction."""

    def __init__(self, program: Program, request: Request, scale: float) -> None:
        self.graph, numbers = Graph.of(program, request.parts)
        graph = self.graph
        results, weights = ([numbers[n] for n in ids] for ids in (program.results, program.weights))
        # Factors of the results of a sum; the parameter that "directed" values have the sign of.
        outer, sign = [graph.constant(1.0)] * len(results), None
        if request.dtype != "float64":
            scales = [scale] * len(results) + [1.0] * len(weights)
            roots, sign = fold_exponentials(graph, results + weights, scales, factored=request.reduction == "sum")
            results, weights = roots[: len(results)], roots[len(results) :]
        if request.reduction == "sum":
            results, outer = factor_sums(graph, results)
        self.results, self.weights, self.outer = results, weights, outer
        # Where the values that are read at a later level are stored.
        self.parameters, self.rows, self.columns = _stored(
            graph, [*results, *weights], outer, [] if sign is None else [sign]
        )
        # The arrays of the packed records and their dims; offsets in the records as (array, component).
        self.records = {request.parts[kind]: program.components(kind) for kind in "pij"}
        self.components = {
            part: [(position, c) for position, dim in record for c in range(dim)]
            for part, record in self.records.items()
        }
        needed = graph.uses([*results, *weights])
        self.product = self._product(needed, request)
        self.sign = None if sign is None else self.parameters[sign]
        # Long distances and products that threads compute read whole records, which lie behind the other values.
        self.long = self.product is None and any(self.graph.values[n].op in LONG_PAIRS for n in needed)
        sizes = {kind: len(self.components[kind]) * self.long for kind in "ij"}
        self.near = self._near(needed) if self.product is None and not self.long else None
        # By tensor cores, which pays where an exponential takes most of a pair's time.
        self.tiled = self.near is not None and request.reduction == "sum" and len(results) <= MOST_TILED
        norm = int(self.near is not None)
        self.sizes = Sizes(
            len(results), len(weights), len(self.parameters), len(self.rows) + sizes["i"] + norm,
            len(self.columns) + sizes["j"] + norm,
            sum(map(self._cost, needed)),
        )  # fmt: skip

    def _near(self, needed: Collection[int]) -> int | None:
        """The one squared distance that may be expanded where points are near, if only it reads the points."""
        result = [n for n in needed if self.graph.values[n].op == "apart"]
        points = {arg for n in result for arg in self.graph.values[n].args}
        others = [n for n in needed if n not in result and self.graph.level(n) == "ij"]
        shared = any(arg in points for n in others for arg in self.graph.values[n].args)
        roots = [*self.results, *self.weights]
        return result[0] if len(result) == 1 and not shared and not points & set(roots) else None

    def _product(self, needed: Collection[int], request: Request) -> Product | None:
        """The one long distance or product that the formula has, as tensor cores make it."""
        result = [n for n in needed if self.graph.values[n].op in LONG_PAIRS]
        if len(result) != 1 or request.dtype == "float64" or request.precision == "ieee":
            return None
        value = self.graph.values[result[0]]
        row, column, dim = map(int, value.static)
        if dim > LONGEST_CENTRE:
            return None
        return Product(value.op == "sqdist", dim, *self.components["i"][row], *self.components["j"][column])

    def _cost(self, number: int) -> int:
        value = self.graph.values[number]
        if value.level != "ij":
            return 0
        if value.op == "apart":  # twice, since the other body is compiled too
            return 2 * len(value.args)
        return 2 * int(value.static[2]) if self.long and value.op in LONG_PAIRS else 1

    def texts(self) -> list[str]:
        """Return the text of all functions."""
        lines, names = self._parameters()
        lines += [f"p[{place}] = {names[n]};" for n, place in self.parameters.items()]
        return [
            function(f"void load_parameters({KNOWN}, long long row, real* p)", lines),
            function(
                f"void load_row({KNOWN}, const real* p, long long row, real* x)", self._load("i", "row", "x")
            ),
            function(
                f"void load_column({KNOWN}, const real* p, long long column, real* y)",
                self._load("j", "column", "y"),
            ),
            pair_struct(len(self.results), len(self.weights), self._pair()),
            self._finish(),
            *(self._points() if self.tiled else [self._scale()]),
        ]

    def _load(self, level: str, at: str, store: str) -> list[str]:
        places = self.rows if level == "i" else self.columns
        lines, names = self._computed(level, places, at)
        lines += [f"{store}[{place}] = {names[n]};" for n, place in places.items()]
        if self.near is not None:
            points = self.graph.values[self.near].args[level == "j" :: 2]
            squares = " + ".join(f"{store}[{places[n]}] * {store}[{places[n]}]" for n in points)
            lines.append(f"{store}[{len(places)}] = -({squares});")
        base = len(places)
        for position, dim in self.records[level] if self.long else ():
            lines.append(f"for (int k = 0; k < {dim}; ++k)")
            lines.append(f"    {store}[{base} + k] = load(call, bases, {position}, {at}, k);")
            base += dim
        return lines

    def _parameters(self) -> tuple[list[str], dict[int, str]]:
        """Centres are rows' values in the tile's first row, so both levels are computed here."""
        graph, needed_numbers = self.graph, self.parameters
        lines, names = self._computed("pi", needed_numbers, "row")
        for number in needed_numbers:
            if graph.values[number].op == "centre":
                names[number] = f"finite_or_0({names[graph.values[number].args[0]]})"
        return lines, names

    def _computed(self, levels: str, needed_numbers: Collection[int], at: str) -> tuple[list[str], dict[int, str]]:
        """Lines that compute what the wanted values take at these levels, and every value's name."""
        graph, lines, names = self.graph, list[str](), dict[int, str]()
        for number in sorted(graph.uses(needed_numbers)):
            value = graph.values[number]
            if value.op == "const":
                names[number] = literal(float(value.static[0]))
            elif "p" not in levels and number in self.parameters:
                names[number] = f"p[{self.parameters[number]}]"
            elif value.level in levels and value.op != "centre":
                names[number] = f"v{number}"
                lines.append(declaration(value.op, number, self._right_side(number, names, at)))
        return lines, names

    def _right_side(self, number: int, names: dict[int, str], at: str) -> str:
        value = self.graph.values[number]
        if value.op == "load":
            kind = value.level
            array, component = self.components[kind][int(value.static[1])]
            return f"load(call, bases, {array}, {'0' if kind == 'p' else at}, {component})"
        return expression(value.op, [names[arg] for arg in value.args])

    def _pair(self) -> list[str]:
        places = {"p": self.parameters, "i": self.rows, "j": self.columns}
        stored = {n: STORES[kind].format(place) for kind in "pij" for n, place in places[kind].items()}
        names, lines = names_at("ij", self.graph.values, stored), list[str]()
        for number in sorted(self.graph.uses([*self.results, *self.weights])):
            value = self.graph.values[number]
            if value.level != "ij":
                continue
            if value.op == "apart":
                lines += self._apart(number)
            elif value.op == "exp2" and self.tiled and value.args == (self.near,):
                power = f"EXPANDED && y.by_polynomial ? exp2_by_polynomial(v{self.near}) : exp2_fast(v{self.near})"
                lines.append(f"const real v{number} = {power};")
            elif self.product is not None and value.op in LONG_PAIRS:
                lines.append(f"const real v{number} = y.product();")
            elif value.op in LONG_PAIRS:
                row, column, dim = map(int, value.static)
                lines += long_pair(f"v{number}", value.op, len(self.rows) + row, len(self.columns) + column, dim)
            else:
                lines.append(declaration(value.op, number, self._right_side(number, names, "0")))
        lines += [f"result[{k}] = {names[number]};" for k, number in enumerate(self.results)]
        return lines + [f"weight[{k}] = {names[number]};" for k, number in enumerate(self.weights)]

    def _apart(self, number: int) -> list[str]:
        """Minus a squared distance, from differences, or from norms and a product with rows that are doubled."""
        value = self.graph.values[number]
        pairs = [
            (f"x[{self.rows[a]}]", f"y.value({self.columns[b]})")
            for a, b in zip(value.args[::2], value.args[1::2])
        ]
        sign = "-" if value.static[0] == "neg" else "(UPWARDS ? real(1) : real(-1)) * "
        lines = [f"real v{number};"]
        direct = [f"const real d{k} = {x} - {y};" for k, (x, y) in enumerate(pairs)]
        total = " + ".join(f"({sign}d{k}) * d{k}" for k in range(len(pairs)))
        if self.near is None:
            return [*lines, "{", *("    " + line for line in direct), f"    v{number} = {total};", "}"]
        expanded = f"y.value({len(self.columns)})"
        for x, y in pairs:
            expanded = f"({x} * {y} + {expanded})"
        expanded = "y.product()" if self.tiled else f"{expanded} + x[{len(self.rows)}]"
        return [
            *lines, "if (EXPANDED) {", f"    v{number} = {expanded};", "} else {",
            *("    " + line for line in direct), f"    v{number} = {total};", "}",
        ]  # fmt: skip

    @property
    def near_points(self) -> int:
        """The features of the points that tensor cores multiply where they are near."""
        return len(self.graph.values[self.near].args) // 2 if self.tiled and self.near is not None else 0

    @property
    def n_row_reads(self) -> int:
        """The values of a row that pairs read, but for those that only their distance reads."""
        read = {arg for n in self._others() for arg in self.graph.values[n].args}
        return len({*self.rows} & (read | {*self.results}))

    @property
    def n_near(self) -> int:
        """The instructions of a near pair, but for its distance; products are added to sums by one instruction."""
        n_fused = sum(self.graph.values[n].op == "mul" for n in {*self.results} & {*self._others()})
        return len(self._others()) + len(self.results) - n_fused

    def _others(self) -> list[int]:
        """The values of pairs but for their distance."""
        needed = self.graph.uses([*self.results, *self.weights])
        return [n for n in needed if self.graph.level(n) == "ij" and n != self.near]

    def _points(self) -> list[str]:
        """The functions that take a row's or a column's point, and minus its squared norm, from its values."""
        assert self.near is not None
        result, points = [], self.graph.values[self.near].args
        for name, first, places in (("row", 0, self.rows), ("column", 1, self.columns)):
            read = [*(places[n] for n in points[first::2]), len(places)]
            lines = [f"point[{k}] = values[{place}];" for k, place in enumerate(read)]
            result.append(function(f"void point_of_{name}(const real* values, real* point)", lines))
        return result

    def _scale(self) -> str:
        """The function that doubles or halves the points of a row."""
        points = [] if self.near is None else self.graph.values[self.near].args[::2]
        return function("void scale_row(real* x, real by)", [f"x[{self.rows[n]}] *= by;" for n in points])

    def _finish(self) -> str:
        head = f"void finish_sum({KNOWN}, const real* p, long long row, wide* sum)"
        changed = {k: n for k, n in enumerate(self.outer) if self.graph.constant_of(n) != 1}
        lines, names = self._computed("i", changed.values(), "row")
        return function(head, [*lines, *(f"sum[{k}] *= wide({names[n]});" for k, n in changed.items())])
