"""Hazard: dimensions that are taken for others, and lost coordinates. DataArrays, against their arrays."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits

xr = pytest.importorskip("xarray")

X = xr.DataArray(
    random((3, 5)), dims=("site", "time"), name="speed", attrs={"units": "m/s"},
    coords={
        "time": np.arange(5).astype("M8[D]").astype("M8[ns]"), "site": [10, 20, 30],
        "season": ("time", list("abcde")),
    },
)  # fmt: skip

FUNCTIONS = {
    "cumulative_sum": lambda x, **k: upsweep.cumulative_sum(x, reverse=True, **k),
    "discounted_cumsum": lambda x, **k: upsweep.discounted_cumsum(x, 0.5, exclusive=True, **k),
    "linear_recurrence": lambda x, **k: upsweep.linear_recurrence(x, x, **k),
    "scan": lambda x, **k: upsweep.scan(lambda s, v: 0.5 * s + v, 0.0, x, **k),
    "ewm_mean": lambda x, **k: upsweep.ewm_mean(x, alpha=0.3, **k),
    "lfilter": lambda x, **k: upsweep.lfilter([0.5], [1.0, -0.5], x, **k),
}


def check(result, values, like):
    """The result has these bits, and everything else of `like`."""
    xr.testing.assert_identical(result, like.copy(data=values))
    assert same_bits(np.ascontiguousarray(result.to_numpy()), np.ascontiguousarray(values))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dimensions_by_name(name):
    function = FUNCTIONS[name]
    for x in (X, X.T, X.astype(np.float32), X.drop_vars("site"), X[:0], X.isel(time=slice(0, 0))):
        for dim in ("site", "time"):
            axis = x.dims.index(dim)
            check(function(x, axis=dim), function(x.to_numpy(), axis=axis), x)
            check(function(x, axis=axis - 2), function(x.to_numpy(), axis=axis), x)
    check(function(X[0]), function(X[0].to_numpy()), X[0])  # of one dimension
    for axis in (None, "space", 2, 0.5):
        with pytest.raises(ValueError, match=r"axis: expected the name of a dimension, one of \('site', 'time'\)"):
            function(X, axis=axis)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_of_dask(name):
    da = pytest.importorskip("dask.array")
    for chunks in ({"time": 2}, {"site": 1, "time": -1}):
        lazy = FUNCTIONS[name](X.chunk(chunks), axis="time")
        assert isinstance(lazy.data, da.Array)
        lazy.data.dask.validate()
        expected = FUNCTIONS[name](X, axis="time")
        xr.testing.assert_allclose(lazy.compute(), expected, rtol=1e-13)
        assert lazy.attrs == X.attrs
    y, final = upsweep.cumulative_sum(X.chunk(time=2), axis="time", return_final=True, method="tree")
    assert final.dims == ("site",) and isinstance(final.data, da.Array)
    np.testing.assert_allclose(final, y.isel(time=-1))


def test_operands_broadcast_by_name():
    decay = xr.DataArray([0.1, 0.5, 0.9], dims="site", coords={"site": [10, 20, 30]})
    ends = xr.DataArray([False, True, False, False, True], dims="time")
    result = upsweep.discounted_cumsum(X, decay, axis="time", reset=ends)
    expected = upsweep.discounted_cumsum(X.to_numpy(), decay.to_numpy()[:, np.newaxis], reset=ends.to_numpy())
    check(result, expected, X)
    check(upsweep.discounted_cumsum(X.T, decay, axis="time", reset=ends), expected.T, X.T)
    scales = xr.DataArray([0.0, 1.0], dims="scale", coords={"scale": [1, 2]})
    result = upsweep.discounted_cumsum(X, scales, axis="time")
    assert result.dims == ("site", "time", "scale") and result.scale.equals(scales.scale)
    assert result.name == "speed" and result.attrs == X.attrs
    np.testing.assert_array_equal(result.sel(scale=1), X)
    np.testing.assert_allclose(result.sel(scale=2), X.cumsum("time"))
    with pytest.raises(TypeError, match=r"reset: expected a DataArray, whose .* beside x, gamma"):
        upsweep.discounted_cumsum(X, scales, axis="time", reset=np.zeros(5, bool))
    with pytest.raises(ValueError, match=r"gamma: has other labels than x; match them, xarray\.align"):
        upsweep.discounted_cumsum(X, decay.assign_coords(site=[1, 2, 3]), axis="time")
    with pytest.raises(ValueError, match="gates: has other labels than tokens"):
        upsweep.linear_recurrence(X[:, 1:], X, axis="time")


def test_states():
    y, final = upsweep.discounted_cumsum(X, 0.5, axis="time", return_final=True)
    xr.testing.assert_identical(final, y.isel(time=-1, drop=True))
    again = upsweep.discounted_cumsum(X.T, 0.5, axis="time", initial=final)
    np.testing.assert_array_equal(again.T, upsweep.discounted_cumsum(X.to_numpy(), 0.5, initial=final.to_numpy()))
    with pytest.raises(ValueError, match=r"initial: expected the dimensions \('site',\) of a state"):
        upsweep.discounted_cumsum(X, 0.5, axis="time", initial=X)
    with pytest.raises(ValueError, match="initial: has other labels than x"):
        upsweep.discounted_cumsum(X, 0.5, axis="time", initial=final.assign_coords(site=[1, 2, 3]))
    empty = upsweep.cumulative_sum(X.isel(time=slice(0, 0)), axis="time", return_final=True)[1]
    xr.testing.assert_equal(empty, final * 0)
    number = upsweep.cumulative_sum(X[0], return_final=True)[1]
    assert isinstance(number, xr.DataArray) and number.ndim == 0


def test_other_results_and_arguments():
    with pytest.raises(ValueError, match=r"include_initial: x has no label.*pass x\.to_numpy"):
        upsweep.cumulative_sum(X, axis="time", include_initial=True)
    with pytest.raises(TypeError, match="out: does not go with labelled arrays"):
        upsweep.cumulative_sum(X, axis="time", out=np.empty((3, 5)))
    with pytest.raises(TypeError, match=r"x: expected a DataArray, got a Dataset.*x\.map"):
        upsweep.cumulative_sum(X.to_dataset())
    with pytest.raises(
        TypeError, match=r"x: expected an array, got a xarray\.DataArrayGroupBy; x\.map\(function\)"
    ):
        upsweep.cumulative_sum(X[0].groupby("season"))
    each = X[0].groupby("season").map(upsweep.cumulative_sum)
    np.testing.assert_array_equal(each, X[0])
    mapped = X.to_dataset().map(upsweep.cumulative_sum, axis="time", keep_attrs=True)  # what the message says
    np.testing.assert_allclose(mapped["speed"], X.cumsum("time"))
    keys = xr.DataArray([0, 2, 2], dims="n")
    assert same_bits(upsweep.bincount(keys), np.array([1, 0, 2]))
    assert same_bits(upsweep.histogram(X, 3)[0], np.histogram(X, 3)[0])
    carry = upsweep.cumulative_sum_carry(X, axis="time")
    assert type(carry.value) is np.ndarray and carry.value.shape == (3,)
    check(
        upsweep.ewm_mean(X, halflife="36h", times=X.time, axis="time"),
        upsweep.ewm_mean(X.to_numpy(), halflife=1.5, times=np.arange(5)),
        X,
    )


def test_times_have_the_dimension_and_the_labels_of_the_axis():
    for x, dim in ((X, "time"), (X.T, "time"), (X, "site")):
        times = xr.DataArray(np.arange(x[dim].size), coords={dim: x[dim]}, dims=dim)
        expected = upsweep.ewm_mean(x.to_numpy(), halflife=1, times=times.to_numpy(), axis=x.dims.index(dim))
        check(upsweep.ewm_mean(x, halflife=1, times=times, axis=dim), expected, x)
    with pytest.raises(ValueError, match=r"times: expected the dimension 'site' of the axis, got \('lag',\)"):
        upsweep.ewm_mean(X, halflife=1, times=times.rename(site="lag"), axis="site")
    with pytest.raises(ValueError, match="times: has other labels than x"):
        upsweep.ewm_mean(X, halflife=1, times=times.assign_coords(site=[1, 2, 3]), axis="site")


def test_dates_with_a_time_zone():
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2024-03-30", periods=6, tz="Europe/Berlin")
    x = xr.DataArray(index, dims="t")
    if not isinstance(x.dtype, np.dtype):  # older versions of xarray hold objects
        assert upsweep.histogram(x, index[[0, 2, 5]])[0].tolist() == [2, 4]
    with pytest.raises(TypeError, match="bins: its dates have no time zone, those of x have one"):
        upsweep.histogram(x, index[[0, 2, 5]].tz_localize(None))


def test_counts_by_name():
    weights, keys = X.copy(data=np.arange(15.0).reshape(3, 5)), (X > 0).astype(int)
    for ours, numpys in zip(upsweep.histogram(X, 4, weights=weights.T), np.histogram(X, 4, weights=weights)):
        assert same_bits(ours, numpys)
    expected = upsweep.bincount(keys.to_numpy(), weights.to_numpy(), axis=1)
    for axis in ("time", 1, -1):
        assert same_bits(upsweep.bincount(keys, weights.T, axis=axis), expected)
    assert same_bits(upsweep.bincount(keys.T, weights, axis="time"), expected.T)
    several = weights.expand_dims(moment=2)  # the sums come last, wherever their dimension is
    assert same_bits(upsweep.bincount(keys, several, axis="time"), np.stack((expected, expected), 2))
    for call in (
        lambda: upsweep.histogram(X, 4, weights=weights.rename(time="lag")),
        lambda: upsweep.bincount(keys[0], weights[:, 0]),
        lambda: upsweep.discounted_cumsum(np.ones((3, 5)), weights[0], reset=keys > 0),
    ):
        with pytest.raises(ValueError, match=r"(weights|reset): expected the dimensions \(.*\) of .*to_numpy"):
            call()
    with pytest.raises(ValueError, match="axis: expected the name of a dimension, one of"):
        upsweep.bincount(keys, axis="lag")
    carry = upsweep.discounted_cumsum_carry(X.to_numpy(), weights, reset=(keys > 0).T)
    expected = upsweep.discounted_cumsum_carry(X.to_numpy(), weights.to_numpy(), reset=keys.to_numpy() > 0)
    assert same_bits(carry.value, expected.value)
    flags = xr.DataArray(np.zeros((2, 3, 5), bool), dims=("run", "site", "time"))
    start = xr.DataArray(random((3, 2)), dims=("site", "run"))
    result = upsweep.cumulative_sum(np.ones((2, 3, 5)), initial=start, reset=flags)
    assert same_bits(result[..., 0], 1 + start.to_numpy().T)
