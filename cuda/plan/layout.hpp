// How arrays of a launch lie in memory: axes merged and ordered, axes left out of a launch, alignment. Pure host code.
#pragma once

#include "scan/problem.hpp"
#include "upsweep_cuda.h"

namespace upsweep {

// What a launch leaves out: axes that it is repeated over, and the bytes that arrays move along them.
constexpr int kMostArrays = 9;
struct Outer {
  int32_t n;
  int64_t shape[UPSWEEP_MAX_DIMS];
  int64_t strides[kMostArrays][UPSWEEP_MAX_DIMS];
  int64_t n_launches;

  // Whether an array lies as far from a vector's boundary in each launch.
  bool keeps_vectors(int array) const {
    for (int dim = 0; dim < n; ++dim)
      if (strides[array][dim] % 16) return false;
    return true;
  }
  // Whether two of them lie as far from each other's.
  bool move_alike(int a, int b) const {
    for (int dim = 0; dim < n; ++dim)
      if ((strides[a][dim] - strides[b][dim]) % 16) return false;
    return true;
  }
};

// What plans of scans and of reductions have in common. The scan's arrays come first, in the order of their views;
// the others have no axis of time, and `out` is at least a layout.
constexpr int kScanArrays = 7;
enum ArrayIndex { kX, kGates, kReset, kOut, kGamma, kInitial, kFinal };
void lay_out(const upsweep_scan& scan, const upsweep_array* const* arrays, View* const* views, int n_arrays, Problem* p,
             Outer* outer);

int64_t dtype_size(int32_t dtype);
bool is_typed(int32_t dtype);                     // a real floating one
// Whether every line of contiguous elements begins, in scan order, on a vector's boundary.
bool is_aligned(const View& view, const Problem& p, int64_t item);
// Whether steps are further apart in memory than neighbours of the innermost axis, of which there are enough.
bool runs_down(const Problem& p);
// Whether the columns are neighbours, and the first one of each step begins on a vector's boundary.
bool has_aligned_rows(const View& view, const Problem& p, int64_t item);

// Runs a launch, which returns a status, with the views at each index of the outer axes in turn.
template <int n, class Launch>
int32_t for_each_launch(const Outer& outer, View* const (&views)[n], Launch launch) {
  char* bases[n];
  for (int i = 0; i < n; ++i) bases[i] = views[i]->data;
  for (int64_t index = 0; index < outer.n_launches; ++index) {
    int64_t rest = index;
    for (int i = 0; i < n; ++i) views[i]->data = bases[i];
    for (int dim = outer.n - 1; dim >= 0; --dim) {
      const int64_t at = rest % outer.shape[dim];
      rest /= outer.shape[dim];
      for (int i = 0; i < n; ++i)
        if (bases[i]) views[i]->data += at * outer.strides[i][dim];
    }
    if (const int32_t status = launch()) return status;
  }
  return UPSWEEP_OK;
}

}  // namespace upsweep
