"""Rewrites of a formula's graph that move work from pairs to rows and columns.

- Exponentials become powers of 2, with the scale folded into a value of the row, the column or the call.
- Factors of a row move out of a sum, and factors of a column are multiplied before the loop over pairs.

`functions` applies them before it writes the text.
"""

from __future__ import annotations

import math
from collections import Counter

from upsweep._compiler.cuda.pairs.graph import Graph

LOG2_E = 1.4426950408889634
# Squared distances of so many features have the scale of an exponential folded into rows and columns: it saves one
# multiplication of 9 (D=3) to 15. With fewer features the exponential takes longer than all the rest, with more
# the multiplication hardly counts; both keep the differences as they are, which is the more accurate.
FOLDED = range(3, 7)


def fold_exponentials(
    graph: Graph, roots: list[int], scales: list[float], *, factored: bool
) -> tuple[list[int], int | None]:
    """The roots times their scales, with powers of 2 in the place of exponentials of pairs.

    Where the scale of a squared distance is a parameter, its sign is not known before the call: the second result
    is the parameter whose sign "directed" values have.

    `factored`: factors of what is summed will leave the pairs. Only then may the scale of a squared distance go
    into differences that have other uses too, since each of these costs a multiplication by its inverse.
    """
    folding = _Folding(graph, roots, factored)
    for root, scale in zip(roots, scales):
        if scale != 1:
            folding.claim(root, scale)
    for number in sorted(folding.uses):
        value = graph.values[number]
        if value.op == "exp" and value.level == "ij":
            folding.claim(value.args[0], LOG2_E)
    for number in sorted(folding.uses):  # arguments have smaller numbers
        folding.renew(number)
    return [folding.scaled(root, scale) for root, scale in zip(roots, scales)], folding.sign


class _Folding:
    def __init__(self, graph: Graph, roots: list[int], factored: bool) -> None:
        self.graph, self.factored = graph, factored
        self.uses: Counter[int] = graph.uses(roots)
        self.renewed: dict[int, int] = {}  # the new numbers of the graph's values
        self.squares: dict[int, int] = {}  # of squared distances with their scale in the points
        self.sign: int | None = None

    def renew(self, number: int) -> None:
        if number in self.renewed:
            return
        value = self.graph.values[number]
        if value.op == "exp" and value.level == "ij":
            self.renewed[number] = self.graph.add("exp2", self.scaled(value.args[0], LOG2_E))
        else:
            args = tuple(self.renewed[arg] for arg in value.args)
            self.renewed[number] = self.graph.add(value.op, *args, static=value.static, level=value.level)

    def claim(self, number: int, by: float) -> None:
        """Follow the scale down to a squared distance; where it meets one, put it into the points."""
        if self.uses[number] != 1:
            return
        value = self.graph.values[number]
        result = self._differences(number)
        if result is not None:  # of all features: a part of the sum would be a distance, too
            if math.isfinite(by) and by:
                scale = self.graph.constant(math.sqrt(abs(by)))
                self.squares[number] = self._squared_distance(result, scale, None if by > 0 else "neg")
        elif value.op == "neg":
            self.claim(value.args[0], -by)
        elif value.op in ("mul", "div") and value.level == "ij":
            a, other, known = self._factor(number)
            if known is not None:
                self.claim(a, by * known)
            else:
                self._claim_scaled_by_parameter(number, a, other, by)
        elif value.op in ("add", "sub") and self._absorbs(number):
            for arg, sign in zip(value.args, (1, 1 if value.op == "add" else -1)):
                self.claim(arg, by * sign)

    def _claim_scaled_by_parameter(self, number: int, distance: int, other: int, by: float) -> None:
        """A squared distance times a parameter, or divided by one."""
        graph, value = self.graph, self.graph.values[number]
        result = self._differences(distance)
        if result is None or self.sign is not None or not (math.isfinite(by) and by) or graph.level(other) != "p":
            return
        for each in sorted(graph.uses([other])):  # a parameter has no exponentials of pairs below it
            self.renew(each)
        constant, parameter = graph.constant(by), self.renewed[other]
        scale = graph.multiply(constant, parameter) if value.op == "mul" else graph.add("div", constant, parameter)
        self.sign = scale
        root = graph.add("sqrt", graph.add("at_least_tiny", graph.add("abs", scale)))
        self.squares[number] = self._squared_distance(result, root, "directed")

    def scaled(self, number: int, by: float) -> int:
        """A value times a constant, by as few instructions of pairs as there is a way."""
        graph, value = self.graph, self.graph.values[number]
        if number in self.squares:
            return self.squares[number]
        if by == 1:
            return self.renewed[number]
        if value.op == "const":
            return graph.constant(float(value.static[0]) * by)
        if value.op == "neg":
            return self.scaled(value.args[0], -by)
        if value.op in ("mul", "div") and value.level == "ij":
            a, b, known = self._factor(number)
            if known is not None:
                return self.scaled(a, by * known)
            if graph.level(b) != "ij":
                first, scale = self.renewed[b], graph.constant(by)
                early = graph.multiply(scale, first) if value.op == "mul" else graph.add("div", scale, first)
                return graph.multiply(self.renewed[a], early)
        if value.op in ("add", "sub") and value.level == "ij" and self._absorbs(number):
            a, b = value.args
            return graph.add("add", self.scaled(a, by), self.scaled(b, by if value.op == "add" else -by))
        if abs(by) == 1:
            return self.renewed[number] if by > 0 else graph.add("neg", self.renewed[number])
        return graph.multiply(self.renewed[number], graph.constant(by))

    def _factor(self, number: int) -> tuple[int, int, float | None]:
        """Of a product or quotient what varies most, and the other factor, with its number if it is a constant."""
        value = self.graph.values[number]
        a, b = value.args
        if value.op == "mul" and self.graph.level(a) != "ij":
            a, b = b, a
        known = self.graph.constant_of(b)
        if value.op == "div" and known is not None:
            known = 1 / known if known else math.inf
        return a, b, known if known is not None and known and math.isfinite(known) else None

    def _absorbs(self, number: int) -> bool:
        """Whether a scale takes no instruction of pairs here."""
        value = self.graph.values[number]
        if value.level != "ij" or number in self.squares or self._differences(number) is not None:
            return True
        if self.uses[number] != 1:
            return False
        if value.op == "neg" or value.op in ("add", "sub"):
            return all(self._absorbs(arg) for arg in value.args)
        if value.op in ("mul", "div"):
            _, other, known = self._factor(number)
            return known is not None or self.graph.level(other) != "ij"
        return False

    def _differences(self, number: int) -> list[int] | None:
        """The differences of rows and columns whose squares this value is the sum of, if it is to be folded."""
        result, left = list[int](), [number]
        while left:
            part = left.pop()
            value = self.graph.values[part]
            if self.uses[part] != 1:
                return None
            if value.op == "add":
                left += reversed(value.args)
                continue
            squared = value.op == "square" or (value.op == "mul" and value.args[0] == value.args[1])
            if not squared:
                return None
            difference = self.graph.values[value.args[0]]
            sides = {self.graph.level(arg) for arg in difference.args}
            free = self.uses[value.args[0]] == len(value.args) or self.factored
            if difference.op != "sub" or sides != {"i", "j"} or not free:
                return None
            result.append(value.args[0])
        return result if len(result) in FOLDED and not any(d in self.renewed for d in result) else None

    def _squared_distance(self, differences: list[int], scale: int, sign: str | None) -> int:
        """The sum of squares of differences times `scale`, with a sign: none, "neg" or "directed"."""
        graph, total = self.graph, -1
        known = graph.constant_of(scale)
        inverse = graph.add("div", graph.constant(1.0), scale) if known is None else graph.constant(1 / known)
        apart = list[int]()
        for number in differences:
            a, b = graph.values[number].args
            # Near the rows of a tile coordinates are small, wherever the points lie: their products with the
            # scale are rounded by as little as the differences matter.
            centre = graph.add("centre", a if graph.level(a) == "i" else b)
            near = [graph.add("sub", side, centre) for side in (a, b)]
            scaled = [graph.add("mul_rounded", side, scale) for side in near]
            difference = graph.add("sub", *scaled)
            self.renewed[number] = graph.multiply(inverse, difference)
            # A sign is free in a product, and an instruction before a power.
            square = graph.add("mul", graph.add(sign, difference) if sign else difference, difference)
            total = square if total < 0 else graph.add("add", total, square)
            apart += scaled if graph.level(scaled[0]) == "i" else scaled[::-1]
        if sign is None or any(self.uses[n] != len(graph.values[n].args) for n in differences):
            return total
        # Nobody else reads the differences: where points are near each other, nobody has to make them.
        return graph.add("apart", *apart, static=(sign,))


# ---- sums ------------------------------------------------------------------------------------------------------


def factor_sums(graph: Graph, terms: list[int]) -> tuple[list[int], list[int]]:
    """A sum's terms, one a component, and what their sum is to be multiplied with in the end.

    What is known a row leaves the terms; what is known a column becomes one factor.
    """
    outer, inner = list[int](), list[Counter[int]]()
    for term in terms:
        early, late = _factors(graph, term)
        outer.append(graph.product(early))
        inner.append(Counter(late))
    # What all components share is multiplied once.
    shared = inner[0].copy() if inner else Counter()
    for factors_left in inner[1:]:
        shared &= factors_left
    common = graph.product(shared.elements())
    return [graph.product([common, *(left - shared).elements()]) for left in inner], outer


def _factors(graph: Graph, term: int) -> tuple[list[int], list[int]]:
    """A term as a product: a constant and factors known a call or a row, factors of columns and pairs."""
    constant, early, late = 1.0, list[int](), list[int]()

    def take(number: int) -> None:
        nonlocal constant
        value = graph.values[number]
        if value.op == "const":
            constant *= float(value.static[0])
        elif value.level in ("p", "i"):
            early.append(number)
        elif value.op == "neg":
            constant = -constant
            take(value.args[0])
        elif value.op == "mul":
            for arg in value.args:
                take(arg)
        elif value.op == "div" and graph.level(value.args[1]) in ("p", "i"):
            take(value.args[0])
            early.append(graph.add("div", graph.constant(1.0), value.args[1]))
        else:
            late.append(number)

    take(term)
    return [graph.constant(constant), *early], late
