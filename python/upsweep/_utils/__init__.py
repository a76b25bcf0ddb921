"""Helpers without knowledge of arrays, used by all layers: integers, LRU cache, progress bar, docstrings."""
