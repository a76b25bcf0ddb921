"""What CMake built (cmake/summary.cmake)."""

compiler: str
"""The C++ compiler and its version."""

cuda: str
"""What the CUDA library was built for, or why it was left out."""
