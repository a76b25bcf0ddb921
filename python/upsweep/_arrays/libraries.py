"""Arrays of other libraries: which they are, where they lie, and how to make more of them.

Arrays of a CUDA device that a pointer describes (cupy's, numba's, whatever has ``__cuda_array_interface__``) are
read where they lie; :class:`DeviceView` is their shape and strides as numpy sees them. `_lent` has those that only
DLPack describes. No library is imported to find out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PLAIN",
    "Placement",
    "Library",
    "DeviceView",
    "address_on_device",
    "common_placement",
    "device_layout_key",
    "host_layout_key",
    "name_of",
    "library_of",
    "on_device",
    "type_name",
    "view",
    "view_cupy",
    "view_tensor",
]

Array = NDArray[Any]

# What most arguments are; everything else is looked at more closely.
PLAIN = frozenset((type(None), bool, int, float, complex, str, list, tuple, np.ndarray))


def type_name(value: object) -> str:
    """The value's type as users know it: cupy.ndarray, numba's DeviceNDArray."""
    module = type(value).__module__
    library = module.partition(".")[0]
    return type(value).__qualname__ if library == "builtins" else f"{library}.{type(value).__qualname__}"


# ---- arrays of a device as numpy sees them ---------------------------------------------------------------------


class Origin(NamedTuple):
    """What a view of an array on a device keeps beside shape and strides."""

    owner: Any
    library: Library
    ordinal: int | None  # None: of an array without elements, which is nowhere
    stream: int | None  # of its producer, if a reader has to come after what is enqueued there


class DeviceView(np.ndarray[Any, np.dtype[Any]]):
    """Shape, strides and dtype of an array on a CUDA device.

    Broadcasting, slicing and comparing addresses never read memory, and work. What would read or write it raises:
    the address means nothing to the host.
    """

    origin: Origin

    # numpy's word for "takes part in no ufunc"; the stubs know only a method of that name.
    __array_ufunc__ = None  # type: ignore[assignment]

    def __array_finalize__(self, obj: Any) -> None:
        origin = getattr(obj, "origin", None)
        if origin is not None:
            self.origin = origin

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.broadcast_to:
            kwargs = {**kwargs, "subok": True}  # else the result could be read
        elif func not in (np.may_share_memory, np.shares_memory, np.result_type):
            raise TypeError(f"numpy.{func.__name__} would read an array of a device: {self!r}")
        return super().__array_function__(func, types, args, kwargs)

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if not all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items):
            raise TypeError(f"only integers and slices index an array of a device, got {index!r}")
        if not any(item is Ellipsis for item in items):
            items = (*items, ...)  # an element would be read
        return super().__getitem__(items)

    def __repr__(self) -> str:
        return f"<{self.origin.library.name} of shape {self.shape} and dtype {self.dtype}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Its name, which numpy puts together each time that it is asked: some microseconds."""
    return dtype.name


def _refused(name: str) -> Callable[..., Any]:
    def method(self: DeviceView, *args: Any, **keywords: Any) -> Any:
        raise TypeError(f"{name} would read or write an array of a device: {self!r}")

    return method


_VIEWING = {"view", "transpose", "squeeze", "swapaxes", "setflags"}
_READING = {
    "flat", "__setitem__", "__delitem__", "__contains__", "__bool__", "__int__", "__float__", "__complex__",
    "__index__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__dlpack__", "__array__",
}  # fmt: skip
for _name in dir(np.ndarray):
    _is_method = not _name.startswith("_") and callable(getattr(np.ndarray, _name))
    if (_is_method and _name not in _VIEWING) or _name in _READING:
        setattr(DeviceView, _name, _refused(_name))


class _Memory:
    """A place in memory for numpy to look at, as elements of no particular type."""

    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int, ro: bool):
        self.__array_interface__ = {
            "version": 3, "data": (pointer, ro), "typestr": f"|V{item}", "shape": shape, "strides": strides,
        }  # fmt: skip


def _on_device(
    pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any], origin: Origin,
    read_only: bool = False,
) -> DeviceView:  # fmt: skip
    # numpy would put memory of its own in the place of a null pointer, which only arrays without elements have.
    memory = np.asarray(_Memory(pointer or dtype.itemsize, shape, strides, dtype.itemsize, read_only))
    array = memory.view(dtype, DeviceView)
    array.origin = origin
    return array


def _device_of(pointer: int) -> int:
    """The ordinal of the device that this memory belongs to, by the driver's own account."""
    ordinal = ctypes.c_int()
    attribute = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"an array says that it is on a CUDA device, but there is no driver: {error}") from None
    status = driver.cuPointerGetAttribute(ctypes.byref(ordinal), attribute, ctypes.c_uint64(pointer))
    if status:
        raise ValueError(f"the CUDA driver knows no memory at {pointer:#x} (error {status})")
    return ordinal.value


# ---- libraries -------------------------------------------------------------------------------------------------


class Library:
    """What a scan needs of a library whose arrays lie on devices.

    This one is of arrays that have ``__cuda_array_interface__`` and are otherwise unknown.
    """

    allocates = False
    computes = False  # whether arrays have arithmetic operators
    transposes = False  # whether results are laid out in any order of their axes
    has_current_stream = False  # to which its arrays belong, whoever made them

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def numpy_like(self) -> Any:
        """The module whose functions of its arrays are numpy's by name and meaning; None where there is none."""
        return None

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[Any]:
        """While it is entered, what the library makes is made on this device."""
        return contextlib.nullcontext()

    def view(self, value: Any, name: str) -> DeviceView:
        """The array, as version 3 of the interface describes it."""
        told = value.__cuda_array_interface__
        if told.get("mask") is not None:
            raise TypeError(f"{name}: arrays with a mask are not supported")
        try:
            dtype = np.dtype(told["typestr"])
        except TypeError:
            raise TypeError(f"{name}: its typestr {told['typestr']!r} names no dtype") from None
        if not dtype.isnative:
            raise TypeError(f"{name}: expected native byte order on a device, got dtype {dtype}")
        pointer, read_only = told["data"]
        shape, strides = tuple(told["shape"]), told.get("strides")
        stream = told.get("stream")
        if stream == 0:
            raise ValueError(f"{name}: its stream is 0, which the CUDA array interface leaves without meaning")
        if stream == 1:
            stream = 0  # the legacy default stream, as the runtime itself calls it
        ordinal = None
        if 0 not in shape:
            if not pointer:
                raise ValueError(f"{name}: its pointer is null")
            ordinal = _device_of(pointer)
        strides = None if strides is None else tuple(strides)
        origin = Origin(value, self, ordinal, stream)
        return _on_device(pointer or 0, shape, strides, dtype, origin, bool(read_only))

    def stream(self, ordinal: int) -> int | None:
        """The caller's current stream; None where the library has no such thing."""
        return None

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> DeviceView:  # fmt: skip
        """`new`, as numpy sees it."""
        return self.view(self.new(shape, dtype, ordinal, stream, order), "out")

    def new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any] | str, ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        """An uninitialised array; `order` has its axes from the outermost in memory to the innermost."""
        raise TypeError(
            f"out: has to be given, and what goes beyond it cannot be had (return_final, carries), since upsweep "
            f"does not know how to allocate a {self.name}"
        )

    def address(self, array: Any) -> int:
        """Where the first element of an array of the library is."""
        return int(array.__cuda_array_interface__["data"][0])

    def kind(self, array: Any) -> Hashable:
        """Equal for arrays that differ in nothing but where they are; None: each has to be looked at.

        Misaligned arrays differ from others.
        """
        return None

    def full(self, number: Array, ordinal: int) -> DeviceView | None:
        """An array of one element; None where it has to be sent."""
        return None

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object] | None:
        """Memory on the current stream, and what keeps it; None: the driver's."""
        return None

    def sent(self, array: Array, ordinal: int) -> DeviceView | None:
        """A short array of the host on the device, in stream order and without waiting; None: not like that."""
        return None

    def memory(self, ordinal: int) -> int | None:
        """The bytes of memory that the device has, if the library knows."""
        return None

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        """Arrays of the user's along an axis of their own."""
        raise TypeError(f"upsweep does not know how to put several of a {self.name} into one")

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        """The array that `array` is the whole of, in another dtype."""
        raise TypeError(f"{name}: a {self.name} of dtype {array.dtype} has to be cast to {dtype} beforehand")


class _Cupy(Library):
    allocates = computes = transposes = has_current_stream = True

    def __init__(self) -> None:
        super().__init__("cupy.ndarray")

    @property
    def cupy(self) -> Any:
        return sys.modules["cupy"]

    numpy_like = cupy

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[Any]:
        return self.cupy.cuda.Device(ordinal)

    def view(self, value: Any, name: str) -> DeviceView:
        # cupy's arrays belong to its current stream; no producer's stream has to be asked for.
        origin = Origin(value, self, value.device.id, None)
        return _on_device(value.data.ptr, value.shape, value.strides, value.dtype, origin)

    def stream(self, ordinal: int) -> int:
        with self.on(ordinal):
            return int(self.cupy.cuda.get_current_stream().ptr)

    def new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any] | str, ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        with self.on(ordinal):
            if order is None or order == tuple(range(len(shape))):
                return self.cupy.empty(shape, dtype)
            memory = self.cupy.empty(tuple(shape[axis] for axis in order), dtype)
            return memory.transpose(tuple(map(order.index, range(len(shape)))))

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def kind(self, array: Any) -> Hashable:
        dtype = array.dtype
        return array.shape, array.strides, dtype, array.device.id, array.data.ptr % dtype.itemsize

    def full(self, number: Array, ordinal: int) -> DeviceView:
        with self.on(ordinal):  # by a kernel: a copy from the host cannot be captured in a graph
            return self.view(self.cupy.full((), number[()], number.dtype), "number")

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object]:
        with self.on(ordinal):
            memory = self.cupy.empty(n_bytes, np.uint8)
        return int(memory.data.ptr), memory

    def sent(self, array: Array, ordinal: int) -> DeviceView:
        with self.on(ordinal):
            return self.view(self.cupy.asarray(array), "array")

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        with self.cupy.cuda.Device(arrays[0].device.id):
            return self.cupy.stack(arrays, axis)

    def memory(self, ordinal: int) -> int:
        return int(self.cupy.cuda.Device(ordinal).mem_info[1])

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        with self.cupy.cuda.Device(array.origin.ordinal):
            return self.view(array.origin.owner.astype(dtype), name)


class _Numba(Library):
    """numba's device arrays: allocated by numba, ordered by the interface's streams."""

    allocates = True

    def __init__(self) -> None:
        super().__init__("numba.cuda device array")

    def new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any] | str, ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        cuda = importlib.import_module("numba.cuda")
        with cuda.gpus[ordinal]:
            bound = cuda.external_stream(stream) if stream else 0
            return cuda.device_array(shape, dtype, stream=bound)


class _TorchMemory(Library):
    """torch's memory and streams for arrays of a library that lends them; all rules are numpy's."""

    allocates = computes = has_current_stream = True

    def __init__(self) -> None:
        super().__init__("array")
        # The same thresholds are sent on every call with the same bins.
        self._pinned = functools.lru_cache(maxsize=64)(self._pin)
        self._captured: list[Any] = []

    @property
    def torch(self) -> Any:
        return sys.modules["torch"]

    def view(self, value: Any, name: str) -> DeviceView:
        text = str(value.dtype).removeprefix("torch.")
        dtype = _bfloat16(name) if text == "bfloat16" else np.dtype(text)
        strides = tuple(stride * value.element_size() for stride in value.stride())
        origin = Origin(value, self, value.get_device(), None)
        return _on_device(value.data_ptr(), tuple(value.shape), strides, dtype, origin)

    def stream(self, ordinal: int) -> int:
        return int(self.torch._C._cuda_getCurrentRawStream(ordinal))

    def _dtype(self, dtype: np.dtype[Any] | str) -> Any:
        return getattr(self.torch, dtype if isinstance(dtype, str) else name_of(dtype))

    def new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any] | str, ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=f"cuda:{ordinal}")

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def full(self, number: Array, ordinal: int) -> DeviceView:
        memory = self.torch.full((), number.item(), dtype=self._dtype(number.dtype), device=f"cuda:{ordinal}")
        return self.view(memory, "number")

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object]:
        memory = self.torch.empty(n_bytes, dtype=self.torch.uint8, device=f"cuda:{ordinal}")
        return int(memory.data_ptr()), memory

    def sent(self, array: Array, ordinal: int) -> DeviceView:
        if not array.size:
            return self.empty(array.shape, array.dtype, ordinal, 0)
        memory = self._pinned(array.tobytes())
        if self.torch.cuda.is_current_stream_capturing():
            self._captured.append(memory)  # a graph reads it again whenever it is replayed
        there = memory.to(f"cuda:{ordinal}", non_blocking=True)
        there = there.view(self._dtype(array.dtype)).reshape(array.shape)
        return self.view(there, "array")

    def _pin(self, data: bytes) -> Any:
        """The elements in memory that is copied without waiting, as bytes."""
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).pin_memory()

    def memory(self, ordinal: int) -> int:
        return int(self.torch.cuda.get_device_properties(ordinal).total_memory)

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        return self.view(array.origin.owner.to(self._dtype(dtype)), name)


def _bfloat16(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"{name}: bfloat16 needs the package ml_dtypes") from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


_cupy, _numba, _torch_memory = _Cupy(), _Numba(), _TorchMemory()
view_cupy, view_tensor = _cupy.view, _torch_memory.view


def library_of(value: object) -> Library | None:
    """The library of an array that lies on a device; None for everything else."""
    if type(value) in PLAIN or isinstance(value, (np.ndarray, np.generic)):
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _cupy
    if not hasattr(value, "__cuda_array_interface__"):
        return None
    return _numba if type(value).__module__.startswith(("numba.", "numba_cuda.")) else Library(type_name(value))


_ALIGNED_OR_WRITEABLE = 0x100 | 0x400  # of numpy's flags of an array


def host_layout_key(value: Any) -> Hashable:
    """Equal for arrays of numpy that differ in nothing but where they are; None for what is none."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype, value.flags.num & _ALIGNED_OR_WRITEABLE
    kind: Any = type(value)
    return kind if isinstance(value, np.generic) else None


def device_layout_key(value: Any) -> Hashable:
    """`Library.kind` of an array that lies on a device, or of a view of one; None for what is none."""
    if type(value) is DeviceView:
        library, ordinal = value.origin.library, value.origin.ordinal
        if not library.has_current_stream:
            return None
        return value.shape, value.strides, value.dtype, library, ordinal
    library_or_none = library_of(value)
    return None if library_or_none is None else library_or_none.kind(value)


def address_on_device(value: Any, library: Library) -> int:
    """Where the first element of such an array is."""
    if type(value) is DeviceView:
        return int(value.__array_interface__["data"][0])
    return library.address(value)


def view(value: object, name: str) -> DeviceView | None:
    """The array as numpy sees it, if it lies on a device."""
    if type(value) in PLAIN:
        return None
    if isinstance(value, DeviceView):
        return value
    library = library_of(value)
    if library is None:
        return None
    array = library.view(value, name)
    if not array.flags.aligned:  # a load of such an element would end all work on the device
        raise ValueError(
            f"{name}: not all of its elements are at multiples of their size in memory, as a device needs them: "
            f"dtype {array.dtype}, strides of {array.strides} bytes"
        )
    return array


class Placement(NamedTuple):
    """Where a call's arrays are: whose they are, on which device."""

    library: Library
    ordinal: int


def common_placement(named: dict[str, Array | None]) -> Placement | None:
    """The one place where all of these are; None for the host. Numbers (arrays of no axes) are everywhere.

    Raises
    ------
    TypeError
        Arrays of two libraries, or of the host and of a device.
    ValueError
        Arrays of two devices.
    """
    for array in named.values():
        if isinstance(array, DeviceView):
            break
    else:
        return None
    there = {name: array.origin for name, array in named.items() if isinstance(array, DeviceView)}
    # What has nothing but an interface goes with any library.
    chosen = next((name for name, held in there.items() if held.library.allocates), next(iter(there)))
    library = there[chosen].library
    for name, array in named.items():
        if array is None or name == chosen:
            continue
        if name not in there:
            if array.ndim:
                raise TypeError(
                    f"{name}: is an array in the host's memory, while {chosen} is a {library.name} on a CUDA "
                    "device; convert it explicitly"
                )
        elif there[name].library is not library and there[name].library.allocates:
            raise TypeError(
                f"{name}: expected a {library.name}, as {chosen} is one, got a {there[name].library.name}"
            )
    placed = {name: held.ordinal for name, held in there.items() if held.ordinal is not None}
    for name, ordinal in placed.items():
        first, expected = next(iter(placed.items()))
        if ordinal != expected:
            raise ValueError(f"{name}: is on CUDA device {ordinal}, {first} on CUDA device {expected}")
    return Placement(library, next(iter(placed.values()), 0))


def on_device(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], placement: Placement, owner: object
) -> DeviceView:  # fmt: skip
    """Memory of a device as an array in C order, which keeps its owner."""
    return _on_device(pointer, shape, None, dtype, Origin(owner, placement.library, placement.ordinal, None))
