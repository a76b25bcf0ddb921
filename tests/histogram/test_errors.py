"""Hazard: histograms of what has no bins, and messages that do not say what was wrong."""

import numpy as np
import pytest
import upsweep
from upsweep import histc, histogram

X = np.array([0.5, 1.5, 2.5])
NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((X, 0), {}, ValueError, "bins: `bins` must be positive.*got 0"),
        ((X, -3), {}, ValueError, "bins: .*got -3"),
        ((X, 2.5), {}, TypeError, "bins: .*integer, a string, or an array, got 2.5"),
        ((X, None), {}, TypeError, "bins: .*got None"),
        ((X, 1 << 40), {}, ValueError, "bins: expected at most"),
        ((X, "median"), {}, ValueError, "bins: 'median' is not a valid estimator"),
        ((X, "auto"), {"weights": X}, TypeError, "bins: .*not supported for weighted data"),
        (
            (X, [0, 1, 3, 2]),
            {},
            ValueError,
            "bins: .*increase .*element 3 is 2, after 3; .* bincount",
        ),
        ((X, [0, NAN, 2]), {}, ValueError, "bins: .*element 1 is nan, after 0"),
        ((X, [[0, 1]]), {}, ValueError, "bins: .*1d.*2-D"),
        ((X, [0j, 1]), {}, TypeError, "bins: expected real numbers, got dtype complex128"),
        ((X, ["a", "b"]), {}, TypeError, "bins: "),
        ((X, 3, (2, 1)), {}, ValueError, "range: max must be larger than min"),
        ((X, 3, (0, NAN)), {}, ValueError, "range: supplied range .*is not finite"),
        ((X, 3, (-INF, 1)), {}, ValueError, "range: supplied range .*is not finite"),
        ((X, 3, (0, 10**400)), {}, ValueError, "range: supplied range .*is not finite"),
        ((X, 3, 5), {}, TypeError, "range: expected two real numbers, got 5"),
        ((X, 3, (1, 2, 3)), {}, ValueError, "range: expected two real numbers"),
        ((X, 3, ("a", "b")), {}, TypeError, "range: expected two real numbers"),
        ((X, 3, (0j, 1)), {}, TypeError, "range: expected two real numbers"),
        ((X, 10, (1, 1 + 2e-16)), {}, ValueError, "Too many bins for data range. Cannot create 10"),
        ((np.array([-1e308, 1e308]), 3), {}, ValueError, "Too many bins for data range"),
        ((np.array([-6e4, 6e4], np.float16), 3), {}, ValueError, "Too many bins for data range"),
        ((X,), {"weights": [1, 2]}, ValueError, r"weights: expected x's shape \(3,\), got \(2,\)"),
        ((X,), {"weights": ["a", "b", "c"]}, TypeError, "weights: "),
        ((X,), {"weights": np.array([1, 2, 3], object)}, TypeError, "weights: .*object"),
        (([-1e300, 0.0, 1e300], "scott"), {}, ValueError, "bins: the rule 'scott' overflows float64; scale x"),
        (([1.0, NAN, 3.0],), {}, ValueError, "x: .*range of .nan, nan. is not finite: element 1 is nan; give a"),
        (([1.0, 2.0, -INF],), {}, ValueError, "x: autodetected range of .-inf, 2.0. .*element 2 is -inf"),
        (([[1.0, 2.0], [INF, NAN]],), {}, ValueError, r"x: .*element \(1, 0\) is inf"),
        (([1.0, INF],), {"bins": "auto"}, ValueError, "x: autodetected range"),
        ((np.array([1j, 2]),), {}, TypeError, "x: expected real numbers, got dtype complex128"),
        ((np.zeros(3, np.longdouble),), {}, TypeError, "x: .*64 bits"),
        ((np.array(["a"]),), {}, TypeError, "x: "),
        ((np.ma.array(X, mask=[0, 1, 0]),), {}, TypeError, r"x: masked.*x\.filled.*x\.compressed\(\), and the"),
        ((X,), {"n_threads": 0}, ValueError, "n_threads: "),
        ((X,), {"device": "tpu"}, ValueError, "device: "),
    ],
)
def test_histogram_refuses(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        histogram(*arguments, **keywords)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((X, 0), {}, ValueError, "bins: .*got 0"),
        ((X, "auto"), {}, TypeError, "bins: .*got 'auto'"),
        ((X, 4, 2, 1), {}, ValueError, "max: max must be larger than min"),
        ((X, 4, 0, INF), {}, ValueError, "max: expected a finite number, got inf"),
        ((X, 4, NAN, 1), {}, ValueError, "min: expected a finite number, got nan"),
        ((X, 4, "a", 1), {}, TypeError, "min: expected a real number"),
        ((X, 4, -1e308, 1e308), {}, ValueError, "min: range .*too wide"),
        ((X.astype("f4"), 4, -3e38, 3e38), {}, ValueError, "min: range .*float32"),
        ((np.full(3, 6e4, "f2"), 4), {}, ValueError, "min: range .*too far from zero"),
        (([1.0, NAN], 4), {}, ValueError, "x: .*element 1 is nan"),
        (([1.0, INF], 4), {}, ValueError, "x: .*element 1 is inf"),
        (([True, False], 4), {}, TypeError, "x: expected integers or real floating numbers, got dtype bool"),
        (([1j], 4), {}, TypeError, "x: .*complex128"),
        ((np.zeros(300, np.uint8), 2, 0, 9), {}, OverflowError, "x: .*uint8 cannot hold the count 300 of bin 0"),
        ((np.zeros(70_000, np.float16), 2, 0, 9), {}, OverflowError, "x: .*float16 cannot hold the count 70000"),
        ((X, 4), {"out": np.zeros(3)}, ValueError, "out: expected shape"),
        ((X, 4), {"out": np.zeros(4, "f4")}, TypeError, "out: expected dtype"),
        ((X, 3), {"out": X}, ValueError, "out: overlaps x"),
    ],
)
def test_histc_refuses(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        histc(*arguments, **keywords)


def test_an_error_leaves_out_untouched():
    out = np.full(2, 77, np.uint8)
    with pytest.raises(OverflowError):
        histc(np.zeros(300, np.uint8), 2, 0, 9, out=out)
    assert (out == 77).all()


def test_numpys_exceptions():
    # Whatever numpy refuses of these is refused with its type of exception.
    for arguments in (([1.0, 2.0], 0), ([1.0, 2.0], 2.5), ([1.0], [1, 2, 0]), ([1.0], 3, (2, 1)), ([NAN, 1.0], 3),
                      ([1.0], "foo"), ([1.0], [[1, 2]]), ([1.0], 3, (0, INF)), ([1.0], 3, 5)):  # fmt: skip
        with pytest.raises(Exception) as reference:
            np.histogram(*arguments)
        with pytest.raises(reference.type):
            upsweep.histogram(*arguments)
