"""Other packages' implementations of the same operations: for each peer a function of a case's own inputs.

A package that is not installed is skipped. One that fails to import, refuses the case, raises or answers wrongly
is not timed, and the row says why. This module imports no peer until one is bound.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from upsweep_bench import user_scans
from upsweep_bench.case import n_threads
from upsweep_bench.pairs import lazy_reduction
from upsweep_bench.scans import BASELINE

__all__ = ["PEERS", "Peer", "Refused", "bind", "missing"]

Function = Callable[..., Any]


class Refused(Exception):
    """The peer cannot do the case, and why."""


@dataclass(frozen=True)
class Peer:
    """`bind` returns a function of a case's inputs; `share` is the part of the work that it does."""

    package: str
    bind: Callable[[Any], Function]
    capturable: bool = True  # in a CUDA graph
    share: float = 1.0


def _attribute(module: str, name: str) -> Function:
    function: Function = getattr(importlib.import_module(module), name)
    return function


# ---- scans -----------------------------------------------------------------------------------------------------


def _powers_of_two(case: Any) -> None:
    length = case.length
    if not 32 <= length <= 65536 or length & (length - 1):
        raise Refused("takes powers of two from 32 to 65,536")


def _fpscan(case: Any) -> Function:
    _powers_of_two(case)
    return _attribute("fpscan", "pscan" if case.gradients else "scan_forward")


def _accelerated_scan_warp(case: Any) -> Function:
    _powers_of_two(case)
    return _attribute("accelerated_scan.warp", "scan")  # compiled when it is imported: a minute


def _accelerated_scan_triton(case: Any) -> Function:
    return _attribute("accelerated_scan.scalar", "scan")


def _combine(earlier: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
    (gate_a, token_a), (gate_b, token_b) = earlier, later
    return gate_a * gate_b, gate_b * token_a + token_b


def _associative_scan(case: Any) -> Function:
    import torch

    associative_scan = _attribute("torch._higher_order_ops", "associative_scan")

    def scan(gates: Any, tokens: Any) -> Any:
        return associative_scan(_combine, (gates, tokens), dim=-1, combine_mode="pointwise")[1]

    torch._dynamo.reset()  # else the recompilation limit of one function ends the list of shapes early
    compiled: Function = torch.compile(scan, dynamic=False)
    return compiled


def _torch_discounted_cumsum(case: Any) -> Function:
    import torch

    if case.shape[0] > 65535:
        raise Refused("its launch fails unnoticed above 65,535 rows")
    function = _attribute("torch_discounted_cumsum", "discounted_cumsum_left")
    gamma = torch.full((1,), case.gamma, device="cuda")  # a number would be copied to the device at each call
    return lambda x: function(x, gamma)


def _torch_cumsum(case: Any) -> Function:
    return lambda x: x.cumsum(case.axis)


def _hillis_steele(case: Any) -> Function:
    return _attribute("upsweep_bench.oracle", "hillis_steele")


def _np_cumsum(case: Any) -> Function:
    out = np.zeros(case.shape, case.dtype)
    return lambda x: np.cumsum(x, case.axis, out=out)


def _scipy_lfilter(case: Any) -> Function:
    lfilter = _attribute("scipy.signal", "lfilter")
    if isinstance(case, user_scans.Filter):
        return partial(lfilter, *user_scans.LFILTER)
    # Coefficients in x's dtype: as Python lists they would make the filter float64, and half as fast.
    return partial(lfilter, np.ones(1, case.dtype), np.array([1, -case.gamma], case.dtype))


def _numba_line(case: Any) -> Function:
    """The sequential loop over one line."""

    def loop(x: Any, gamma: float, out: Any) -> Any:
        state = 0.0
        for t in range(x.size):
            state = gamma * state + x[t]
            out[t] = state

    compiled, out = _attribute("numba", "njit")(loop), np.zeros(case.shape, case.dtype)

    def scan(x: Any) -> Any:
        compiled(x[0], case.gamma, out[0])
        return out

    return scan


# ---- counts, histograms ----------------------------------------------------------------------------------------


def _numpy_counts(case: Any) -> Function:
    if hasattr(case, "n_bins"):
        return lambda keys, weights: np.bincount(keys, weights)
    return lambda x, weights: np.histogram(x, case.bin_edges(), case.limits, weights=weights)


def _numba_bincount(case: Any) -> Function:
    """The sequential loop; the number of bins is passed, not computed."""

    def count(keys: Any, counts: Any) -> Any:
        for key in keys:
            counts[key] += 1
        return counts

    def add(keys: Any, weights: Any, sums: Any) -> Any:
        for t in range(keys.size):
            sums[keys[t]] += weights[t]
        return sums

    njit = _attribute("numba", "njit")
    counting, adding = njit(count), njit(add)
    if case.weights is None:
        return lambda keys, _: counting(keys, np.zeros(case.n_bins, np.int64))
    return lambda keys, weights: adding(keys, weights, np.zeros(case.n_bins))


def _torch_bincount(case: Any) -> Function:
    import torch

    if case.dtype == "uint16":
        raise Refused("takes no uint16")
    if case.on_cuda:
        return lambda x, weights: torch.bincount(x, weights, case.n_bins)
    convert = torch.from_numpy
    return lambda x, weights: torch.bincount(convert(x), None if weights is None else convert(weights))


def _scatter_add(case: Any) -> Function:
    import torch

    if case.dtype != "int64":
        raise Refused("takes int64 keys")
    dtype = torch.int64 if case.weights is None else getattr(torch, case.weights)
    one = torch.ones((), dtype=dtype, device="cuda")

    def scatter_add(x: Any, weights: Any) -> Any:
        sums = torch.zeros(case.n_bins, dtype=dtype, device=x.device)
        return sums.scatter_add_(0, x, one.expand(x.shape) if weights is None else weights)

    return scatter_add


def _cupy_bincount(case: Any, accelerators: tuple[str, ...]) -> Function:
    import torch

    cupy = importlib.import_module("cupy")
    cupy._core.set_routine_accelerators(list(accelerators))  # of this process, which runs no other peer
    cupy._core.set_reduction_accelerators(list(accelerators))

    def bincount(x: Any, weights: Any) -> Any:
        array = None if weights is None else cupy.from_dlpack(weights)
        return torch.from_dlpack(cupy.bincount(cupy.from_dlpack(x), array, case.n_bins))

    return bincount


def _torch_histc(case: Any) -> Function:
    import torch

    if case.on_cuda:
        return lambda x, _: torch.histc(x, case.bins, 0, case.width)
    if case.limits is None or case.weights is not None or case.dtype not in ("float32", "float64"):
        raise Refused("takes floats, a range and no weights")
    return lambda x, _: torch.histc(torch.from_numpy(x), case.bins, 0, case.width)


def _boost_histogram(case: Any) -> Function:
    boost = importlib.import_module("boost_histogram")
    if not case.ranged or case.dtype == "float16":
        raise Refused("takes a range and no float16")
    axis = boost.axis.Variable(case.bin_edges()) if case.edges else boost.axis.Regular(case.bins, *case.limits)
    storage = boost.storage.Int64() if case.weights is None else boost.storage.Double()
    return lambda x, weights: (
        boost.Histogram(axis, storage=storage).fill(x, weight=weights, threads=n_threads()).view()
    )


def _fast_histogram(case: Any) -> Function:
    histogram = _attribute("fast_histogram", "histogram1d")
    if case.limits is None or case.weights is not None:
        raise Refused("takes a range and no weights")
    return lambda x, _: histogram(x, case.bins, case.limits)


# ---- pairs -----------------------------------------------------------------------------------------------------


def _numpy_pairs(case: Any) -> Function:
    """The reduction with a matrix of distances, in the dtype of the points, of a tenth of the rows."""

    def reduce(x: Any, y: Any, b: Any) -> Any:
        x = x[: len(x) // 10]
        squares = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1) - 2 * (x @ y.T)
        if case.reduction == "argKmin":
            return np.argpartition(squares, case.k, axis=1)[:, : case.k]
        kernel = np.exp(-squares)
        return np.log(kernel.sum(axis=1, keepdims=True)) if case.reduction == "logsumexp" else kernel @ b

    return reduce


def _scikit_learn(case: Any) -> Function:
    neighbours = importlib.import_module("sklearn.neighbors").NearestNeighbors

    def search(x: Any, y: Any, b: Any) -> Any:
        return neighbours(n_neighbors=case.k, algorithm="brute").fit(y).kneighbors(x, return_distance=False)

    return search


def _keops(case: Any) -> Function:
    library = importlib.import_module("pykeops.torch" if case.on_cuda else "pykeops.numpy")
    return lazy_reduction(case, library, backend="GPU" if case.on_cuda else "CPU")


# ---- user-defined scans, te ------------------------------------------------------------------------------------


def _update_of(case: Any) -> tuple[Any, bool]:
    """The update of a case, and whether the first row is the first state, as in programs of te."""
    if hasattr(case, "program"):
        return {"tanh": user_scans.cell, "sum": user_scans.total}[case.program], True
    return user_scans.UPDATES[case.update], False


def _numba_scan(case: Any) -> Function:
    """A loop over time of one column after another, on all threads."""
    numba = importlib.import_module("numba")
    update, from_first = _update_of(case)
    step, prange = numba.njit(update), numba.prange

    def along_columns(x: Any, y: Any) -> Any:
        for column in prange(x.shape[1]):
            state = x[0, 0] * 0
            for t in range(x.shape[0]):
                state = x[0, column] if t == 0 and from_first else step(state, x[t, column])
                y[t, column] = state

    def along_rows(x: Any, y: Any) -> Any:
        for row in prange(x.shape[0]):
            state = x[0, 0] * 0
            for t in range(x.shape[1]):
                state = step(state, x[row, t])
                y[row, t] = state

    axis = getattr(case, "axis", 0)
    compiled = numba.njit(parallel=True)(along_rows if axis else along_columns)
    y = np.zeros(case.shape, case.dtype)

    def scan(x: Any) -> Any:
        shape = x.shape if x.ndim > 1 else (-1, 1)
        compiled(x.reshape(shape), y.reshape(shape))
        return y

    return scan


def _lax_scan(case: Any) -> Function:
    """jax's lax.scan, compiled; its arguments are copied to jax once."""
    jax = importlib.import_module("jax")
    name = case.program if hasattr(case, "program") else case.update
    _, from_first = _update_of(case)
    update: Function = {"sum": lambda s, x: s + x, "tanh": lambda s, x: jax.numpy.tanh(s + x)}[name]

    def step(state: Any, x: Any) -> Any:
        new = update(state, x)
        return new, new

    def scan(x: Any) -> Any:
        first = x[0] if from_first else jax.numpy.zeros_like(x[0])
        states = jax.lax.scan(step, first, x[1:] if from_first else x)[1]
        return jax.numpy.concatenate([x[:1], states]) if from_first else states

    array: Any = None
    compiled: Function = jax.jit(scan)

    def run(x: Any) -> Any:
        nonlocal array
        array = jax.numpy.asarray(x) if array is None else array
        return compiled(array).block_until_ready()

    return run


def _pandas(case: Any) -> Function:
    pandas = importlib.import_module("pandas")
    return lambda x: pandas.Series(x).ewm(halflife=user_scans.HALFLIFE).mean()


def _numpy_steps(case: Any) -> Function:
    results = case.arrays().new_results()

    def run(*inputs: Any) -> Any:
        case.steps(*results, *inputs)
        return results[-1]

    return run


def _numpy(case: Any) -> Function:
    return _numpy_steps(case) if hasattr(case, "program") else _numpy_counts(case)


def _torch_loop(case: Any) -> Function:
    """An LSTM in plain torch operations: two matrix products and some operations a step."""
    import torch

    hidden = case.shape[2]

    def loop(x: Any, wx: Any, wh: Any, bias: Any) -> Any:
        matrices = [w.transpose(0, 1).reshape(hidden, 4 * hidden) for w in (wx, wh)]
        of_x = x[1:] @ matrices[0] + bias.reshape(-1)
        h = c = torch.zeros_like(x[0])
        outputs = []
        for t in range(len(of_x)):
            gates: list[Any] = list(torch.addmm(of_x[t], h, matrices[1]).chunk(4, dim=1))
            entrance, forget, candidate, output = gates
            c = torch.sigmoid(forget) * c + torch.sigmoid(entrance) * torch.tanh(candidate)
            h = torch.sigmoid(output) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs)

    return loop


def _torch_lstm(case: Any) -> Function:
    import torch

    hidden = case.shape[2]
    cell: Any = None

    def run(x: Any, wx: Any, wh: Any, bias: Any) -> Any:
        nonlocal cell
        with torch.no_grad():
            if cell is None:  # all sets of inputs have the same weights
                cell = torch.nn.LSTM(hidden, hidden).to(x.device)
                flat = [w.transpose(1, 2).reshape(4 * hidden, hidden) for w in (wx, wh)]
                for parameter, values in zip(cell.parameters(), [*flat, bias.reshape(-1), torch.zeros_like(bias)]):
                    parameter.copy_(values.reshape(parameter.shape))
            return cell(x[1:])[0]

    return run


PEERS = {
    "fpscan": Peer("fpscan", _fpscan),
    "accelerated-scan": Peer("accelerated_scan", _accelerated_scan_warp),
    "accelerated-scan Triton": Peer("accelerated_scan", _accelerated_scan_triton),
    "associative_scan": Peer("torch", _associative_scan),
    # Launches on the default stream whatever the current one is.
    "torch-discounted-cumsum": Peer("torch_discounted_cumsum", _torch_discounted_cumsum, capturable=False),
    "torch.cumsum": Peer("torch", _torch_cumsum),
    BASELINE: Peer("torch", _hillis_steele),
    "np.cumsum, out=": Peer("numpy", _np_cumsum),
    "scipy lfilter": Peer("scipy", _scipy_lfilter),
    "numba loop, one thread": Peer("numba", _numba_line),
    # These read the keys' range back and wait for it.
    "torch.bincount": Peer("torch", _torch_bincount, capturable=False),
    "scatter_add_": Peer("torch", _scatter_add),
    "cupy": Peer("cupy", partial(_cupy_bincount, accelerators=()), capturable=False),
    "cupy with CUB": Peer("cupy", partial(_cupy_bincount, accelerators=("cub",)), capturable=False),
    "torch.histc": Peer("torch", _torch_histc),
    "boost-histogram": Peer("boost_histogram", _boost_histogram),
    "fast-histogram": Peer("fast_histogram", _fast_histogram),
    "numpy": Peer("numpy", _numpy),
    "numba": Peer("numba", lambda case: _numba_bincount(case) if hasattr(case, "n_bins") else _numba_scan(case)),
    "numpy, a tenth of the rows": Peer("numpy", _numpy_pairs, share=0.1),
    "scikit-learn": Peer("sklearn", _scikit_learn),
    "KeOps": Peer("pykeops", _keops),
    "jax.lax.scan": Peer("jax", _lax_scan),
    "pandas": Peer("pandas", _pandas),
    "a loop in torch": Peer("torch", _torch_loop, capturable=False),
    "torch.nn.LSTM": Peer("torch", _torch_lstm, capturable=False),
}


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def missing() -> list[str]:
    """The names of the peers that are not installed."""
    return [name for name, peer in PEERS.items() if not _installed(peer.package)]


def bind(name: str, case: Any) -> Function | None:
    """The peer's function for a case, or None where it is not installed.

    Raises
    ------
    Refused
        If the peer cannot do the case.
    Exception
        Whatever the import of the peer raises.
    """
    peer = PEERS[name]
    return peer.bind(case) if _installed(peer.package) else None
