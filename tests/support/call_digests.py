"""Digests of the results of representative calls, to show that a change keeps every bit and every message.

    python tests/support/call_digests.py write before.json
    python tests/support/call_digests.py compare before.json     # after the change; on the same machine

The calls are the tables of ``call_cases.py``. A digest covers the library, dtype, shape, order and bytes of all
results of a call; for a call that raises it is the type and text of the error. The file also has the medians of
the times of small calls. ``compare`` prints all differences, and exits with 1 where a digest is missing or has
changed. Calls of a library or device that the comparing machine lacks are left out.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import itertools
import json
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import upsweep
from call_cases import SMALL, TABLES, expanded
from call_operands import namespace, places

SLOWER = 1.1  # the ratio of times from which a small call is reported
FOLDERS = [str(Path(module).parent) for module in (__file__, upsweep.__file__)]


def cases(only: str = "") -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and calls. Each call gets a copy of the namespace, because some assign to names."""
    for place in places():
        names = namespace(place)
        for table in (table for key, table in TABLES.items() if place in key.split()):
            for text in expanded(table):
                if re.search(only, name := f"{place}/{text}"):
                    yield name, functools.partial(eval, text, dict(names))


def add(value: Any, digest: Any) -> None:
    """Add a result to a digest: the arrays in nested tuples, lists and iterators, numbers and text."""
    kind = type(value)
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if kind.__module__.startswith("dask"):
        name, value = f"{name} {value.dtype} {value.chunks}", value.compute(scheduler="synchronous")
    elif hasattr(value, "detach"):
        torch = sys.modules["torch"]
        name = f"{name} {value.device.type} {value.dtype} {value.requires_grad} {value.is_contiguous()}"
        value = value.detach().cpu().resolve_conj()
        value = (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        order = array.flags.c_contiguous, array.flags.f_contiguous, array.flags.writeable
        digest.update(f"{name} {array.dtype.str} {array.dtype.name} {array.shape} {order}".encode())
        array = np.array(array, order="C")
        if array.dtype.kind in "fc":  # which of the bit patterns of NaN a result has is no promise
            parts = array.reshape(-1).view(array.real.dtype)
            parts[np.isnan(parts)] = np.nan
        digest.update(array.tobytes())
    elif isinstance(value, (tuple, list)):
        digest.update(f"{name} {len(value)}".encode())
        for each in value:
            add(each, digest)
    elif isinstance(value, (str, int, float, complex, type(None))):
        digest.update(f"{name} {normalized(str(value))}".encode())
    else:
        raise TypeError(f"expected arrays, numbers, text or tuples of them, got {name}; convert it in the table")


def normalized(text: str) -> str:
    """Text without the folder of the package, addresses and numbers of lines."""
    for folder in FOLDERS:
        text = text.replace(folder, "")
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"(\w+\.py):\d+", r"\1", text))


def digest_of(call: Callable[[], Any]) -> str:
    digest = hashlib.sha256()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            add(call(), digest)
    except (NameError, SyntaxError):  # a mistake in the table
        raise
    except Exception as error:
        return normalized(f"{type(error).__name__}: {error}")
    for warning in caught:
        if warning.category is not UserWarning:  # torch's own, of which some are given once a process
            digest.update(normalized(f"{warning.category.__name__}: {warning.message}").encode())
    return digest.hexdigest()[:32]


def small_calls(only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls whose operands exist before; the first is of numpy, to see whether the machine itself is slower."""
    x = np.ones(128, "f4")
    yield "numpy.cumsum", lambda: np.cumsum(x)
    for place in (place for place in ("numpy", "torch", "cuda") if place in places()):
        names = namespace(place)
        names |= {"x": names["new"](128), "k": names["keys"](128), "column": names["new"](128, 1)}
        names["decay"] = lambda s, x: 0.9 * s + x
        names["squares"] = upsweep.Genred("SqDist(x, y)", ["x = Vi(1)", "y = Vj(1)"])
        for text in expanded(SMALL):
            if re.search(only, f"{place}/{text}"):
                yield f"{place}/{text}", eval(f"lambda: {text}", names)


def times(rounds: int, only: str) -> dict[str, float]:
    """Microseconds of each small call: the least median of several rounds, to leave out other processes."""
    medians: dict[str, list[float]] = {}
    for _, (name, call) in itertools.product(range(rounds), list(small_calls(only))):
        measured = []
        call()
        for _ in range(300):
            start = time.perf_counter_ns()
            call()
            measured.append(time.perf_counter_ns() - start)
        medians.setdefault(name, []).append(statistics.median(measured) / 1000)
    return {name: round(min(each), 2) for name, each in medians.items()}


def environment() -> dict[str, Any]:
    config = upsweep.show_config()
    result = {"python": platform.python_version(), "numpy": np.__version__, "isa": config["isa"]}
    for library in ("torch", "dask"):
        if library in places():
            result[library] = importlib.import_module(library).__version__
    if "cuda" in places():
        result["cuda"] = sys.modules["torch"].cuda.get_device_name()
    return result


def measure(only: str, rounds: int) -> dict[str, Any]:
    digests: dict[str, str] = {}
    for name, call in cases(only):
        if name in digests:
            raise ValueError(f"two calls are named {name}")
        digests[name] = digest_of(call)
    return {"environment": environment(), "digests": digests, "times": times(rounds, only)}


def differences(before: dict[str, Any], now: dict[str, Any], only: str = "") -> tuple[list[str], bool]:
    """Lines that say what differs, and whether a digest is missing or has changed."""
    lines = [
        f"environment: {key} was {before['environment'].get(key)}, is {now['environment'].get(key)}"
        for key in sorted(before["environment"].keys() | now["environment"])
        if before["environment"].get(key) != now["environment"].get(key)
    ]
    then = {name: value for name, value in before["digests"].items() if re.search(only, name)}
    comparable = {name for name in then if name.partition("/")[0] in places()}
    if skipped := len(then) - len(comparable):
        lines.append(f"skipped: {skipped} calls of libraries or devices that are not here")
    missing = sorted(comparable - now["digests"].keys())
    changed = [name for name in sorted(comparable & now["digests"].keys()) if then[name] != now["digests"][name]]
    lines += [f"missing: {name}" for name in missing]
    lines += [f"new: {name}" for name in sorted(now["digests"].keys() - then)]
    lines += [f"changed: {name}\n    was {then[name]}\n    is  {now['digests'][name]}" for name in changed]
    for name in sorted(before["times"].keys() & now["times"]):
        was, current = before["times"][name], now["times"][name]
        if current > SLOWER * was:
            lines.append(f"slower: {name}: {was} us before, {current} us now")
    return lines, bool(missing or changed)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression of names")
    parser.add_argument("--rounds", type=int, default=5, help="how often small calls are timed; 0: not at all")
    options = parser.parse_args(arguments)
    now = measure(options.only, options.rounds)
    if options.command == "write":
        options.file.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{len(now['digests'])} digests and {len(now['times'])} times written to {options.file}")
        return 0
    lines, is_different = differences(json.loads(options.file.read_text(encoding="utf-8")), now, options.only)
    print(*lines, f"{len(now['digests'])} calls compared: {'DIFFERENT' if is_different else 'the same'}", sep="\n")
    return int(is_different)


if __name__ == "__main__":
    sys.exit(main())
