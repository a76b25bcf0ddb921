"""
GARCH volatility
================

The variance of tomorrow depends on the variance and the return of today. ``upsweep.scan`` compiles the
recurrence; all candidates for the parameters are columns of one call, so the likelihood of a grid is a single
scan.
"""

import matplotlib.pyplot as plt
import numpy as np
import upsweep

omega, alpha, beta = 0.05, 0.15, 0.8


def simulate(variance, noise):
    shock = np.sqrt(variance) * noise
    return omega + alpha * shock**2 + beta * variance, (shock, variance)


noise = np.random.default_rng(2).standard_normal(3000)
returns, variance = upsweep.scan(simulate, 1.0, noise)

# %%
# The filter takes returns as its input, and the parameters as inputs too, which broadcast over time.


def filtered(variance, inputs):
    shock, omega, alpha, beta = inputs
    return omega + alpha * shock**2 + beta * variance, variance


alphas, betas = np.linspace(0.02, 0.4, 40), np.linspace(0.5, 0.97, 48)
grid_alpha, grid_beta = np.meshgrid(alphas, betas, indexing="ij")
omegas = np.maximum(1 - grid_alpha - grid_beta, 0.01) * returns.var()
estimate = upsweep.scan(filtered, returns.var(), (returns[:, None, None], omegas, grid_alpha, grid_beta))
likelihood = -0.5 * (np.log(estimate) + returns[:, None, None] ** 2 / estimate).sum(axis=0)
best = np.unravel_index(likelihood.argmax(), likelihood.shape)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(np.abs(returns[-400:]), color="0.75", label="|return|")
left.plot(np.sqrt(variance[-400:]), label="true volatility")
left.plot(np.sqrt(estimate[(slice(-400, None), *best)]), "--", label="estimated")
left.legend()
image = right.pcolormesh(betas, alphas, likelihood - likelihood.max(), vmin=-50)
right.plot(beta, alpha, "w+", markersize=12)
right.plot(betas[best[1]], alphas[best[0]], "wx")
right.set(xlabel="beta", ylabel="alpha", title="log-likelihood; + true, x best")
fig.colorbar(image)
