"""Runs scalar programs on numpy arrays, all pairs at once: what the instruction set means."""

import numpy as np
from upsweep._compiler.lowering.program import COMPARISONS, FUNCTIONS, check_program

ARITHMETIC = {name: function.numpy for name, function in FUNCTIONS.items()} | COMPARISONS | {"select": np.where}


def packed(program, arrays, kind):
    """The records of a kind: (n, width)."""
    components = program.components(kind)
    for position, dim in components:
        assert arrays[position].shape[-1] == dim
    return np.concatenate([arrays[position] for position, _ in components], -1) if components else np.zeros((1, 0))


def run(program, arrays):
    """The components of formula and weight, of shape (n_i, n_j, n_results) and (n_i, n_j, n_weights).

    `arrays` are the variables by position, of shape (n, dim); parameters are (1, dim).
    """
    check_program(program)
    records = {"i": packed(program, arrays, "i")[:, None], "j": packed(program, arrays, "j")[None]}
    records["p"] = packed(program, arrays, "p")[None]
    pairs = (records["i"].shape[0], records["j"].shape[1])
    out = {
        "result": np.full((*pairs, program.n_results), np.nan),
        "weight": np.full((*pairs, program.n_weights), np.nan),
    }
    values = [None] * len(program.values)
    with np.errstate(all="ignore"):
        _steps(program, 0, len(values), values, records, out)
    for name, ids in (("result", program.results), ("weight", program.weights)):
        for n, source in enumerate(ids):
            out[name][..., n] = values[source]
    return out["result"], out["weight"]


def _steps(program, begin, end, values, records, out):
    n = begin
    while n < end:
        step = program.values[n]
        if step.op == "loop":
            n = _loop(program, n, values, records, out)
        else:
            values[n] = _step(step, values, records, out)
            n += 1


def _loop(program, n, values, records, out):
    close = next(
        m for m in range(n, len(values)) if program.values[m].op == "end" and program.values[m].args[0] == n
    )
    carries = []
    while program.values[n + 1 + len(carries)].op == "carry":
        carry = n + 1 + len(carries)
        values[carry] = values[program.values[carry].args[0]]
        carries.append(carry)
    for index in range(program.values[n].static[0]):
        values[n] = index
        _steps(program, n + 1 + len(carries), close, values, records, out)
        following = [values[source] for source in program.values[close].args[1:]]
        for carry, value in zip(carries, following):
            values[carry] = value
    return close + 1


def _step(step, values, records, out):
    args = [values[arg] for arg in step.args]
    if step.op in ARITHMETIC:
        return ARITHMETIC[step.op](*args)
    if step.op == "const":
        return np.float64(step.static[0])
    if step.op == "load":
        kind, *place = step.static
        return records[kind][..., _place(args, place)]
    if step.op in ("sqdist", "dot"):
        at_i, at_j, dim = step.static
        x, y = records["i"][..., at_i : at_i + dim], records["j"][..., at_j : at_j + dim]
        return ((x - y) ** 2 if step.op == "sqdist" else x * y).sum(-1)
    if step.op == "number":
        return np.float64(args[0])
    if step.op == "array":
        return [None] * step.static[0]
    if step.op == "put":
        args[0][_place(args[2:], step.static)] = args[1]
        return None
    if step.op == "get":
        return args[0][_place(args[1:], step.static)]
    if step.op in out:
        out[step.op][..., _place(args[1:], step.static)] = args[0]
        return None
    raise AssertionError(f"no such instruction: {step.op}")


def _place(loops, static):
    return static[0] + sum(loop * stride for loop, stride in zip(loops, static[1:], strict=True))
