// Packed records: the variables of a formula, of any strides, side by side.
//
// Records of what is spread over lanes lie apart, component after component; the others' numbers are neighbours.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer.hpp"
#include "pairs.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPackedAtOnce = 2048;   // records of a task

// Rows or columns of all batch entries, packed.
template <class Number>
struct Packed {
  Buffer<Number> memory;
  const Number* data = nullptr;
  int64_t width = 0, n = 0, stride = 0, entry_size = 0;   // stride: from component to component, where lanes hold records
  bool in_lanes = false;

  // Room for n records of a batch entry; whole vectors may be read from the last on.
  void prepare(int64_t n_records, int64_t record_width, int64_t n_entries, bool lanes_hold, int64_t lanes) {
    n = n_records;
    width = record_width;
    in_lanes = lanes_hold;
    if (lanes_hold) {
      const int64_t line = 64 / (int64_t)sizeof(Number);
      stride = (n + lanes + line - 1) / line * line;
      if (stride / line % 2 == 0) stride += line;   // an odd number of cache lines: components share no set
      entry_size = stride * width;
    } else {
      stride = 1;
      entry_size = n * width;
    }
    memory.resize((size_t)(entry_size * n_entries));
    data = memory.data();
  }

  const Number* entry(int64_t e) const { return data + e * entry_size; }
  // Record r of an entry.
  const Number* at(int64_t e, int64_t r) const { return entry(e) + (in_lanes ? r : r * width); }

  int64_t n_chunks() const { return (n + kPackedAtOnce - 1) / kPackedAtOnce; }

  // Some records of one entry of one variable.
  void pack(const PairOperand& operand, const char* source, int64_t e, int64_t chunk) {
    Number* const target = memory.data() + e * entry_size;
    const int64_t begin = chunk * kPackedAtOnce, end = std::min(n, begin + kPackedAtOnce);
    if (in_lanes) {
      for (int64_t f = 0; f < operand.dim; ++f) {
        Number* const to = target + (operand.offset + f) * stride;
        const char* from = source + f * operand.feature_stride + begin * operand.stride;
        for (int64_t r = begin; r < end; ++r, from += operand.stride) to[r] = *reinterpret_cast<const Number*>(from);
        // Lanes beyond the last record do as it does: nothing that is not there has to be handled.
        if (end == n)
          for (int64_t r = n; r < stride; ++r) to[r] = to[n - 1];
      }
      return;
    }
    for (int64_t r = begin; r < end; ++r) {
      Number* const to = target + r * width + operand.offset;
      const char* from = source + r * operand.stride;
      for (int64_t f = 0; f < operand.dim; ++f, from += operand.feature_stride)
        to[f] = *reinterpret_cast<const Number*>(from);
    }
  }
};

}  // namespace
}  // namespace upsweep
