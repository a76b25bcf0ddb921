"""The recipes of the guide against plain loops: its own text is what runs here."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import upsweep
from helpers import random

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "resets.md"


@pytest.fixture(scope="module")
def recipes():
    """The functions that the page defines."""
    names = {"np": np, "upsweep": upsweep}
    for example in doctest.DocTestParser().get_examples(
        re.sub(r"^```.*$", "", PAGE.read_text(), flags=re.MULTILINE)
    ):
        if example.source.startswith("def "):
            exec(example.source, names)
    return names


def episodes(shape=(3, 200)):
    rewards, values, next_values, ends = (random(shape, seed=seed) for seed in range(4))
    terminated, truncated = ends > 0.8, ends < -0.8
    terminated[0, 17] = truncated[0, 17] = True  # both at once: there is no future
    truncated[:, -1] |= ~terminated[:, -1]
    return rewards, values, next_values, terminated, truncated


def test_time_along_the_first_axis(recipes):
    rewards, _, next_values, *ends = arrays = episodes()
    for name, operands in (("gae", arrays), ("discounted_returns", (rewards, next_values, *ends))):
        recipe, columns = recipes[name], [array.T for array in operands]
        np.testing.assert_allclose(recipe(*columns, axis=0).T, recipe(*operands), rtol=1e-12)


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


def test_masks_of_any_dtype(recipes):
    rewards, values, next_values, *ends = episodes()
    for dtype in (np.int64, np.uint8, np.float32):
        masks = [mask.astype(dtype) for mask in ends]
        for name, operands in (
            ("gae", (rewards, values, next_values)),
            ("discounted_returns", (rewards, next_values)),
        ):
            expected = recipes[name](*operands, *ends)
            np.testing.assert_array_equal(recipes[name](*operands, *masks), expected)


def test_buffers_whose_masks_mark_first_steps(recipes):
    """The loop of CleanRL's PPO, in which `dones[t]` is that of the step before."""
    (rewards, values), (next_value, draws) = (random((2, *shape), seed=len(shape)) for shape in ((50, 4), (4,)))
    dones, next_done = (random((50, 4), seed=5) > 0.8).astype(float), (draws > 0).astype(float)
    expected, after = np.empty_like(rewards), np.zeros(4)
    for t in reversed(range(50)):
        is_last = t == 49
        goes_on = 1.0 - (next_done if is_last else dones[t + 1])
        following = next_value if is_last else values[t + 1]
        after = rewards[t] + 0.9 * following * goes_on - values[t] + 0.9 * 0.8 * goes_on * after
        expected[t] = after
    actual = recipes["ppo_advantages"](rewards, values, dones, next_value[None], next_done, 0.9, 0.8)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_advantages_of_tensors(recipes):
    torch = pytest.importorskip("torch")
    arrays = episodes()
    tensors = [torch.from_numpy(a) for a in arrays]
    tensors[1].requires_grad_()
    y = recipes["gae"](*tensors)
    np.testing.assert_allclose(y.detach().numpy(), recipes["gae"](*arrays), rtol=1e-12)
    y.sum().backward()
    assert (tensors[1].grad <= -1).all()
