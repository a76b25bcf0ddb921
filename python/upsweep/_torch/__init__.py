"""The scans on torch tensors: argument rules in `scans`, registered operations and derivatives in `ops`.

Imported by the public functions when a torch tensor comes along, so never before torch itself.
"""
