"""
The forward pass of a hidden Markov model
=========================================

A machine is either healthy or worn, and its noise says which. The forward pass is a recurrence of two states,
in logarithms.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(5)
stay = np.log([[0.99, 0.01], [0.02, 0.98]])
draws = rng.random(600)
hidden = np.zeros(600, int)
for t in range(1, 600):
    hidden[t] = hidden[t - 1] ^ (draws[t] < (0.01, 0.02)[hidden[t - 1]])
noise = rng.normal(0, np.array([1.0, 2.0])[hidden])
likelihoods = tuple(-0.5 * (noise / scale) ** 2 - np.log(scale) for scale in (1.0, 2.0))


def forward(state, observed):
    healthy, worn = state
    return (
        np.logaddexp(healthy + stay[0, 0], worn + stay[1, 0]) + observed[0],
        np.logaddexp(healthy + stay[0, 1], worn + stay[1, 1]) + observed[1],
    )


healthy, worn = upsweep.scan(forward, (np.log(0.5), np.log(0.5)), likelihoods)
probability = 1 / (1 + np.exp(healthy - worn))
print("log-likelihood of all observations:", np.logaddexp(healthy[-1], worn[-1]).round(2))

plt.figure(figsize=(8, 3), layout="constrained")
plt.plot(noise, color="0.8", label="noise")
plt.fill_between(np.arange(600), 6 * hidden, color="C1", alpha=0.3, label="worn")
plt.plot(6 * probability, label="probability of worn (x 6)")
plt.legend(loc="lower left")
