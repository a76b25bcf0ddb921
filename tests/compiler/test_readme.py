"""The examples in the README and the docstrings of formulas, and that the README names every file."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from upsweep import _compiler

HOME = Path(_compiler.__file__).parent
MODULES = [
    module.name for module in pkgutil.walk_packages(_compiler.__path__, "upsweep._compiler.") if not module.ispkg
]


def test_the_readmes_examples():
    results = doctest.testfile(str(HOME / "README.md"), module_relative=False)
    assert results.attempted >= 8 and results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_the_readme_names_every_file():
    text = (HOME / "README.md").read_text()
    for path in HOME.iterdir():
        if path.suffix == ".py" and path.name != "__init__.py":
            assert f"`{path.name}`" in text, f"{path.name} is not in the README"
