# What is built, and why something is not: printed at the end of the configuration, where `pip install -v` shows it,
# and written to the module upsweep._backends._build, which `python -m upsweep info` reads.
list(JOIN UPSWEEP_LEVELS ", " levels)
if(UPSWEEP_LEFT_OUT)
  list(JOIN UPSWEEP_LEFT_OUT ", " left_out)
  string(APPEND levels " (left out: ${left_out}, which the compiler does not know)")
endif()
set(threads "OpenMP ${OpenMP_CXX_VERSION}")
if(NOT OpenMP_CXX_FOUND)
  set(threads "one thread: CMake found no OpenMP for this compiler")
endif()
set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")

message(STATUS "")
message(STATUS "upsweep is built with")
message(STATUS "  compiler          ${compiler}")
message(STATUS "  instruction sets  ${levels}")
message(STATUS "  threads           ${threads}")
message(STATUS "  CUDA library      ${UPSWEEP_CUDA_BUILD}")
message(STATUS "")

file(CONFIGURE OUTPUT _build.py CONTENT [["""What CMake built, as cmake/summary.cmake wrote it."""

compiler = "@compiler@"
cuda = "@UPSWEEP_CUDA_BUILD@"
]] @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build.py DESTINATION upsweep/_backends)
