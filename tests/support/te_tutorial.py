"""TVM's tutorial on scans, where UPSWEEP_TVM_TUTORIAL names a file with that page as reStructuredText."""

import os
import re
from pathlib import Path

import pytest

needed = pytest.mark.skipif("UPSWEEP_TVM_TUTORIAL" not in os.environ, reason="UPSWEEP_TVM_TUTORIAL names no page")


def run_tutorial(target="cuda"):
    """Run its code with only the imports, and where there is no CUDA target, the target exchanged."""
    page = Path(os.environ["UPSWEEP_TVM_TUTORIAL"]).read_text()
    blocks = re.findall(r"\.\. code-block:: default\n\n((?:    .*\n|\n)+)", page)
    program = "\n".join(re.sub(r"^    ", "", block, flags=re.M) for block in blocks)
    assert "import tvm\n" in program and "te.scan" in program
    program = program.replace("import tvm\n", "from upsweep.te import compat as tvm\n")
    program = program.replace("from tvm import te\n", "from upsweep import te\n")
    if target != "cuda":
        program = program.replace('"cuda"', f'"{target}"').replace("tvm.gpu(0)", "tvm.cpu(0)")
    exec(compile(program, "tutorial.py", "exec"), {"__name__": "tutorial"})


def check_text(text):
    """What it prints: three nests."""
    assert text.count("produce scan {") == 3
    assert "allocate s1[float32 * 32]" in text and "scan.v1[0, i] = 0f" in text
