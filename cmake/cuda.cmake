# libupsweep_cuda.so: built where nvcc is found, loaded by the package when a CUDA array comes along.
#
#   UPSWEEP_CUDA                 AUTO (default), ON: an error without nvcc, OFF
#   CMAKE_CUDA_ARCHITECTURES     default: machine code for the devices of this machine; without any, for 9.0, and what
#                                drivers of newer and older devices (8.0) compile at load
#   UPSWEEP_CUDA_FOLDER          where it is installed; default: in the package
#
# UPSWEEP_CUDA_BUILD says what was built, or why nothing was, for the summary.
set(UPSWEEP_CUDA AUTO CACHE STRING "Build the CUDA library: AUTO, ON or OFF")
set_property(CACHE UPSWEEP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(UPSWEEP_CUDA_FOLDER upsweep/_backends/cuda CACHE STRING "The folder that the CUDA library is installed in")

if(UPSWEEP_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(UPSWEEP_CUDA_BUILD "left out: CMake found no working nvcc (PATH, CUDACXX)")
    return()
  endif()
elseif(NOT UPSWEEP_CUDA)
  set(UPSWEEP_CUDA_BUILD "left out: UPSWEEP_CUDA is ${UPSWEEP_CUDA}")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Every architecture takes minutes to compile. Not CMake's "native", which an older device would make an error.
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE devices ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" devices "${devices}")
  foreach(device IN LISTS devices)
    if(device VERSION_GREATER_EQUAL 8.0)
      string(REPLACE "." "" device ${device})
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${device}-real)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-virtual;90-real")
  endif()
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)

# 90-real, 90a-real and 80-virtual are 90, 90 and 80 to whoever asks what code is held.
set(capabilities "")
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  string(REGEX MATCH "^[0-9]+" capability "${architecture}")
  list(APPEND capabilities ${capability})
endforeach()
list(REMOVE_DUPLICATES capabilities)
string(REPLACE ";" ", " capabilities "${capabilities}")
# A file, since nvcc takes the commas of a -D for its own.
file(CONFIGURE OUTPUT cuda_generated/architectures.hpp
  CONTENT "constexpr int32_t kArchitectures[] = {@capabilities@};\n" @ONLY)

add_library(upsweep_cuda SHARED
  cuda/api/scan.cu
  cuda/api/bincount.cu
  cuda/api/reduce.cu
  cuda/plan/layout.cpp
  cuda/plan/scan.cpp
  cuda/plan/scan_columns.cpp
  cuda/plan/scan_lines.cpp
  cuda/plan/scan_windows.cpp
  cuda/plan/reduce.cpp
  cuda/plan/bincount.cpp
  cuda/bincount/launch.cu
  cuda/bincount/sums.cu
  cuda/bincount/ranks.cu
  cuda/instances/scan_float16.cu
  cuda/instances/scan_bfloat16.cu
  cuda/instances/scan_float32.cu
  cuda/instances/scan_float64.cu
  cuda/instances/scan_any.cu
  cuda/instances/scan_window.cu
  cuda/instances/reduce_float16.cu
  cuda/instances/reduce_bfloat16.cu
  cuda/instances/reduce_float32.cu
  cuda/instances/reduce_float64.cu
  cuda/instances/reduce_any.cu)
# src and the kernels of compiled updates have what others share with it.
target_include_directories(upsweep_cuda PRIVATE
  cuda cuda/include src python/upsweep/_compiler/cuda/kernels ${CMAKE_CURRENT_BINARY_DIR}/cuda_generated)
# The static runtime's own symbols stay inside, beside another library's copy of it.
target_link_options(upsweep_cuda PRIVATE -Wl,--exclude-libs,ALL)
install(TARGETS upsweep_cuda LIBRARY DESTINATION ${UPSWEEP_CUDA_FOLDER})

list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
set(UPSWEEP_CUDA_BUILD "built by nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${architectures}")
