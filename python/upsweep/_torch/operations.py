"""Registration of torch operations: kernels, shapes without data, derivative and vmap in one call.

torch calls an operation in three ways, and each needs the derivative in another form. `Operation` makes all of
them from the same four functions:

    default       registered with the dispatcher: for torch.compile, torch.export and modes
    transformed   an autograd function around it: torch.func's transforms take no registered derivative
    eager         an autograd function without the dispatcher, which costs several times a kernel launch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

_library = torch.library.Library("upsweep", "DEF")


def register(
    schema: str, run: Callable[..., Any], fake: Callable[..., Any], save: Callable[..., None],
    backward: Callable[..., tuple[Any, ...]], vmap: Callable[..., Any],
) -> Any:  # fmt: skip
    """Register an operation with torch's dispatcher, and return it."""
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
    qualified = f"upsweep::{name}"
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, backward, setup_context=save, lib=_library)
    torch.library.register_vmap(qualified, vmap, lib=_library)
    return getattr(torch.ops.upsweep, name).default


def eager(run: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the differentiable function of plain tensors: without `setup_context`, which costs more."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        outputs = run(*inputs)
        save(ctx, inputs, outputs)
        return outputs

    return differentiable(forward=forward, backward=backward).apply


def unprepared(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the differentiable function of tensors that no transform of torch.func has wrapped.

    `Function.apply` unwraps its arguments first, which takes a third of a small call.
    """
    apply: Callable[..., Any] = super(
        torch.autograd.Function, differentiable(forward=forward, backward=backward)
    ).apply
    return apply


def refuse_forward(what: str = "scans and counts") -> NoReturn:
    """Raise where a derivative is taken forward."""
    raise NotImplementedError(
        f"{what} have no derivative taken forward (jvp); take it backward: torch.func.jacrev in place of jacfwd, "
        "jacrev(jacrev(f)) in place of hessian, torch.autograd.functional.jvp in place of torch.func.jvp"
    )


def transformed(
    run: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any], vmap: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the differentiable function that torch.func's transforms take."""
    return differentiable(
        forward=run, setup_context=save, backward=backward, vmap=vmap, jvp=lambda *_: refuse_forward()
    ).apply  # fmt: skip


def differentiable(**methods: Callable[..., Any]) -> Any:
    members = {name: staticmethod(method) for name, method in methods.items()}
    return type("Differentiable", (torch.autograd.Function,), members)


class Operation:
    """A registered operation, and its derivative.

    One parameter of the schema is `axis`. `run` computes the results, `fake` allocates what has their shapes and
    dtypes. `save` and `backward` are those of an autograd function; `backward` may leave out Nones at the end.
    `out_dims` is the batch axis of each result under vmap, where every tensor has its batch axis in front, and
    `check_vmap` raises for arguments that vmap cannot take.
    """

    def __init__(
        self, schema: str, run: Callable[..., Any], fake: Callable[..., Any], save: Callable[..., None],
        backward: Callable[..., tuple[Any, ...]], out_dims: Any, check_vmap: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        def gradients(ctx: Any, *of_results: Any) -> tuple[Any, ...]:
            known = backward(ctx, *of_results)
            return (*known, *(None,) * (len(ctx.needs_input_grad) - len(known)))

        default = self.default = register(schema, run, fake, save, gradients, self._vmap)
        arguments = default._schema.arguments
        self._tensors = [i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
        self._axis = [argument.name for argument in arguments].index("axis")
        self._out_dims, self._check_vmap = out_dims, check_vmap

        self.eager = eager(run, save, gradients)
        self._transformed = transformed(default, save, gradients, self._vmap)

    def form(self) -> Any:
        """Return the form of the operation that whoever follows the tensors understands."""
        if torch.compiler.is_compiling():
            return self.default
        innermost = torch._C._functorch.peek_interpreter_stack()
        if innermost is None or innermost.key() == torch._C._functorch.TransformType.Functionalize:
            return self.default
        return self._transformed

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        if self._check_vmap is not None:
            self._check_vmap(*args)
        batched = list(args)
        for i in self._tensors:
            batched[i] = None if args[i] is None else to_front(args[i], in_dims[i], info.batch_size)
        batched[self._axis] += 1
        return self.form()(*batched), self._out_dims


def is_transformed() -> bool:
    """Whether a transform of torch.func is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_batched(tensor: Tensor) -> bool:
    """Whether the vmap of torch.autograd (`is_grads_batched`), not that of torch.func, follows the tensor."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(tensor))


def to_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return the tensor with vmap's batch axis in front."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
