"""Hazard: a table of answers whose code does not run, or computes something else than its row says.

Every answer that begins with code runs, on the arrays that the page defines; numpy computes the same by its own
means.
"""

import doctest
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import upsweep
from upsweep._utils.peer_functions import _ANSWERS

PAGE = (Path(__file__).parents[2] / "docs" / "looked_for.md").read_text()
ROWS = dict(re.findall(r"^\| (?!you looked for)(.+?) \| (.+) \|$", PAGE, re.MULTILINE))
# An answer in code: a call or a formula, and no mere name.
ANSWERS = {
    looked_for: code[1] for looked_for, answer in ROWS.items() if (code := re.match(r"`([^`]*\(.*?)`", answer))
}


def loop(step, state, *xs):
    states = []
    for each in zip(*xs):
        state = step(state, *each)
        states.append(state)
    return np.array(states)


def iir(b, a, x):
    """The difference equation of a filter, with a[0] == 1."""
    y = np.zeros_like(x)
    for t in range(x.size):
        y[t] = sum(factor * x[t - k] for k, factor in enumerate(b[: t + 1]))
        y[t] -= sum(factor * y[t - k] for k, factor in enumerate(a[: t + 1]) if k)
    return y


def segments(function, v):
    return np.concatenate([function(part) for part in np.split(v.x, v.cu_seqlens[1:-1])])


def groups(function, v):
    return np.concatenate([function(v.x[v.sorted_keys == key]) for key in range(3)])


def means(v):
    """Exponentially weighted means by their definition."""
    weights = 0.9 ** np.arange(12)
    return np.array([np.average(v.x[: t + 1], weights=weights[t::-1]) for t in range(12)])


def squares(v):
    return ((v.p[:, None] - v.q) ** 2).sum(axis=2)


def discounted(x, gamma, ends):
    """Sums from the right, which end with the episodes."""
    factors = np.where(ends, 0, gamma)
    return loop(lambda s, a, x: x + a * s, 0.0, factors[::-1], x[::-1])[::-1]


def soft_means(v):
    weights = np.exp(-squares(v))
    return weights @ v.q / weights.sum(axis=1, keepdims=True)


def solution(v):
    kernel = np.exp(-((v.q[:, None] - v.q) ** 2).sum(axis=2))
    return np.linalg.solve(kernel + 0.1 * np.eye(7), v.b[:, None])


def errors(v):
    return v.rewards + 0.99 * v.next_values * ~v.dones - v.values


def n_step_returns(v):
    """Three rewards and the value of the state after them, or the rewards up to the end of the episode."""
    returns = []
    for begin, end in zip(v.cu_seqlens, v.cu_seqlens[1:]):
        for t in range(begin, end):
            last = min(t + 3, end)
            future = 0.0 if last == end else 0.99**3 * v.next_values[last - 1]
            returns.append(sum(0.99**k * r for k, r in enumerate(v.rewards[t:last])) + future)
    return returns


def at(ufunc, v, length=3):
    result = np.zeros(length)
    ufunc.at(result, v.keys, v.x)
    return result


EXPECTED = {
    "`np.cumsum`": lambda v: np.cumsum(v.x),
    "exclusive scan": lambda v: np.r_[0, np.cumsum(v.x)[:-1]],
    "cumulative sum from the right": lambda v: np.cumsum(v.x[::-1])[::-1],
    "segmented scan": lambda v: segments(np.cumsum, v),
    "groupby cumsum": lambda v: groups(np.cumsum, v),
    "groupby cumcount": lambda v: groups(lambda part: np.arange(part.size), v),
    "rolling sum": lambda v: np.convolve(v.x, np.ones(3))[:12],
    "rolling mean": lambda v: [v.x[max(t - 2, 0) : t + 1].mean() for t in range(12)],
    "expanding mean": lambda v: [v.x[: t + 1].mean() for t in range(12)],
    "`min_periods` of": lambda v: [np.nan] * 2 + [v.x[t - 2 : t + 1].sum() for t in range(2, 12)],
    "sum of the last": lambda v: [v.x[(v.times > t - 0.3) & (v.times <= t)].sum() for t in v.times],
    "events of the last": lambda v: [((v.times > t - 0.3) & (v.times <= t)).sum() for t in v.times],
    "box filter": lambda v: [
        [v.image[max(i - 2, 0) : i + 1, max(j - 2, 0) : j + 1].sum() for j in range(16)] for i in range(16)
    ],
    "exponential smoothing": lambda v: loop(lambda s, x: 0.9 * s + 0.1 * x, v.x[0], v.x),
    "`ewm().mean": means,
    "`ewm(min_periods": lambda v: np.r_[np.nan, np.nan, means(v)[2:]],
    "IIR filter": lambda v: iir([0.2, 0.2], [1, -0.6], v.x),
    "FIR filter": lambda v: np.convolve(v.x, [0.5, 0.3, 0.2])[:12],
    "`filtfilt`": lambda v: iir([0.2, 0.2], [1, -0.6], iir([0.2, 0.2], [1, -0.6], v.x)[::-1])[::-1],
    "`sosfilt`": lambda v: iir([1, 0.5], [1, -0.5, 0.1], iir([0.2, 0.2], [1, -0.6], v.x)),
    "`decimate`": lambda v: np.convolve(v.x, [0.5, 0.3, 0.2])[:12:2],
    "drawdown": lambda v: v.x / np.maximum.accumulate(v.x) - 1,
    "GARCH": lambda v: loop(lambda s, e: 1e-6 + 0.1 * e**2 + 0.85 * s, v.x.var(), v.x),
    "cumprod": lambda v: np.cumprod(v.x),
    "cummax, ": lambda v: np.maximum.accumulate(v.x),
    "where the maximum": lambda v: (np.maximum.accumulate(v.x), [np.argmax(v.x[: t + 1]) for t in range(12)]),
    "cummin": lambda v: np.minimum.accumulate(v.x),
    "cummax of each group": lambda v: segments(np.maximum.accumulate, v),
    "`torch.logcumsumexp`": lambda v: np.log(np.cumsum(np.exp(v.x))),
    "forward fill": lambda v: loop(lambda s, x: s if x < 0.3 else x, np.nan, v.x),
    "linear RNN": lambda v: loop(lambda s, a, x: a * s + x, 0.0, v.gates, v.x),
    "`associative_scan` of (gate": lambda v: loop(lambda s, a, x: a * s + x, 0.0, v.gates, v.x),
    "`jax.lax.scan`": lambda v: loop(lambda s, x: np.tanh(0.5 * s + x), 0.0, v.x),
    "`carry, ys": lambda v: (np.append(0, np.cumsum(v.x)[:-1]) * v.x, v.x.sum()),
    "discounted returns": lambda v: discounted(v.rewards, 0.99, v.dones),
    "GAE": lambda v: discounted(errors(v), 0.99 * 0.95, v.dones),
    "V-trace": lambda v: discounted(v.rewards, 0.99 * v.gates, v.dones),
    "eligibility traces": lambda v: loop(lambda s, x, new: x + 0.99 * 0.9 * s * (not new), 0.0, v.x, v.starts),
    "returns of packed": lambda v: discounted(v.rewards, 0.99, v.dones),
    "n-step returns": n_step_returns,
    "n-step sums": lambda v: [
        sum(0.99**k * r for k, r in enumerate(v.rewards[t : min(t + 3, end)]))
        for begin, end in zip(v.cu_seqlens, v.cu_seqlens[1:])
        for t in range(begin, end)
    ],
    "steps since": lambda v: segments(lambda part: np.arange(part.size), v),
    "`dones` as float32": lambda v: discounted(v.rewards, 0.99, v.dones),
    "`dones` of CleanRL": lambda v: discounted(v.rewards, 0.99, v.dones),
    "`value_counts`, `np.bincount`": lambda v: np.unique(v.keys, return_counts=True)[1],
    "`value_counts` of strings": lambda v: [1, 2],
    "groupby sum": lambda v: at(np.add, v),
    "`np.add.at`": lambda v: at(np.add, v),
    "groupby mean": lambda v: [v.x[v.keys == key].mean() for key in range(3)],
    "confusion matrix": lambda v: [
        [((v.keys == i) & (v.sorted_keys == j)).sum() for j in range(3)] for i in range(3)
    ],
    "histogram of an image": lambda v: [(v.image == level).sum() for level in range(256)],
    "histogram of each row": lambda v: [[(row == level).sum() for level in range(256)] for row in v.image],
    "histogram of each channel": lambda v: np.stack([(v.rgb == n).sum(axis=(0, 1)) for n in range(256)]),
    "minimum or maximum by label": lambda v: [v.image[v.labels == label].min() for label in range(3)],
    "histogram of each group": lambda v: [np.histogram(v.x[v.keys == key], 10, (0, 1))[0] for key in range(3)],
    "sums of weights": lambda v: np.stack([at(np.add, v), at(np.add, SimpleNamespace(keys=v.keys, x=v.x**2))], 1),
    "zonal statistics": lambda v: [v.image[v.labels == label].sum() for label in range(3)],
    "variance by label": lambda v: [v.image[v.labels == label].var() for label in range(3)],
    "histogram equalisation": lambda v: [
        [255 * (v.image <= level).sum() // 256 for level in row] for row in v.image
    ],
    "`sumw2`": lambda v: np.sqrt(np.histogram(v.x, 10, (0, 1), weights=v.w**2)[0]),
    "flow bins": lambda v: (
        [(v.x < 0.2).sum(), *np.histogram(v.x, 6, (0.2, 0.8))[0], (v.x >= 0.8).sum()],
        [-np.inf, *np.linspace(0.2, 0.8, 7), np.inf],
    ),
    "profile histogram": lambda v: [v.y[np.floor(3 * v.x) == n].mean() for n in range(3)],
    "`np.histogram_bin_edges`": lambda v: np.histogram_bin_edges(v.x, 10, (0, 1)),
    "`axis=` of": lambda v: np.stack([np.histogram(line, 5, (0, 1))[0] for line in v.p.T], axis=1),
    "integral image": lambda v: v.image.astype(int).cumsum(axis=0).cumsum(axis=1),
    "`np.histogram`": lambda v: np.histogram(v.x, 10, (0, 1)),
    "`torch.histc`": lambda v: np.histogram(v.x, 10, (0, 1))[0],
    "k nearest neighbours": lambda v: squares(v).argsort(axis=1)[:, :2],
    "nearest centroid": lambda v: squares(v).argmin(axis=1)[:, None],
    "soft k-means": soft_means,
    "kernel density": lambda v: np.exp(-squares(v) / 0.18).sum(axis=1, keepdims=True),
    "kernel matrix times vector": lambda v: np.exp(-squares(v)) @ v.b,
    "`logsumexp` of a kernel": lambda v: np.log(np.exp(-squares(v)).sum(axis=1, keepdims=True)),
    "neighbours within a radius": lambda v: (squares(v) < 0.1).sum(axis=1, keepdims=True),
    "Hausdorff distance": lambda v: np.sqrt(squares(v).min(axis=1).max()),
    "kernel ridge regression": solution,
}


@pytest.fixture
def names():
    """What the page's first block defines."""
    names = {}
    for example in doctest.DocTestParser().get_examples(PAGE.split("\n## ")[0].replace("```", "")):
        exec(example.source, names)
    return names


def code_for(start):
    (code,) = (code for looked_for, code in ANSWERS.items() if looked_for.startswith(start))
    return code


def test_the_examples_of_the_page_give_the_output_shown():
    test = doctest.DocTestParser().get_doctest(
        re.sub(r"^```.*$", "", PAGE, flags=re.MULTILINE), {}, "page", None, 0
    )
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_answer_is_expected_and_every_expectation_has_an_answer():
    starts = {looked_for: [start for start in EXPECTED if looked_for.startswith(start)] for looked_for in ANSWERS}
    assert [looked_for for looked_for, matches in starts.items() if len(matches) != 1] == []
    assert len(ANSWERS) == len(EXPECTED) and len(ROWS) > len(ANSWERS) > 40


def test_the_error_for_a_function_of_another_package_quotes_the_page():
    with pytest.raises(
        AttributeError, match=r"attribute 'cumsum'; docs/looked_for.md says: `upsweep.cumulative_sum\(x\)`$"
    ):
        upsweep.cumsum([1.0])
    names = " ".join(_ANSWERS.values()).split()
    assert [name for name in names if hasattr(upsweep, name) or names.count(name) > 1] == []
    assert [answer for answer in _ANSWERS if answer not in PAGE] == []


@pytest.mark.parametrize("start", EXPECTED)
def test_the_answer_computes_what_its_row_says(start, names):
    actual, expected = eval(code_for(start), names), EXPECTED[start](SimpleNamespace(**names))
    for one, other in zip(actual, expected, strict=True) if isinstance(actual, tuple) else [(actual, expected)]:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_the_bins_of_two_coordinates_are_numpys_where_elements_lie_on_edges(dtype, names):
    """Decimal numbers are beside edges by a rounding; NaN and what is outside lies in no bin."""
    x, y = np.round(np.random.default_rng(0).uniform(-4, 4, (2, 5000)), 1).astype(dtype)
    if x.dtype.kind == "f":
        x[::50], y[::70] = np.nan, np.inf
    x_edges, y_edges = np.linspace(-3, 3, 61), np.linspace(-3, 3, 31)
    bins = np.ravel_multi_index((names["cells"](x, x_edges), names["cells"](y, y_edges)), (62, 32))
    counts = upsweep.bincount(bins, minlength=62 * 32).reshape(62, 32)[1:-1, 1:-1]
    np.testing.assert_array_equal(counts, np.histogram2d(x, y, (60, 30), ((-3, 3), (-3, 3)))[0])


def test_histograms_leave_out_what_is_outside_and_nan(names):
    x = np.tile([-0.5, 1.0, 1.5, np.nan, 0.05, -0.01], 2)
    expected = [np.histogram(x[names["keys"] == key], 10, (0, 1))[0] for key in range(3)]
    np.testing.assert_array_equal(eval(code_for("histogram of each group"), {**names, "x": x}), expected)
    p = np.array([[0.1, np.nan], [1.5, np.nan]])
    counts = eval(code_for("`axis=` of"), {**names, "p": p})
    np.testing.assert_array_equal(counts, [[1, 0], [0, 0], [0, 0], [0, 0], [1, 0]])


def test_combined_keys_of_eight_bits_do_not_wrap_around(names):
    code = code_for("confusion").replace("3, 3", "200, 3").replace("=9", "=600")
    counts = eval(code, {**names, "keys": np.array([199], np.uint8), "sorted_keys": np.array([2], np.uint8)})
    assert counts[199, 2] == counts.sum() == 1


def test_integral_images_of_float32_are_not_rounded_to_it(names):
    image = np.array([[2**24, 1]], np.float32)
    assert eval(code_for("integral image"), {**names, "image": image})[0, -1] == 2**24 + 1


def test_the_variance_by_label_does_not_cancel(names):
    code, image = code_for("variance by label"), names["image"] + 1e9
    moved = eval(code, {**names, "image": image, "means": names["means"] + 1e9})
    np.testing.assert_allclose(moved, eval(code, names), rtol=1e-6)


@pytest.fixture
def recipes(names):
    """The functions of the longer answers."""
    for example in doctest.DocTestParser().get_examples(re.sub(r"^```.*$", "", PAGE, flags=re.MULTILINE)):
        if example.source.startswith("def "):
            exec(example.source, names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("k", [3, 7, 20])
def test_the_rolling_deviation_of_a_flat_stretch_is_a_number(k, recipes):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(100, 1, 500), np.full(500, 100.0), rng.normal(0, 1, 200)])
    expected = np.lib.stride_tricks.sliding_window_view(x, k).std(-1, ddof=1)
    np.testing.assert_allclose(recipes.rolling_std(x, k)[k - 1 :], expected, atol=1e-5)


def test_the_weighted_variance_leaves_gaps_out_as_pandas_does(recipes):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = np.where(rng.random(300) < 0.3, np.nan, rng.normal(1e4, 1, 300))
    x[:3] = np.nan
    variance = upsweep.scan(recipes.ewm_variance, (0.0, 0.0, 0.0, 0.0), x)
    np.testing.assert_allclose(variance, pd.Series(x).ewm(alpha=0.1).var(), rtol=1e-7)
