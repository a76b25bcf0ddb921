"""Device views: pointer, shape, strides and dtype of arrays on a CUDA device, without access to the elements.

A `DeviceView` supports what needs no element: basic indexing, transposition, broadcasting, and the question
whether two arrays share memory. These operations have numpy's names, also through numpy's own functions
(``__array_function__``), so that argument checks are written once for numpy arrays and for arrays on a device.
The class has no buffer and is no ndarray: every attempt to read or write elements on the host raises TypeError.

The adapters of the array libraries create device views, `_core` checks and reshapes them, and `_backends/cuda`
passes them to kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# An ndarray or a DeviceView. As a union it would need a cast in every executor, which takes one of the two.
Operand: TypeAlias = Any


class Origin(NamedTuple):
    """The array that a device view describes, or the owner of its memory, and where it is."""

    owner: Any
    library: Any  # interface.Library
    ordinal: int | None  # None: the array has no elements and belongs to no device
    stream: int | None  # the producer's stream, if readers have to wait for it


def _are_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], n_bytes: int) -> bool:
    """Whether elements are adjacent in memory; the axes are ordered from the innermost to the outermost."""
    if 0 in shape:
        return True
    for n, stride in zip(shape, strides):
        if n != 1 and stride != n_bytes:
            return False
        n_bytes *= n
    return True


class DeviceView:
    """Pointer, shape, strides in bytes and dtype of an array on a CUDA device; immutable."""

    __slots__ = ("dtype", "origin", "pointer", "shape", "strides", "writeable")
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    origin: Origin
    writeable: bool

    def __init__(
        self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any],
        origin: Origin, writeable: bool = True,
    ) -> None:  # fmt: skip
        # The setters of the slots take half the time of object.__setattr__, which frozen dataclasses call.
        _set_pointer(self, pointer)
        _set_shape(self, shape)
        _set_strides(self, strides)
        _set_dtype(self, dtype)
        _set_origin(self, origin)
        _set_writeable(self, writeable)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a {type(self).__name__} is immutable")

    # numpy's ufuncs refuse an operand whose class sets this to None.
    __array_ufunc__ = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def flags(self) -> DeviceView:
        """This view, whose attributes are those flags of `numpy.ndarray` that do not depend on the owner."""
        return self

    @property
    def aligned(self) -> bool:
        unit = self.dtype.alignment
        return 0 in self.shape or (
            self.pointer % unit == 0 and all(s % unit == 0 for n, s in zip(self.shape, self.strides) if n > 1)
        )

    @property
    def c_contiguous(self) -> bool:
        return _are_contiguous(self.shape[::-1], self.strides[::-1], self.itemsize)

    @property
    def f_contiguous(self) -> bool:
        return _are_contiguous(self.shape, self.strides, self.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> DeviceView:
        """Basic indexing; integers on all axes give a 0-d device view."""
        items = index if isinstance(index, tuple) else (index,)
        n_indexed = 0
        for item in items:
            if isinstance(item, (int, slice)) and not isinstance(item, bool):
                n_indexed += 1
            elif item is not None and item is not Ellipsis:
                raise TypeError(f"only integers and slices index an array of a device, got {index!r}")
        n_rest = self.ndim - n_indexed
        if n_rest < 0:
            raise IndexError(f"too many indices for an array of {self.ndim} axes: {index!r}")
        if Ellipsis not in items:
            items = (*items, ...)
        pointer, axis = self.pointer, 0
        shape, strides = list[int](), list[int]()
        for item in items:
            if item is None:
                shape.append(1)
                strides.append(0)
            elif item is Ellipsis:
                shape += self.shape[axis : axis + n_rest]
                strides += self.strides[axis : axis + n_rest]
                axis += n_rest
            else:
                n, stride = self.shape[axis], self.strides[axis]
                axis += 1
                if isinstance(item, slice):
                    start, stop, step = item.indices(n)
                    shape.append(len(range(start, stop, step)))
                    strides.append(stride * step)
                elif -n <= item < n:
                    start = item % n
                else:
                    raise IndexError(f"index {item} is out of bounds for axis {axis - 1} with size {n}")
                pointer += start * stride
        return DeviceView(pointer, tuple(shape), tuple(strides), self.dtype, self.origin, self.writeable)

    def transpose(self, *axes: Any) -> DeviceView:
        """Permute the axes; without arguments, reverse them."""
        order: Sequence[int] = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = order or range(self.ndim)[::-1]
        shape, strides = (tuple(values[axis] for axis in order) for values in (self.shape, self.strides))
        return DeviceView(self.pointer, shape, strides, self.dtype, self.origin, self.writeable)

    @property
    def T(self) -> DeviceView:
        return self.transpose()

    def broadcast_to(self, shape: tuple[int, ...]) -> DeviceView:
        """Repeat axes of size 1, as ``np.broadcast_to``; the result is read-only."""
        n_new = len(shape) - self.ndim
        if n_new < 0 or any(n not in (1, m) for n, m in zip(self.shape, shape[n_new:])):
            raise ValueError(f"shape {self.shape} does not broadcast to {shape}")
        strides = (0,) * n_new + tuple(0 if n == 1 else stride for n, stride in zip(self.shape, self.strides))
        return DeviceView(self.pointer, shape, strides, self.dtype, self.origin, False)

    @property
    def real(self) -> DeviceView:
        """The real parts; the array itself if it is not complex."""
        if self.dtype.kind != "c":
            return self
        dtype = np.dtype(f"f{self.itemsize // 2}")
        return DeviceView(self.pointer, self.shape, self.strides, dtype, self.origin, self.writeable)

    def view(self, dtype: Any) -> DeviceView:
        """The same elements as another dtype of equal size."""
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray):
            self._refuse(f"view({dtype.__name__})")
        dtype = np.dtype(dtype)
        if dtype.itemsize != self.itemsize or dtype.hasobject:
            raise TypeError(f"{self!r} cannot be viewed as dtype {dtype}, of another size")
        return DeviceView(self.pointer, self.shape, self.strides, dtype, self.origin, self.writeable)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        layout = _FUNCTIONS.get(function)
        if layout is None:
            self._refuse(f"numpy.{function.__name__}")
        return layout(*args, **keywords)

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith("__array"):
            self._refuse(name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _refuse(self, operation: str, *arguments: object, **keywords: object) -> NoReturn:
        raise TypeError(
            f"{operation} would read or write elements of {self!r}, which are in a CUDA device's memory; call the "
            "array's own library instead, or copy the array to the host with it"
        )

    def __repr__(self) -> str:
        return f"<{self.origin.library.name} of shape {self.shape} and dtype {self.dtype}>"


_set_dtype, _set_origin, _set_pointer, _set_shape, _set_strides, _set_writeable = (
    getattr(DeviceView, name).__set__ for name in DeviceView.__slots__
)

for _name in (
    "__array__", "__bool__", "__buffer__", "__complex__", "__contains__", "__copy__", "__deepcopy__",
    "__delitem__", "__eq__", "__float__", "__index__", "__int__", "__iter__", "__ne__", "__reduce__",
    "__reduce_ex__", "__setitem__",
):  # fmt: skip
    setattr(DeviceView, _name, functools.partialmethod(DeviceView._refuse, _name))


def user_array(array: Operand) -> Any:
    """Return the user's array that a device view describes; other arrays are returned unchanged."""
    return array.origin.owner if isinstance(array, DeviceView) else array


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides, in bytes, of an array of this shape in C order."""
    strides = list[int]()
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(n, 1)
    return tuple(reversed(strides))


def _may_share_memory(a: Any, b: Any, max_work: int | None = None) -> bool:
    if not (isinstance(a, DeviceView) and isinstance(b, DeviceView)) or 0 in a.shape or 0 in b.shape:
        return False  # calls on a device take only numbers from the host, and do not write to them
    (a_begin, a_end), (b_begin, b_end) = _byte_bounds(a), _byte_bounds(b)
    return a_begin < b_end and b_begin < a_end


def _byte_bounds(view: DeviceView) -> tuple[int, int]:
    begin = end = view.pointer
    for n, stride in zip(view.shape, view.strides):
        if stride > 0:
            end += (n - 1) * stride
        else:
            begin += (n - 1) * stride
    return begin, end + view.itemsize


def _shares_memory(a: Any, b: Any, max_work: int | None = None) -> bool:
    # The stubs know only the two named values of max_work.
    return _may_share_memory(a, b) and np.shares_memory(_extent(a), _extent(b), max_work)  # type: ignore[arg-type]


def _extent(view: DeviceView) -> Array:
    """Return the memory for numpy's solver for shared memory, which reads no element."""
    interface = {
        "version": 3, "data": (view.pointer, True), "typestr": f"|V{view.itemsize}", "shape": view.shape,
        "strides": view.strides,
    }  # fmt: skip
    return np.asarray(SimpleNamespace(__array_interface__=interface))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.broadcast_to: lambda array, shape: array.broadcast_to(tuple(shape)),
    np.may_share_memory: _may_share_memory,
    np.result_type: lambda *values: np.result_type(*(v.dtype if isinstance(v, DeviceView) else v for v in values)),
    np.shares_memory: _shares_memory,
}
