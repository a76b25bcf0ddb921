// Packed records: the variables of a formula, of any strides, contiguous.
//
// Records of what is spread over lanes lie apart, component after component; the others' numbers are neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "common/buffer.hpp"
#include "pairs/pairs.hpp"

namespace upsweep {
namespace {

constexpr int64_t kPackedAtOnce = 2048;   // records of a task: whole vectors, of any type

// Memory that nobody has written to: clearing it would cost as much as packing.
template <class Number>
class Unwritten {
 public:
  void reserve(int64_t count) {
    memory.reset(LineAligned<Number>().allocate((std::size_t)count));
  }
  Number* data() const { return memory.get(); }

 private:
  struct Free {
    void operator()(Number* p) const { LineAligned<Number>().deallocate(p, 0); }
  };
  std::unique_ptr<Number, Free> memory;
};

// Rows or columns of all batch entries, packed.
template <class Number>
struct Packed {
  Unwritten<Number> memory;
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
      entry_size = (n + lanes) * width;   // columns are prepared by whole vectors
    }
    memory.reserve(entry_size * n_entries);
  }

  const Number* entry(int64_t e) const { return memory.data() + e * entry_size; }
  // Record r of an entry.
  const Number* at(int64_t e, int64_t r) const { return entry(e) + (in_lanes ? r : r * width); }

  int64_t n_chunks() const { return (n + kPackedAtOnce - 1) / kPackedAtOnce; }

  // Record r, to be written.
  Number* record(int64_t e, int64_t r) const { return memory.data() + e * entry_size + (in_lanes ? r : r * width); }
  int64_t chunk_begin(int64_t chunk) const { return chunk * kPackedAtOnce; }
  int64_t chunk_size(int64_t chunk) const { return std::min(n - chunk_begin(chunk), kPackedAtOnce); }

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
