"""Strip-mining of scans: each thread takes a chunk of the parallel loops' range through all steps of time.

A scan may be strip-mined where all loops marked parallel run over one range, everything is stored inside of them,
and each element of a buffer that they share is read at the same step of that range at which it was stored: the
buffer has a dimension in which all indices are ``width * p + g`` with 0 <= g < width, where p is the parallel
index. In any other scan the threads have to wait for each other after every step, so that a loop keeps its mark
only if the user set it. `lowering` calls `find_strips` for each scan.
"""

from __future__ import annotations

from collections.abc import Callable

from upsweep._compiler.loops.accesses import Access, accesses_of
from upsweep._compiler.loops.linear import Linear, same
from upsweep._compiler.loops.ranges import Ranges
from upsweep._compiler.loops.statements import Allocate, For, Produce, all_statements, loops_in


def _parallel_loop(access: Access) -> For | None:
    """The outermost parallel loop around an access."""
    return next((loop for loop in access.loops if "parallel" in loop.marks), None)


def _width(access: Access, d: int) -> int:
    """The width of the range that each parallel step has of dimension d; 0 if an index may leave it."""
    loop = _parallel_loop(access)
    assert loop is not None
    width, rest = access.forms[d].coefficient(loop.axis), access.forms[d].without(loop.axis)
    ranges = Ranges({axis: bounds for axis, bounds in access.ranges.items() if axis is not loop.axis})
    inside = width > 0 and ranges.always(rest) and ranges.always(Linear(width - 1).plus(rest, -1))
    return width if inside else 0


def _has_one_owner(accesses: list[Access]) -> bool:
    """Whether each element of a buffer belongs to one step of the parallel range."""
    for d in range(len(accesses[0].buffer.shape)):
        widths = {_width(access, d) for access in accesses}
        if len(widths) == 1 and widths != {0}:
            return True
    return False


def _may_divide(produce: Produce, parallel: list[For]) -> bool:
    if not parallel or not all(same(loop.extent, parallel[0].extent) for loop in parallel):
        return False
    accesses = accesses_of(produce)
    private = {each.buffer for each in all_statements(produce) if isinstance(each, Allocate)}
    written = {access.buffer for access in accesses if access.is_store} - private
    shared = [access for access in accesses if access.buffer in written]
    if any(_parallel_loop(access) is None for access in shared):
        return False
    return all(_has_one_owner([access for access in shared if access.buffer is buffer]) for buffer in written)


def find_strips(produce: Produce, may_unmark: Callable[[For], bool]) -> None:
    """Set `produce.strips` where a scan may be strip-mined; else unmark the parallel loops that allow it."""
    marked = [loop for loop in loops_in(produce) if "parallel" in loop.marks]
    nested = {id(inner) for loop in marked for inner in loops_in(loop.body)}
    parallel = [loop for loop in marked if id(loop) not in nested]
    if _may_divide(produce, parallel):
        produce.strips = parallel
        return
    for loop in marked:
        if may_unmark(loop):
            loop.marks = loop.marks - {"parallel"}
