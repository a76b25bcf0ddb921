"""The corpus, a few cases of each family, and that crashes, hangs and wrong results are found."""

import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import upsweep

from . import driver

N_CASES = {"scans": 150, "bincount": 60, "histograms": 300, "pairs": 10, "updates": 6, "te": 4, "filters": 100}


@pytest.mark.parametrize("path", driver.CORPUS, ids=lambda path: path.stem)
def test_corpus(path):
    runpy.run_path(str(path))


@pytest.mark.parametrize("family", driver.FAMILIES)
def test_family(family, n_threads_restored):
    failures = [driver.run_case(family, 1, number) for number in range(N_CASES[family])]
    assert not list(filter(None, failures))


def test_cases_depend_on_the_seed_and_their_number_alone():
    for family in driver.FAMILIES:
        texts = [driver.draw(family, seed, number).text for seed, number in ((3, 5), (3, 5), (4, 5), (3, 6))]
        assert texts[0] == texts[1]
        assert len(set(texts)) == 3


def test_a_wrong_result_is_reported(monkeypatch):
    monkeypatch.setattr(upsweep, "histogram", lambda x, bins, **keywords: ([0], [0]))
    assert "upsweep.histogram(" in "".join(filter(None, (driver.run_case("histograms", 0, n) for n in range(9))))


@pytest.mark.parametrize(
    "way, words", [("os.kill(os.getpid(), 9)", "exit code -9"), ("time.sleep(99)", "2 seconds")]
)
def test_a_case_that_crashes_or_hangs_is_reported(tmp_path, way, words):
    """The cases of the child process are replaced: of each three the second crashes or hangs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types, os, time\n"
        "from types import SimpleNamespace\n"
        "def draw(rng):\n"
        f"    return SimpleNamespace(text='text', check=lambda: {way} if rng.random() < 0.5 else None)\n"
        "sys.modules['tests.fuzz.scans'] = SimpleNamespace(draw=draw)\n"
    )
    code = (
        "from tests.fuzz import driver\n"
        "if __name__ == '__main__':\n"
        "    n_cases, failures = driver.run_family('scans', 0, 99, limit=2, n_cases=4)\n"
        "    print(n_cases, *failures)\n"
    )
    (tmp_path / "main.py").write_text(code)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith("4 python -m tests.fuzz --family scans --seed 0 --case "), done.stderr
    assert words in done.stdout
    assert time.monotonic() - begin < 60
