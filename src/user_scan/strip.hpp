// Some columns past some steps: what every way through a user-defined scan ends in. Used by user_scan/driver.cpp.
//
// Operands whose columns are neighbours are handed to the compiled function as they are, others through tiles: rows of
// columns, copied in before and out after, in turned squares where an operand's steps are neighbours. Each row of memory
// is its own place then, more than a prefetcher follows: a tile's squares fetch those of the next one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/buffer.hpp"
#include "common/parallel.hpp"
#include "common/tuning.hpp"
#include "user_scan/user_scan.hpp"

namespace upsweep {
namespace {

using namespace user_scan_tuning;

constexpr int64_t kPollTiles = 16;          // a tile takes microseconds

inline int64_t size_of(int32_t type) {
  constexpr int64_t sizes[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
  return sizes[type];
}

// Whether an element of an operand is in memory as the kernel's numbers are.
inline bool is_number(const StepsKernel& kernel, int32_t type, int32_t integer) {
  if (integer) return type == kInt64 || type == kUInt64;
  return type == (kernel.bits == 32 ? kFloat32 : kFloat64);
}

// ---- tiles: any strides and types to rows of neighbouring columns, and back -------------------------------------

template <class From, class To>
void copy_columns(const char* from, int64_t from_time, int64_t from_column, char* to, int64_t to_time, int64_t to_column,
                  int64_t n_steps, int64_t n_columns) {
  for (int64_t step = 0; step < n_steps; ++step)
    for (int64_t col = 0; col < n_columns; ++col) {
      From value;
      std::memcpy(&value, from + step * from_time + col * from_column, sizeof value);
      const To changed = (To)value;
      std::memcpy(to + step * to_time + col * to_column, &changed, sizeof changed);
    }
}

template <class To>
void copy_in(int32_t type, const char* from, int64_t from_time, int64_t from_column, char* to, int64_t to_time,
             int64_t n_steps, int64_t n_columns) {
  auto copy = [&](auto zero) {
    copy_columns<decltype(zero), To>(from, from_time, from_column, to, to_time, sizeof(To), n_steps, n_columns);
  };
  switch (type) {
    case kFloat32: return copy(float{});
    case kFloat64: return copy(double{});
    case kInt8: return copy(int8_t{});
    case kInt16: return copy(int16_t{});
    case kInt32: return copy(int32_t{});
    case kInt64: return copy(int64_t{});
    case kUInt8: return copy(uint8_t{});
    case kUInt16: return copy(uint16_t{});
    case kUInt32: return copy(uint32_t{});
    case kUInt64: return copy(uint64_t{});
  }
}

template <class From>
void copy_out(int32_t type, const char* from, int64_t from_time, char* to, int64_t to_time, int64_t to_column,
              int64_t n_steps, int64_t n_columns) {
  auto copy = [&](auto zero) {
    copy_columns<From, decltype(zero)>(from, from_time, sizeof(From), to, to_time, to_column, n_steps, n_columns);
  };
  switch (type) {
    case kFloat32: return copy(float{});
    case kFloat64: return copy(double{});
    case kInt64: case kUInt64: return copy(int64_t{});   // of integers, whose narrower results numpy converts
    default: return copy(uint8_t{});   // truth values
  }
}

// One operand's columns of a task: the first column at the first step, and the ways from there.
struct Walk {
  char* data;
  int64_t time_stride, column_stride;
  int32_t type, direct;   // read and written in place
  int32_t integer;
  char* tile;
};

class Strip {
 public:
  // `memory` is for tiles, of one worker.
  Strip(const StepsKernel& kernel, int64_t n_operands, Buffer<char>& memory)
      : kernel(kernel), item(kernel.bits / 8), streams(n_operands), memory(memory) {}

  std::vector<Walk> inputs, outputs;
  bool far = false;   // operands are beyond the caches: said before `prepare`

  // The operands' ways are known: room for tiles of as many columns.
  void prepare(int64_t n_columns) {
    row = (n_columns + kernel.lanes - 1) / kernel.lanes * kernel.lanes * item;
    const int64_t whole = kTileBytes / std::max<int64_t>(row, 1) / kernel.lanes * kernel.lanes;
    tile_steps = far ? kTileSteps : std::min(kTileSteps, std::max<int64_t>(whole, kernel.lanes));
    const int64_t bytes = row * tile_steps;
    int64_t n_tiles = 0;
    for (const auto* walks : {&inputs, &outputs})
      for (const Walk& walk : *walks) n_tiles += !walk.direct;
    if (memory.size() < (size_t)(n_tiles * bytes)) memory.resize(n_tiles * bytes);
    char* next = memory.data();
    for (auto* walks : {&inputs, &outputs})
      for (Walk& walk : *walks)
        if (!walk.direct) walk.tile = next, next += bytes;
    steps_at_once = n_tiles ? tile_steps : std::max(kRunSteps, kRunBytes / std::max<int64_t>(row, 1));
  }

  // All columns past all steps.
  void run(void* state, int64_t state_stride, int64_t n_steps, int64_t n_columns) {
    for (int64_t first = 0; first < n_steps; first += steps_at_once) {
      const int64_t steps = std::min(steps_at_once, n_steps - first);
      const bool more = far && first + 2 * steps_at_once <= n_steps;
      size_t k = 0;
      for (Walk& walk : inputs) {
        char* const start = walk.data + first * walk.time_stride;
        if (!walk.direct) read(walk, start, steps, n_columns, more);
        streams[k++] = walk.direct ? Stream{start, walk.time_stride} : Stream{walk.tile, row};
      }
      for (Walk& walk : outputs) {
        char* const start = walk.data + first * walk.time_stride;
        streams[k++] = walk.direct ? Stream{start, walk.time_stride} : Stream{walk.tile, row};
      }
      kernel.steps(streams.data(), kernel.params.data(), state, state_stride, steps, n_columns);
      for (Walk& walk : outputs)
        if (!walk.direct) write(walk, walk.data + first * walk.time_stride, steps, n_columns, more);
      if (first / steps_at_once % kPollTiles == kPollTiles - 1) poll();
    }
  }

 private:
  const StepsKernel& kernel;
  const int64_t item;
  std::vector<Stream> streams;
  Buffer<char>& memory;
  int64_t row = 0, tile_steps = 0, steps_at_once = 0;

  bool turns(const Walk& walk) const {
    return is_number(kernel, walk.type, walk.integer) && std::abs(walk.time_stride) == item;
  }

  // What stands in a square's place in the next tile, to be read or written.
  template <int written>
  void fetch_ahead(const Walk& walk, const char* start) const {
    for (int64_t lane = 0; lane < kernel.lanes; ++lane)
      __builtin_prefetch(start + tile_steps * walk.time_stride + lane * walk.column_stride, written);
  }

  // Whole squares by the compiled function, what is left one by one; `rest(step, col, steps, columns)` does that.
  template <class Square, class Rest>
  void in_squares(int64_t n_steps, int64_t n_columns, Square square, Rest rest) {
    const int64_t side = kernel.lanes, whole_steps = n_steps - n_steps % side;
    const int64_t whole_columns = n_columns - n_columns % side;
    for (int64_t col = 0; col < whole_columns; col += side)
      for (int64_t step = 0; step < whole_steps; step += side) square(step, col);
    if (whole_steps < n_steps && whole_columns) rest(whole_steps, 0, n_steps - whole_steps, whole_columns);
    if (whole_columns < n_columns) rest(0, whole_columns, n_steps, n_columns - whole_columns);
  }

  void read(const Walk& walk, const char* from, int64_t n_steps, int64_t n_columns, bool more) {
    auto rest = [&](int64_t step, int64_t col, int64_t steps, int64_t columns) {
      const char* const start = from + step * walk.time_stride + col * walk.column_stride;
      char* const to = walk.tile + step * row + col * item;
      if (walk.integer) copy_in<int64_t>(walk.type, start, walk.time_stride, walk.column_stride, to, row, steps, columns);
      else if (kernel.bits == 32) copy_in<float>(walk.type, start, walk.time_stride, walk.column_stride, to, row, steps, columns);
      else copy_in<double>(walk.type, start, walk.time_stride, walk.column_stride, to, row, steps, columns);
    };
    if (!turns(walk)) return rest(0, 0, n_steps, n_columns);
    const bool backward = walk.time_stride < 0;
    const int64_t last = kernel.lanes - 1;
    in_squares(n_steps, n_columns, [&](int64_t step, int64_t col) {
      const char* const start = from + (backward ? step + last : step) * walk.time_stride + col * walk.column_stride;
      char* const to = walk.tile + (backward ? step + last : step) * row + col * item;
      if (more) fetch_ahead<0>(walk, start);
      kernel.turn(start, walk.column_stride, to, backward ? -row : row);
    }, rest);
  }

  void write(const Walk& walk, char* to, int64_t n_steps, int64_t n_columns, bool more) {
    auto rest = [&](int64_t step, int64_t col, int64_t steps, int64_t columns) {
      const char* const from = walk.tile + step * row + col * item;
      char* const start = to + step * walk.time_stride + col * walk.column_stride;
      if (walk.integer) copy_out<int64_t>(walk.type, from, row, start, walk.time_stride, walk.column_stride, steps, columns);
      else if (kernel.bits == 32) copy_out<float>(walk.type, from, row, start, walk.time_stride, walk.column_stride, steps, columns);
      else copy_out<double>(walk.type, from, row, start, walk.time_stride, walk.column_stride, steps, columns);
    };
    if (!turns(walk)) return rest(0, 0, n_steps, n_columns);
    const bool backward = walk.time_stride < 0;
    const int64_t last = kernel.lanes - 1;
    in_squares(n_steps, n_columns, [&](int64_t step, int64_t col) {
      const char* const from = walk.tile + (backward ? step + last : step) * row + col * item;
      char* const start = to + (backward ? step + last : step) * walk.time_stride + col * walk.column_stride;
      if (more) fetch_ahead<1>(walk, start);
      kernel.turn(from, backward ? -row : row, start, walk.column_stride);
    }, rest);
  }
};

}  // namespace
}  // namespace upsweep
