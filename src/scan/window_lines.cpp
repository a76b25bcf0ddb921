// WINDOW, along contiguous memory: at most K elements of a decaying sum.
//
//   y[t] = sum over k < min(K, t + 1) of gamma^k * x[t-k]
//
// K is m vectors and a rest. First, sums of kLanes neighbours by doubling, u2[t] = x[t] + gamma * x[t-1],
// u4[t] = u2[t] + gamma^2 * u2[t-2], ...: a shift and a multiply-add each. Then every lane is a line of its own, whose
// windows are of m such sums; blocks of m vectors and two scans (van Herk's, as in scan/window.cpp) make y of them:
//
//   y[i] = S[i] + gamma^((i+1) * kLanes) * R[i],   S[i] = u[i] + gamma^kLanes * S[i-1],
//   R[i] = sum over j > i of gamma^((m-1-j) * kLanes) * u'[j]  +  gamma^((m-1-i) * kLanes) * rest'[i]
//
// with u' and rest', the sums of as many neighbours as the rest has, of the block before.
//
// Bytes an element: x read once, y written once; of a block, what the next one needs stays in the cache. Arithmetic for
// kLanes elements: log2(kLanes) shifts and multiply-adds, three multiply-adds, and as many shifts as the rest has bits.
//
// A NaN or an infinity is in every window that it should be in, and where a power of gamma vanished in others of its
// two blocks: then the caller computes a block again that did not come out finite.
//
// Called by scan/window.cpp, a block at a time.

#include "scan/lines.hpp"
#include "common/real_types.hpp"

namespace upsweep {
namespace {

constexpr int kTogether = 4;   // vectors of a block that wait once for the sum of the later ones
constexpr int kStages = kLanes == 8 ? 3 : kLanes == 4 ? 2 : 1;

// Sums of neighbours that end at each lane of a vector; what the next vector needs of this one is kept.
template <bool Reverse, bool HasRest>
class Neighbours {
 public:
  Vec whole, rest;   // of kLanes elements, and of as many as the rest has

  Neighbours(double gamma, int n_rest) : n_rest(n_rest) {
    for (Vec& power : powers) power = broadcast(gamma), gamma *= gamma;
  }
  inline void advance(Vec x) {
    whole = x;
    if constexpr (HasRest) rest = n_rest & 1 ? x : Vec{};
    grow<0>();
    if constexpr (kStages > 1) grow<1>();
    if constexpr (kStages > 2) grow<2>();
  }

 private:
  const int n_rest;
  Vec powers[kStages];   // gamma, gamma^2, gamma^4
  Vec wholes[kStages] = {}, rests[kStages] = {};

  // Twice as many elements; the rest's next bit puts as many in front of those that it has.
  template <int Stage>
  inline void grow() {
    const Vec wider = fma(powers[Stage], shift<1 << Stage, Reverse>(whole, wholes[Stage]), whole);
    wholes[Stage] = whole;
    whole = wider;
    if constexpr (HasRest && Stage + 1 < kStages) {
      const Vec fewer = rest;
      if (n_rest & 2 << Stage) rest = fma(powers[Stage + 1], shift<2 << Stage, Reverse>(fewer, rests[Stage]), wider);
      rests[Stage] = fewer;
    }
  }
};

// R of the block before, over its sums, from the last vector to the first.
template <bool HasRest>
inline void sum_later(const WindowArgs& args) {
  const double* powers = args.powers;   // of vector i counted from the last one, powers[i]
  Vec sum = {};
  auto together = [&]<int N>(int64_t from_last, std::integral_constant<int, N>) __attribute__((always_inline)) {
    double* last = args.sums + (args.n_vectors - 1 - from_last) * kLanes;
    Vec partial[N];
    for (int k = 0; k < N; ++k) {
      const Vec term = load(last - k * kLanes), weight = broadcast(powers[from_last + k]);
      partial[k] = k ? fma(weight, term, partial[k - 1]) : weight * term;
    }
    for (int k = 0; k < N; ++k) {
      Vec later = k ? sum + partial[k - 1] : sum;
      if constexpr (HasRest)
        later = fma(broadcast(powers[from_last + k]), load(args.rests + (last - args.sums) - k * kLanes), later);
      store(last - k * kLanes, later);
    }
    sum = sum + partial[N - 1];
  };
  int64_t from_last = 0;
  for (; from_last + kTogether <= args.n_vectors; from_last += kTogether)
    together(from_last, std::integral_constant<int, kTogether>{});
  for (; from_last < args.n_vectors; ++from_last) together(from_last, std::integral_constant<int, 1>{});
}

// Without Writes only what the next block needs of this one is left for it.
template <class T, bool Reverse, Store How, bool HasRest, bool Writes>
WindowResult window_block_as(const WindowArgs& args_) {
  const WindowArgs args = args_;   // a copy: no store to out can change it
  const T* x = (const T*)args.x;
  T* out = (T*)args.out;
  Neighbours<Reverse, HasRest> neighbours(args.gamma, args.n_rest);
  if (!args.first) neighbours.advance(load(vector_at<Reverse>(x, -kLanes)));
  if (Writes && !args.first) sum_later<HasRest>(args);
  const Vec step_power = broadcast(args.powers[1]);
  Vec state = {}, largest = {};
  Bits check = {};
  auto advance = [&](int64_t i, Vec token) __attribute__((always_inline)) {
    double* sums = args.sums + i * kLanes;
    if constexpr (kMayOverflow<T>) largest = max(select((Mask)(abs(token) < __builtin_inf()), abs(token), Vec{}), largest);
    neighbours.advance(token);
    Vec y = {};
    if constexpr (Writes) {
      state = i ? fma(step_power, state, neighbours.whole) : neighbours.whole;
      y = args.first ? state : fma(broadcast(args.powers[i + 1]), load(sums), state);
      check |= (Bits)(y * broadcast(0.0));
    }
    store(sums, neighbours.whole);
    if constexpr (HasRest) store(args.rests + i * kLanes, neighbours.rest);
    return y;
  };
  const int64_t n_whole = args.n / kLanes * kLanes;
  for (int64_t step = 0; step < n_whole; step += kLanes) {
    const Vec y = advance(step / kLanes, load(vector_at<Reverse>(x, step)));
    if constexpr (Writes) store(vector_at<Reverse>(out, step), y, How);
  }
  if (const int rest = (int)(args.n - n_whole)) {
    const Vec y = advance(n_whole / kLanes, load_first<Reverse>(x, n_whole, rest));
    if constexpr (Writes) store_first<Reverse>(out, n_whole, y, rest);
  }
  return {!any((Mask)((Vec)check != (Vec)check)), largest_lane(largest)};
}

template <class T, bool Reverse, bool HasRest>
WindowResult window_block_as(const WindowArgs& args) {
  if (!args.out) return window_block_as<T, Reverse, Store::kCached, HasRest, false>(args);
  switch (how_to_store<T, Reverse>(args.out, args.stream)) {
    case Store::kStreamVector: return window_block_as<T, Reverse, Store::kStreamVector, HasRest, true>(args);
    case Store::kStream16: return window_block_as<T, Reverse, Store::kStream16, HasRest, true>(args);
    default: return window_block_as<T, Reverse, Store::kCached, HasRest, true>(args);
  }
}

template <class T, bool Reverse>
WindowResult window_block(const WindowArgs& args) {
  return args.n_rest ? window_block_as<T, Reverse, true>(args) : window_block_as<T, Reverse, false>(args);
}

}  // namespace

LineWindow* line_window(int32_t dtype, bool reverse) {
  return with_real_types(dtype, dtype, [&](auto x, auto) -> LineWindow* {
    return reverse ? window_block<decltype(x), true> : window_block<decltype(x), false>;
  });
}

}  // namespace upsweep
