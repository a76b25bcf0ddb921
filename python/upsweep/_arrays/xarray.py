"""Adapter of xarray: DataArrays, whatever array they hold. xarray itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep._arrays.dates import as_dates, has_zone
from upsweep._arrays.labels import Conversion, LabelledLibrary, Labels, Operands, raise_labels_differ


class _Xarray(LabelledLibrary):
    """Operands broadcast by the names of their dimensions. `axis` is a name, which only one dimension can omit."""

    name = "xarray"
    wraps_any = True

    def values(self, value: Any, name: str, conversion: Conversion) -> Any:
        if not isinstance(value, sys.modules["xarray"].DataArray):
            raise TypeError(
                f"{name}: expected a DataArray, got a Dataset; pass one variable, {name}['variable'], or scan "
                f"each: {name}.map(function, axis=dimension)"
            )
        return as_dates(value.data, name) if has_zone(value.dtype) else value.data

    def data(self, operands: Operands, axis: Any, is_scan: bool) -> tuple[dict[str, Any], Any]:
        named = {name: value for name, value in operands.steps.items() if self.has(value)}
        states = {name: value for name, value in operands.states.items() if self.has(value)}
        for name, value in {**named, **states}.items():
            self.values(value, name, operands.conversion)
        self.check_labels(named)
        arrays, dims = {}, next((value.dims for value in named.values()), ())
        for name, value in named.items():
            # Weights of several sums have one more dimension. Operands of a scan would broadcast by position.
            if not set(dims) <= set(value.dims) or (is_scan and len(dims) < value.ndim):
                first = next(iter(named))
                raise ValueError(
                    f"{name}: expected the dimensions {dims} of {first}, got {value.dims}; match them, "
                    f"{name}.rename or {name}.broadcast_like({first}), or go by position with {name}.to_numpy()"
                )
            arrays[name] = self.values(value.transpose(*dims, ...), name, operands.conversion)
        for name, value in states.items():
            arrays[name] = value.transpose(*(dim for dim in dims if dim in value.dims), ...).data
        return arrays, _to_axis(axis, dims) if isinstance(axis, str) and not is_scan else axis

    def check_labels(self, named: dict[str, Any]) -> None:
        first, lead = next(iter(named.items()), ("", None))
        for name, value in named.items():
            _check_labels(sys.modules["xarray"], name, value, first, lead)

    def check_times(self, x: Any, times: Any, axis: int) -> None:
        if times.dims != x.dims[axis : axis + 1]:
            raise ValueError(f"times: expected the dimension {x.dims[axis]!r} of the axis, got {times.dims}")
        self.check_labels({"x": x, "times": times})

    def unwrap(self, operands: Operands, axis: Any) -> Labels:
        xarray, steps = sys.modules["xarray"], operands.steps
        named = {name: value for name, value in steps.items() if self.has(value)}
        for name, value in named.items():
            self.values(value, name, operands.conversion)
        lead = named.pop(operands.lead)
        named = {operands.lead: lead, **named}
        template = lead
        if len(named) > 1:
            for name, value in named.items():
                _check_labels(xarray, name, value, operands.lead, lead)
            template = xarray.broadcast(*named.values())[0]  # views; with the coordinates of all
        dims = template.dims
        if dims != lead.dims and any(name not in named and np.ndim(value) for name, value in steps.items()):
            plain = next(name for name, value in steps.items() if name not in named and np.ndim(value))
            raise TypeError(
                f"{plain}: expected a DataArray, whose dimensions have names, beside {', '.join(named)}"
            )
        place = _to_axis(axis, dims)
        arrays = {name: _arranged(value, dims) for name, value in named.items()}
        state_dims = dims[:place] + dims[place + 1 :]
        for name, value in operands.states.items():
            arrays[name] = value
            if self.has(value):
                self.values(value, name, operands.conversion)
                if not set(value.dims) <= set(state_dims):
                    raise ValueError(f"{name}: expected the dimensions {state_dims} of a state, got {value.dims}")
                _check_labels(xarray, name, value, operands.lead, template)
                arrays[name] = _arranged(value, state_dims)

        def wrap_state(final: Any) -> Any:
            # A reduction of no step drops the dimension with its coordinates, also where there is no step.
            like = template.isel({dims[place]: slice(0)}).any(dims[place], keep_attrs=True)
            return like.copy(data=final)

        def wrap(y: Any) -> Any:
            return template.copy(data=y, deep=False)

        return Labels({**steps, **arrays}, template.shape, place, wrap, wrap_state)


def _to_axis(axis: Any, dims: tuple[Any, ...]) -> int:
    """Return the place of a dimension that is given by its name, or by its number as arrays' axes are."""
    if axis in dims:
        return dims.index(axis)
    if axis is None and len(dims) == 1:
        return 0
    if not isinstance(axis, (int, np.integer)) or not -len(dims) <= axis < len(dims):
        raise ValueError(f"axis: expected the name of a dimension, one of {dims}, got {axis!r}")
    return int(axis) % len(dims)


def _check_labels(xarray: Any, name: str, value: Any, lead_name: str, lead: Any) -> None:
    try:
        xarray.align(value, lead, join="exact", copy=False)
    except ValueError:
        raise_labels_differ(name, lead_name, f"xarray.align({lead_name}, {name}, join='inner')")


def _arranged(value: Any, dims: tuple[Any, ...]) -> Any:
    """Return the data with the dimensions in this order, and of length 1 where there is none."""
    if value.dims == dims:
        return value.data
    own = [dim for dim in dims if dim in value.dims]
    return value.transpose(*own).data[tuple(slice(None) if dim in own else np.newaxis for dim in dims)]


XARRAY = _Xarray()
