"""Hazard: labels that get lost, or that belong to other elements. Series and DataFrames, against their arrays."""

import re
from pathlib import Path

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits

pd = pytest.importorskip("pandas")

INDEX = pd.date_range("2024-03-30", periods=6, freq="h", tz="Europe/Berlin", name="time")
LEVELS = pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]], names=["k", "n"])
SERIES = pd.Series(random(6), index=INDEX, name="speed")
FRAME = pd.DataFrame(random((6, 3)), index=LEVELS, columns=pd.Index(["x", "y", "y"], name="channel"))
FLAGS = np.array([False, True, False, False, True, False])


def both(state, x):
    return state + x, (state, 2.0 * x)


# Each with the arguments x and axis; the results have x's shape.
FUNCTIONS = {
    "cumulative_sum": lambda x, **k: upsweep.cumulative_sum(x, reverse=True, **k),
    "discounted_cumsum": lambda x, **k: upsweep.discounted_cumsum(x, 0.5, exclusive=True, **k),
    "window": lambda x, **k: upsweep.discounted_cumsum(x, 0.5, window=2, **k),
    "linear_recurrence": lambda x, **k: upsweep.linear_recurrence(x, x, **k),
    "scan": lambda x, **k: upsweep.scan(lambda s, v: 0.5 * s + v, 0.0, x, **k),
    "ewm_mean": lambda x, **k: upsweep.ewm_mean(x, alpha=0.3, adjust=False, **k),
    "ewm_sum": lambda x, **k: upsweep.ewm_sum(x, halflife=2, **k),
    "lfilter": lambda x, **k: upsweep.lfilter([0.5], [1.0, -0.5], x, **k),
}


def check(result, values, like):
    """The result has these bits and the labels of `like`."""
    assert type(result) is type(like) and same_bits(result.to_numpy(), values)
    assert result.index.identical(like.index) and result.attrs == like.attrs
    if like.ndim == 1:
        assert result.name == like.name
    else:
        assert result.columns.identical(like.columns)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_labels_stay(name):
    series, frame = SERIES.copy(), FRAME.copy()
    series.attrs["unit"] = frame.attrs["unit"] = "m/s"
    function = FUNCTIONS[name]
    check(function(series), function(series.to_numpy()), series)
    check(function(frame), function(frame.to_numpy(), axis=0), frame)  # down the rows, as pandas' own functions
    for axis, place in ((0, 0), ("index", 0), (1, 1), ("columns", 1), (-1, 1)):
        check(function(frame, axis=axis), function(frame.to_numpy(), axis=place), frame)


@pytest.mark.parametrize("function", [upsweep.cumulative_sum, upsweep.bincount, upsweep.histogram])
def test_objects_that_are_no_arrays(function):
    by = FLAGS.astype(int)
    for x in (FRAME.groupby(by), SERIES.groupby(by), SERIES.resample("2h")):
        with pytest.raises(
            TypeError, match=r"x: expected an array, got a pandas\..*; x\.transform\(function\) scans"
        ):
            function(x)
    for x in (SERIES.rolling(2), FRAME.expanding(), SERIES.ewm(alpha=0.5), pd.NA):
        with pytest.raises(TypeError, match=r"x: expected an array, got a pandas\..*; pass the data themselves"):
            function(x)
    for x in ([SERIES, SERIES], (FRAME,), [SERIES, SERIES[1:]]):
        with pytest.raises(TypeError, match=r"x: is a list of pandas\..*pandas\.concat .*np\.stack\(x\)"):
            function(x)
    for x, kind in (
        ({"a": [1]}, "a dict"),
        (iter([1]), "a list_iterator"),
        ([{}], "an array of objects, .* a dict"),
    ):
        with pytest.raises(TypeError, match=f"x: expected real or complex numbers .*, got {kind}"):
            function(x)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x", lambda: upsweep.Vi(FRAME)),
        ("x", lambda: upsweep.LazyTensor(SERIES)),
        ("v", lambda: upsweep.Vj(np.ones((6, 1))) @ SERIES),
        ("xs", lambda: upsweep.scan.gradient(lambda s, x: s + x[0] * x[1], 0.0, (SERIES, SERIES), np.ones(6))),
        ("cotangent", lambda: upsweep.scan.gradient(lambda s, x: s + x, 0.0, np.ones(6), SERIES)),
        ("xs", lambda: upsweep.scan.carry(lambda s, x: s + x, 0.0, SERIES)),
    ],
)
def test_functions_without_labels(name, call):
    match = rf"{name}: expected arrays without labels, got a pandas\.\w+; pass {name}\.to_numpy\(\)"
    with pytest.raises(TypeError, match=match):
        call()


@pytest.mark.parametrize("name", ["ewm_mean", "cumulative_sum"])
def test_as_pandas_itself(name):
    for x in (SERIES, FRAME, FRAME.astype(np.float32), FRAME.iloc[:0], FRAME.iloc[:, :0]):
        if name == "cumulative_sum":
            pd.testing.assert_frame_equal(pd.DataFrame(upsweep.cumulative_sum(x)), pd.DataFrame(x.cumsum()))
        elif x.size:
            expected, result = x.ewm(alpha=0.3).mean(), upsweep.ewm_mean(x, alpha=0.3)
            np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_what_messages_and_documents_say():
    x = SERIES.where(~FLAGS)
    expected = x.ewm(alpha=0.3, min_periods=3).mean()
    result = upsweep.ewm_mean(x, alpha=0.3).where(x.notna().cumsum() >= 3)
    pd.testing.assert_series_equal(result, expected)


def test_a_function_for_pandas_own_methods():
    by = FLAGS.astype(int)
    expected = SERIES.groupby(by).cumsum()
    counts = SERIES.groupby(by).apply(upsweep.histogram, bins=[-9, 0, 9])
    assert sum(counts[0][0]) == 4 and sum(counts[1][0]) == 2
    pd.testing.assert_series_equal(SERIES.groupby(by).transform(upsweep.cumulative_sum), expected)
    frame = pd.DataFrame({"i": [2**53, 1, 1], "f": [0.5, 1.0, 2.0]})
    pd.testing.assert_frame_equal(frame.apply(upsweep.cumulative_sum), frame.cumsum())


def test_final_states():
    y, final = upsweep.discounted_cumsum(SERIES, 0.5, return_final=True)
    assert type(final) is np.float64 and final == y.iloc[-1]
    frame = FRAME.set_axis(["x", "y", "z"], axis=1)
    y, final = upsweep.discounted_cumsum(frame, 0.5, return_final=True)
    pd.testing.assert_series_equal(final, y.iloc[-1], check_names=False)
    check(upsweep.discounted_cumsum(frame, 0.5, initial=final), _after(frame, final.to_numpy()), frame)
    with pytest.raises(
        ValueError, match=r"initial: expected .* labels x\.columns; .*initial\.reindex\(x\.columns\)"
    ):
        upsweep.discounted_cumsum(frame, 0.5, initial=final[::-1])
    with pytest.raises(ValueError, match=r"initial: expected .* labels x\.index; .*initial\.reindex\(x\.index\)"):
        upsweep.discounted_cumsum(frame, 0.5, axis=1, initial=final)
    with pytest.raises(ValueError, match=r"initial: expected a number, e\.g\. initial\.iloc"):
        upsweep.discounted_cumsum(SERIES, 0.5, initial=final)
    (before, twice), final = upsweep.scan(both, 0.0, frame, return_final=True)
    check(before, upsweep.cumulative_sum(frame.to_numpy(), axis=0, exclusive=True), frame)
    check(twice, 2.0 * frame.to_numpy(), frame)
    assert final.index.equals(frame.columns)
    rows = upsweep.cumulative_sum(frame, axis=1, return_final=True)[1]
    assert rows.index.equals(frame.index)
    y, state = upsweep.lfilter([1.0, 1.0], [1.0], frame, zi=np.ones((1, 3)))
    assert isinstance(y, pd.DataFrame) and type(state) is np.ndarray


def _after(frame, state):
    return upsweep.discounted_cumsum(frame.to_numpy(), 0.5, axis=0, initial=state)


def test_functions_of_other_packages_run_along_the_last_axis():
    x, decay = FRAME.to_numpy(), np.linspace(0.1, 0.6, 6)  # one for each row
    for function in (upsweep.discounted_cumsum_right, upsweep.discounted_cumsum_left):
        check(function(FRAME, decay), function(x, decay), FRAME)
        check(function(FRAME, pd.Series(decay, LEVELS)), function(x, decay), FRAME)
        assert function(pd.Series([1, 2], dtype="Int64"), np.ones(2)).dtype == "Float64"
        with pytest.raises(ValueError, match="gamma: has other labels than x"):
            function(SERIES, SERIES[::-1])
    for function in (upsweep.pscan, lambda a, b: upsweep.scan_forward(a, b, reverse=True)):
        check(function(FRAME, FRAME), function(x, x), FRAME)


def test_operands_with_labels():
    frame = FRAME.set_axis(["x", "y", "z"], axis=1)
    ends = pd.Series(FLAGS, index=LEVELS)
    decay = pd.Series([0.1, 0.5, 0.9], index=["x", "y", "z"])
    result = upsweep.discounted_cumsum(frame, decay, reset=ends)
    expected = upsweep.discounted_cumsum(frame.to_numpy(), decay.to_numpy(), axis=0, reset=FLAGS[:, np.newaxis])
    check(result, expected, frame)
    gates = pd.Series(random(6, seed=1), index=LEVELS)
    check(
        upsweep.linear_recurrence(gates, frame),
        upsweep.linear_recurrence(gates.to_numpy()[:, np.newaxis], frame.to_numpy(), axis=0),
        frame,
    )
    check(
        upsweep.scan(lambda s, x: s + x[0] * x[1], 0.0, (gates, frame)),
        upsweep.scan(lambda s, x: s + x[0] * x[1], 0.0, (gates.to_numpy()[:, np.newaxis], frame.to_numpy())),
        frame,
    )
    # The labels of tokens come first; arrays go by position.
    assert upsweep.linear_recurrence(SERIES.rename("gates"), SERIES).name == "speed"
    assert upsweep.linear_recurrence(SERIES, SERIES.to_numpy()).name == "speed"
    assert type(upsweep.discounted_cumsum(SERIES.to_numpy(), 0.5, reset=ends)) is np.ndarray


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda s: upsweep.linear_recurrence(s[::-1], s),
            r"gates: has other labels than tokens; match",
        ),
        (
            lambda s: upsweep.discounted_cumsum(s, 0.5, reset=(s > 0).reset_index()["speed"]),
            "reset: has other labels",
        ),
        (
            lambda s: upsweep.scan(lambda y, x: y + x[0], 0.0, (s, s[1:])),
            r"xs\[1\]: has other labels than xs\[0\]",
        ),
        (lambda s: upsweep.ewm_mean(s, halflife="1h", times=pd.Series(INDEX)), "times: has other labels than x"),
        (
            lambda s: upsweep.ewm_mean(FRAME, axis=1, halflife=1, times=pd.Series([0, 1, 2])),
            r"times: .* times\.reindex\(x\.columns\)",
        ),
        (
            lambda s: upsweep.lfilter([1, 1], [1], s, zi=s[:1]),
            r"zi: expected arrays without labels, .*zi\.to_numpy",
        ),
        (lambda s: upsweep.bincount(s.gt(0), s.reset_index(drop=True)), r"weights: .* with weights\.to_numpy\(\)"),
        (lambda s: upsweep.histogram(s, weights=s[::-1]), "weights: has other labels than x"),
        (
            lambda s: upsweep.discounted_cumsum(FRAME[["x"]], pd.Series([0.5], index=["y"])),
            r"gamma: .*gamma\.reindex\(x\.columns\)",
        ),
        (
            lambda s: upsweep.linear_recurrence(FRAME["x"][::-1], FRAME[["x"]]),
            r"gates: .*gates\.reindex\(tokens\.index\)",
        ),
        (
            lambda s: upsweep.histogram(FRAME, weights=FRAME.iloc[:, ::-1]),
            r"weights: has other labels than x; .*weights\.reindex\(x\.columns, axis=1\)",
        ),
        (lambda s: upsweep.cumulative_sum(s, out=np.empty(6)), r"out: does not go with labelled arrays.*to_numpy"),
        (lambda s: upsweep.cumulative_sum(s.to_numpy(), out=s), "out: does not go with labelled"),
        (lambda s: upsweep.scan(lambda y, x: y + x, 0.0, s, out=np.empty(6)), "out: does not go with labelled"),
        (lambda s: upsweep.histc(s, out=np.empty(100)), "out: does not go with labelled arrays"),
        (lambda s: upsweep.cumulative_sum(s, include_initial=True), r"include_initial: .*pass x\.to_numpy\(\)"),
        (lambda s: upsweep.discounted_cumsum(s, np.ones((2, 1))), r"x: its labels are of shape \(6,\).*to_numpy"),
        (
            lambda s: upsweep.cumulative_sum(s, axis="time"),
            "axis: expected 0 or 'index', 1 or 'columns'",
        ),
        (lambda s: upsweep.cumulative_sum(s.to_frame(), axis=2), "axis 2 is out of bounds"),
        (lambda s: upsweep.cumulative_sum(s, method="tree"), "method: goes with dask arrays only"),
        (
            lambda s: next(upsweep.scan_blocks(upsweep.cumulative_sum, iter([s]))),
            r"x: expected .* x\.to_numpy\(\)",
        ),
        (
            lambda s: upsweep.discounted_cumsum(
                pd.DataFrame(np.ones((2, 2))), 0.5, reset=pd.Series([False, True])
            ),
            "reset: could be of the rows or of the columns of x",
        ),
        (
            lambda s: upsweep.discounted_cumsum(
                pd.DataFrame(np.ones((3, 3)), columns=[*"abc"]), pd.Series([0.1, 0.2, 0.3], index=[*"cab"])
            ),
            r"gamma: has other labels than x; match them, gamma\.reindex\(x\.columns\)",
        ),
        (
            lambda s: upsweep.cumulative_sum(s, reset=s.gt(0).shift()),
            r"reset: expected bool, it has dtype object.*shift\(fill_value=False\), .*fillna\(False\)\.astype",
        ),
        (
            lambda s: upsweep.scan(lambda y, x: y + x, 0.0, s, reset=s.gt(0).shift()),
            r"reset: expected bool, it has dtype object",
        ),
        (
            lambda s: upsweep.cumulative_sum(s.to_numpy(), reset=np.array([True, None] * 3)),
            r"reset: .* array of objects, .* set what is missing to False, then reset\.astype\(bool\)",
        ),
        (
            lambda s: upsweep.bincount(s.index),
            "x: .* objects, the first a pandas.Timestamp; .*histogram counts",
        ),
        (
            lambda s: upsweep.bincount(s.index.to_series()),
            "x: .* dtype datetime64.*, upsweep.histogram counts dates",
        ),
        (lambda s: upsweep.bincount(pd.Categorical([*"ab"])), r"x: .*; x\.codes are its numbers"),
        (lambda s: upsweep.bincount(pd.CategoricalIndex([*"ab"])), r"x: .*; x\.codes are its numbers"),
        (
            lambda s: upsweep.histogram(s.index.insert(0, pd.NaT)),
            r"x: autodetected range .*; leave NaT out, .*x\.dropna\(\), or pass range",
        ),
    ],
)
def test_what_does_not_fit(call, match):
    with pytest.raises((TypeError, ValueError), match=match):
        call(SERIES)


def test_columns_that_are_no_numbers():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "when": pd.to_datetime(["2024", "2025"])})
    with pytest.raises(TypeError, match=r"x: expected numbers, its column 'b' .*select_dtypes\('number'\)"):
        upsweep.cumulative_sum(frame)
    for column in ("b", "when"):
        with pytest.raises(
            TypeError, match=r"x: expected numbers, it has dtype .*pandas\.to_numeric .*pandas\.factorize\(x\)"
        ):
            upsweep.ewm_mean(frame[column], alpha=0.5)
    with pytest.raises(TypeError, match="x: expected numbers, it has dtype object"):
        upsweep.cumulative_sum(pd.Series([1, 2], dtype=object))
    with pytest.raises(TypeError, match=r"x: expected numbers, it has dtype category; .*x\.cat\.codes are"):
        upsweep.bincount(pd.Series([1, 2], dtype="category"))


def test_columns_of_several_dtypes():
    frame = pd.DataFrame({"i": [2**53, 1, 1], "f": [0.5, 1.0, 2.0], "b": [True, False, True]})
    with pytest.raises(TypeError, match=r"x: its columns of integers would become float64.*x\.apply"):
        upsweep.cumulative_sum(frame)  # 2**53 + 1 + 1 would be rounded
    check(
        upsweep.cumulative_sum(frame[["i", "b"]]), np.cumsum(frame[["i", "b"]].to_numpy(int), 0), frame[["i", "b"]]
    )
    assert same_bits(upsweep.histogram(frame, 3)[0], np.histogram(frame.to_numpy(float), 3)[0])
    with pytest.raises(TypeError, match="x: expected keys of integers or bool, got dtype float64"):
        upsweep.bincount(frame, axis=0)
    for dtype in ("int64", "uint64", "Int64", "UInt64", "Sparse[int64]"):
        for numbers in ([2**53 + 1, 1, 1], [-1 - 2**53, 1, 1]):
            rounded = frame.assign(i=pd.array(np.abs(numbers) if "u" in dtype.lower() else numbers, dtype))
            for call in (upsweep.histogram, lambda x: upsweep.scan(lambda s, x: s + x, 0, x)):
                with pytest.raises(
                    ValueError, match=r"x.?: its column 'i' has integers beyond 2\*\*53, .*float64'"
                ):
                    call(rounded)
    numbers = frame.to_numpy(np.float64)
    check(upsweep.cumulative_sum(frame, dtype=float), np.cumsum(numbers, 0), frame)
    check(upsweep.discounted_cumsum(frame, 0.5), upsweep.discounted_cumsum(numbers, 0.5, axis=0), frame)


def test_nullable_dtypes():
    x = pd.Series([1, 2, 3], dtype="Int64", name="n")
    pd.testing.assert_series_equal(upsweep.cumulative_sum(x), x.cumsum())
    assert upsweep.discounted_cumsum(x.astype("UInt8"), 0.5).dtype == "Float64"
    assert (upsweep.discounted_cumsum(x.to_frame(), 0.5).dtypes == "Float64").all()
    assert upsweep.ewm_mean(x.astype("Float32"), alpha=0.5).dtype == "Float32"
    missing = pd.Series([1, None, 3], dtype="Int64")
    for call in (upsweep.cumulative_sum, upsweep.bincount, upsweep.histogram):
        with pytest.raises(
            ValueError, match=r"x: has missing values \(pandas\.NA\).*dropna\(\), or .*fillna\(0\)"
        ):
            call(missing)
    with pytest.raises(ValueError, match=r"xs: .*fillna\(0\); in xs\.astype\('float64'\) they are NaN"):
        upsweep.scan(lambda s, x: s + x, 0, missing)
    with pytest.raises(ValueError, match=r"reset: .*reset\.fillna\(False\)$"):
        upsweep.cumulative_sum(x, reset=pd.Series([True, None, False], dtype="boolean"))
    result = upsweep.ewm_mean(missing, alpha=0.5)  # where a missing value has a meaning
    expected = upsweep.ewm_mean(np.array([1.0, np.nan, 3.0]), alpha=0.5)
    assert result.dtype == "Float64" and same_bits(result.to_numpy(float), expected)
    first = upsweep.ewm_mean(missing[::-1].shift(1), alpha=0.5)
    assert first.isna().tolist() == [True, False, False]
    sparse = pd.Series([0.0, 1.0, 0.0]).astype(pd.SparseDtype(float, 0.0))
    assert upsweep.cumulative_sum(sparse).tolist() == [0.0, 1.0, 1.0]


def test_arrow_dtypes():
    pytest.importorskip("pyarrow")
    x = pd.Series([1, 2, 3], dtype="int64[pyarrow]")
    pd.testing.assert_series_equal(upsweep.cumulative_sum(x), x.cumsum())
    assert upsweep.discounted_cumsum(x, 0.5).dtype == "double[pyarrow]"


def test_counts_and_carries_are_arrays():
    with pytest.raises(ValueError, match=r"x: expected 1-D keys, .*of a DataFrame \.to_numpy\(\)\.ravel\(\)"):
        upsweep.bincount(FRAME)
    keys = pd.Series([0, 2, 2, 1, 0, 5], index=INDEX)
    counts = upsweep.bincount(keys, SERIES)
    assert type(counts) is np.ndarray and same_bits(counts, np.bincount(keys, SERIES))
    assert same_bits(upsweep.bincount(keys.to_frame(), axis=0), np.bincount(keys)[:, np.newaxis])
    assert same_bits(upsweep.bincount(keys.to_frame(), axis="index"), np.bincount(keys)[:, np.newaxis])
    for ours, numpys in zip(upsweep.histogram(keys, 3, weights=keys), np.histogram(keys, 3, weights=keys)):
        assert type(ours) is np.ndarray and same_bits(ours, numpys)
    assert same_bits(upsweep.histogram(SERIES, bins=pd.Series([-1, 0, 1]))[0], np.histogram(SERIES, [-1, 0, 1])[0])
    assert type(upsweep.histc(keys, 5)) is np.ndarray
    carry = upsweep.discounted_cumsum_carry(FRAME, 0.5)  # of the rows, as the scan
    np.testing.assert_allclose(carry.value, upsweep.discounted_cumsum(FRAME, 0.5).iloc[-1])
    assert type(carry.value) is np.ndarray


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates(zone):
    index = INDEX.tz_convert("UTC").tz_localize(None)
    edges = index[[0, 2, 5]]
    expected, in_utc = np.histogram(index.to_numpy(), edges.to_numpy())[0], edges.to_numpy()
    limits = upsweep.histogram(index.to_numpy(), 4)[1]
    if zone is not None:
        index, edges = (times.tz_localize("UTC").tz_convert(zone) for times in (index, edges))
    python = [time.to_pydatetime() for time in index]
    for x in (index, index.to_series(), list(index), python, index.to_numpy(), [list(index)]):
        for bins in (edges, pd.Series(edges), list(edges), [time.to_pydatetime() for time in edges]):
            counts, same = upsweep.histogram(x, bins)
            assert counts.tolist() == expected.tolist() and (same == in_utc).all()
        for ends in (None, (index[0], index[-1]), index[[0, -1]]):
            assert (upsweep.histogram(x, 4, range=ends)[1] == limits).all()


def test_text_as_dates():
    x = np.array(["2024-03-30", "2024-04-02", "2024-04-03"], "M8[ns]")
    for bins in (["2024-03-30", "2024-04-01T12", "2024-05"], np.array(["2024-03-30", "2024-04-01", "2024-05"])):
        counts, edges = upsweep.histogram(pd.Series(x), bins)
        assert counts.tolist() == [1, 2] and edges.dtype.kind == "M"
    assert upsweep.histogram(x, 2, range=("2024-03-30", "2024-04-03"))[0].tolist() == [1, 2]
    durations = x - x[0]
    bins = [pd.Timedelta(0), pd.Timedelta("2D"), pd.Timedelta("5D")]
    for edges in (bins, [edge.to_pytimedelta() for edge in bins], pd.Index(bins)):
        assert upsweep.histogram(durations, edges)[0].tolist() == [1, 2]
    assert upsweep.histogram([pd.Timestamp(x[0]), pd.NaT], x)[0].tolist() == [1, 0]
    assert upsweep.histogram([pd.Timedelta(0), pd.NaT], pd.Index(durations))[0].tolist() == [1, 0]
    with pytest.raises(TypeError, match="x: expected dates or durations alone, got some beside other objects"):
        upsweep.histogram([pd.Timestamp(x[0]), None], x)
    with pytest.raises(ValueError, match=r'bins: .*"0D".*; pandas\.to_datetime or to_timedelta converts'):
        upsweep.histogram(durations, ["0D", "2D"])
    texts = ["2024-03-30T00:00+01:00", "2024-04-03T00:00Z"]
    for edges in ({"bins": texts}, {"range": tuple(texts)}):
        with pytest.raises(TypeError, match=r"has text with a time zone; pandas\.Timestamp converts one"):
            upsweep.histogram(pd.DatetimeIndex(x, tz="UTC"), **edges)
        with pytest.raises(TypeError, match=": its dates have a time zone, those of x have none"):
            upsweep.histogram(x, **edges)
    with pytest.raises(ValueError, match="range: expected two dates, got"):
        upsweep.histogram(x, 2, range=list(x))


@pytest.mark.parametrize("name", ["bins", "range"])
def test_dates_with_and_without_a_time_zone(name):
    naive = INDEX.tz_localize(None)
    for x, edges, text in (
        (INDEX, naive[[0, 2]], "have no time zone, those of x have one"),
        (INDEX, naive[[0, 2]].to_numpy(), "have no time zone, those of x have one"),
        (INDEX, ["2024-03-30", "2024-03-31"], "have no time zone, those of x have one"),
        (naive, INDEX[[0, 2]], "have a time zone, those of x have none"),
        (naive.to_numpy(), list(INDEX[[0, 2]]), "have a time zone, those of x have none"),
        (naive, pd.Series(INDEX[[0, 2]]), "have a time zone, those of x have none"),
    ):
        for dates in (x, pd.Series(x), pd.DataFrame({"a": x})):
            with pytest.raises(
                TypeError, match=f"{name}: its dates {text}; give both one or none, by tz_localize"
            ):
                upsweep.histogram(dates, **({"bins": 2} | {name: edges}))
    for column in (INDEX, 1.5):
        with pytest.raises(
            TypeError, match=r"x: expected columns of one kind, got datetime64\[.*; .*x\[\['a'\]\]"
        ):
            upsweep.histogram(pd.DataFrame({"a": naive, "b": column}))


def test_other_libraries_beside():
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"gamma: is a dask\.Array, x a pandas\.Series; convert one"):
        upsweep.discounted_cumsum(SERIES, da.full(6, 0.5))
    frame = type("DataFrame", (), {"__module__": "dask.dataframe", "to_dask_array": None})()  # as dask's, which
    with pytest.raises(TypeError, match=r"x: .*; convert it by to_dask_array\(lengths=True\)"):  # needs pyarrow
        upsweep.cumulative_sum(frame)
    xr = pytest.importorskip("xarray")
    with pytest.raises(TypeError, match=r"tokens: is a xarray\.DataArray, gates a pandas\.Series"):
        upsweep.linear_recurrence(SERIES, xr.DataArray(np.ones(6)))


@pytest.mark.parametrize("adjust", [False, True])
def test_times(adjust):
    x = SERIES.where(~FLAGS)
    expected = x.ewm(halflife="1h30min", times=x.index, adjust=adjust).mean() if adjust else None
    if expected is None:  # which pandas does not have
        expected = upsweep.ewm_mean(x, halflife=1.5, times=np.arange(6), adjust=False)
    python = [time.to_pydatetime() for time in INDEX]
    for times in (INDEX, INDEX.to_series(), list(INDEX), python, INDEX.tz_localize(None), INDEX.tz_convert(None)):
        for halflife in ("1h30min", "1.5 h", "90m", pd.Timedelta("1h30min"), np.timedelta64(90, "m")):
            result = upsweep.ewm_mean(x, halflife=halflife, times=times, adjust=adjust)
            pd.testing.assert_series_equal(result, expected, rtol=1e-13)
    with pytest.raises(TypeError, match="times: some have a time zone and some have none"):
        upsweep.ewm_mean(x, halflife="1h", times=[*INDEX[:5], pd.Timestamp("2024-03-31")])
    nanoseconds = pd.to_datetime([0, 1, 2, 3, 4, 5], unit="ns")
    result = upsweep.ewm_mean(x, halflife=pd.Timedelta(2, "ns"), times=list(nanoseconds))
    assert same_bits(result.to_numpy(), upsweep.ewm_mean(x, halflife=2, times=np.arange(6)).to_numpy())


def test_the_table_for_pandas_users_computes_what_pandas_does():
    page = (Path(__file__).parents[2] / "docs" / "coming_from" / "pandas.md").read_text()
    rows = re.findall(r"^\| `(.+?)`.*? \| `(.+?)`(?:; with NaN `(.+?)`)?", page, re.MULTILINE)
    numbers = pd.Series(random(60), index=pd.date_range("2026-01-01", periods=60, freq="h"))
    key = pd.Series(np.arange(60) // 9, index=numbers.index)
    names = {name: getattr(upsweep, name) for name in upsweep.__all__} | {"upsweep": upsweep, "np": np}
    names |= {"day": key, "key": key, "x": pd.DataFrame({"a": key, "b": numbers})}
    gaps = numbers.where(np.arange(60) % 7 != 3)
    for of_pandas, answer, with_gaps in rows:
        for code, s in ((answer, gaps if re.search("ewm|isnan", answer) else numbers), (with_gaps, gaps)):
            if code:
                expected = eval(of_pandas, names | {"s": s})
                np.testing.assert_allclose(eval(code, names | {"s": s}), expected, rtol=1e-9, err_msg=code)
    assert len(rows) > 9 and sum(bool(with_gaps) for *_, with_gaps in rows) == 3
