"""What the benchmarks of CUDA tensors share: they are skipped without a GPU, and call `upsweep_bench.compare`.

asv imports all benchmarks before it forks. torch is imported when a benchmark runs, so that its memory does not
count in the CPU benchmarks.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from upsweep_bench import cli, compare
from upsweep_bench.case import Case

NAN = float("nan")


def cases(family: str) -> dict[str, Any]:
    """The CUDA cases of ``asv_bench/run.py FAMILY --device cuda`` by their labels."""
    return {case.label: case for case in cli.cases(family, quick=False, device="cuda")}


def peer_table(table: dict[str, tuple[str, ...]], every: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Peers and cases under the names that asv shows."""
    return {f"{peer}: {label}": (peer, every[label]) for peer, labels in table.items() for label in labels}


class CudaBenchmark:
    """Skipped where there is no GPU. The ``setup`` does no harm: every sample is one call anyhow."""

    timeout = 300  # accelerated-scan, a peer, is compiled when it is imported
    param_names = ("case",)

    def setup(self, _: str) -> None:
        reason = cli.reason_not_to_run()
        if reason is not None:
            raise NotImplementedError(reason)  # makes asv skip the benchmark


def value(case: Case) -> float:
    """The case's own metric, after its answer was checked; nan where upsweep has no such call."""
    return compare.measure_case(cli.without_peers(case))[0].value or NAN


def milliseconds(case: Case) -> float:
    """The time on the device by CUDA events, after the answer was checked; nan where upsweep has no such call."""
    seconds = compare.measure_case(cli.without_peers(case))[0].seconds
    return NAN if seconds is None else 1e3 * seconds


def ratio_to_peer(name: str, case: Any) -> float:
    """The peer's time over upsweep's; nan where the peer is not installed, fails or is wrong."""
    rows = compare.measure_case(replace(case, peers=((name, None),)))
    return next((row.value for row in rows if row.method == name and row.value), NAN)


@cache
def _call(case: Case) -> Any:
    arrays = case.arrays(count=1)
    return arrays.call(case.function(arrays))


def run_once(case: Case) -> None:
    """A launch and the wait for its end; the first call, which allocates the arrays, is asv's warm-up."""
    import torch

    _call(case)(0)
    torch.cuda.synchronize()
