"""Functions that te builds, over tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llvmlite")

from upsweep import te  # noqa: E402


def built(target="cpu"):
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    scan = te.scan(init, te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i]), state)
    return te.build(te.create_schedule(scan.op), [X, scan], target)


def test_tensors_in_tensors_out():
    run = built()
    x = torch.rand(5, 33)
    y = run(x)
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(y, torch.cumsum(x, 0))
    torch.testing.assert_close(run(x.T.contiguous().T), torch.cumsum(x, 0))
    mixed = run(x.numpy())
    assert isinstance(mixed, np.ndarray)


def test_tensors_are_filled_and_count_as_changed():
    run, x = built(), torch.rand(5, 33)
    out = torch.empty(5, 33)
    version = out._version
    assert run(x, out) is None
    torch.testing.assert_close(out, torch.cumsum(x, 0))
    assert out._version == version + 1


def test_no_derivative():
    run, x = built(), torch.rand(5, 33, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no derivative"):
        run(x)
    with torch.no_grad():
        torch.testing.assert_close(run(x), torch.cumsum(x, 0))


def test_wrong_tensors():
    with pytest.raises(TypeError, match="X: expected dtype float32, got float64"):
        built()(torch.ones(3, 4, dtype=torch.float64))
    with pytest.raises(TypeError, match="a tensor on meta"):
        built()(torch.ones(3, 4, device="meta"))


@pytest.fixture
def pretended(monkeypatch, tmp_path, fake_cuda):
    """Let tensors of the CPU stand in for tensors on a device, whose kernels run on the host."""
    import host_device
    import host_loops
    from upsweep._arrays.torch import TORCH

    if not host_device.has_compiler:
        pytest.skip("no C++ compiler")
    from upsweep._torch import loops

    library = TORCH
    monkeypatch.setattr(library, "stream", lambda ordinal: 77)
    monkeypatch.setattr(library, "empty", lambda shape, dtype, *place: library.view(
        torch.full(shape, float("nan"), dtype=library._dtype(dtype)), "out"))  # fmt: skip
    monkeypatch.setattr(library, "workspace", lambda n_bytes, ordinal: (
        (memory := torch.empty(n_bytes, dtype=torch.uint8)).data_ptr(), memory))  # fmt: skip
    monkeypatch.setattr(loops, "_device_type", lambda tensor: "cuda" if tensor.device.type == "cpu" else "meta")
    monkeypatch.setattr(loops, "_current_stream", lambda device: 78)
    return host_loops.install(monkeypatch, tmp_path, fake_cuda)


def test_on_a_device(pretended):
    run, x = built("cuda"), torch.rand(5, 33)
    y = run(x)
    assert isinstance(y, torch.Tensor) and pretended.launches[-1][4] == 77
    torch.testing.assert_close(y, torch.cumsum(x, 0))
    torch.testing.assert_close(run(x.T.contiguous().T), torch.cumsum(x, 0))
    out = torch.empty(5, 33)
    version = out._version
    assert run(x, out) is None and out._version == version + 1
    torch.testing.assert_close(out, torch.cumsum(x, 0))
    for _ in range(3):  # later calls on tensors like these go straight to the kernels
        x, out = torch.rand(5, 33), torch.empty(5, 33)
        assert run(x, out) is None and out._version == 1
        torch.testing.assert_close(out, torch.cumsum(x, 0))
        assert pretended.launches[-1][4] == 78 and len(run.prepared) == 1
    with pytest.raises(ValueError, match="scan: overlaps X"):
        run(x, x)
    with pytest.raises(NotImplementedError, match="no derivative"):
        run(x.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="no derivative"):
        run(x.clone().requires_grad_(), out)
    with pytest.raises(TypeError, match="argument 0: built for a CUDA device, got a tensor on meta"):
        run(torch.ones(3, 4, device="meta"))
    with pytest.raises(TypeError, match="X: is an array in the computer's memory, while scan is on a CUDA device"):
        run(x.numpy(), out)
