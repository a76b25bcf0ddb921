"""A gated recurrence on CUDA over a range of lengths, with the flags of fpscan's own benchmark.

    python asv_bench/run.py scans --device cuda --batch 2 --dim 256 --seqlens 1024 4096 --outdir docs

times upsweep, the peers that are installed and a baseline in plain torch operations (a Hillis-Steele scan), each
after a check of its answer, and writes two figures against length: the time, and the others' time over
upsweep's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from upsweep.bench.report import Row

from upsweep_bench import figures
from upsweep_bench.case import ordered
from upsweep_bench.scans import BASELINE, GATED_PEERS, Case

__all__ = ["FIGURES", "Sweep", "add_arguments", "flags_used", "write_figures"]

FIGURES = ("latency_vs_seqlen.png", "speedup_vs_seqlen.png")
_FLAGS = ("batch", "dim", "dtype", "seqlens", "iters", "warmup", "outdir")
_LENGTHS = tuple(1 << power for power in range(5, 17))


def _count(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text}")
        return int(text)

    convert.__name__ = "int"  # what argparse calls it where it is no number
    return convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; the default of each is None."""
    title = "a sweep over lengths (scans --device cuda): any of these flags, which are fpscan's, starts it"
    group = parser.add_argument_group(title)
    positive = _count(1)
    group.add_argument("--batch", type=positive, metavar="N", help="default 2")
    group.add_argument("--dim", type=positive, metavar="N", help="default 256")
    group.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default float32")
    group.add_argument("--seqlens", type=positive, nargs="+", metavar="N", help="default 32 to 65536, doubling")
    group.add_argument("--iters", type=positive, metavar="N", help="samples, whose median counts; default 100")
    group.add_argument("--warmup", type=_count(0), metavar="N", help="samples before them; default 10")
    group.add_argument("--outdir", type=Path, metavar="DIR", help="folder of the figures; default: this one")


def flags_used(options: argparse.Namespace) -> list[str]:
    """The sweep's flags among the options."""
    return [f"--{name}" for name in _FLAGS if getattr(options, name) is not None]


@dataclass(frozen=True)
class Sweep:
    """The flags with their defaults."""

    batch: int = 2
    dim: int = 256
    dtype: str = "float32"
    seqlens: Sequence[int] = _LENGTHS
    iters: int = 100
    warmup: int = 10
    outdir: Path = Path()

    @classmethod
    def of(cls, options: argparse.Namespace) -> Sweep:
        """The flags that were used, and the defaults of the others; ``--quick``: fewer samples and lengths."""
        used = {name: getattr(options, name) for name in _FLAGS if getattr(options, name) is not None}
        quick = {"iters": 10, "warmup": 2, "seqlens": _LENGTHS[::4]} if options.quick else {}
        return cls(**{**quick, **used})

    def cases(self) -> list[Case]:
        """One for each length, with every peer of gated recurrences and the baseline."""
        peers = ordered((*GATED_PEERS, BASELINE), None)
        shapes = [(self.batch, self.dim, length) for length in self.seqlens]
        return [Case("linear_recurrence", shape, self.dtype, peers=peers, device="cuda") for shape in shapes]


def write_figures(folder: Path, title: str, rows: Sequence[Row]) -> list[Path]:
    """Write the two figures from the sweep's rows; returns their paths.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    times, ratios = (folder / name for name in FIGURES)
    with figures.axes(times, title) as (axes,):
        figures.lines(axes, rows, lambda row: row.method, figures.milliseconds)
        axes.set_yscale("log")
        axes.set_ylabel("median time of a forward scan, ms")
    with figures.axes(ratios, title) as (axes,):
        others = [row for row in rows if row.unit == "x"]
        figures.lines(axes, others, lambda row: row.method, lambda row: row.value)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.set_ylabel("time over upsweep's time")
    return [times, ratios]
