"""torch tensors: registered operations, autograd, vmap and torch.compile.

`_arrays.dispatch` imports this package at the first call with a tensor, so that ``import upsweep`` does not import
torch. The public functions reach the modules as attributes of the package, and `distributed` builds on the scans::

    scan  bincount  aggregates                   dtype and device rules of torch; checks by _core.checks
      -> executors                               the CPU as numpy views, CUDA as pointers: nothing is traced
      -> scan_ops  bincount_ops                  registered operations: kernels, shapes, derivatives
           -> operations                         registers one with its derivative and its vmap rule
    user_scan                                    user-defined scans
      -> user_scan_tensors                       tensors as arguments and results
      -> user_scan_plans  user_scan_cuda         compiled scans of CUDA tensors; their device views
      -> user_scan_autograd  user_scan_ops       derivatives of any order; registered operation; vmap rules
      -> user_scan_guards                        what an update captures, under torch.compile
    pairs  loops  cluster                        the other operations
    histogram                                    uniform bins of contiguous CUDA tensors, without the layers below
    via_numpy                                    functions of numpy arrays, called with tensors: other histograms
    graph_breaks  compiler_disabled              calls that torch.compile leaves to Python

Start reading at `scan.cumulative_sum`.
"""

from upsweep._torch import aggregates, bincount, cluster, histogram, loops, pairs, scan, user_scan, via_numpy

__all__ = ["aggregates", "bincount", "cluster", "histogram", "loops", "pairs", "scan", "user_scan", "via_numpy"]
