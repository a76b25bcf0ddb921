#!/usr/bin/env bash
# Builds the package with sanitizers into a scratch folder and runs tests and fuzzers on it.
#
#   tests/sanitize.sh [FOLDER]            AddressSanitizer and UndefinedBehaviorSanitizer
#   tests/sanitize.sh tsan [FOLDER]       ThreadSanitizer, with LLVM's OpenMP
#
# FOLDER (default: a temporary one, deleted at the end) keeps the build for the next run. Needs the build tools of
# CONTRIBUTING.md and the tests' packages in the current environment. UPSWEEP_ISA: the one instruction set that is
# built, default x86_64_v3. SECONDS_OF_FUZZING: default 120. TESTS: what pytest runs.
#
# ThreadSanitizer does not see the barriers of GNU's OpenMP and reports them as races. Archer shows it those of
# LLVM's (Debian: apt-get install clang libomp-dev), which takes the place of GNU's by LD_PRELOAD.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitizer=asan
if [ "${1:-}" = tsan ]; then
  sanitizer=tsan
  shift
fi
if [ $# -gt 0 ]; then
  folder=$1
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
of_gcc() { "${CXX:-g++}" -print-file-name="$1"; }

if [ "$sanitizer" = asan ]; then
  # Without the checks of each pointer, which AddressSanitizer does better and which double the time to compile.
  flags="-fsanitize=address,undefined -fno-sanitize=null,vptr,object-size,pointer-overflow
    -fno-sanitize-recover=undefined"
  flags=$(echo $flags)
  # libstdc++ has to be there before the first exception is thrown, as the sanitizer wraps it.
  preload="$(of_gcc libasan.so) $(of_gcc libstdc++.so)"
  export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
  default_tests="tests/scan/test_layouts.py tests/scan/test_lengths.py tests/scan/test_window.py tests/scan/test_resets.py
    tests/scan/test_in_place.py tests/scan/test_short_lines.py tests/bincount/test_bincount.py tests/bincount/test_axis.py
    tests/bincount/test_invalid.py tests/bincount/test_weights.py tests/histogram/test_histogram.py tests/pairs/test_cpu.py
    tests/user_scan/test_scan.py tests/te/test_functions.py"
else
  flags="-fsanitize=thread"
  archer=$(find /usr/lib /usr/local/lib -name libarcher.so 2>/dev/null | sort -V | tail -n 1)
  [ -n "$archer" ] || { echo "no libarcher.so: apt-get install clang libomp-dev" >&2; exit 1; }
  preload="$(of_gcc libtsan.so) $(of_gcc libstdc++.so) $(dirname "$archer")/libomp.so"
  export OMP_TOOL_LIBRARIES=$archer TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66 halt_on_error=0"
  default_tests="tests/backends/test_threads.py tests/pairs/test_cpu_threads.py"
fi
flags="$flags -fno-omit-frame-pointer"

# -O1: with these sanitizers -O3 takes ten times as long to compile.
CXXFLAGS=$flags LDFLAGS=$flags python -m pip install --quiet --no-build-isolation --no-deps --upgrade \
  --target "$folder/site" -C build-dir="$folder/build" -C cmake.build-type=Debug -C install.strip=false \
  -C cmake.define.CMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -C cmake.define.UPSWEEP_CUDA=OFF \
  -C cmake.define.UPSWEEP_INSTRUCTION_SETS="${UPSWEEP_ISA:-x86_64_v3}" .

# PYTHONMALLOC: the sanitizers see what the system's allocator hands out.
export PYTHONPATH="$folder/site" PYTHONMALLOC=malloc UPSWEEP_CACHE_DIR="$folder/code"
status=0
# shellcheck disable=SC2086
# Deselected: under a limit of the address space the sanitizers cannot allocate their own memory.
LD_PRELOAD=$preload python -m pytest -q -p no:cacheprovider -k "not without_memory" \
  ${TESTS:-$default_tests} || status=$?
LD_PRELOAD=$preload python -m tests.fuzz --seconds "${SECONDS_OF_FUZZING:-120}" --limit 600 || status=$?
exit "$status"
