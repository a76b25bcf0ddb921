"""What the kernels of a pair reduction are compiled for: the request, a formula's sizes, and the tile sizes of the
kernel that multiplies long vectors on tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Of a block: 128, two of which share a processor, or 256, which bring columns for twice as many rows but wait for
# each other. The other sizes follow: a warp has 32 rows, and brings 16 columns.
THREADS = 128
# Features whose sum is left to tensor cores, which cut off: 16, or 32, which saves a tenth of the instructions,
# takes more registers, and makes products, not distances, half as wrong again where each step cuts once.
SUMMED = 16
HANDED = 16  # columns that a warp's threads reduce at a time; half as many beside the longest vectors
LONGEST = 128  # features of them in shared memory at a time: two blocks then share a processor
DIRECT_RESULTS, DIRECT_ROW = 2, 4  # numbers of a sum and of a row, up to which a thread keeps those of four rows
SHORT_RECORD = 8  # numbers of a column, up to which there is room for those of 256 threads

PITCH = 36  # of a warp's 32 rows, as mma_to_rows.cuh has it
STATIC_SHARED = 12 * 1024  # what the kernel's other arrays take, at most about


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
    shared_bytes: int = 227 * 1024  # that a block may have on the device

    @property
    def parts(self) -> dict[str, str]:
        """The part that each level of the program plays: rows ("i") are what remains after the reduction."""
        i, j = ("j", "i") if self.remaining == "j" else ("i", "j")
        return {"p": "p", "i": i, "j": j, "ij": "ij"}


class Sizes(NamedTuple):
    """How many numbers a formula's kernels keep and make."""

    n_results: int
    n_weights: int
    parameters: int
    rows: int
    columns: int
    n_instructions: int  # of a pair


class Product(NamedTuple):
    """Where the vectors lie whose products tensor cores make."""

    centred: bool  # a squared distance, not a scalar product
    dim: int
    row_array: int
    row_component: int
    column_array: int
    column_component: int


@dataclass(frozen=True)
class ProductSizes:
    """What a formula with the product of long vectors is compiled for."""

    product: Product
    direct: bool  # whether sums of products are added where tensor cores leave them
    threads: int
    chunks: int  # turns in which long vectors come into shared memory
    length: int  # features of a turn

    @classmethod
    def of(cls, product: Product, sizes: Sizes, is_sum: bool, shared_limit: int) -> ProductSizes:
        """The fewest turns with which everything fits into shared memory."""
        direct = is_sum and sizes.n_results <= DIRECT_RESULTS and sizes.rows <= DIRECT_ROW
        few = -(-product.dim // LONGEST)
        threads = THREADS if few == 1 and sizes.columns <= SHORT_RECORD else 128
        for chunks in range(few, product.dim + 1):
            length = -(-product.dim // (16 * chunks)) * 16  # whole steps of the tensor cores
            created = cls(product, direct, threads if chunks == 1 else 128, chunks, length)
            if created.shared_bytes <= shared_limit - STATIC_SHARED * created.threads // 128:
                break
        return created

    @property
    def columns(self) -> int:
        """Columns in shared memory at a time."""
        return self.threads // 2

    @property
    def blocks(self) -> int:
        """Blocks of threads that share a processor."""
        return 256 // self.threads

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of reduce_pairs, as tiles.cuh lays it out."""
        return 4 * ((self.threads + self.columns) * (self.length + 2) + self._centres() + self._products())

    def _centres(self) -> int:
        return -(-self.product.dim // 4) * 4 if self.product.centred else 0

    def _handed(self) -> int:
        return HANDED if self.length < LONGEST else HANDED // 2

    def _products(self) -> int:
        """Products in shared memory, where threads that own a row take them from."""
        return 0 if self.direct else self.threads // 32 * self._handed() * PITCH

    def files(self) -> tuple[str, ...]:
        """The parts of the kernel's text."""
        return ("vectors", "tiles", "mma_epilogue" if self.direct else "mma_to_rows", "products")

    def names(self) -> dict[str, int]:
        """The constants of these parts."""
        product = self.product
        return {
            "DIM": product.dim, "CHUNKS": self.chunks, "LENGTH": self.length, "SUMMED": SUMMED,
            "CENTRES": self._centres(), "ROW_ARRAY": product.row_array, "ROW_COMPONENT": product.row_component,
            "COLUMN_ARRAY": product.column_array, "COLUMN_COMPONENT": product.column_component,
            "SHARED_BYTES": self.shared_bytes, "HANDED": self._handed(), "PRODUCTS": self._products(),
        }  # fmt: skip
