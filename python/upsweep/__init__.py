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
    user_scan, filters          scans by a user's own update, traced and compiled by _expr; users of them
    _arrays, _signature         argument to array; arrays to one shape and an axis
    _dispatch, _cpu             to a backend; the instruction set's build of the kernels
"""

import importlib
from typing import TYPE_CHECKING, Any

from upsweep import testing
from upsweep._arrays import dispatch
from upsweep._backends.cpu import get_num_threads, set_num_threads
from upsweep.aggregates import (
    Carry,
    combine,
    cumulative_sum_carry,
    discounted_cumsum_carry,
    linear_recurrence_carry,
)
from upsweep.bincounts import bincount
from upsweep.blockwise import BlockScan, scan_blocks
from upsweep.compat import PScan, discounted_cumsum_left, discounted_cumsum_right, pscan, scan_forward
from upsweep.config import show_config
from upsweep.histograms import histc, histogram
from upsweep.scans import cumulative_sum, discounted_cumsum, linear_recurrence

if TYPE_CHECKING:
    from upsweep import cluster
    from upsweep.pairs import (
        BlockRanges,
        Genred,
        KernelSolve,
        LazyTensor,
        Pm,
        Vi,
        Vj,
        generic_argkmin,
        generic_argmin,
        generic_logsumexp,
        generic_sum,
    )

__all__ = [
    "BlockRanges",
    "BlockScan",
    "Carry",
    "Genred",
    "KernelSolve",
    "LazyTensor",
    "PScan",
    "Pm",
    "Vi",
    "Vj",
    "bincount",
    "cluster",
    "combine",
    "cumulative_sum",
    "cumulative_sum_carry",
    "discounted_cumsum",
    "discounted_cumsum_carry",
    "discounted_cumsum_left",
    "discounted_cumsum_right",
    "ewm_mean",
    "ewm_sum",
    "generic_argkmin",
    "generic_argmin",
    "generic_logsumexp",
    "generic_sum",
    "get_num_threads",
    "histc",
    "histogram",
    "lfilter",
    "linear_recurrence",
    "linear_recurrence_carry",
    "pscan",
    "scan",
    "scan_blocks",
    "scan_forward",
    "set_num_threads",
    "show_config",
    "testing",
]


# Names whose modules are imported when they are asked for, so that `import upsweep` stays as fast as without.
_LATER = {
    **dict.fromkeys(
        (
            "BlockRanges", "Genred", "KernelSolve", "LazyTensor", "Pm", "Vi", "Vj", "generic_argkmin",
            "generic_argmin", "generic_logsumexp", "generic_sum",
        ),
        "pairs",
    ),
    "scan": "user_scan", "lfilter": "filters", "ewm_mean": "filters", "ewm_sum": "filters",
}  # fmt: skip


def _load_torch() -> Any:
    from upsweep import _torch

    return _torch


def _load_dask() -> Any:
    from upsweep import _dask

    return _dask


dispatch.register("torch", _load_torch)
dispatch.register("dask", _load_dask)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = globals()[name] = getattr(importlib.import_module(f"upsweep.{_LATER[name]}"), name)
        return found
    # distributed imports torch. The last four are modules' former names, which warn when they are imported.
    if name in ("cluster", "distributed", "pairs", "te", "carries", "counts", "peer_names", "streams"):
        return importlib.import_module(f"upsweep.{name}")
    if name == "__version__":  # looked up when asked for: importlib.metadata is slow to import
        from importlib import metadata

        return metadata.version("upsweep")
    if name == "ComplexLazyTensor":
        raise NotImplementedError(
            f"{name}: KeOps has it, upsweep has not; write real and imaginary parts as two formulas"
        )
    raise AttributeError(f"module 'upsweep' has no attribute {name!r}")
