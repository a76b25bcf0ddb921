"""Hazard: a fill that was described for another shard is given this one's addresses, and does something else."""

import pytest
from tensors import torch
from upsweep import _backends
from upsweep._torch import executors
from upsweep._torch import scan as torch_scan
from upsweep.distributed import launch_cache
from upsweep.distributed import shard as shard_module


@pytest.fixture
def started(monkeypatch):
    """What the library is given, as bytes, instead of a device."""
    given, prepared = [], []

    def prepare(problem):
        prepared.append(problem)
        return problem

    monkeypatch.setattr(_backends, "prepare_cuda_scan", prepare)
    monkeypatch.setattr(_backends, "start_cuda_scan", lambda problem, allocate: given.append(bytes(problem)))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(launch_cache, "_known", {})
    yield given, prepared


def aligned(shape, dtype):
    """Memory that begins at a multiple of 256 bytes."""
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = torch.empty(n_bytes + 256, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 256 :][:n_bytes].view(dtype).view(shape)


def described(shard, x, rows, initial, steps, out, final):
    """The same as any scan is described."""
    scan, of = shard.scan, executors._described
    return bytes(
        _backends.cuda_problem(
            of(shard.piece(x, rows, steps)), of(shard.piece(scan.gates, rows, steps)),
            scan.factor if scan.gamma is None else of(shard.of_state(scan.gamma, rows)), of(initial),
            of(shard.piece(scan.reset, rows, steps)), of(shard.piece(out, rows, steps)), of(final), axis=scan.axis,
            reverse=shard.reverse, exclusive=shard.exclusive, device=0, stream=77,
        )
    )  # fmt: skip


def scan_of(kind, seed):
    """A checked scan of memory of its own."""
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
def test_it_is_what_would_be_described(started, kind, reverse):
    given, prepared = started
    kept = []
    for seed in range(3):
        shard = shard_module.Shard(scan_of(kind, seed), reverse, False, True, 0)
        kept.append(shard)  # so that the next has other addresses
        shard.out = aligned(shard.scan.shape, shard.scan.dtype)  # as all memory of a device is
        shard._fills = launch_cache.fills_of(shard)
        zeros = torch.zeros((), dtype=shard.scan.dtype).expand(shard.scan.shape)
        for rows in (shard.rows, *shard.groups(3)):
            for steps in (shard.length, 7):
                for x, out in ((shard.scan.x, None), (shard.scan.x, shard.out), (zeros, None)):
                    for initial in (None, shard.state(rows), shard.initial(rows)):
                        final = shard.state(rows)
                        shard._fills.run(shard, x, rows, initial, steps, out, final)
                        assert given[-1] == described(shard, x, rows, initial, steps, out, final)
        # Addresses of other alignment are a description of their own.
        n_prepared = len(prepared)
        shard._fills.run(shard, x, rows, initial, steps, out, final)
        assert len(prepared) == n_prepared and given[-1] == given[-2]


def test_what_lies_otherwise_is_described_anew(started):
    base = scan_of("lines", 0)
    fills = []
    for reverse, exclusive, change in (
        (False, False, {}), (True, False, {}), (False, True, {}), (False, False, {"x": base.x.double()}),
        (False, False, {"gates": base.gates.mT.contiguous().mT}), (False, False, {"factor": 0.5}),
        (False, False, {"factor": -0.0}), (False, False, {"factor": 0.0}),
    ):  # fmt: skip
        scan = scan_of("lines", 0)
        vars(scan).update(change)
        fills.append(launch_cache.fills_of(shard_module.Shard(scan, reverse, exclusive, True, 0)))
    assert len(set(map(id, fills))) == len(fills)
    again = launch_cache.fills_of(shard_module.Shard(scan_of("lines", 1), False, False, True, 0))
    assert again is fills[0]


def test_what_has_no_plain_numbers_is_not_kept():
    for scan in (
        torch_scan.prepare_sum(torch.ones(3, 4, dtype=torch.complex64).conj(), None, 1, None, None),
        torch_scan.prepare_sum(torch.ones(3, 0), None, 1, None, None),
    ):
        assert launch_cache.fills_of(shard_module.Shard(scan, False, False, False, 0)) is None


def test_there_is_an_end_to_what_is_kept(started):
    for length in range(1, 100):
        shard = shard_module.Shard(
            torch_scan.prepare_sum(torch.ones(2, length), None, 1, None, None), False, False, False, 0
        )
        fills = launch_cache.fills_of(shard)
    assert len(launch_cache._known) <= 64
    for steps in range(1, 100):
        fills.run(shard, shard.scan.x, shard.rows, None, steps, shard.out, shard.state(shard.rows))
    assert len(fills._pieces) <= 64


def test_addresses_that_are_aligned_otherwise_are_planned_anew(started):
    _, prepared = started
    memory = torch.rand(3 * 50 + 1)
    for at, n_prepared in ((0, 1), (0, 1), (1, 2), (0, 2)):
        shard = shard_module.Shard(
            torch_scan.prepare_sum(memory[at : at + 150].view(3, 50), None, 1, None, None), False, False, False, 0
        )
        out, final = aligned((3, 50), torch.float32), aligned((3,), torch.float64)
        launch_cache.fills_of(shard).run(shard, shard.scan.x, shard.rows, None, 50, out, final)
        assert len(prepared) == n_prepared
