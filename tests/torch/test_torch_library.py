"""The operation inside torch's machinery: opcheck, the compiler, vmap, autocast, graphs, streams, devices."""

import re
import textwrap
import warnings
from pathlib import Path

import pytest
import upsweep
from helpers import run_python
from tensors import DEVICES, torch
from upsweep._torch import scan_ops

on_each_device = pytest.mark.parametrize("device", DEVICES)


def tensors(*shape, device, n=2, grad=False):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(*shape, generator=generator).to(device).requires_grad_(grad) for _ in range(n)]


@on_each_device
def test_opcheck(device):

    x, gates = tensors(3, 7, device=device, grad=True)
    reset = torch.zeros(3, 7, dtype=torch.bool, device=device)
    gamma, initial = (t[:, 0].detach().requires_grad_() for t in (x, gates))
    for arguments in [
        (x, gates, None, 1.0, None, None, 1, False, True, 0, 0, torch.float32),
        (x, gates, None, 1.0, initial, reset, 1, True, True, 0, 0, torch.float32),
        (x, None, gamma, 1.0, initial, None, 1, False, True, 0, 0, torch.float32),
        (x.detach(), None, None, 0.5, None, None, 0, False, True, 0, 0, torch.float32),
    ]:
        torch.library.opcheck(scan_ops.scan.default, arguments)


@on_each_device
def test_the_compiler_takes_it_whole(device):
    def function(gates, x, initial):
        y, final = upsweep.linear_recurrence(gates, x, initial=initial, return_final=True)
        return upsweep.discounted_cumsum(y, 0.5, reverse=True).sin().sum() + final.sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    gates, x = tensors(3, 7, device=device, grad=True)
    initial = x[:, 0].detach()
    grads = [torch.autograd.grad(f(gates, x, initial), (gates, x)) for f in (function, compiled)]
    for eager, traced in zip(*grads):
        torch.testing.assert_close(eager, traced)


def test_the_compiler_has_nothing_to_warn_of():
    functions = [
        upsweep.pscan, upsweep.scan_forward, lambda gates, x: upsweep.cumulative_sum(x),
        lambda gates, x: upsweep.discounted_cumsum_left(input=x, gamma=gates[:, 0]),
        lambda gates, x: upsweep.linear_recurrence_carry(gates, x).value,
    ]  # fmt: skip
    arguments = tensors(3, 7, device="cpu")
    for function in functions:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            traced = torch.compile(function, fullgraph=True, backend="eager")(*arguments)
        torch.testing.assert_close(traced, function(*arguments))


@on_each_device
@pytest.mark.parametrize("shapes", [[(3, 5), (4, 7), (9, 2)]])
def test_the_compiler_takes_shapes_and_gammas_that_change(shapes, device):
    def function(x, gamma):
        return upsweep.discounted_cumsum(x, gamma, reverse=True) + upsweep.pscan(x, x)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape, gamma in zip(shapes, (0.5, 0.75, 0.9)):
        (x,) = tensors(*shape, device=device, n=1, grad=True)
        y, traced = function(x, gamma), compiled(x, gamma)
        torch.testing.assert_close(traced, y)
        grads = [torch.autograd.grad(result.sin().sum(), x)[0] for result in (y, traced)]
        torch.testing.assert_close(*grads)


@on_each_device
def test_the_compiler_takes_out(device):
    gates, x = tensors(3, 7, device=device)
    out = torch.empty_like(x)

    def function(gates, x, out):
        upsweep.cumulative_sum(x, out=out)
        return upsweep.scan_forward(gates, out, True, out)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    compiled(gates, x, out)
    expected = upsweep.linear_recurrence(gates, upsweep.cumulative_sum(x), reverse=True)
    torch.testing.assert_close(out, expected)


@on_each_device
def test_export(device):
    class Module(torch.nn.Module):
        def forward(self, gates, x):
            return upsweep.linear_recurrence(gates, x, return_final=True)

    length = torch.export.Dim("length", min=2, max=1000)
    example = tuple(tensors(3, 7, device=device))
    program = torch.export.export(Module(), example, dynamic_shapes=({1: length}, {1: length}))
    gates, x = tensors(3, 90, device=device)
    for result, other in zip(program.module()(gates, x), Module()(gates, x)):
        assert torch.equal(result, other)


@on_each_device
def test_a_trace_is_refused(device):
    # It would keep the result as a constant.
    gates, x = tensors(3, 7, device=device)
    with warnings.catch_warnings(), pytest.raises(NotImplementedError, match=r"torch\.compile"):
        warnings.simplefilter("ignore")
        torch.jit.trace(upsweep.pscan, (gates, x))


def gradients(function, *arguments):
    leaves = [argument.clone().requires_grad_() for argument in arguments]
    return torch.autograd.grad(function(*leaves), leaves)


@on_each_device
def test_transforms_that_differentiate(device):
    gates, x = tensors(3, 7, device=device)
    initial = x[:, 0].clone()

    def function(gates, x, initial):
        y, final = upsweep.linear_recurrence(gates, x, initial=initial, return_final=True, exclusive=True)
        return (upsweep.discounted_cumsum(y, initial[..., None], reverse=True).sin().sum(-1) + final).sum()

    expected = gradients(function, gates, x, initial)
    everything = torch.func.grad(function, (0, 1, 2))
    torch.testing.assert_close(everything(gates, x, initial), expected)
    per_row = torch.func.vmap(everything)(gates, x, initial)
    torch.testing.assert_close(per_row, expected)
    summed = torch.func.grad(lambda *each: torch.func.vmap(function)(*each).sum(), (0, 1, 2))(gates, x, initial)
    torch.testing.assert_close(summed, expected)

    jacobian = torch.func.jacrev(lambda x: upsweep.linear_recurrence(gates, x))(x)
    usual = torch.autograd.functional.jacobian(lambda x: upsweep.linear_recurrence(gates, x), x)
    torch.testing.assert_close(jacobian, usual)
    twice = torch.func.jacrev(torch.func.jacrev(lambda i: function(gates, x, i)))(initial)
    usual = torch.autograd.functional.hessian(lambda i: function(gates, x, i), initial)
    torch.testing.assert_close(twice, usual)
    functional = torch.func.functionalize(upsweep.linear_recurrence)(gates, x)
    torch.testing.assert_close(functional, upsweep.linear_recurrence(gates, x))


@on_each_device
def test_vmap(device):
    gates, x = tensors(4, 3, 7, device=device)
    for dims in (0, 1, 2):
        batched = torch.vmap(lambda g, x: upsweep.linear_recurrence(g, x), in_dims=dims, out_dims=dims)(gates, x)
        singles = [upsweep.linear_recurrence(g, t) for g, t in zip(gates.unbind(dims), x.unbind(dims))]
        torch.testing.assert_close(batched, torch.stack(singles, dims))
    one_gate = torch.vmap(lambda x: upsweep.linear_recurrence(gates[0], x))(x)
    torch.testing.assert_close(one_gate, upsweep.linear_recurrence(gates[0].expand_as(x), x))
    reset, initial = x > 0.7, x[..., 0]
    for keywords in ({"initial": initial}, {"reset": reset}, {"initial": initial, "reset": reset}):
        for others in ({}, {"reverse": True}, {"exclusive": True}):
            batched = torch.vmap(lambda x, k, others=others: upsweep.discounted_cumsum(x, 0.5, **k, **others))(
                x, keywords
            )
            expected = upsweep.discounted_cumsum(x, 0.5, **keywords, **others)
            torch.testing.assert_close(batched, expected)
    out = torch.empty_like(x)
    torch.vmap(lambda g, x, out: upsweep.linear_recurrence(g, x, out=out))(gates, x, out)
    torch.testing.assert_close(out, upsweep.linear_recurrence(gates, x))


@on_each_device
def test_autocast_leaves_dtypes_alone(device):
    gates, x = tensors(3, 7, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = upsweep.linear_recurrence(gates, x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, upsweep.linear_recurrence(gates, x))


def test_the_layer_of_the_guide_learns_and_compiles():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "torch.md").read_text()
    (source,) = re.findall(r"^    class GatedRecurrence.*?(?=^\S)", text, flags=re.MULTILINE | re.DOTALL)
    names = {"torch": torch, "upsweep": upsweep}
    exec(textwrap.dedent(source), names)
    torch.manual_seed(0)
    layer = names["GatedRecurrence"](4)
    x, losses = torch.randn(3, 20, 4), []
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(10):
        losses.append((layer(x) - x.cumsum(1) / 10).square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_meta_tensors_have_shapes():
    x = torch.ones(3, 7, device="meta", requires_grad=True)
    y, final = upsweep.linear_recurrence(x, x, return_final=True)
    sums = upsweep.bincount(torch.zeros(7, dtype=torch.int64, device="meta"), length=4, invalid="drop")
    assert (y.shape, final.shape, sums.shape) == ((3, 7), (3,), (4,)) and y.is_meta and sums.is_meta
    y.sum().backward()
    assert x.grad.shape == (3, 7) and x.grad.is_meta


@on_each_device
def test_derivatives_taken_forward_are_refused(device):
    gates, x = tensors(3, 7, device=device)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="backward"):
        upsweep.linear_recurrence(gates, torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="backward"):
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        upsweep.linear_recurrence(gates, dual, out=torch.empty_like(x))
    for transform in (torch.func.jacfwd, torch.func.hessian):
        with pytest.raises(NotImplementedError, match=r"jacrev\(jacrev\(f\)\) in place of hessian"):
            transform(lambda x: upsweep.linear_recurrence(gates, x).sin().sum())(x)


@on_each_device
@pytest.mark.parametrize("which", ["gates", "initial", "y", "reset", "gamma"])
def test_what_the_backward_reads_must_not_change_meanwhile(which, device):
    gates, x = (t * 1 for t in tensors(3, 7, device=device, grad=True))
    stored = {"gates": gates, "initial": x[:, 0] * 1, "reset": x.detach() > 0.7, "gamma": gates[:, :1] * 1}
    if which == "gamma":
        y = upsweep.discounted_cumsum(x, stored["gamma"])
    else:
        y = upsweep.linear_recurrence(gates, x, initial=stored["initial"], reset=stored["reset"])
    loss = y.sum()
    with torch.no_grad():
        stored.get(which, y).logical_not_() if which == "reset" else stored.get(which, y).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@on_each_device
@pytest.mark.parametrize("name", ["cumulative_sum", "discounted_cumsum", "linear_recurrence", "scan_forward"])
def test_an_output_that_a_backward_reads_is_noticed(name, device):
    (leaf,), (x,) = (tensors(3, 7, device=device, n=1, grad=grad) for grad in (True, False))
    saved = x * 1
    loss = (leaf * saved).sum()
    others = {"cumulative_sum": (), "discounted_cumsum": (0.5,)}.get(name, (x,))
    getattr(upsweep, name)(x, *others, out=saved.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@on_each_device
def test_inference_mode(device):
    gates, x = tensors(3, 7, device=device)
    expected = upsweep.linear_recurrence(gates, x)
    with torch.inference_mode():
        out = torch.empty_like(x)
        assert torch.equal(upsweep.linear_recurrence(gates, x), expected)
        assert torch.equal(upsweep.linear_recurrence(gates * 1, x, out=out), expected)
        assert torch.equal(out, expected)


@on_each_device
def test_lazily_negated_tensors(device):
    # One element is contiguous, whatever its strides.
    for shape in [(3, 7), (1,), (1, 1)]:
        z = torch.randn(shape, dtype=torch.complex64, device=device)
        lazy = z.conj().imag
        assert lazy.is_neg()
        assert torch.equal(upsweep.discounted_cumsum(lazy, 0.5), upsweep.discounted_cumsum(lazy.clone(), 0.5))
        assert torch.equal(upsweep.pscan(lazy, lazy), upsweep.pscan(lazy.clone(), lazy.clone()))


@on_each_device
def test_the_operation_and_its_short_cut_agree(device):
    gates, x = tensors(3, 70, device=device, grad=True)
    with torch.autocast(device, enabled=True, dtype=torch.bfloat16):  # watched: the registered operation
        registered = upsweep.linear_recurrence(gates, x)
    direct = upsweep.linear_recurrence(gates, x)
    assert torch.equal(registered, direct)
    for result, other in zip(*(torch.autograd.grad(y.square().sum(), (gates, x)) for y in (registered, direct))):
        assert torch.equal(result, other)


@on_each_device
def test_conjugates_and_subclasses(device):
    x = torch.randn(3, 7, dtype=torch.complex64, device=device)
    expected = upsweep.discounted_cumsum(x.conj().clone(), 0.5)
    assert torch.equal(upsweep.discounted_cumsum(x.conj(), 0.5), expected)
    parameter = torch.nn.Parameter(torch.ones(3, 7, device=device))
    assert upsweep.discounted_cumsum(parameter, 0.5).requires_grad


@on_each_device
def test_bad_arguments(device):
    x = torch.ones(3, 7, device=device)
    cases = [
        (TypeError, r"gates: expected a torch.Tensor", lambda: upsweep.linear_recurrence([1.0], x)),
        (ValueError, r"do not broadcast.*tokens \(3, 7\).*gates \(2, 7\)",
         lambda: upsweep.linear_recurrence(torch.ones(2, 7, device=device), x)),
        (ValueError, r"axis", lambda: upsweep.cumulative_sum(x, axis=2)),
        (ValueError, r"0-d", lambda: upsweep.cumulative_sum(x[0, 0])),
        (ValueError, r"initial: .*\(4,\).*\(3,\)",
         lambda: upsweep.discounted_cumsum(x, 0.5, initial=torch.ones(4, device=device))),
        (TypeError, r"reset: expected an array of bool",
         lambda: upsweep.discounted_cumsum(x, 0.5, reset=x)),
        (TypeError, r"out: expected dtype",
         lambda: upsweep.discounted_cumsum(x, 0.5, out=torch.empty(3, 7, dtype=torch.float64, device=device))),
        (ValueError, r"out: expected shape",
         lambda: upsweep.discounted_cumsum(x, 0.5, out=torch.empty(3, 6, device=device))),
        (ValueError, r"out: cannot be given while x requires grad",
         lambda: upsweep.discounted_cumsum(x.clone().requires_grad_(), 0.5, out=torch.empty_like(x))),
        (ValueError, r"out: overlaps x",
         lambda: upsweep.discounted_cumsum(x.view(-1)[:-1], 0.5, out=x.view(-1)[1:])),
        (ValueError, r"device: goes with numpy arrays only",
         lambda: upsweep.discounted_cumsum(x, 0.5, device="cuda")),
        (TypeError, r"dtype: expected a torch.dtype", lambda: upsweep.cumulative_sum(x, dtype=float)),
        (TypeError, r"dtype: expected integers, real", lambda: upsweep.cumulative_sum(x, dtype=torch.float8_e5m2)),
        (TypeError, r"dtype: sums in torch.int64 have no gradient, and x requires one",
         lambda: upsweep.cumulative_sum(x.clone().requires_grad_(), dtype=torch.int64)),
        (TypeError, r"dtype: sums in torch.bool have no gradient",
         lambda: upsweep.cumulative_sum_carry(x.clone().requires_grad_(), dtype=torch.bool)),
    ]  # fmt: skip
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()


def test_lists_of_tensors():
    """Numpy would make arrays of them, without their gradients."""
    for grad in (False, True):
        rows, x = [torch.ones(3, requires_grad=grad)] * 2, torch.ones(2, 3)
        calls = {
            "x": lambda rows, _: upsweep.discounted_cumsum(rows, 0.5),
            "initial": lambda rows, x: upsweep.discounted_cumsum(x.numpy(), 0.5, initial=[row[0] for row in rows]),
            "gates": lambda rows, x: upsweep.linear_recurrence(rows, x),
            "xs": lambda rows, _: upsweep.scan(lambda s, v: s + v, 0.0, [[row[0]] for row in rows]),
            r"xs\[1\]": lambda rows, x: upsweep.scan(lambda s, v: s + v[0] + v[1], 0.0, (x, rows)),
        }
        for name, call in calls.items():
            with pytest.raises(TypeError, match=rf"{name}: is a list of tensors; use torch.stack\({name}\)"):
                call(rows, x)


LAYOUTS = {
    "sparse": torch.Tensor.to_sparse,
    "sparse rows": torch.Tensor.to_sparse_csr,
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :3]]),
    "nested, jagged": lambda x: torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged),
}


@on_each_device
@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage)")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_that_are_not_dense_are_refused_by_name(layout, device):
    (x,) = tensors(3, 7, device=device, n=1)
    other = LAYOUTS[layout](x)
    cases = {
        "x": lambda: upsweep.cumulative_sum(other),
        "gamma": lambda: upsweep.discounted_cumsum(x, other),
        "gates": lambda: upsweep.linear_recurrence(other, x),
        "tokens": lambda: upsweep.scan_forward(x, other),
        "out": lambda: upsweep.scan_forward(x, x, out=other),
        "initial": lambda: upsweep.cumulative_sum(x, initial=other),
        "reset": lambda: upsweep.cumulative_sum(x, reset=other.bool()),
    }
    if "nested" in layout:
        cases["x "] = lambda: upsweep.bincount(other.long())
        cases["x  "] = lambda: upsweep.histc(other)
    for name, call in cases.items():
        with pytest.raises(TypeError, match=f"^{name.strip()}: expected a dense tensor, got "):
            call()


@pytest.mark.cuda
def test_arrays_on_two_devices_are_an_error():
    x = torch.ones(3, 7)
    with pytest.raises(ValueError, match=r"is on c"):
        upsweep.linear_recurrence(x, x.cuda())
    with pytest.raises(ValueError, match=r"out: is on cpu"):
        upsweep.discounted_cumsum(x.cuda(), 0.5, out=x)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(4, 100), (4, 3000), (2, 200_000), (3000, 20)])
def test_graph_capture_and_replay(shape):
    gates, x = (torch.rand(shape, device="cuda") for _ in range(2))
    axis = 0 if shape[0] > shape[1] else 1
    out = torch.empty_like(x)
    upsweep.linear_recurrence(gates, x, out=out, axis=axis)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        upsweep.linear_recurrence(gates, x, out=out, axis=axis)
    for _ in range(3):
        x.copy_(torch.rand(shape, device="cuda"))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, upsweep.linear_recurrence(gates, x, axis=axis))


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(4, 100), (4, 3000), (2, 200_000)])
def test_graph_capture_of_gradients(shape):
    gates, x = (torch.rand(shape, device="cuda", requires_grad=True) for _ in range(2))
    reset = torch.rand(shape, device="cuda") > 0.9

    def step():
        y, final = upsweep.linear_recurrence(gates, x, initial=2.0, reset=reset, return_final=True)
        loss = upsweep.discounted_cumsum(y, 0.9, reverse=True).sum() + final.sum()
        return torch.autograd.grad(loss, (gates, x))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(torch.rand(shape, device="cuda"))
    graph.replay()
    for result, other in zip(captured, step()):
        torch.testing.assert_close(result, other)


@pytest.mark.cuda
def test_nothing_waits_for_the_device():
    gates, x = (torch.rand(4, 3000, device="cuda", requires_grad=True) for _ in range(2))
    gamma, reset = torch.rand(4, 1, device="cuda", requires_grad=True), torch.rand(4, 3000, device="cuda") > 0.9

    def step():
        y, final = upsweep.linear_recurrence(gates, x, initial=0.5, reset=reset, return_final=True)
        y = upsweep.discounted_cumsum(y, gamma, exclusive=True, initial=final, reverse=True)
        y = upsweep.cumulative_sum(y, include_initial=True) + upsweep.discounted_cumsum(y, 0.5, axis=0).sum()
        torch.autograd.grad(y.sum(), (gates, x, gamma))

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_work_goes_to_the_current_stream_without_synchronising():
    gates, x = (torch.rand(64, 100_000, device="cuda") for _ in range(2))
    upsweep.linear_recurrence(gates, x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        upsweep.linear_recurrence(gates, x)
        done = torch.cuda.Event()
        done.record()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.cuda
@pytest.mark.large
def test_more_than_2_to_the_31_elements():
    n = 2**31 + 12_345
    x = torch.ones(n, dtype=torch.float16, device="cuda")
    y = upsweep.discounted_cumsum(x, 0.5, out=x)
    assert y[0] == 1 and (y[100:] == 2).all()
    ones = torch.ones(n, dtype=torch.int8, device="cuda")
    assert upsweep.cumulative_sum(ones)[-1] == n


def test_the_first_call_of_scan_is_one_graph_or_a_gradient():
    run_python("""
        import torch, upsweep

        def total(x):
            return upsweep.scan(lambda s, x: torch.tanh(0.5 * s + x), 0.0, x).sum()

        x = torch.rand(5)
        first = torch.compile(total, fullgraph=True, backend="eager")(x)
        torch.testing.assert_close(first, total(x))
        gradient = torch.func.grad(lambda x: upsweep.scan(lambda s, x: torch.tanh(0.3 * s + x), 0.0, x).sum())(x)
        assert gradient.shape == x.shape
    """)


def test_the_first_call_is_compiled():
    """The trace of a frame must not depend on what earlier calls imported. Each call is its process's first."""
    run_python("""
        import os, torch, torch._dynamo, traceback, upsweep
        from upsweep import Genred, LazyTensor, Vi, Vj

        x, y = torch.rand(7, 3, requires_grad=True), torch.rand(5, 3)
        for function in (
            upsweep.cumulative_sum,
            lambda x: upsweep.discounted_cumsum(x, 0.5),
            lambda x: upsweep.linear_recurrence(x, x),
            lambda x: upsweep.cumulative_sum_carry(x).value,
            lambda x: upsweep.pscan(x, x),
            lambda x: upsweep.discounted_cumsum_left(x, 0.5),
            lambda x: upsweep.bincount(torch.tensor([0, 1, 1, 2, 3, 1, 1]), x, length=5),
            lambda x: upsweep.scan(lambda s, v: 0.5 * s + v, 0.0, x),
            lambda x: upsweep.lfilter([0.5], [1.0, -0.5], x),
            lambda x: upsweep.ewm_mean(x, alpha=0.5),
            lambda x: upsweep.histogram(x.detach(), 5)[0] + x.sum(),
            lambda x: upsweep.histc(x.detach(), 5) + x.sum(),
            lambda x: Vi(x).sqdist(Vj(y)).sum(axis=1),
            lambda x: ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1).sum(1),
            lambda x: Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], axis=1)(x, y),
        ):
            child = os.fork()
            if not child:
                try:
                    torch.compile(function, backend="eager")(x).sum().backward()
                    compiled, x.grad = x.grad, None
                    function(x).sum().backward()
                    torch.testing.assert_close(compiled, x.grad)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
    """)
