"""Work in a process of its own: what crashes there, or breaks the device, takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

__all__ = ["each"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_CRASHES = 2


def _serve(connection: Connection, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
    for item in items:
        try:
            answer = (function(item), "")
        except Exception as error:  # told to the other side, which goes on in a new process
            connection.send((None, f"{type(error).__name__}: {error}"))
            return
        connection.send(answer)


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Result | None, str]]:
    """``function(item)`` for each item, in a new process; or None, and why there is none.

    Where the function raises or the process dies, the next item begins another process, as what the first one
    left behind is not to be trusted; after two such items the others are not tried. The function and the
    items must be picklable.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the device's context
    crashes, left = 0, list(items)
    while left:
        if crashes == _MOST_CRASHES:
            yield from ((None, f"not tried after {crashes} failures") for _ in left)
            return
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(theirs, function, left), daemon=True)
        process.start()
        theirs.close()
        reason = ""
        try:
            while left and not reason:
                try:
                    result, reason = ours.recv()
                except EOFError:
                    process.join()
                    result, reason = None, _how_it_ended(process.exitcode)
                left.pop(0)
                yield result, reason
        finally:
            process.join(timeout=10) if reason or not left else process.kill()
            ours.close()
        crashes += bool(reason)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"
