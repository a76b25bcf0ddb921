"""asv benchmarks: one file a family, named as the package's own (README.md)."""
