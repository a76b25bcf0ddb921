"""Differential fuzzers: random public calls, compared with the reference implementations.

    python -m tests.fuzz --seconds 60 --seed 0 --family scans bincount

`driver` runs the cases of the families in child processes, so that a crash or a hang is a failure as any other.
Each family is a module with a function ``draw(rng)``, which returns a `Case`. The corpus holds the calls that
failed once; it is run first, and by pytest.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))  # the helpers of the tests; pytest adds it as well
