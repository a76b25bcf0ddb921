"""dask arrays: graphs of our own, whose tasks call the public functions on blocks.

A scan makes at most three tasks a block: what the block does to the state, the state before it, its result; by an
update that gives several outputs, one more for each of them. Counts and histograms make one, and one for each
group of `FAN_IN` of them. A reduction over pairs makes one for each block of rows with each of columns. Names
follow from arguments, so that the same call gives the same keys. Imported by the first call that is given a dask
array.
"""

import sys

from upsweep._arrays import dispatch
from upsweep._dask import pairs
from upsweep._dask.bincount import bincount
from upsweep._dask.graphs import as_operands, refuse, sent_to
from upsweep._dask.histogram import histogram
from upsweep._dask.scan import scan
from upsweep._dask.user_scan import explain, user_scan

__all__ = ["as_operands", "bincount", "explain", "histogram", "pairs", "refuse", "scan", "sent_to", "user_scan"]

dispatch.provide("dask", sys.modules[__name__])
