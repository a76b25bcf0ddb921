"""The examples in the README and in docstrings run, and the README or the folder's docstring names every file."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from upsweep import _compiler

FOLDER = Path(_compiler.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages(_compiler.__path__, "upsweep._compiler.") if not module.ispkg
]


def test_the_readmes_examples():
    results = doctest.testfile(str(FOLDER / "README.md"), module_relative=False)
    assert results.attempted >= 8 and results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_the_readme_names_every_file_and_folder():
    text = (FOLDER / "README.md").read_text()
    for path in FOLDER.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        if name not in ("__init__.py", "README.md", "__pycache__/"):
            assert f"`{name}`" in text, f"{name} is not in the README"


@pytest.mark.parametrize("folder", ["formulas", "lowering"])
def test_the_docstring_of_a_folder_names_every_file(folder):
    text = importlib.import_module(f"upsweep._compiler.{folder}").__doc__
    for path in (FOLDER / folder).glob("*.py"):
        assert path.name == "__init__.py" or re.search(rf"\b{path.stem}\b", text), f"{path.stem} is not named"
