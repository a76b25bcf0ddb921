"""The program of the gallery that trains a network runs, and the network learns."""

import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from tensors import torch  # noqa: F401  # skips without torch


def test_the_network_learns():
    program = Path(__file__).parents[2] / "examples" / "gallery" / "plot_linear_rnn.py"
    with mpl.rc_context({"backend": "Agg"}):
        try:
            losses = runpy.run_path(str(program))["losses"]
        finally:
            plt.close("all")
    assert losses[-1] < losses[0] / 3
