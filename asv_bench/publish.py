"""Publish the history of the committed results as pages of asv.

    python asv_bench/publish.py build/site/asv

asv shows results of commits that main has by its first parents. A result of a commit that was merged into main is
shown at the merge; one of a commit that is not part of main is left out. A machine has one line, whatever the
interpreter and the environment of a result. Needs asv, and the repository with its history.
"""

import argparse
import bisect
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from upsweep_bench.committed import RESULTS, result_files

ASV_BENCH = Path(__file__).parent


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ASV_BENCH), *arguments], capture_output=True, text=True)


def commits_of(branch: str) -> list[str]:
    """The commits of a branch by their first parents, the oldest first."""
    listed = git("rev-list", "--first-parent", "--reverse", branch)
    listed.check_returncode()
    return listed.stdout.split()


def commit_on(branch: list[str], commit: str) -> str | None:
    """The commit, or the first one of the branch that contains it."""
    if commit in branch:
        return commit
    first = bisect.bisect_left(branch, True, key=lambda each: contains(each, commit))
    return branch[first] if first < len(branch) else None


def contains(commit: str, earlier: str) -> bool:
    return git("merge-base", "--is-ancestor", earlier, commit).returncode == 0


def shown(result: dict[str, Any], machine: dict[str, Any], commit: str) -> dict[str, Any]:
    """A result as one of the machine at a commit of main."""
    params = {"machine": machine["machine"]}
    return {**result, "commit_hash": commit, "params": params, "env_vars": {}, "requirements": {}}


def write_results(folder: Path, branch: str) -> list[str]:
    """Write the results to show to a folder; returns which ones were moved or left out."""
    commits, notes = commits_of(branch), []
    (folder / "benchmarks.json").write_text((RESULTS / "benchmarks.json").read_text())
    for path in result_files():
        result, machine = (json.loads(file.read_text()) for file in (path, path.with_name("machine.json")))
        commit = commit_on(commits, result["commit_hash"])
        if commit != result["commit_hash"]:
            place = "left out" if commit is None else f"shown at {commit[:8]}, which merged it"
            notes.append(f"{path.relative_to(RESULTS)}: {place}")
        if commit is not None:
            target = folder / path.parent.name
            target.mkdir(exist_ok=True)
            (target / "machine.json").write_text(json.dumps(machine))
            (target / path.name).write_text(json.dumps(shown(result, machine, commit)))
    return notes


def main(arguments: list[str] | None = None) -> None:
    from asv.commands.publish import Publish
    from asv.config import Config
    from asv.console import log

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("html", type=Path, help="the folder to write, which is replaced")
    parser.add_argument("--branch", default="main", help="whose commits are shown; default main")
    options = parser.parse_args(arguments)
    config = Config.load(str(ASV_BENCH / "asv.conf.json"))
    config.repo, config.branches, config.html_dir = (
        str(ASV_BENCH.parent),
        [options.branch],
        str(options.html.resolve()),
    )
    log.enable()
    with tempfile.TemporaryDirectory() as folder:
        for note in write_results(Path(folder), options.branch):
            print(note, file=sys.stderr)
        config.results_dir = folder
        Publish.run(config, pull=False)


if __name__ == "__main__":
    main()
