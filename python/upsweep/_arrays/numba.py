"""Adapter of numba.cuda: allocates with numba; streams are those of ``__cuda_array_interface__``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from upsweep._arrays.interface import Library

__all__ = ["NUMBA"]


class _Numba(Library):
    allocates = True

    def new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any] | str, ordinal: int, stream: int,
        order: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        cuda = importlib.import_module("numba.cuda")
        with cuda.gpus[ordinal]:
            bound = cuda.external_stream(stream) if stream else 0
            return cuda.device_array(shape, dtype, stream=bound)


NUMBA = _Numba("numba.cuda device array")
