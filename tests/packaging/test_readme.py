"""Hazards: a README whose examples do not run, or show another output than they give; files that none names."""

import doctest
import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
README = CHECKOUT / "README.md"


def test_examples_give_the_output_shown():
    # The fence that ends a block of code is not part of the output above it.
    text = re.sub(r"^```.*$", "", README.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, "README.md", str(README), 0)
    assert len(test.examples) >= 3
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test)
    assert runner.summarize().failed == 0


def test_every_python_block_has_an_output():
    for block in re.findall(r"```(?:python|pycon)\n(.*?)```", README.read_text(), flags=re.DOTALL):
        assert ">>>" in block


def test_the_two_commands_are_there():
    text = README.read_text()
    assert 'pip install ".[expr]" && python -m upsweep demo' in text
    assert 'pip install ".[test]" && python -m pytest' in text


def named_by(folder):
    """The files and folders that a README has in backquotes, with patterns."""
    return re.findall(r"`([^`\n]+)`", (folder / "README.md").read_text())


@pytest.mark.skipif(not (CHECKOUT / ".git").exists() or not shutil.which("git"), reason="no repository, or no git")
def test_the_nearest_readme_names_each_file():
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    missing = []
    for file in map(Path, listed.stdout.splitlines()):
        folder = next(up for up in file.parents if (CHECKOUT / up / "README.md").exists())
        # The one at the top is for users; results and what begins with a dot are no sources.
        if folder == Path() or file.name in ("README.md", "__init__.py") or "results" in file.parts:
            continue
        name = str(file.relative_to(folder))
        names = named_by(CHECKOUT / folder)
        if not any(
            fnmatch.fnmatch(name, each) or (each.endswith("/") and name.startswith(each)) for each in names
        ):
            missing.append(str(file))
    assert missing == []
