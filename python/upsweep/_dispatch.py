"""From a checked scan to the backend that runs it; the only file that knows both backends."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from upsweep import _arrays, _counting, _cpu, _cuda
from upsweep._arrays import Array, Home, OnDevice, on_device
from upsweep._bins import Histogram
from upsweep._counting import Count, key_error, outside_error, too_many_bins
from upsweep._signature import Scan

__all__ = [
    "DeviceArray",
    "advance_on_device",
    "combine_on_device",
    "cuda_counts",
    "cuda_problem",
    "cuda_reduce",
    "fetch",
    "find_extremes",
    "find_extremes_at_home",
    "new_result",
    "owner_of",
    "reduce_scan",
    "run_count",
    "run_cuda_lines",
    "run_cuda_lines_backward",
    "run_cuda_scan",
    "run_histogram",
    "run_histogram_at_home",
    "run_scan",
    "sent",
    "write_state",
]

# For whoever brings arrays of a device, a stream and a way to allocate.
DeviceArray = _cuda.DeviceArray
cuda_problem = _cuda.problem
run_cuda_lines = _cuda.run_lines
run_cuda_lines_backward = _cuda.run_lines_backward
run_cuda_scan = _cuda.run_scan


def cuda_reduce(*arrays: Any, **keywords: Any) -> None:
    """`_cuda.carries.reduce`, imported by the first who needs it."""
    from upsweep._cuda import carries

    carries.reduce(*arrays, **keywords)


def cuda_counts() -> Any:
    """The module of counts that know arrays of a device by their pointers."""
    from upsweep._cuda import checked_counts

    return checked_counts


_REAL, _COMPLEX, _INTEGER = 0, 1, 2
_SURELY_HELD = 1 << 22  # numbers
_ACCUMULATORS = {"f": _REAL, "c": _COMPLEX, "i": _INTEGER, "u": _INTEGER}


def _new_like(x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised result, laid out as x is where x has its shape."""
    if x.shape == shape and 0 not in x.strides:
        return np.empty_like(x, dtype=dtype, order="K", subok=False)
    return np.empty(shape, dtype)


def run_scan(
    scan: Scan,
    *,
    out: Array | None,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int = 0,
    return_final: bool,
    n_threads: int | None,
    device: int | None = None,
) -> tuple[Any, Any]:
    """Run the scan, where its arrays are, or those of numpy on a CUDA device or on the CPU (None).

    Returns the result and, if asked for, the state after the last step: arrays of the library that x is of.
    """
    if scan.home is not None:
        return _run_at_home(scan, out, reverse, exclusive, window, return_final)
    result = _new_like(scan.x, scan.shape, scan.dtype) if out is None else out
    final = np.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
    if device is not None:
        _cuda.check_device(device)
    if 0 not in scan.shape and device is not None:
        from upsweep._cuda import host

        host.run_scan(
            scan.x, scan.gates, scan.gamma, scan.initial, scan.reset, result, final,
            axis=scan.axis, reverse=reverse, exclusive=exclusive, window=window, device=device,
        )  # fmt: skip
    elif 0 not in scan.shape:
        _run(scan, result, final, None, reverse, exclusive, flush, window, n_threads)
    elif final is not None:
        final[...] = 0 if scan.initial is None else scan.initial
    return result, final


def reduce_scan(
    scan: Scan, *, reverse: bool, flush: bool, n_threads: int | None, device: int | None = None
) -> tuple[Any, Any, Any]:
    """What the whole block does to a state: the product of its gates, the state it leaves from nothing, and
    whether a reset drops the state before it."""
    if scan.home is not None:
        return _reduce_at_home(scan, reverse)
    multiplier = np.ones(scan.state_shape, scan.factor_dtype)
    value = np.zeros(scan.state_shape, scan.accumulator)
    dropped = np.zeros(scan.state_shape, bool)
    if device is not None:
        _cuda.check_device(device)
        if 0 not in scan.shape:
            from upsweep._cuda import host

            host.run_reduce(
                scan.x, scan.gates, scan.gamma, scan.reset, multiplier, value, dropped, axis=scan.axis,
                reverse=reverse, device=device,
            )  # fmt: skip
        return multiplier, value, dropped
    if 0 not in scan.shape:
        _run(scan, None, value, multiplier, reverse, False, flush, 0, n_threads)
    if scan.reset is not None:
        np.any(scan.reset, axis=scan.axis, out=dropped)
    multiplier[dropped] = 0
    return multiplier, value, dropped


def _run(
    scan: Scan,
    out: Array | None,
    final: Array | None,
    multiplier: Array | None,
    reverse: bool,
    exclusive: bool,
    flush: bool,
    window: int,
    n_threads: int | None,
) -> None:
    _cpu.scans.scan(
        scan.x,
        scan.gates,
        scan.gamma,
        scan.initial,
        scan.reset,
        out,
        final,
        multiplier,
        axis=scan.axis,
        reverse=reverse,
        exclusive=exclusive,
        flush=flush,
        window=window,
        n_threads=_cpu.threads(n_threads),
        accumulator=_ACCUMULATORS[scan.accumulator.kind],
    )


def run_count(count: Count, *, n_threads: int | None, device: int | None = None) -> tuple[Any, Any]:
    """Count where the arrays are, or those of numpy on a CUDA device or on the CPU (None).

    Returns the result, or the user's `out`, and how many keys were dropped, if that is asked.
    """
    _check_memory(count, count.least if count.n_bins is None else count.n_bins, largest_key=False)
    if count.home is not None:
        return _count_at_home(count)
    if device is None:
        return _run_counter(count, _counter(count, _cpu.counts.Counter, n_threads=_cpu.threads(n_threads)))
    _cuda.check_device(device)
    from upsweep._cuda import host

    keywords = {"device": device, "deterministic": count.deterministic}
    with contextlib.closing(_counter(count, host.Counter, **keywords)) as counter:
        return _run_counter(count, counter)


def _counter(count: Count, make: Any, **keywords: Any) -> Any:
    """The count on a backend, which offers `look`, `write`, `first_outside` and `count_outside`."""
    return make(
        count.keys,
        # Without keys or sums there is nothing to read, and only the number of bins to be found.
        None if count.keys.size == 0 or count.n_sums == 0 else count.weights,
        with_sums=count.n_sums is not None,
        integers=count.accumulator.kind in "iu",
        n_bins=-1 if count.n_bins is None else count.n_bins,
        least=count.least,
        drop=count.drop,
        **keywords,
    )


def _run_counter(count: Count, counter: Any) -> tuple[Array, np.int64 | None]:
    n_bins, outside = counter.look()
    if outside:
        raise outside_error(count, counter.first_outside(n_bins), n_bins)
    _check_memory(count, n_bins, largest_key=n_bins > count.least)
    out = count.out
    if out is None:
        result = _counted(count, counter, n_bins)
    elif out.dtype == count.accumulator and count.bins_last(out).flags.c_contiguous:
        result = out
        if out.size:
            counter.write(count.bins_last(out), not count.accumulate)
    else:
        result = out
        counted = _counted(count, counter, n_bins)
        np.add(out, counted, out=out) if count.accumulate else np.copyto(out, counted)
    return result, np.int64(counter.count_outside(n_bins)) if count.return_invalid else None


def _counted(count: Count, counter: Any, n_bins: int) -> Array:
    """The result in an array of its own."""
    result = np.zeros((*count.rows, n_bins, *count.sums), count.accumulator)
    if result.size:
        counter.write(result, False)
    return count.bins_in_place(result).astype(count.dtype, copy=False)


def _check_memory(count: Count, n_bins: int, largest_key: bool) -> None:
    """Refuse a result that the machine has no memory for: it would be had, and end the process when written to."""
    if math.prod(count.rows) * n_bins * math.prod(count.sums) < _SURELY_HELD:
        return
    home = count.home
    limit = _cpu.memory_limit() if home is None else home.library.memory(home.ordinal)
    error = too_many_bins(count, n_bins, limit, largest_key)
    if error is not None:
        raise error


# ---- arrays that are on a device -------------------------------------------------------------------------------


class _Call:
    """One call on arrays of a device: whose memory it takes, and the stream that it goes to."""

    def __init__(self, arrays: dict[str, Array | None]) -> None:
        held = {name: array for name, array in arrays.items() if isinstance(array, OnDevice)}
        home = _arrays.common_home({**held})
        assert home is not None
        self.library, self.device = home
        _cuda.check_device(self.device)
        producers = [array.held.stream for array in held.values() if array.held.stream is not None]
        current = self.library.stream(self.device)
        # Where there is no current stream, the work goes to where the result will be read.
        self.stream = current if current is not None else producers[-1] if producers else 0
        for stream in set(producers) - {self.stream}:
            _cuda.synchronize(self.device, stream)
        self._memory: Any = None
        # A workspace must not be given the memory of a number that is still to be read.
        self._kept: list[OnDevice] = []

    @property
    def on_stream(self) -> dict[str, int]:
        return {"device": self.device, "stream": self.stream}

    @property
    def where(self) -> dict[str, Any]:
        return {**self.on_stream, "allocate": self.allocate}

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()

    @property
    def memory(self) -> Any:
        """The driver's memory on the stream, for libraries that give none."""
        if self._memory is None:
            from upsweep._cuda import host

            self._memory = host.Memory(self.device, self.stream)
        return self._memory

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        given = self.library.workspace(n_bytes, self.device)
        mine: tuple[int, object] = self.memory.allocate(n_bytes) if given is None else given
        return mine

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None) -> OnDevice:
        """An uninitialised array; laid out as `like` is where that has its shape and repeats nothing."""
        if like is None or like.shape != shape or 0 in like.strides or not self.library.transposes:
            return self.library.empty(shape, dtype, self.device, self.stream)
        order = sorted(range(like.ndim), key=lambda axis: -abs(like.strides[axis]))
        return self.library.empty(shape, dtype, self.device, self.stream, tuple(order))

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OnDevice:
        """An uninitialised array that does not outlive the call, which any library can have."""
        if self.library.allocates:
            return self.library.empty(shape, dtype, self.device, self.stream)
        pointer, keep = self.allocate(max(math.prod(shape), 1) * dtype.itemsize)
        return on_device(pointer, shape, dtype, Home(self.library, self.device), keep)

    def send(self, array: Array) -> DeviceArray:
        """A short array of the host, which does not outlive the call."""
        there = self.library.sent(array, self.device)
        if there is None:
            return self.memory.send(array)  # type: ignore[no-any-return]
        self._kept.append(there)
        return _described(there)

    def number(self, value: Array) -> DeviceArray:
        """One element."""
        on_device = self.library.full(value, self.device)
        if on_device is None:
            return self.memory.send(value)  # type: ignore[no-any-return]
        self._kept.append(on_device)
        return _described(on_device)

    def array(self, array: Array | None) -> DeviceArray | None:
        """The array as the library takes it; a number of the host is sent as one element."""
        if array is None or isinstance(array, OnDevice):
            return None if array is None else _described(array)
        nothing = DeviceArray(0, array.shape, (0,) * array.ndim, array.dtype.name)
        if array.size == 0:
            return nothing
        element = np.asarray(array[(0,) * array.ndim], array.dtype.newbyteorder("="))
        return nothing._replace(pointer=self.number(element).pointer)

    def gamma(self, gamma: Array | None) -> DeviceArray | complex | None:
        """As an array, or as a number, which is part of the call."""
        if gamma is None or isinstance(gamma, OnDevice):
            return self.array(gamma)
        return complex(gamma[(0,) * gamma.ndim]) if gamma.size else None


def _described(array: Array) -> DeviceArray:
    pointer = array.__array_interface__["data"][0] if array.size else 0
    return DeviceArray(pointer, array.shape, array.strides, array.dtype.name)


def _of_scan(scan: Scan, out: Array | None = None) -> dict[str, Array | None]:
    names = ("x", "gates", "gamma", "reset", "initial")
    return {**{name: getattr(scan, name) for name in names}, "out": out}


def _run_at_home(
    scan: Scan, out: Array | None, reverse: bool, exclusive: bool, window: int, return_final: bool
) -> tuple[Any, Any]:
    with contextlib.closing(_Call(_of_scan(scan, out))) as call:
        result = call.empty(scan.shape, scan.dtype, scan.x) if out is None else out
        final = call.empty(scan.state_shape, _arrays.state_dtype(scan.dtype)) if return_final else None
        if 0 not in scan.state_shape and (scan.shape[scan.axis] or final is not None):
            x, gates, reset, initial = map(call.array, (scan.x, scan.gates, scan.reset, scan.initial))
            assert x is not None
            problem = cuda_problem(
                x, gates, call.gamma(scan.gamma), initial, reset, _described(result), call.array(final),
                axis=scan.axis, reverse=reverse, exclusive=exclusive, window=window, device=call.device,
                stream=call.stream,
            )  # fmt: skip
            run_cuda_scan(problem, call.allocate)
    return owner_of(result), None if final is None else owner_of(final)


def owner_of(array: Array) -> Any:
    """The user's array, of which this is a view."""
    return array.held.owner if isinstance(array, OnDevice) else array


def new_result(scan: Scan, shape: tuple[int, ...]) -> Array:
    """An uninitialised array of this shape where the scan is."""
    if scan.home is None:
        return np.empty(shape, scan.dtype)
    with contextlib.closing(_Call(_of_scan(scan))) as call:
        return call.empty(shape, scan.dtype)


def write_state(scan: Scan, target: Array) -> None:
    """Write the initial state, or 0, to `target`, a part of a result with one step along the axis."""
    if not isinstance(target, OnDevice):
        target[...] = 0 if scan.initial is None else np.expand_dims(scan.initial, scan.axis)
        return
    if 0 in target.shape:
        return
    with contextlib.closing(_Call(_of_scan(scan, target))) as call:
        state = call.array(np.broadcast_to(np.int8(0), scan.state_shape) if scan.initial is None else scan.initial)
        assert state is not None
        at = scan.axis
        block = state._replace(shape=target.shape, strides=(*state.strides[:at], 0, *state.strides[at:]))
        problem = cuda_problem(
            block, None, None, None, None, _described(target), None, axis=at, reverse=False, exclusive=False,
            device=call.device, stream=call.stream,
        )  # fmt: skip
        run_cuda_scan(problem, call.allocate)


def _reduce_at_home(scan: Scan, reverse: bool) -> tuple[Any, Any, Any]:
    dtypes = (scan.factor_dtype, scan.accumulator, np.dtype(np.bool_))
    with contextlib.closing(_Call(_of_scan(scan))) as call:
        results = [call.empty(scan.state_shape, dtype) for dtype in dtypes]
        if 0 not in scan.state_shape:
            bits = [call.number(np.array(bit, np.int8)) for bit in (0, 1)]
            cuda_reduce(
                call.array(scan.x), call.array(scan.gates), call.gamma(scan.gamma), call.array(scan.reset),
                [_described(result) for result in results], bits, axis=scan.axis, reverse=reverse, **call.where,
            )  # fmt: skip
    multiplier, value, dropped = map(owner_of, results)
    return multiplier, value, dropped


Parts = tuple[Array, Array, Array]  # multiplier, value, dropped


def advance_on_device(parts: Parts, state: Array, dtype: np.dtype[Any]) -> Any:
    """The state after a block, in this dtype: `value` where dropped, else ``multiplier * state + value``."""
    shape = np.broadcast_shapes(state.shape, *(part.shape for part in parts))
    names = ("multiplier", "value", "reset", "state")
    spread = [np.broadcast_to(array, shape) for array in (*parts, state)]
    with contextlib.closing(_Call(dict(zip(names, spread)))) as call:
        result = call.empty(shape, dtype)
        multiplier, value, dropped, before = spread
        _step(call, multiplier, value, dropped, before, result)
    return owner_of(result)


def combine_on_device(first: Parts, second: Parts, factor_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    """The parts of two blocks together, in these dtypes."""
    shape = np.broadcast_shapes(*(part.shape for part in (*first, *second)))
    a_multiplier, a_value, a_dropped = (np.broadcast_to(part, shape) for part in first)
    b_multiplier, b_value, b_dropped = (np.broadcast_to(part, shape) for part in second)
    named = {"carry_a": a_value, "carry_b": b_value}
    zero = np.broadcast_to(np.int8(0), shape)
    with contextlib.closing(_Call({**named})) as call:
        multiplier, value, dropped = (call.empty(shape, d) for d in (factor_dtype, dtype, np.dtype(np.bool_)))
        _step(call, None, a_dropped, None, b_dropped, dropped)  # whether their sum is not 0
        _step(call, b_multiplier, zero, dropped, a_multiplier, multiplier)
        _step(call, b_multiplier, b_value, b_dropped, a_value, value)
    return owner_of(multiplier), owner_of(value), owner_of(dropped)


def _step(
    call: _Call, multiplier: Array | None, value: Array, dropped: Array | None, state: Array, result: Array
) -> None:
    from upsweep._cuda import carries

    tokens, before = call.array(value), call.array(state)
    assert tokens is not None and before is not None
    carries.step(
        call.array(multiplier), tokens, call.array(dropped), before, _described(result), **call.where
    )  # fmt: skip


def _count_at_home(count: Count) -> tuple[Any, Any]:
    """Count on a device. Nothing waits where the bins are given and other keys are dropped, else once."""
    with contextlib.closing(_Call({"x": count.keys, "weights": count.weights, "out": count.out})) as call:
        keys = _described(count.keys)
        n_bins = _bins_at_home(count, keys, call) if count.n_bins is None else count.n_bins
        check = not count.drop and count.n_bins is not None
        shape = count.result_shape(n_bins)
        made = _made_on_device(count)
        direct = count.dtype == made
        # With the check in it, a count that fails has been written; `out` must not be then. To count into memory
        # of its own costs the bytes of the bins, to look at the keys first would cost theirs.
        if count.out is not None and direct and not check:
            counted = count.out
        else:
            counted = call.empty(shape, made) if count.out is None else call.temporary(shape, made)
        dropped = call.empty((), np.dtype(np.int64)) if count.return_invalid else None
        _count_into(count, keys, counted, dropped, call, check)
        result = counted
        if counted is not count.out and not (count.out is None and direct):
            result = call.empty(shape, count.dtype) if count.out is None else count.out
            _move(call, counted, result, count.accumulate)
        return owner_of(result), None if dropped is None else owner_of(dropped)


def _made_on_device(count: Count) -> np.dtype[Any]:
    """What the kernels write: sums of floats are made in float64 and rounded once, to float32 too."""
    if count.accumulator.kind in "iu":
        return np.dtype(np.int64 if count.accumulator.kind == "i" else np.uint64)
    short = np.dtype(np.complex64 if count.accumulator.kind == "c" else np.float32)
    return short if count.dtype == short else count.accumulator


def _bins_at_home(count: Count, keys: DeviceArray, call: _Call) -> int:
    """The number of bins that the keys ask for."""
    largest: int
    largest, negative = cuda_counts().find_range(keys, call.allocate, axis=len(keys.shape) - 1, **call.on_stream)
    if negative >= 0 and not count.drop:
        raise _outside_at_home(count, keys, negative, 0, call)
    n_bins = max(largest + 1, count.least)
    _check_memory(count, n_bins, largest_key=n_bins > count.least)
    return n_bins


def _outside_at_home(count: Count, keys: DeviceArray, position: int, n_bins: int, call: _Call) -> ValueError:
    index = tuple(map(int, np.unravel_index(position, keys.shape)))
    return key_error(index, count.axis, int(_element(call, count.keys, index)), n_bins)


def _element(call: _Call, array: Array, index: tuple[int, ...]) -> Any:
    item = cuda_counts().read_element(_described(array), index, array.itemsize, **call.on_stream)
    return np.frombuffer(item, array.dtype)[0]


def _count_into(
    count: Count, keys: DeviceArray, counted: Array, dropped: Array | None, call: _Call, check: bool
) -> None:
    """Count into an array of the result's shape."""
    weights, table = count.weights, count.bins_last(counted)
    n_bins = table.shape[len(count.rows)]
    if count.n_sums == 0:
        # There are no sums, but keys may be outside all the same.
        weights, table = None, call.temporary((*count.rows, n_bins), np.dtype(np.int64))
    elif count.keys.size == 0:
        # Nothing to sum: tables of no keys, one for each sum.
        weights, shape = None, (*count.rows, *count.sums, 0)
        keys = DeviceArray(0, shape, (0,) * len(shape), keys.dtype)
        table = _counting.moved(table, len(count.rows), table.ndim - 1)
    described = _described(table)
    first = cuda_counts().count(
        keys, described._replace(dtype=described.dtype.replace("uint64", "int64")), call.allocate,
        call.array(weights), axis=len(keys.shape) - 1, check=check,
        accumulate=count.accumulate and counted is count.out,
        deterministic=count.deterministic, dropped=None if dropped is None else _described(dropped).pointer,
        **call.on_stream,
    )  # fmt: skip
    if first >= 0:
        raise _outside_at_home(count, keys, first, n_bins, call)


def _move(call: _Call, counted: Array, result: Array, accumulate: bool) -> None:
    """Write what was counted to the result, or add it, in its dtype."""
    if result.size == 0:
        return
    if result.dtype.kind in "iu" and counted.dtype.kind == "f":
        counted = _arrays.cast(counted, result.dtype, "dtype")  # kernels take no floats for integers
    before = _described(result)
    if not accumulate:
        zero = call.number(np.array(0, np.int8))
        before = zero._replace(shape=before.shape, strides=(0,) * len(before.shape))
    from upsweep._cuda import carries

    carries.step(None, _described(counted), None, before, _described(result), **call.where)


# ---- histograms ------------------------------------------------------------------------------------------------


def find_extremes(x: Array, n_threads: int | None) -> tuple[Any, Any, bool]:
    """The least and the largest of at least one element, and whether there is a NaN, which counts for neither."""
    return _cpu.histograms.find_extremes(x, _cpu.threads(n_threads))


def find_extremes_at_home(x: OnDevice) -> tuple[Any, Any, tuple[int, ...] | None, Any]:
    """Those of an array of a device, once its stream is done; where the first is that is not finite, and what."""
    with contextlib.closing(_Call({"x": x})) as call:
        low, high, first = cuda_counts().find_extremes(_described(x), call.allocate, **call.on_stream)
        if first < 0:
            return low, high, None, None
        index = tuple(map(int, np.unravel_index(first, x.shape)))
        return low, high, index, _element(call, x, index)


def fetch(array: OnDevice) -> Array:
    """A copy in the host's memory, once the work on the array's stream is done."""
    with contextlib.closing(_Call({"array": array})) as call:
        dense = array if array.flags.c_contiguous else _dense(call, array)
        found = np.empty(array.shape, array.dtype)
        if array.size:
            call.memory.fetch(_described(dense), found)
        return found


def _dense(call: _Call, array: OnDevice) -> OnDevice:
    """A copy in C order, on the device."""
    copy = call.temporary(array.shape, array.dtype)
    if array.dtype == np.bool_:  # moved as numbers
        _move(call, array.view(np.uint8), copy.view(np.uint8), False)
    else:
        _move(call, array, copy, False)
    return copy


def sent(x: OnDevice, array: Array) -> Any:
    """The array as one of x's library, where x is."""
    with contextlib.closing(_Call({"x": x})) as call:
        there = x.held.library.sent(array, call.device)
        if there is None:
            there = call.empty(array.shape, array.dtype)
            call.memory.put(array, _described(there))
        return owner_of(there)


def run_histogram_at_home(problem: Histogram, dtype: np.dtype[Any], out: Array | None = None) -> OnDevice:
    """The histogram of an array of a device, in this dtype, as a view."""
    x, weights = problem.x, problem.weights
    with contextlib.closing(_Call({"x": x, "weights": weights, "out": out})) as call:
        made = _made_of_weights(weights, dtype)
        result = call.empty((problem.n_bins,), dtype) if out is None else out
        counted = result if result.dtype == made else call.temporary(result.shape, made)
        if result.size:
            # Elements are taken in C order, and weights have to lie so that one stride leads to all of them.
            if isinstance(weights, OnDevice) and weights.ndim != 1 and not weights.flags.c_contiguous:
                weights = _dense(call, weights)
            thresholds = call.send(problem.thresholds)
            cuda_counts().histogram(
                _described(x), thresholds, _described(counted), call.allocate, call.array(weights),
                **_guess(problem.thresholds), **call.on_stream,
            )  # fmt: skip
        if counted is not result:
            _move(call, counted, result, False)
        assert isinstance(result, OnDevice)
        return result


def _made_of_weights(weights: Array | None, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What the kernels make of counts or of such weights, when they are wanted in this dtype."""
    if weights is None or weights.dtype.kind in "biu":
        return np.dtype(np.int64)
    if weights.dtype.kind == "c":
        return dtype
    return dtype if dtype == np.float32 else np.dtype(np.float64)


def _guess(thresholds: Array) -> dict[str, float]:
    """A line through the first and the last threshold: the place of a number on it is a guess at its rank."""
    if thresholds.size < 2:
        return {}
    first, last = thresholds[0].item(), thresholds[-1].item()
    if not (math.isfinite(first) and math.isfinite(last)) or first == last:
        return {}
    return {"origin": float(first), "scale": (thresholds.size - 1) / (last - first)}


def run_histogram(problem: Histogram, n_threads: int | None, device: int | None = None) -> Array:
    """The counts in the bins, int64, or the sums of weights: uint64 (modulo 2**64), float64 or complex128."""
    x, weights, thresholds = problem.x, problem.weights, problem.thresholds
    if device is not None:
        _cuda.check_device(device)
        from upsweep._cuda import host

        kind = "u" if weights is None or weights.dtype.kind in "biu" else weights.dtype.kind
        counts: Array = np.zeros(problem.n_bins, {"u": np.int64, "f": np.float64, "c": np.complex128}[kind])
        if counts.size and thresholds.size:
            host.run_histogram(x, weights, thresholds, counts, **_guess(thresholds), device=device)
        return counts if weights is None or kind != "u" else counts.view(np.uint64)
    count = _cpu.threads(n_threads)
    if weights is not None and weights.dtype.kind == "c":
        sums = np.empty(problem.n_bins, np.complex128)
        sums.real = _run_histogram(x, weights.real, thresholds, problem.n_bins, count)
        sums.imag = _run_histogram(x, weights.imag, thresholds, problem.n_bins, count)
        return sums
    return _run_histogram(x, weights, thresholds, problem.n_bins, count)


def _run_histogram(x: Array, weights: Array | None, thresholds: Array, n_bins: int, n_threads: int) -> Array:
    kind = None if weights is None else weights.dtype.kind
    dtype = np.int64 if kind is None else np.uint64 if kind in "biu" else np.float64
    if x.size == 0 or thresholds.size == 0:
        return np.zeros(n_bins, dtype)
    # Below the first edge, the bins, and above the last.
    slots = np.zeros(n_bins + 2, dtype)
    _cpu.histograms.count(x, weights, thresholds, slots[: thresholds.size + 1], n_threads)
    return slots[1:-1]
