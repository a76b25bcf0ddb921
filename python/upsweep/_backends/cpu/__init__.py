"""The CPU backend: selects the instruction set, sets the number of threads, and runs problems on numpy arrays.

::

    scan, bincount, histogram     executors of checked problems, called by `_backends`
        -> _scans, _bincounts, _histograms   Cython modules, built for each instruction set in ``_isa/<level>/``;
                                             here under the names `scans`, `bincounts`, `histograms`
    filter                        executor of linear filters
        -> _filters               its Cython module, of each instruction set too, loaded on first use
    pairs, user_scan, loops       executors that compile kernels (`_compiler.llvm`)
        -> _pairs, _user_scans, _loops       Cython drivers of compiled kernels, one build
    _machine                      OpenMP's version and thread pool, properties of the CPU
    control_groups                cores and memory that Linux leaves to the process

The import selects the widest instruction set that the CPU runs, or the one that the environment variable
``UPSWEEP_CPU_ISA`` names. The executors compile kernels for the same one, so the variable limits LLVM as well. The
small-call paths of the public functions call the Cython modules directly.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

import upsweep._backends.cpu._machine as _machine
from upsweep._backends.cpu import control_groups
from upsweep._utils.integers import as_size

__all__ = [
    "built_levels", "bincounts", "get_num_threads", "histograms", "level", "memory_limit", "scans",
    "set_num_threads", "threads", "usable_levels",
]  # fmt: skip

_FOLDER = os.path.join(os.path.dirname(__file__), "_isa")  # pathlib takes a sixth of the import's time


def built_levels() -> list[str]:
    """Return the instruction sets that this installation has kernels for, narrowest first."""
    folders = [entry for entry in os.scandir(_FOLDER) if entry.is_dir()]
    return sorted(each.name for each in folders if any(name.startswith("_scans.") for name in os.listdir(each)))


def usable_levels() -> list[str]:
    """Return the instruction sets with kernels that this CPU runs, widest first."""
    built = built_levels()
    return [name for name in _machine.usable_levels() if name in built]


def _choose_level() -> str:
    usable = usable_levels()
    chosen = os.environ.get("UPSWEEP_CPU_ISA")
    if chosen:
        if chosen not in usable:
            raise ImportError(f"UPSWEEP_CPU_ISA={chosen!r}: expected one of {', '.join(usable)}")
        return chosen
    if not usable:
        raise ImportError(f"no kernels for this CPU; built for: {', '.join(built_levels())}")
    return usable[0]


level: str = _choose_level()


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"upsweep._backends.cpu._isa.{level}.{name}")


if TYPE_CHECKING:  # one set of stubs for every instruction set
    from upsweep._backends.cpu._isa import _bincounts as bincounts
    from upsweep._backends.cpu._isa import _histograms as histograms
    from upsweep._backends.cpu._isa import _scans as scans
else:
    scans = _load("_scans")
    bincounts = _load("_bincounts")
    histograms = _load("_histograms")


# ---- memory --------------------------------------------------------------------------------------------------


def memory_limit() -> int | None:
    """Return the bytes of memory of this machine, or of its control group; None if the system does not say."""
    limits = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits += control_groups.memory()
    return min((limit for limit in limits if limit > 0), default=None)


# ---- threads -------------------------------------------------------------------------------------------------


def _available() -> int:
    limits = [_machine.max_threads()]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    limits += control_groups.cores()
    return max(1, min(limits))


_default_threads: int = _available()

# An upper bound, because OpenMP ends the process if it cannot start a thread.
_MAX_THREADS: int = max(64, 4 * (os.cpu_count() or 1))


def check_threads(n_threads: object, name: str = "n_threads") -> int:
    """Check a number of threads, and return it, bounded by what OpenMP can start."""
    return min(as_size(n_threads, name, 1, expected="expected an integer or None"), _MAX_THREADS)


def threads(n_threads: int | None) -> int:
    """Return the most threads that a call may use; the kernels use fewer for small problems."""
    return _default_threads if n_threads is None else check_threads(n_threads)


def set_num_threads(n_threads: int | None) -> None:
    """Set the number of threads of calls that do not say ``n_threads=``.

    Parameters
    ----------
    n_threads : int or None
        At least 1. None: what OpenMP, the process' CPU affinity and its control group allow at present.

    Raises
    ------
    TypeError, ValueError
        Not an integer; below 1.

    Examples
    --------
    >>> import upsweep
    >>> upsweep.set_num_threads(1)
    >>> upsweep.get_num_threads()
    1
    >>> upsweep.set_num_threads(None)
    """
    global _default_threads
    _default_threads = _available() if n_threads is None else check_threads(n_threads)


def get_num_threads() -> int:
    """The number of threads that calls without ``n_threads=`` may use.

    Returns
    -------
    int

    Examples
    --------
    >>> import upsweep
    >>> upsweep.get_num_threads() >= 1
    True
    """
    return _default_threads


# A forked child has none of the pool's threads, and its first parallel region would wait for them forever. The
# parent ends them before it forks, and starts new ones when it needs them.
if hasattr(os, "register_at_fork") and _machine.openmp_version():
    os.register_at_fork(before=_machine.pause_pool)
