"""KeOps' package `pykeops`: what scripts import there, for ``import upsweep.pykeops as pykeops``.

Its modules `torch` and `numpy`, as in ``from upsweep.pykeops.torch import LazyTensor``, have the formulas,
reductions and clusters of `upsweep`; clusters also take labels that are not sorted yet, which KeOps' scripts pass.
`install` gives these modules KeOps' names, for packages such as geomloss and gpytorch that import `pykeops`
themselves. The functions that manage KeOps' compiler have no effect: compiled
formulas are found by their contents, so none is ever out of date, and lie in the folder that the environment
variable ``UPSWEEP_CACHE_DIR`` names.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np

import upsweep
from upsweep import cluster, pairs
from upsweep._arrays.dispatch import handlers
from upsweep._backends.cuda import library

__all__ = [
    "check_health", "clean_pykeops", "config", "get_build_folder", "install", "numpy", "set_build_folder",
    "set_verbose", "test_numpy_bindings", "test_torch_bindings", "torch",
]  # fmt: skip

__version__ = "2.3"  # of KeOps, whose names these are
verbose = False
default_device_id = 0


def _module(name: str, objects: dict[str, Any]) -> Any:
    module = types.ModuleType(f"{__name__}.{name}")

    def missing(attribute: str) -> Any:
        message = f"module {module.__name__!r} has no attribute {attribute!r}"
        if attribute == "ComplexLazyTensor":  # no AttributeError, whose message import statements replace
            raise ImportError(f"{message}: write real and imaginary parts of complex arrays as two formulas")
        raise AttributeError(message)

    vars(module).update(objects, __getattr__=missing)
    return module


_cluster = _module("torch.cluster", {name: getattr(cluster, name) for name in cluster.__all__})
for _function in (cluster.cluster_ranges, cluster.cluster_ranges_centroids):
    setattr(_cluster, _function.__name__, functools.partial(_function, check=False))
_utils = _module("numpy.utils", {"IsGpuAvailable": lambda: config.gpu_available})
_names = {**{name: getattr(pairs, name) for name in pairs.__all__}, "cluster": _cluster, "utils": _utils}
numpy, torch = _module("numpy", _names), _module("torch", _names)


def install() -> None:
    """Make ``import pykeops`` mean this module in this process, also where other packages import it.

    Raises
    ------
    RuntimeError
        KeOps itself is imported already.

    Examples
    --------
    >>> import upsweep.pykeops
    >>> upsweep.pykeops.install()
    >>> from pykeops.torch import LazyTensor
    >>> from pykeops.torch.cluster import grid_cluster
    >>> LazyTensor is upsweep.LazyTensor
    True
    """
    own = sys.modules[__name__]
    if sys.modules.get("pykeops", own) is not own:
        raise RuntimeError("pykeops: is imported already; call upsweep.pykeops.install() before that")
    _register("pykeops")


def _register(package: str) -> None:
    """Make this module and those in it importable as a package of this name, without a file for each of KeOps'."""
    sys.modules |= {package: sys.modules[__name__], f"{package}.config": config}
    for name, module in ((f"{package}.numpy", numpy), (f"{package}.torch", torch)):
        sys.modules |= {name: module, f"{name}.operations": module, f"{name}.cluster": _cluster}
        sys.modules[f"{name}.utils"] = _utils


class _Config:
    """KeOps' module `config`: what scripts ask it for."""

    @property
    def gpu_available(self) -> bool:
        """Whether numpy arrays can be reduced on a CUDA device."""
        try:
            library.check_device(0)
        except RuntimeError:
            return False
        return True


config: Any = _Config()
_register(__name__)


def set_verbose(val: bool) -> None:
    """No effect: nothing is printed anyway."""


def clean_pykeops(recompile_jit_binaries: bool = True) -> None:
    """No effect: see above."""


def set_build_folder(path: str | None = None) -> None:
    """No effect: set the environment variable ``UPSWEEP_CACHE_DIR`` before the first formula."""


def get_build_folder() -> str | None:
    """The folder of compiled formulas; None if there is none.

    Examples
    --------
    >>> import upsweep.pykeops as pykeops
    >>> pykeops.get_build_folder() == upsweep.show_config()["cache_dir"]
    True
    """
    folder: str | None = upsweep.show_config()["cache_dir"]
    return folder


def check_health(config_type: str = "all") -> None:
    """Print `upsweep.show_config`, whatever part is asked for."""
    print(upsweep.show_config())


def test_numpy_bindings() -> None:
    """Reduce a formula of numpy arrays, and print that this works.

    Examples
    --------
    >>> import upsweep.pykeops as pykeops
    >>> pykeops.test_numpy_bindings()
    formulas of numpy arrays work
    """
    _test(np.arange, "numpy arrays")


def test_torch_bindings() -> None:
    """Reduce a formula of tensors, and print that this works."""
    handlers("torch")
    _test(sys.modules["torch"].arange, "tensors")


def _test(arange: Any, kind: str) -> None:
    x, y = 1.0 * arange(1, 10).reshape(3, 3), 1.0 * arange(3, 9).reshape(2, 3)
    result = upsweep.Genred("SqNorm2(x - y)", ["x = Vi(3)", "y = Vj(3)"])(x, y)
    if result.reshape(-1).tolist() != [63.0, 90.0]:
        raise RuntimeError(f"formulas of {kind} are computed wrongly; run python -m upsweep selftest")
    print(f"formulas of {kind} work")
