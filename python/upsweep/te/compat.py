"""What TVM's programs touch besides `te`, under TVM's names: ``from upsweep.te import compat as tvm``.

Arrays are numpy's, in the computer's memory; a device is what they are asked to lie on.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from upsweep import te
from upsweep.te import build, lower

__all__ = ["Device", "NDArray", "build", "cpu", "cuda", "gpu", "lower", "nd", "te", "testing", "tir"]

# Programs older than `tvm.te` use the same names of `tvm` itself.
__all__ += list(te.__all__)
globals().update({name: getattr(te, name) for name in te.__all__})


class Device:
    """Where an array lies."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind, self.index = kind, index

    @property
    def exist(self) -> bool:
        """Whether compiled functions can take arrays there."""
        return self.kind == "cpu"

    def sync(self) -> None:
        """Wait for what was started there: nothing, since calls return when they are done."""

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


def cpu(index: int = 0) -> Device:
    """The computer's memory."""
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """A CUDA device."""
    return Device("cuda", index)


gpu = cuda


class NDArray:
    """An array of numpy under TVM's names; compiled functions fill it in place."""

    def __init__(self, values: Any, device: Device | None = None) -> None:
        device = device or cpu()
        if not device.exist:
            raise NotImplementedError(f"device: arrays lie in the computer's memory, tvm.cpu(0); got {device!r}")
        self.values, self.device = np.array(values), device

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return self.values.shape

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return self.values.dtype.name

    def numpy(self) -> Any:
        """A copy as an array of numpy."""
        return self.values.copy()

    asnumpy = numpy

    def copyfrom(self, values: Any) -> NDArray:
        """Take the values of another array."""
        self.values[...] = values.values if isinstance(values, NDArray) else values
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)

    def __repr__(self) -> str:
        return f"<compat.NDArray {self.device!r}>\n{self.values!r}"


def _array(values: Any, device: Device | None = None) -> NDArray:
    """A copy of an array."""
    return NDArray(values, device)


def _empty(shape: Any, dtype: str = "float32", device: Device | None = None) -> NDArray:
    """A new array of zeros."""
    return NDArray(np.zeros(shape, dtype), device)


def _assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raise AssertionError unless |actual - desired| <= atol + rtol * |desired|, and the shapes agree."""
    actual, desired = np.asanyarray(actual), np.asanyarray(desired)
    np.testing.assert_allclose(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol)


nd = SimpleNamespace(array=_array, empty=_empty, NDArray=NDArray, cpu=cpu, gpu=cuda, cuda=cuda)
testing = SimpleNamespace(assert_allclose=_assert_allclose)
tir = SimpleNamespace(
    all=te.all, any=te.any, if_then_else=te.if_then_else, Select=te.select, max=te.max, min=te.min, exp=te.exp,
    tanh=te.tanh, sigmoid=te.sigmoid, sqrt=te.sqrt, log=te.log, abs=te.abs,
)  # fmt: skip
