# cython: language_level=3, freethreading_compatible=True
"""What this machine can run, and the OpenMP pool. Built for the baseline instruction set."""

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    static int upsweep_openmp_version() { return _OPENMP; }
    static int upsweep_max_threads() { return omp_get_max_threads(); }
    static int upsweep_in_parallel() { return omp_in_parallel(); }
    static int upsweep_pause_pool() {
    #if _OPENMP >= 201811 || (defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9)
      return omp_pause_resource_all(omp_pause_soft);
    #else
      return -1;
    #endif
    }
    #else
    static int upsweep_openmp_version() { return 0; }
    static int upsweep_max_threads() { return 1; }
    static int upsweep_in_parallel() { return 0; }
    static int upsweep_pause_pool() { return 0; }
    #endif

    #if defined(__x86_64__)
    #include <cpuid.h>
    // What x86-64-v3 has besides vectors; not every compiler's __builtin_cpu_supports knows the names.
    static int upsweep_has_f16c_movbe_lzcnt() {
      unsigned a, b, c, d;
      if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C) || !(c & bit_MOVBE)) return 0;
      return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
    }
    #endif

    static int upsweep_runs(int level) {
    #if defined(__x86_64__)
      __builtin_cpu_init();
      switch (level) {
        case 2: return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
        case 3: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                       upsweep_has_f16c_movbe_lzcnt();
        case 4: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
        default: return 0;
      }
    #else
      return level == 0;
    #endif
    }
    """
    int upsweep_openmp_version() noexcept nogil
    int upsweep_max_threads() noexcept nogil
    int upsweep_in_parallel() noexcept nogil
    int upsweep_pause_pool() noexcept nogil
    int upsweep_runs(int level) noexcept nogil


def usable_levels():
    """Names of the instruction sets that this CPU runs, the widest first."""
    levels = [name for level, name in ((4, "x86_64_v4"), (3, "x86_64_v3"), (2, "x86_64_v2")) if upsweep_runs(level)]
    return levels or ["neon", "generic"]


def openmp_version():
    """The date of the OpenMP specification compiled in, as yyyymm; 0 without OpenMP."""
    return upsweep_openmp_version()


def max_threads():
    """What ``omp_get_max_threads`` says (``OMP_NUM_THREADS``, else the cores)."""
    return upsweep_max_threads()


def pause_pool():
    """End the pool's threads; the next parallel region makes new ones. Returns 0 on success."""
    return upsweep_pause_pool()
