"""What to write in place of functions of other packages that upsweep does not have, for its AttributeError.

The answers are those of docs/looked_for.md, which a test runs.
"""

_ANSWERS = {
    "`upsweep.cumulative_sum(x)`": "cumsum inclusive_scan prefix_sum",
    "`upsweep.cumulative_sum(x, exclusive=True)`": "exclusive_scan exclusive_sum",
    "`upsweep.cumulative_sum(x, reset=starts)`": "segment_cumsum segmented_scan",
    "`upsweep.discounted_cumsum(x, 1.0, window=3)`": "move_sum moving_sum rolling rolling_sum",
    "`upsweep.discounted_cumsum(x, 1.0, window=3) / np.minimum(np.arange(1, 13), 3)`": "move_mean rolling_mean",
    "Not here: bottleneck's `move_max` and `move_median`": (
        "move_max move_median move_min rolling_max rolling_median rolling_min"
    ),
    "`upsweep.ewm_mean(x, alpha=0.1, adjust=False)`": "ema exponential_smoothing",
    "`upsweep.ewm_mean(x, alpha=0.1)`": "ewm ewma",
    "`upsweep.lfilter([0.5, 0.3, 0.2], [1.0], x)`": "convolve fir_filter",
    "`upsweep.lfilter([0.5, 0.3, 0.2], [1.0], x)[::2]`": "decimate",
    "`upsweep.lfilter([0.2, 0.2], [1.0, -0.6], upsweep.lfilter([0.2, 0.2], [1.0, -0.6], x)[..., ::-1])"
    "[..., ::-1]`": "filtfilt",
    "`reduce(lambda y, section: upsweep.lfilter(section[:3], section[3:], y), sections, x)`": "sosfilt",
    "`upsweep.scan(lambda s, x: s * x, 1.0, x)`": "cumprod cumulative_prod",
    "`upsweep.scan(lambda s, x: np.maximum(s, x), -np.inf, x)`": "cummax cumulative_max maximum",
    "`upsweep.scan(lambda s, x: np.minimum(s, x), np.inf, x)`": "cummin cumulative_min minimum",
    "`upsweep.scan(lambda s, x: np.logaddexp(s, x), -np.inf, x)`": "logcumsumexp",
    "`upsweep.linear_recurrence(gates, x)`": "linear_scan selective_scan",
    "`upsweep.scan` takes the step instead, and finds the operator": "associative_scan",
    "`upsweep.discounted_cumsum(rewards, 0.99, reverse=True, reset=dones)`": "discounted_returns rewards_to_go",
    "`upsweep.discounted_cumsum(rewards + 0.99 * next_values * ~dones - values, 0.99 * 0.95, reverse=True, "
    "reset=dones)`": "gae",
    "`upsweep.bincount(keys)`": "count unique_counts value_counts",
    "`upsweep.bincount(keys, weights=x)`": (
        "groupby groupby_sum index_add scatter_add scatter_sum segment_sum unsorted_segment_sum"
    ),
    "`upsweep.bincount(keys, weights=x) / upsweep.bincount(keys)`": "groupby_mean scatter_mean segment_mean",
    "`upsweep.bincount(labels.ravel(), weights=image.ravel())`": "sum_labels",
    "`upsweep.bincount(np.ravel_multi_index((keys, sorted_keys), (3, 3)), minlength=9).reshape(3, 3)`": (
        "confusion_matrix crosstab"
    ),
    "`upsweep.cumulative_sum(upsweep.cumulative_sum(image, axis=0, dtype=float), axis=1)`": "integral_image",
    "`upsweep.discounted_cumsum(upsweep.discounted_cumsum(image, 1.0, window=3, axis=0), 1.0, "
    "window=3, axis=1)`": "box_filter uniform_filter",
    "`(255 * upsweep.cumulative_sum(upsweep.bincount(image.ravel(), minlength=256)) // image.size)[image]`": (
        "equalize_hist"
    ),
    "`upsweep.bincount(keys, weights=x, out=total, accumulate=True)`": "add_at",
    "Not here: `np.minimum.reduceat(x, cu_seqlens[:-1])`, `torch.segment_reduce`": "segment_max segment_min",
    "Not here: numpy, or `torch.scatter_reduce`": "scatter_max scatter_min scatter_reduce",
    "Not here: `np.digitize`, `np.searchsorted`": "cut digitize searchsorted",
    "Not here: `np.searchsorted(np.quantile(x, [0.25, 0.5, 0.75]), x)`": "qcut",
    "Not here: numpy, torch": "argsort median sort topk unique",
    "`upsweep.histogram(x, bins=10, range=(0, 1))`": "hist histogram1d",
    "`upsweep.histogram(x, bins=10, range=(0, 1))[1]`": "histogram_bin_edges",
    "`upsweep.histogram(x, 3, (0, 1), weights=y)[0] / upsweep.histogram(x, 3, (0, 1))[0]`": (
        "binned_statistic profile"
    ),
    "`Vi(p).sqdist(Vj(q)).argKmin(2, axis=1)`": "kneighbors knn",
    "Not here, since no such matrix is stored: `scipy.spatial.distance.cdist`, `torch.cdist`": "cdist pdist",
    "`upsweep.bincount` of combined keys": "histogram2d histogramdd joint_histogram",
    "`upsweep.discounted_cumsum` of differences from the mean and of their squares": "rolling_std rolling_var",
    "`upsweep.scan` of weight, mean and squares": "ewm_std ewm_var",
}


def answer_for(name: str) -> str:
    """Return what to write in place of a function of another package; "" where nothing is known of the name."""
    return next((answer for answer, names in _ANSWERS.items() if name in names.split()), "")
