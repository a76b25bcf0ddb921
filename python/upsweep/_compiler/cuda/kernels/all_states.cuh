// Steps over all states: finite, infinite and NaN.
//
// combine() of common/steps.cuh needs products of gates that are numbers. Where they are not, or where a state is not,
// runs of steps are combined in this form, which neither overflows nor vanishes:
//
//   an infinite state     becomes +inf, -inf or NaN, as a table says; tables are combined by looking one up in the other
//   a finite state s      becomes a * 2^exponent * s + b. Some step of the run overflows if s is 2^(high + 1) or larger:
//                         s has become infinite then, and goes on as the table says. Some step rounds what is left of s
//                         to 0 if s is below 2^low: the run leaves b. Whichever happens first decides, so that no
//                         state does either where low > high
//   ... behind a step     that leaves something infinite or NaN: b, which goes on as the table says (kLost)
//   ... behind a gate     that is infinite, or with which sums overflow: what the sign of a * 2^exponent * s + b before
//                         that gate says (kSigned)
//   any state             becomes b where a step drops the state (kReset)
//
// Sums that cancel each other beyond the largest number are not found.
//
// is_nan(), is_finite() and advance() are those of cuda/common/steps.cuh, or of all_states_names.cuh in generated kernels.
// Called by: cuda/common/extended_step.cuh and extended_steps.cuh.

namespace upsweep {

typedef unsigned long long Word;

// Exponents of the states that a lane computes in float or double. A state and a product of gates of 2^p to 2^(p + 1)
// and 2^q to 2^(q + 1) overflow for sure if p + q > kHighest, and leave 0 if p + q < kLowest.
template <class Local>
struct StateRange;
template <>
struct StateRange<double> {
  static constexpr int kLowest = -1076, kHighest = 1023;
  static __device__ double round(double v) { return v; }
};
template <>
struct StateRange<float> {
  static constexpr int kLowest = -151, kHighest = 127;
  static __device__ double round(double v) { return fabs(v) > FLT_MAX ? static_cast<float>(v) : v; }
};

__device__ inline bool is_infinite(double v) { return fabs(v) > DBL_MAX; }
__device__ inline double double_of(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
__device__ inline uint64_t bits_of(double v) { return static_cast<uint64_t>(__double_as_longlong(v)); }

// The exponent of a finite number that is not 0.
__device__ inline int exponent_of(double v) {
  const int biased = __double2hiint(v) >> 20 & 0x7ff;
  return biased ? biased - 1023 : (__double2hiint(v * 0x1p54) >> 20 & 0x7ff) - (1023 + 54);
}
// The number between 1 and 2, with the sign, that a number that is neither subnormal nor 0 is a power of 2 of.
__device__ inline double significand_of(double v) {
  return double_of((bits_of(v) & 0x800fffffffffffffull) | 0x3ff0000000000000ull);
}

// What is not finite, in two bits.
constexpr uint32_t kPlus = 0, kMinus = 1, kNone = 2;
__device__ inline uint32_t class_of(double v) { return is_nan(v) ? kNone : v < 0 ? kMinus : kPlus; }
__device__ inline double number_of_class(uint32_t c) {
  return double_of(uint64_t(c == kPlus ? 0x7ff00000u : c == kMinus ? 0xfff00000u : 0x7ff80000u) << 32);
}

// What becomes of each class, from the lowest bits on.
constexpr uint32_t kSame = kPlus | kMinus << 2 | kNone << 4;
__device__ inline uint32_t look_up(uint32_t table, uint32_t c) { return table >> 2 * c & 3; }
__device__ inline uint32_t combine_tables(uint32_t first, uint32_t second) {
  return look_up(second, first & 3) | look_up(second, first >> 2 & 3) << 2 | kNone << 4;
}

struct ExtendedStep {
  static constexpr int kWords = 3;
  enum : uint32_t { kFinite, kLost, kSigned, kReset };

  double a, b;                     // a: 1 to 2, or -1 to -2; means nothing where low > high
  int16_t exponent, low, high;
  uint16_t form;                   // from the lowest bit: what becomes of kPlus, kMinus, kNone; of what is positive
                                   // and negative before an infinite gate; the kind

  __device__ uint32_t next(uint32_t c) const { return look_up(form, c); }
  __device__ uint32_t next_of(double s) const { return next(s < 0 ? kMinus : kPlus); }
  __device__ uint32_t kind() const { return form >> 10; }
  __device__ void set_form(uint32_t kind, uint32_t table, uint32_t above, uint32_t below) {
    form = static_cast<uint16_t>(table | above << 6 | below << 8 | kind << 10);
  }

  template <class Local>
  static __device__ ExtendedStep none() {
    ExtendedStep step = {1.0, -0.0, 0, StateRange<Local>::kLowest, StateRange<Local>::kHighest, 0};
    step.set_form(kFinite, kSame, 0, 0);
    return step;
  }
  static __device__ ExtendedStep reset_to(double b) {
    ExtendedStep step = {1.0, b, 0, 0, 0, 0};
    step.set_form(kReset, 0, 0, 0);
    return step;
  }

  // a * 2^exponent * s + b of a finite s, which is neither too large nor too small.
  __device__ double linear(double s) const {
    if (abs(exponent) < 1000) return fma(double_of(bits_of(a) + (static_cast<int64_t>(exponent) << 52)), s, b);
    return ldexp(a * ldexp(s, exponent / 2), exponent - exponent / 2) + b;
  }

  // What becomes of any state.
  template <class Local>
  __device__ double of(double s) const {
    if (kind() == kReset || is_nan(s)) return kind() == kReset ? b : s;
    if (is_infinite(s)) return number_of_class(next_of(s));
    double v = b;
    if (s != 0) {
      const int e = exponent_of(s);
      if (e > high) return number_of_class(next_of(s));
      if (e >= low && kind() != kLost) v = linear(s);
    }
    if (kind() == kSigned) return number_of_class(v > 0 ? form >> 6 & 3 : v < 0 ? form >> 8 & 3 : kNone);
    return StateRange<Local>::round(v);
  }
};
static_assert(sizeof(ExtendedStep) == 8 * ExtendedStep::kWords);

__device__ inline void pack(const ExtendedStep& step, Word (&w)[ExtendedStep::kWords]) {
  w[0] = bits_of(step.a);
  w[1] = is_nan(step.b) ? 0x7ff8000000000000ull : bits_of(step.b);
  w[2] = uint64_t(step.form) << 48 | uint64_t(uint16_t(step.high)) << 32 | uint64_t(uint16_t(step.low)) << 16 |
         uint16_t(step.exponent);
}
__device__ inline ExtendedStep unpack_extended(const Word (&w)[ExtendedStep::kWords]) {
  return {double_of(w[0]),        double_of(w[1]),          int16_t(w[2] & 0xffff), int16_t(w[2] >> 16 & 0xffff),
          int16_t(w[2] >> 32 & 0xffff), uint16_t(w[2] >> 48)};
}

// `first`, then `second`.
template <class Local>
__device__ inline ExtendedStep combine(const ExtendedStep& first, const ExtendedStep& second) {
  if (second.kind() == ExtendedStep::kReset) return second;
  ExtendedStep both = first;
  if (first.kind() == ExtendedStep::kReset) {
    both.b = second.of<Local>(first.b);
    return both;
  }
  const uint32_t table = combine_tables(first.form, second.form);
  if (first.kind() != ExtendedStep::kFinite) {
    if (first.kind() == ExtendedStep::kLost) both.b = number_of_class(second.next(class_of(first.b)));
    both.set_form(first.kind(), table, second.next(first.form >> 6 & 3), second.next(first.form >> 8 & 3));
    return both;
  }
  // Where what the first ones sum up overflows in the second ones, the sign before them decides.
  const int size = first.b == 0 ? second.low - 1 : exponent_of(first.b);
  bool overflows = first.b != 0 && size > second.high;
  uint32_t kind = second.kind();
  if (kind == ExtendedStep::kLost || first.b == 0 || size < second.low) {
    both.b = second.b;
  } else if (!overflows) {
    both.b = StateRange<Local>::round(second.linear(first.b));
    overflows = !is_finite(both.b);
  }
  if (overflows) {
    kind = ExtendedStep::kSigned;
    both.b = first.b;
  }
  if (first.low <= first.high) {
    const int low = second.low - first.exponent, high = max(int(second.high), size) - first.exponent;
    both.low = static_cast<int16_t>(min(max(int(first.low), low), first.high + 1));
    both.high = static_cast<int16_t>(max(min(int(first.high), high), first.low - 1));
    if (both.low > both.high) {
      both.exponent = 0;
    } else if (!overflows) {
      both.a = first.a * second.a;
      both.exponent = static_cast<int16_t>(first.exponent + second.exponent);
      if (fabs(both.a) >= 2) {
        both.a *= 0.5;
        both.exponent += 1;
      }
    }
  }
  both.set_form(kind, table, overflows ? second.next(kPlus) : second.form >> 6 & 3,
                overflows ? second.next(kMinus) : second.form >> 8 & 3);
  return both;
}

// The same of a lane's elements, one after the other.
template <class Local>
struct ExtendedRun {
  using Range = StateRange<Local>;
  // What becomes of no state at all, of infinite ones, and of positive and negative ones behind an infinite gate.
  Local b = static_cast<Local>(-0.0), plus = static_cast<Local>(number_of_class(kPlus)),
        minus = static_cast<Local>(number_of_class(kMinus)), above = 0, below = 0;
  double a = 1.0;
  int exponent = 0, low = Range::kLowest, high = Range::kHighest;
  uint32_t kind = ExtendedStep::kFinite;

  __device__ void begin_with(Local state) {
    kind = ExtendedStep::kReset;
    b = state;
  }
  __device__ void add(Local gate, Local x) {
    add(gate, x, [=](Local s) { return advance(gate, s, x); });
  }
  // step: what becomes of a state, gate * s + x in some order of operations.
  template <class Function>
  __device__ void add(Local gate, Local x, Function step) {
    plus = step(plus);
    minus = step(minus);
    if (kind == ExtendedStep::kSigned) {
      above = step(above);
      below = step(below);
      return;
    }
    if (kind == ExtendedStep::kFinite && is_infinite(gate)) {
      kind = ExtendedStep::kSigned;
      above = step(Local(1));
      below = step(Local(-1));
      return;
    }
    const Local next = step(b);
    if (kind == ExtendedStep::kFinite && !is_finite(double(next)) && is_finite(double(gate)) && is_finite(double(x))) {
      // An overflow: the sign before it decides.
      kind = ExtendedStep::kSigned;
      above = step(static_cast<Local>(number_of_class(kPlus)));
      below = step(static_cast<Local>(number_of_class(kMinus)));
      return;
    }
    b = next;
    if (kind != ExtendedStep::kFinite) return;
    if (is_finite(double(b))) multiply(gate);
    else kind = ExtendedStep::kLost;
  }
  __device__ void multiply(double gate) {
    if (sizeof(Local) == 8 && gate != 0) {
      // The product of two numbers between 2^-1074 and 2^1024 may be none.
      const int scale = fabs(gate) > 0x1p1000 ? -100 : fabs(gate) < 0x1p-900 ? 200 : 0;
      if (scale) {
        gate *= scale > 0 ? 0x1p200 : 0x1p-100;
        exponent -= scale;
      }
    }
    a *= gate;
    if (a == 0) {
      a = 1.0;
      low = high + 1;
      return;
    }
    exponent += exponent_of(a);
    a = significand_of(a);
    high = max(min(high, Range::kHighest - exponent), low - 1);
    low = min(max(low, Range::kLowest - exponent), high + 1);
  }
  __device__ ExtendedStep step() const {
    ExtendedStep result = {a,
                           double(b),
                           static_cast<int16_t>(low <= high ? exponent : 0),
                           static_cast<int16_t>(low),
                           static_cast<int16_t>(high),
                           0};
    result.set_form(kind, class_of(plus) | class_of(minus) << 2 | kNone << 4, class_of(above), class_of(below));
    return result;
  }
};

__device__ inline ExtendedStep shuffle(const ExtendedStep& step, int lane) {
  Word w[ExtendedStep::kWords];
  pack(step, w);
#pragma unroll
  for (Word& word : w) word = __shfl_sync(0xffffffffu, word, lane);
  return unpack_extended(w);
}
__device__ inline ExtendedStep shuffle_up(const ExtendedStep& step, int by, int width) {
  Word w[ExtendedStep::kWords];
  pack(step, w);
#pragma unroll
  for (Word& word : w) word = __shfl_up_sync(0xffffffffu, word, by, width);
  return unpack_extended(w);
}

// What the steps of a group of `width` lanes do one after the other: of the lanes before this one, and of all. reach:
// lanes beyond which no state goes.
template <class Local>
__device__ __noinline__ ExtendedStep scan_of_extended(ExtendedStep step, int lane, int base, int width, int reach,
                                                      ExtendedStep* all) {
#pragma unroll 1
  for (int by = 1; by < width && by < reach; by *= 2) {
    const ExtendedStep before = shuffle_up(step, by, width);
    if (lane >= by) step = combine<Local>(before, step);
  }
  *all = shuffle(step, base + width - 1);
  const ExtendedStep before = shuffle_up(step, 1, width);
  return lane ? before : ExtendedStep::none<Local>();
}

// What the first `warp` of n steps do one after the other, and what all do; by a warp, n is at most 32.
template <class Local>
__device__ __noinline__ ExtendedStep scan_of_warps(const ExtendedStep* steps, int n, int warp, int lane,
                                                   ExtendedStep* all) {
  const ExtendedStep step = lane < n ? steps[lane] : ExtendedStep::none<Local>();
  const ExtendedStep before = scan_of_extended<Local>(step, lane, 0, 32, n, all);
  *all = combine<Local>(shuffle(before, n - 1), steps[n - 1]);
  return shuffle(before, warp);
}

// The same of a warp's tables.
__device__ inline uint32_t scan_of_tables(uint32_t table, int lane, uint32_t* all) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffffu, table, by, 32);
    if (lane >= by) table = combine_tables(before, table);
  }
  *all = __shfl_sync(0xffffffffu, table, 31);
  const uint32_t before = __shfl_up_sync(0xffffffffu, table, 1, 32);
  return lane ? before : kSame;
}

}  // namespace upsweep
