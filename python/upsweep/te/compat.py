"""Names that TVM's programs use besides `te`: ``from upsweep.te import compat as tvm``.

An array is in the computer's memory, as numpy's, or on a CUDA device, where built functions use it in place.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from upsweep import _backends, te
from upsweep._utils.examples import with_example
from upsweep.te import build, lower

__all__ = ["Device", "NDArray", "build", "cpu", "cuda", "gpu", "lower", "nd", "te", "testing", "tir"]

# Programs older than `tvm.te` use the same names of `tvm` itself.
__all__ += list(te.__all__)
globals().update({name: getattr(te, name) for name in te.__all__})


_shows = functools.partial(with_example, ">>> from upsweep.te import compat as tvm")


@_shows('>>> tvm.Device("cpu").exist', "True")
class Device:
    """A device that holds arrays: the CPU, or a CUDA device."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind, self.index = kind, index

    @property
    def exist(self) -> bool:
        """Whether the device is available."""
        return self.kind == "cpu" or _backends.cuda_memory.why_no_device(self.index) is None

    @_shows(">>> tvm.cpu().sync()")
    def sync(self) -> None:
        """Wait for the work on the device; calls on the CPU are finished when they return."""
        if self.kind != "cpu":
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


@_shows(">>> tvm.nd.array([1.0, 2.0]).dtype", "'float64'")
class NDArray:
    """An array under TVM's names; compiled functions fill it in place."""

    def __init__(self, values: Any, device: Device | None = None) -> None:
        self.device = device or cpu()
        host = np.array(values.numpy() if isinstance(values, NDArray) else values)
        if self.device.kind == "cpu":
            self.values: Any = host
            return
        missing = _backends.cuda_memory.why_no_device(self.device.index)
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


nd = SimpleNamespace(array=NDArray, empty=_empty, NDArray=NDArray, cpu=cpu, gpu=cuda, cuda=cuda)
testing = SimpleNamespace(assert_allclose=_assert_allclose)
tir = SimpleNamespace(
    all=te.all, any=te.any, if_then_else=te.if_then_else, Select=te.select, max=te.max, min=te.min, exp=te.exp,
    tanh=te.tanh, sigmoid=te.sigmoid, sqrt=te.sqrt, log=te.log, abs=te.abs,
)  # fmt: skip
