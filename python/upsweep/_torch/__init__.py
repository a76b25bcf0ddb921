"""Scans and counts on torch tensors: argument rules in `scans` and `counts`, registered operations and derivatives
in `ops` and `count_ops`.

Imported by the public functions when a torch tensor comes along, so never before torch itself.
"""
