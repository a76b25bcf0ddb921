"""Operands of the calls in ``call_cases.py``, the places where they are stored, and functions for them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import te_cells
import upsweep
from block_updates import UPDATES  # noqa: F401  # named by calls
from upsweep import (  # noqa: F401  # named by calls
    BlockRanges,
    Genred,
    KernelSolve,
    LazyTensor,
    Pm,
    Vi,
    Vj,
    cluster,
    reference,
    te,
)

if importlib.util.find_spec("torch"):
    import torch
if importlib.util.find_spec("dask"):
    import dask.array as da
if importlib.util.find_spec("ml_dtypes"):
    import ml_dtypes  # noqa: F401  # numpy has the dtype bfloat16 once this is imported

Array = Any  # of numpy, torch or dask

CELLS = [[0, 4], [4, 9], [9, 20]]
GAUSSIAN, ALIASES = "Exp(-g * SqDist(x, y)) * b", ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)", "g = Pm(1)"]
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "steps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "negative": lambda x: x[::-1, ::-1],
    "zero": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": lambda x: np.frombuffer(b" " + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}


def places() -> dict[str, Callable[[np.ndarray], Array]]:
    """For each place on this machine the function that stores an array of numpy there."""
    result: dict[str, Callable[[np.ndarray], Array]] = {"numpy": lambda x: x}
    if importlib.util.find_spec("torch"):
        result["torch"] = to_tensor
        if torch.cuda.is_available():
            result["cuda"] = lambda x: to_tensor(x).cuda()
    if importlib.util.find_spec("dask"):
        result["dask"] = lambda x: da.from_array(x, chunks=tuple(max(1, -(-n // 3)) for n in x.shape))
    return {**result, "errors": result["numpy"]}


def to_tensor(x: np.ndarray) -> Array:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Normal numbers; as integers from 0 to 9, as bool one half of them true."""
    random, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype).kind
    if kind in "biu":
        return random.integers(0, 2 if kind == "b" else 10, shape).astype(dtype)
    x = random.standard_normal(shape)
    return (x + 1j * random.standard_normal(shape) if kind == "c" else x).astype(dtype)


def with_threads(n_threads: int, call: Callable[[], Any]) -> Any:
    upsweep.set_num_threads(n_threads)
    try:
        return call()
    finally:
        upsweep.set_num_threads(None)


def derive(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """First and second derivatives of a call on tensors, by autograd."""
    inputs = [arg.requires_grad_() for arg in args if torch.is_tensor(arg) and arg.is_floating_point()]
    result = function(*args, **keywords)
    while isinstance(result, tuple):
        result = result[0]
    first = torch.autograd.grad((result * result).sum(), inputs, create_graph=True)
    square = sum((each * each).sum() for each in first)
    return result, first, torch.autograd.grad(square, inputs, allow_unused=True)


def ones_as(results: Any) -> Any:
    return tuple(map(np.ones_like, results)) if isinstance(results, tuple) else np.ones_like(results)


def drain(blocks: upsweep.BlockScan) -> Any:
    return list(blocks), blocks.state


def describe(ranges: BlockRanges) -> Any:
    return repr(ranges), tuple(ranges), tuple(ranges.T), ranges.shape, ranges.n_pairs, ranges.to_mask()


# Programs of te: a schedule and its arguments.


def elementwise(body: str, dtype: str = "float32") -> Any:
    """An expression of the element v."""
    n = te.var("n")
    X = te.placeholder((n,), dtype, "X")
    Y = te.compute((n,), lambda i: eval(body, {"te": te, "v": X[i]}), name="Y")
    return te.create_schedule(Y.op), [X, Y]


def reduction(name: str) -> Any:
    m, n = te.size_var("m"), te.size_var("n")
    X, k = te.placeholder((m, n), "float64", "X"), te.reduce_axis((0, n), "k")
    Y = te.compute((m,), lambda i: getattr(te, name)(X[i, k], axis=k), name="Y")
    return te.create_schedule(Y.op), [X, Y]


def recurrence(statement: str) -> Any:
    """A scan after a statement about its schedule s."""
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i], name="init")
    decayed = te.compute((m, n), lambda t, i: 0.5 * state[t - 1, i], name="decayed")
    update = te.compute((m, n), lambda t, i: te.max(decayed[t, i], X[t, i]), name="update")
    Y = te.scan(init, update, state, inputs=[X], name="Y")
    s = te.create_schedule(Y.op)
    exec(statement, {"te": te, "s": s, "decayed": decayed, "update": update, "i": update.op.axis[1]})
    return s, [X, Y]


def rnn() -> Any:
    X, W, _, Y = te_cells.rnn(8)
    return te.create_schedule(Y.op), [X, W, Y]


def gru() -> Any:
    X, W, Y = te_cells.gru(8)
    return te.create_schedule(Y.op), [X, W, Y]


def namespace(place: str) -> dict[str, Any]:
    """What the calls of a place name."""
    put = places()[place]

    def new(*shape: int, layout: str = "C", special: float | None = None, **keywords: Any) -> Array:
        x = data(*shape, **keywords)
        if special is not None:
            x[..., shape[-1] // 2] = special
        return put(LAYOUTS[layout](x))

    def points(*shape: int, dtype: str = "float64") -> Array:
        """Numbers above 0, most of them below 1, which are others for other shapes."""
        return put(np.abs(data(*shape, dtype=dtype)) / 4 + 0.05)

    def whole(*shape: int, dtype: str = "float32") -> Array:
        return put(data(*shape, dtype="int64", seed=1).astype(dtype))

    def run(name: str, shape: tuple[int, ...], module: Any = upsweep, through: Any = None, **keywords: Any) -> Any:
        """One of upsweep's own scans, of operands with this shape, dtype and layout."""
        of_operand = {key: keywords.pop(key) for key in ("dtype", "layout", "special") if key in keywords}
        x = new(*shape, **of_operand)
        if name.startswith(("linear", "pscan", "scan")):
            args: tuple[Any, ...] = new(*shape, seed=1, **of_operand), x
        else:
            args = (x,) if name.startswith("cumulative") else (x, 0.9)
        function = getattr(module, name)
        return through(function, *args, **keywords) if through else function(*args, **keywords)

    def stream(name: str, **keywords: Any) -> Any:
        blocks = [new(3, 30, seed=seed) for seed in range(3)]
        args = {"cumulative_sum": [blocks], "discounted_cumsum": [blocks, 0.9]}.get(name, [blocks, blocks])
        return drain(upsweep.scan_blocks(getattr(upsweep, name), *args, **keywords))

    def of_pairs(function: Callable[[Any, Any], Any], dtype: str = "float64") -> Any:
        return function(Vi(points(37, 3, dtype=dtype)), Vj(points(29, 3, dtype=dtype)))

    def gaussian_data(n_rows: int, n_columns: int, dtype: str) -> list[Array]:
        return [points(*shape, dtype=dtype) for shape in ((n_rows, 3), (n_columns, 3), (n_columns, 2), (1,))]

    return {
        **globals(), "put": put, "new": new, "points": points, "whole": whole, "run": run, "stream": stream,
        "of_pairs": of_pairs, "gaussian_data": gaussian_data, "ones": np.ones((3, 4)),
        "keys": functools.partial(new, dtype="int64"), "flags": functools.partial(new, dtype="bool"),
        "gaussian": lambda op, axis: Genred(GAUSSIAN, ALIASES, op, axis),
        "build": lambda program: te.build(*program, "cuda" if place == "cuda" else "cpu"),
    }  # fmt: skip
