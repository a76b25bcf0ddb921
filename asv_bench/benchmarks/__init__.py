"""asv benchmarks: one file for each operation and device (README.md)."""

import sys
from pathlib import Path
from typing import Any

# asv puts only this package on the path; the cases are in the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def attributes(**values: str) -> Any:
    """A decorator that sets a benchmark's unit, and its version: results of another version are not compared.

    asv's default version is a hash of the code. An explicit one keeps the history of a benchmark whose code was
    rewritten but measures the same.
    """

    def decorate(function: Any) -> Any:
        vars(function).update(values)
        return function

    return decorate
