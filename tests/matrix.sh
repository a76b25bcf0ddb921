#!/usr/bin/env bash
# Builds the package and runs tests for each of several instruction sets, compilers, Pythons and package versions.
#
#   tests/matrix.sh                        every combination that this machine can run
#   tests/matrix.sh x86_64_v3 clang 3.14t  these alone
#   tests/matrix.sh --list                 their names
#     --keep FOLDER    keep environments, builds and logs; the next run uses them (default: a temporary folder)
#     --full           the whole suite, not the parts in which the combination makes a difference
#     --tests PATHS    these tests
#
#   x86_64_v2, ...   one instruction set. numpy, OpenBLAS, torch and the C library are limited to it too, so that
#                    they round as on a processor that has no wider one
#   gcc, gcc-fortify, clang   compilers, of the core and of the emulators of CUDA; GCC and CLANG name others than g++
#                    and clang++. gcc-fortify: with _FORTIFY_SOURCE=3 and the assertions of libstdc++
#   3.11 to 3.14t    Pythons, from uv or the PATH, with the newest packages; 3.14t without its global lock
#   oldest           numpy, scipy, dask, llvmlite and ml_dtypes of the oldest supported versions
#   torch-oldest, torch   tensors with a torch of a year ago and the newest; TORCH_INDEX is a further index for it,
#                    since PyPI's needs some GB of CUDA's libraries
#
# LEVELS: the instruction sets to build and run, if not all of the processor's kind.
# The end is a table. The exit status is 1 if a build or a test failed. What this machine lacks is "not run".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

case $(uname -m) in
  x86_64) levels="x86_64_v2 x86_64_v3 x86_64_v4" ;;
  aarch64 | arm64) levels="neon" ;;
  *) levels="generic" ;;
esac
levels=${LEVELS:-$levels}
all="$levels gcc gcc-fortify clang 3.11 3.12 3.13 3.14 3.14t oldest torch-oldest torch"

core="tests/scan tests/bincount tests/histogram tests/pairs"
compiled="tests/user_scan tests/te tests/compiler/test_llvm_*.py tests/backends"
emulated="tests/cuda tests/compiler/test_cuda_*.py tests/te/test_cuda_*.py tests/user_scan/test_on_device.py"
python_code="tests/user_scan tests/te tests/pairs tests/arrays tests/backends tests/dask tests/histogram tests/utils"
numpy_code="tests/scan tests/bincount tests/histogram tests/arrays tests/user_scan tests/dask tests/backends"
oldest="numpy==2.0.* scipy==1.13.* llvmlite==0.44.* ml_dtypes==0.4.* dask[array]==2025.5.* distributed==2025.5.* \
pandas==2.2.* xarray==2024.6.*"

keep="" full="" tests="" names=""
while [ $# -gt 0 ]; do
  case $1 in
    --list) echo "$all" && exit ;;
    --keep) keep=$2 && shift ;;
    --full) full=tests ;;
    --tests) tests=$2 && shift ;;
    *)
      [[ " $all " == *" $1 "* ]] || { echo "$1: expected one of $all, or an option" >&2 && exit 2; }
      names+=" $1"
      ;;
  esac
  shift
done
folder=$keep
[ -n "$keep" ] || { folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT; }
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
export MPLBACKEND=Agg PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache

not_run() { echo "not run: $*" && exit 77; }

# The path of an interpreter, from uv or the PATH.
find_python() {
  local path
  command -v uv >/dev/null && uv python install --quiet "$1" 2>/dev/null
  for path in "$(uv python find --no-project "$1" 2>/dev/null)" "$(command -v "python$1")"; do
    # A name on the PATH may be a launcher of a version that is not installed; 3.14 may be found as 3.14t.
    [ -n "$path" ] && [ "$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)')" = "$1" ] &&
      echo "$path" && return
  done 2>/dev/null
}

# Makes an environment with the package and all that its tests need, of the variables of `combination`.
install() {
  [ -x "$environment/bin/pip" ] || "$python" -m venv "$environment" || exit
  PATH=$environment/bin:$PATH
  mkdir -p "$environment/wheel" && rm -f "$environment"/wheel/*
  python -m pip wheel --no-deps -w "$environment/wheel" -C build-dir="$environment/build" \
    -C cmake.define.UPSWEEP_CUDA=OFF -C cmake.define.UPSWEEP_INSTRUCTION_SETS="${built// /;}" . || exit
  python -m pip uninstall -y upsweep 2>/dev/null
  # shellcheck disable=SC2086
  python -m pip install --only-binary=numpy,scipy,llvmlite,ml_dtypes,numcodecs,matplotlib,pandas,polars-runtime-32,pyarrow,torch \
    "$(echo "$environment"/wheel/*.whl)[test]" $packages || not_run "pip finds no packages for it"
}

# Limits this package, numpy and the libraries that both call to an instruction set.
limit_to() {
  export UPSWEEP_CPU_ISA=$1
  python -c "import upsweep" 2>/dev/null || not_run "this processor or this build has no $1"
  local wider
  case $1 in
    x86_64_v2)
      wider="X86_V3 X86_V4 AVX FMA3 F16C"
      export OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default
      export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-FMA,-BMI2
      ;;
    x86_64_v3)
      wider="X86_V4 AVX512"
      export OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2
      export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW
      ;;
    *) return ;;
  esac
  # numpy warns of names that it does not dispatch on, or that the processor has not.
  NPY_DISABLE_CPU_FEATURES=$(python -c "if True:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    wider = tuple('$wider'.split())
    print(*[name for name in __cpu_dispatch__ if name.startswith(wider) and __cpu_features__[name]])")
  export NPY_DISABLE_CPU_FEATURES
}

# Runs one combination, in a subshell. Exit status: 77 if this machine cannot.
combination() {
  # One instruction set, which all processors run, where C++ is not what differs.
  local python=python3 built=${levels%% *} environment=$folder/$1 packages="" paths=$python_code level=""
  case $1 in
    gcc*) export CXX=${GCC:-g++} && built=$levels paths="$core $emulated" ;;&
    gcc-fortify) export CXXFLAGS="-D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS" ;;
    gcc) ;;
    clang) export CXX=${CLANG:-clang++} && built=$levels paths="$core $emulated" ;;
    3.*)
      python=$(find_python "$1")
      [ -n "$python" ] || not_run "neither uv nor the PATH has it"
      # polars and pyarrow, large and without wheels for 3.14t, are no packages of the extra.
      if [ "$1" = 3.14t ]; then export PYTHON_GIL=0; else packages="polars pyarrow"; fi
      ;;
    oldest) packages=$oldest paths=$numpy_code ;;
    torch*)
      packages=${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} paths="tests/torch tests/distributed"
      if [ "$1" = torch ]; then packages+=" torch"; else packages+=" torch==2.9.*"; fi
      ;;
    *) environment=$folder/levels built=$levels paths="$core $compiled" level=$1 ;;
  esac
  [ -z "${CXX:-}" ] || command -v "$CXX" >/dev/null || not_run "there is no $CXX"
  install
  [ -z "$level" ] || limit_to "$level"
  # shellcheck disable=SC2086
  python -m pytest -q -n auto --dist loadfile -p no:cacheprovider --tb=short ${full:-${tests:-$paths}}
}

status=0 table=""
for name in ${names:-$all}; do
  printf '\n== %s\n' "$name"
  result=0
  (combination "$name") 2>&1 | tee "$folder/$name.log" || result=$?
  last=$(grep . "$folder/$name.log" | tail -n 1)
  case $result in
    0 | 77) ;;
    *) status=1 last="FAILED: $last" && grep -E '^(FAILED|ERROR)' "$folder/$name.log" >&2 ;;
  esac
  table+=$(printf '%-14s %s' "$name" "$last")$'\n'
done
printf '\n%s' "$table"
exit "$status"
