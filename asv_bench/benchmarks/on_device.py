"""What the benchmarks of CUDA tensors share: where they are skipped, and their figures from `upsweep.bench`.

`module` is one of ``upsweep.bench``, such as ``cuda_scans``, by its name: torch is imported with it, when a
benchmark runs and not with these files. asv imports all of them before it forks, and torch's memory would be in
the figures of the CPU benchmarks.
"""

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

from upsweep.bench import cuda

NAN = float("nan")


class DeviceView:
    """Skipped where there is no GPU. The ``setup`` does no harm: every sample is one call anyhow."""

    timeout = 300  # accelerated-scan, a peer, is compiled when it is imported

    def setup(self, _: str) -> None:
        reason = cuda.why_not()
        if reason is not None:
            raise NotImplementedError(reason)  # how asv is told to skip


def _bench(module: str) -> Any:
    return importlib.import_module(f"upsweep.bench.{module}")


def figure(module: str, case: Any) -> float:
    """The case's own figure, after its answer was checked; nan where upsweep has no such call."""
    return _bench(module).measure_case(replace(case, peers=()))[0].figure or NAN


def ratio_to_peer(module: str, name: str, case: Any) -> float:
    """How many times upsweep's time this peer takes; nan where it is not installed, fails or is wrong."""
    rows = _bench(module).measure_case(replace(case, peers=((name, None),)))
    return next((row.figure for row in rows if row.method == name and row.figure), NAN)


@cache
def _call(module: str, case: Any) -> Any:
    bench = _bench(module)
    return bench.Tensors(case, 1).call(bench.function_of(case))


def run_once(module: str, case: Any) -> None:
    """A launch and the wait for its end; the first call, which makes the arrays, is asv's warm-up."""
    import torch

    _call(module, case)(0)
    torch.cuda.synchronize()
