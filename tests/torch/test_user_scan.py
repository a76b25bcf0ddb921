"""User-defined scans of tensors: the arrays' results, and gradients of any order."""

import numpy as np
import pytest
import upsweep
from helpers import random
from tensors import torch


def tensor(shape, seed=0, **keywords):
    return torch.tensor(random(shape, seed=seed), requires_grad=True, **keywords)


def cell(s, x):
    return np.tanh(0.5 * s * x[1] + x[0])


def coupled(s, x):
    return (s[0] * 0.9 + x * s[1], np.where(x > 0, s[1], s[0])), s[0] * s[1]


@pytest.mark.parametrize("keywords", [{}, {"reverse": True}, {"axis": 1}, {"axis": -1, "reverse": True}])
def test_results_are_those_of_arrays(keywords):
    for dtype in (np.float32, np.float64):
        x, start = random((40, 40), dtype), random(40, dtype)
        result = upsweep.scan(
            cell, torch.from_numpy(start), (torch.from_numpy(x), 0.5), return_final=True, **keywords
        )
        reference_result = upsweep.scan(cell, start, (x, np.asarray(0.5, dtype)), return_final=True, **keywords)
        for got, expected in zip(result, reference_result):
            assert isinstance(got, torch.Tensor)
            np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("checkpoint", [None, 4])
@pytest.mark.parametrize("keywords", [{}, {"reverse": True}, {"axis": 1}])
def test_gradients(keywords, checkpoint):
    start = tensor(6 if keywords.get("axis") else 3, 2)

    def run(x, w, start):
        return upsweep.scan(cell, start, (x, w), return_final=True, checkpoint=checkpoint, **keywords)

    arguments = (tensor((6, 3)), tensor((1, 3), 1), start)
    assert torch.autograd.gradcheck(run, arguments)
    if checkpoint is None:
        assert torch.autograd.gradgradcheck(run, arguments)


def test_gradients_of_several_states():
    def run(x, a, b):
        return upsweep.scan(coupled, (a, b), x, axis=1)

    arguments = (tensor((4, 7)), tensor(4, 1), tensor(4, 2))
    assert torch.autograd.gradcheck(run, arguments)
    assert torch.autograd.gradgradcheck(run, arguments)


def test_a_branch_that_is_not_taken_contributes_nothing():
    """To first and second derivatives, where the square root has none."""
    x = torch.tensor([-1.0, 4.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = upsweep.scan(lambda s, x: 0.5 * s + np.where(x > 0, np.sqrt(x), x * x * x), 0.0, x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    weight = 2 - 0.5 ** torch.arange(3, -1, -1, dtype=torch.float64)  # 1 + 1/2 + 1/4 + ...
    np.testing.assert_allclose(first.detach(), weight * torch.tensor([3, 0.25, 0, 0.5]))
    (second,) = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second, weight * torch.tensor([-6, -1 / 32, 0, -0.25]))


def test_gradients_are_those_of_arrays():
    x, start = tensor((30, 5)), tensor(5, 1)
    y = upsweep.scan(lambda s, x: s * x + np.exp(-x), start, x)
    y.sum().backward()
    results = upsweep.scan.gradient(
        lambda s, x: s * x + np.exp(-x), start.detach().numpy(), x.detach().numpy(), np.ones((30, 5))
    )
    np.testing.assert_allclose(x.grad, results.xs)
    np.testing.assert_allclose(start.grad, results.init)


def test_parallel_in_time():
    x = tensor(20_000)
    y = upsweep.scan(lambda s, x: 0.9 * s + x, 0.0, x)
    y.sum().backward()
    expected = upsweep.discounted_cumsum(np.ones(20_000), 0.9, reverse=True)
    np.testing.assert_allclose(x.grad, expected)


def test_dtypes():
    assert upsweep.scan(lambda s, x: s + x, 0, torch.arange(4)).dtype == torch.get_default_dtype()
    assert upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, dtype=torch.float16)).dtype == torch.float16
    assert upsweep.scan(lambda s, x: s | x, False, torch.tensor([False, True])).tolist() == [False, True]
    for dtype in (torch.complex64, torch.float8_e5m2):
        with pytest.raises(TypeError, match="xs: expected float16, bfloat16, float32, float64, integers or bool"):
            upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, dtype=dtype))
    with pytest.raises(TypeError, match="xs: is on meta"):
        upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4, device="meta"))


def test_gradients_only_where_they_are_wanted():
    x = torch.randn(9, 3)
    assert not upsweep.scan(lambda s, x: s + x, 0.0, x).requires_grad
    with torch.no_grad():
        assert not upsweep.scan(lambda s, x: s + x, 0.0, x.requires_grad_()).requires_grad


def test_out_is_for_arrays():
    with pytest.raises(TypeError, match="out: goes with numpy arrays only"):
        upsweep.scan(lambda s, x: s + x, 0.0, torch.ones(4), out=torch.ones(4))


@pytest.mark.filterwarnings("ignore")  # of torch about its own prototypes
def test_tensors_that_are_not_dense():
    decay = lambda s, x: 0.5 * s + x  # noqa: E731
    x = torch.ones(3, 2)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(TypeError, match=r"xs: expected a dense tensor, got one of layout torch\.sparse"):
            upsweep.scan(decay, 0.0, sparse)
        with pytest.raises(TypeError, match=r"init\[1\]: expected a dense tensor, got one of layout"):
            upsweep.scan(lambda s, x: (s[0] + x, s[1]), (0.0, sparse), torch.ones(4, 3, 2))
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(TypeError, match="xs: expected a dense tensor, got"):
            upsweep.scan(decay, 0.0, nested)


RATES = [0.5]  # a list may change without a sign: such an update is traced at each call


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("view", ["whole", "turned", "strided", "broadcast", "empty"])
def test_what_needs_no_derivative_goes_numpys_way(view, axis, reverse):
    x = torch.from_numpy(random((6, 8, 10), np.float32))
    x = {
        "whole": x,
        "turned": x.permute(2, 0, 1),
        "strided": x[::2, :, 1::3],
        "broadcast": x[:, :1].expand(6, 9, 10),
        "empty": x[:, :0],
    }[view]
    for update in (lambda s, x: RATES[0] * s + x, lambda s, x: (np.tanh(s + x), x > s)):
        keywords = {"axis": axis, "reverse": reverse, "return_final": True}
        result = upsweep.scan(update, 0.0, x, **keywords)
        reference_result = upsweep.scan(update, 0.0, x.clone().requires_grad_(), **keywords)
        for one, other in zip(result, reference_result, strict=True):
            assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, False)
            np.testing.assert_allclose(one, other.detach(), rtol=1e-6, atol=1e-6)
