"""Holds libupsweep_cuda.so, which the package upsweep loads at the first call with arrays on a CUDA device."""
