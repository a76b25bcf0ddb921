"""The programs of the gallery run, without a warning."""

import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
# tests/torch runs the others.
PROGRAMS = [path for path in sorted(GALLERY.glob("plot_*.py")) if "import torch" not in path.read_text()]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem.removeprefix("plot_"))
def test_the_program_draws(path):
    with mpl.rc_context({"backend": "Agg"}):
        try:
            runpy.run_path(str(path))
            assert plt.get_fignums()
        finally:
            plt.close("all")


def test_there_are_many_programs():
    assert len(PROGRAMS) >= 20
