"""Deprecated name of `upsweep.aggregates`, kept for one release."""

import warnings

from upsweep.aggregates import *  # noqa: F403

warnings.warn("upsweep.carries is now upsweep.aggregates; use the new name", DeprecationWarning, stacklevel=2)
