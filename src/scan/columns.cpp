// COLUMNS: a scan along an axis whose neighbours lie contiguous in memory.
//
//   y[t, col] = a[t, col] * y[t-1, col] + x[t, col]
//
// Bytes an element as in LINES; one multiply-add for kLanes of them. The vector runs across the columns and
// the loop walks in time, so every column is the plain loop itself: no product of gates, nothing to repair. From the L1
// with AVX2, float32 takes 0.4 cycles an element on a Zen 4, 0.6 with gates, of which conversions are 0.35: memory is the
// limit.
//
// kSteps steps are taken for the columns of a cache line before the next ones, which keeps their states in registers
// meanwhile; more steps would put too many lines of a power-of-two pitch into one set of the L1.
//
// Called by the drivers (scan/driver.cpp) for a strip of columns over all steps or a block of them.

#include <algorithm>
#include <cstring>

#include "common/real_types.hpp"
#include "common/tuning.hpp"
#include "scan/lines.hpp"

namespace upsweep {
namespace {

using namespace scan_tuning;

constexpr int kSteps = 4;
constexpr int kRun = 64;                   // steps between two looks at how large a state may be
constexpr int kCacheLine = 64;             // bytes

// Vectors of columns that go together: they fill a cache line, which is written at once. Processors combine streaming
// stores to a line only while few other lines are written in between, and 16 bytes at a time take three times as long.
template <class T>
constexpr int kAbreast = kCacheLine / (kLanes * sizeof(T));

template <class V, int... I>
inline auto join(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}
// Writes vectors that lie next to each other past the cache, a register at a time.
template <int N, class V>
inline void stream_joined(char* target, const V* v) {
  constexpr int kRegister = kLanes * 8;
  if constexpr (sizeof(V) == kRegister) {
    for (int k = 0; k < N; ++k) store_bytes(target + k * kRegister, v[k], Store::kStreamVector);
  } else {
    constexpr int kElements = sizeof(V) / sizeof(v[0][0]);
    decltype(join(v[0], v[0], std::make_integer_sequence<int, 2 * kElements>{})) pairs[N / 2];
    for (int k = 0; k < N / 2; ++k)
      pairs[k] = join(v[2 * k], v[2 * k + 1], std::make_integer_sequence<int, 2 * kElements>{});
    stream_joined<N / 2>(target, pairs);
  }
}
template <class T>
inline void stream_line(T* target, const Vec* v) {
  typename Packed<T>::type packed[kAbreast<T>];
  for (int k = 0; k < kAbreast<T>; ++k) packed[k] = pack<T>(v[k]);
  stream_joined<kAbreast<T>>((char*)target, packed);
}

// Whether some of kSteps rows lie almost a multiple of 4 KiB apart. Zen 3 does not combine streaming stores that take turns
// between such rows: 128 MiB in rows 32 KiB apart take 48 ms on one thread (rows of 32,000 bytes: 9), through the cache
// 15, and through a buffer 10.
inline bool rows_alias(int64_t stride) {
  constexpr int64_t kPage = 4096, kNear = 256;
  for (int64_t k = 1; k < kSteps; ++k) {
    const int64_t apart = std::llabs(k * stride);
    if (apart >= kPage - kNear && (apart + kNear) % kPage < 2 * kNear) return true;
  }
  return false;
}

// How the rows of an output go past the cache. Of long rows whole lines are written at once, and the first and the last
// one, which hold a part of another row or piece, through the cache. Rows are collected in a buffer where they alias or
// lines begin at other columns in each, and short ones that join each other, since most of their lines would be such ones.
enum class Rows { kCached, kStreamed, kCollected };

inline Rows how_to_store(const ColumnArgs& args, int64_t item) {
  const int64_t row = args.n_columns * item, stride = args.out_stride;
  if (!args.stream || args.out == nullptr) return Rows::kCached;
  const bool joined = stride == row, direct = stride % kCacheLine == 0 && !rows_alias(stride);
  if (joined && direct && (uint64_t)args.out % kCacheLine == 0) return Rows::kStreamed;
  if (joined && row < kMaxCollectedRow) return Rows::kCollected;
  if (row < kMinStreamRow) return Rows::kCached;
  return direct ? Rows::kStreamed : Rows::kCollected;
}

// Copies bytes past the cache: whole lines, and the parts of lines at both ends through it.
inline void stream_bytes(char* target, const char* source, int64_t n) {
  const int64_t head = std::min<int64_t>(-(uint64_t)target % kCacheLine, n);
  std::memcpy(target, source, head);
  int64_t at = head;
  for (const int64_t end = head + (n - head) / kCacheLine * kCacheLine; at < end; at += sizeof(Vec))
    store_bytes(target + at, load_bytes<Vec>(source + at), Store::kStreamVector);
  std::memcpy(target + at, source + at, n - at);
}

template <class T, class G, bool Gated, bool HasReset>
struct Walker {
  ColumnArgs args;

  template <bool Whole>
  inline __attribute__((always_inline)) Vec token(int64_t step, int64_t col, int count) const {
    return load_columns<Whole>((const T*)(args.x + step * args.x_stride) + col, count);
  }
  template <bool Whole>
  inline __attribute__((always_inline)) Vec gate(int64_t step, int64_t col, int count) const {
    const G* row = (const G*)(args.gates + step * args.gates_stride);
    return args.gates_shared ? broadcast(to_double(row[0])) : load_columns<Whole>(row + col, count);
  }
  template <bool Whole>
  inline __attribute__((always_inline)) Mask dropped(int64_t step, int64_t col, int count) const {
    const uint8_t* row = args.reset + step * args.reset_stride;
    return args.reset_shared ? (Mask)((row[0] ? -1 : 0) - Mask{}) : load_mask_columns<Whole>(row + col, count);
  }
  template <bool Whole>
  inline __attribute__((always_inline)) void write(int64_t step, int64_t col, int count, Vec v) const {
    T* target = (T*)(args.out + step * args.out_stride) + col;
    if constexpr (Whole) store(target, v);
    else store_some(target, v, count);
  }

  // One step: the state after it is left in `state`, and what is written is returned.
  template <bool Whole, bool Exclusive>
  inline __attribute__((always_inline)) Vec advance(int64_t step, int64_t col, int count, Vec& state, Vec gamma) const {
    Vec x = token<Whole>(step, col, count);
    if constexpr (HasReset) x = as_operand(x);
    Vec before = state;
    state = fma(Gated ? gate<Whole>(step, col, count) : gamma, state, x);
    if constexpr (HasReset) {
      const Mask drop = dropped<Whole>(step, col, count);
      state = select(drop, x, state);
      before = select(drop, Vec{}, before);
    }
    return Exclusive ? before : state;
  }

  // The first step of all has no state before it, and its gate is not read.
  template <bool Whole>
  inline void start(int64_t col, int count) const {
    const Vec x = as_operand(token<Whole>(0, col, count));
    store_some(args.carry + col, x, count);
    if (args.out) write<Whole>(0, col, count, args.exclusive ? Vec{} : x);
  }

  // How far to ask ahead: the next steps, and at least kAhead bytes where rows are short.
  inline int64_t steps_ahead() const {
    const int64_t row = args.n_columns * (int64_t)sizeof(T);
    return row >= kAhead / kSteps ? kSteps : kAhead / row;
  }

  // The steps after these: a row of the next step lies on another page, where no hardware prefetcher looks. x is a
  // cache line at most, float64 gates of narrower x are several.
  template <int N, int Columns>
  inline __attribute__((always_inline)) void prefetch(int64_t step, int64_t col) const {
    for (int k = 0; k < N; ++k) {
      __builtin_prefetch(args.x + (step + k) * args.x_stride + col * (int64_t)sizeof(T));
      if (Gated && !args.gates_shared)
        for (int byte = 0; byte < Columns * (int)sizeof(G); byte += kCacheLine)
          __builtin_prefetch(args.gates + (step + k) * args.gates_stride + col * (int64_t)sizeof(G) + byte);
    }
  }

  // The first N steps of `count` columns, fewer than a vector: a call, with a copy of the arguments (see walk).
  template <int N, Written What>
  [[gnu::noinline]] static void advance_some(const ColumnArgs args, int64_t col, int count) {
    const Walker walker{args};
    const Vec gamma = Gated ? Vec{} : load_some(args.gamma + col, count);
    Vec state = load_some(args.carry + col, count);
    for (int n = 0; n < N; ++n) {
      const Vec y = walker.template advance<false, What == Written::kStatesBefore>(n, col, count, state, gamma);
      if constexpr (What != Written::kNothing) walker.template write<false>(n, col, count, y);
    }
    store_some(args.carry + col, state, count);
  }

  // The first N steps of some whole vectors of columns; with kStreamVector their outputs are a cache line.
  template <int N, int Abreast, Store How, Written What>
  inline __attribute__((always_inline)) void advance_together(int64_t col, int64_t ahead) const {
    Vec gamma[Abreast], state[Abreast], y[Abreast];
    for (int k = 0; k < Abreast; ++k) {
      gamma[k] = Gated ? Vec{} : load(args.gamma + col + k * kLanes);
      state[k] = load(args.carry + col + k * kLanes);
    }
    prefetch<N, Abreast * kLanes>(ahead, col);
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < Abreast; ++k)
        y[k] = advance<true, What == Written::kStatesBefore>(n, col + k * kLanes, kLanes, state[k], gamma[k]);
      if constexpr (What == Written::kNothing) continue;
      if constexpr (How == Store::kStreamVector) stream_line((T*)(args.out + n * args.out_stride) + col, y);
      else
        for (int k = 0; k < Abreast; ++k) write<true>(n, col + k * kLanes, kLanes, y[k]);
    }
    for (int k = 0; k < Abreast; ++k) store(args.carry + col + k * kLanes, state[k]);
  }

  // The first N steps of all columns.
  template <int N, Store How, Written What>
  inline __attribute__((always_inline)) void advance_all(int64_t ahead) const {
    constexpr int kVectors = kAbreast<T>;
    int64_t col = 0;
    // Through the cache, to the first whole line or behind the last one.
    auto advance_to = [&](int64_t end) __attribute__((always_inline)) {
      for (; col + kLanes <= end; col += kLanes) advance_together<N, 1, Store::kCached, What>(col, ahead);
      if (col < end) advance_some<N, What>(args, col, (int)(end - col));
      col = end;
    };
    if constexpr (How == Store::kStreamVector) advance_to(-(uint64_t)args.out % kCacheLine / sizeof(T));
    if constexpr (N > 1)
      for (; col + kVectors * kLanes <= args.n_columns; col += kVectors * kLanes)
        advance_together<N, kVectors, How, What>(col, ahead);
    advance_to(args.n_columns);
  }

  // The last steps, fewer than kSteps.
  template <Written What>
  [[gnu::noinline]] static void walk_last(const ColumnArgs args, int64_t ahead) {
    for (Walker rest{args}; rest.args.n_steps > 0; rest.template skip<What>(1))
      rest.template advance_all<1, Store::kCached, What>(ahead);
  }
  // Makes step n the first.
  template <Written What>
  inline __attribute__((always_inline)) void skip(int64_t n) {
    args.x += n * args.x_stride, args.n_steps -= n;
    if constexpr (Gated) args.gates += n * args.gates_stride;
    if constexpr (HasReset) args.reset += n * args.reset_stride;
    if constexpr (What != Written::kNothing) args.out += n * args.out_stride;
  }

  // The steps from `step` on. All is inlined here, into loops over a local copy of the arguments: a store to the output
  // could change any other, which would be read and multiplied again for every vector.
  template <Store How, Written What>
  [[gnu::noinline]] void walk(int64_t step) const {
    Walker rest = *this;
    const int64_t ahead = steps_ahead();
    rest.template skip<What>(step);
    for (; rest.args.n_steps >= kSteps; rest.template skip<What>(kSteps))
      rest.template advance_all<kSteps, How, What>(ahead);
    if (rest.args.n_steps > 0) walk_last<What>(rest.args, ahead);
  }

  template <Written What>
  void walk(int64_t step) const {
    if (how_to_store(args, sizeof(T)) == Rows::kStreamed) walk<Store::kStreamVector, What>(step);
    else walk<Store::kCached, What>(step);
  }

  void run() const {
    if (how_to_store(args, sizeof(T)) == Rows::kCollected) return run_collected();
    int64_t step = 0;
    if (args.first && args.n_steps > 0) {
      const int64_t whole = args.n_columns - args.n_columns % kLanes;
      for (int64_t col = 0; col < whole; col += kLanes) start<true>(col, kLanes);
      if (whole < args.n_columns) start<false>(whole, (int)(args.n_columns - whole));
      step = 1;
    }
    if (!args.out) return walk<Store::kCached, Written::kNothing>(step);
    return args.exclusive ? walk<Written::kStatesBefore>(step) : walk<Written::kStates>(step);
  }

  // A part of some rows at a time into a buffer that stays in the first cache, at the same places of lines, and from there
  // row after row.
  void run_collected() const {
    constexpr int64_t kItem = sizeof(T), kMostColumns = kMaxCollectedRow / kItem;
    alignas(kCacheLine) char buffer[kSteps * (kMaxCollectedRow + 2 * kCacheLine)];
    const int64_t stride = args.out_stride, n_columns = std::min(args.n_columns, kMostColumns), row = n_columns * kItem;
    const bool joined = stride == row;
    const int64_t pitch = joined ? row : (row + kCacheLine - 1) / kCacheLine * kCacheLine + (uint64_t)stride % kCacheLine;
    const int64_t n_steps = joined ? std::max<int64_t>(kCollectedBytes / row / kSteps, 1) * kSteps : kSteps;
    for (int64_t step = 0; step < args.n_steps; step += n_steps) {
      for (int64_t col = 0; col < args.n_columns; col += n_columns) {
        char* const target = args.out + step * stride + col * kItem;
        ColumnArgs part = args;
        part.x += step * args.x_stride + col * kItem;
        if (Gated) part.gates += step * args.gates_stride + (args.gates_shared ? 0 : col * (int64_t)sizeof(G));
        if (HasReset) part.reset += step * args.reset_stride + (args.reset_shared ? 0 : col);
        part.gamma += col, part.carry += col;
        part.out = buffer + (uint64_t)target % kCacheLine;
        part.out_stride = pitch;
        part.n_steps = std::min(n_steps, args.n_steps - step);
        part.n_columns = std::min(n_columns, args.n_columns - col);
        part.first = args.first && step == 0;
        part.stream = false;
        Walker{part}.run();
        for (int64_t n = 0; n < (joined ? 1 : part.n_steps); ++n)
          stream_bytes(target + n * stride, part.out + n * pitch, part.n_columns * kItem * (joined ? part.n_steps : 1));
      }
    }
  }

  // (multiplier, value) of every column; the loop is the scan's, with a product beside the state. N vectors of
  // columns go together: one alone would wait for its own multiply-add at every step. What may overflow on the way
  // is bounded from what stands after each run of kRun steps, the largest gate, and, of float64, the largest token.
  template <bool Whole, int N>
  void reduce_columns(int64_t col, int count, Reduced* lanes) const {
    // The first columns ask for whole rows, so that memory is read in its order; the others find them in the cache.
    const int64_t row_bytes = col ? 0 : args.n_columns * (int64_t)sizeof(T), ahead = steps_ahead();
    const int64_t gate_bytes = Gated && !args.gates_shared ? row_bytes / (int64_t)sizeof(T) * (int64_t)sizeof(G) : 0;
    Vec gamma[N], value[N], product[N], smallest[N], largest[N], largest_token[N];
    Vec most_product[N], most_value[N];
    Mask vanished[N];   // a product too small for a number: how far it grows from there is not known
    for (int k = 0; k < N; ++k) {
      gamma[k] = Gated ? Vec{} : load_columns<Whole>(args.gamma + col + k * kLanes, count);
      value[k] = largest[k] = largest_token[k] = most_value[k] = Vec{};
      product[k] = most_product[k] = broadcast(1.0), smallest[k] = broadcast(__builtin_inf()), vanished[k] = Mask{};
    }
    auto advance = [&](int64_t step) __attribute__((always_inline)) {
      for (int64_t byte = 0; byte < row_bytes; byte += kCacheLine)
        __builtin_prefetch(args.x + (step + ahead) * args.x_stride + byte, 0, 2);
      for (int64_t byte = 0; byte < gate_bytes; byte += kCacheLine)
        __builtin_prefetch(args.gates + (step + ahead) * args.gates_stride + byte, 0, 2);
      for (int k = 0; k < N; ++k) {
        const int64_t at = col + k * kLanes;
        const Vec x = as_operand(token<Whole>(step, at, count));
        Vec a = Gated ? gate<Whole>(step, at, count) : gamma[k];
        Vec next = step ? fma(a, value[k], x) : x;   // no state yet: whatever the gate is, it multiplies nothing
        if constexpr (HasReset) {
          const Mask drop = dropped<Whole>(step, at, count);
          next = select(drop, x, next);
          a = select(drop, Vec{}, a);
        }
        value[k] = next;
        if constexpr (sizeof(T) == 8) largest_token[k] = max(abs(x), largest_token[k]);
        if constexpr (Gated || HasReset) {
          const Vec size = abs(a);
          product[k] = product[k] * a;
          smallest[k] = min(size, smallest[k]);
          largest[k] = max(size, largest[k]);
        }
      }
    };
    for (int64_t start = 0; start < args.n_steps; start += kRun) {
      const int64_t end = start + kRun < args.n_steps ? start + kRun : args.n_steps;
      for (int64_t step = start; step < end; ++step) advance(step);
      for (int k = 0; k < N; ++k) {
        most_value[k] = max(abs(value[k]), most_value[k]);
        if constexpr (Gated) {
          const Vec size = abs(product[k]);
          most_product[k] = max(size, most_product[k]);
          vanished[k] |= (Mask)(size < kSmallest) & (Mask)(smallest[k] != 0.0);
        }
      }
    }
    double base = 1.0, power = 1.0;   // of the lane before: gamma is most often the same in all columns
    for (int k = 0; k < N; ++k)
      for (int lane = 0; lane < count; ++lane) {
        Reduced& result = lanes[col + k * kLanes + lane];
        const double same = gamma[k][lane];   // bit for bit: of -0 another power than of 0
        if (!Gated && std::memcmp(&same, &base, sizeof(base)) != 0)
          base = same, power = __builtin_pow(base, (double)args.n_steps);
        const double gate = Gated ? largest[k][lane] : __builtin_fabs(gamma[k][lane]);
        const double within = gate <= 1.0 ? 1.0 : __builtin_pow(gate, kRun);
        const double grows = Gated ? within * most_product[k][lane] : gate <= 1.0 ? 1.0 : __builtin_fabs(power);
        const double token = sizeof(T) == 8 ? largest_token[k][lane] : kNarrowToken;
        const double reaches = within * (most_value[k][lane] + kRun * token);
        if constexpr (Gated || HasReset) {
          const bool in_order = vanished[k][lane] && gate > 1.0;
          result = {product[k][lane], value[k][lane], smallest[k][lane], largest[k][lane], grows, reaches, in_order};
        } else {
          result = {power, value[k][lane], gate, gate, grows, reaches, false};
        }
      }
  }

  void reduce(Reduced* lanes) const {
    constexpr int kTogether = 4;
    int64_t col = 0;
    for (; col + kTogether * kLanes <= args.n_columns; col += kTogether * kLanes)
      reduce_columns<true, kTogether>(col, kLanes, lanes);
    for (; col + kLanes <= args.n_columns; col += kLanes) reduce_columns<true, 1>(col, kLanes, lanes);
    if (col < args.n_columns) reduce_columns<false, 1>(col, (int)(args.n_columns - col), lanes);
  }
};

template <class T, class G, bool Gated, bool HasReset>
Walker<T, G, Gated, HasReset> walker(const ColumnArgs& args) {
  return {args};
}

template <class T, class G>
void scan(const ColumnArgs& args) {
  if (args.gates)
    return args.reset ? walker<T, G, true, true>(args).run() : walker<T, G, true, false>(args).run();
  return args.reset ? walker<T, T, false, true>(args).run() : walker<T, T, false, false>(args).run();
}
template <class T, class G>
void reduce(const ColumnArgs& args, Reduced* lanes) {
  if (args.gates)
    return args.reset ? walker<T, G, true, true>(args).reduce(lanes) : walker<T, G, true, false>(args).reduce(lanes);
  return args.reset ? walker<T, T, false, true>(args).reduce(lanes) : walker<T, T, false, false>(args).reduce(lanes);
}

}  // namespace

ColumnKernels column_kernels(int32_t dtype, int32_t gate_dtype) {
  return with_real_types(dtype, gate_dtype, [](auto x, auto gate) -> ColumnKernels {
    return {scan<decltype(x), decltype(gate)>, reduce<decltype(x), decltype(gate)>};
  });
}

}  // namespace upsweep
