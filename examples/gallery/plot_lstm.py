"""
An LSTM by ``te``
=================

A step that multiplies the state by a matrix is described by ``te``, as loops over tensors. One kernel runs
all steps.
"""

import matplotlib.pyplot as plt
import numpy as np
from upsweep import te

hidden, batch, n_steps = 16, 4, te.var("n_steps")
X = te.placeholder((n_steps, batch, 4 * hidden), name="X")  # the input, multiplied by its weights
W = te.placeholder((4 * hidden, hidden), name="W")
h = te.placeholder((n_steps, batch, hidden), name="h")
c = te.placeholder((n_steps, batch, hidden), name="c")
zero = te.compute((1, batch, hidden), lambda *_: te.const(0.0, "float32"))

k = te.reduce_axis((0, hidden), name="k")
product = te.compute((n_steps, batch, 4 * hidden), lambda t, b, i: te.sum(W[i, k] * h[t - 1, b, k], axis=k))


def gate(number, function):
    return te.compute(
        (n_steps, batch, hidden),
        lambda t, b, i: function(product[t, b, number * hidden + i] + X[t, b, number * hidden + i]),
    )


enter, forget, leave = (gate(number, te.sigmoid) for number in range(3))
proposal = gate(3, te.tanh)
new_c = te.compute(c.shape, lambda t, b, i: forget[t, b, i] * c[t - 1, b, i] + enter[t, b, i] * proposal[t, b, i])
new_h = te.compute(h.shape, lambda t, b, i: leave[t, b, i] * te.tanh(new_c[t, b, i]))
states, cells = te.scan([zero, zero], [new_h, new_c], [h, c], inputs=[X])
run = te.build(te.create_schedule([states.op]), [X, W, states, cells])

# %%
# Random weights, and an impulse at step 20:

rng = np.random.default_rng(17)
x = np.zeros((120, batch, 4 * hidden), np.float32)
x[20] = 3 * rng.standard_normal((batch, 4 * hidden))
w = rng.normal(0, 0.5, (4 * hidden, hidden)).astype(np.float32)
result, memory = run(x, w)

plt.figure(figsize=(8, 3), layout="constrained")
plt.imshow(result[:, 0].T, aspect="auto", cmap="RdBu", vmin=-0.5, vmax=0.5)
plt.xlabel("step")
plt.ylabel("hidden unit")
plt.colorbar()
