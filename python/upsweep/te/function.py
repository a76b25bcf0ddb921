"""Functions of arrays on the CPU, compiled from lowered schedules; the base of those on CUDA devices.

A call checks its arrays against the parameters, determines the sizes from their shapes, and runs a `Plan`: the
compiled kernel with all numbers that do not depend on the arrays' addresses. Plans are cached by the arrays'
shapes, strides and dtypes; a call like the latest one takes a fast path through Cython.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._backends import cpu
from upsweep._backends.cpu._loops import Plan
from upsweep._backends.cpu.loops import compile_nest, symbols
from upsweep._compiler.loops.cost import strip_work
from upsweep._compiler.loops.expressions import Expr, key
from upsweep._compiler.loops.linear import MAX_SIZE
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Allocate, nest_text
from upsweep._utils.examples import with_example
from upsweep._utils.integers import as_integer
from upsweep._utils.lru_cache import LRUCache
from upsweep.te.lowering import LoweredSchedule, memory_checks
from upsweep.te.tensors import PlaceholderOp, Tensor

Array = NDArray[Any]


class Parameter:
    """One array parameter.

    `bound` are the dimensions that determine a size, `checked` those that have to agree with sizes; `known` are
    the keys of the sizes that are determined already, to which this adds its own.
    """

    def __init__(self, tensor: Tensor, known: set[str]) -> None:
        self.tensor, self.name, self.dtype = tensor, tensor.name, np.dtype(tensor.dtype)
        self.origin = f"{self.name} is made at {tensor.op.line}"  # the end of messages
        self.is_output = not isinstance(tensor.op, PlaceholderOp)
        self.extents = [evaluator(extent) for extent in tensor.shape]
        self.bound: list[tuple[int, str]] = []
        self.checked: list[tuple[int, Callable[[Sizes], int], Expr]] = []
        for d, extent in enumerate(tensor.shape):
            if extent.op == "var" and key(extent) not in known:
                known.add(key(extent))
                self.bound.append((d, key(extent)))
            else:
                self.checked.append((d, self.extents[d], extent))

    def _shape_error(self, shape: tuple[int, ...], detail: str = "") -> ValueError:
        expected = f"({', '.join(map(repr, self.tensor.shape))}{',' * (self.tensor.ndim == 1)})"
        return ValueError(f"{self.name}: expected shape {expected}{detail}, got {shape}; {self.origin}")

    def check_sizes(self, shape: tuple[int, ...], sizes: Sizes) -> None:
        """Raise where a shape disagrees with the sizes."""
        for d, extent, expr in self.checked:
            expected = extent(sizes)
            if shape[d] != expected:
                raise self._shape_error(shape, "" if expr.op == "const" else f", where {expr!r} is {expected}")

    def as_array(self, value: Any, *, on_device: bool = False) -> Array:
        """An argument as an array of the parameter's dtype and rank; a view of a device's memory if allowed."""
        array = value
        if type(value) is not np.ndarray:
            is_array = isinstance(value, np.ndarray) or (on_device and _arrays.any_on_device(value))
            if self.is_output and not is_array:
                raise TypeError(f"{self.name}: expected an array to fill, got {_arrays.type_name(value)}")
            array = _arrays.as_operand(value, self.name)
            if isinstance(array, _arrays.DeviceView) and not on_device:
                raise TypeError(f"{self.name}: built for the CPU, got an array of a device")
        if array.dtype != self.dtype and array.dtype.newbyteorder("=") != self.dtype:
            raise TypeError(f"{self.name}: expected dtype {self.dtype.name}, got {array.dtype}; {self.origin}")
        if array.ndim != self.tensor.ndim:
            raise self._shape_error(array.shape)
        if self.is_output and not array.flags.writeable:
            raise ValueError(f"{self.name}: the array to fill is read-only")
        # Subclasses of numpy's array have no meaning of their own on the CPU.
        return array if on_device else np.asarray(array)


def is_plain(array: Array) -> bool:
    """Whether a kernel can use an array in place: native, aligned, contiguous in the last dimension."""
    item = array.itemsize
    if array.ndim and array.shape[-1] > 1 and array.strides[-1] != item:
        return False
    return array.dtype.isnative and array.flags.aligned and all(stride % item == 0 for stride in array.strides)


Arguments = list[tuple[Parameter, Array]]


_shows = functools.partial(
    with_example,
    ">>> import numpy as np",
    ">>> from upsweep import te",
    '>>> X = te.placeholder((te.var("n"),), name="X", dtype="float64")',
    '>>> Y = te.compute(X.shape, lambda i: X[i] + 1, name="Y")',
    '>>> function = te.build(te.create_schedule(Y.op), [X, Y], name="increment")',
)


@_shows(">>> function", "<te.Function increment(X, Y)>", ">>> function(np.arange(3.0))", "array([1., 2., 3.])")
class Function:
    """A compiled schedule. Called with all its arrays it fills its results; without the results, it returns them.

    One is built for all sizes. It can be pickled and copied: the lowered schedule is, and it is compiled again, or
    loaded from the disk cache, at the first call.
    """

    is_on_device = False  # whether it was built for a CUDA device

    def __init__(self, lowered: LoweredSchedule, compile_now: bool = True) -> None:
        self._lowered = lowered
        self.name, self.text = lowered.name, nest_text(lowered.body)
        self._args, tensors = lowered.args, [arg for arg in lowered.args if isinstance(arg, Tensor)]
        known = {key(arg) for arg in lowered.args if isinstance(arg, Expr)}
        # Sizes come from inputs rather than from results, which may be missing.
        inputs_first = sorted(tensors, key=lambda tensor: not isinstance(tensor.op, PlaceholderOp))
        parameters = {id(tensor): Parameter(tensor, known) for tensor in inputs_first}
        self._parameters = [parameters[id(tensor)] for tensor in tensors]
        self._outputs = [p for p in self._parameters if p.is_output]
        results = {id(parameter.tensor) for parameter in self._outputs}
        self.output_positions = [n for n, arg in enumerate(self._args) if id(arg) in results]
        self._scratch: list[tuple[np.dtype[Any], list[Callable[[Sizes], int]]]] = []
        self._plans: LRUCache[Any, Plan] = LRUCache(64)  # by the arrays of a call, without their addresses
        self._latest: Plan | None = None
        self._code: Any = None
        self._takes_arrays_alone = len(tensors) == len(self._args)
        self._sizes = lowered.sizes
        for size in self._sizes:
            if key(size) not in known:
                raise ValueError(f"{self.name}: no argument's shape tells the size {size!r}, made at {size.where}")
        self._size_keys = [key(size) for size in self._sizes]
        self._checks = [
            (evaluator(check.value), [evaluator(extent) for extent in check.extents], check.message)
            for check in (*lowered.checks, *memory_checks(lowered.body))
        ]
        self._prepare_nest()
        if compile_now:
            self._compile()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._lowered, False)

    def _prepare_nest(self) -> None:
        """Collect the buffers that a call allocates: those around the whole nest."""
        self._body, self._buffers = self._lowered.body, list(self._lowered.buffers)
        self._work = evaluator(strip_work(self._body, []))
        while isinstance(self._body, Allocate):
            buffer, self._body = self._body.buffer, self._body.body
            self._buffers.append(buffer)
            self._scratch.append((np.dtype(buffer.dtype), [evaluator(size) for size in buffer.shape]))

    def _compile(self) -> Any:
        """The compiled nest, compiled once."""
        if self._code is None:
            self._code = compile_nest(self._body, self._buffers, self._sizes, cpu.level, symbols())
        return self._code

    def __repr__(self) -> str:
        return f"<te.Function {self.name}({', '.join(getattr(arg, 'name', repr(arg)) for arg in self._args)})>"

    def __call__(self, *arrays: Any, n_threads: int | None = None) -> Any:
        """Run on arrays.

        Parameters
        ----------
        *arrays : array_like
            One for each argument, in their order. Without the results, these are returned as new arrays.
        n_threads : int, optional
            The largest number of threads.

        Returns
        -------
        None, array or tuple of array
            The results that were not among the arguments.

        Raises
        ------
        TypeError, ValueError
            A wrong dtype; shapes that disagree with the placeholders', or with each other about a size.
        """
        plan = self._latest
        if plan is not None:
            result = plan.run(arrays, cpu.threads(n_threads))
            if result is not NotImplemented:
                return result
        for array in arrays:
            if hasattr(array, "asnumpy"):  # an NDArray of te.compat
                arrays = tuple(getattr(each, "values", each) for each in arrays)
                break
        if _arrays.any_torch(*arrays):
            return handlers("torch").loops.with_tensors(self, arrays, n_threads)
        return self.run(arrays, n_threads)

    @_shows(">>> function.run([np.zeros(2)], None)", "array([1., 1.])")
    def run(self, arrays: Sequence[Any], n_threads: int | None) -> Any:
        """`__call__` on arrays of numpy."""
        arrays = tuple(arrays)
        signature = None
        if self._takes_arrays_alone and all(type(array) is np.ndarray for array in arrays):
            signature = tuple((array.shape, array.strides, array.dtype) for array in arrays)
            plan = self._plans.get(signature)
            result = NotImplemented if plan is None else plan.run(arrays, cpu.threads(n_threads))
            if result is not NotImplemented:
                self._latest = plan
                return result
        arguments, sizes = self._check_arguments(arrays)
        plain = [self._plain(parameter, array, arguments) for parameter, array in arguments]
        plan = self._plan([(parameter, array) for (parameter, _), array in zip(arguments, plain)], sizes)
        if signature is not None and all(copy is array for copy, (_, array) in zip(plain, arguments)):
            self._plans[signature] = self._latest = plan
        result = plan.run(tuple(plain), cpu.threads(n_threads))
        assert result is not NotImplemented
        for (parameter, array), copy in zip(arguments, plain):
            if parameter.is_output and copy is not array:
                array[...] = copy
        return result

    @property
    def entry_name(self) -> str:
        """Its name, as TVM's programs ask for it."""
        return self.name

    @_shows(">>> function.time_evaluator(function.name, None)(np.zeros(2)).mean > 0", "True")
    def time_evaluator(self, name: str, device: Any, number: int = 10, repeat: int = 1) -> Callable[..., Any]:
        """A function of the arrays that times calls, after one that is not counted.

        Parameters
        ----------
        name : str
            TVM's argument, without effect.
        device : te.compat.Device or None
            The device to wait for, after `number` calls.
        number, repeat : int
            How many calls are timed together, and how many times.

        Returns
        -------
        callable
            Its result has `results`, the seconds of a call each time, and their `mean`, `min` and `max`.
        """
        wait = getattr(device, "sync", lambda: None)

        def evaluate(*arrays: Any) -> SimpleNamespace:
            results = []
            self(*arrays)
            for _ in range(repeat):
                wait()
                begin = time.perf_counter()
                for _ in range(number):
                    self(*arrays)
                wait()
                results.append((time.perf_counter() - begin) / number)
            times = tuple(results)
            return SimpleNamespace(results=times, mean=float(np.mean(times)), min=min(times), max=max(times))

        return evaluate

    def _check_arguments(self, values: Sequence[Any]) -> tuple[Arguments, Sizes]:
        """The arrays with their parameters, and the sizes; raises where they do not go together."""
        has_outputs = self._check_number(values)
        sizes: Sizes = {}
        arguments: Arguments = []
        remaining, parameters = iter(values), iter(self._parameters)
        for arg in self._args:
            if isinstance(arg, Expr):
                sizes[key(arg)] = _as_size(arg, next(remaining))
                continue
            parameter = next(parameters)
            if has_outputs or not parameter.is_output:
                arguments.append((parameter, parameter.as_array(next(remaining), on_device=self.is_on_device)))
        self._check_arrays(arguments)
        for parameter, array in arguments:
            shape = array.shape
            for d, name in parameter.bound:
                sizes[name] = shape[d]
        missing = None if has_outputs else next((size for size in self._sizes if key(size) not in sizes), None)
        if missing is not None:
            raise ValueError(
                f"{self.name}: the inputs do not tell the size {missing!r}, made at {missing.where}; "
                "give the results to fill"
            )
        for parameter, array in arguments:
            parameter.check_sizes(array.shape, sizes)
        self._check_sizes(sizes)
        return arguments, sizes

    def _check_arrays(self, arguments: Arguments) -> None:
        """Raise where arrays cannot be used together."""

    def _check_number(self, values: Sequence[Any]) -> bool:
        """Whether the results to fill are among the arguments of a call."""
        all_args, n_inputs = len(self._args), len(self._args) - len(self._outputs)
        if len(values) not in (all_args, n_inputs):
            raise TypeError(
                f"{self.name}: expected {all_args} arguments, or {n_inputs} without the results to fill, "
                f"got {len(values)}"
            )
        return len(values) == all_args

    def _check_sizes(self, sizes: Sizes) -> None:
        """Raise where a size is too large, or an index that depends on sizes leaves its tensor."""
        if max(sizes.values(), default=0) > MAX_SIZE:
            size = next(each for each in self._sizes if sizes.get(key(each), 0) > MAX_SIZE)
            raise ValueError(f"{self.name}: the size {size!r} is {sizes[key(size)]}, expected at most 2**62")
        for check, extents, message in self._checks:
            if check(sizes) < 0 and all(extent(sizes) > 0 for extent in extents):
                values = ", ".join(f"{size!r} = {sizes[key(size)]}" for size in self._sizes)
                raise ValueError(f"{message}, with {values}")

    def _plain(self, parameter: Parameter, array: Array, arguments: Arguments) -> Array:
        """An array that the kernel can use: the argument, or a copy; also where it overlaps a result."""
        overlaps = any(
            p.is_output and p is not parameter and np.may_share_memory(array, each) for p, each in arguments
        )
        if not overlaps and is_plain(array):
            return array
        if parameter.is_output:
            return np.empty(array.shape, parameter.dtype)
        return array.astype(parameter.dtype.newbyteorder("="), order="C")

    def _plan(self, arguments: Arguments, sizes: Sizes) -> Plan:
        """The kernel's call for plain arrays, which returns new ones for missing results."""
        passed = {id(parameter): array for parameter, array in arguments}
        missing = [p for p in self._outputs if id(p) not in passed]
        # Each call allocates these anew: only their shapes and strides count here.
        new = {id(p): np.empty([extent(sizes) for extent in p.extents], p.dtype) for p in missing}
        arrays = passed | new
        numbers, positions = [0], dict[int, int]()
        for parameter in self._parameters:
            array = arrays[id(parameter)]
            positions[id(parameter)] = len(numbers)
            numbers += [0, *(stride // array.itemsize for stride in array.strides[:-1])]
        scratch: list[tuple[int, int]] = []
        for dtype, extents in self._scratch:
            shape = [max(extent(sizes), 0) for extent in extents]
            scratch.append((len(numbers), math.prod(shape) * dtype.itemsize))
            numbers += [0, *(math.prod(shape[d + 1 :]) for d in range(len(shape) - 1))]
        numbers += [sizes[name] for name in self._size_keys]
        order = [*(parameter for parameter, _ in arguments), *missing]
        code = self._compile()
        return Plan(
            self.name, code.address("kernel"), code, numbers, [positions[id(p)] for p in order],
            [*passed.values(), *new.values()], [p.is_output for p in order], scratch, len(new),
            float(self._work(sizes)),
        )  # fmt: skip


def _as_size(arg: Expr, value: Any) -> int:
    size = as_integer(value, repr(arg))
    if size < 0:
        raise ValueError(f"{arg!r}: a size is never negative, got {size}")
    return size
