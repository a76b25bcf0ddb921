"""
Packed sequences
================

Sequences of different lengths in one array, without padding: ``cu_seqlens`` says where each begins. Their
gated recurrence is one call, and the last state of each is what stands at its end.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import upsweep

rng = np.random.default_rng(6)
lengths = rng.integers(5, 60, 12)
cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
gates = rng.uniform(0.8, 1.0, (4, cu_seqlens[-1]))
tokens = rng.standard_normal((4, cu_seqlens[-1]))

starts = np.isin(np.arange(cu_seqlens[-1]), cu_seqlens[:-1])
states = upsweep.linear_recurrence(gates, tokens, reset=starts)
final = states[:, cu_seqlens[1:] - 1]

# %%
# Each sequence alone gives the same:

for k, (start, stop) in enumerate(itertools.pairwise(cu_seqlens)):
    alone = upsweep.linear_recurrence(gates[:, start:stop], tokens[:, start:stop])
    np.testing.assert_allclose(alone[:, -1], final[:, k])

plt.figure(figsize=(8, 3), layout="constrained")
for start, stop in itertools.pairwise(cu_seqlens):
    plt.plot(np.arange(start, stop), states[0, start:stop])
plt.plot(cu_seqlens[1:] - 1, final[0], "k.", label="last states")
plt.legend()
plt.xlabel("position in the packed array")
