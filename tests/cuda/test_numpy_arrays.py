"""numpy arrays with device="cuda": copied to the device, computed, copied back."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, operands, random, reference_scan
from upsweep.testing import assert_scan_close

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_dtypes_and_axes(name, dtype):
    for reverse in (False, True):
        check_on_device(name, *operands(name, (3, 1000), dtype), reverse=reverse)
        check_on_device(name, *operands(name, (300, 33), dtype), axis=0, reverse=reverse)


def check_on_device(name, *arrays, **keywords):

    result = getattr(upsweep, name)(*arrays, device="cuda", **keywords)
    on_cpu = getattr(upsweep, name)(*arrays, **keywords)
    results, others = (r if isinstance(r, tuple) else (r,) for r in (result, on_cpu))
    for y, other, (exact, scale) in zip(results, others, reference_scan(name, *arrays, **keywords)):
        assert isinstance(y, np.ndarray) and y.dtype == other.dtype
        half = others[0].dtype.name in ("float16", "bfloat16")
        assert_scan_close(y, exact, scale, rtol=1e-6 if half else None)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
def test_integers(dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 3000)).astype(dtype)
    y = upsweep.cumulative_sum(x, device="cuda")
    assert y.dtype == np.cumsum(x, -1).dtype and (y == np.cumsum(x, -1)).all()
    assert (upsweep.cumulative_sum(x, dtype=np.int16, device="cuda") == np.cumsum(x, -1, dtype=np.int16)).all()


@pytest.mark.parametrize("name", SCANS)
def test_states_resets_and_strides(name):
    arrays = operands(name, (4, 500), np.float32)
    keywords = {"initial": random((4,), np.float32, 5), "reset": random((4, 500), seed=6) > 0.9}
    for exclusive in (False, True):
        check_on_device(name, *arrays, exclusive=exclusive, return_final=True, **keywords)
    flipped = [a[::-1, ::-2] if isinstance(a, np.ndarray) else a for a in arrays]
    check_on_device(name, *flipped, reverse=True)
    swapped = [a.astype(a.dtype.newbyteorder()) if isinstance(a, np.ndarray) else a for a in arrays]
    check_on_device(name, *swapped)
    check_on_device(name, *(np.broadcast_to(a, (3, *a.shape)) if isinstance(a, np.ndarray) else a for a in arrays))


def test_out_of_any_strides():
    x = random((3, 1000), np.float32)
    out = np.full((3, 2000), np.nan, np.float32)[:, ::2]
    assert upsweep.discounted_cumsum(x, 0.9, out=out, device="cuda") is out
    np.testing.assert_allclose(out, upsweep.discounted_cumsum(x, 0.9), rtol=1e-6)


def test_more_axes_than_a_launch_takes():
    base = random((4,) * 9, np.float32)
    x = base[(slice(0, 4, 2),) * 9]
    axes = (3, 0, 5, 2, 8, 1, 7, 4, 6)
    y = upsweep.discounted_cumsum(x.transpose(axes), 0.5, device="cuda")
    np.testing.assert_allclose(y, upsweep.discounted_cumsum(x.transpose(axes), 0.5), rtol=1e-6)


def test_nothing_to_do():
    assert upsweep.cumulative_sum(np.ones((0, 5)), device="cuda").shape == (0, 5)
    y, final = upsweep.discounted_cumsum(np.ones((2, 0)), 0.5, initial=3.0, return_final=True, device="cuda")
    assert y.shape == (2, 0) and (final == 3).all()


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match="cudaErrorInvalidDevice"):
        upsweep.cumulative_sum(np.ones(3), device="cuda:99")
