"""What this machine can run, and the OpenMP pool (src/bindings/_machine.pyx)."""

def usable_levels() -> list[str]:
    """Names of the instruction sets that this CPU runs, the widest first."""

def openmp_version() -> int:
    """The date of the OpenMP specification compiled in, as yyyymm; 0 without OpenMP."""

def max_threads() -> int:
    """What ``omp_get_max_threads`` says (``OMP_NUM_THREADS``, else the cores)."""

def pause_pool() -> int:
    """End the pool's threads; the next parallel region makes new ones. Returns 0 on success."""
