"""Short path of scans and counts of cupy arrays: compiled calls without device views and contexts.

The executors call `register_short_path` after a call of the general path. From then on the public functions call
`_calls` at once, as they do for CUDA tensors, and go the general path where it returns None. Dtypes are those
whose results numpy and the kernels agree on.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep._arrays.cupy import CUPY
from upsweep._arrays.dispatch import plain_counts, plain_scans
from upsweep._backends.cuda import abi, library
from upsweep._backends.cuda._calls import CupyCalls
from upsweep._core.bincount import CHECK_ABOVE


def register_short_path(result: object) -> None:
    """Let later calls with cupy arrays take the short path, if the result of this one is such an array."""
    cupy = sys.modules.get("cupy")
    if cupy is None or type(result) is not cupy.ndarray or cupy.ndarray in plain_scans:
        return
    device_id = cupy.cuda.device.get_device_id

    def empty(shape: tuple[int, ...], strides: object, dtype: np.dtype[Any], like: Any) -> Any:
        return CUPY.new(shape, dtype, like.device.id, 0)

    def empty_like(x: Any, dtype: np.dtype[Any]) -> Any:
        with CUPY.on(x.device.id):
            return cupy.empty_like(x, dtype)

    def stream(device: int) -> int:
        return int(cupy.cuda.get_current_stream().ptr) if device == device_id() else CUPY.stream(device)

    calls = CupyCalls(
        load=library.load, check_device=library.check_device,
        exchange=getattr(cupy.ndarray, "__dlpack_c_exchange_api__", None),
        dtypes={np.dtype(name): abi.DTYPES[name] for name in ("int32", "int64", "float32", "float64")},
        plain_types=frozenset((cupy.ndarray, type(None))), watchers=(), forward_ad=None, is_grad_enabled=None,
        is_neg=None, stream=stream, workspace=lambda n_bytes, device: CUPY.workspace(n_bytes, device.id),
        empty_like=empty_like, empty=empty,
        empty_here=lambda shape, strides, dtype: cupy.ndarray(shape, dtype), increment_version=lambda arrays: None,
    )  # fmt: skip

    def scan(
        x: Any, gates: Any, gamma: float, axis: Any, reverse: bool, flush: bool, out: Any, n_threads: int | None,
        initial: Any, exclusive: bool, return_final: bool,
    ) -> Any:  # fmt: skip
        if n_threads is not None:
            return None
        return calls.scan_plain(
            x, gates, gamma, axis, reverse, flush, out, None, initial, exclusive, return_final
        )  # fmt: skip

    def count(x: Any, weights: Any, minlength: Any, length: Any, invalid: Any, deterministic: bool) -> Any:
        if weights is not None and not (type(weights) is cupy.ndarray and weights.dtype == np.float64):
            return None  # sums of float32 are float64
        return calls.count(x, weights, minlength, length, invalid, deterministic, CHECK_ABOVE)

    plain_scans[cupy.ndarray] = scan
    plain_counts[cupy.ndarray] = count
