"""The least integer of a dtype: its absolute value, the scale of the promise, overflowed in the tests' helper."""

import numpy as np
from helpers import check

check("discounted_cumsum", np.array([-128, 100, -128, 127], np.int8), -0.2561758, reverse=True)
