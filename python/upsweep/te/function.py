"""`build`: a schedule as a function of arrays; `lower`: the loop nest that it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep._backends import cpu
from upsweep._backends.cpu import _loops, openmp
from upsweep._backends.cpu._loops import Plan
from upsweep._backends.cpu.loops import compile_nest
from upsweep._compiler.llvm.loops.parallel_for import POLL, SYMBOLS
from upsweep._compiler.loops.cost import strip_work
from upsweep._compiler.loops.expressions import Axis, Expr, key
from upsweep._compiler.loops.linear import MOST_SIZE
from upsweep._compiler.loops.printing import nest_text
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Allocate, Buffer, Statement, all_statements
from upsweep._compiler.loops.traversal import walk
from upsweep._utils.integers import as_integer
from upsweep.te.bounds_checks import SizeCheck, check_memory
from upsweep.te.lowering import lower_schedule
from upsweep.te.schedule import Schedule
from upsweep.te.tensors import PlaceholderOp, Tensor

__all__ = ["Function", "build", "lower"]

Array = NDArray[Any]


class Lowered:
    """A loop nest; its text by ``str``."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def lower(
    schedule: Schedule, args: Sequence[Tensor | Expr], simple_mode: bool = True, target: str = "cpu"
) -> Lowered:
    """The loop nest of a schedule, as `build` compiles it.

    Parameters
    ----------
    schedule : Schedule
        From `create_schedule`. A stage of which nothing was said runs parallel over its first axis and in
        vectors over its last, the steps of a scan in their order.
    args : list of Tensor
        What the function takes, as in `build`.
    simple_mode : bool
        TVM's argument; there is one form.
    target : str
        As in `build`. For "cuda" it is the nest of each kernel, whose threads all walk through it: a loop bound
        to a thread axis is each thread's own step of it. It says where buffers lie and where threads wait.

    Returns
    -------
    Lowered
        Text with ``for``, ``parallel``, ``vectorized`` and ``unrolled`` loops, ``produce``, ``allocate`` and
        ``if``.

    Examples
    --------
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> X = te.placeholder((n,), name="X")
    >>> Y = te.compute((n,), lambda i: te.exp(X[i]), name="Y")
    >>> print(te.lower(te.create_schedule(Y.op), [X, Y]))
    produce Y {
      parallel vectorized (i, 0, n) {
        Y[i] = exp(X[i])
      }
    }
    <BLANKLINE>
    """
    check_arguments(schedule, args)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    nest = lower_schedule(schedule, tensors)
    if _device_of(target) is not None:
        from upsweep._compiler.cuda.loops.program import programs_of, text_of

        sizes = sizes_of(schedule, tensors, [arg for arg in args if isinstance(arg, Expr)])
        return Lowered(text_of(*programs_of(nest.body, nest.buffers, sizes, free_axes(schedule), "lower")))
    return Lowered(nest_text(nest.body))


def check_arguments(schedule: Any, args: Any) -> None:
    """Raise unless these are a schedule, and tensors and sizes."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected te.create_schedule(...), got {schedule!r}")
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args: expected a list of tensors, got {args!r}")
    for place, arg in enumerate(args):
        if not isinstance(arg, Tensor) and not (isinstance(arg, Expr) and arg.op == "var"):
            raise TypeError(f"args: expected tensors, and sizes from te.var; args[{place}] is {arg!r}")


class Parameter:
    """One array argument: its name, dtype, and how its shape tells sizes."""

    def __init__(self, tensor: Tensor, known: set[str]) -> None:
        self.tensor, self.name, self.dtype = tensor, tensor.name, np.dtype(tensor.dtype)
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

    def shape_text(self) -> str:
        return f"({', '.join(map(repr, self.tensor.shape))}{',' * (self.tensor.ndim == 1)})"

    def origin(self) -> str:
        """The end of a message: where the user's program made the tensor."""
        return f"{self.name} is made at {self.tensor.op.line}"

    def check_kind(self, array: Any) -> Array:
        if type(array) is not np.ndarray:
            if self.is_output and not isinstance(array, np.ndarray):
                raise TypeError(f"{self.name}: expected an array to fill, got {_arrays.type_name(array)}")
            array = _arrays.as_operand(array, self.name)
            if isinstance(array, _arrays.DeviceView):
                raise TypeError(f"{self.name}: built for the CPU, got an array of a device")
        self.check_shape(array)
        result: Array = np.asarray(array)  # subclasses have no meaning of their own here
        return result

    def check_shape(self, array: Array) -> None:
        """Raise unless the array is of the placeholder's dtype and rank, and can be filled if it is to be."""
        if array.dtype != self.dtype and array.dtype.newbyteorder("=") != self.dtype:
            raise TypeError(f"{self.name}: expected dtype {self.dtype.name}, got {array.dtype}; {self.origin()}")
        if array.ndim != self.tensor.ndim:
            raise ValueError(
                f"{self.name}: expected shape {self.shape_text()}, got {array.shape}; {self.origin()}"
            )
        if self.is_output and not array.flags.writeable:
            raise ValueError(f"{self.name}: the array to fill is read-only")


def _is_plain(array: Array) -> bool:
    """Whether the kernel can take it as it is: native, aligned, neighbours in the last dimension."""
    item = array.itemsize
    if array.ndim and array.shape[-1] > 1 and array.strides[-1] != item:
        return False
    return array.dtype.isnative and array.flags.aligned and all(stride % item == 0 for stride in array.strides)


_MOST_PLANS = 64


class _Source(NamedTuple):
    """A lowered schedule with what a function of it is made from; pickled in place of the compiled code."""

    name: str
    args: list[Tensor | Expr]
    device: int | None
    body: Statement
    buffers: list[Buffer]
    sizes: list[Expr]
    checks: list[SizeCheck]
    free_axes: list[Axis]


class Function:
    """A compiled schedule. Called with all its arrays it fills its results; without the results, it returns them.

    One is built for all sizes. It can be pickled and copied: what was lowered is, and it is compiled again, or
    loaded from the disk cache, at the first call.
    """

    is_on_device = False  # whether it was built for a CUDA device

    def __init__(
        self, schedule: Schedule, args: Sequence[Tensor | Expr], name: str, device: int | None = None
    ) -> None:
        check_arguments(schedule, args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        nest = lower_schedule(schedule, tensors)
        sizes = sizes_of(schedule, tensors, [arg for arg in args if isinstance(arg, Expr)])
        free = _untouched(schedule)
        checks = [*schedule.checks, *_memory_checks(nest.body)]
        source = _Source(name, list(args), device, nest.body, nest.buffers, sizes, checks, free)
        self._prepare(source)
        self._compile()

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of, (type(self), self._source)

    def _prepare(self, source: _Source) -> None:
        """Everything but compiled code."""
        self._source = source
        name, args = source.name, source.args
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        self.name, self.text = name, nest_text(source.body)
        self._args = args
        given = [arg for arg in args if isinstance(arg, Expr)]
        known = {key(arg) for arg in given}
        # Inputs tell sizes before results do, which may be missing.
        parameters = {id(t): Parameter(t, known) for t in tensors if isinstance(t.op, PlaceholderOp)}
        parameters |= {id(t): Parameter(t, known) for t in tensors if id(t) not in parameters}
        self._parameters = [parameters[id(tensor)] for tensor in tensors]
        self._inputs = [p for p in self._parameters if not p.is_output]
        self._outputs = [p for p in self._parameters if p.is_output]
        self._scratch: list[tuple[np.dtype[Any], list[Callable[[Sizes], int]]]] = []
        self._plans: dict[Any, Plan] = {}  # by what a call's arrays are, but for where they lie
        self._latest: Plan | None = None
        self._code: Any = None
        self._takes_arrays_alone = not given
        self._sizes = source.sizes
        for size in self._sizes:
            if key(size) not in known:
                raise ValueError(f"{name}: no argument's shape tells the size {size!r}, made at {size.where}")
        self._size_keys = [key(size) for size in self._sizes]
        self._checks = [
            (evaluator(check.value), [evaluator(extent) for extent in check.extents], check.message)
            for check in source.checks
        ]
        self._prepare_nest()

    def _prepare_nest(self) -> None:
        """Note the buffers that a call allocates, in their order."""
        self._body, self._buffers = self._source.body, list(self._source.buffers)
        self._work = evaluator(strip_work(self._body, []))
        while isinstance(self._body, Allocate):
            buffer, self._body = self._body.buffer, self._body.body
            self._buffers.append(buffer)
            self._scratch.append((np.dtype(buffer.dtype), [evaluator(size) for size in buffer.shape]))

    def _compile(self) -> Any:
        """The compiled nest, compiled once."""
        if self._code is None:
            symbols = openmp.symbols(SYMBOLS) | {POLL: _loops.poll_address()}
            self._code = compile_nest(self._body, self._buffers, self._sizes, cpu.level, symbols)
        return self._code

    def __repr__(self) -> str:
        return f"<te.Function {self.name}({', '.join(getattr(arg, 'name', repr(arg)) for arg in self._args)})>"

    def __call__(self, *arrays: Any, n_threads: int | None = None) -> Any:
        """Run on arrays.

        Parameters
        ----------
        *arrays : array_like
            One for each argument, in their order. Without the results, they are returned: new arrays.
        n_threads : int, optional
            At most so many.

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
            if hasattr(array, "asnumpy"):  # compat's, in which an array of numpy lies
                arrays = tuple(getattr(each, "values", each) for each in arrays)
                break
        if _arrays.any_torch(*arrays):
            return handlers("torch").loops.with_tensors(self, arrays, n_threads)
        return self.run(arrays, n_threads)

    def run(self, arrays: Sequence[Any], n_threads: int | None) -> Any:
        """`__call__` of arrays of numpy."""
        arrays = tuple(arrays)
        signature = None
        if self._takes_arrays_alone and all(type(array) is np.ndarray for array in arrays):
            signature = tuple((array.shape, array.strides, array.dtype) for array in arrays)
            plan = self._plans.get(signature)
            result = NotImplemented if plan is None else plan.run(arrays, cpu.threads(n_threads))
            if result is not NotImplemented:
                self._latest = plan
                return result
        taken, sizes = self._taken(arrays)
        plain = [self._plain(parameter, array, taken) for parameter, array in taken]
        plan = self._plan([(parameter, array) for (parameter, _), array in zip(taken, plain)], sizes)
        if signature is not None and all(array is given for array, (_, given) in zip(plain, taken)):
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[signature] = self._latest = plan
        result = plan.run(tuple(plain), cpu.threads(n_threads))
        assert result is not NotImplemented
        for (parameter, given), array in zip(taken, plain):
            if parameter.is_output and array is not given:
                given[...] = array
        return result

    def _taken(self, arrays: Sequence[Any]) -> tuple[list[tuple[Parameter, Array]], Sizes]:
        """The arrays with their parameters, and the sizes; raises where they do not go together."""
        fills = self._check_number(arrays)
        sizes: Sizes = {}
        taken: list[tuple[Parameter, Array]] = []
        values, parameters = iter(arrays), iter(self._parameters)
        for arg in self._args:
            if isinstance(arg, Expr):
                sizes[key(arg)] = self._size(arg, next(values))
                continue
            parameter = next(parameters)
            if fills or not parameter.is_output:
                taken.append((parameter, self._take(parameter, next(values))))
        self._bind(taken, sizes)
        if not fills:
            self._check_sizes_told(sizes)
        self._check_sizes(sizes)
        return taken, sizes

    def _take(self, parameter: Parameter, value: Any) -> Array:
        """An argument as an array that its parameter allows."""
        return parameter.check_kind(value)

    def _check_number(self, arrays: Sequence[Any]) -> bool:
        """Whether the results to fill are among the arguments of a call."""
        n_given = len(arrays)
        if n_given not in (len(self._args), len(self._args) - len(self._outputs)):
            few = len(self._args) - len(self._outputs)
            raise TypeError(
                f"{self.name}: expected {len(self._args)} arguments, or {few} without the results to fill, "
                f"got {n_given}"
            )
        return n_given == len(self._args)

    def _check_sizes_told(self, sizes: Sizes) -> None:
        missing = [size for size in self._sizes if key(size) not in sizes]
        if missing:
            raise ValueError(
                f"{self.name}: the inputs do not tell the size {missing[0]!r}, made at {missing[0].where}; "
                "give the results to fill"
            )

    def _check_sizes(self, sizes: Sizes) -> None:
        """Raise where a size is too large, or an index that depends on sizes leaves its tensor."""
        if max(sizes.values(), default=0) > MOST_SIZE:
            size = next(each for each in self._sizes if sizes.get(key(each), 0) > MOST_SIZE)
            raise ValueError(f"{self.name}: the size {size!r} is {sizes[key(size)]}, expected at most 2**62")
        for check, extents, message in self._checks:
            if check(sizes) < 0 and all(extent(sizes) > 0 for extent in extents):
                told = ", ".join(f"{size!r} = {sizes[key(size)]}" for size in self._sizes)
                raise ValueError(f"{message}, with {told}")

    def filled(self, values: Sequence[Any]) -> list[Any]:
        """Those of a call's arguments that are results."""
        return [
            v
            for arg, v in zip(self._args, values)
            if isinstance(arg, Tensor) and not isinstance(arg.op, PlaceholderOp)
        ]

    def _size(self, arg: Expr, value: Any) -> int:
        size = as_integer(value, repr(arg))
        if size < 0:
            raise ValueError(f"{arg!r}: a size is never negative, got {size}")
        return size

    def _bind(self, taken: list[tuple[Parameter, Array]], sizes: Sizes) -> None:
        """Sizes from shapes, and what disagrees with them."""
        for parameter, array in taken:
            shape = array.shape
            for d, name in parameter.bound:
                sizes[name] = shape[d]
        for parameter, array in taken:
            shape = array.shape
            for d, extent, expr in parameter.checked:
                expected = extent(sizes)
                if shape[d] != expected:
                    told = "" if expr.op == "const" else f", where {expr!r} is {expected}"
                    raise ValueError(
                        f"{parameter.name}: expected shape {parameter.shape_text()}{told}, got {shape}; "
                        f"{parameter.origin()}"
                    )

    def _plain(self, parameter: Parameter, array: Array, taken: list[tuple[Parameter, Array]]) -> Array:
        """An array that the kernel can take: itself, or a copy, also where it lies over others."""
        overlaps = any(
            p.is_output and p is not parameter and np.may_share_memory(array, each) for p, each in taken
        )
        if not overlaps and _is_plain(array):
            return array
        if parameter.is_output:
            return np.empty(array.shape, parameter.dtype)
        return array.astype(parameter.dtype.newbyteorder("="), order="C")

    def _plan(self, taken: list[tuple[Parameter, Array]], sizes: Sizes) -> Plan:
        """The kernel's call for arrays that it can take; without the results, for new ones."""
        given = {id(parameter): array for parameter, array in taken}
        # Such arrays lie anywhere: only shapes and strides of those that are not there yet count.
        missing = [p for p in self._outputs if id(p) not in given]
        new = {id(p): np.empty([extent(sizes) for extent in p.extents], p.dtype) for p in missing}
        numbers, places = [0], dict[int, int]()
        for parameter in self._parameters:
            array = given[id(parameter)] if id(parameter) in given else new[id(parameter)]
            places[id(parameter)] = len(numbers)
            numbers.append(0)
            numbers += [stride // array.itemsize for stride in array.strides[:-1]]
        scratch: list[tuple[int, int]] = []
        for dtype, extents in self._scratch:
            shape = [max(extent(sizes), 0) for extent in extents]
            scratch.append((len(numbers), math.prod(shape) * dtype.itemsize))
            numbers.append(0)
            numbers += [math.prod(shape[d + 1 :]) for d in range(len(shape) - 1)]
        numbers += [sizes[name] for name in self._size_keys]
        order = [*(parameter for parameter, _ in taken), *missing]
        code = self._compile()
        return Plan(
            self.name, code.address("kernel"), code, numbers, [places[id(p)] for p in order],
            [*given.values(), *new.values()], [p.is_output for p in order], scratch, len(new),
            float(self._work(sizes)),
        )  # fmt: skip


def _memory_checks(body: Statement) -> list[SizeCheck]:
    buffers = [each.buffer for each in all_statements(body) if isinstance(each, Allocate)]
    return [
        check for each in buffers for check in check_memory(each.name, each.shape, np.dtype(each.dtype).itemsize)
    ]


def sizes_of(schedule: Schedule, tensors: Sequence[Tensor], given: Sequence[Expr]) -> list[Expr]:
    """All symbolic sizes of a schedule."""
    found: dict[str, Expr] = {key(arg): arg for arg in given}

    def note(expr: Expr) -> None:
        for node in walk(expr):
            if node.op == "var":
                found.setdefault(key(node), node)

    for tensor in (*tensors, *(t for stage in schedule.stages for t in stage.op.outputs)):
        for extent in tensor.shape:
            note(extent)
    for stage in schedule.stages:
        for axis in getattr(stage.op, "reduce_axis", ()):
            note(axis.extent)
        if hasattr(stage.op, "body") and isinstance(stage.op.body, Expr):
            note(stage.op.body)
    return list(found.values())


def _function_of(kind: type[Function], source: _Source) -> Function:
    """An unpickled function, which compiles at its first call."""
    function = kind.__new__(kind)
    function._prepare(source)
    return function


def _untouched(schedule: Schedule) -> list[Axis]:
    """The axes of stages that nothing was said of."""
    stages = [stage for stage in schedule.stages if not stage.touched]
    return [leaf for stage in stages for leaf in stage.leaves if leaf.kind == "data"]


def free_axes(schedule: Schedule) -> set[int]:
    """The ids of the axes of stages that nothing was said of."""
    return set(map(id, _untouched(schedule)))


def _device_of(target: Any) -> int | None:
    """The CUDA device of a target; None for the CPU."""
    words = str(target).split()
    kind, _, ordinal = (words[0] if words else "").partition(":")
    if kind == "cuda" and (ordinal or "0").isdecimal():
        return int(ordinal or 0)
    if kind not in ("cpu", "llvm") or ordinal:
        raise ValueError(f'target: expected "cpu", "llvm" or "cuda", got {target!r}')
    return None


def build(
    schedule: Schedule,
    args: Sequence[Tensor | Expr],
    target: str = "cpu",
    target_host: Any = None,
    name: str = "main",
) -> Function:
    """Compile a schedule.

    Parameters
    ----------
    schedule : Schedule
        From `create_schedule`.
    args : list of Tensor or size
        What the function takes, results too; usually these come last. A size may be given by itself.
    target : str
        "cpu" or "llvm", or "cuda"; "cuda:1" for another device than the first.
    target_host : object
        TVM's argument, without effect.
    name : str
        The function's name in messages.

    Returns
    -------
    Function
        For arrays of numpy or torch of any sizes. Compiled code is kept in memory and on the disk. One for "cuda"
        takes arrays of torch, cupy and others on a device, and runs on the current stream; arrays of numpy are
        copied there and back.

    Raises
    ------
    ValueError
        A placeholder that is not among the arguments; a size that no shape tells; another target. For "cuda": a
        thread axis bound twice, a block of more than 1024 threads, a value that one block needs of another, or
        a thread of another where they cannot wait.
    RuntimeError
        For "cuda": there is no device, or no compiler for it; the message says what to install.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> X = te.placeholder((n,), name="X", dtype="float64")
    >>> Y = te.compute((n,), lambda i: X[i] * X[i], name="Y")
    >>> square = te.build(te.create_schedule(Y.op), [X, Y])
    >>> square(np.arange(4.0))
    array([0., 1., 4., 9.])
    >>> out = np.empty(3)
    >>> square(np.ones(3), out)
    >>> out
    array([1., 1., 1.])
    """
    device = _device_of(target)
    if device is not None:
        from upsweep.te.cuda_function import DeviceFunction

        return DeviceFunction(schedule, args, name, device)
    return Function(schedule, args, name)
