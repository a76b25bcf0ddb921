"""From a reduction's scalar program to the text of its kernels.

The text is: types and sizes, `kernels/device.cuh`, `numbers.cuh` and `call.cuh`, the formula's own functions,
`chunk.cuh`, then the reduction's file and `kernel.cuh`. The functions are

    load_parameters   what is known once a call or a tile of rows
    load_row          what is known once a row and read by pairs
    load_column       what is known once a column and read by pairs: the record in shared memory
    Pair              the formula and its weight for a pair
    finish_sum        factors of a row that were taken out of a sum
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from upsweep._compiler.cuda.pairs.fold import LOG2_E
from upsweep._compiler.cuda.pairs.functions import Functions
from upsweep._compiler.cuda.pairs.looped import LoopedFunctions, is_looped
from upsweep._compiler.cuda.pairs.sizes import Float16Sizes, ProductSizes, Request
from upsweep._compiler.cuda.scalars import ELEMENTS, constants

if TYPE_CHECKING:
    from upsweep._compiler.lowering.program import Program

FAMILIES = {"sum": "sum", "logsumexp": "softmax", "sumsoftmaxweight": "softmax"}
THREADS = 128  # of a block
SHARED_BYTES = 32 * 1024  # of columns at most
MOST_SHARED = 48 * 1024  # of a column: what a block has without asking
REGISTERS = 65536  # of a processor
UNROLLED_INSTRUCTIONS = 900  # of a loop's body: eight columns of a Gaussian, 6 % faster than four
# Cycles that the unit for exponentials takes for those of a warp, and that an instruction takes beside them, as
# measured on an H200 in November 2026; instructions of a polynomial in the place of an exponential.
EXPONENTIAL, INSTRUCTION, POLYNOMIAL = 8, 1.4, 9
CHUNK = 4  # columns that are looked at together by those who seek extremes
# Division and square root within 2 units in the last place, subnormal numbers taken as zero.
FAST = ("--ftz=true", "--prec-div=false", "--prec-sqrt=false")
WGMMA = "--gpu-architecture=sm_90a"  # whose instructions no other device has
MOST_UNROLLED = 64  # results, weights or places
MAX_BATCH = 6  # axes of a batch


@cache
def kernel_text(name: str) -> str:
    return (Path(__file__).parents[1] / "kernels" / f"{name}.cuh").read_text()


def render(program: Program, request: Request) -> Kernels:
    """The text of the kernels of a reduction."""
    # float64's exponentials are the library's, with their own scale.
    scale = LOG2_E if _family(request) == "softmax" and request.dtype != "float64" else 1.0
    return Kernels((LoopedFunctions if is_looped(program) else Functions)(program, request, scale), request)


def _family(request: Request) -> str:
    return FAMILIES.get(request.reduction) or ("extremes" if request.k == 0 else "topk")


class Kernels:
    """The text of a reduction's kernels, and the sizes that they are compiled for and launched with."""

    combiners = THREADS

    def __init__(self, writer: Functions | LoopedFunctions, request: Request) -> None:
        sizes, product = writer.sizes, writer.product
        wide = 2 if request.dtype == "float64" else 1  # registers of a number
        sums = 1 if request.dtype == request.dtype_acc == "float32" else 2  # words of a sum from block to block
        index = 2 if request.wide_index else 1
        n, n_weights = sizes.n_results, max(sizes.n_weights, 1)
        name, k = request.reduction, request.k
        if name == "sum":
            state, partial = n * (wide + sums), n * 4 * sums
        elif name in FAMILIES:
            n_sums = n_weights + (name == "sumsoftmaxweight")
            state, partial = wide + n_sums * (wide + sums), 4 * wide + n_sums * 4 * sums
        else:
            state = n * max(k, 1) * (wide + index) + n * CHUNK * wide
            partial = n * max(k, 1) * (4 * wide + 8)
        a_row = sizes.rows * wide + state
        limits: tuple[tuple[int, int], ...] = ((8, 64), (4, 80), (2, 150))
        if writer.near_points:  # a lane has four rows' sums, parts of two multiplications, and what pairs read
            a_row += 4 * (n + writer.n_row_reads) + 8 * (writer.near_points // 4 + 1)
            limits = ((4, 80), (2, 120))
        rows = next((r for r, most in limits if r * a_row <= most), 1)
        rows = 1 if product else min(rows, request.rows or rows)
        record = _padded(sizes.columns, wide)
        n_bytes = max(record, 1) * 4 * wide
        if n_bytes > MOST_SHARED:
            raise ValueError(
                f"a formula that reads {record} numbers of each column is too large for CUDA, which keeps at most "
                f"{MOST_SHARED // (4 * wide)} of {request.dtype}"
            )
        # At most 128 columns in shared memory at a time: the error of a float32 sum of them is bounded by that.
        fitting = next(b for b in (128, 64, 32, 16, 8, 4, 1) if b * n_bytes <= SHARED_BYTES or b == 1)
        # Both bodies of a softmax and the candidates of the K smallest take more than their states.
        spare = 44 if writer.near_points else 24 if name == "sum" or not (name in FAMILIES or k) else 40
        is_float, indexed = not name.startswith("arg"), "arg" in name
        n_out = n_weights if name in FAMILIES and name != "sum" else n * max(k, 1)
        self.sizes, self.rows, self.record, self.sums = sizes, rows, record, sums
        self.near_points = writer.near_points
        self.registers = min(rows * a_row + 2 * min(record, 32) * wide + spare, 255)
        self.product = product and (
            Float16Sizes.of(product, sizes, request, max(record, 1))
            or ProductSizes.of(product, sizes, name == "sum", request.shared_bytes)
        )
        self.threads = self.product.threads if self.product else THREADS
        self.tile = self.threads * rows  # rows
        self.block = self.product.columns if self.product else fitting  # columns
        self.partial_bytes = partial  # of a row
        self.shared_bytes = self.product.shared_bytes if self.product else 0  # that reduce_pairs is launched with
        self.n_values, self.n_indices = n_out * is_float, n_out * indexed  # of a row; 0: the reduction has none
        has_wgmma = self.product is not None and "wgmma" in self.product.files()
        self.options = (
            () if request.dtype == "float64" else (*FAST, WGMMA) if has_wgmma else FAST
        )  # of the compiler
        known = [
            self._constants(writer, request), *map(kernel_text, ("device", "numbers", "call", "column")),
            *writer.texts(), *map(kernel_text, ("chunk", _family(request), "items")),
        ]  # fmt: skip
        self.text = "\n".join([*known, *map(kernel_text, self._files())])
        # Apart, since it takes a fifth of the time to compile, and few columns are not cut into parts.
        self.combining_text = "\n".join([*known, kernel_text("combine")])

    def _files(self) -> tuple[str, ...]:
        """The parts of the kernel's text that differ by who makes a pair's distance."""
        if self.product:
            return self.product.files()
        return ("near_tiles" if self.near_points else "near_rows", "kernel")

    def _constants(self, writer: Functions | LoopedFunctions, request: Request) -> str:
        """The types and sizes at the start of the text."""
        fitting = max(1, min(8, REGISTERS // (THREADS * (-(-self.registers // 8) * 8))))
        blocks = self.product.blocks if self.product else fitting
        real = "double" if request.dtype == "float64" else "float"
        wide = "double" if self.sums == 2 else "float"
        names = {
            "N_ARRAYS": request.n_arrays, "MAX_BATCH": MAX_BATCH, "N_RESULTS": self.sizes.n_results,
            "N_WEIGHTS": self.sizes.n_weights, "PARAMETERS": max(self.sizes.parameters, 1),
            "ROW_VALUES": max(self.sizes.rows, 1), "COLUMN_VALUES": max(self.record, 1), "THREADS": self.threads,
            "ROWS": self.rows, "BLOCK": self.block, "BLOCKS_A_PROCESSOR": blocks, "COMBINERS": THREADS,
            "UNROLLED": self._unrolled(), "K": request.k, "CHUNK": CHUNK,
            "PARTIAL_BYTES": self.partial_bytes, "EACH_RESULT": _unrolled(self.sizes.n_results),
            "EACH_WEIGHT": _unrolled(self.sizes.n_weights + 1), "EACH_PLACE": _unrolled(request.k),
        }  # fmt: skip
        flags = {
            "SOFTMAX": request.reduction == "sumsoftmaxweight",
            "CENTRED": self.product is not None and self.product.product.centred,
            "DIRECT": self.product is not None and self.product.direct,
            "LARGEST": request.reduction.startswith(("max", "argmax")),
            "VALUES": self.n_values > 0,
            "INDICES": self.n_indices > 0,
        }
        names |= self.product.names() if self.product else {}
        of_formula = {
            "SIGNED": writer.sign is not None, "SIGN": writer.sign or 0, "EXPANDABLE": writer.near is not None,
            "TILED": self.near_points > 0, "NEAR_POINTS": self.near_points,
            "NEAR_UNROLLED": 2 if self.rows > 1 else 1,
            "POLYNOMIALS": _polynomials(writer.n_near), "NEAR_ROW": max(self.sizes.rows - 1, 0),
            "NEAR_COLUMN": max(self.sizes.columns - 1, 0),
        }  # fmt: skip
        lines = [
            f"typedef {real} real;",
            f"typedef {wide} wide;",
            f"typedef {'long long' if request.wide_index else 'int'} column_index;",
            "struct float16;",
            "struct bfloat16;",
            f"typedef {ELEMENTS[request.dtype]} element;",
            *constants({**names, **flags, **of_formula}),
        ]
        return "\n".join(lines) + "\n"

    def _unrolled(self) -> int:
        """Columns in one turn of the inner loop: as long as its instructions fit their cache well."""
        most = UNROLLED_INSTRUCTIONS // (self.rows * self.sizes.n_instructions or 1)
        if self.near_points:  # another body; few rows are done before a longer one is compiled
            most = min(most, 4) if self.rows > 1 else 1
        return next((u for u in (8, 4, 2) if u <= most), 1)


def _polynomials(n_instructions: int) -> int:
    """Of 16 near pairs of so many instructions each, a bit for each whose power of 2 is a polynomial.

    So many that the unit for exponentials and the scheduler take the same time, distributed evenly.
    """
    left = EXPONENTIAL - INSTRUCTION * n_instructions
    count = max(0, round(16 * left / (EXPONENTIAL + INSTRUCTION * (POLYNOMIAL - 1))))
    return sum(1 << (15 - 16 * k // count) for k in range(count))


def _padded(n: int, wide: int) -> int:
    """Numbers of a record: whole 16 bytes where that wastes little."""
    together = 4 // wide
    return n if n < together and n != 3 else -(-n // together) * together


def _unrolled(n: int) -> int:
    """Turns of a loop that are written out: all, unless they are so many that the compiler takes long for them."""
    return max(n, 1) if n <= MOST_UNROLLED else 1
