"""The command line: ``python -m upsweep demo | info | bench | selftest``; without a command it prints its help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import upsweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    from upsweep import bench

    summary = (upsweep.__doc__ or "").partition("\n")[0]  # no docstring under python -OO
    parser = argparse.ArgumentParser(prog="python -m upsweep", description=summary)
    parser.add_argument("--version", action="version", version=f"upsweep {upsweep.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo_parser = commands.add_parser("demo", help="scans and counts of Python's own sources")
    demo_parser.add_argument("--output", type=Path, metavar="FILE", help="draw the table to this file")
    commands.add_parser("info", help="versions, instruction sets, threads, libraries, the compile cache")
    bench.add_arguments(commands.add_parser("bench", help="the main operations compared with a memory copy"))
    commands.add_parser("selftest", help="compare every function with its numpy reference")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "info":
        print(upsweep.show_config())
        return 0
    if options.command == "selftest":
        from upsweep import selftest

        return 0 if selftest.run() else 1
    if options.command == "demo":
        from upsweep import demo

        return demo.run(options.output)
    return bench.run(options)


if __name__ == "__main__":
    sys.exit(main())
