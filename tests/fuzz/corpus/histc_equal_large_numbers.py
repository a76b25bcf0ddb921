"""A range of equal numbers to which 1 makes no difference: the reference did not widen it, and divided by 0."""

import numpy as np
import upsweep
from upsweep import reference

for dtype in (np.float16, np.float32, np.float64):
    for number in (0.0, -3.5, 6e4, -1.5e9, 8.6100885e29):
        x = np.array([number], np.float64).astype(dtype)
        if x.itemsize > 2 or x[0] + dtype(1) != x[0]:  # float16 is widened by 1 alone
            np.testing.assert_array_equal(upsweep.histc(x, 257), reference.histc(x, 257))
