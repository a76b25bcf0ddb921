"""Deprecated name of `upsweep.bincounts`, kept for one release."""

import warnings

from upsweep.bincounts import *  # noqa: F403

warnings.warn("upsweep.counts is now upsweep.bincounts; use the new name", DeprecationWarning, stacklevel=2)
