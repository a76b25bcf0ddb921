"""Tensors, and the operations that produce them: inputs, and computations element by element.

Other operations are in `scans`; `mathematics` has the functions of elements. `schedule` orders the operations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from upsweep._compiler.loops.expressions import (
    FLOATS,
    INTS,
    Axis,
    Expr,
    as_expr,
    cast,
    check_dtype,
    const,
    lowest,
    users_line,
    variable,
)
from upsweep._compiler.loops.linear import MAX_SIZE, Linear, as_index, is_of_data, linear
from upsweep._compiler.loops.traversal import walk

# The operation that combines two values of a reduction.
COMBINERS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_INITIAL = {"sum": 0, "prod": 1}


def initial_value(combiner: str, dtype: str) -> Expr:
    """The value that a reduction begins with."""
    if combiner in _INITIAL:
        return const(_INITIAL[combiner], dtype)
    if dtype in INTS:
        return const(lowest(dtype) if combiner == "max" else -1 - lowest(dtype), dtype)
    return const(float("-inf") if combiner == "max" else float("inf"), dtype)


class Operation:
    """An operation that produces tensors; `line` is the line of the user's program that created it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = users_line()
        self.outputs: list[Tensor] = []

    def output(self, index: int) -> Tensor:
        """One of its tensors."""
        return self.outputs[index]

    @property
    def num_outputs(self) -> int:
        """The number of its tensors."""
        return len(self.outputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """A tensor that is an argument of the call, or a scan's state."""


class ComputeOp(Operation):
    """A tensor computed element by element: `body` over `axis`, a reduction over `reduce_axis` too."""

    def __init__(self, name: str, axis: tuple[Axis, ...], body: Expr) -> None:
        super().__init__(name)
        self.axis, self.body = axis, body
        self.reduce_axis: tuple[Axis, ...] = body.static[1] if body.op == "reduce" else ()

    def with_body(self, body: Expr) -> ComputeOp:
        """The same tensor, computed in another way."""
        op = ComputeOp(self.name, self.axis, body)
        op.line, op.outputs = self.line, self.outputs
        return op


class Tensor:
    """A symbolic tensor: its shape, its dtype and the operation that produces it. Indexing gives an element.

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((te.var("n"), 4), name="X")
    >>> X.ndim, X.dtype, X[0, 1] * 2
    (2, 'float32', X[0, 1]*2f)
    """

    def __init__(self, op: Operation, shape: tuple[Expr, ...], dtype: str, name: str) -> None:
        self.op, self.shape, self.dtype, self.name = op, shape, dtype, name
        self.value_index = len(op.outputs)
        op.outputs.append(self)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Expr:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != self.ndim:
            raise ValueError(
                f"{users_line()}: {self.name} has {self.ndim} dimensions, got {len(indices)} indices; "
                "a tensor is read element by element"
            )
        try:
            positions = tuple(as_index(index) for index in indices)
        except TypeError as error:
            raise TypeError(f"{users_line()}: an index of {self.name}: {error}") from None
        return Expr("read", positions, self.dtype, (self,), users_line())

    def __call__(self, *indices: Any) -> Expr:
        return self[indices]

    def _refuse(self, *_: Any, **__: Any) -> Any:
        index = ", ".join("ijklmn"[: self.ndim])
        raise TypeError(
            f"{users_line()}: {self.name} is a whole tensor: write te.compute(shape, lambda {index}: ...) of its "
            f"elements {self.name}[{index}]"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __neg__ = __pow__ = __array_ufunc__ = __float__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __invert__ = __mod__ = __floordiv__ = _refuse

    def __eq__(self, other: object) -> bool:
        return self._refuse() if isinstance(other, (Expr, int, float)) else self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Any:
        raise TypeError(f"{users_line()}: {self.name} cannot be iterated over; index it in te.compute")

    def __repr__(self) -> str:
        return f"Tensor(name={self.name}, shape=({', '.join(map(repr, self.shape))}), dtype={self.dtype})"


def reads_of(expr: Expr) -> list[Expr]:
    """The reads of tensors in an expression."""
    return [node for node in walk(expr) if node.op == "read"]


def var(name: str = "n", dtype: str = "int64") -> Expr:
    """Create a symbolic size, which is known when a built function is called.

    Parameters
    ----------
    name : str
        Its name in the text of `lower` and in messages.
    dtype : str
        An integer dtype; sizes are computed in int64, and are at most 2**62.

    Returns
    -------
    Expr

    Examples
    --------
    >>> from upsweep import te
    >>> n = te.var("n")
    >>> n + 1
    n + 1
    """
    if check_dtype(dtype) not in ("int32", "int64"):
        raise TypeError(f"dtype: a size is an integer, got {dtype!r}")
    return variable(name)


size_var = var  # TVM's name for one that is never negative, as all sizes are here


def as_shape(shape: Any, what: str) -> tuple[Expr, ...]:
    """A shape as expressions."""
    sizes: Sequence[Any] = shape if isinstance(shape, (tuple, list)) else (shape,)
    result = []
    for size in sizes:
        try:
            extent = as_index(size)
        except TypeError as error:
            raise TypeError(f"shape of {what}: {error}") from None
        if is_of_data(extent):
            raise ValueError(f"shape of {what}: expected integers and arithmetic of sizes alone, got {extent!r}")
        if linear(extent).below_zero():
            raise ValueError(f"shape of {what}: a size is never negative, got {extent!r}")
        if linear(extent).plus(Linear(-1 - MAX_SIZE)).at_least_zero():
            raise ValueError(f"shape of {what}: a size is at most 2**62, got {extent!r}")
        result.append(extent)
    return tuple(result)


def placeholder(shape: Any, dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """Create a tensor that is an argument of the built function, or the state of a scan.

    Parameters
    ----------
    shape : tuple of int or size
        Integers, `var` and arithmetic of them.
    dtype : str
        float32, float64, int32, int64 or bool.
    name : str
        Its name in messages.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> from upsweep import te
    >>> te.placeholder((te.var("n"), 4), name="X")
    Tensor(name=X, shape=(n, 4), dtype=float32)
    """
    return Tensor(PlaceholderOp(name), as_shape(shape, name), check_dtype(dtype), name)


def reduce_axis(dom: Any, name: str = "rv") -> Axis:
    """Create an index to reduce over.

    Parameters
    ----------
    dom : (int or size, int or size)
        It runs over ``range(*dom)``; the first must be 0.
    name : str
        Its name in the text of `lower`.

    Returns
    -------
    Axis

    Examples
    --------
    >>> from upsweep import te
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> X = te.placeholder((8, 4), name="X")
    >>> te.compute((8,), lambda i: te.max(X[i, k], axis=k), name="largest")
    Tensor(name=largest, shape=(8), dtype=float32)
    """
    if not isinstance(dom, (tuple, list)) or len(dom) != 2:
        raise ValueError(f"dom: expected (0, extent), got {dom!r}")
    first, extent = as_shape(tuple(dom), name)
    if linear(first).constant or linear(first).terms:
        raise ValueError(f"dom: a reduction begins at 0, got {first!r}; add it to the index instead")
    return Axis(name, extent, "reduce")


def reduction(combiner: str, expr: Any, axis: Any) -> Expr:
    """The node of a reduction."""
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for each in axes:
        if not isinstance(each, Axis) or each.kind != "reduce":
            raise TypeError(f"{users_line()}: axis: expected k = te.reduce_axis((0, n)), got {each!r}")
    value = as_expr(expr)
    if any(node.op == "reduce" for node in walk(value)):
        raise ValueError(f"{users_line()}: a reduction of a reduction: compute the inner one by te.compute first")
    if value.dtype == "bool":
        value = cast(value, "int32")
    return Expr("reduce", (value,), value.dtype, (combiner, axes))


def sum(expr: Any, axis: Any) -> Expr:
    """The sum of an expression over one or several `reduce_axis`, as the whole body of a `compute`.

    Parameters
    ----------
    expr : Expr
        The summand.
    axis : Axis or list of Axis
        From `reduce_axis`.

    Returns
    -------
    Expr

    Examples
    --------
    >>> from upsweep import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 5), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 5), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    """
    return reduction("sum", expr, axis)


def _axis_names(function: Callable[..., Any], n_dims: int, name: str) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional if p.default is p.empty or len(positional) == n_dims]
    rest = [p.name for p in parameters if p.kind == p.VAR_POSITIONAL]
    if rest:
        names += [f"{rest[0]}{d}" for d in range(len(names), n_dims)]
    if len(names) != n_dims:
        raise ValueError(f"{name}: its shape has {n_dims} dimensions, its function takes {len(names)} indices")
    return names


def compute(shape: Any, fcompute: Callable[..., Any], name: str = "compute") -> Tensor:
    """Define a tensor element by element.

    Parameters
    ----------
    shape : tuple of int or size
        The tensor's shape.
    fcompute : callable
        Maps one index for each dimension to the element, an expression or a number. It is called once.
    name : str
        The tensor's name in the text of `lower` and in messages.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> from upsweep import te
    >>> X = te.placeholder((3, 4), name="X")
    >>> te.compute((4, 3), lambda i, j: 2 * X[j, i], name="Y")
    Tensor(name=Y, shape=(4, 3), dtype=float32)
    """
    sizes = as_shape(shape, name)
    if not callable(fcompute):
        raise TypeError(f"{name}: expected a function of {len(sizes)} indices, got {fcompute!r}")
    axes = tuple(Axis(each, size) for each, size in zip(_axis_names(fcompute, len(sizes), name), sizes))
    returned = fcompute(*axes)
    if isinstance(returned, (tuple, list)):
        raise TypeError(f"{name}: a compute has one value, got {len(returned)}; write one te.compute for each")
    body = as_expr(returned)
    if body.op != "reduce" and any(node.op == "reduce" for node in walk(body)):
        raise ValueError(
            f"{users_line()}: {name}: a reduction stands alone in its te.compute; use its result in another one"
        )
    op = ComputeOp(name, axes, body)
    known = {id(axis) for axis in (*axes, *op.reduce_axis)}
    for node in walk(body):
        if isinstance(node, Axis) and id(node) not in known:
            reason = "belongs to another compute"
            if node.kind == "reduce":
                reason = f"is one to reduce over: write te.sum(..., axis={node.name}), or te.max and the like"
            raise ValueError(f"{op.line}: {name}: index {node.name} {reason}")
    return Tensor(op, sizes, body.dtype, name)


def retyped(tensor: Tensor, dtype: str) -> None:
    """Change the dtype of a tensor of a constant, as ``lambda _, i: 0.0``, to that of its scan."""
    op = tensor.op
    if isinstance(op, ComputeOp) and op.body.op == "const" and (dtype in FLOATS or op.body.dtype not in FLOATS):
        op.body = cast(op.body, dtype)
        tensor.dtype = dtype


def producers(tensors: Iterable[Tensor]) -> list[Operation]:
    """All operations that tensors need, each after those it needs itself; a scan counts as one."""
    order: dict[Operation, None] = {}
    stack = [(tensor.op, False) for tensor in reversed(list(tensors))]
    while stack:
        op, entered = stack.pop()
        if entered:
            order[op] = None
        elif op not in order:
            stack.append((op, True))
            stack += [(tensor.op, False) for tensor in reversed(inputs_of(op)) if tensor.op not in order]
    return list(order)


def inputs_of(op: Operation) -> list[Tensor]:
    """The tensors that an operation reads, in the order of its text."""
    if isinstance(op, ComputeOp):
        tensors = [node.static[0] for node in reads_of(op.body)]
        return list(dict.fromkeys(tensors))
    return list(getattr(op, "outer_inputs", ()))
