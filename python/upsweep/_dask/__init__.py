"""dask arrays: graphs of our own, whose tasks call the public functions on blocks.

A scan makes at most three tasks a block: what the block does to the state, the state before it, its result; by an
update that gives several outputs, one more for each of them. Counts and histograms make one, and one for each
group of `FAN_IN` of them. A reduction over pairs makes one for each block of rows with each of columns. Names
follow from arguments, so that the same call gives the same keys. Imported by the first call that is given a dask
array.
"""

from upsweep._dask.counts import bincount
from upsweep._dask.graphs import as_operands, refuse, sent_to
from upsweep._dask.histograms import histogram
from upsweep._dask.scans import scan
from upsweep._dask.user_scans import explain, user_scan

__all__ = ["as_operands", "bincount", "explain", "histogram", "refuse", "scan", "sent_to", "user_scan"]
