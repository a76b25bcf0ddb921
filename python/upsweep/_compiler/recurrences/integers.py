"""Integers in recurrences: nodes whose values are the bits of an int64 or a uint64 in a word of 64 bits.

A recurrence with integers is computed in words of 64 bits, each of which is a float64 or an integer. Kernels load,
select and store both alike, and only instructions on integers read the bits as such. Narrower integers are
extended to 64 bits; `wrapped` brings a result back into their range, as numpy's arithmetic does.

The operations are those of `formulas.ops.INTEGER`. A value is an integer by its operation (`is_integer`), so a
recurrence tells which of its inputs, states and outputs are integers. `operations` builds these nodes, and
`promotion` follows numpy's promotion of dtypes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import Node, constant, intern, make, operation, order, substitute, variable

# Operations whose results are floats.
_FROM_INTEGER = ("to_float", "unsigned_to_float", "lookup", *ops.INTEGER_COMPARISONS)


def integer(value: int) -> Node:
    """The constant with these 64 bits, signed or unsigned."""
    return intern("integer", (), ((int(value) + 2**63) % 2**64 - 2**63,), 1)


def as_word(value: float) -> float:
    """The float64 with the bits of an integer, which may be given as a float."""
    number: float = struct.unpack("d", struct.pack("Q", int(value) % 2**64))[0]
    return number


def as_words(values: Sequence[float]) -> tuple[int, ...]:
    """The bits of float64 numbers."""
    return struct.unpack(f"{len(values)}q", struct.pack(f"{len(values)}d", *values))


def integer_variable(position: int, kind: str) -> Node:
    """A state ("i") or an input ("j") that is an integer."""
    return intern("variable", (), (position, kind, "integer"), 1)


def is_integer(node: Node) -> bool:
    """Whether the value of a node is an integer."""
    while node.op == "where":
        node = node.args[1]
    if node.op == "variable":
        return len(node.static) == 3
    return node.op == "integer" or (node.op in ops.INTEGER and node.op not in _FROM_INTEGER)


def _is_unsigned(dtype: Any) -> bool:
    return dtype == np.dtype(np.uint64)


def by_sign(op: str, dtype: Any) -> str:
    """The operation on integers of a dtype: words of narrower unsigned integers are not negative."""
    return f"unsigned_{op}" if _is_unsigned(dtype) else op


def wrapped(node: Node, dtype: Any) -> Node:
    """The value modulo the range of an integer dtype."""
    if not isinstance(dtype, np.dtype) or dtype.itemsize == 8:
        return node
    return intern("wrap", (node,), (8 * dtype.itemsize, dtype.kind == "i"), 1)


def to_integer(node: Node, *, is_truth: bool = False) -> Node:
    """A float, truncated; `is_truth` says that it is 0 or 1."""
    return intern("to_integer", (node,), (is_truth,), 1)


def truncated(node: Node) -> Node:
    """A float, truncated, as a float."""
    zero = constant(0)
    below = make("neg", make("floor", make("neg", node)))
    return operation("where", make("lt", node, zero), below, make("floor", node))


_EXACT_IN_FLOATS = {"iadd": "add", "isub": "sub", "imul": "mul"}


def as_float(node: Node, dtype: Any) -> Node:
    """An integer of a dtype as a float. Constants, choices among them and casts need no integers for that."""
    if not is_integer(node):
        return node
    if node.op == "integer":
        return constant(float(node.static[0] % 2**64 if _is_unsigned(dtype) else node.static[0]))
    if node.op == "integer_lookup":
        entries = [float(word % 2**64 if _is_unsigned(dtype) else word) for word in node.static]
        return intern("lookup", node.args, as_words(entries), 1)
    if node.op == "where":
        return operation("where", node.args[0], *(as_float(arg, dtype) for arg in node.args[1:]))
    if dtype is int and node.op in _EXACT_IN_FLOATS:  # of Python's own integers
        return make(_EXACT_IN_FLOATS[node.op], *(as_float(arg, dtype) for arg in node.args))
    inner = node.args[0] if node.op == "wrap" else node
    if inner.op == "to_integer":
        return inner.args[0] if inner.static[0] else truncated(inner.args[0])
    return operation(by_sign("to_float", dtype), node)


def power(base: Node, exponent: int, dtype: Any) -> Node:
    """By repeated squaring."""
    result, square = integer(1), base
    while exponent:
        if exponent % 2:
            result = operation("imul", result, square)
        exponent //= 2
        if exponent:
            square = operation("imul", square, square)
    return wrapped(result, dtype)


def as_loaded_floats(roots: Sequence[Node]) -> list[Node]:
    """The roots with inputs that are read as floats only, as variables that are floats: kernels convert these."""
    casts: dict[Node, Node] = {}
    unchanged = set(roots)
    for node in order(*roots):
        if node.op in ("to_float", "unsigned_to_float") and node.args[0].op == "variable":
            casts[node] = node.args[0]
        else:
            unchanged.update(node.args)
    replaced = {
        cast: variable(source.static[0], 1, "j")
        for cast, source in casts.items()
        if source.static[1] == "j" and source not in unchanged
    }
    return [substitute(root, replaced) for root in roots] if replaced else [*roots]
