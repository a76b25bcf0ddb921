#include "plan/layout.hpp"

#include <algorithm>
#include <cstdlib>

namespace upsweep {
namespace {

struct Axis {
  int64_t size;
  int64_t strides[kMostArrays];
};

// Axes of size 1 dropped, outermost first by the strides of out, neighbours merged where every array allows it.
int merge_axes(const upsweep_scan& scan, const upsweep_array* const* arrays, int n_arrays, Axis* axes) {
  int n = 0;
  for (int dim = 0; dim < scan.n_batch; ++dim) {
    if (scan.batch_shape[dim] == 1) continue;
    axes[n].size = scan.batch_shape[dim];
    for (int i = 0; i < n_arrays; ++i) axes[n].strides[i] = arrays[i]->data ? arrays[i]->batch_strides[dim] : 0;
    ++n;
  }
  std::stable_sort(axes, axes + n, [](const Axis& a, const Axis& b) {
    return std::llabs(a.strides[kOut]) > std::llabs(b.strides[kOut]);
  });
  int n_merged = n ? 1 : 0;
  for (int dim = 1; dim < n; ++dim) {
    Axis& outer = axes[n_merged - 1];
    const Axis& inner = axes[dim];
    bool merges = true;
    for (int i = 0; i < n_arrays; ++i) merges = merges && outer.strides[i] == inner.strides[i] * inner.size;
    if (merges) {
      outer.size *= inner.size;
      std::copy(inner.strides, inner.strides + n_arrays, outer.strides);
    } else {
      axes[n_merged++] = inner;
    }
  }
  return n_merged;
}

}  // namespace

int64_t dtype_size(int32_t dtype) {
  static const int8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
  return dtype >= 0 && dtype <= UPSWEEP_COMPLEX128 ? sizes[dtype] : 0;
}

bool is_typed(int32_t dtype) { return dtype >= UPSWEEP_FLOAT16 && dtype <= UPSWEEP_FLOAT64; }

bool is_aligned(const View& view, const Problem& p, int64_t item) {
  const bool reverse = view.time_stride < 0;
  bool aligned = (reinterpret_cast<uintptr_t>(view.data) + (reverse ? item : 0)) % 16 == 0;
  aligned = aligned && (!reverse || p.length * item % 16 == 0);
  for (int dim = 0; dim < p.n_dims; ++dim) aligned = aligned && view.strides[dim] % 16 == 0;
  return aligned;
}

bool has_aligned_rows(const View& view, const Problem& p, int64_t item) {
  if (!p.n_dims || view.strides[p.n_dims - 1] != item || view.time_stride % 16) return false;
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  for (int dim = 0; dim + 1 < p.n_dims; ++dim) aligned = aligned && view.strides[dim] % 16 == 0;
  return aligned;
}

bool runs_down(const Problem& p) {
  if (p.length <= 1 || !p.n_dims) return false;
  const int innermost = p.n_dims - 1;
  return p.shape[innermost] >= 8 && std::llabs(p.out.strides[innermost]) < std::llabs(p.out.time_stride);
}

void lay_out(const upsweep_scan& scan, const upsweep_array* const* arrays, View* const* views, int n_arrays, Problem* p,
             Outer* outer) {
  p->length = scan.length;
  p->exclusive = scan.exclusive;
  p->writes = scan.out.data != nullptr;
  p->gamma_re = scan.gamma_re;
  p->gamma_im = scan.gamma_im;
  Axis axes[UPSWEEP_MAX_DIMS];
  const int n = merge_axes(scan, arrays, n_arrays, axes);
  const int n_merged = std::min(n, kDims);
  outer->n = n - n_merged;
  outer->n_launches = 1;
  for (int dim = 0; dim < outer->n; ++dim) {
    outer->shape[dim] = axes[dim].size;
    outer->n_launches *= axes[dim].size;
    for (int i = 0; i < n_arrays; ++i) outer->strides[i][dim] = axes[dim].strides[i];
  }
  p->n_dims = n_merged;
  p->lines = 1;
  for (int dim = 0; dim < n_merged; ++dim) {
    p->shape[dim] = axes[outer->n + dim].size;
    p->lines *= p->shape[dim];
  }
  constexpr int kTimed = 4;        // arrays with an axis of time
  for (int i = 0; i < n_arrays; ++i) {
    View& view = *views[i];
    view.data = static_cast<char*>(arrays[i]->data);
    view.dtype = arrays[i]->dtype;
    // A single step has no stride of its own; numpy leaves it undefined.
    view.time_stride = scan.length > 1 ? arrays[i]->time_stride : dtype_size(view.dtype);
    for (int dim = 0; dim < n_merged; ++dim) view.strides[dim] = axes[outer->n + dim].strides[i];
    if (view.data && i < kTimed && scan.reverse && scan.length > 1) {
      view.data += (scan.length - 1) * view.time_stride;
      view.time_stride = -view.time_stride;
    }
  }
}

}  // namespace upsweep
