"""The scans under the names, and with the meaning, that users of other packages know.

`discounted_cumsum_right` and `discounted_cumsum_left` are torch-discounted-cumsum's, `pscan` and `scan_forward`
fpscan's.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from upsweep import _arrays
from upsweep._arrays import Array
from upsweep.scans import discounted_cumsum, linear_recurrence

__all__ = ["discounted_cumsum_left", "discounted_cumsum_right", "pscan", "scan_forward"]


def discounted_cumsum_right(
    x: ArrayLike,
    gamma: ArrayLike,
    *,
    out: Array | None = None,
    n_threads: int | None = None,
    device: str | None = None,
) -> Array:
    """Discounted sum of what lies to the right, along the last axis: y[t] = x[t] + gamma * y[t+1].

    Parameters
    ----------
    x : array_like
        As in `discounted_cumsum`.
    gamma : float or array_like
        As there; a 1-D gamma with one number for each row of a 2-D x is per row.
    out, n_threads, device
        As in `discounted_cumsum`.

    Returns
    -------
    y : ndarray

    Raises
    ------
    TypeError, ValueError
        As `discounted_cumsum`.

    Notes
    -----
    Named after the function of torch-discounted-cumsum, and means the same.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum_right(np.ones((1, 4)), 0.5)
    array([[1.875, 1.75 , 1.5  , 1.   ]])
    """
    gamma = _gamma_of_rows(x, gamma)
    return discounted_cumsum(x, gamma, reverse=True, out=out, n_threads=n_threads, device=device)


def discounted_cumsum_left(
    x: ArrayLike,
    gamma: ArrayLike,
    *,
    out: Array | None = None,
    n_threads: int | None = None,
    device: str | None = None,
) -> Array:
    """Discounted sum of what lies to the left, along the last axis: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x : array_like
        As in `discounted_cumsum`.
    gamma : float or array_like
        As there; a 1-D gamma with one number for each row of a 2-D x is per row.
    out, n_threads, device
        As in `discounted_cumsum`.

    Returns
    -------
    y : ndarray

    Raises
    ------
    TypeError, ValueError
        As `discounted_cumsum`.

    Notes
    -----
    Named after the function of torch-discounted-cumsum, and means the same.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum_left(np.ones((2, 3)), [0.5, 2.0])
    array([[1.  , 1.5 , 1.75],
           [1.  , 3.  , 7.  ]])
    """
    gamma = _gamma_of_rows(x, gamma)
    return discounted_cumsum(x, gamma, out=out, n_threads=n_threads, device=device)


def pscan(gates: ArrayLike, tokens: ArrayLike) -> Array:
    """Gated recurrence along the last axis from a zero state, under fpscan's name.

    Parameters
    ----------
    gates, tokens : array_like
        As in `linear_recurrence`; in fpscan of shape (batch, dim, seqlen).

    Returns
    -------
    y : ndarray

    Raises
    ------
    TypeError, ValueError
        As `linear_recurrence`.

    Notes
    -----
    Named after the function of fpscan, and means the same, for any length and any strides.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.pscan(np.full((1, 1, 3), 0.5), np.ones((1, 1, 3)))
    array([[[1.  , 1.5 , 1.75]]])
    """
    return linear_recurrence(gates, tokens)


def scan_forward(gates: ArrayLike, tokens: ArrayLike, reverse: bool = False, out: Array | None = None) -> Array:
    """`pscan` in either direction, into `out` if given, under fpscan's name.

    Parameters
    ----------
    gates, tokens : array_like
        As in `linear_recurrence`.
    reverse : bool
        Run from the end to the start.
    out : ndarray, optional
        The result goes here.

    Returns
    -------
    y : ndarray

    Raises
    ------
    TypeError, ValueError
        As `linear_recurrence`.

    Notes
    -----
    Named after the function of fpscan, and means the same; no gradient is ever tracked through it.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.scan_forward([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], reverse=True)
    array([1.75, 1.5 , 1.  ])
    """
    if _arrays.any_torch(gates, tokens, out):
        from upsweep._torch import scans as torch_scans

        result: Array = torch_scans.scan_forward(gates, tokens, reverse=reverse, out=out)  # a tensor, as all were
        return result
    return linear_recurrence(gates, tokens, reverse=reverse, out=out)


def _gamma_of_rows(x: ArrayLike, gamma: ArrayLike) -> Any:
    if type(gamma) is float or type(gamma) is int:
        return gamma
    if _arrays.any_torch(x, gamma) or _arrays.any_lent(x, gamma):
        return _own_gamma_of_rows(x, gamma)
    rows, factor = _arrays.as_operand(x, "x"), _arrays.as_operand(gamma, "gamma")
    return factor[:, None] if rows.ndim == 2 and factor.shape == rows.shape[:1] else factor


def _own_gamma_of_rows(x: Any, gamma: Any) -> Any:
    """By the indexing of the arrays' own library."""
    per_row = getattr(x, "ndim", 0) == 2 and tuple(getattr(gamma, "shape", ())) == tuple(x.shape[:1])
    return gamma[:, None] if per_row else gamma
