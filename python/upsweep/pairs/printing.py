"""Text of expressions and reductions for `print`: the formula, the shapes, and the loop nest that runs."""

from __future__ import annotations

from typing import Any

from upsweep._compiler.formulas.nodes import KINDS, text
from upsweep._compiler.lowering.lower import lower
from upsweep.pairs.expression import build, flatten
from upsweep.pairs.function import PairFunction

_STARTS = {
    "sum": "0", "logsumexp": "log 0", "sumsoftmaxweight": "0 / 0", "min": "+inf", "max": "-inf", "argmin": "-1",
    "argmax": "-1", "min_argmin": "+inf, -1", "max_argmax": "-inf, -1",
}  # fmt: skip
_MAX_LINES = 40  # of a program


def describe_expression(expression: Any) -> str:
    """The formula, its variables and its shape."""
    steps, leaves = flatten(expression, gaps=True)
    lines = [type(expression).__name__, f"    formula: {text(build(steps)[0])}"]
    lines += [f"    {_variable(leaf, position)}" for position, leaf in enumerate(leaves) if leaf is not None]
    lines.append(f"    shape: {expression.shape}")
    if expression.dtype is not None:
        lines.append(f"    dtype: {expression.dtype}")
    if expression.ranges is not None:
        ranges = expression.ranges
        is_blocks = hasattr(ranges, "n_pairs")
        lines.append(f"    ranges: {repr(ranges) if is_blocks else f'{len(ranges[0])} blocks of rows'}")
    return "\n".join(lines)


def _variable(leaf: Any, position: int) -> str:
    name = f"Var({position},{leaf.dim},{KINDS.index(leaf.kind)})"
    if leaf.index is not None:
        return f"{name}: symbolic"
    if isinstance(leaf.array, list):
        return f"{name}: {leaf.array}"
    return f"{name}: array of shape {tuple(leaf.array.shape)}"


def describe(
    function: PairFunction, sizes: tuple[int | None, int | None], batch: tuple[int, ...], title: str
) -> str:
    """The formula, the shape of its values, and the loop nest with the instructions of each loop."""
    names = {"i": "M" if sizes[0] is None else str(sizes[0]), "j": "N" if sizes[1] is None else str(sizes[1])}
    shape = f"({', '.join([*map(str, batch), names['i'], names['j'], str(function.formula.dim)])})"
    lines = ["Reduction", f"    formula: {text(function.formula)}"]
    if function.weight is not None:
        lines.append(f"    weight: {text(function.weight)}")
    inputs = ", ".join(f"{'Pm' if kind == 'p' else 'V' + kind}({dim})" for _, kind, dim in function.inputs)
    lines += [f"    inputs: {inputs}", f"    shape: {shape}", f"    reduction: {title}"]
    if function.k:
        lines.append(f"    K: {function.k}")
    return "\n".join([*lines, "    loop nest:", *(f"        {line}" for line in _loops(function, names, batch))])


def _loops(function: PairFunction, names: dict[str, str], batch: tuple[int, ...]) -> list[str]:
    rows = function.rows
    columns = "j" if rows == "i" else "i"
    reduction = function.of()
    by_level: dict[str, list[str]] = {"p": [], "i": [], "j": [], "ij": []}
    program = str(lower(reduction)).splitlines()
    steps = [line for line in program if line[:3].strip() in by_level]
    for line in steps[:_MAX_LINES]:
        by_level[line[:3].strip()].append(line[3:])
    if len(steps) > _MAX_LINES:
        by_level["ij"].append(f"... {len(steps) - _MAX_LINES} more")
    lines = list(by_level["p"])
    indent = ""
    for size in batch:
        lines.append(f"{indent}for each of {size} batch entries:")
        indent += "    "
    if by_level[columns]:
        lines.append(f"{indent}for {columns} in 0 .. {names[columns]}:    # once, into packed records")
        lines += [f"{indent}    {step}" for step in by_level[columns]]
    lines.append(f"{indent}for {rows} in 0 .. {names[rows]}:    # threads and vector lanes")
    lines += [f"{indent}    {step}" for step in by_level[rows]]
    start = _STARTS.get(function.reduction, f"{function.k} of nothing")
    lines.append(f"{indent}    {function.reduction} = {start}    # kept in {reduction.dtype_acc}")
    lines.append(f"{indent}    for {columns} in 0 .. {names[columns]}, or in its ranges:    # blocks in cache")
    lines += [f"{indent}        {step}" for step in by_level["ij"]]
    results = [line for line in program if line.startswith(("results", "weights"))]
    return lines + [f"{indent}        {function.reduction} takes {line}" for line in results]
