"""Scans by random updates, against `upsweep.reference.scan`; their gradients against differences."""

import numpy as np
import upsweep
from helpers import flat, same_bits
from upsweep import reference

from .driver import Case
from .operands import THREADS, chance, described, laid_out, pick

# Text of an expression of a and b, whose size stays bounded by theirs.
FORMS = (
    "{a} * 0.5 + {b} * 0.25", "{a} - 0.75 * {b}", "np.tanh({a})", "np.tanh({a} * {b})", "np.maximum({a}, {b})",
    "np.minimum({a}, 0.9 * {b})", "np.where({a} > {b}, {b} * 0.5, {a})", "np.where({a} > 0.25, 0.0, {b})",
    "np.exp(-np.abs({a}))", "np.sqrt(1 + {a} * {a})", "np.sin({a}) * {b}", "np.cos({b})", "{a} / (1 + {b} * {b})",
    "np.log(2 + np.abs({a}))", "np.abs({a} - {b})", "upsweep.scan.sigmoid({a}) * {b}", "-({a})",
)  # fmt: skip
# Updates of one state with a parallel form, which long lines are split by.
PARALLEL = (
    "0.9 * s + x", "x[0] * s + x[1]", "np.maximum(s, x)", "np.minimum(s - 0.1, x)", "np.maximum(0.9 * s, x)",
    "np.logaddexp(s, x)", "np.where(x > 0.99, 0.0, 0.5 * s + x)", "s + x", "0.5 * (s + x)",
    "np.where(x > 0, x, s)",
)  # fmt: skip


def draw(rng):
    """One scan."""
    if chance(rng, 0.25):
        body = pick(rng, *PARALLEL)
        n_states, n_inputs, n_outputs = 1, 2 if "x[0]" in body else 1, 0
        steps = int(pick(rng, 1, 7, 300, 5000, 40_000))
        columns = pick(rng, (), (1,), (3,))
    else:
        n_states, n_inputs, n_outputs = (int(rng.integers(low, high)) for low, high in ((1, 4), (1, 3), (0, 3)))
        body = _body(rng, n_states, n_inputs, n_outputs)
        steps = int(pick(rng, 1, 2, 3, 16, 33))
        columns = pick(rng, (), (1,), (5,), (16,), (17,), (70,), (3, 9))
    source = f"lambda s, x: {body}"
    update = eval(source, {"np": np, "upsweep": upsweep})
    axis = int(rng.integers(len(columns) + 1))
    size = (*columns[:axis], steps, *columns[axis:])
    dtype = np.float32 if steps <= 300 and chance(rng, 0.3) else np.float64
    xs = tuple(laid_out(rng, rng.uniform(-1, 1, size).astype(dtype)) for _ in range(n_inputs))
    init = tuple(rng.uniform(-1, 1, columns).astype(dtype) for _ in range(n_states))
    arguments = {
        "update": update, "init": init if n_states > 1 else init[0], "xs": xs if n_inputs > 1 else xs[0],
        "axis": axis, "reverse": chance(rng, 0.4),
    }  # fmt: skip
    gradient = dtype == np.float64 and steps <= 300 and chance(rng, 0.4)
    words = described(*init, *xs, axis=axis, reverse=arguments["reverse"])
    text = f"upsweep.scan{'.gradient' if gradient else ''}({source}), {words}"

    def test():
        _check(rng, arguments)
        if gradient:
            _check_gradient(rng, arguments)

    return Case(text, test)


def _expression(rng, leaves, depth):
    if depth == 0 or chance(rng, 0.2):
        return pick(rng, *leaves)
    a, b = (_expression(rng, leaves, depth - 1) for _ in range(2))
    return "(" + pick(rng, *FORMS).format(a=a, b=b) + ")"


def _body(rng, n_states, n_inputs, n_outputs):
    """The new states, and the outputs, if any."""
    leaves = [f"s[{n}]" for n in range(n_states)] if n_states > 1 else ["s"]
    leaves += [f"x[{n}]" for n in range(n_inputs)] if n_inputs > 1 else ["x"]
    parts = [_expression(rng, leaves, 3) for _ in range(n_states + n_outputs)]
    # A contraction, so that differences in the last place do not grow.
    parts = [f"np.tanh(0.9 * {part} + 0.0 * {leaves[0]})" for part in parts]
    states, outputs = parts[:n_states], parts[n_states:]
    new = f"({', '.join(states)})" if n_states > 1 else states[0]
    if not outputs:
        return new
    return f"({new}, {outputs[0] if len(outputs) == 1 else '(' + ', '.join(outputs) + ')'})"


def _check(rng, arguments):
    """Values, dtypes and shapes; bits for other numbers of threads, and into memory of the caller."""
    result = upsweep.scan(**arguments, return_final=True)
    dtype = flat(result)[0].dtype
    expected = reference.scan(**arguments, return_final=True)
    assert len(flat(result)) == len(flat(expected))
    for got, want in zip(flat(result), flat(expected)):
        assert got.shape == np.shape(want), (got.shape, np.shape(want))
        tolerance = 1e-9 if dtype == np.float64 else 2e-4
        size = 1 + np.abs(want).max(initial=0)
        assert (np.abs(got - want) <= tolerance * size).all(), np.abs(got - want).max()
    for n_threads in THREADS:
        upsweep.set_num_threads(n_threads)
        again = upsweep.scan(**arguments, return_final=True)
        assert all(same_bits(*pair) for pair in zip(flat(again), flat(result))), f"{n_threads} threads"
    if not isinstance(result[0], tuple):
        out = np.full_like(result[0], np.nan)
        assert upsweep.scan(**arguments, out=out) is out
        assert same_bits(out, result[0])


def _check_gradient(rng, arguments):
    """The derivative into a random direction, of all inputs and states."""
    ys, final = reference.scan(**arguments, return_final=True)
    cotangents = [tuple(rng.normal(size=y.shape) for y in flat(part)) for part in (ys, final)]
    directions = [tuple(rng.normal(size=np.shape(a)) for a in flat(arguments[name])) for name in ("init", "xs")]

    def arranged(values, like):
        return values if isinstance(like, tuple) else values[0]

    def loss(step):
        moved = dict(arguments)
        for name, direction in zip(("init", "xs"), directions):
            values = tuple(a + step * d for a, d in zip(flat(arguments[name]), direction))
            moved[name] = arranged(values, arguments[name])
        results = reference.scan(**moved, return_final=True)
        pairs = zip((*cotangents[0], *cotangents[1]), flat(results))
        return sum((cotangent * value).sum() for cotangent, value in pairs)

    checkpoint = pick(rng, None, None, 1, 4, 100)
    result = upsweep.scan.gradient(
        **arguments, cotangent=arranged(cotangents[0], ys), final_cotangent=arranged(cotangents[1], final),
        checkpoint=checkpoint,
    )  # fmt: skip
    parts = [
        (gradient * direction).sum()
        for value, direction in zip(result, directions) for gradient, direction in zip(flat(value), direction)
    ]  # fmt: skip
    expected, rougher = ((loss(step) - loss(-step)) / (2 * step) for step in (1e-6, 2e-6))
    size = 1 + sum(np.abs(gradient * d).sum() for value, direction in zip(result, directions)
                   for gradient, d in zip(flat(value), direction))  # fmt: skip
    if abs(rougher - expected) <= 1e-6 * size:  # else there is a jump or a kink between
        assert abs(sum(parts) - expected) <= 1e-5 * size, (sum(parts), expected, checkpoint)
