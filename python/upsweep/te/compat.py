"""Names that TVM's programs use besides `te`: ``from upsweep.te import compat as tvm``.

An array is in the computer's memory, as numpy's, or on a CUDA device, where built functions use it in place.
What configures TVM's own compiler (`transform.PassContext`, callbacks of `register_func`) has no effect.
"""

from __future__ import annotations

import contextlib
import functools
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from upsweep import _backends, te
from upsweep._compiler.loops.expressions import Expr, as_expr
from upsweep._utils.examples import with_example
from upsweep.te import build, lower

__all__ = [
    "Device", "NDArray", "build", "cpu", "cuda", "device", "gpu", "lower", "nd", "register_func", "runtime", "te",
    "testing", "tir", "transform",
]  # fmt: skip

# Programs older than `tvm.te` use the same names of `tvm` itself.
__all__ += list(te.__all__)
globals().update({name: getattr(te, name) for name in te.__all__})


_shows = functools.partial(with_example, ">>> from upsweep.te import compat as tvm")


@_shows('>>> tvm.Device("cpu").exist', "True")
class Device:
    """A device that holds arrays: the CPU, or a CUDA device; those of other kinds do not exist."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind, self.index = kind, index

    @property
    def exist(self) -> bool:
        """Whether the device is available."""
        return self.why_missing() is None

    @_shows('>>> tvm.device("metal").why_missing()', "'functions are built for cpu and cuda'")
    def why_missing(self) -> str | None:
        """Why the device is not available; None: it is."""
        if self.kind == "cuda":
            return _backends.cuda_memory.why_no_device(self.index)
        return None if self.kind == "cpu" else "functions are built for cpu and cuda"

    @_shows(">>> tvm.cpu().sync()")
    def sync(self) -> None:
        """Wait for the work on the device; calls on the CPU are finished when they return."""
        if self.kind == "cuda":
            _backends.cuda_memory.wait_for(self.index)

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


@_shows(">>> tvm.cpu()", "cpu(0)")
def cpu(index: int = 0) -> Device:
    """The computer's memory."""
    return Device("cpu", index)


@_shows(">>> tvm.cuda(1)", "cuda(1)")
def cuda(index: int = 0) -> Device:
    """A CUDA device."""
    return Device("cuda", index)


gpu = cuda


@_shows('>>> tvm.device("llvm")', "cpu(0)")
def device(kind: str, index: int = 0) -> Device:
    """The device of a target's kind, as "cpu", "llvm" or "cuda"."""
    names = {"llvm": "cpu", "c": "cpu", "gpu": "cuda", "nvptx": "cuda"}
    first, *_ = [*kind.split(), ""]
    return Device(names.get(first, first), index)


@_shows(">>> tvm.nd.array([1.0, 2.0]).dtype", "'float64'")
class NDArray:
    """An array under TVM's names; compiled functions fill it in place."""

    def __init__(self, values: Any, device: Device | None = None) -> None:
        self.device = device or cpu()
        host = np.array(values.numpy() if isinstance(values, NDArray) else values)
        if self.device.kind == "cpu":
            self.values: Any = host
            return
        missing = self.device.why_missing()
        if missing is not None:
            raise RuntimeError(f"device: {self.device!r}: {missing}")
        self.values = _backends.cuda_memory.DeviceCopy(host, self.device.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.values.dtype.name)

    @_shows(">>> tvm.nd.array([1.0, 2.0]).numpy()", "array([1., 2.])")
    def numpy(self) -> Any:
        """A copy as an array of numpy."""
        return self.values.copy() if self.device.kind == "cpu" else self.values.fetch()

    asnumpy = numpy

    @_shows(">>> tvm.nd.empty(2).copyfrom([1, 2]).numpy()", "array([1., 2.], dtype=float32)")
    def copyfrom(self, values: Any) -> NDArray:
        """Take the values of another array."""
        source = values.numpy() if isinstance(values, NDArray) else values
        if self.device.kind == "cpu":
            self.values[...] = source
        else:
            self.values.fill(np.broadcast_to(np.asarray(source, self.values.dtype), self.shape))
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self.values if self.device.kind == "cpu" else self.values.fetch()
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        return f"<compat.NDArray {self.device!r}>\n{self.numpy()!r}"


def _empty(shape: Any, dtype: str = "float32", device: Device | None = None) -> NDArray:
    """A new array of zeros."""
    return NDArray(np.zeros(shape, dtype), device)


def _assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raise AssertionError unless |actual - desired| <= atol + rtol * |desired|, and the shapes agree."""
    actual, desired = np.asanyarray(actual), np.asanyarray(desired)
    np.testing.assert_allclose(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol)


def _device_enabled(target: str) -> bool:
    """Whether functions can be built for a target and run."""
    return device(target).exist


def _requires_gpu(test: Any = None) -> Any:
    """A decorator of tests that need a CUDA device."""
    decorate = unittest.skipUnless(cuda().exist, cuda().why_missing() or "")
    return decorate if test is None else decorate(test)


def _convert(value: Any) -> Any:
    """Numbers as expressions, also in lists; other values as they are."""
    if isinstance(value, (tuple, list)):
        return [_convert(each) for each in value]
    return value if isinstance(value, (Expr, te.Tensor, str)) else as_expr(value)


@contextlib.contextmanager
def _pass_context(opt_level: int = 2, **options: Any) -> Iterator[None]:
    """Options of TVM's passes, without effect."""
    yield


@_shows('>>> tvm.register_func("tvm_callback_cuda_compile", lambda code: code)("source")', "'source'")
def register_func(name: Any, function: Any = None, override: bool = False) -> Any:
    """TVM's decorator of callbacks of its compiler for CUDA, which are not called.

    Raises
    ------
    NotImplementedError
        A function of another name, which a program would call.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        known = name if isinstance(name, str) else function.__name__
        if not known.startswith("tvm_callback_cuda"):
            raise NotImplementedError(
                f"register_func: {known}: programs cannot call functions of Python; compute it by te.compute"
            )
        return function

    function = name if callable(name) else function
    return register if function is None else register(function)


nd = SimpleNamespace(array=NDArray, empty=_empty, NDArray=NDArray, cpu=cpu, gpu=cuda, cuda=cuda)
testing = SimpleNamespace(
    assert_allclose=_assert_allclose, device_enabled=_device_enabled, requires_gpu=_requires_gpu,
    requires_cuda=_requires_gpu,
)  # fmt: skip
runtime = SimpleNamespace(convert=_convert)
transform = SimpleNamespace(PassContext=_pass_context)
tir = SimpleNamespace(
    all=te.all, any=te.any, const=te.const, if_then_else=te.if_then_else, Select=te.select, max=te.max, min=te.min,
    exp=te.exp, tanh=te.tanh, sigmoid=te.sigmoid, sqrt=te.sqrt, log=te.log, abs=te.abs,
)  # fmt: skip
