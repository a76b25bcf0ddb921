"""A distance from the lower end, times the bins, that the dtype cannot hold: the reference raised."""

import numpy as np
import upsweep
from upsweep import reference

x = np.array([65504.0, 0.0, -0.0, 30000.0], np.float16)
with np.errstate(over="ignore"):
    np.testing.assert_array_equal(upsweep.histc(x, 3), reference.histc(x, 3))
