"""Modules under their names of the last release: they warn, and have the objects of the new modules."""

import importlib

import pytest
import upsweep
from helpers import run_python

FORMER = {"carries": "aggregates", "counts": "bincounts", "peer_names": "compat", "streams": "blockwise"}


@pytest.mark.parametrize("former, name", FORMER.items())
def test_the_import_warns(former, name):
    printed = run_python(f"""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import upsweep.{former}
        print(caught[0].category.__name__, caught[0].message, caught[0].filename)
    """)
    assert (
        printed.strip() == f"DeprecationWarning upsweep.{former} is now upsweep.{name}; use the new name <string>"
    )


@pytest.mark.filterwarnings("ignore:upsweep:DeprecationWarning")
@pytest.mark.parametrize("former, name", FORMER.items())
def test_the_objects_are_the_same(former, name):
    module = importlib.import_module(f"upsweep.{name}")
    assert module.__all__
    for each in module.__all__:
        assert getattr(getattr(upsweep, former), each) is getattr(module, each)
