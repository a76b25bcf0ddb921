"""Hazard: nulls that become numbers, and names that get lost. polars Series, against their arrays."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits

pl = pytest.importorskip("polars")

X = random(7)
SERIES = pl.Series("speed", X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: upsweep.cumulative_sum(x, reverse=True),
        lambda x: upsweep.cumulative_sum(x, include_initial=True),
        lambda x: upsweep.discounted_cumsum(x, 0.5, window=3),
        lambda x: upsweep.linear_recurrence(x, x),
        lambda x: upsweep.scan(lambda s, v: 0.5 * s + v, 0.0, x),
        lambda x: upsweep.ewm_mean(x, alpha=0.3),
        lambda x: upsweep.lfilter([0.5], [1.0, -0.5], x),
    ],
)
def test_the_type_and_the_name_stay(function):
    for x in (SERIES, SERIES.cast(pl.Float32), pl.concat([SERIES, SERIES], rechunk=False)):
        result = function(x)
        assert isinstance(result, pl.Series) and result.name == "speed"
        assert same_bits(result.to_numpy(), function(x.to_numpy()))


def test_dtypes():
    for dtype in (pl.Int8, pl.UInt32, pl.Boolean):
        x = pl.Series([1, 0, 1]).cast(dtype)
        assert same_bits(upsweep.cumulative_sum(x).to_numpy(), upsweep.cumulative_sum(x.to_numpy()))
    for x in (
        pl.Series(["a"]),
        pl.Series([[1]]),
        pl.Series([1]).cast(pl.Decimal(5, 2)),
        pl.Series([1]).cast(pl.Date),
    ):
        with pytest.raises(TypeError, match=r"x: expected numbers, got dtype"):
            upsweep.cumulative_sum(x)
    with pytest.raises(TypeError, match=r"x: a Series has no dtype for the result's complex128; pass x\.to_numpy"):
        upsweep.discounted_cumsum(SERIES, 0.5j)


def test_nulls():
    x = pl.Series([1, None, 3])
    for call in (upsweep.cumulative_sum, upsweep.bincount, upsweep.histogram):
        with pytest.raises(
            ValueError, match=r"x: has missing values \(null\).*x\.drop_nulls\(\), or .*x\.fill_null\(0\)"
        ):
            call(x)
    with pytest.raises(ValueError, match=r"reset: .*reset\.fill_null\(False\)"):
        upsweep.cumulative_sum(pl.Series([1, 2]), reset=pl.Series([True, None]))
    assert upsweep.ewm_mean(pl.Series([None, 1, 3]), alpha=0.5).is_null().to_list() == [True, False, False]
    assert upsweep.ewm_mean(pl.Series([np.nan, 1, 3]), alpha=0.5).is_nan().to_list() == [True, False, False]


def test_other_results_and_arguments():
    y, final = upsweep.discounted_cumsum(SERIES, 0.5, return_final=True)
    assert type(final) is np.float64 and final == y[-1]
    assert same_bits(upsweep.bincount(pl.Series([0, 2, 2])), np.array([1, 0, 2]))
    assert same_bits(upsweep.histogram(SERIES, 3)[0], np.histogram(X, 3)[0])
    gates = pl.Series("gates", random(7, seed=1))
    assert upsweep.linear_recurrence(gates, SERIES).name == "speed"
    times = pl.Series(np.arange(7)).cast(pl.Datetime("us", "UTC"))
    assert same_bits(
        upsweep.ewm_mean(SERIES, halflife="2us", times=times).to_numpy(),
        upsweep.ewm_mean(X, halflife=2, times=np.arange(7)),
    )


def test_dates():
    naive = pl.Series([0, 10, 30]).cast(pl.Datetime("us"))
    aware = naive.dt.replace_time_zone("UTC")
    for x, edges in ((naive, naive), (aware, aware), (aware, list(aware)), (naive, naive.to_numpy())):
        assert upsweep.histogram(x, edges)[0].tolist() == [1, 2]
    for x, edges in ((naive, aware), (aware, naive), (aware, list(naive)), (naive.cast(pl.Date), list(aware))):
        with pytest.raises(
            TypeError, match=r"bins: its dates have .* one or none, by .*replace_time_zone of polars"
        ):
            upsweep.histogram(x, edges)


def test_frames_and_expressions():
    frame = SERIES.to_frame()
    for x in (frame, frame.lazy(), pl.col("speed")):
        with pytest.raises(TypeError, match=r"x: expected a Series, got a .*map_batches\(function\)"):
            upsweep.cumulative_sum(x)
    with pytest.raises(
        TypeError, match=r"x: expected an array, got a polars\.GroupBy; .*map_batches.*\.over\(keys\)"
    ):
        upsweep.cumulative_sum(frame.group_by("speed"))
    groups = frame.with_columns(key=pl.Series([0, 0, 1, 1, 1, 1, 1]))
    result = groups.select(pl.col("speed").map_batches(upsweep.cumulative_sum).over("key"))
    assert same_bits(result["speed"].to_numpy(), np.append(np.cumsum(X[:2]), np.cumsum(X[2:])))
    result = frame.select(pl.all().map_batches(upsweep.cumulative_sum))  # what the message says
    assert same_bits(result["speed"].to_numpy(), np.cumsum(X))
