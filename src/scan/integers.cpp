// INTEGERS: cumulative sums of integers and bool, modulo 2^64, along contiguous lines or across contiguous columns.
//
//   y[t] = y[t-1] + x[t]
//
// Bytes an element: one read of x, one write of y. Arithmetic: one addition, of one cycle; a line waits for it at every
// element, which is 0.3 ns and less than the memory takes for the 8 bytes of y. The order of integer additions changes
// no bit, so nothing has to be repaired. Columns are left to the compiler's vectors; few of them are scanned as lines.
//
// Called by the strips (scan/strips.hpp).

#include <algorithm>
#include <type_traits>

#include "common/tuning.hpp"
#include "scan/scan.hpp"

namespace upsweep {
namespace {

// numpy's bool, whose byte may be any number in a view.
struct Bool { uint8_t byte; };

inline uint64_t widen(Bool value) { return value.byte != 0; }
template <class T>
inline uint64_t widen(T value) { return (uint64_t)(int64_t)value; }   // sign-extended
template <>
inline uint64_t widen(uint64_t value) { return value; }

// One line, with strides in elements, which are constants where they are one. Returns the state after it.
template <bool HasReset, bool Exclusive, class X, class Y, class Stride>
uint64_t scan_line(const X* x, Stride x_stride, const uint8_t* reset, int64_t reset_stride, Y* out, Stride out_stride,
                   int64_t n, uint64_t state) {
  // One step is an addition and five instructions: not unrolled, a loop that begins where it crosses a line of the
  // instruction cache takes two cycles a step (Zen 4).
#pragma GCC unroll 8
  for (int64_t step = 0; step < n; ++step) {
    const uint64_t before = HasReset && reset[step * reset_stride] ? 0 : state;
    state = before + widen(x[step * x_stride]);
    if (out) out[step * out_stride] = (Y)(Exclusive ? before : state);
  }
  return state;
}

template <class X, class Y>
void scan_lines(const IntegerArgs& args) {
  const int64_t x_stride = args.x_stride / (int64_t)sizeof(X), out_stride = args.out_stride / (int64_t)sizeof(Y);
  auto with = [](bool flag, auto next) { return flag ? next(std::true_type{}) : next(std::false_type{}); };
  with(args.reset != nullptr, [&](auto has_reset) {
    with(args.exclusive, [&](auto exclusive) {
      auto scan = [&](auto x_steps, auto out_steps) {
        for (int64_t lane = 0; lane < args.n_lanes; ++lane)
          args.state[lane] = scan_line<has_reset(), exclusive()>(
              (const X*)(args.x + lane * args.x_lane_stride), x_steps,
              has_reset() ? args.reset + lane * args.reset_lane_stride : nullptr, args.reset_stride,
              args.out ? (Y*)(args.out + lane * args.out_lane_stride) : nullptr, out_steps, args.n_steps,
              args.state[lane]);
      };
      constexpr std::integral_constant<int64_t, 1> one;
      if (x_stride == 1 && (out_stride == 1 || !args.out)) scan(one, one);
      else scan(x_stride, out_stride);
    });
  });
}

// Columns, of which a row is contiguous in x and out. The output may be x itself, element for element.
template <class X, class Y>
void scan_columns(const IntegerArgs& args) {
  uint64_t* __restrict state = args.state;
  const int64_t n_lanes = args.n_lanes;   // read from args it might change with a state, and loops had no vectors
  for (int64_t step = 0; step < args.n_steps; ++step) {
    const X* x = (const X*)(args.x + step * args.x_stride);
    if (args.reset) {
      const uint8_t* reset = args.reset + step * args.reset_stride;
      if (args.reset_lane_stride == 1) {
        for (int64_t k = 0; k < n_lanes; ++k) state[k] = reset[k] ? 0 : state[k];
      } else {
        for (int64_t k = 0; k < n_lanes; ++k)
          if (reset[k * args.reset_lane_stride]) state[k] = 0;
      }
    }
    Y* out = args.out ? (Y*)(args.out + step * args.out_stride) : nullptr;
    if (out && args.exclusive) {
      constexpr int64_t kTogether = 64;   // are read before the output, which may be x, is written
      uint64_t values[kTogether];
      for (int64_t first = 0; first < n_lanes; first += kTogether) {
        const int64_t n = std::min(kTogether, n_lanes - first);
        for (int64_t k = 0; k < n; ++k) values[k] = widen(x[first + k]);
        for (int64_t k = 0; k < n; ++k) out[first + k] = (Y)state[first + k];
        for (int64_t k = 0; k < n; ++k) state[first + k] += values[k];
      }
    } else {
      for (int64_t k = 0; k < n_lanes; ++k) state[k] += widen(x[k]);
      if (out)
        for (int64_t k = 0; k < n_lanes; ++k) out[k] = (Y)state[k];
    }
  }
}

template <class X, class Y>
void scan(const IntegerArgs& args) {
  if (args.across && args.n_lanes >= scan_tuning::kFewestIntegerColumns) return scan_columns<X, Y>(args);
  scan_lines<X, Y>(args);
}

template <class X>
IntegerScan* scan_to(int32_t out_dtype) {
  return dtype_size(out_dtype) == 8 ? scan<X, uint64_t> : scan<X, uint32_t>;
}

}  // namespace

IntegerScan* integer_scan(int32_t dtype, int32_t out_dtype) {
  switch (dtype) {
    case kBool: return scan_to<Bool>(out_dtype);
    case kInt8: return scan_to<int8_t>(out_dtype);
    case kUInt8: return scan_to<uint8_t>(out_dtype);
    case kInt16: return scan_to<int16_t>(out_dtype);
    case kUInt16: return scan_to<uint16_t>(out_dtype);
    case kInt32: return scan_to<int32_t>(out_dtype);
    case kUInt32: return scan_to<uint32_t>(out_dtype);
    default: return scan_to<uint64_t>(out_dtype);
  }
}

}  // namespace upsweep
