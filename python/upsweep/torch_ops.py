"""Registers upsweep's operations with torch.

They are registered at the first call that needs them, since `import upsweep` does not import torch. A process that
only loads a program, by `torch.export.load`, makes no such call: import this module there first. It has no names.
"""

import upsweep._torch.user_scan_ops  # noqa: F401  # registers; its package registers scans and counts

__all__: list[str] = []
