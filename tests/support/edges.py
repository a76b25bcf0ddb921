"""Numbers that are hard to put into the right bin."""

import hypothesis
import numpy as np
from hypothesis import strategies as st


def around(edges, dtype):
    """The edges in this dtype, and the numbers on either side of each."""
    edges = np.asarray(edges).astype(dtype)
    if edges.dtype.kind in "iu":
        return np.concatenate([edges, edges + edges.dtype.type(1), edges - edges.dtype.type(1)])
    infinity = np.array(np.inf, dtype)
    return np.concatenate([edges, np.nextafter(edges, infinity), np.nextafter(edges, -infinity)])


def hard_numbers(generator, dtype, n_bins, low, high):
    """Edges of uniform bins, their neighbours, and others in and around the range."""
    others = generator.uniform(low - 0.1 * (high - low), high + 0.1 * (high - low), 300)
    return np.concatenate([around(np.linspace(low, high, n_bins + 1), dtype), others.astype(dtype)])


# Calls test(numbers, n_bins, low, width, dtype).
with_random_bins = hypothesis.given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
    st.integers(1, 50),
    st.floats(-50, 50, width=32),
    st.floats(0.125, 60, width=32),
    st.sampled_from(["float32", "float64"]),
)
