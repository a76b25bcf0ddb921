"""Adapter of pandas: Series and DataFrames. pandas itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep._arrays.dates import has_zone
from upsweep._arrays.labels import NUMBERS, Conversion, LabelledLibrary, Labels, Operands, raise_labels_differ
from upsweep._arrays.libraries import type_name

_AXES = {"index": 0, "rows": 0, "columns": 1}


class _Pandas(LabelledLibrary):
    """A DataFrame runs down its rows by default, as pandas' own functions do.

    Nullable and Arrow dtypes give nullable and Arrow dtypes.
    """

    name = "pandas"

    @property
    def pandas(self) -> Any:
        return sys.modules["pandas"]

    def values(self, value: Any, name: str, conversion: Conversion) -> Any:
        dtypes = self._dtypes(value)
        numbers: list[np.dtype[Any]] = []
        for n, dtype in enumerate(dtypes):
            number = _numpy_dtype(dtype)
            if number is None or number.kind not in conversion.kinds:
                if name == "reset" and str(dtype) == "object":
                    raise TypeError(
                        "reset: expected bool, it has dtype object, which missing flags give; use "
                        "shift(fill_value=False), or reset.fillna(False).astype(bool)"
                    )
                column = f"its column {value.columns[n]!r}" if value.ndim == 2 else "it"
                convert = "pandas.to_numeric or to_datetime" if conversion.dates else "pandas.to_numeric"
                other = f"pandas.factorize({name})[0] numbers its values"
                other = f"{name}.cat.codes are its numbers" if hasattr(dtype, "categories") else other
                other += ", upsweep.histogram counts dates" if number is not None and number.kind in "mM" else ""
                other = f"{name}.select_dtypes('number') leaves it out" if value.ndim == 2 else other
                raise TypeError(
                    f"{name}: expected numbers, {column} has dtype {dtype}; {convert} converts it, {other}"
                )
            numbers.append(number)
        if len({(number.kind in "mM" and number.kind, has_zone(d)) for d, number in zip(dtypes, numbers)}) > 1:
            kinds = ", ".join(dict.fromkeys(map(str, dtypes)))
            raise TypeError(
                f"{name}: expected columns of one kind, got {kinds}; pass some, {name}[[{value.columns[0]!r}]]"
            )
        common = np.result_type(*numbers) if numbers else np.dtype(np.float64)
        for n in (n for n, number in enumerate(numbers) if number.kind in "iu" and common.kind in "fc"):
            if conversion.exact:
                raise TypeError(
                    f"{name}: its columns of integers would become {common}, which may round them; pass dtype=, "
                    f"or sum each column: {name}.apply(upsweep.cumulative_sum)"
                )
            if numbers[n].itemsize == 8 and not value.iloc[:, n].between(-(2**53), 2**53).all():
                raise ValueError(
                    f"{name}: its column {value.columns[n]!r} has integers beyond 2**53, which {common}, the "
                    f"dtype that suits all columns, rounds; pass each by itself, or {name}.astype('{common}')"
                )
        if not (any(map(self._is_nullable, dtypes)) and value.isna().to_numpy().any()):
            return value.to_numpy(dtype=common)
        if not conversion.missing:
            as_nan = f"; in {name}.astype('float64') they are NaN" if name.startswith("xs") else ""
            raise ValueError(
                f"{name}: has missing values (pandas.NA); leave them out, {name}.dropna(), or fill them, e.g. "
                f"{name}.fillna({False if common.kind == 'b' else 0}){as_nan}"
            )
        return value.to_numpy(dtype=np.result_type(common, np.float32), na_value=np.nan)

    def check_labels(self, named: dict[str, Any]) -> None:
        first = next(iter(named), "")
        for name, value in named.items():
            lead = named[first]
            if not value.index.equals(getattr(lead, "index", None)):
                raise_labels_differ(name, first, f"{name}.reindex({first}.index)")
            if value.ndim == 2 == getattr(lead, "ndim", 0) and not value.columns.equals(lead.columns):
                raise_labels_differ(name, first, f"{name}.reindex({first}.columns, axis=1)")

    def check_times(self, x: Any, times: Any, axis: int) -> None:
        labels = "columns" if x.ndim == 2 and axis in (1, -1) else "index"
        if not times.index.equals(getattr(x, labels)):
            raise_labels_differ("times", "x", f"times.reindex(x.{labels})")

    def data(self, operands: Operands, axis: Any, is_scan: bool) -> tuple[dict[str, Any], Any]:
        return super().data(operands, _to_axis(axis), is_scan)

    def unwrap(self, operands: Operands, axis: Any) -> Labels:
        steps = operands.steps
        named = {name: value for name, value in steps.items() if self.has(value)}
        arrays = {name: self.values(value, name, operands.conversion) for name, value in named.items()}
        frames = [name for name, value in named.items() if value.ndim == 2]
        lead_name = operands.lead if named[operands.lead].ndim == 2 or not frames else frames[0]
        lead = named[lead_name]
        for name, value in named.items():
            if value.ndim == lead.ndim:
                same = value.index.equals(lead.index)
                if not (same and (value.ndim == 1 or value.columns.equals(lead.columns))):
                    raise_labels_differ(name, lead_name, f"{name}.reindex_like({lead_name})")
            elif self._is_of_rows(value, name, lead, lead_name):
                arrays[name] = arrays[name][:, np.newaxis]
        place = 0 if axis is None else _to_axis(axis)
        labels = lead.columns if lead.ndim == 2 and place in (0, -2) else lead.index
        for name, value in operands.states.items():
            arrays[name] = value
            if self.has(value):
                if lead.ndim == 1:
                    raise ValueError(f"{name}: expected a number, e.g. {name}.iloc[-1], got a {type_name(value)}")
                if value.ndim == 2 or not value.index.equals(labels):
                    other = f"{lead_name}.{'columns' if labels is lead.columns else 'index'}"
                    raise ValueError(
                        f"{name}: expected a Series with the labels {other}; match them, {name}.reindex({other}), "
                        f"or go by position with {name}.to_numpy()"
                    )
                arrays[name] = self.values(value, name, NUMBERS)
        nullable = [dtype for name in named for dtype in self._dtypes(named[name]) if self._is_nullable(dtype)]

        def finish(result: Any) -> Any:
            result = result.__finalize__(lead)
            return _nullable(result, nullable) if nullable else result

        def wrap(y: Any) -> Any:
            if lead.ndim == 1:
                return finish(lead._constructor(y, index=lead.index, name=lead.name, copy=False))
            return finish(lead._constructor(y, index=lead.index, columns=lead.columns, copy=False))

        def wrap_state(final: Any) -> Any:
            if lead.ndim == 1:
                return final[()]
            return finish(lead._constructor_sliced(final, index=labels, copy=False))

        return Labels({**steps, **arrays}, lead.shape, place, wrap, wrap_state)

    def _is_of_rows(self, series: Any, name: str, frame: Any, frame_name: str) -> bool:
        """Whether a Series has a number for each row of a DataFrame; else it has one for each column."""
        is_rows, is_columns = (series.index.equals(labels) for labels in (frame.index, frame.columns))
        if is_rows and is_columns:
            raise ValueError(
                f"{name}: could be of the rows or of the columns of {frame_name}, whose labels are the same; "
                f"pass {name}.to_numpy() for columns, {name}.to_numpy()[:, None] for rows"
            )
        if not is_rows and not is_columns:
            n_rows, n_columns = (len({*series.index} & {*labels}) for labels in (frame.index, frame.columns))
            is_rows = n_rows > n_columns or (n_rows == n_columns and series.size == len(frame.index))
            axis = "index" if is_rows else "columns"
            raise_labels_differ(name, frame_name, f"{name}.reindex({frame_name}.{axis})")
        return bool(is_rows)

    @staticmethod
    def _dtypes(value: Any) -> list[Any]:
        return [value.dtype] if value.ndim == 1 else list(value.dtypes)

    def _is_nullable(self, dtype: Any) -> bool:
        return getattr(dtype, "na_value", None) is self.pandas.NA


def _to_axis(axis: Any) -> Any:
    """Return the number of an axis that is given by its name; everything else as it is."""
    if isinstance(axis, str):
        if axis not in _AXES:
            raise ValueError(f"axis: expected 0 or 'index', 1 or 'columns', got {axis!r}")
        return _AXES[axis]
    return axis


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype of the elements in numpy, None where there is none."""
    # Those of nullable and Arrow, of sparse, and of dates with a time zone.
    candidates = (dtype, *(getattr(dtype, name, None) for name in ("numpy_dtype", "subtype", "base")))
    return next((candidate for candidate in candidates if isinstance(candidate, np.dtype)), None)


def _nullable(result: Any, dtypes: list[Any]) -> Any:
    """Convert to the nullable dtype of the same kind and width, of which there are some; NaN becomes missing."""
    name = str(result.dtype if result.ndim == 1 else next(iter(result.dtypes), "float64"))
    if name.rstrip("0123456789") not in ("int", "uint", "float") or name == "float16":
        return result
    if any(hasattr(dtype, "pyarrow_dtype") for dtype in dtypes):
        return result.astype(f"{name}[pyarrow]")
    return result.astype(name.replace("int", "Int").replace("uI", "UI").replace("float", "Float"))


PANDAS = _Pandas()
