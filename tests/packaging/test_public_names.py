"""Hazard: public names that `dir`, `help` and type checkers do not show, or that they show and do not exist."""

import inspect
import pydoc
import re

import pytest
import upsweep
from helpers import run_python

SPECIAL = re.compile(r"__\w+__").fullmatch


def test_dir_lists_the_public_names():
    printed = run_python("import upsweep; print(*dir(upsweep)); upsweep.scan, upsweep.Vi; print(*dir(upsweep))")
    for line in printed.splitlines():  # before and after a lazy import
        names = line.split()
        assert sorted(name for name in names if not SPECIAL(name)) == sorted(upsweep.__all__)
        assert "__version__" in names
    assert dict(inspect.getmembers(upsweep)).keys() >= set(upsweep.__all__)


def test_dir_lists_distributed_once_it_is_imported():
    pytest.importorskip("torch")
    assert "distributed" in run_python("import upsweep.distributed; print(*dir(upsweep))").split()


def test_help_begins_with_a_table_of_all_names():
    table = upsweep.__doc__.split("::\n\n", 1)[1].split("\n\n")[0]
    assert set(upsweep.__all__) - set(re.findall(r"\w+", table)) == set()
    text = pydoc.render_doc(upsweep, renderer=pydoc.plaintext)
    assert text.index("cumulative_sum") < 500
    assert re.search(r"^    scan\(update: ", text, re.MULTILINE)


def test_help_of_scan_shows_its_signature():
    text = pydoc.render_doc(upsweep.scan, renderer=pydoc.plaintext)
    assert re.search(r"^scan\(update: .*, axis: 'Axis' = None, ", text, re.MULTILINE)
    assert "self" not in inspect.signature(upsweep.scan).parameters


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match=r"module 'upsweep' has no attribute 'cumul'$"):
        upsweep.cumul()
    assert not hasattr(upsweep, "ComplexLazyTensor")
