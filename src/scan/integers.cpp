// INTEGERS: cumulative sums of integers and bool, modulo 2^64, along contiguous lines or across contiguous columns.
//
//   y[t] = y[t-1] + x[t]
//
// Bytes an element: one read of x, one write of y. Arithmetic: one addition, of one cycle; a line waits for it at every
// element, which is 0.3 ns and less than the memory takes for the 8 bytes of y. The order of integer additions changes
// no bit, so nothing has to be repaired. Columns and sums without output are left to the compiler's vectors.
//
// Called by the strips (scan/strips.hpp).

#include <type_traits>

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

// One line; its elements lie upwards or, reversed, downwards from the first one. Returns the state after it.
template <class X, class Y, bool Reverse, bool HasReset, bool Exclusive>
uint64_t scan_line(const X* x, const uint8_t* reset, Y* out, int64_t n, uint64_t state) {
  for (int64_t step = 0; step < n; ++step) {
    const int64_t at = Reverse ? -step : step;
    const uint64_t before = HasReset && reset[at] ? 0 : state;
    state = before + widen(x[at]);
    if (out) out[at] = (Y)(Exclusive ? before : state);
  }
  return state;
}

template <class X, class Y>
uint64_t scan_any_line(const X* x, const uint8_t* reset, Y* out, const IntegerArgs& args, uint64_t state) {
  auto scan = [&](auto reverse, auto has_reset, auto exclusive) {
    return scan_line<X, Y, reverse(), has_reset(), exclusive()>(x, reset, out, args.n_steps, state);
  };
  auto with = [](bool flag, auto next) { return flag ? next(std::true_type{}) : next(std::false_type{}); };
  return with(args.x_stride < 0, [&](auto reverse) {
    return with(reset != nullptr, [&](auto has_reset) {
      return with(args.exclusive, [&](auto exclusive) { return scan(reverse, has_reset, exclusive); });
    });
  });
}

// Columns, of which a row is contiguous in x and out.
template <class X, class Y>
void scan_columns(const IntegerArgs& args) {
  uint64_t* __restrict state = args.state;
  for (int64_t step = 0; step < args.n_steps; ++step) {
    const X* x = (const X*)(args.x + step * args.x_stride);
    if (args.reset) {
      const uint8_t* reset = args.reset + step * args.reset_stride;
      for (int64_t k = 0; k < args.n_lanes; ++k)
        if (reset[k * args.reset_lane_stride]) state[k] = 0;
    }
    Y* out = args.out ? (Y*)(args.out + step * args.out_stride) : nullptr;
    // The output may be x itself, element for element.
    if (out && args.exclusive) {
      for (int64_t k = 0; k < args.n_lanes; ++k) {
        const uint64_t before = state[k];
        state[k] = before + widen(x[k]);
        out[k] = (Y)before;
      }
    } else {
      for (int64_t k = 0; k < args.n_lanes; ++k) state[k] += widen(x[k]);
      if (out)
        for (int64_t k = 0; k < args.n_lanes; ++k) out[k] = (Y)state[k];
    }
  }
}

template <class X, class Y>
void scan(const IntegerArgs& args) {
  if (args.across) return scan_columns<X, Y>(args);
  for (int64_t lane = 0; lane < args.n_lanes; ++lane)
    args.state[lane] = scan_any_line<X, Y>(
        (const X*)(args.x + lane * args.x_lane_stride), args.reset ? args.reset + lane * args.reset_lane_stride : nullptr,
        args.out ? (Y*)(args.out + lane * args.out_lane_stride) : nullptr, args, args.state[lane]);
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
