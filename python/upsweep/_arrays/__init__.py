"""Adapters of array libraries: recognise an array, describe it, allocate results, and return the user's type.

::

    user's array --+-- numpy, lists, numbers ------------> ndarray         arguments.as_array
                   +-- cupy, numba, any interface --------> DeviceView     arguments.as_operand, device_view
                   +-- DLPack only (jax, ...) -----------> one of the two  dlpack.call_via_dlpack
                   +-- pandas, xarray, polars -----------> their data      labelled.without_labels
                   +-- torch, dask -----------------------> their handlers  dispatch.handlers

    view_tensor a CUDA tensor -> DeviceView, for the handlers of histograms, user-defined scans and loops
    libraries   which library an array belongs to, the one device of a call; broadcasting, stacking and copying in
                the user's own library
    interface   `Library`, the base class of the adapters; numba's. `cupy` and `torch` override what their library
                can do
    labels      `LabelledLibrary`, the base class of the adapters `pandas`, `xarray` and `polars`
    dtypes      the argument `dtype`; dtypes of results, accumulators and states
    static_types  types of the public signatures, for type checkers alone

`_core` and all layers above import names from this package. Nothing here imports a backend or an array library
other than numpy. Start reading at `arguments.as_operand`.
"""

from __future__ import annotations

from upsweep._arrays.arguments import (
    as_array,
    as_ndarray,
    as_number,
    as_operand,
    cast,
    check_device,
    refuse_device,
    refuse_list_of_tensors,
)
from upsweep._arrays.device_view import Array, DeviceView, Operand, contiguous_strides, user_array
from upsweep._arrays.dlpack import any_dlpack_only, call_via_dlpack
from upsweep._arrays.dtypes import (
    accumulator_dtype,
    as_dtype,
    can_hold,
    complex_dtype,
    inexact_dtype,
    is_bfloat16,
    name_of,
    result_dtype,
    state_dtype,
)  # fmt: skip
from upsweep._arrays.libraries import (
    Axis,
    Placement,
    address_on_device,
    any_dask,
    any_labelled,
    any_on_device,
    any_torch,
    broadcast_together,
    calculates,
    common_placement,
    copied,
    copy_to_device_of,
    device_layout_key,
    host_layout_key,
    namespace,
    on_device,
    on_device_of,
    refuse_labels,
    stacked,
    type_name,
)  # fmt: skip
from upsweep._arrays.torch import TORCH

__all__ = [
    "Array", "Axis", "DeviceView", "Operand", "Placement", "accumulator_dtype", "address_on_device",
    "any_dask", "any_dlpack_only", "any_labelled", "any_on_device", "any_torch", "as_array", "as_dtype",
    "as_ndarray", "as_number", "as_operand", "broadcast_together", "calculates", "call_via_dlpack", "can_hold",
    "cast", "check_device", "common_placement", "complex_dtype", "contiguous_strides", "copied",
    "copy_to_device_of", "device_layout_key", "host_layout_key", "inexact_dtype", "is_bfloat16",
    "name_of", "namespace", "on_device", "on_device_of", "refuse_device", "refuse_labels",
    "refuse_list_of_tensors", "result_dtype", "stacked", "state_dtype", "type_name", "user_array", "view_tensor",
]  # fmt: skip

view_tensor = TORCH.view
