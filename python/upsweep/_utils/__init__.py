"""Helpers without knowledge of arrays, used by all layers: integer arguments, the LRU cache, the progress bar."""
