"""Fixtures of tests of tensors."""

from host_tensors import device, folder  # noqa: F401  # fixtures
