"""What the checks of one process of a group share: its rank, its shards of arrays, comparisons."""

import time

import numpy as np
import torch

TIMEOUT = 15  # seconds, of a collective
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class World:
    """This process of the group, and its shards of arrays that all processes can compute."""

    def __init__(self, rank, size, device):
        self.rank, self.size, self.device = rank, size, device

    def random(self, *shape, seed=0, dtype=torch.float64):
        x = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, shape))
        return x.to(dtype).to(self.device)

    def cut(self, length):
        """This rank's part of a length: twice as much as the rank before; the second of three has none."""
        weights = [0 if rank == 1 and self.size > 2 else 2**rank for rank in range(self.size)]
        ends = [length * sum(weights[:rank]) // sum(weights) for rank in range(self.size + 1)]
        return slice(ends[self.rank], ends[self.rank + 1])


def close(result, expected, tolerance=1e-12):
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def raises(kind, words, call):
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        assert type(error) is kind, repr(error)
        assert words in str(error), str(error)
        assert time.monotonic() - begin < TIMEOUT
        return
    raise AssertionError(f"no {kind.__name__}: {words}")
