"""Hazard: scans of tensors on a device that were prepared once, and are differentiated or followed the next time.

Without a GPU, tensors on the CPU are taken for some on a device, and kernels compiled by the C++ compiler run.
"""

import contextlib
import gc
import weakref

import numpy as np
import pytest
import upsweep
from helpers import random
from tensors import torch
from upsweep._torch import user_scan, user_scan_plans, user_scan_tensors


@pytest.fixture
def looked_at(monkeypatch):
    """How often a call, or a derivative, was looked at."""
    calls, check = [], user_scan.check
    monkeypatch.setattr(user_scan, "check", lambda *a: (calls.append("call"), check(*a))[1])
    prepare = user_scan_plans.Derivative._prepare
    monkeypatch.setattr(
        user_scan_plans.Derivative, "_prepare", lambda *a: (calls.append("derivative"), prepare(*a))[1]
    )
    return calls


def cell(s, x):
    return np.tanh(0.5 * s * x[1] + x[0])


def pair(s, x):
    return (np.tanh(s[0] * 0.5 + x[0] * s[1]), np.where(x[1] > 0, s[1], s[0])), (s[0] * s[1], x[0] > s[1])


def make_tensor(shape, device, seed=0, dtype=torch.float32, **keywords):
    return torch.tensor(random(shape, np.float64, seed), device=device).to(dtype).requires_grad_(**keywords)


@contextlib.contextmanager
def really_on_the_cpu(monkeypatch, device):
    """Tensors there are taken for what they are: the real thing beside the one that is taken for another."""
    with monkeypatch.context() as patch:
        if device == "cpu":
            patch.setattr(user_scan_tensors, "is_cuda", lambda tensor: False)
            patch.setattr(user_scan, "_lookup", lambda *a: (None, None))
        yield


def derivatives(update, init, xs, leaves, **keywords):
    """Results, and the gradients of something that reads all of them."""
    results = upsweep.scan(update, init, xs, return_final=True, **keywords)
    flat = [y for part in results for y in (part if isinstance(part, tuple) else (part,))]
    loss = sum((y.double() * torch.cos(y.double())).sum() for y in flat if y.requires_grad)
    return [y.detach().cpu() for y in flat], [g.cpu() for g in torch.autograd.grad(loss, leaves)]


def agree(result, reference_result, tolerance):
    for got, expected in zip((*result[0], *result[1]), (*reference_result[0], *reference_result[1]), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "keywords"),
    [(torch.bfloat16, {"axis": 1, "reverse": True}), (torch.float32, {})],
)
def test_a_later_call_is_the_call_on_the_cpu(device, looked_at, monkeypatch, dtype, keywords):
    """Halves are read as they are, what was broadcast is summed, numbers stay numbers."""
    n = 20 if "axis" in keywords else 30

    def on(where, seed):
        x, w = make_tensor((20, 30), where, seed, dtype), make_tensor((20, 1), where, seed + 1, dtype)
        start = make_tensor(n, where, seed + 2, dtype)
        return x, w, start

    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-4
    for seed in range(3):
        x, w, start = on(device, seed)
        result = [derivatives(cell, 0.25 * seed, (x, w), (x, w), **keywords)]
        result.append(derivatives(pair, (start, seed / 2), (x, w), (start, x), **keywords))
        n_looks = len(looked_at)
        with really_on_the_cpu(monkeypatch, device):
            x, w, start = on("cpu", seed)
            agree(result[0], derivatives(cell, 0.25 * seed, (x, w), (x, w), **keywords), tolerance)
            reference_result = derivatives(pair, (start, seed / 2), (x, w), (start, x), **keywords)
            agree(result[1], reference_result, tolerance)
        looked_at[n_looks:] = []
    assert sorted(looked_at) == ["call", "call", "derivative", "derivative"]


def test_whether_it_is_differentiated(device):
    x, w = make_tensor((10, 4), device), make_tensor((10, 4), device, 1)
    for _ in range(2):
        assert not upsweep.scan(cell, 0.5, (x.detach(), w.detach())).requires_grad
        assert upsweep.scan(cell, 0.5, (x, w.detach())).requires_grad
        with torch.no_grad():
            assert not upsweep.scan(cell, 0.5, (x, w)).requires_grad
        assert upsweep.scan(cell, 0.5, (x, w)).requires_grad
        y = upsweep.scan(cell, 0.5, (x.detach(), w))
        (g,) = torch.autograd.grad(y.sum(), w)
        assert g.shape == w.shape
    x.requires_grad_(False)
    assert not upsweep.scan(cell, 0.5, (x, w.detach())).requires_grad


def test_cotangents_of_every_kind(device):
    """None, one number repeated, transposed; of some results, or of the last state alone."""
    x, w = make_tensor((12, 9), device), make_tensor((12, 9), device, 1)

    def run():
        return upsweep.scan(cell, 0.5, (x, w), return_final=True)

    def by(loss):
        return torch.autograd.grad(loss, (x, w))

    factor = make_tensor((9, 12), device, 2).detach()
    for _ in range(2):
        y, last = run()
        ones = by((y * torch.ones_like(y)).sum())
        for got, expected in zip(by(run()[0].sum()), ones):
            torch.testing.assert_close(got, expected)
        of_transposed = torch.autograd.grad(run()[0], (x, w), factor.t())
        for got, expected in zip(of_transposed, by((run()[0] * factor.t().contiguous()).sum())):
            torch.testing.assert_close(got, expected)
        for got, expected in zip(by(run()[1].sum()), by(run()[0][-1].sum())):
            torch.testing.assert_close(got, expected)
        assert all(
            g is None
            for g in torch.autograd.grad(y.sum() * 0 + last.sum() * 0, [make_tensor(3, device)], allow_unused=True)
        )


def test_derivatives_of_higher_order_after_first_ones(device, monkeypatch):
    def second(where):
        x, w = make_tensor((5, 3), where), make_tensor((5, 1), where, 1)
        y = upsweep.scan(cell, 0.5, (x, w))
        (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        return torch.autograd.grad((first * first).sum(), (x, w))

    x, w = make_tensor((5, 3), device), make_tensor((5, 1), device, 1)
    upsweep.scan(cell, 0.5, (x, w)).sum().backward()
    result = second(device)
    with really_on_the_cpu(monkeypatch, device):
        for got, expected in zip(result, second("cpu"), strict=True):
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_who_follows_tensors_sees_the_same_after_a_plan(device):
    x, w = make_tensor((6, 3), device), make_tensor((6, 3), device, 1)

    def total(x):
        return upsweep.scan(cell, 0.5, (x, w.detach())).sum()

    (expected,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(torch.func.grad(total)(x.detach()), expected)
    batched = torch.func.vmap(lambda x: upsweep.scan(cell, 0.5, (x, w.detach())))(torch.stack([x.detach()] * 2))
    torch.testing.assert_close(batched[1], upsweep.scan(cell, 0.5, (x, w)).detach())
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode, plain = FakeTensorMode(), (x.detach(), w.detach())
    with mode:
        y = upsweep.scan(cell, 0.5, tuple(map(mode.from_tensor, plain)))
    assert type(y).__name__ == "FakeTensor" and y.shape == x.shape
    with torch.autocast(device, torch.bfloat16):
        assert upsweep.scan(cell, 0.5, (x, w)).dtype == torch.float32


def test_negated_views_and_integers_are_looked_at(device):
    x = make_tensor((6, 3), device).detach()
    negated = torch._neg_view(x)
    for _ in range(2):
        torch.testing.assert_close(
            upsweep.scan(cell, 0.5, (negated, 1.0)), upsweep.scan(cell, 0.5, (-x, 1.0)), rtol=1e-6, atol=1e-6
        )
        assert upsweep.scan(cell, 0.5, (x.int(), 1.0)).dtype == torch.get_default_dtype()


def test_what_was_changed_in_place_is_not_differentiated(device):
    x, w = make_tensor((6, 3), device), make_tensor((6, 3), device, 1)
    for _ in range(2):
        y = upsweep.scan(cell, 0.5, (x, w))
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_results_can_be_changed_in_place(device):
    for keywords in ({}, {"axis": 1}, {"reverse": True}):
        x = make_tensor((6, 3), device)
        ys = upsweep.scan(lambda s, x: (np.tanh(s + x), (s, s * x)), 0.5, x, **keywords)
        expected = torch.autograd.grad(ys[0].sum() + (ys[1] * ys[1]).sum(), x)
        ys = upsweep.scan(lambda s, x: (np.tanh(s + x), (s, s * x)), 0.5, x, **keywords)
        ys[0].add_(1)
        torch.testing.assert_close(torch.autograd.grad(ys[0].sum() + ys[1].square_().sum(), x), expected)


def test_states_are_saved_only_if_the_derivative_reads_them(device, monkeypatch):
    shapes, library = [], user_scan_tensors.view_tensor.__self__
    new = type(library).new
    monkeypatch.setattr(type(library), "new", lambda self, *a: (shapes.append(a[0]), new(self, *a))[1])
    x = make_tensor((7, 5), device)
    for update, n_saved in ((lambda s, x: 0.9 * s + x, 0), (lambda s, x: np.tanh(s + x), 1)):
        shapes.clear()
        upsweep.scan(update, 0.5, x)
        assert shapes == [(7, 5)] * (1 + n_saved)


def test_a_plan_keeps_no_tensor(device):
    def update(s, x):
        return np.tanh(s + x)

    x = make_tensor((7, 5), device)
    y = upsweep.scan(update, 0.5, x)
    y.sum().backward()
    of = [weakref.ref(each) for each in (x, y)]
    del x, y
    gc.collect()
    assert [each() for each in of] == [None, None]
