"""Scans, counts, histograms and pair reductions for numpy, torch, cupy, jax and dask arrays, on CPUs and CUDA.

A scan is one recurrence along an axis, y[t] = a[t] * y[t-1] + x[t]. A line of less than one block is scanned in
order. A long line is cut into blocks: the blocks are reduced to their aggregates, the aggregates are combined, and
the blocks are scanned from the cache. Results do not depend on the number of threads.

    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum(np.ones(4), 0.5)
    array([1.   , 1.5  , 1.75 , 1.875])

Imports go down in this picture and never up::

    blockwise  distributed  _dask                            data larger than one array or one machine
    aggregates  filters  compat  pairs  _torch               functions that build on others; torch tensors
    scans  bincounts  histograms  cluster  user_scan  te     public functions
    _user_scan                                               user-defined scans: compiled scans, gradients
    _backends                                                executors of checked problems, on the CPU and on CUDA
    _core                                                    problems: arguments checked, broadcast, described
    _arrays  _compiler                                       array libraries; compiler of formulas and loops
    _utils                                                   LRU cache, integer checks

`_arrays.dispatch` loads `_torch` and `_dask` at the first call with a tensor or a dask array. Start reading at
`scans.cumulative_sum`.
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
    "BlockRanges", "BlockScan", "Carry", "Genred", "KernelSolve", "LazyTensor", "PScan", "Pm", "Vi", "Vj",
    "bincount", "cluster", "combine", "cumulative_sum", "cumulative_sum_carry", "discounted_cumsum",
    "discounted_cumsum_carry", "discounted_cumsum_left", "discounted_cumsum_right", "ewm_mean", "ewm_sum",
    "generic_argkmin", "generic_argmin", "generic_logsumexp", "generic_sum", "get_num_threads", "histc",
    "histogram", "lfilter", "linear_recurrence", "linear_recurrence_carry", "pscan", "scan", "scan_blocks",
    "scan_forward", "set_num_threads", "show_config", "testing",
]  # fmt: skip


# Modules of names that are imported on first use, so that `import upsweep` stays fast; other names are of `pairs`.
_LAZY = {"scan": "user_scan", "lfilter": "filters", "ewm_mean": "filters", "ewm_sum": "filters"}


def _load_torch() -> Any:
    import upsweep._torch  # a fifth faster than `from upsweep import _torch`, which each call with tensors runs

    return upsweep._torch


def _load_dask() -> Any:
    from upsweep import _dask

    return _dask


dispatch.register("torch", _load_torch)
dispatch.register("dask", _load_dask)


def __getattr__(name: str) -> Any:
    # distributed imports torch. The last four are former names of modules, which warn when they are imported.
    if name in ("cluster", "distributed", "pairs", "te", "carries", "counts", "peer_names", "streams"):
        return importlib.import_module(f"upsweep.{name}")
    if name in __all__:
        value = globals()[name] = getattr(importlib.import_module(f"upsweep.{_LAZY.get(name, 'pairs')}"), name)
        return value
    if name == "__version__":  # on first use: importlib.metadata is slow to import
        from importlib import metadata

        return metadata.version("upsweep")
    if name == "ComplexLazyTensor":
        raise NotImplementedError(
            f"{name}: KeOps has it, upsweep has not; write real and imaginary parts as two formulas"
        )
    raise AttributeError(f"module 'upsweep' has no attribute {name!r}")
