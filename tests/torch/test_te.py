"""Functions that te builds, over tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llvmlite")

from upsweep import te  # noqa: E402


def built():
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    scan = te.scan(init, te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i]), state)
    return te.build(te.create_schedule(scan.op), [X, scan])


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
