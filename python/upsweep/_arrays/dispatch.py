"""Registry of the packages that handle arrays of torch and dask.

A public function that is passed a tensor or a dask array calls a function of `handlers("torch")` or
`handlers("dask")`. The public functions do not import these packages: `upsweep/__init__.py` registers how each is
loaded, and the first call with such an array loads it. So there is no import cycle, and a library that is not used
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["handlers", "provide", "register"]

_loaders: dict[str, Callable[[], Any]] = {}
_packages: dict[str, Any] = {}


def register(library: str, load: Callable[[], Any]) -> None:
    """Set the function that imports and returns the package for a library's arrays."""
    _loaders[library] = load


def provide(library: str, package: Any) -> None:
    """Store the package for a library's arrays; the package calls this at the end of its own import."""
    _packages[library] = package


def handlers(library: str) -> Any:
    """Return the package whose functions handle arrays of "torch" or "dask"; import it on first use.

    torch's compiler traces this function. It follows the import statement of a loader, but no call of importlib,
    and it need not store anything, because the package calls `provide` itself.
    """
    package = _packages.get(library)
    return _loaders[library]() if package is None else package
