"""Infinities, NaN and products that overflow or vanish: each kind changes x and gates, whose last axis is time."""

import numpy as np


def infinities(x, gates):
    x[..., x.shape[-1] // 3], x[..., -3:] = np.inf, -np.inf


def not_a_number_in_each_line(x, gates):
    lines = x.reshape(-1, x.shape[-1])
    at = np.random.default_rng(3).integers(0, lines.shape[1], len(lines))
    lines[np.arange(len(lines)), at] = np.nan


def first_infinities(x, gates):
    x[..., 0], gates[..., 40] = -np.inf, -1.5


def infinite_gates(x, gates):
    gates[..., gates.shape[-1] // 2], gates[..., gates.shape[-1] // 2 + 700 :: 999] = -np.inf, np.inf


def zero_gates(x, gates):
    gates[np.random.default_rng(3).random(gates.shape) < 0.1] = 0
    x[..., x.shape[-1] // 2] = np.inf


def products_that_overflow(x, gates):
    gates[..., 5:1005] = 1e4
    gates[..., 1005:2005] = 1e-4


def products_that_vanish(x, gates):
    gates[...] = 1e-3
    x[..., x.shape[-1] // 4] = np.inf


def zeros_times_what_overflows(x, gates):
    x[...], gates[...] = 0, 1e4
    x[..., -3:] = 1


def impulses(x, gates):
    x[...], gates[...] = 0, 0.5
    x[..., 3], gates[..., 10:100] = 1, 1e4
    x[..., -50], gates[..., -30:-20], gates[..., -20:-10] = 1, 1e-4, 1e4


KINDS = [
    infinities, not_a_number_in_each_line, first_infinities, infinite_gates, zero_gates, products_that_overflow,
    products_that_vanish, zeros_times_what_overflows, impulses,
]  # fmt: skip
