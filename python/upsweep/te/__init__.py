"""Recurrences and other loops over tensors, described symbolically, scheduled, compiled: TVM's names, `scan` among them."""
