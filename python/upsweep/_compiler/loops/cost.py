"""Cost model of parallel loops, as expressions of sizes; the numbers of threads and of chunks depend on it."""

from __future__ import annotations

from upsweep._compiler.loops.expressions import ITEM_BYTES, Expr, binary, const, index_const, mentions
from upsweep._compiler.loops.statements import For, Statement, Store, inner_statements
from upsweep._compiler.loops.traversal import walk

__all__ = ["strip_bytes", "strip_work"]

# The cost of a mathematical function relative to a store.
_FUNCTION_COST = 8
_FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "pow", "asin", "acos", "atan")


def _times(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def _stores_under(statement: Statement, loops: list[For]) -> list[tuple[Store, list[For]]]:
    if isinstance(statement, Store):
        return [(statement, loops)]
    inside = [*loops, statement] if isinstance(statement, For) else loops
    return [pair for inner in inner_statements(statement) for pair in _stores_under(inner, inside)]


def strip_bytes(strips: list[For]) -> Expr:
    """The bytes that one step of parallel loops stores in one step of the loops around them."""
    total = index_const(0)
    for strip in strips:
        for store, loops in _stores_under(strip.body, []):
            size = const(ITEM_BYTES[store.buffer.dtype], "int64")
            for loop in loops:
                if any(mentions(index, loop.axis) for index in store.indices):
                    size = _times(size, loop.extent)
            total = binary("add", total, size)
    return total


def strip_work(statement: Statement, strips: list[For]) -> Expr:
    """The cost of one step of parallel loops over all of a statement, in bytes or their equivalent."""
    ids = {id(strip) for strip in strips}
    total = index_const(0)
    for store, loops in _stores_under(statement, []):
        n_functions = sum(node.op in _FUNCTIONS for node in walk(store.value))
        work = const(ITEM_BYTES[store.buffer.dtype] * (1 + _FUNCTION_COST * n_functions), "int64")
        for loop in loops:
            if id(loop) not in ids:
                work = _times(work, loop.extent)
        total = binary("add", total, work)
    return total
