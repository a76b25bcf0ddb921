"""Scans of blocks that are tensors: like those of arrays, with gradients over blocks."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, operands, random, split_at
from tensors import DEVICES, to_array, to_tensor, torch

PARTS = split_at(40, 0, 7, 30)


def cut(x):
    return (x[..., part] for part in PARTS) if getattr(x, "ndim", 0) else x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("name", SCANS)
def test_like_those_of_arrays(name, dtype, device):
    arrays = operands(name, (3, 40), dtype)
    reset = random((3, 40), seed=3) > 0.9
    tensors = [to_tensor(a, device) for a in arrays]
    result = upsweep.scan_blocks(getattr(upsweep, name), *map(cut, tensors), reset=cut(to_tensor(reset, device)))
    y = np.concatenate([to_array(block) for block in result], axis=-1)
    whole, final = getattr(upsweep, name)(*arrays, reset=reset, return_final=True)
    np.testing.assert_allclose(y, whole, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(to_array(result.state), final, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_windows(device):
    x, reset = random((3, 40)), random((3, 40), seed=3) > 0.9
    result = upsweep.scan_blocks(
        upsweep.discounted_cumsum, cut(to_tensor(x, device)), 0.5, reset=cut(to_tensor(reset, device)), window=5
    )
    y = np.concatenate([to_array(block) for block in result], axis=-1)
    np.testing.assert_allclose(y, upsweep.discounted_cumsum(x, 0.5, reset=reset, window=5), rtol=1e-12)


def test_gradients_go_over_blocks():
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(40, dtype=dtype, requires_grad=True)
        blocks = list(upsweep.scan_blocks(upsweep.cumulative_sum, cut(x)))
        blocks[-1].sum().backward()
        assert torch.equal(x.grad, torch.cat([torch.full((30,), 10.0), torch.arange(10.0, 0, -1)]).to(dtype))
