"""What this installation is and what it chose on this machine."""

from __future__ import annotations

import importlib.util
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

import upsweep._backends.cpu._machine as _machine
from upsweep._backends import cpu
from upsweep._backends.cuda import library

if TYPE_CHECKING:
    from upsweep._compiler import disk_cache

__all__ = ["Config", "show_config"]


class Config(dict[str, Any]):
    """A dictionary that prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{key:<{width}}  {_text(key, value)}" for key, value in self.items())

    __repr__ = __str__


def _text(key: str, value: Any) -> str:
    if key == "cache_bytes":
        return f"{value:,} ({value / 2**20:.1f} MiB)"
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


def _version(package: str) -> str | None:
    """The version of an installed package, found without importing it."""
    from importlib import metadata  # costs as much to import as all of upsweep, so only when asked for

    if importlib.util.find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda_architectures() -> list[str] | str | None:
    if library.find() is None:
        return None
    try:
        return library.load().built_for()
    except ImportError as error:  # said here, since what does not load is what one looks for in this table
        return str(error)


def _cache_status() -> disk_cache.Status:
    from upsweep._compiler import disk_cache  # importing it with upsweep would add its imports (tempfile, hashlib)

    try:
        return disk_cache.status()
    except OSError as error:  # a folder that must not be used: the first formula raises this
        return disk_cache.Status(None, 0, str(error))


def show_config() -> Config:
    """Versions, instruction sets, threads, libraries and the cache of compiled code.

    Returns
    -------
    Config
        A dictionary whose ``str`` is a table: ``version``, ``python``, ``numpy``, ``platform``, ``isa_built``,
        ``isa_usable``, ``isa`` (the instruction set chosen, for compiled formulas too; the environment variable
        ``UPSWEEP_CPU_ISA`` names another one), ``openmp`` (the specification's date, None without), ``threads``,
        ``compiler`` (of the kernels), ``cuda_build`` (how the CUDA library was built with this package, or why
        it was not), ``cuda_library`` (its path, None: not installed), ``cuda_architectures`` (the compute
        capabilities that it holds code for), ``llvmlite``, ``ml_dtypes``, ``cache_dir`` (the folder of compiled
        formulas, None: none), ``cache_bytes`` (what it holds), ``cache_problem`` (why nothing can be stored
        there, None: it can).

    Examples
    --------
    >>> import upsweep
    >>> config = upsweep.show_config()
    >>> config["isa"] in config["isa_usable"]
    True
    """
    from upsweep._backends import _build

    path = library.find()
    compiled = _cache_status()
    return Config(
        version=_version("upsweep"), python=platform.python_version(), numpy=np.__version__,
        platform=f"{platform.system()} {platform.machine()}", isa_built=cpu.built_levels(),
        isa_usable=cpu.usable_levels(), isa=cpu.level, openmp=_machine.openmp_version() or None,
        threads=cpu.get_num_threads(), compiler=_build.compiler, cuda_build=_build.cuda,
        cuda_library=None if path is None else str(path), cuda_architectures=_cuda_architectures(),
        llvmlite=_version("llvmlite"), ml_dtypes=_version("ml_dtypes"),
        cache_dir=None if compiled.folder is None else str(compiled.folder), cache_bytes=compiled.n_bytes,
        cache_problem=compiled.problem,
    )  # fmt: skip
