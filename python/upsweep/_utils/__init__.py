"""Helpers without knowledge of arrays, for all layers: integers, LRU cache, progress bar, docstrings, names."""
