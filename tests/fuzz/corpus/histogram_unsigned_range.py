"""uint64 and a range of Python's integers above 2**63, for which numpy 2.4 raises OverflowError."""

import numpy as np
import upsweep

x = np.array([2**63 + 5, 2**63 + 100, 7, 2**64 - 1], np.uint64)
counts, edges = upsweep.histogram(x, 2, range=(7, 2**63 + 100))
assert counts.tolist() == [1, 2] and edges[0] == 7
