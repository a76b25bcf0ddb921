"""The examples run, and what they show holds."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_block_sparse(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert load("block_sparse").main(["--points", "4000", "--output", str(tmp_path / "pictures")]) == 0
    written = capsys.readouterr().out
    assert re.search(r"^ +4,000 ", written, re.MULTILINE)
    for name in ("cells", "tiles", "times"):
        picture = (tmp_path / "pictures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_block_sparse_leaves_far_pairs_out():
    module = load("block_sparse")
    result = module.compare(2000)
    assert 0.01 < result["share"] < 0.6
    x, labels = result["x"], result["labels"]
    far = ((x[:, None] - x) ** 2).sum(-1) > (module.REACH * module.SIGMA) ** 2
    near_pairs_left_out = ~far & ~result["keep"][labels][:, labels]
    assert not near_pairs_left_out.any()
    assert (np.diff(labels) >= 0).all()
