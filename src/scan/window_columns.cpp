// WINDOW, of neighbouring lines that are contiguous across: at most K elements of a decaying sum in each column.
//
//   y[t] = sum over k < min(K, t + 1) of gamma^k * x[t-k]
//
// A vector runs across the columns, and each block of K steps is van Herk's, as in scan/window.cpp:
//
//   y[i] = S[i] + gamma^(i+1) * R[i+1],   R[q] = sum over j >= q of gamma^(K-1-j) * P[j]
//
// From its first reset on, a block takes nothing of R; and R has nothing of what precedes the last reset of P.
//
// Bytes an element: x read once, y written once; the tokens of a block stay in a packed buffer until they have become R,
// so that no pitch makes rows push each other out of the cache, and the output may be x. Arithmetic for kLanes elements:
// three multiply-adds.
//
// The powers are normal numbers, so that a NaN or an infinity is in the windows that it should be in and in no other.
// What a sum that overflows would be is left to the caller, which gets the largest finite token.
//
// Called by scan/window.cpp, a block of some columns at a time.

#include "common/real_types.hpp"
#include "common/vec.hpp"
#include "common/tuning.hpp"
#include "scan/lines.hpp"
#include "scan/scan.hpp"

namespace upsweep {
namespace {

using namespace window_tuning;

constexpr int kVectors = kWindowColumns / kLanes;

// N vectors of columns, the last one of `count` columns unless they are Whole.
template <class T, bool Whole, bool HasReset, int N>
void window_block(const ColumnWindowArgs& args, int64_t col, int count, Vec& largest) {
  const Vec gamma = broadcast(args.powers[1]);
  Vec state[N] = {};
  double* const rows = args.rows + col;
  auto token = [&](int64_t i, int k) __attribute__((always_inline)) {
    const Vec x = load_columns<Whole>((const T*)(args.x + i * args.x_stride) + col + k * kLanes, count);
    if constexpr (kMayOverflow<T>) largest = max(select((Mask)(abs(x) < __builtin_inf()), abs(x), Vec{}), largest);
    return x;
  };
  auto reset_at = [&](int64_t i, int k) __attribute__((always_inline)) {
    const uint8_t* row = args.reset + i * args.reset_stride;
    if (args.reset_shared) return (Mask)((row[0] ? -1 : 0) - Mask{});
    return load_mask_columns<Whole>(row + col + k * kLanes, count);
  };
  Mask dropped[N] = {};   // whether the block before is
  for (int64_t i = 0; i < args.n; ++i) {
    double* row = rows + i * kWindowColumns;
    __builtin_prefetch(args.x + (i + kAhead) * args.x_stride + col * (int64_t)sizeof(T));
    const bool has_later = !args.first && i + 1 < args.window;
    const Vec power = broadcast(args.powers[has_later ? i + 1 : 0]);
    for (int k = 0; k < N; ++k) {
      const Vec x = token(i, k);
      if (args.out) {
        state[k] = i ? fma(gamma, state[k], x) : x;
        if constexpr (HasReset) {
          const Mask reset = reset_at(i, k);
          state[k] = select(reset, x, state[k]);
          dropped[k] |= reset;
        }
        Vec y = state[k];
        if (has_later) y = fma(power, load(row + kWindowColumns + k * kLanes), y);
        if constexpr (HasReset) y = select(dropped[k], state[k], y);
        T* out = (T*)(args.out + i * args.out_stride) + col + k * kLanes;
        if constexpr (Whole) store(out, y);
        else store_some(out, y, count);
      }
      store(row + k * kLanes, x);
    }
  }
  if (args.n < args.window) return;
  Vec sum[N] = {};
  for (int k = 0; k < N; ++k) dropped[k] = Mask{};   // whether this step of the block is, by a later one
  for (int64_t i = args.window - 1; i >= 0; --i) {
    const Vec power = broadcast(args.powers[args.window - 1 - i]);
    for (int k = 0; k < N; ++k) {
      double* at = rows + i * kWindowColumns + k * kLanes;
      const Vec x = load(at);
      const Vec longer = i == args.window - 1 ? x : fma(power, x, sum[k]);
      if constexpr (HasReset) {
        sum[k] = select(dropped[k], sum[k], longer);
        dropped[k] |= reset_at(i, k);
      } else {
        sum[k] = longer;
      }
      store(at, sum[k]);
    }
  }
}

template <class T, bool HasReset>
double all_columns(const ColumnWindowArgs& args) {
  Vec largest = {};
  if (args.n_columns == kWindowColumns) {
    window_block<T, true, HasReset, kVectors>(args, 0, kLanes, largest);
  } else {
    int64_t col = 0;
    for (; col + kLanes <= args.n_columns; col += kLanes) window_block<T, true, HasReset, 1>(args, col, kLanes, largest);
    if (col < args.n_columns) window_block<T, false, HasReset, 1>(args, col, (int)(args.n_columns - col), largest);
  }
  return largest_lane(largest);
}

template <class T>
double window_columns(const ColumnWindowArgs& args) {
  return args.reset ? all_columns<T, true>(args) : all_columns<T, false>(args);
}

}  // namespace

ColumnWindow* column_window(int32_t dtype) {
  return with_real_types(dtype, dtype, [](auto x, auto) -> ColumnWindow* { return window_columns<decltype(x)>; });
}

}  // namespace upsweep
