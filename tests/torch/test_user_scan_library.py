"""User-defined scans inside torch's machinery: the compiler, opcheck, transforms, modes, exported programs."""

import functools
import sys
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import upsweep
from helpers import run_python
from tensors import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from upsweep._compiler.recurrences.recurrence import parsed, written
from upsweep._torch import user_scan_ops

RATE = 0.75


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


def test_the_compiler_keeps_large_integers():
    x = torch.ones(3)
    for init in (2**53, -(2**53) - 1, 2**63 + 1):
        count = lambda x, init=init: upsweep.scan(lambda s, x: s + 1, init, x)  # noqa: E731
        assert compiled(count)(x).tolist() == count(x).tolist() == [init + 1, init + 2, init + 3]


class Level(NamedTuple):
    level: torch.Tensor
    trend: torch.Tensor


def test_the_compiler_takes_namedtuples():
    def function(x, a):
        ys, final = upsweep.scan(
            lambda s, x: s._replace(level=0.5 * s.level + x), Level(a, 1.0), x, return_final=True
        )
        assert type(ys) is type(final) is Level
        return ys.level, final.trend

    assert_alike(compiled(function), function, random(5, 3), random(3, seed=1))
    function(random(5, 3), random(3, seed=1))  # without gradients


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


def test_exported_programs_take_what_is_captured():
    class Module(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.forward = function

    x, rate = random(6), np.array([0.5])
    for function in (
        lambda x: upsweep.scan(lambda s, x: rate[0] * s + x, 0.0, x),
        lambda x: upsweep.lfilter([1.0], [1.0, -0.5], x),
    ):
        program = torch.export.export(Module(function), (x,), strict=False)
        torch.testing.assert_close(program.module()(x), function(x))
    for function, message in (
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x, checkpoint=2), "checkpoint: not for tensors that"),
        (lambda x: upsweep.bincount(x.long()), "give length= and invalid='drop'"),
        (upsweep.histc, "histograms look at values"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            torch.export.export(Module(function), (x,), strict=False)


@pytest.mark.parametrize("shapes", [[(3, 5), (4, 7), (9, 2)]])
def test_the_compiler_takes_shapes_that_change(shapes):
    counted = CompileCounterWithBackend("aot_eager")

    def function(x):
        return upsweep.scan(cell, 0.0, (x, 0.5), axis=1)

    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, backend=counted, dynamic=True)
    counts = set()
    for shape in shapes:
        assert_alike(run, function, random(*shape))
        counts.add(counted.frame_count)  # the compiler begins again where it finds that RATE is a constant
    assert len(counts) == 1


def test_numbers_that_change_are_inputs():
    def function(x, rate):
        return upsweep.scan(lambda s, x: x[1] * s + x[0], 2 * rate, (x, rate))

    run, x = compiled(function), random(6)
    for rate in (0.5, 0.25):
        torch.testing.assert_close(run(x, rate), function(x, rate))


def rate_cell(s, x):
    return RATE * s + x


def test_what_an_update_captures_is_guarded(monkeypatch):
    x = random(6)

    def decayed(rate, power=1.0):
        return lambda s, x: rate * s**power + x

    def function(x, update):
        return upsweep.scan(update, 0.0, x, reset=x > 1) + upsweep.scan(rate_cell, 0.0, x)

    run = compiled(function)
    for rate in (0.5, 0.25, 0.5):  # functions of the same code
        update = decayed(rate)
        torch.testing.assert_close(run(x, update), function(x, update))
    monkeypatch.setattr(sys.modules[__name__], "RATE", 0.3)
    torch.testing.assert_close(run(x, update), function(x, update))


def test_what_changes_in_place_is_a_break_of_the_graph():
    x, rate, rates, array = random(6), torch.tensor(0.5, dtype=torch.float64), [0.5], np.array([0.5])
    module = torch.nn.Module()
    module.register_buffer("rate", rate)
    updates = [
        lambda s, x: rate * s + x, lambda s, x: rates[0] * s + x, lambda s, x: array[0] * s + x,
        lambda s, x: module.rate * s + x,
    ]  # fmt: skip
    for update in updates:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="pass it in xs, where it broadcasts"):
            compiled(lambda x, update=update: upsweep.scan(update, 0.0, x))(x)
    torch._dynamo.reset()
    run = torch.compile(lambda x, update: upsweep.scan(update, 0.0, x), backend="eager")
    first = [run(x, update) for update in updates]
    rate.fill_(0.25)
    rates[0] = array[0] = 0.25
    for before, update in zip(first, updates):
        torch.testing.assert_close(run(x, update), upsweep.scan(update, 0.0, x))
        assert not torch.equal(run(x, update), before)


def test_an_update_of_traced_code_captures_what_changes():
    def function(x, rate):
        return upsweep.scan(lambda s, x: rate * s + x, 0.0, x)

    x = random(6)
    torch._dynamo.reset()
    run = torch.compile(function, backend="eager")
    scan = torch.compile(upsweep.scan, backend="eager")
    for rate in (0.5, 0.25, 0.125):
        torch.testing.assert_close(run(x, rate), function(x, rate))
        partial = functools.partial(lambda s, x, rate: rate * s + x, rate=rate)
        torch.testing.assert_close(scan(partial, 0.0, x), function(x, rate))
    whole = compiled(function)
    torch.testing.assert_close(whole(x, 0.5), function(x, 0.5))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"pass it in xs, where it .*dynamic=False"):
        whole(x, 0.25)
    whole = compiled(function, dynamic=False)
    for rate in (0.5, 0.25):
        torch.testing.assert_close(whole(x, rate), function(x, rate))


def test_updates_that_are_methods_or_name_functions_of_libraries():
    class Cell(torch.nn.Module):
        rate = 0.5

        def update(self, s, x):
            return self.rate * s + x

        @staticmethod
        def step(s, x):
            return x[1] * s + x[0]

        def forward(self, x):
            return upsweep.scan(self.update, 0.0, x)

        def explicit(self, x):
            return upsweep.scan(self.step, 0.0, (x, self.rate))

    cell, x, tanh = Cell(), random(6), torch.tanh

    def function(x):
        return upsweep.scan(lambda s, x: upsweep.scan.tanh(s) + tanh(x), 0.0, x)

    assert_alike(compiled(function), function, x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"update: is a method, .* @staticmethod"):
        compiled(cell)(x)
    torch.testing.assert_close(compiled(cell.explicit)(x), cell(x))
    torch._dynamo.reset()
    run = torch.compile(cell, backend="eager")
    for rate in (0.5, 0.25):
        cell.rate = rate
        torch.testing.assert_close(run(x), cell(x))


def test_filters_in_the_compiler():
    def filtered(x, b):
        return upsweep.lfilter(b, [1.0, -0.5], x)

    x = random(6)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="write its recurrence as an update of scan"):
        compiled(filtered)(x, [1.0])
    torch._dynamo.reset()
    run = torch.compile(filtered, backend="eager")
    for b in ([1.0], [0.5], [0.5, 0.25]):
        torch.testing.assert_close(run(x, b), filtered(x, b))
    warnings.simplefilter("error")  # of the caches of updates
    torch.testing.assert_close(compiled(lambda x: upsweep.ewm_mean(x, span=3))(x), upsweep.ewm_mean(x, span=3))


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
        (lambda x: upsweep.scan(lambda s, x: s + x, 0.0, x, axis=1), "axis 1 is out of bounds"),
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


def test_exported_programs_load_in_a_new_process(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x):
            y = upsweep.scan(lambda s, x: torch.tanh(s + x), 0.0, upsweep.linear_recurrence(x, x))
            return y, upsweep.bincount(x.long(), length=4, invalid="drop")

    x, path = random(7).abs(), tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Module(), (x,)), path)
    y, counts = Module()(x)
    code = f"""
    import torch, upsweep.torch_ops
    y, counts = torch.export.load({str(path)!r}).module()(torch.tensor({x.tolist()}, dtype=torch.float64))
    print([y.tolist(), counts.tolist()])
    """
    assert run_python(code) == f"{[y.tolist(), counts.tolist()]}\n"


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


def test_vmap_of_integers_in_the_compiler():
    x = torch.arange(10).reshape(2, 5) + 2**60

    def function(x):
        return upsweep.scan(lambda s, x: s * 3 - x, 1, x)

    assert torch.equal(compiled(torch.func.vmap(function))(x), torch.stack([*map(function, x)]))


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
