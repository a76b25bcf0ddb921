"""User-defined scans inside torch's machinery: the compiler, opcheck, transforms, modes, exported programs."""

import functools

import numpy as np
import pytest
import upsweep
from tensors import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from upsweep._compiler.recurrences.recurrence import parsed, written
from upsweep._torch import user_scan_ops

RATE = 0.75
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def cell(s, x):
    return np.tanh(RATE * s * x[1] + x[0])


def coupled(s, x):
    return (s[0] * 0.9 + x * s[1], np.where(x > 0, s[1], s[0])), s[0] * s[1]


def random(*shape, seed=0, dtype=torch.float64, grad=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype).requires_grad_(grad)


def compiled(function, **keywords):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **keywords)


def with_gradients(function, *arguments):
    leaves = [each.detach().clone().requires_grad_() for each in arguments]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    flat = [part for each in results for part in (each if isinstance(each, tuple) else (each,))]
    return flat, torch.autograd.grad(sum(part.sin().sum() for part in flat), leaves)


def assert_alike(function, other, *arguments, **tolerance):
    for result, reference_result in zip(with_gradients(function, *arguments), with_gradients(other, *arguments)):
        torch.testing.assert_close(result, reference_result, **tolerance)


@pytest.mark.parametrize("keywords", [{}, {"axis": -1, "reverse": True}])
def test_the_compiler_takes_it_whole(keywords):
    def function(x, w, start):
        y, final = upsweep.scan(cell, start.tanh(), (x, w), return_final=True, **keywords)
        return y * 2, final

    start = random(6 if "axis" in keywords else 4, seed=2)
    assert_alike(compiled(function), function, random(6, 4), random(1, 4, seed=1), start)


def test_the_compiler_takes_tuples_numbers_and_scans_without_inputs():
    def function(x, a):
        y = upsweep.scan(coupled, (a, 0.5), x)
        grown, last = upsweep.scan(lambda s, _: 0.5 * s + 1, a, None, length=3, axis=1, return_final=True)
        return y, grown, last

    assert_alike(compiled(function), function, random(5, 3), random(3, seed=1))


def test_the_compiler_takes_updates_of_every_kind():
    def scaled(rate):
        return lambda s, x: rate * s + x

    outside, partial = scaled(0.3), functools.partial(lambda rate, s, x: rate * s - x, 0.25)

    @upsweep.scan
    def decorated(s, x):
        return np.maximum(0.9 * s, x)

    def function(x):
        rate = 0.125
        parts = [upsweep.scan(each, 1.0, x) for each in (outside, scaled(0.6), partial)]
        return (*parts, decorated(0.0, x), upsweep.scan(lambda s, x: rate * s + x, 0.0, x))

    assert_alike(compiled(function), function, random(6, 2))


@pytest.mark.skipif(VERSION < (2, 13), reason="this torch does not hand an object on while it compiles")
def test_the_compiler_takes_an_object_as_the_update():
    class Update:
        def __call__(self, s, x):
            return s * x

    update = Update()

    def function(x):
        return upsweep.scan(update, 1.0, x)

    assert_alike(compiled(function), function, random(6, 2))


@pytest.mark.parametrize("shapes", [[(3, 5), (4, 7), (9, 2)]])
def test_the_compiler_takes_shapes_that_change(shapes):
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def function(x):
        return upsweep.scan(cell, 0.0, (x, 0.5), axis=1)

    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, backend=counted, dynamic=True)
    for shape in shapes:
        assert_alike(run, function, random(*shape))
    assert counted.frame_count == 1


def test_numbers_that_change_are_inputs():
    def function(x, rate):
        return upsweep.scan(lambda s, x: x[1] * s + x[0], 2 * rate, (x, rate))

    run, x = compiled(function), random(6)
    for rate in (0.5, 0.25):
        torch.testing.assert_close(run(x, rate), function(x, rate))


def test_segments_are_a_break_of_the_graph():
    def function(x):
        return upsweep.scan(cell, 0.0, (x, 0.5), checkpoint=2).sum()

    x = random(6, grad=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="leave checkpoint= out to compile it"):
        compiled(function)(x)
    torch._dynamo.reset()
    broken = torch.compile(function, backend="aot_eager")
    expected = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(torch.autograd.grad(broken(x), x), expected)


def test_what_is_refused_is_refused_in_the_compiler():
    x = random(4)
    for function, message in [
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x.to(torch.complex64)), "xs: expected float16, bfloat16"),
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x, axis=1), "axis: 1 is out of range"),
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x, length=3), "length: 3 is not the length"),
        (lambda x: upsweep.scan(lambda s, _: s, x, None), "length: is needed"),
        (lambda x: upsweep.scan(lambda s, x: s if s > 0 else x, 0.0, x), "np.where"),
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x.sum()), "xs: expected at least one axis"),
    ]:  # fmt: skip
        with pytest.raises(Exception, match=message):
            compiled(function)(x)


def test_opcheck():
    x, w, start = random(5, 3, grad=True), random(5, 3, seed=1, grad=True), random(3, seed=2, grad=True)
    text, keeping, *_ = user_scan_ops._traced(cell, ("float64",), -1, ("float64", "float64"), 2)
    turned = random(3, 5, grad=True).movedim(1, 0)
    for arguments in [
        (keeping, 1, [x, w], [start], 5, 0, False),
        (keeping, 1, [turned, w], [start], 5, 1, True),
        (text, 0, [x.detach(), w.detach()], [start.detach()], 5, 0, True),
        (text, 0, [x.detach()[:0], w.detach()[:0]], [start.detach()], 0, 1, False),
    ]:
        torch.library.opcheck(user_scan_ops.recurrence, arguments)


def test_a_recurrence_as_text():
    for update, states in ((coupled, 2), (lambda s, x: np.where(x == np.inf, -0.0, s * np.nan), -1)):
        kinds = ("float64",) * abs(states)
        text, *_ = user_scan_ops._traced(update, kinds, states, ("float64",), -1)
        assert written(parsed(text)) == text and ("NaN" in text) == (states == -1)


def test_export(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x, start):
            return upsweep.scan(coupled, (start, 1.0), x, return_final=True)

    length = torch.export.Dim("length", min=2, max=1000)
    program = torch.export.export(Module(), (random(5, 3), random(3)), dynamic_shapes=({0: length}, None))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    x, start = random(90, 3, seed=3), random(3, seed=4)
    torch.testing.assert_close(loaded(x, start), Module()(x, start))


def run_cell(x, w, start):
    y, final = upsweep.scan(cell, start, (x, w), return_final=True, reverse=True)
    return (y.sin().sum(0) + final).sum()


def test_transforms_that_differentiate():
    arguments = random(6, 4), random(1, 4, seed=1), random(4, seed=2)
    leaves = [each.clone().requires_grad_() for each in arguments]
    expected = torch.autograd.grad(run_cell(*leaves), leaves)
    everything = torch.func.grad(run_cell, (0, 1, 2))
    torch.testing.assert_close(everything(*arguments), expected)
    hessian = torch.func.jacrev(torch.func.grad(run_cell))(*arguments)
    torch.testing.assert_close(
        hessian, torch.autograd.functional.hessian(lambda x: run_cell(x, *arguments[1:]), arguments[0])
    )


@pytest.mark.parametrize("in_dims", [(0, None, 0), (2, 0, None), (1, 1, 1)])
def test_vmap(in_dims):
    sizes = (6, 4), (1, 4), (4,)
    arguments = []
    for n, (size, dim) in enumerate(zip(sizes, in_dims)):
        whole = random(3, *size, seed=n) if dim is not None else random(*size, seed=n)
        arguments.append(whole if dim is None else whole.movedim(0, dim))

    def one(n):
        return [each if dim is None else each.select(dim, n) for each, dim in zip(arguments, in_dims)]

    def whole(x, w, start):
        return upsweep.scan(cell, start, (x, w), return_final=True)

    observed = torch.func.vmap(whole, in_dims)(*arguments)
    for n in range(3):
        torch.testing.assert_close(tuple(each[n] for each in observed), whole(*one(n)))
    gradients = torch.func.vmap(torch.func.grad(run_cell, (0, 1, 2)), in_dims)(*arguments)
    for n in range(3):
        torch.testing.assert_close(
            tuple(each[n] for each in gradients), torch.func.grad(run_cell, (0, 1, 2))(*one(n))
        )
    inside = compiled(lambda *each: torch.func.vmap(whole, in_dims)(*each))(*arguments)
    torch.testing.assert_close(inside, observed)


def test_segments_are_refused_in_transforms():
    with pytest.raises(NotImplementedError, match="checkpoint: not for tensors that torch"):
        torch.func.vmap(lambda x: upsweep.scan(cell, 0.0, (x, 0.5), checkpoint=2))(random(3, 6))


def test_tensors_without_memory():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(6, 4))
        y, final = upsweep.scan(cell, 0.0, (x, 0.5), axis=1, return_final=True)
    assert y.shape == (6, 4) and final.shape == (6,) and y.dtype == torch.float32
    real = upsweep.scan(cell, 0.0, (torch.randn(6, 4), 0.5), axis=1)
    assert y.stride() == real.stride()
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(6, 4)).requires_grad_()
        (observed,) = torch.autograd.grad(upsweep.scan(cell, 0.0, (x, 0.5), axis=1).sum(), x)
    assert observed.shape == (6, 4)


# ---- bfloat16 ------------------------------------------------------------------------------------------------


def rounded(values):
    return torch.from_numpy(np.asarray(values, np.float32)).to(torch.bfloat16)


def test_bfloat16_is_calculated_in_float32_and_rounded_once():
    x = random(50, 7, dtype=torch.bfloat16)
    y, final = upsweep.scan(lambda s, x: 0.99 * s + x, 0.0, x, return_final=True)
    wide, last = upsweep.scan(lambda s, x: np.float32(0.99) * s + x, 0.0, x.float().numpy(), return_final=True)
    assert y.dtype == final.dtype == torch.bfloat16
    assert torch.equal(y, rounded(wide)) and torch.equal(final, rounded(last))
    assert torch.equal(compiled(lambda x: upsweep.scan(lambda s, x: 0.99 * s + x, 0.0, x))(x), y)


def test_bfloat16_meets_other_dtypes_and_has_gradients():
    x, start = random(9, 3, dtype=torch.bfloat16, grad=True), random(3, dtype=torch.float32, grad=True)
    y = upsweep.scan(lambda s, x: np.tanh(s * x + 1.0), start, x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16 and start.grad.dtype == torch.float32
    wide = x.detach().float().requires_grad_()
    upsweep.scan(lambda s, x: np.tanh(s * x + 1.0), start.detach(), wide).sum().backward()
    assert torch.equal(x.grad, wide.grad.to(torch.bfloat16))
    with pytest.raises(TypeError, match="float16 and bfloat16 do not go together"):
        upsweep.scan(lambda s, x: s + x[0] + x[1], 0.0, (x, x.to(torch.float16)))
    with pytest.raises(TypeError, match="the state is float16 and becomes float32"):
        upsweep.scan(lambda s, x: s + x, torch.zeros(3, dtype=torch.bfloat16), x.float())
