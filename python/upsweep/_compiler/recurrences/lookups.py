"""Symbols as indices of small tables: ``table[state]`` in an update, of a list, a tuple or an array.

An index has to be a Python integer, so the update runs once with each value that the symbol may have, from 0 on
until that is an IndexError. Its results are a choice among those of the runs: by comparing the symbol, if they
are few; else the results of one run, with tables in place of the numbers in which runs differ. A negative integer
counts from the end. Where the symbol is none of these values, the choice is NaN, False of results that are bool,
and the nearest of results that are integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from upsweep._compiler.formulas.nodes import Node, constant, intern, make
from upsweep._compiler.recurrences.integers import as_words
from upsweep._compiler.recurrences.operations import apply, cast
from upsweep._compiler.recurrences.promotion import is_integer, operand
from upsweep._compiler.recurrences.symbols import (
    NOT_A_NUMBER,
    Symbol,
    refusal,
    refusal_of_value,
    refused_values,
)

_MOST = 256  # entries of a table
_LOOKUPS = ("lookup", "integer_lookup")
_FEW = 16  # entries, up to which comparisons take no longer than loads


class Numbers(tuple[Any, ...]):
    """The numbers of an array that an update returned: never a pair of a state and an output."""


class _Run:
    """One run of an update with the values of its symbolic indices.

    It is void where `open_index` or `error` is set: libraries replace exceptions of an index by their own.
    """

    def __init__(self, chosen: dict[Node, int]) -> None:
        self._chosen = chosen
        self.open_index: Symbol | None = None  # the first one without a value
        self.error: TypeError | None = None

    def value_of(self, symbol: Symbol) -> int:
        value = self._chosen.get(symbol.node)
        if value is None:
            self.open_index = self.open_index or symbol
            raise IndexError
        if value > _MOST:  # the index behind the last entry is tried, and is an IndexError
            self.error = refusal(
                f"a symbolic value as a size, or as an index of more than {_MOST} entries,",
                "a table that a state indexes has few entries; data of each step belongs in xs, as in "
                "scan(update, init, (xs, data)), and one that inputs index as table[ids]; sizes, slices and loops "
                "take Python's integers",
            )
            raise self.error
        return value


_running: ContextVar[_Run | None] = ContextVar("running", default=None)


def _index(symbol: Symbol) -> int:
    run = _running.get()
    if run is None:
        raise refusal_of_value(*NOT_A_NUMBER)
    return run.value_of(symbol)


setattr(Symbol, "__index__", _index)  # noqa: B010 - mypy knows no assignment to a method


def run_with_lookups(update: Callable[[Any, Any], Any], state: Any, x: Any) -> Any:
    """The result of the update; arrays in it are `Numbers`, and lists are tuples."""

    def result(chosen: dict[Node, int]) -> Any:
        run = _Run(chosen)
        refused: list[TypeError] = []
        tokens = _running.set(run), refused_values.set(refused)
        try:
            value = _without_arrays(update(state, x))
        except Exception:
            if run.open_index is None and run.error is None:
                raise
        else:
            if refused:  # and caught by the update
                raise refused[0]
        finally:
            _running.reset(tokens[0])
            refused_values.reset(tokens[1])
        if run.error is not None:
            raise run.error
        index = run.open_index
        if index is None:
            return value
        node, results = index.node, list[Any]()
        while True:
            try:
                results.append(result({**chosen, node: len(results)}))
            except IndexError:
                if not results:
                    raise
                break

        def counts_from_end(place: int) -> bool:
            """Whether a place is that before the end; not if the index is of tables of several lengths."""
            try:
                return _key(result({**chosen, node: place - len(results)})) == _key(results[place])
            except (IndexError, ValueError):
                return False

        if _is_signed(index) and counts_from_end(len(results) - 1) and counts_from_end(0):
            index = cast(index, np.int64)
            index = apply("where", apply("less", index, 0), apply("add", index, len(results)), index)
        return _chosen(index, results)

    return result({})


def _without_arrays(value: Any) -> Any:
    """The result of an update, with small arrays of numbers as tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_without_arrays, value))
    if isinstance(value, np.ndarray) and value.ndim:
        return Numbers(map(_without_arrays, value))
    return value


def _is_signed(index: Symbol) -> bool:
    return is_integer(index) and (index.dtype is int or np.dtype(index.dtype).kind == "i")


def _key(result: Any) -> Any:
    """A key that is equal for the same results."""
    if isinstance(result, tuple):
        return (*map(_key, result),)
    return None if result is None else repr(operand(result)[1]), result is None or operand(result)[0]


def _chosen(index: Symbol, results: list[Any]) -> Any:
    """The result at an index."""
    first = results[0]
    if any(isinstance(result, tuple) or result is None for result in results):
        forms = {
            None if result is None else len(result) if isinstance(result, tuple) else -1 for result in results
        }
        if len(forms) > 1:
            what = "an update whose results have other forms for other indices"
            raise refusal(what, "return as many numbers for all")
        return first and type(first)(_chosen(index, [*items]) for items in zip(*results))
    nodes = [operand(result) for result in results]
    if all(node == nodes[0] for node in nodes):
        return first
    if len(results) > _FEW:
        by_table = _of_table(index, [node for node, _ in nodes], [kind for _, kind in nodes])
        if by_table is not None:
            return by_table
    if all(map(is_integer, results)):
        chosen = results.pop()
        for value, result in reversed([*enumerate(results)]):
            chosen = apply("where", apply("less_equal", index, value), result, chosen)
        return chosen
    chosen = False if all(kind == np.dtype(bool) for _, kind in nodes) else math.nan
    for value, result in reversed([*enumerate(results)]):
        chosen = apply("where", apply("equal", index, value), result, chosen)
    return chosen


def _of_table(index: Symbol, nodes: list[Node], kinds: list[Any]) -> Symbol | None:
    """The result at an index, by tables; None if the results differ in more than numbers."""
    if len({(type(kind), kind) for kind in kinds}) > 1:
        return None
    number, last = cast(index, np.float64), len(nodes) - 1
    within = apply("less_equal", number, last)
    place = apply("where", within, apply("maximum", apply("ceil", number), 0), last)
    node = _merged(place.node, nodes)
    if node is None:
        return None
    kind = kinds[0]
    chosen = Symbol(node, kind if isinstance(kind, np.dtype) else int if isinstance(kind, int) else None)
    if is_integer(chosen):
        return chosen
    return apply("where", apply("equal", place, number), chosen, False if kind == np.dtype(bool) else math.nan)


def _merged(place: Node, nodes: list[Node]) -> Node | None:
    """The node of which these are the values for places 0, 1, ...; None if they differ in more than numbers."""
    merged: dict[tuple[Node, ...], Node] = {}
    stack = [tuple(nodes)]
    while stack:
        row = stack[-1]
        first = row[0]
        columns = [*zip(*(node.args for node in row))]
        missing = [column for column in columns if column not in merged]
        if all(node is first for node in row):
            merged[row] = first
        elif len({(node.op, len(node.args)) for node in row}) > 1:
            return None
        elif first.op == "integer":
            merged[row] = intern("integer_lookup", (place,), tuple(node.static[0] for node in row), 1)
        elif first.op == "constant":
            numbers = [node.static[0] for node in row]
            if not all(map(math.isfinite, numbers)):  # no literals of CUDA C++
                return None
            merged[row] = intern("lookup", (place,), as_words(numbers), 1)
        elif first.op in _LOOKUPS and len({(node.args, len(node.static)) for node in row}) == 1:
            # A table of tables is one whose rows follow each other.
            row_begin = make("mul", place, constant(len(first.static)))
            words = tuple(word for node in row for word in node.static)
            merged[row] = intern(first.op, (make("add", row_begin, first.args[0]),), words, 1)
        elif len({repr(node.static) for node in row}) > 1:
            return None
        elif missing:
            stack += missing
            continue
        else:
            merged[row] = intern(first.op, tuple(merged[column] for column in columns), first.static, first.dim)
        stack.pop()
    return merged[tuple(nodes)]
