"""Buffers of tensors while a schedule is lowered, and the translation of tensor reads into loads of buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from upsweep._compiler.loops.expressions import Expr, binary, index_const, load
from upsweep._compiler.loops.linear import simplified
from upsweep._compiler.loops.statements import Buffer
from upsweep._compiler.loops.traversal import fold
from upsweep.te.bounds_inference import Inlined
from upsweep.te.tensors import Tensor


@dataclass
class Storage:
    """A buffer that holds a tensor or a region of it: in each d of `dims` an index i is at ``i - first[d]``."""

    buffer: Buffer
    first: tuple[Expr, ...]
    dims: tuple[int, ...]


class StorageMap:
    """The storage of each tensor.

    Several tensors may have one `Storage` in `by_tensor`. `scopes` are the buffers that live in the whole nest,
    and in each parallel loop around the statement that is being written.
    """

    def __init__(self, inlined: Inlined) -> None:
        self.inlined = inlined
        self.scopes: list[list[Buffer]] = [[]]
        self.by_tensor: dict[Tensor, Storage] = {}

    def assign(self, tensor: Tensor, buffer: Buffer) -> None:
        """Hold all of a tensor in a buffer."""
        zeros = tuple(index_const(0) for _ in tensor.shape)
        self.by_tensor[tensor] = Storage(buffer, zeros, tuple(range(tensor.ndim)))

    def allocate(
        self, tensor: Tensor, first: Sequence[Expr], extents: Sequence[Expr], dims: Iterable[int], scope: int = 0
    ) -> None:
        """Hold a region of a tensor in a new buffer of a scope, which has these dimensions of it."""
        dims = tuple(dims)
        buffer = Buffer(tensor.name, tuple(extents[d] for d in dims), tensor.dtype)
        self.by_tensor[tensor] = Storage(buffer, tuple(first), dims)
        self.scopes[scope].append(buffer)

    def of(self, tensor: Tensor) -> Storage:
        """The storage of a tensor; where it has none yet, a new buffer that lives in the whole nest."""
        if tensor not in self.by_tensor:
            self.allocate(tensor, [index_const(0)] * tensor.ndim, tensor.shape, range(tensor.ndim))
        return self.by_tensor[tensor]

    def element(self, tensor: Tensor, indices: Sequence[Expr]) -> tuple[Buffer, tuple[Expr, ...]]:
        """The buffer and the indices in it of an element."""
        storage = self.of(tensor)
        return storage.buffer, tuple(simplified(binary("sub", indices[d], storage.first[d])) for d in storage.dims)

    def translated(self, expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
        """An expression with root axes replaced by loops and reads by loads; inlined stages are expanded."""

        def translate(node: Expr, args: list[Expr]) -> Expr:
            if node.op == "read":
                tensor: Tensor = node.static[0]
                indices = [simplified(index) for index in args]
                op = self.inlined(tensor)
                if op is not None:
                    return self.translated(op.body, dict(zip(op.axis, indices)))
                return load(*self.element(tensor, indices))
            return Expr(node.op, tuple(args), node.dtype, node.static, node.where) if args else node

        return fold(expr, translate, {id(axis): value for axis, value in values.items()})
