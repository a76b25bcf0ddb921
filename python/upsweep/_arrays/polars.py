"""Adapter of polars: Series. polars itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep._arrays.labels import Conversion, LabelledLibrary, Labels, Operands


class _Polars(LabelledLibrary):
    """A Series has a name and no index; null is a missing value, and NaN is a number."""

    name = "polars"
    extends = True

    def values(self, value: Any, name: str, conversion: Conversion) -> Any:
        polars = sys.modules["polars"]
        if not isinstance(value, polars.Series):
            raise TypeError(
                f"{name}: expected a Series, got a {type(value).__qualname__}; pass a column, frame['column'], or "
                "scan each: frame.select(polars.all().map_batches(function))"
            )
        if not conversion.missing and value.null_count():
            raise ValueError(
                f"{name}: has missing values (null); leave them out, {name}.drop_nulls(), or fill them, e.g. "
                f"{name}.fill_null({False if value.dtype == polars.Boolean else 0})"
            )
        dtype = value.dtype
        is_number = dtype == polars.Boolean or (dtype.is_numeric() and not dtype.is_decimal())
        array = value.to_numpy() if is_number or (conversion.dates and dtype.is_temporal()) else None
        if array is None or array.dtype.kind not in conversion.kinds:
            raise TypeError(f"{name}: expected numbers, got dtype {dtype}; convert it, e.g. to polars.Float64")
        return array

    def unwrap(self, operands: Operands, axis: Any) -> Labels:
        polars = sys.modules["polars"]
        named = {**operands.steps, **operands.states}
        arrays = {name: self.values(x, name, operands.conversion) for name, x in named.items() if self.has(x)}
        lead = named[operands.lead]
        has_nulls = operands.conversion.missing and lead.null_count() > 0

        def wrap(y: Any) -> Any:
            if y.dtype.kind not in "biuf":
                raise TypeError(
                    f"{operands.lead}: a Series has no dtype for the result's {y.dtype}; pass "
                    f"{operands.lead}.to_numpy()"
                )
            return polars.Series(lead.name, y, nan_to_null=has_nulls)

        return Labels({**named, **arrays}, lead.shape, axis, wrap, lambda final: np.asarray(final)[()])


POLARS = _Polars()
