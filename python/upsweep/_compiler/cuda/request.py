"""Cache key and sizes of the kernels of a pair reduction."""

from __future__ import annotations

from typing import NamedTuple


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
