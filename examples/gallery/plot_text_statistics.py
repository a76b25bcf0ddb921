"""
Pairs of letters
================

How often one letter follows another in the source of Python's standard library: a count of combined keys.
"""

import inspect
import string

import matplotlib.pyplot as plt
import numpy as np
import upsweep

text = "".join(inspect.getsource(module) for module in (inspect, string)).lower()
codes = np.frombuffer(text.encode("latin-1", "replace"), np.uint8).astype(np.int64) - ord("a")

# %%
# A pair with something that is no letter gets the key -1, which is dropped.

is_alphabetic = (codes >= 0) & (codes < 26)
keys = np.where(is_alphabetic[:-1] & is_alphabetic[1:], codes[:-1] * 26 + codes[1:], -1)
pairs = upsweep.bincount(keys, length=26 * 26, invalid="drop").reshape(26, 26)
print("most frequent:", [f"{chr(97 + k // 26)}{chr(97 + k % 26)}" for k in pairs.ravel().argsort()[::-1][:8]])

plt.figure(figsize=(5, 4.5), layout="constrained")
plt.imshow(np.log1p(pairs))
plt.xticks(range(26), string.ascii_lowercase)
plt.yticks(range(26), string.ascii_lowercase)
plt.xlabel("second letter")
plt.ylabel("first letter")
