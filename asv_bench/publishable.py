"""Rename a result of an existing environment to one of a built commit, and remove the machine's paths from it.

    python asv_bench/publishable.py RESULT.json --commit HEAD --environment existing-py3.12-torch2.11-cuda13.0

``asv run -E existing:...`` puts the interpreter's path into a result and its file name, and the commit is not the
real one if the package was measured outside of its repository. The result is written to the same folder under the
real commit, with its date, and the old one is removed.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MAY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Words that begin with a slash or a drive, and the usual roots after anything, as in -I/usr.
A_PATH = re.compile(
    r"""(?<!\w)~?/\w[^\s"']*|(?<!\w)[A-Za-z]:\\[^\s"']*|/(?:home|mnt|opt|root|tmp|usr|Users|var)/[^\s"']*"""
)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, check=True, text=True).stdout.strip()


def cleaned(result: dict[str, Any], commit: str, date: int, environment: str, python: str) -> dict[str, Any]:
    """The result under another environment and commit; ValueError where a path is left in it."""
    result = {
        **result,
        "commit_hash": commit,
        "date": date,
        "env_name": environment,
        "python": python,
        "params": {**result["params"], "python": python},
    }
    left = A_PATH.search(json.dumps(result))
    if left is not None:
        raise ValueError(f"the result still names a path: {left.group().strip()}")
    return result


def arguments_of(
    parser: argparse.ArgumentParser, arguments: list[str] | None
) -> tuple[argparse.Namespace, str, int]:
    """The options of a program that writes results, with the commit that was measured and its date."""
    parser.add_argument("--commit", default="HEAD", help="what was measured; default HEAD")
    parser.add_argument("--environment", required=True, metavar="NAME", help="the environment in the file name")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the interpreter; default 3.12")
    options = parser.parse_args(arguments)
    if not MAY_NAME.fullmatch(options.environment):
        parser.error(f"argument --environment: letters, digits, '.', '_' and '-', not {options.environment!r}")
    commit = git("rev-parse", f"{options.commit}^{{commit}}")
    return options, commit, 1000 * int(git("show", "-s", "--format=%ct", commit))


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="a file under results/<machine>/")
    options, commit, date = arguments_of(parser, arguments)
    result = json.loads(options.result.read_text())
    target: Path = options.result.with_name(f"{commit[:8]}-{options.environment}.json")
    target.write_text(json.dumps(cleaned(result, commit, date, options.environment, options.python)))
    if target != options.result:
        options.result.unlink()
    return target


if __name__ == "__main__":
    print(f"wrote {main()}", file=sys.stderr)
