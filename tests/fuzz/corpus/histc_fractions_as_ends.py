"""Ends of the range that are fractions, for integers: the reference cut them to integers, and divided by 0."""

import numpy as np
import upsweep
from upsweep import reference

for dtype in ("int8", "uint8", "int64", "uint64"):
    x = np.array([0, 1, 2, 3, 7, 2], dtype)
    for ends in ((0.1, 0.7), (-1.5, 2.25), (2.5, 2.5)):
        np.testing.assert_array_equal(upsweep.histc(x, 100, *ends), reference.histc(x, 100, *ends))
