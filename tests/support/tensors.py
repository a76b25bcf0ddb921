"""What the tests of torch tensors share: conversion, and the comparison of a call with its reference."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, reference_of_long_lines, reference_scan, same_bits
from upsweep import reference
from upsweep.testing import assert_scan_close

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def to_tensor(value, device="cpu"):
    """The array as a tensor with the same strides; Python numbers and None as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == BFLOAT16:
        return to_tensor(value.view(np.uint16), device).view(torch.bfloat16)
    if any(stride < 0 for stride in value.strides) or not value.flags.writeable:
        value = value.copy()
    tensor = torch.from_numpy(value)
    if device == "cpu":
        return tensor
    # .to() may lay a tensor out anew: the strides are what some tests are about.
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    flat = torch.as_strided(tensor, (size,), (1,)).to(device)
    return torch.as_strided(flat, tensor.shape, tensor.stride())


def to_array(tensor):
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16)
    return tensor.numpy()


def check_tensors(name, *arrays, device, with_out=True, long_lines=False, **keywords):
    """Compare a call on tensors with the reference on arrays, and again into poisoned memory."""
    tensors = [to_tensor(a, device) for a in arrays]
    operand = {key: to_tensor(value, device) for key, value in keywords.items()}
    result = getattr(upsweep, name)(*tensors, **operand)
    results = result if isinstance(result, tuple) else (result,)
    if long_lines:
        assert all(a.dtype == np.float32 for a in arrays if isinstance(a, np.ndarray))
        dtypes, expected = [np.float32] * len(results), reference_of_long_lines(name, *arrays, **keywords)
    else:
        rounded = getattr(reference, name)(*arrays, **keywords)
        dtypes = [r.dtype for r in (rounded if isinstance(rounded, tuple) else (rounded,))]
        expected = reference_scan(name, *arrays, **keywords)
    assert len(results) == len(dtypes) == len(expected)
    half = np.dtype(dtypes[0]).name in ("float16", "bfloat16")
    for actual, dtype, (exact, scale) in zip(results, dtypes, expected):
        assert actual.device.type == device
        actual = to_array(actual)
        assert actual.dtype == dtype, f"{actual.dtype} is not {dtype}"
        assert_scan_close(actual, exact, scale, rtol=1e-6 if half else None)
    if with_out:
        out = torch.empty_like(results[0])
        out.fill_(torch.nan if out.is_floating_point() or out.is_complex() else 77)
        again = getattr(upsweep, name)(*tensors, out=out, **operand)
        assert (again[0] if isinstance(again, tuple) else again) is out
        assert same_bits(to_array(out), to_array(results[0]))
    return result
