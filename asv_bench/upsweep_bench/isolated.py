"""Runs a function in a separate process, so that a crash or a broken CUDA context affects nothing else."""

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
        except Exception as error:  # reported to the parent, which continues in a new process
            connection.send((None, f"{type(error).__name__}: {error}"))
            return
        connection.send(answer)


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Result | None, str]]:
    """``function(item)`` for each item, in a new process; or None and the reason.

    If the function raises or the process dies, the next item starts another process, because the state of the
    first is unknown; after two such items the others are not tried. The function and the items must be
    picklable.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the device's context
    crashes, left = 0, list(items)
    while left:
        if crashes == _MOST_CRASHES:
            yield from ((None, f"not tried after {crashes} failures") for _ in left)
            return
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(sender, function, left), daemon=True)
        process.start()
        sender.close()
        reason = ""
        try:
            while left and not reason:
                try:
                    result, reason = receiver.recv()
                except EOFError:
                    process.join()
                    result, reason = None, _describe_exit(process.exitcode)
                left.pop(0)
                yield result, reason
        finally:
            process.join(timeout=10) if reason or not left else process.kill()
            receiver.close()
        crashes += bool(reason)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"
