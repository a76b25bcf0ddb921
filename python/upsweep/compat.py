"""The scans under the names, and with the meaning, of other packages.

`discounted_cumsum_right` and `discounted_cumsum_left` have the names of torch-discounted-cumsum; `pscan`,
`scan_forward` and `PScan` those of fpscan. The functions here also take what those packages refuse: any length,
any strides, any number of axes, and arrays of all libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from upsweep import _arrays
from upsweep._arrays.dispatch import handlers
from upsweep.scans import discounted_cumsum, linear_recurrence

if TYPE_CHECKING:
    from typing import Unpack

    from upsweep._arrays import Array
    from upsweep._arrays.static_types import A, ArrayLike, HostArray, Keywords, Number
else:
    from numpy.typing import ArrayLike

__all__ = ["PScan", "discounted_cumsum_left", "discounted_cumsum_right", "pscan", "scan_forward"]

P = ParamSpec("P")
R = TypeVar("R")


def _x_or_input(function: Callable[P, R]) -> Callable[P, R]:
    """Accept the first argument as `input` too, its name in torch-discounted-cumsum."""

    @functools.wraps(function)
    def called(*args: P.args, **keywords: P.kwargs) -> R:
        if "input" in keywords:
            if "x" in keywords:
                raise TypeError("input: is another name for x, which is given too")
            keywords["x"] = keywords.pop("input")
        return function(*args, **keywords)

    return called


# fmt: off
@overload
def discounted_cumsum_right(
    x: HostArray, gamma: HostArray, *, out: Array | None = None, **keywords: Unpack[Keywords],
) -> Array: ...
@overload
def discounted_cumsum_right(
    x: A, gamma: ArrayLike, *, out: A | None = None, **keywords: Unpack[Keywords],
) -> A: ...
# fmt: on
@_x_or_input
def discounted_cumsum_right(
    x: ArrayLike, gamma: ArrayLike, *, out: Any = None, n_threads: int | None = None, device: str | None = None
) -> Any:
    """Discounted sum of each element and those to its right, along the last axis: y[t] = x[t] + gamma * y[t+1].

    Parameters
    ----------
    x : array_like
        As in `discounted_cumsum`; may be passed as ``input=`` too, its name in torch-discounted-cumsum.
    gamma : float or array_like
        As in `discounted_cumsum`, but a 1-D gamma with one number for each row of a 2-D x is per row. With a
        tensor x, numbers are rounded to its dtype, as in torch-discounted-cumsum; `discounted_cumsum` does not
        round them.
    out, n_threads, device
        As in `discounted_cumsum`.

    Returns
    -------
    y : array of x's library
        It has the shape that x and gamma broadcast to, and the dtype that `discounted_cumsum` gives.

    Raises
    ------
    TypeError, ValueError
        As `discounted_cumsum`: for arguments that are no numbers or do not broadcast, and an `out` that does not
        fit.

    See Also
    --------
    discounted_cumsum : dtypes, gradients; the same with ``reverse=True``.

    Notes
    -----
    The function has the name and the meaning of that of torch-discounted-cumsum.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum_right(np.ones((1, 4)), 0.5)
    array([[1.875, 1.75 , 1.5  , 1.   ]])
    """
    gamma = _gamma_of_rows(x, gamma)
    return discounted_cumsum(x, gamma, axis=-1, reverse=True, out=out, n_threads=n_threads, device=device)


# fmt: off
@overload
def discounted_cumsum_left(
    x: HostArray, gamma: HostArray, *, out: Array | None = None, **keywords: Unpack[Keywords],
) -> Array: ...
@overload
def discounted_cumsum_left(
    x: A, gamma: ArrayLike, *, out: A | None = None, **keywords: Unpack[Keywords],
) -> A: ...
# fmt: on
@_x_or_input
def discounted_cumsum_left(
    x: ArrayLike, gamma: ArrayLike, *, out: Any = None, n_threads: int | None = None, device: str | None = None
) -> Any:
    """Discounted sum of each element and those to its left, along the last axis: y[t] = x[t] + gamma * y[t-1].

    Parameters
    ----------
    x, gamma, out, n_threads, device
        As in `discounted_cumsum_right`.

    Returns
    -------
    y : array of x's library
        It has the shape that x and gamma broadcast to, and the dtype that `discounted_cumsum` gives.

    Raises
    ------
    TypeError, ValueError
        As `discounted_cumsum`: for arguments that are no numbers or do not broadcast, and an `out` that does not
        fit.

    See Also
    --------
    discounted_cumsum_right : from the other end.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.discounted_cumsum_left(np.ones((2, 3)), [0.5, 2.0])
    array([[1.  , 1.5 , 1.75],
           [1.  , 3.  , 7.  ]])
    """
    gamma = _gamma_of_rows(x, gamma)
    return discounted_cumsum(x, gamma, axis=-1, out=out, n_threads=n_threads, device=device)


@overload
def pscan(gates: HostArray, tokens: HostArray) -> Array: ...
@overload
def pscan(gates: A | Number, tokens: A | Number) -> A: ...
def pscan(gates: ArrayLike, tokens: ArrayLike) -> Any:
    """Gated recurrence along the last axis from a zero state, under fpscan's name.

    Parameters
    ----------
    gates, tokens : array_like
        As in `linear_recurrence`; in fpscan of shape (batch, dim, seqlen).

    Returns
    -------
    y : array of their library
        It has the shape that they broadcast to, and their result type.

    Raises
    ------
    TypeError, ValueError
        As `linear_recurrence`: for arguments that are no numbers or do not broadcast.

    See Also
    --------
    linear_recurrence : dtypes, gradients; any axis, other states.

    Examples
    --------
    >>> import numpy as np, upsweep
    >>> upsweep.pscan(np.full((1, 1, 3), 0.5), np.ones((1, 1, 3)))
    array([[[1.  , 1.5 , 1.75]]])
    """
    return linear_recurrence(gates, tokens, axis=-1)


class PScan:
    """`pscan` in the form of a ``torch.autograd.Function``, as in fpscan: ``PScan.apply(gates, tokens)``.

    It is no subclass of ``torch.autograd.Function``. So it works without torch and for arrays of all libraries,
    and derivatives of any order, the compiler and transforms work as for `pscan`.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.PScan.apply([0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    array([1.  , 1.5 , 1.75])
    """

    apply: Callable[..., Any] = staticmethod(pscan)


# fmt: off
@overload
def scan_forward(
    gates: HostArray, tokens: HostArray, reverse: bool = False, out: Array | None = None
) -> Array: ...
@overload
def scan_forward(gates: A | Number, tokens: A | Number, reverse: bool = False, out: A | None = None) -> A: ...
# fmt: on
def scan_forward(gates: ArrayLike, tokens: ArrayLike, reverse: bool = False, out: Any = None) -> Any:
    """`pscan` in either direction, optionally into `out`, under fpscan's name; it never tracks gradients.

    Parameters
    ----------
    gates, tokens : array_like
        As in `linear_recurrence`.
    reverse : bool
        Run from the end to the start.
    out : array, optional
        The result is written to it, even where an argument requires a gradient.

    Returns
    -------
    y : array of their library
        As that of `pscan`; `out` itself where it is passed.

    Raises
    ------
    TypeError, ValueError
        As `linear_recurrence`: for arguments that are no numbers or do not broadcast, and an `out` that does not
        fit.

    See Also
    --------
    linear_recurrence : any axis, states in and out; gradients.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.scan_forward([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], reverse=True)
    array([1.75, 1.5 , 1.  ])
    """
    if _arrays.any_torch(gates, tokens, out):
        return handlers("torch").scan.scan_forward(gates, tokens, reverse=reverse, out=out)
    return linear_recurrence(gates, tokens, axis=-1, reverse=reverse, out=out)


def _gamma_of_rows(x: Any, gamma: Any) -> Any:
    """Return gamma, with an axis for the steps where it has one number for each row of a 2-D x."""
    if _arrays.any_torch(x, gamma):
        gamma = handlers("torch").scan.round_gamma(x, gamma)
    elif type(gamma) is float or type(gamma) is int or _arrays.any_labelled(gamma):  # labels say whose it is
        return gamma
    elif _arrays.any_dask(x, gamma):
        x, gamma = handlers("dask").as_operands({"x": x, "gamma": gamma}).values()
    elif not _arrays.any_dlpack_only(x, gamma):
        x = x if _arrays.any_labelled(x) else _arrays.as_operand(x, "x")
        gamma = _arrays.as_operand(gamma, "gamma")
    per_row = getattr(x, "ndim", 0) == 2 and tuple(getattr(gamma, "shape", ())) == tuple(x.shape[:1])
    return gamma[:, None] if per_row else gamma
