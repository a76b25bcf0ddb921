"""Cost model of parallel loops, as expressions of sizes; the numbers of threads and of chunks depend on it."""

from __future__ import annotations

from collections.abc import Iterable

from upsweep._compiler.loops.expressions import ITEM_BYTES, Expr, binary, const, index_const, mentions
from upsweep._compiler.loops.rewrite import paths_to
from upsweep._compiler.loops.statements import For, Statement
from upsweep._compiler.loops.traversal import walk

# The cost of a mathematical function relative to a store.
_FUNCTION_COST = 8
_FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "pow", "asin", "acos", "atan")


def _total(n_bytes: int, loops: Iterable[For]) -> Expr:
    """The bytes of one step of loops, times their extents."""
    total = const(n_bytes, "int64")
    for loop in loops:
        total = binary("mul", total, loop.extent)
    return total


def strip_bytes(strips: list[For]) -> Expr:
    """The bytes that one step of parallel loops stores in one step of the loops around them."""
    total = index_const(0)
    for strip in strips:
        for store, around in paths_to(strip.body):
            loops = [loop for loop in around if isinstance(loop, For)]
            moving = [loop for loop in loops if any(mentions(index, loop.axis) for index in store.indices)]
            total = binary("add", total, _total(ITEM_BYTES[store.buffer.dtype], moving))
    return total


def strip_work(statement: Statement, strips: list[For]) -> Expr:
    """The cost of one step of parallel loops over all of a statement, in bytes or their equivalent."""
    total = index_const(0)
    for store, around in paths_to(statement):
        n_functions = sum(node.op in _FUNCTIONS for node in walk(store.value))
        n_bytes = ITEM_BYTES[store.buffer.dtype] * (1 + _FUNCTION_COST * n_functions)
        loops = [loop for loop in around if isinstance(loop, For) and loop not in strips]
        total = binary("add", total, _total(n_bytes, loops))
    return total
