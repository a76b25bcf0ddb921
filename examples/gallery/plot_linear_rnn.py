"""
A gated linear RNN, trained with torch
======================================

The network has to say the last input that had a mark: it needs a memory that it writes, keeps and overwrites
on demand. All steps of the recurrence run in one call, forward and backward.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
import upsweep

torch.manual_seed(19)


class GatedRecurrence(torch.nn.Module):
    def __init__(self, n_inputs, width):
        super().__init__()
        self.gate, self.token = torch.nn.Linear(n_inputs, width), torch.nn.Linear(n_inputs, width)
        self.out = torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))

    def forward(self, x):  # batch, time, inputs
        gates = torch.sigmoid(self.gate(x))
        states = upsweep.linear_recurrence(gates, (1 - gates) * self.token(x), axis=1)
        return self.out(states)[..., 0]


def batch(n=32, n_steps=64):
    values, marks = torch.rand(n, n_steps), torch.rand(n, n_steps) < 0.1
    marks[:, 0] = True
    target = upsweep.scan(
        lambda s, x: np.where(x[1], x[0], s), 0.0, (values, marks), axis=1
    )  # the last marked value
    return torch.stack([values, marks.float()], dim=2), target


model = GatedRecurrence(2, 32)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _ in range(150):
    x, target = batch()
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

x, target = batch(1, 200)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=[1, 2])
left.semilogy(losses)
left.set(xlabel="step of training", ylabel="loss")
right.step(np.arange(200), target[0], "k:", label="target")
right.plot(model(x)[0].detach(), label="network")
right.legend()
