"""Calls of public functions on labelled arrays: their data without labels, and labels for the results.

pandas Series and DataFrames, xarray DataArrays and polars Series are data with labels around it: an index, names,
coordinates, attributes. `without_labels` takes the data out of the arguments of a public function, which is then
called on the arrays, and `Labels` gives the results the labels of the leading argument::

    cumulative_sum(Series) -> without_labels -> cumulative_sum(ndarray) -> Labels.wrap -> Series

The public functions reach this module by `dispatch.handlers("labelled")`, so that it is imported at the first
call with a labelled array. A DataArray may hold an array of any other library, dask's too, which the call on the
data then dispatches. Nothing is matched by labels: operands with labels must have the same ones, because
reindexing creates missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays.labels import Conversion, LabelledLibrary, Labels, Operands
from upsweep._arrays.libraries import labelled_library_of
from upsweep._arrays.pandas import PANDAS
from upsweep._arrays.polars import POLARS
from upsweep._arrays.xarray import XARRAY

_LIBRARIES: dict[str, LabelledLibrary] = {library.name: library for library in (PANDAS, XARRAY, POLARS)}


def call(
    function: Callable[..., Any], names: tuple[str, ...], labels_of: tuple[str, ...], keywords: dict[str, Any]
) -> Any:
    """Call the public function on the data of its labelled arguments, and label the result of a scan."""
    refuse_out(keywords.get("out"))
    states = {name: keywords[name] for name in names if name == "initial"}
    steps = {name: keywords[name] for name in names if name not in ("initial", "out")}
    longer, exact = keywords.get("include_initial", False), bool(states) and keywords.get("dtype", "") is None
    labels = without_labels(steps, states, keywords["axis"], lead=labels_of, longer=longer, exact=exact)
    result = function(**{**keywords, **labels.arrays, "axis": labels.axis})
    return labels.wrap(result) if states else result


def refuse_out(out: object) -> None:
    """Raise for an `out` beside labelled arrays, or one that is labelled."""
    if out is not None:
        raise TypeError("out: does not go with labelled arrays; leave it out, or pass the data, e.g. x.to_numpy()")


def without_labels(
    steps: Mapping[str, Any], states: Mapping[str, Any], axis: Any, *, lead: Iterable[str] = (),
    longer: bool = False, **conversion: bool,
) -> Labels:  # fmt: skip
    """Return the arguments of a call without labels, of which the first labelled one of `lead` labels the results.

    `steps` have the axis of the scan, or broadcast along it; `states` lack it. If none of `lead` is labelled,
    results stay arrays. `longer` says that the result has one step more than the arguments; the `conversion` is
    described by `Conversion`.
    """
    named, settings = {**steps, **states}, Conversion(**conversion)
    labelled = {name: library for name, value in named.items() if (library := _library_of(value)) is not None}
    first, library = next(iter(labelled.items()))
    for name, value in named.items():
        is_foreign = name not in labelled and not library.wraps_any and _is_foreign(value)
        if is_foreign or labelled.get(name, library) is not library:
            kinds = f"{_arrays.type_name(value)}, {first} a {_arrays.type_name(named[first])}"
            raise TypeError(f"{name}: is a {kinds}; convert one to the library of the other")
    leading = next((name for name in lead if name in labelled), None)
    if leading is None:
        arrays, axis = library.data(Operands(steps, states, "", settings), axis, is_scan=bool(tuple(lead)))
        return Labels({**named, **arrays}, (), axis, lambda result: result, lambda state: state)
    labels = library.unwrap(Operands(steps, states, leading, settings), axis)
    shapes = [np.shape(labels.arrays[name]) for name in steps if labels.arrays[name] is not None]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return labels  # the call on the arrays raises
    remedy = f"; pass {leading}.to_numpy()"
    if longer and not library.extends:
        raise ValueError(f"include_initial: {leading} has no label for the initial state{remedy}")
    if shape != labels.shape:
        raise ValueError(f"{leading}: its labels are of shape {labels.shape}, the result of shape {shape}{remedy}")
    return labels


def check_times(x: Any, times: Any, axis: int) -> None:
    """Raise if the times of the steps have other labels than the axis of x, where one library has both."""
    library = _library_of(times)
    if library is not None and library is _library_of(x):
        library.check_times(x, times, axis)


def _library_of(value: object) -> LabelledLibrary | None:
    """Return the adapter of a labelled array; None for everything else."""
    return _LIBRARIES.get(labelled_library_of(value) or "")


def _is_foreign(value: object) -> bool:
    """Whether this is an array of another library than numpy."""
    others = _arrays.any_torch, _arrays.any_dask, _arrays.any_on_device, _arrays.any_dlpack_only
    return any(is_one(value) for is_one in others)
