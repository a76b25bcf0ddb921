"""torch tensors: registered operations, autograd, vmap and torch.compile.

`_arrays.dispatch` imports this package at the first call with a tensor, so never before torch itself. The public
functions reach the modules as attributes of the package. `scan`, `bincount`, `pairs`, `user_scan` and `loops` are
the operations, `aggregates` the carries of blocks, `cluster` the array functions of clusters, and `via_numpy` runs
a function of numpy arrays on tensors. `scan_ops`, `bincount_ops` and `user_scan_ops` register torch operations.
"""

import sys
from typing import Any

from upsweep._arrays import dispatch
from upsweep._torch import aggregates, bincount, cluster, loops, pairs, scan, user_scan, via_numpy

__all__ = ["aggregates", "bincount", "cluster", "loops", "pairs", "scan", "user_scan", "via_numpy"]

dispatch.provide("torch", sys.modules[__name__])


def _load_user_scan_ops() -> Any:
    from upsweep._torch import user_scan_ops  # imports torch's compiler, which takes two seconds

    return user_scan_ops


dispatch.register("torch.user_scan_ops", _load_user_scan_ops)
