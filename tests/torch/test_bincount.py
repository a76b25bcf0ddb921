"""bincount of torch tensors: torch's dtypes, gradients, and what the compiler and transforms make of it."""

import numpy as np
import pytest
import upsweep
from tensors import DEVICES, to_tensor, torch

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.fixture(params=[*DEVICES, "pretended"])
def device(request, monkeypatch):
    """Where the tensors are; a pretended device is the CPU, with calls on the way that CUDA tensors take."""
    if request.param != "pretended":
        return request.param
    from upsweep._torch import bincount, executors

    request.getfixturevalue("fake_cuda")
    monkeypatch.setattr(bincount, "_run_plain", lambda *arguments: None)
    monkeypatch.setattr(executors, "count", executors._count_on_cuda)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 77, raising=False)
    return "cpu"


def keys_of(shape, n_bins=20, dtype="int64", seed=0):
    limit = 2 if dtype == "bool" else n_bins
    return np.random.default_rng(seed).integers(0, limit, shape).astype(dtype)


def normal(shape, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape)).astype(dtype) if np.dtype(dtype).kind == "c" else x.astype(dtype)


def equal(tensor, expected, dtype, device="cpu", **close):
    assert isinstance(tensor, torch.Tensor) and tensor.dtype == dtype and tensor.device.type == device
    assert tuple(tensor.shape) == expected.shape
    np.testing.assert_allclose(tensor.detach().cpu().numpy(), expected, **(close or {"rtol": 0}))


# ---- values and dtypes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_keys_of_every_dtype(dtype, device):
    x = keys_of(5000, dtype=dtype)
    for operand in (x, x[1:], x[::3], x[:1], x[:0]):
        expected = np.bincount(operand.astype(np.int64), minlength=3)
        equal(upsweep.bincount(to_tensor(operand, device), minlength=3), expected, torch.int64, device)
        equal(upsweep.bincount(to_tensor(operand, device), length=25), np.pad(expected, (0, 25 - len(expected))),
              torch.int64, device)  # fmt: skip


@pytest.mark.parametrize("n", [100, 5000, 200_000])
@pytest.mark.parametrize("dtype, length", [("int8", 100), ("int8", 256), ("int16", 40_000), ("int16", 300_000)])
def test_negative_keys_of_narrow_types_are_in_no_bin(dtype, length, n, device):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, n, dtype, endpoint=True)
    inside = (x >= 0) & (x < length)
    for weights in (None, np.arange(n, dtype=np.float64) % 5):
        expected = np.bincount(x[inside], None if weights is None else weights[inside], minlength=length)
        operand = None if weights is None else to_tensor(weights, device)
        counts, n_invalid = upsweep.bincount(
            to_tensor(x, device), operand, length=length, invalid="drop", return_invalid=True
        )
        equal(counts, expected, torch.int64 if weights is None else torch.float64, device)
        assert int(n_invalid) == n - inside.sum()


@pytest.mark.parametrize(("weights", "result"), [
    ("float16", "float64"), ("bfloat16", "float64"), ("float32", "float32"), ("float64", "float64"),
    ("bool", "float64"), ("int32", "float64"), ("uint8", "float64"), ("complex64", "complex64"),
    ("complex128", "complex128"),
])  # fmt: skip
def test_dtypes_of_sums(weights, result, device):
    x = keys_of(3000)
    w = torch.from_numpy(normal(3000, complex if weights.startswith("complex") else float) * 3)
    w = w.to(getattr(torch, weights)).to(device)
    wide = w.to(torch.complex128 if w.is_complex() else torch.float64).cpu().numpy()
    expected = np.zeros(20, wide.dtype)
    np.add.at(expected, x, wide)
    actual = upsweep.bincount(to_tensor(x, device), w)
    equal(actual, expected, getattr(torch, result), device, rtol=1e-6 if actual.itemsize < 8 else 1e-12, atol=1e-5)
    if not w.is_complex():
        reference_result = torch.bincount(to_tensor(x), w.cpu())
        assert reference_result.dtype == actual.dtype
        equal(actual, reference_result.numpy(), reference_result.dtype, device, rtol=1e-4, atol=1e-4)


def test_float32_is_summed_in_float64_and_goes_on_growing():
    x = torch.zeros(2**24 + 10, dtype=torch.uint8)
    assert upsweep.bincount(x, torch.ones(x.shape)).item() == 2**24 + 10
    assert torch.bincount(x, torch.ones(x.shape)).item() < 2**24 + 10


def test_result_of_a_given_dtype(device):
    x, w = to_tensor(keys_of(1000), device), to_tensor(normal(1000), device)
    big = torch.full((1000,), 2**53 + 1, dtype=torch.int64, device=device)
    counts = torch.bincount(x.cpu())
    exact = upsweep.bincount(x, big, dtype=torch.int64)
    assert exact.dtype == torch.int64 and torch.equal(exact.cpu(), counts * (2**53 + 1))
    sums = upsweep.bincount(x, w)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.int32):
        assert torch.equal(upsweep.bincount(x, w, dtype=dtype), sums.to(dtype))
    for dtype in (torch.uint8, torch.int32, torch.float32):
        assert torch.equal(upsweep.bincount(x, dtype=dtype).cpu(), counts.to(dtype))
    assert upsweep.bincount(x[:0], w[:0], 3).tolist() == [0, 0, 0]
    assert upsweep.bincount(x[:0], w[:0], 3).dtype == torch.int64
    assert upsweep.bincount(x[:0], w[:0], 3, dtype=torch.float32).dtype == torch.float32


def test_axes_and_several_sums(device):
    x = keys_of((3, 50, 4), 7)
    for axis in (0, 1, 2, -1):
        moved = np.moveaxis(x, axis, -1)
        expected = np.apply_along_axis(np.bincount, -1, moved, None, 7)
        equal(
            upsweep.bincount(to_tensor(x, device), axis=axis), np.moveaxis(expected, -1, axis), torch.int64, device
        )
        w = normal((*x.shape, 2), np.float32)
        expected = upsweep.bincount(x, w, axis=axis, length=9)
        result = upsweep.bincount(to_tensor(x, device), to_tensor(w, device), axis=axis, length=9)
        equal(result, expected, torch.float32, device, rtol=1e-6, atol=1e-6)
        assert result.is_contiguous()
    w = normal((50, 3))
    equal(upsweep.bincount(to_tensor(x[0, :, 0].copy(), device), to_tensor(w, device)),
          upsweep.bincount(x[0, :, 0], w), torch.float64, device, rtol=1e-12)  # fmt: skip
    none = upsweep.bincount(to_tensor(x, device), torch.ones(3, 50, 4, 0, device=device), axis=1, length=7)
    assert none.shape == (3, 7, 4, 0)
    nothing = torch.ones(0, 4, 2, device=device)
    empty = upsweep.bincount(nothing[..., 0].int(), nothing, axis=0, length=3, dtype=torch.float32)
    assert empty.shape == (3, 4, 2) and not empty.any()


def test_keys_outside(device):
    x = torch.tensor([3, -1, 0, 9, 3, 2**62], device=device)
    counts, n = upsweep.bincount(x, length=4, invalid="drop", return_invalid=True)
    assert counts.tolist() == [1, 0, 0, 2] and n.shape == () and n.dtype == torch.int64 and n.item() == 3
    assert n.device == x.device
    w = torch.arange(6.0, device=device)
    assert upsweep.bincount(x, w, length=4, invalid="drop").tolist() == [2, 0, 0, 4]
    assert upsweep.bincount(torch.tensor([-3, 1], device=device), invalid="drop").tolist() == [0, 1]
    assert upsweep.bincount(x, length=0, invalid="drop", return_invalid=True)[1].item() == 6
    out = torch.full((4,), 7, device=device)
    cases = [
        ("element 1 is -1", lambda: upsweep.bincount(x)),
        ("element 1 is -1", lambda: upsweep.bincount(x, length=4)),
        ("element 1 is 9, outside the 4 bins", lambda: upsweep.bincount(x[2:], length=4, out=out)),
        ("element 1 is 9, outside", lambda: upsweep.bincount(x[2:5], length=4, out=out, accumulate=True)),
        (r"element \(1, 1\) is 8, outside", lambda: upsweep.bincount(
            torch.tensor([[1, 2], [3, 8]], device=device), axis=0, length=4)),
        ("element 0 is 18446744073709551615, outside", lambda: upsweep.bincount(
            to_tensor(np.array([2**64 - 1], np.uint64), device), length=4)),
    ]  # fmt: skip
    for match, call in cases:
        with pytest.raises(ValueError, match=match):
            call()
    assert out.tolist() == [7] * 4


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "float16", "int32"])
def test_out_and_accumulate(dtype, device):
    dtype = getattr(torch, dtype)
    x, w = to_tensor(keys_of((40, 3), 6), device), to_tensor(normal((40, 3), np.float32), device)
    weights = None if dtype in (torch.int64, torch.int32) else w
    once = upsweep.bincount(x, weights, axis=0, length=6, dtype=dtype)
    for out in (torch.full((6, 3), 7, dtype=dtype, device=device),
                torch.full((3, 6), 7, dtype=dtype, device=device).T):  # fmt: skip
        for invalid in ("raise", "drop"):
            operand = upsweep.bincount(x, weights, axis=0, out=out, dtype=dtype, invalid=invalid)
            assert operand is out and torch.equal(out, once)
        upsweep.bincount(x, weights, axis=0, out=out, dtype=dtype, accumulate=True)
        torch.testing.assert_close(out, 2 * once, rtol=1e-3, atol=1e-6)


def test_what_is_added_to_short_numbers_is_rounded_once(device):
    """The kernels of CUDA add to float32 themselves; to others what they made in 64 bits is added."""
    eps = 2.0**-10
    out = torch.ones(2, dtype=torch.float16, device=device)
    keys, weights = torch.tensor([0, 0], device=device), torch.tensor([eps / 2, eps**2 / 4], device=device)
    upsweep.bincount(keys, weights, out=out, dtype=torch.float16, accumulate=True)
    assert out.tolist() == [1 + eps, 1]  # the sum alone is rounded to half an eps, which is lost
    keys = torch.zeros(1, dtype=torch.int8, device=device).expand(2**11 + 1)  # alone it is rounded to 2**11
    upsweep.bincount(keys, out=out.fill_(1), dtype=torch.float16, accumulate=True)
    assert out.tolist() == [2**11 + 2, 1]


def test_out_is_checked_before_any_work():
    x = torch.tensor([1, 2, 3])
    out = torch.zeros(5, dtype=torch.int64)
    cases = [
        (TypeError, r"out: expected dtype torch.int64, got torch.float32; pass dtype=out\.dtype",
         {"out": torch.zeros(5)}),
        (TypeError, r"out: expected a torch\.Tensor", {"out": np.zeros(5, np.int64)}),
        (ValueError, "out: expected shape", {"out": out, "length": 4}),
        (ValueError, r"out: expected shape \(bins,\), got \(5, 1\)", {"out": out[:, None]}),
        (ValueError, "out: has 5 bins, fewer than minlength=6", {"out": out, "minlength": 6}),
        (ValueError, "out: several of its elements", {"out": out[:1].expand(5)}),
        (ValueError, "accumulate: needs out=", {"accumulate": True}),
        (ValueError, "out: cannot be given while out requires grad",
         {"out": torch.zeros(5).requires_grad_(), "dtype": torch.float32}),
        (ValueError, "x: element 2 is 3, outside the 3 bins", {"out": out[:3]}),
    ]  # fmt: skip
    for error, match, keywords in cases:
        with pytest.raises(error, match=match):
            upsweep.bincount(x, **keywords)
    with pytest.raises(ValueError, match="out: overlaps x"):
        upsweep.bincount(out, out=out)
    assert not out.any()


def test_bad_input_is_named():
    x, w = torch.tensor([1, 2, 3]), torch.ones(3)
    cases = [
        (TypeError, "x: expected keys of integers or bool, got dtype torch.float32", lambda: upsweep.bincount(w)),
        (
            TypeError,
            "x: expected keys of integers or bool, got dtype torch.complex64",
            lambda: upsweep.bincount(w + 1j),
        ),
        (TypeError, r"x: expected a torch\.Tensor", lambda: upsweep.bincount([1, 2, 3], w)),
        (
            TypeError,
            r"weights: expected a torch\.Tensor.*, got list",
            lambda: upsweep.bincount(x, [1.0, 2.0, 3.0]),
        ),
        (TypeError, r"weights: expected a torch\.Tensor", lambda: upsweep.bincount(x, np.ones(3))),
        (TypeError, "x: expected a dense tensor", lambda: upsweep.bincount(x.to_sparse())),
        (TypeError, "dtype: expected a torch.dtype", lambda: upsweep.bincount(x, dtype=np.int64)),
        (TypeError, "dtype: expected integers, real", lambda: upsweep.bincount(x, dtype=torch.bool)),
        (TypeError, "dtype: expected integers, real", lambda: upsweep.bincount(x, dtype=torch.float8_e5m2)),
        (
            TypeError,
            r"dtype: sums in torch\.int32 have no gradient, and weights requires one",
            lambda: upsweep.bincount(x, w.clone().requires_grad_(), dtype=torch.int32),
        ),
        (TypeError, "dtype: sums of torch.complex64", lambda: upsweep.bincount(x, w + 1j, dtype=torch.float32)),
        (TypeError, "minlength: 'float' object", lambda: upsweep.bincount(x, minlength=1.5)),
        (ValueError, "minlength: must not be negative", lambda: upsweep.bincount(x, minlength=-1)),
        (ValueError, "length: 2 is smaller than minlength=3", lambda: upsweep.bincount(x, None, 3, length=2)),
        (
            ValueError,
            r"x: expected 1-D keys, got shape \(1, 3\); use \.ravel\(\)",
            lambda: upsweep.bincount(x[None]),
        ),
        (ValueError, "x: expected 1-D keys, got a single number", lambda: upsweep.bincount(x[0])),
        (ValueError, "axis", lambda: upsweep.bincount(x, axis=1)),
        (
            ValueError,
            r"weights: expected x's shape \(3,\), or for several sums",
            lambda: upsweep.bincount(x, w[:2]),
        ),
        (ValueError, "invalid: expected", lambda: upsweep.bincount(x, invalid="ignore")),
        (ValueError, "return_invalid: goes with", lambda: upsweep.bincount(x, return_invalid=True)),
        (ValueError, "device: goes with numpy", lambda: upsweep.bincount(x, device="cuda")),
        (MemoryError, "x: the largest key asks for", lambda: upsweep.bincount(torch.tensor([2**62]))),
        (MemoryError, "length: it asks for", lambda: upsweep.bincount(x, length=2**61)),
    ]
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()


def test_the_same_bits_on_each_run(device):
    x, w = to_tensor(keys_of(300_000, 5000), device), to_tensor(normal(300_000, np.float32), device)
    once = upsweep.bincount(x, w, deterministic=True)
    assert all(torch.equal(upsweep.bincount(x, w, deterministic=True), once) for _ in range(3))
    if device == "cpu":
        assert torch.equal(upsweep.bincount(x, w, n_threads=1), upsweep.bincount(x, w, n_threads=2))


def test_negated_and_conjugated_weights():
    x = torch.tensor([0, 1, 0])
    w = torch.tensor([1 + 2j, 3j, 4])
    assert torch.equal(upsweep.bincount(x, w.conj()), upsweep.bincount(x, w).conj())
    assert torch.equal(upsweep.bincount(x, w.conj().imag), -upsweep.bincount(x, w).imag)


# ---- gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keywords", [
    {}, {"length": 4, "invalid": "drop"}, {"minlength": 9}, {"dtype": torch.complex128},
])  # fmt: skip
@pytest.mark.parametrize("shape", [(12,), (12, 2)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_gradients_of_weights(shape, dtype, keywords, device):
    x = to_tensor(keys_of(12, 6), device)
    w = to_tensor(normal(shape, dtype), device).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: upsweep.bincount(x, w, **keywords), w)
    assert torch.autograd.gradgradcheck(lambda w: upsweep.bincount(x, w, **keywords) ** 2, w)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gradients_along_axes(axis, device):
    x = to_tensor(keys_of((2, 3, 4), 5), device)
    for shape in ((2, 3, 4), (2, 3, 4, 2)):
        w = to_tensor(normal(shape), device).requires_grad_()
        for keywords in ({}, {"length": 3, "invalid": "drop"}):
            assert torch.autograd.gradcheck(lambda w: upsweep.bincount(x, w, axis=axis, **keywords), w)  # noqa: B023


def test_the_gradient_is_a_look_up_in_the_weights_own_dtype(device):
    x = torch.tensor([2, 0, 2, 7, -1], device=device)
    g = torch.tensor([10.0, 20.0, 30.0], device=device)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        w = torch.ones(5, dtype=dtype, device=device, requires_grad=True)
        y, n = upsweep.bincount(x, w, length=3, invalid="drop", return_invalid=True)
        assert not n.requires_grad
        (result,) = torch.autograd.grad(y, w, g.to(y.dtype))
        assert result.dtype == dtype and result.tolist() == [30, 10, 30, 0, 0]
    assert not upsweep.bincount(x[:3], minlength=3).requires_grad
    with pytest.raises(TypeError, match=r"sums in torch\.int64 have no gradient"):
        upsweep.bincount(x, w, length=3, invalid="drop", dtype=torch.int64)
    with torch.no_grad():
        assert upsweep.bincount(x, w, length=3, invalid="drop", dtype=torch.int64).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match=r"element 3 is 7|element 4 is -1"):
        upsweep.bincount(x, w, length=3)


@pytest.mark.parametrize("shape", [(9,), (9, 2), (2, 9), (2, 9, 3)])
def test_gradients_of_checked_keys_are_looked_up_without_masks(shape, device):
    """The bits are those of g[keys], and of the calls that drop keys."""
    n_axes = 2 if shape[0] == 2 else 1
    x, w = to_tensor(keys_of(shape[:n_axes], 5, "int16"), device), torch.ones(shape, device=device)
    gradients = []
    for keywords in ({}, {"length": 5}, {"invalid": "drop"}):
        leaf = w.clone().requires_grad_()
        y = upsweep.bincount(x, leaf, axis=n_axes - 1, minlength=5, **keywords)
        g = to_tensor(normal(tuple(y.shape), np.float32), device)
        g.view(-1)[:3] = torch.tensor([-0.0, torch.nan, torch.inf], device=device)
        gradients.append(torch.autograd.grad(y, leaf, g)[0].cpu().numpy())
    keys, g = x.cpu().numpy(), g.cpu().numpy()
    expected = g[keys] if n_axes == 1 else np.stack([line[k] for line, k in zip(g, keys)])
    assert {gradient.tobytes() for gradient in gradients} == {expected.tobytes()}


def test_accumulated_tensors_are_known_to_have_changed():
    x = torch.tensor([0, 1])
    # torch knows of what it adds itself (after a sum in float64), and not of what kernels write.
    for dtype in (torch.float32, torch.float64):
        w, total = torch.ones(2, dtype=dtype, requires_grad=True), torch.zeros(2, dtype=dtype)
        loss = (w * total).sum()
        with torch.no_grad():
            upsweep.bincount(x, w, out=total, accumulate=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# ---- the compiler, transforms, modes ---------------------------------------------------------------------------


def test_registered_operations(device):
    from upsweep._torch import bincount_ops

    x, w = to_tensor(keys_of((3, 9), 5), device), to_tensor(normal((3, 9)), device).requires_grad_()
    wide = to_tensor(normal((3, 9, 2), np.complex128), device).requires_grad_()
    g = to_tensor(normal((3, 4)), device).requires_grad_()
    rest = (False, False, 0)
    torch.library.opcheck(bincount_ops.count.default, (x, w, 1, 4, -1, torch.float32, *rest))
    torch.library.opcheck(bincount_ops.count.default, (x, wide, 0, 6, 2, torch.complex128, *rest))
    torch.library.opcheck(bincount_ops.count.default, (x, None, 0, 6, -1, torch.int64, True, False, 1))
    torch.library.opcheck(bincount_ops.look_up.default, (g, x, 1, torch.float64, False, 0))
    torch.library.opcheck(bincount_ops.look_up.default, (g, x % 4, 1, torch.float64, False, 0, False))
    torch.library.opcheck(bincount_ops.look_up.default, (g[0].detach(), x[0], 0, torch.float32, False, 0))


def test_nothing_is_read_back_unless_it_has_to(fake_cuda, monkeypatch):
    from upsweep._torch import bincount, executors

    monkeypatch.setattr(bincount, "_run_plain", lambda *arguments: None)
    monkeypatch.setattr(executors, "count", executors._count_on_cuda)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 77, raising=False)
    x, w = torch.tensor([3, 1, 1]), torch.ones(3, requires_grad=True)
    y, n = upsweep.bincount(x, w, length=3, invalid="drop", return_invalid=True)
    y.sum().backward()
    upsweep.bincount(x, out=torch.zeros(3, dtype=torch.int64), invalid="drop", accumulate=True)
    assert fake_cuda.read_back == 0 and fake_cuda.ranges == 0 and n.item() == 1
    upsweep.bincount(x, w)
    assert (fake_cuda.read_back, fake_cuda.ranges) == (1, 1)
    upsweep.bincount(x, w, length=5)
    assert (fake_cuda.read_back, fake_cuda.ranges) == (2, 1)
    assert {p.stream for p in fake_cuda.counts} == {77} and not any(p.deterministic for p in fake_cuda.counts)
    try:
        torch.use_deterministic_algorithms(True)
        upsweep.bincount(x, w)
    finally:
        torch.use_deterministic_algorithms(False)
    assert fake_cuda.counts[-1].deterministic
    with pytest.raises(MemoryError, match="x: the largest key asks for"):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: type("", (), {"total_memory": 1 << 37})
        )
        upsweep.bincount(torch.tensor([2**40]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, device):
    def function(x, w, out):
        y, n = upsweep.bincount(x, w, length=5, invalid="drop", return_invalid=True)
        upsweep.bincount(x, out=out, invalid="drop", accumulate=True)
        return 2 * y.sin() + n

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (30, 31):
        x, w = to_tensor(keys_of(n, 7, seed=n), device), to_tensor(normal(n), device)
        leaves = [w.clone().requires_grad_() for _ in range(2)]
        outs = [torch.ones(5, dtype=torch.int64, device=device) for _ in range(2)]
        result, expected = compiled(x, leaves[0], outs[0]), function(x, leaves[1], outs[1])
        assert torch.equal(result, expected) and torch.equal(*outs)
        assert torch.equal(*(torch.autograd.grad(y.sum(), leaf)[0] for y, leaf in zip((result, expected), leaves)))


def test_what_depends_on_the_keys_is_not_compiled():
    x = torch.tensor([3, 1, 1])
    for call in (lambda x: upsweep.bincount(x) * 2, lambda x: upsweep.bincount(x, length=4) * 2):
        torch._dynamo.reset()
        assert torch.compile(call, backend="aot_eager")(x).tolist() == [0, 4, 0, 2]
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="looks at its keys, unless"):
            torch.compile(call, backend="aot_eager", fullgraph=True)(x)
    with pytest.raises(ValueError, match="element 1 is -1"):
        torch.compile(lambda x: upsweep.bincount(x), backend="aot_eager")(torch.tensor([1, -1]))


def test_vmap_and_functional_gradients(device):
    x, w = to_tensor(keys_of((4, 9), 6), device), to_tensor(normal((4, 9)), device)
    fixed = {"length": 5, "invalid": "drop"}
    rows = upsweep.bincount(x, w, axis=1, **fixed)
    assert torch.equal(torch.vmap(lambda x, w: upsweep.bincount(x, w, **fixed))(x, w), rows)
    assert torch.equal(torch.vmap(lambda x: upsweep.bincount(x, **fixed), 1)(x.T.contiguous().T.T),
                       upsweep.bincount(x, axis=1, **fixed))  # fmt: skip
    assert torch.equal(torch.vmap(lambda w: upsweep.bincount(x[0], w, **fixed))(w)[0], rows[0])
    jacobian = torch.func.jacrev(lambda w: upsweep.bincount(x[0], w, **fixed))(w[0])
    assert torch.equal(jacobian, (x[0] == torch.arange(5, device=device)[:, None]).to(w.dtype))
    each = torch.func.vmap(torch.func.grad(lambda w, x: (upsweep.bincount(x, w, **fixed) ** 2).sum()))(w, x)
    expected = 2 * rows.gather(1, x.clamp(max=4)).where(x < 5, 0)
    assert torch.allclose(each, expected)
    for keywords in ({}, {"length": 9}):
        with pytest.raises(NotImplementedError, match=r"x: its values cannot be looked at.*length="):
            torch.vmap(lambda w: upsweep.bincount(x[0], w, **keywords))(w)  # noqa: B023
    with pytest.raises(NotImplementedError, match="return_invalid"):
        torch.vmap(lambda x: upsweep.bincount(x, return_invalid=True, **fixed)[1])(x)


def test_autocast_changes_nothing():
    x, w = torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = upsweep.bincount(x, w)
    assert y.dtype == torch.float32 and y.tolist() == [1, 5]
    assert torch.autograd.grad(y.sum(), w)[0].dtype == torch.float32


def test_modes_and_subclasses_see_the_operation():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    class Tagged(torch.Tensor):
        pass

    x, w = torch.tensor([0, 1, 1]), torch.ones(3)
    with Names() as seen:
        assert upsweep.bincount(x, w).tolist() == [1, 2]
    assert "upsweep.bincount.default" in seen.names
    assert upsweep.bincount(x, w.as_subclass(Tagged), length=2, invalid="drop").tolist() == [1, 2]
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert upsweep.bincount(fake, length=7, invalid="drop").shape == (7,)
        with pytest.raises(NotImplementedError, match="x: its values cannot be looked at"):
            upsweep.bincount(fake)


def test_what_torch_would_lose_is_refused():
    import warnings

    x, w = torch.tensor([0, 1, 1]), torch.ones(3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, w)
        with pytest.raises(NotImplementedError, match="counts have no derivative taken forward"):
            upsweep.bincount(x, dual)
    with pytest.raises(NotImplementedError, match="counts cannot be recorded"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda x: upsweep.bincount(x), (x,))
