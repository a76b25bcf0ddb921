"""The README's recipes against plain loops: its own text is what runs here."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import upsweep
from helpers import random

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def recipes():
    """The functions that the section defines."""
    section = README.read_text().split("\n## Recipes\n")[1].split("\n## ")[0]
    names = {"np": np, "upsweep": upsweep}
    for example in doctest.DocTestParser().get_examples(re.sub(r"^```.*$", "", section, flags=re.MULTILINE)):
        if example.source.startswith("def "):
            exec(example.source, names)
    return names


def episodes(shape=(3, 200)):
    rewards, values, next_values, ends = (random(shape, seed=seed) for seed in range(4))
    terminated, truncated = ends > 0.8, ends < -0.8
    terminated[0, 17] = truncated[0, 17] = True  # both at once: there is no future
    truncated[:, -1] |= ~terminated[:, -1]
    return rewards, values, next_values, terminated, truncated


def test_advantages(recipes):
    rewards, values, next_values, terminated, truncated = arrays = episodes()
    gamma, lam = 0.9, 0.8
    expected = np.empty_like(rewards)
    for row in range(len(rewards)):
        after = 0.0
        for t in reversed(range(rewards.shape[1])):
            if terminated[row, t] or truncated[row, t]:
                after = 0.0
            future = 0.0 if terminated[row, t] else next_values[row, t]
            after = rewards[row, t] + gamma * future - values[row, t] + gamma * lam * after
            expected[row, t] = after
    np.testing.assert_allclose(recipes["gae"](*arrays, gamma, lam), expected, rtol=1e-12, atol=1e-14)


def test_returns(recipes):
    rewards, _, next_values, terminated, truncated = episodes()
    expected = np.empty_like(rewards)
    for row in range(len(rewards)):
        after = np.nan  # not read: a row ends with the end of an episode
        for t in reversed(range(rewards.shape[1])):
            if terminated[row, t]:
                after = 0.0
            elif truncated[row, t]:
                after = next_values[row, t]
            after = expected[row, t] = rewards[row, t] + 0.9 * after
    y = recipes["discounted_returns"](rewards, next_values, terminated, truncated, 0.9)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)


def test_advantages_of_tensors(recipes):
    torch = pytest.importorskip("torch")
    arrays = episodes()
    tensors = [torch.from_numpy(a) for a in arrays]
    tensors[1].requires_grad_()
    y = recipes["gae"](*tensors)
    np.testing.assert_allclose(y.detach().numpy(), recipes["gae"](*arrays), rtol=1e-12)
    y.sum().backward()
    assert (tensors[1].grad <= -1).all()
