"""Dates as users pass them, of numpy, Python and pandas or text, as datetime64 and timedelta64.

numpy has no time zones: dates with one become their UTC. So dates of two arguments compare only if both have a
time zone or neither has, which `in_utc` checks. Called by histograms and exponentially weighted windows.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np

from upsweep._arrays.device_view import Array
from upsweep._arrays.libraries import any_labelled

_NAT = object()  # without a unit, which numpy's own deprecates
_OFFSET = re.compile(r"\d[T ].*(Z|[+-]\d\d(:?\d\d)?)$")  # a time zone at the end of ISO 8601's text


def are_dates(values: Any) -> bool:
    """Whether these are dates or durations without labels, as their dtype or first element says; not of text."""
    while type(values) in (list, tuple) and values:
        values = values[0]
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind == "O" and values.size:
        values = np.asarray(values).flat[0]
    return kind in ("m", "M") or isinstance(values, (datetime.date, datetime.timedelta))


def in_utc(**named: Any) -> dict[str, Any]:
    """Return the arguments, those that have a time zone and no labels as datetime64.

    Raise TypeError for one that has a time zone where the first has none, or the other way round.
    """
    zones = {name: _has_time_zone(value) for name, value in named.items()}
    first = next(iter(named))
    for name, has_zone in zones.items():
        if None not in (has_zone, zones[first]) and has_zone != zones[first]:
            has, other = ("a time zone", "none") if has_zone else ("no time zone", "one")
            raise TypeError(
                f"{name}: its dates have {has}, those of {first} have {other}; give both one or none, by "
                "tz_localize of pandas or dt.replace_time_zone of polars"
            )
    return {
        name: as_dates(value, name) if zones[name] and not any_labelled(value) else value
        for name, value in named.items()
    }


def has_zone(dtype: Any) -> bool:
    """Whether dates of this dtype, of any library, have a time zone."""
    kinds = (dtype, getattr(dtype, "pyarrow_dtype", None))
    return any(getattr(kind, name, None) is not None for kind in kinds for name in ("tz", "time_zone"))


def as_dates(values: Any, name: str) -> Array:
    """Return datetime64 or timedelta64, or what np.asarray makes of anything else."""
    dtype: Any = getattr(values, "dtype", None)
    if getattr(dtype, "tz", None) is not None:  # of pandas, where np.asarray makes an object of each
        return np.asarray(values, f"M8[{dtype.unit}]")
    array = np.asarray(values)
    if array.dtype.kind == "U":
        if _has_offset(array):
            raise TypeError(
                f"{name}: has text with a time zone; pandas.Timestamp converts one, pandas.to_datetime several"
            )
        try:
            return array.astype("M8")
        except ValueError as error:
            raise ValueError(f"{name}: {error}; pandas.to_datetime or to_timedelta converts text") from None
    if array.dtype.kind != "O":
        return array
    if len(set(map(_is_aware, array.flat)) - {None}) > 1:
        raise TypeError(f"{name}: some have a time zone and some have none; give all of them one, or none")
    converted = [_as_date(value) for value in array.flat]
    missing = np.array([value is _NAT for value in converted], bool)
    known = np.array([value for value in converted if value is not _NAT])
    if not missing.any():
        return known.reshape(array.shape)
    if known.size and known.dtype.kind not in "mM":
        return array
    # pandas has one NaT for dates and durations.
    result = np.full(array.size, "NaT", known.dtype if known.size else "M8[ns]")
    if known.size:
        result[~missing] = known
    return result.reshape(array.shape)


def _has_time_zone(values: Any) -> bool | None:
    """Whether dates, or texts, have a time zone. None for everything else."""
    if hasattr(values, "iloc") and values.ndim == 2 and values.size:
        values = values.iloc[:, 0]  # a DataFrame, whose columns have to be alike
    dtype: Any = getattr(values, "dtype", None)
    if has_zone(dtype):
        return True
    if type(values) in (list, tuple) or getattr(dtype, "kind", "") == "O":
        array = np.asarray(values)
        if array.dtype.kind == "O":
            return next((known for known in map(_is_aware, array.flat) if known is not None), None)
        values, dtype = array, array.dtype
    if getattr(dtype, "kind", "") == "U":
        return _has_offset(values)
    is_temporal = getattr(dtype, "is_temporal", None)  # of polars
    return False if getattr(dtype, "kind", "") == "M" or (is_temporal and is_temporal()) else None


def _has_offset(texts: Array) -> bool:
    return any(_OFFSET.search(text) for text in texts.flat)


def _is_aware(value: Any) -> bool | None:
    """Whether a date has a time zone; None for what is no date, and for NaT, which is not equal to itself."""
    if not isinstance(value, datetime.date) or value != value:
        return None
    return getattr(value, "tzinfo", None) is not None


def _as_date(value: Any) -> Any:
    if isinstance(value, datetime.date) and value != value:
        return _NAT
    if hasattr(value, "to_datetime64"):  # pandas' Timestamp, to the nanosecond
        return value.to_datetime64()
    if hasattr(value, "to_timedelta64"):
        return value.to_timedelta64()
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.timedelta):
        return np.timedelta64(value)
    return np.datetime64(value) if isinstance(value, datetime.date) else value
