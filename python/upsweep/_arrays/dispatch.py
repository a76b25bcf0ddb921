"""Dispatch of a public function by the array library of its arguments.

A public function ends in one call of an implementation that is decorated with `dispatched`. The decorator looks at
the array arguments once. Tensors and dask arrays go to a function of the package that handles them, arrays that
only DLPack describes are imported for the public function and its result is exported, labelled arrays are called
without their labels, and everything else (numpy arrays, lists, numbers, views of device memory) goes to the
implementation itself::

    cumulative_sum(x, ...)            fast path of a plain numpy array, or
      -> _cumulative_sum(x, ...)      dask    -> handlers("dask").scan.scan
                                      torch   -> handlers("torch").scan.cumulative_sum
                                      pandas  -> handlers("labelled").call(cumulative_sum, ...)
                                      DLPack  -> call_via_dlpack(cumulative_sum, ...)
                                      others  -> the body of _cumulative_sum

The public functions do not import the packages for torch and dask, nor the adapters of labelled arrays:
`upsweep/__init__.py` registers how each is loaded, and the first call with such an array loads it. So there is no
import cycle, and a library that is not used costs nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from upsweep import _arrays
from upsweep._arrays.libraries import PLAIN, any_labelled, any_torch

_loaders: dict[str, Callable[[], Any]] = {}

# Functions for the plainest calls, which skip the layers below, by the type of the array; they return None for
# other calls. The package of a library adds one when an eager call could have used it. If its import did, torch's
# compiler would find another path where it traces a first call again.
plain_scans: dict[type, Callable[..., Any]] = {}
plain_counts: dict[type, Callable[..., Any]] = {}


def register(library: str, load: Callable[[], Any]) -> None:
    """Set the function that imports and returns the package for a library's arrays."""
    _loaders[library] = load


def handlers(library: str) -> Any:
    """Return what handles arrays of "torch" or "dask", or "labelled" ones; the loader imports it.

    torch's compiler traces this function. It follows an import statement, but no call of importlib. Each call runs
    the same steps: the compiler fails where it traces a function twice and finds another path the second time.
    """
    return _loaders[library]()


def dispatched(
    *names: str, torch: str, dask: str | None = None, not_with_dask: tuple[str, ...] = (),
    labels_of: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Return the decorator of the implementation ``_function`` of the public ``function`` of the same module.

    The arguments come by position, because to pass a dozen keywords on twice takes 2 us of a call that takes 10:
    the arrays `names` first, `device` last. With `dask` one more argument, `method`, comes after `device`.

    `torch` is the module of the package for tensors whose ``function`` has the same parameters, without `device`;
    `dask` is the module of the package for dask arrays whose function of that name takes the public function, for
    its tasks to call on each block, and all arguments by keyword but `device` and those of `not_with_dask`, which
    are refused.

    The first labelled one of the arguments `labels_of` gives its labels to the results of scans; those of counts
    and of carries are arrays.
    """

    def decorate(implementation: Callable[..., Any]) -> Callable[..., Any]:
        code, namespace = implementation.__code__, implementation.__globals__
        name, n_arrays, at_device = implementation.__name__[1:], len(names), code.co_argcount - 1
        n_parameters = at_device + 1
        parameters = code.co_varnames[:n_parameters]
        if parameters[:n_arrays] != names or parameters[-1] != "device":
            raise TypeError(f"{implementation.__name__}: expected {names} first and device last, got {parameters}")

        @functools.wraps(implementation)
        def call(*arguments: Any) -> Any:
            arrays = arguments[:n_arrays]
            for array in arrays:
                if type(array) not in PLAIN:
                    break
            else:
                if len(arguments) > n_parameters and arguments[-1] is not None:
                    refuse_method(arguments[-1])
                return implementation(*arguments[:n_parameters])
            is_torch = any_torch(array) or any_torch(*arrays)
            if not is_torch and any_labelled(*arrays):
                keywords = dict(zip((*parameters, "method"), arguments))
                return handlers("labelled").call(namespace[name], names, labels_of, keywords)
            if dask is not None and "dask.array" in sys.modules and _arrays.any_dask(*arrays):
                keywords = dict(zip((*parameters, "method"), arguments))
                package = handlers("dask")
                package.reject_options(**{name: keywords.pop(name) for name in (*not_with_dask, "device")})
                return getattr(getattr(package, dask), dask)(namespace[name], **keywords)
            if len(arguments) > n_parameters and arguments[-1] is not None:
                refuse_method(arguments[-1])
            if is_torch:
                if arguments[at_device] is not None:
                    _arrays.refuse_device(arguments[at_device], "torch tensors")
                package = _loaders["torch"]()  # `handlers` without the call
                return getattr(getattr(package, torch), name)(*arguments[:at_device])
            if _arrays.any_dlpack_only(*arrays):
                _arrays.refuse_device(arguments[at_device], "arrays of other libraries")
                keywords = dict(zip(parameters[n_arrays:-1], arguments[n_arrays:]))
                return _arrays.call_via_dlpack(namespace[name], dict(zip(names, arrays)), **keywords)
            return implementation(*arguments[:n_parameters])

        return call

    return decorate


def refuse_method(method: object) -> None:
    """Raise for a `method`, which only dask arrays take."""
    if method is not None:
        raise ValueError(f"method: goes with dask arrays only, got {method!r}")
