"""Runs the cases of the fuzzers: seeds, time limits, crashes, the corpus, and reproducers.

Case `n` of a family depends on the seed, the family and `n` alone. A child process runs the cases of a family one
after the other and says which one it begins. The parent kills it when a case takes too long, and starts another
one at the next case; a child that dies fails its case likewise.
"""

import importlib
import multiprocessing
import runpy
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

FAMILIES = ["scans", "bincount", "histograms", "pairs", "updates", "te", "filters"]
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.py"))
START_LIMIT = 60  # seconds that a child may take to start


class Case(NamedTuple):
    """A random call: what it is in words, and a function that raises if it goes wrong."""

    text: str
    check: Callable[[], object]


class Failure(NamedTuple):
    """A case that failed: the command that runs it again, the call and the error."""

    command: str
    text: str

    def __str__(self):
        return f"{self.command}\n{self.text}"


def draw(family, seed, number):
    """Case `number` of a family."""
    rng = np.random.default_rng([seed, zlib.crc32(family.encode()), number])
    return importlib.import_module(f"..{family}", __name__).draw(rng)


def run_case(family, seed, number):
    """None, or what went wrong."""
    text = "the case cannot be drawn"
    try:
        case = draw(family, seed, number)
        text = case.text
        with np.errstate(all="ignore"):
            case.check()
    except Exception:
        return f"{text}\n{traceback.format_exc()}"
    return None


def run_corpus():
    """Run the calls that failed once; return the failures."""
    failures = []
    for path in CORPUS:
        try:
            runpy.run_path(str(path))
        except Exception:
            failures.append(Failure(f"python {path}", traceback.format_exc()))
    return failures


def run_family(family, seed, seconds, limit, first=0, n_cases=None):
    """Run cases from `first` on, for some seconds or `n_cases`; return how many were run and the failures.

    Parameters
    ----------
    limit : float
        The seconds that a case may take.
    """
    context = multiprocessing.get_context("spawn")
    end, last = time.monotonic() + seconds, None if n_cases is None else first + n_cases
    number, failures = first, []

    def fail(number, text):
        command = f"python -m tests.fuzz --family {family} --seed {seed} --case {number}"
        failures.append(Failure(command, text))

    while (last is None or number < last) and (number == first or time.monotonic() < end):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (sender, family, seed, number, last, max(0.0, end - time.monotonic()))
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        sender.close()
        why, patience = None, START_LIMIT
        while True:
            if not receiver.poll(patience):
                why = f"took more than {patience} seconds"
                process.kill()
                break
            try:
                number, text = receiver.recv()
            except EOFError:
                break
            patience = limit
            if text is not None:
                fail(number, text)
        process.join()
        if why is None and process.exitcode == 0:
            return number - first, failures
        fail(number, why or f"the process ended with exit code {process.exitcode}")
        number += 1
    return number - first, failures


def _work(sender, family, seed, first, last, seconds):
    """Run cases in a child process. The parent reads (number, None) before a case, (number, text) of a failure."""
    import faulthandler

    faulthandler.enable()
    end, number = time.monotonic() + seconds, first
    while number != last and (number == first or time.monotonic() < end):
        sender.send((number, None))
        text = run_case(family, seed, number)
        if text is not None:
            sender.send((number, text))
        number += 1
    sender.send((number, None))
