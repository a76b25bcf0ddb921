"""Hazard: numpy arrays with device="cuda" whose results, copies or device memory are lost. Needs no GPU."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, operands, random
from upsweep._backends.cuda import library
from upsweep._backends.cuda.staging import StagingContext


@pytest.fixture
def allocated(fake_cuda, monkeypatch):
    """The pointers of device memory that is not freed."""
    pointers, allocate = set(), fake_cuda.allocate

    def record(device, stream, n_bytes, pointer):
        allocate(device, stream, n_bytes, pointer)
        pointers.add(pointer._obj.value)

    monkeypatch.setattr(fake_cuda, "allocate", record)
    monkeypatch.setattr(fake_cuda, "free", lambda device, stream, pointer: pointers.remove(pointer))
    return pointers


@pytest.mark.parametrize("name", SCANS)
def test_scans(name, fake_cuda, allocated):
    for shape, axis in (((3, 40), 1), ((40, 3), 0), ((3, 0), 1), ((0, 3), 1)):
        arrays = operands(name, shape, np.float32)
        keywords = {"axis": axis, "initial": random((3,) if shape[axis - 1] else (0,), np.float32, 5)}
        keywords |= {"reset": random(shape, seed=6) > 0.9, "return_final": True}
        results = getattr(upsweep, name)(*arrays, device="cuda:2", **keywords)
        expected = getattr(upsweep, name)(*arrays, **keywords)
        for result, on_cpu in zip(results, expected, strict=True):
            assert isinstance(result, np.ndarray) and result.dtype == on_cpu.dtype
            np.testing.assert_allclose(result, on_cpu, rtol=1e-6)
        aggregates = [
            getattr(upsweep, f"{name}_carry")(*arrays, axis=axis, reset=keywords["reset"], device=device)
            for device in ("cuda:2", None)
        ]
        for result, on_cpu in zip(*aggregates, strict=True):
            assert isinstance(result, np.ndarray) and result.dtype == on_cpu.dtype
            np.testing.assert_allclose(result, on_cpu, rtol=1e-6)
    assert not allocated
    assert {getattr(p, "scan", p).device for p in fake_cuda.problems} == {2}


def test_operands_that_repeat_elements_or_have_another_byte_order(fake_cuda):
    x = random((3, 40), np.float32)
    repeated = np.broadcast_to(x[:1], (3, 40))
    for tokens in (repeated, x[::-1, ::-1], x.astype(">f4"), x.T.copy().T):
        out = np.full((3, 80), np.nan, np.float32)[:, ::2]
        assert upsweep.discounted_cumsum(tokens, 0.5, out=out, device="cuda") is out
        np.testing.assert_allclose(out, upsweep.discounted_cumsum(tokens, 0.5), rtol=1e-6)
    (p,) = {tuple(p.x.batch_strides[:1]) for p in fake_cuda.problems[:1]}
    assert p == (0,)  # one row was copied


def test_results_have_the_layout_of_x(fake_cuda):
    x = np.asfortranarray(random((30, 40)))
    assert upsweep.cumulative_sum(x, axis=0, device="cuda").strides == x.strides


def test_memory_is_freed_and_out_is_not_written_after_an_error(fake_cuda, allocated):
    out = np.full(3, 7)
    with pytest.raises(ValueError, match="element 2 is 9, outside the 3 bins"):
        upsweep.bincount([0, 1, 9], length=3, out=out, device="cuda")
    assert (out == 7).all() and not allocated
    with pytest.raises(ValueError, match="element 1 is -4"):
        upsweep.bincount([0, -4], device="cuda")
    assert not allocated


def test_outputs_are_copied_back_only_without_an_error(fake_cuda, allocated):
    target = np.zeros(3)
    with StagingContext(0) as context:
        context.memory.copy_in(np.ones(3), context.output(target))
        assert allocated
    assert (target == 1).all() and not allocated
    with pytest.raises(KeyError), StagingContext(0) as context:
        context.memory.copy_in(np.zeros(3), context.output(target))
        raise KeyError
    assert (target == 1).all() and not allocated


def test_the_device_is_checked_before_operands_are_copied(monkeypatch):
    def reject(device):
        raise RuntimeError(f"no device {device}")

    monkeypatch.setattr(library, "check_device", reject)
    monkeypatch.setattr(library, "load", lambda: pytest.fail("loaded"))
    x = np.ones(3)
    for call in (
        lambda: upsweep.cumulative_sum(x, device="cuda:5"),
        lambda: upsweep.cumulative_sum(np.ones((0, 3)), device="cuda:5"),
        lambda: upsweep.cumulative_sum_carry(x, device="cuda:5"),
        lambda: upsweep.bincount([1, 2], device="cuda:5"),
        lambda: upsweep.histogram(x, device="cuda:5"),
    ):
        with pytest.raises(RuntimeError, match="no device 5"):
            call()
