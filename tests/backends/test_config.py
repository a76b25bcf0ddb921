"""Hazard: settings: numbers of threads, and a report that has to be true."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import upsweep
from helpers import run_python
from upsweep._backends.cuda import library

LEVELS = {"x86_64_v2", "x86_64_v3", "x86_64_v4", "neon", "generic"}


def test_set_and_get(n_threads_restored):
    upsweep.set_num_threads(1)
    assert upsweep.get_num_threads() == 1
    assert upsweep.cumulative_sum(np.ones((4, 100_000)))[3, -1] == 100_000
    upsweep.set_num_threads(3)
    assert upsweep.get_num_threads() == 3


@pytest.mark.parametrize("n, error", [(0, ValueError), (-2, ValueError), (1.5, TypeError), ("2", TypeError)])
def test_numbers_that_are_none(n, error, n_threads_restored):
    with pytest.raises(error):
        upsweep.set_num_threads(n)
    assert upsweep.get_num_threads() == n_threads_restored


def test_the_default_heeds_affinity_and_openmp():
    code = "import upsweep; print(upsweep.get_num_threads())"
    assert 1 <= int(run_python(code)) <= os.cpu_count()
    assert int(run_python(code, OMP_NUM_THREADS="1")) == 1
    if hasattr(os, "sched_setaffinity"):
        pinned = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" + code
        assert int(run_python(pinned)) == 1


def test_the_report():
    config = upsweep.show_config()
    assert set(config["isa_usable"]) <= set(config["isa_built"]) <= LEVELS
    assert config["isa"] in config["isa_usable"]
    text = str(config)
    for word in (upsweep.__version__, np.__version__, config["isa"], "OpenMP", "CUDA"):
        assert word.lower() in text.lower()


def test_the_report_says_what_was_built():
    config = upsweep.show_config()
    assert re.fullmatch(r"\w+ \d+\.\d+.*", config["compiler"])
    built = (Path(library.__file__).parent / library.NAME).exists()
    assert config["cuda_build"].startswith("built by nvcc" if built else "left out: ")


def test_the_report_is_returned_and_not_printed(capfd):
    upsweep.show_config()
    assert capfd.readouterr() == ("", "")


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert upsweep.__version__ == version("upsweep")
