"""Scans, counts and block-sparse reductions for arrays, at the speed of a memory copy.

A scan is one recurrence along an axis, y[t] = a[t] * y[t-1] + x[t], run in two halves: the sequential scan of a
line that fits a core, and the blocked scan, where the blocks of a long line are reduced, their carries combined
and the blocks scanned again from the cache. Results do not depend on the number of threads.

    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum(np.ones(4), 0.5)
    array([1.   , 1.5  , 1.75 , 1.875])

The layers, each calling only downwards:

    scans, carries, counts      public functions: checks and docstrings; peer_names: others' names for them
    streams                     scans of blocks, one after the other
    distributed                 scans and counts of what is sharded over processes, by torch.distributed
    histograms                  the same; _bins: from the edges of bins to thresholds
    _arrays, _signature         argument to array; arrays to one shape and an axis
    _dispatch, _cpu             to a backend; the instruction set's build of the kernels
"""

import importlib
from typing import Any

from upsweep import testing
from upsweep._cpu import get_num_threads, set_num_threads
from upsweep.carries import (
    Carry,
    combine,
    cumulative_sum_carry,
    discounted_cumsum_carry,
    linear_recurrence_carry,
)
from upsweep.config import show_config
from upsweep.counts import bincount
from upsweep.histograms import histc, histogram
from upsweep.peer_names import PScan, discounted_cumsum_left, discounted_cumsum_right, pscan, scan_forward
from upsweep.scans import cumulative_sum, discounted_cumsum, linear_recurrence
from upsweep.streams import BlockScan, scan_blocks

__all__ = [
    "BlockScan",
    "Carry",
    "PScan",
    "bincount",
    "combine",
    "cumulative_sum",
    "cumulative_sum_carry",
    "discounted_cumsum",
    "discounted_cumsum_carry",
    "discounted_cumsum_left",
    "discounted_cumsum_right",
    "get_num_threads",
    "histc",
    "histogram",
    "linear_recurrence",
    "linear_recurrence_carry",
    "pscan",
    "scan_blocks",
    "scan_forward",
    "set_num_threads",
    "show_config",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up when asked for: importlib.metadata is slow to import
        from importlib import metadata

        return metadata.version("upsweep")
    if name == "distributed":  # of tensors only: imports torch
        return importlib.import_module("upsweep.distributed")
    raise AttributeError(f"module 'upsweep' has no attribute {name!r}")
