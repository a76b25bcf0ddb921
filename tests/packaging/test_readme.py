"""Hazards: a README whose examples do not run, or show another output than they give; files that none names; names
of files and functions in the documentation that do not exist.
"""

import ast
import doctest
import fnmatch
import functools
import importlib
import io
import re
import shutil
import subprocess
import tokenize
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "python" / "upsweep"
README = CHECKOUT / "README.md"
CALL_SECTION = re.search(
    r"^## How one call travels\n(.*?)^## ", (CHECKOUT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
)[1]
needs_git = pytest.mark.skipif(
    not (CHECKOUT / ".git").exists() or not shutil.which("git"), reason="no repository, or no git"
)

# A path, or the end of one; <dtype> and * stand for any text.
FILE_NAME = re.compile(
    r"(?<![\w.<>*/-])(?:[\w*./-]|<\w+>)*[\w*>]\.(?:py|pyi|pyx|pxd|cpp|hpp|cuh|cu|h|sh|cmake)\b(?!\(|\.?\w)"
)
# How each language marks comments, and the docstrings of Cython.
C_COMMENT, SCRIPT_COMMENT = re.compile(r"//.*|/\*[\s\S]*?\*/"), re.compile(r'#.*|"""[\s\S]*?"""')
COMMENTS = {
    **dict.fromkeys((".cpp", ".hpp", ".cu", ".cuh", ".h"), C_COMMENT),
    **dict.fromkeys((".pyx", ".pxd", ".sh", ".cmake"), SCRIPT_COMMENT),
}


PAGES = [README, *(path for path in sorted((CHECKOUT / "docs").rglob("*.md")) if "generated" not in path.parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_examples_give_the_output_shown(page):
    # The fence that ends a block of code is not part of the output above it.
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(test)
    assert runner.summarize().failed == 0


def test_every_python_block_has_an_output():
    pages = "".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"```(?:python|pycon)\n(.*?)```", pages, re.DOTALL)
    assert len(blocks) > 40
    assert [block for block in blocks if ">>>" not in block] == []


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_the_two_commands_are_there():
    text = README.read_text()
    assert 'pip install ".[expr]" && python -m upsweep demo' in text
    assert 'pip install ".[test]" && python -m pytest' in text


def named_by(folder):
    """The files and folders that a README has in backquotes, with patterns."""
    return re.findall(r"`([^`\n]+)`", (folder / "README.md").read_text())


def tracked_files():
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return [path for path in map(Path, listed.stdout.splitlines()) if (CHECKOUT / path).exists()]


@needs_git
def test_the_nearest_readme_names_each_file():
    missing = []
    for file in tracked_files():
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


def prose(path, text):
    """The comments and docstrings of a source file, or all of a document."""
    if path.suffix == ".md":
        return text
    if path.suffix in COMMENTS:
        return "\n".join(COMMENTS[path.suffix].findall(text))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    parts += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    return "\n".join(parts)


@needs_git
def test_files_that_prose_names_exist():
    files = tracked_files()
    ends = {"/".join(file.parts[i:]) for file in files for i in range(len(file.parts))}

    def missing_from(text):
        names = {re.sub(r"<\w+>", "*", name) for name in FILE_NAME.findall(text)}
        return {name for name in names if name not in ends and not ("*" in name and fnmatch.filter(ends, name))}

    missing = []
    for file in files:
        if file.suffix in {".md", ".py", ".pyi", *COMMENTS} and "results" not in file.parts:
            text = (CHECKOUT / file).read_text()
            if missing_from(text):  # strings may name any file: the slower search reads comments alone
                missing += [f"{file}: {name}" for name in missing_from(prose(file, text))]
    assert missing == []


def resolve(name):
    """The object of a dotted name that is relative to the package or to its CUDA backend."""
    words = name.split(".")
    for package in ("upsweep", "upsweep._backends.cuda"):
        for n_words in range(len(words), 0, -1):  # the longest part of it that is a module
            try:
                value = importlib.import_module(".".join([package, *words[:n_words]]))
            except ModuleNotFoundError:
                continue
            return functools.reduce(getattr, words[n_words:], value)
    raise LookupError(f"no module of this name: {name}")


NAMES = [name for name in re.findall(r"`(\w+(?:\.\w+)+)`", CALL_SECTION) if not FILE_NAME.fullmatch(name)]


def test_the_call_section_names_functions():
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_python_names_of_the_call_section_exist(name):
    if name.startswith(("_torch.", "_dask.")):
        pytest.importorskip(name[1:].partition(".")[0])
    resolve(name)


def test_functions_of_the_call_section_are_in_their_files():
    pairs = re.findall(r"`(\w+)`\s+in\s+`([\w/.]+)`", CALL_SECTION)
    assert len(pairs) >= 4
    for name, file in pairs:
        path = next(folder / file for folder in (CHECKOUT, PACKAGE) if (folder / file).exists())
        assert re.search(rf"\b{name}\b", path.read_text()), f"{file}: {name}"
