"""The rounding promise as an assertion, for the tests of this package and of those that build on it."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["assert_scan_close"]

Array = NDArray[Any]

# dtype: bits of the fraction, exponents of the smallest and of the largest normal number, and the share of
# the scale that accumulation may lose.
_FORMATS = {
    "float16": (10, -14, 15, 1e-6),
    "bfloat16": (7, -126, 127, 1e-6),
    "float32": (23, -126, 127, 1e-15),
    "float64": (52, -1022, 1023, 1e-13),
    "complex64": (23, -126, 127, 1e-15),
    "complex128": (52, -1022, 1023, 1e-13),
}


def assert_scan_close(
    actual: ArrayLike, expected: ArrayLike, scale: ArrayLike, *, rtol: float | None = None
) -> None:
    """Raise AssertionError unless a scan is within half a unit in the last place + rtol * scale.

    Parameters
    ----------
    actual : array_like
        The result of a scan, in its own dtype.
    expected : array_like
        What it should be, of the same shape and, to be of use, in a wider dtype.
    scale : array_like
        The same scan of ``abs(x)`` (and of ``abs(gates)``): what there was to be rounded before anything
        cancelled. Broadcast to the result.
    rtol : float, optional
        The share of `scale` that accumulation may lose. By default what upsweep promises: 1e-6 for float16
        and bfloat16, 1e-15 for float32 and complex64; 1e-13 for float64 and complex128.

    Notes
    -----
    NaN matches NaN, and an infinity the same infinity, or a number that rounds to it. A complex number with
    a NaN or an infinity in either part matches any other such. Results below the smallest normal number
    match zero, because the kernels flush them. Integers must be equal.

    Examples
    --------
    >>> import numpy as np
    >>> from upsweep.testing import assert_scan_close
    >>> x = np.array([0.1, 0.2, 0.3], np.float32)
    >>> wide = np.cumsum(x, dtype=np.float64)
    >>> assert_scan_close(wide.astype(np.float32), wide, wide)
    """
    a, e = np.asarray(actual), np.asarray(expected)
    if a.shape != e.shape:
        raise AssertionError(f"actual has the shape {a.shape}, expected has {e.shape}")
    if a.dtype.kind in "iu":
        return _raise_where(a != e, a, e, np.zeros(a.shape))
    fraction, smallest, largest, promised = _FORMATS[a.dtype.newbyteorder("=").name]
    loss = np.asarray(scale, np.longdouble) * (promised if rtol is None else rtol)
    loss = np.where(np.isfinite(loss), loss, 0)
    if a.dtype.kind != "c":
        return _compare(a, e, loss, fraction, smallest, largest)
    lost = ~np.isfinite(a)
    limit = np.ldexp(np.longdouble(1), largest + 1)
    never = np.maximum(np.abs(e.real), np.abs(e.imag)) + loss < limit * (1 - 2.0 ** -(fraction + 2))
    _raise_where((lost & never) | (~lost & ~np.isfinite(e)), a, e, loss)
    both = ~lost & np.isfinite(e)
    for part in ("real", "imag"):
        a_part, e_part = (np.where(both, getattr(z, part), 0) for z in (a, e))
        _compare(a_part, e_part, loss, fraction, smallest, largest)
    return None


def _compare(a: Array, e: Array, loss: Array, fraction: int, smallest: int, largest: int) -> None:
    """Compare real arrays; the last place is that of the larger of the two numbers."""
    one = np.longdouble(1)
    wide, exact = a.astype(np.longdouble), e.astype(np.longdouble)
    flushed = np.ldexp(one, -1022 if fraction == 52 else -126)
    overflow = np.ldexp(one, largest + 1) - np.ldexp(one, largest - fraction - 1)
    with np.errstate(invalid="ignore"):
        larger = np.fmin(np.fmax(np.abs(wide), np.abs(exact)), np.ldexp(one, largest))
        exponent = np.maximum(np.frexp(np.where(np.isnan(larger), 0, larger))[1] - 1, smallest)
        allowed = np.maximum(np.ldexp(one / 2, exponent - fraction) + loss, flushed)
        close = np.abs(wide - exact) <= allowed
        spilled = np.isinf(wide) & (np.sign(wide) == np.sign(exact)) & (np.abs(exact) + loss >= overflow)
    _raise_where(~(close | spilled | (np.isnan(wide) & np.isnan(exact))), a, e, allowed)


def _raise_where(bad: Array, a: Array, e: Array, allowed: Array) -> None:
    if not bad.any():
        return
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    error = float(np.broadcast_to(allowed, bad.shape)[first])
    raise AssertionError(
        f"{int(bad.sum())} of {bad.size} elements differ by more than they may; the first is at {first}: "
        f"actual {a[first]}, expected {e[first]}, allowed error {error:.3g}"
    )
