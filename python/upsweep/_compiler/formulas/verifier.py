"""Verifier of formulas, run between compiler passes.

A violation of `check_formula` is a defect of a pass and an AssertionError; `check_variables` checks user input and
raises ValueError. `lowering.verifier` is the verifier of scalar programs.
"""

from __future__ import annotations

from upsweep._compiler.formulas import ops
from upsweep._compiler.formulas.nodes import KINDS, Node, order

__all__ = ["check_formula", "check_variables"]

_LEAVES = {"variable": 2, "constant": 1, "zero": 1}  # and the numbers of their static arguments


def check_variables(*roots: Node) -> None:
    """Check that each array is read with one dim and one kind.

    Raises
    ------
    ValueError
        Two variables at one position differ.
    """
    declared: dict[int, Node] = {}
    for node in order(*roots):
        if node.op == "variable":
            other = declared.setdefault(node.static[0], node)
            if other is not node:
                raise ValueError(f"array {node.static[0]} cannot be {other!r} and {node!r} in one formula")


def check_formula(*roots: Node) -> None:
    """Check that each node is a valid application of an operation in the table, and its dim."""
    for node in order(*roots):
        if node.op in _LEAVES:
            assert not node.args and len(node.static) == _LEAVES[node.op], f"a malformed {node.op}"
            assert node.op != "variable" or node.static[1] in KINDS, f"a variable of kind {node.static[1]}"
            continue
        row = ops.TABLE.get(node.op)
        assert row is not None, f"no operation {node.op}"
        assert row.expand is None, f"{row.keops} is a composite operation"
        assert len(node.args) == row.arity, f"{row.keops} of {len(node.args)} arguments"
        assert row.n_static[0] <= len(node.static) <= row.n_static[1], (
            f"{row.keops} with the numbers {node.static}"
        )
        dim = row.dim(tuple(arg.dim for arg in node.args), node.static)
        assert node.dim == dim, f"{row.keops} of dim {node.dim}, which should be {dim}"
