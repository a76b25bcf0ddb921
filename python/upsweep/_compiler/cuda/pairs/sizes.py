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

FLOAT16 = ("tf32", "f16")  # precisions for which vectors may be rounded to float16
LONG_FLOAT16, LONGEST_FLOAT16 = 16, 128  # features of them
# Threads of a block, and blocks that share a processor: three hide more of each other's barriers and rows than
# two, or than one of 256 threads (H200, November 2026: k-means 2.2 ms instead of 2.8 and 2.7).
FLOAT16_THREADS, FLOAT16_BLOCKS = 128, 3
FLOAT16_VALUES = 2, 4, 4  # results or weights, and numbers of a row and of a column, up to which there is room
FLOAT16_COLUMNS, STAGES = 64, 3  # columns that come together, and how many times as many there is room for

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
    precision: str = "split"  # of products of long vectors, one of `formulas.reduction.PRECISIONS`
    has_wgmma: bool = False  # whether four warps of the device multiply together

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

    def names(self) -> dict[str, int]:
        """The constants of the kernels' text."""
        return {
            "DIM": self.dim, "ROW_ARRAY": self.row_array, "ROW_COMPONENT": self.row_component,
            "COLUMN_ARRAY": self.column_array, "COLUMN_COMPONENT": self.column_component,
        }  # fmt: skip


@dataclass(frozen=True)
class Float16Sizes:
    """What a formula with the product of vectors that are rounded to float16 is compiled for."""

    product: Product
    record: int  # numbers of a column in shared memory
    is_float16: bool  # as the arrays are
    is_float32: bool
    has_wgmma: bool

    threads, columns, blocks, direct = FLOAT16_THREADS, FLOAT16_COLUMNS, FLOAT16_BLOCKS, True

    @classmethod
    def of(cls, product: Product, sizes: Sizes, request: Request, record: int) -> Float16Sizes | None:
        """The sizes, or None where a formula or a reduction is not for these kernels."""
        values, rows, columns = FLOAT16_VALUES
        if request.precision not in FLOAT16 or not LONG_FLOAT16 <= product.dim <= LONGEST_FLOAT16 or request.k:
            return None
        if max(sizes.n_results, sizes.n_weights) > values or sizes.rows > rows or record > columns:
            return None
        created = cls(product, record, request.dtype == "float16", request.dtype == "float32", request.has_wgmma)
        return created if created.shared_bytes <= request.shared_bytes - STATIC_SHARED else None

    @property
    def depth(self) -> int:
        """Features, in whole steps of the tensor cores."""
        return -(-self.product.dim // 16) * 16

    @property
    def stage_bytes(self) -> int:
        """Shared memory of columns that come together, as float16_products.cuh lays it out."""
        atoms = -(-self.depth // 64)
        return -(-self.columns * (128 * atoms + 8 + 4 * self.record) // 1024) * 1024

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of reduce_pairs, whose stages begin at multiples of 1024 bytes."""
        return STAGES * self.stage_bytes + 1024

    def prepared_bytes(self, n_batch: int, n_columns: int) -> int:
        """Device memory for rounded columns, as float16_vectors.cuh lays it out."""
        return n_batch * (4 * self.depth + n_columns * (2 * self.depth + 8))

    def files(self) -> tuple[str, ...]:
        """The parts of the kernel's text."""
        return ("float16_vectors", "wgmma" if self.has_wgmma else "mma_sync", "float16_products")

    def names(self) -> dict[str, int]:
        """The constants of these parts."""
        shifted = self.product.centred and self.is_float32  # rounded numbers would be rounded once more
        return self.product.names() | {
            "STAGE_BYTES": self.stage_bytes, "SHIFTED": shifted, "SCALED": not self.is_float16,
        }  # fmt: skip


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
        return self.product.names() | {
            "CHUNKS": self.chunks, "LENGTH": self.length, "SUMMED": SUMMED, "CENTRES": self._centres(),
            "SHARED_BYTES": self.shared_bytes, "HANDED": self._handed(), "PRODUCTS": self._products(),
        }  # fmt: skip

    def prepared_bytes(self, n_batch: int, n_columns: int) -> int:
        """Nothing: each block splits its vectors."""
        return 0
