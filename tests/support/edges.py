"""Numbers that are hard to put into the right bin."""

import numpy as np


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
