"""Scans, counts, histograms and pair reductions for numpy, torch, cupy, jax and dask arrays, on CPUs and CUDA.

Functions by task; ``help(upsweep.scan)`` and so on describe each::

    running sum, with resets                    cumulative_sum
    discounted or decaying sum, returns         discounted_cumsum
    gated recurrence, linear RNN                linear_recurrence
    recurrence of your own, functions in it     scan; sigmoid, silu, softplus, logaddexp
    filters, exponentially weighted windows     lfilter, ewm_mean, ewm_sum
    loops over tensors, as in TVM               te
    counts, or sums of weights, by key          bincount
    histograms                                  histogram (numpy's), histc (torch's)
    sums and neighbours over pairs of points    LazyTensor, Vi, Vj, Pm
    the same, of formulas as text               Genred, generic_sum, generic_logsumexp, generic_argmin,
                                                generic_argkmin
    pairs of near points only                   BlockRanges, cluster
    kernel systems of equations                 KernelSolve
    data in blocks, files beyond memory         scan_blocks, BlockScan
    scans in pieces, by several workers         cumulative_sum_carry, discounted_cumsum_carry,
                                                linear_recurrence_carry, combine, Carry
    torch.distributed                           import upsweep.distributed
    names of torch-discounted-cumsum, fpscan    discounted_cumsum_left, discounted_cumsum_right, pscan,
                                                scan_forward, PScan
    threads, versions, this machine             get_num_threads, set_num_threads, show_config
    tests of your own code                      testing

A result has the library, the type and the device of the arguments. Scans run along the last axis, `scan` along the
first one; ``axis=`` names another. ``python -m upsweep`` lists the commands: a demo, a benchmark, a self-test.

Examples
--------
>>> import numpy as np, upsweep
>>> upsweep.discounted_cumsum(np.ones(4), 0.5)
array([1.   , 1.5  , 1.75 , 1.875])
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
    from upsweep import cluster, te
    from upsweep import distributed as distributed
    from upsweep.filters import lfilter
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
    from upsweep.user_scan import logaddexp, scan, sigmoid, silu, softplus
    from upsweep.weighted_windows import ewm_mean, ewm_sum

    __version__: str

__all__ = [
    "BlockRanges", "BlockScan", "Carry", "Genred", "KernelSolve", "LazyTensor", "PScan", "Pm", "Vi", "Vj",
    "bincount", "cluster", "combine", "cumulative_sum", "cumulative_sum_carry", "discounted_cumsum",
    "discounted_cumsum_carry", "discounted_cumsum_left", "discounted_cumsum_right", "ewm_mean", "ewm_sum",
    "generic_argkmin", "generic_argmin", "generic_logsumexp", "generic_sum", "get_num_threads", "histc",
    "histogram", "lfilter", "linear_recurrence", "linear_recurrence_carry", "logaddexp", "pscan",
    "scan", "scan_blocks", "scan_forward", "set_num_threads", "show_config", "sigmoid", "silu", "softplus",
    "te", "testing",
]  # fmt: skip


_FORMER = ("carries", "counts", "peer_names", "streams")  # names of modules, which warn when they are imported
# Modules of names that are imported on first use, so that `import upsweep` stays fast; other names are of `pairs`.
_LAZY = {"scan": "user_scan", "lfilter": "filters", "ewm_mean": "weighted_windows", "ewm_sum": "weighted_windows"}
_LAZY |= dict.fromkeys(("logaddexp", "sigmoid", "silu", "softplus"), "user_scan")


def _load_torch() -> Any:
    import upsweep._torch  # a fifth faster than `from upsweep import _torch`, which each call with tensors runs

    return upsweep._torch


def _load_user_scan_ops() -> Any:
    from upsweep._torch import user_scan_ops  # imports torch's compiler, which takes two seconds

    return user_scan_ops


def _load_dask() -> Any:
    from upsweep import _dask

    return _dask


def _load_labelled() -> Any:
    from upsweep._arrays import labelled

    return labelled


dispatch.register("torch", _load_torch)
# Not by its package: torch's compiler, which may trace the first call, does not see what that registers.
dispatch.register("torch.user_scan_ops", _load_user_scan_ops)
dispatch.register("dask", _load_dask)
dispatch.register("labelled", _load_labelled)


def __dir__() -> list[str]:
    special = {name for name in globals() if name.startswith("__")}
    imported = {"distributed"} & globals().keys()  # whoever looks at every name of the list would import torch
    return sorted({*__all__, *imported, *special, "__version__"})


if not TYPE_CHECKING:  # it would make every misspelt name an Any

    def __getattr__(name):
        # distributed imports torch.
        if name in ("cluster", "distributed", "pairs", "pykeops", "te", *_FORMER):
            return importlib.import_module(f"upsweep.{name}")
        if name in __all__:
            value = globals()[name] = getattr(importlib.import_module(f"upsweep.{_LAZY.get(name, 'pairs')}"), name)
            return value
        if name == "__version__":  # on first use: importlib.metadata is slow to import
            from importlib import metadata

            return metadata.version("upsweep")
        message = f"module 'upsweep' has no attribute {name!r}"
        if name == "ComplexLazyTensor":
            message += ", which KeOps has; write real and imaginary parts as two formulas"
        elif answer := importlib.import_module("upsweep._utils.peer_functions").answer_for(name):
            message += f"; docs/looked_for.md says: {answer}"
        raise AttributeError(message)
