"""Deprecated name of `upsweep.blockwise`, kept for one release."""

import warnings

from upsweep.blockwise import *  # noqa: F403

warnings.warn("upsweep.streams is now upsweep.blockwise; use the new name", DeprecationWarning, stacklevel=2)
