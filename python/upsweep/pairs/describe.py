"""What a formula or a reduction will do, for people: formula, shapes, and the loops that run."""

from __future__ import annotations

from typing import Any

from upsweep._compiler.formulas.nodes import text
from upsweep.pairs.calls import PairCall
from upsweep.pairs.graph import KINDS, build, flatten

__all__ = ["describe", "describe_expression"]

_STARTS = {
    "sum": "0", "logsumexp": "log 0", "sumsoftmaxweight": "0 / 0", "min": "+inf", "max": "-inf", "argmin": "-1",
    "argmax": "-1", "min_argmin": "+inf, -1", "max_argmax": "-inf, -1",
}  # fmt: skip
_WIDEST = 40  # lines of a program that are shown; a formula of many features is told by its first ones


def describe_expression(expression: Any) -> str:
    """The formula, its variables and its shape."""
    steps, leaves = flatten(expression, gaps=True)
    lines = [type(expression).__name__, f"    formula: {text(build(steps)[0])}"]
    lines += [f"    {_variable(leaf, place)}" for place, leaf in enumerate(leaves) if leaf is not None]
    lines.append(f"    shape: {expression.shape}")
    if expression.dtype is not None:
        lines.append(f"    dtype: {expression.dtype}")
    if expression.ranges is not None:
        lines.append(f"    ranges: {_ranges(expression.ranges)}")
    return "\n".join(lines)


def _variable(leaf: Any, place: int) -> str:
    name = f"Var({place},{leaf.dim},{KINDS.index(leaf.kind)})"
    if leaf.index is not None:
        return f"{name}: symbolic"
    if isinstance(leaf.array, list):
        return f"{name}: {leaf.array}"
    return f"{name}: array of shape {tuple(leaf.array.shape)}"


def _ranges(ranges: Any) -> str:
    return repr(ranges) if hasattr(ranges, "n_pairs") else f"{len(ranges[0])} blocks of rows"


def describe(call: PairCall, sizes: tuple[int | None, int | None], batch: tuple[int, ...], title: str) -> str:
    """The formula, the shape of what is reduced, and the loop nest with what is computed in each of its loops."""
    names = {"i": "M" if sizes[0] is None else str(sizes[0]), "j": "N" if sizes[1] is None else str(sizes[1])}
    shape = f"({', '.join([*map(str, batch), names['i'], names['j'], str(call.formula.dim)])})"
    lines = ["Reduction", f"    formula: {text(call.formula)}"]
    if call.weight is not None:
        lines.append(f"    weight: {text(call.weight)}")
    inputs = ", ".join(f"{'Pm' if kind == 'p' else 'V' + kind}({dim})" for _, kind, dim in call.inputs)
    lines += [f"    inputs: {inputs}", f"    shape: {shape}", f"    reduction: {title}"]
    if call.k:
        lines.append(f"    K: {call.k}")
    return "\n".join([*lines, "    loop nest:", *(f"        {line}" for line in _loops(call, names, batch))])


def _loops(call: PairCall, names: dict[str, str], batch: tuple[int, ...]) -> list[str]:
    from upsweep._compiler.lowering.lower import lower

    rows = call.rows
    columns = "j" if rows == "i" else "i"
    dtype = next(iter(reversed(call._of)), "float64")
    steps: dict[str, list[str]] = {"p": [], "i": [], "j": [], "ij": []}
    program = str(lower(call.of(dtype))).splitlines()
    shown = [line for line in program if line[:3].strip() in steps]
    for line in shown[:_WIDEST]:
        steps[line[:3].strip()].append(line[3:])
    if len(shown) > _WIDEST:
        steps["ij"].append(f"... {len(shown) - _WIDEST} more")
    lines = list(steps["p"])
    indent = ""
    for size in batch:
        lines.append(f"{indent}for each of {size} batch entries:")
        indent += "    "
    if steps[columns]:
        lines.append(f"{indent}for {columns} in 0 .. {names[columns]}:    # once, into packed records")
        lines += [f"{indent}    {step}" for step in steps[columns]]
    lines.append(f"{indent}for {rows} in 0 .. {names[rows]}:    # threads and vector lanes")
    lines += [f"{indent}    {step}" for step in steps[rows]]
    start = _STARTS.get(call.reduction, f"{call.k} of nothing")
    lines.append(f"{indent}    {call.reduction} = {start}    # kept in {call.of(dtype).dtype_acc}")
    lines.append(f"{indent}    for {columns} in 0 .. {names[columns]}, or in its ranges:    # blocks in cache")
    lines += [f"{indent}        {step}" for step in steps["ij"]]
    results = [line for line in program if line.startswith(("results", "weights"))]
    lines += [f"{indent}        {call.reduction} takes {line}" for line in results]
    return lines
