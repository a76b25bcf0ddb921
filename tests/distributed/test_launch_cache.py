"""Hazard: a launch described for one shard gets the addresses of another, and computes something else."""

import pytest
from tensors import torch
from upsweep import _backends
from upsweep._torch import executors
from upsweep._torch import scan as torch_scan
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import caches
from upsweep.distributed import shard as shard_module


@pytest.fixture
def backend(monkeypatch):
    """Two lists: the problems that the library would start, as bytes, and those that were described."""
    started, described = [], []

    def prepare(problem):
        described.append(problem)
        return problem

    monkeypatch.setattr(_backends.cuda_scan_launch, "prepare_scan", prepare)
    monkeypatch.setattr(
        _backends.cuda_scan_launch, "start_scan", lambda problem, allocate: started.append(bytes(problem))
    )
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(caches, "_launches", LRUCache(2048))
    yield started, described


def aligned(shape, dtype):
    """Memory that begins at a multiple of 256 bytes."""
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = torch.empty(n_bytes + 256, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 256 :][:n_bytes].view(dtype).view(shape)


def device_shard(scan, reverse=False, exclusive=False):
    """A shard that counts as being on a device, whose launches are cached."""
    shard = shard_module.Shard(scan, reverse, exclusive, True, None)
    shard.out = (
        aligned(scan.shape, scan.dtype) if scan.shape.numel() else shard.out
    )  # as all memory of a device is
    shard._layout = shard._layout_key()
    return shard


def expected_problem(shard, x, rows, initial, steps, out, final):
    """The problem as any scan is described, without the cache."""
    scan, describe, narrow = shard.scan, executors.describe, shard._narrow
    return bytes(
        _backends.cuda_scan_launch.problem(
            describe(narrow(x, rows, steps)), describe(narrow(scan.gates, rows, steps)),
            scan.factor if scan.gamma is None else describe(shard.narrow_state(scan.gamma, rows)),
            describe(initial), describe(narrow(scan.reset, rows, steps)), describe(narrow(out, rows, steps)),
            describe(final), axis=scan.axis, reverse=shard.reverse, exclusive=shard.exclusive, device=0, stream=77,
        )
    )  # fmt: skip


def scan_of(kind, seed):
    """A checked scan of tensors of its own."""
    x, gates = torch.rand(2, 12, 50, generator=torch.Generator().manual_seed(seed)).unbind()
    reset, initial = x > 0.9, x[:, 0].double()
    return {
        "lines": lambda: torch_scan.prepare_gated(gates.clone(), x.clone(), -1, None, None),
        "columns": lambda: torch_scan.prepare_gated(gates.mT.contiguous().mT, x.clone(), 0, reset[:, :], None),
        "sum": lambda: torch_scan.prepare_sum(x.clone()[:, ::2], None, 1, None, None),
        "number": lambda: torch_scan.prepare_discounted(x.clone(), 0.5, 1, reset, initial),
        "rows": lambda: torch_scan.prepare_discounted(x.clone(), x[:, :1].double(), 1, None, initial),
        "short": lambda: torch_scan.prepare_gated(gates.half(), x.half(), 1, None, None),
    }[kind]()


@pytest.mark.parametrize("kind", ["lines", "columns", "sum", "number", "rows", "short"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_cached_launch_is_what_would_be_described(backend, kind, reverse):
    started, described = backend
    shards = []
    for seed in range(3):
        shard = device_shard(scan_of(kind, seed), reverse)
        shards.append(shard)  # so that the next one has other addresses
        zeros = torch.zeros((), dtype=shard.scan.dtype).expand(shard.scan.shape)
        for rows in (shard.rows, *shard.row_groups(3)):
            for steps in (shard.length, 7):
                for x, out in ((shard.scan.x, None), (shard.scan.x, shard.out), (zeros, None)):
                    for initial in (None, shard.empty_state(rows), shard.initial(rows)):
                        final = shard.empty_state(rows)
                        shard._run(x, rows, initial, steps, out, final)
                        assert started[-1] == expected_problem(shard, x, rows, initial, steps, out, final)
        # The same addresses again need no new description.
        n_described = len(described)
        shard._run(x, rows, initial, steps, out, final)
        assert len(described) == n_described and started[-1] == started[-2]


def test_another_layout_has_another_key():
    x = scan_of("lines", 0).x
    keys = []
    changes = [
        (False, False, {}), (True, False, {}), (False, True, {}), (False, False, {"x": x.double()}),
        (False, False, {"gates": x.mT.contiguous().mT}), (False, False, {"factor": 0.5}),
        (False, False, {"factor": -0.0}), (False, False, {"factor": 0.0}),
    ]  # fmt: skip
    for reverse, exclusive, change in changes:
        scan = scan_of("lines", 0)
        vars(scan).update(change)
        keys.append(device_shard(scan, reverse, exclusive)._layout)
    assert len(set(keys)) == len(changes)
    assert device_shard(scan_of("lines", 1))._layout == keys[0]


def test_conjugated_and_empty_tensors_are_not_cached():
    for scan in (
        torch_scan.prepare_sum(torch.ones(3, 4, dtype=torch.complex64).conj(), None, 1, None, None),
        torch_scan.prepare_sum(torch.ones(3, 0), None, 1, None, None),
    ):
        assert device_shard(scan)._layout is None


def test_the_cache_is_bounded(backend):
    for length in range(1, 100):
        shard = device_shard(torch_scan.prepare_sum(torch.ones(2, length), None, 1, None, None))
        for steps in range(1, length + 1):
            shard._run(shard.scan.x, shard.rows, None, steps, shard.out, shard.empty_state(shard.rows))
    assert len(caches._launches) <= 2048


def test_addresses_of_another_alignment_are_planned_anew(backend):
    _, described = backend
    memory = torch.rand(3 * 50 + 1)
    out, final = aligned((3, 50), torch.float32), aligned((3,), torch.float64)
    for begin, n_described in ((0, 1), (0, 1), (1, 2), (0, 2)):
        shard = device_shard(torch_scan.prepare_sum(memory[begin : begin + 150].view(3, 50), None, 1, None, None))
        shard._run(shard.scan.x, shard.rows, None, 50, out, final)
        assert len(described) == n_described
