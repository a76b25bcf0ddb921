"""Stages that are products of matrices, as kernels whose blocks compute tiles of the result.

    for (t, b, g, j) { c[t, b, g, j] = 0;  for (k) { c[t, b, g, j] += X[t, b, k] * W[g, k, j] } }

The loops of one factor alone are the rows, here t and b, those of the other one the columns, g and j; loops of
both are products of their own. kernels/product_tiles.cuh has the kernel; `program` calls `product_of` before all
passes.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from upsweep._compiler.loops.expressions import (
    FLOATS,
    Expr,
    atoms,
    binary,
    constant_of,
    constant_product,
    index_const,
)
from upsweep._compiler.loops.linear import linear
from upsweep._compiler.loops.reductions import initialised_sum
from upsweep._compiler.loops.statements import For, Produce, Statement, Store, loads_of

# Rows or columns, and terms, from which on tiles are worthwhile.
_FEW, _FEW_TERMS = 32, 8
_THREADS = 256
COLUMN_TILES, ROW_TILES, PRODUCTS, THREADS = "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"


@dataclass(eq=False)
class TiledProduct:
    """A product of matrices: the loops of its rows, columns, independent products and terms, and its factors."""

    store: Store
    rows: list[For]
    columns: list[For]
    products: list[For]
    terms: For
    left: Expr
    right: Expr

    @property
    def side(self) -> int:
        """Rows and columns of a tile."""
        return 64 if self.store.buffer.dtype == "float64" else 128

    def extents(self) -> dict[str, list[Expr]]:
        """The steps of each thread axis."""
        return {
            COLUMN_TILES: [_tiles(count_of(self.columns), self.side)],
            ROW_TILES: [_tiles(count_of(self.rows), self.side)],
            **({PRODUCTS: [count_of(self.products)]} if self.products else {}),
            THREADS: [index_const(_THREADS)],
        }


def count_of(loops: list[For]) -> Expr:
    """The steps of nested loops, as one loop."""
    return functools.reduce(functools.partial(binary, "mul"), (loop.extent for loop in loops), index_const(1))


def _tiles(count: Expr, side: int) -> Expr:
    return linear(binary("floordiv", linear(count + (side - 1)).expr(), index_const(side))).expr()


def product_of(statement: Statement, free: Collection[int]) -> TiledProduct | None:
    """The product that a statement is, if tiles are worthwhile and the schedule leaves all of its loops open."""
    loops = []
    while isinstance(statement, (Produce, For)):
        if isinstance(statement, For):
            loops.append(statement)
        statement = statement.body
    accumulation = initialised_sum(statement)
    if not loops or accumulation is None or any(loop.tag or id(loop.axis) not in free for loop in loops):
        return None
    start, terms = accumulation
    store = terms.body
    if terms.tag or not isinstance(store, Store) or store.value.op != "add" or store.buffer.dtype not in FLOATS:
        return None
    product = store.value.args[1]
    is_zero = start.value.op == "const" and start.value.static[0] == 0
    if not is_zero or product.op != "mul" or _is_below(constant_of(terms.extent), _FEW_TERMS):
        return None
    left, right = product.args
    last = loops[-1].axis
    if last in atoms(left):  # neighbours in the result are neighbours of the right factor
        left, right = right, left
    of_left, of_right = ([loop for loop in loops if loop.axis in atoms(each)] for each in (left, right))
    rows = [loop for loop in of_left if loop not in of_right]
    columns = [loop for loop in of_right if loop not in of_left]
    products = [loop for loop in of_left if loop in of_right]
    is_complete = len(rows) + len(columns) + len(products) == len(loops)
    if (
        not is_complete
        or not columns
        or columns[-1].axis is not last
        or terms.axis not in atoms(left) & atoms(right)
    ):
        return None
    if any(_is_below(constant_product(each.extent for each in side), _FEW) for side in (rows, columns)):
        return None
    if any(each.static[0] is store.buffer for each in loads_of(product)):
        return None
    return TiledProduct(store, rows, columns, products, terms, left, right)


def _is_below(size: int | None, limit: int) -> bool:
    return size is not None and size < limit
