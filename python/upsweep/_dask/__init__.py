r"""dask arrays: graphs whose tasks call the public functions on blocks.

The public functions look this package up by `_arrays.dispatch.handlers("dask")`, which imports it on the first
call with a dask array. Arguments are checked with placeholders of no memory, by the code that checks arrays in
memory; then operands are cut at the same places, and tasks are created. Nothing is computed before the user asks
for it. Names of tasks follow from the arguments, so that the same call has the same keys.

A scan along an axis of four blocks. The *aggregate* of a block (`upsweep.Carry`) is what its steps do to a state::

    method="sequential"                            method="tree"

    block 0   block 1   block 2   block 3          block 0   block 1   block 2   block 3
       |         |         |         |                |         |         |         |
   aggregate aggregate aggregate aggregate        aggregate aggregate aggregate aggregate
       |         |         |         |                 \         \       /         /
    state --> state --> state --> state                 up-sweep: combine groups
       |         |         |         |                 /         /       \         \
     result    result    result    result           state     state     state     state
                                                      |         |         |         |
                                                    result    result    result    result

A sequential scan has at most three tasks per block and holds few blocks in memory; a tree has a depth of
log8(blocks). An update that cannot be combined has one task per block, in order.

Counts, histograms and their ranges are tree reductions of one task per block. A reduction over pairs has one task
for each block of rows with each block of columns; partial reductions of columns are combined in a chain, which
holds one block of columns at a time, or in a tree.

- `graph`: operands in aligned blocks, tasks, tree reductions, arrays of results. Start to read here.
- `block_scan`: the tasks of a scan, used by `scan` and `user_scan`.
- `bincount`, `histogram`: counts.
- `pairs`: reductions over pairs; `pair_partials`: their partial reductions of a block, and how two are combined.
"""

from upsweep._dask import bincount, histogram, pairs, scan, user_scan
from upsweep._dask.graph import as_operands, blocks_like, reject_options

__all__ = ["as_operands", "bincount", "blocks_like", "histogram", "pairs", "reject_options", "scan", "user_scan"]
