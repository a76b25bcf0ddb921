"""
Returns and advantages
======================

Discounted returns and the advantages of GAE for many environments at once. Episodes lie one after the other
in each line, and ``reset=`` ends the sum at the end of each.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(0)
n_envs, n_steps, gamma, lam = 8, 400, 0.97, 0.95
rewards = rng.random((n_envs, n_steps)) < 0.1
ends = rng.random((n_envs, n_steps)) < 0.02
values = rng.random((n_envs, n_steps)) * 3
next_values = np.roll(values, -1, axis=1)

# %%
# The last step of an episode is marked. A sum from the right drops its state there.

returns = upsweep.discounted_cumsum(rewards, gamma, reverse=True, reset=ends)
errors = rewards + gamma * next_values * ~ends - values
advantages = upsweep.discounted_cumsum(errors, gamma * lam, reverse=True, reset=ends)

# %%
# The same by a loop over time:

expected, future = np.empty_like(returns), np.zeros(n_envs)
for t in reversed(range(n_steps)):
    future = rewards[:, t] + gamma * np.where(ends[:, t], 0.0, future)
    expected[:, t] = future
np.testing.assert_allclose(returns, expected)

fig, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 4), layout="constrained")
above.plot(returns[0], label="return")
above.vlines(np.flatnonzero(rewards[0]), 0, 0.3, color="0.6", label="reward")
above.legend(loc="upper right")
below.plot(advantages[0], color="C1", label="advantage")
below.legend(loc="upper right")
for axes in (above, below):
    for end in np.flatnonzero(ends[0]):
        axes.axvline(end + 0.5, color="k", linewidth=0.8, linestyle=":")
below.set_xlabel("step; dotted: ends of episodes")
