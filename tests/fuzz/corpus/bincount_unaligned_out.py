"""An `out` that is not aligned: the kernels wrote int64 and float64 to odd addresses, as UBSan reports."""

import numpy as np
import upsweep

keys = np.arange(50, dtype=np.uint8) % 7
for weights, dtype in ((None, np.int64), (np.arange(50.0), np.float64)):
    out = np.zeros(7 * 8 + 1, np.uint8)[1:].view(dtype)
    assert upsweep.bincount(keys, weights, out=out) is out
    np.testing.assert_array_equal(out, np.bincount(keys, weights))
