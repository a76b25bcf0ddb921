"""Deprecated name of `upsweep.compat`, kept for one release."""

import warnings

from upsweep.compat import *  # noqa: F403

warnings.warn("upsweep.peer_names is now upsweep.compat; use the new name", DeprecationWarning, stacklevel=2)
