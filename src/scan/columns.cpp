// COLUMNS: a scan along an axis whose neighbours lie contiguous in memory.
//
//   y[t, col] = a[t, col] * y[t-1, col] + x[t, col]
//
// Bytes an element as in LINES; one multiply-add for kLanes of them. The vector runs across the columns and
// the loop walks in time, so every column is the plain loop itself: no product of gates, nothing to repair.
// kSteps steps are taken for the columns of a cache line before the next ones, which keeps their states in registers
// meanwhile; more steps would put too many lines of a power-of-two pitch into one set of the L1.
//
// Called by the drivers (scan/driver.cpp) for a strip of columns over all steps or a block of them.

#include "common/real_types.hpp"
#include "scan/scan.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

constexpr int kSteps = 4;
constexpr int kRun = 64;                   // steps between two looks at how large a state may be
constexpr int64_t kAhead = 4096;           // bytes
constexpr uint64_t kMinStreamRow = 1024;   // bytes
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

// Past the cache by lines (kStreamVector) where the lines of all steps begin at the same columns. Rows with few lines would
// leave their first and last one half written, which streaming pays dearly for; short rows that join each other, whose lines
// are completed by the next step, go past it in pieces (kStream16).
template <class T>
inline Store how_to_store(const ColumnArgs& args) {
  const uint64_t row = args.n_columns * sizeof(T), address = (uint64_t)args.out, stride = (uint64_t)args.out_stride;
  if (!args.stream || args.out == nullptr || stride % kCacheLine) return Store::kCached;
  if (row >= kMinStreamRow || (stride == row && address % kCacheLine == 0)) return Store::kStreamVector;
  return stride == row && address % 16 == 0 && kLanes * sizeof(T) % 16 == 0 ? Store::kStream16 : Store::kCached;
}

// Column vectors that are whole, and the last one that may not be, through the same code.
template <bool Whole, class T>
inline Vec load_columns(const T* p, int count) {
  if constexpr (Whole) return load(p);
  else return load_some(p, count);
}
template <bool Whole>
inline Mask load_mask_columns(const uint8_t* p, int count) {
  if constexpr (Whole) return load_mask(p);
  else return load_mask_some(p, count);
}

template <class T, class G, bool Gated, bool HasReset>
struct Walker {
  const ColumnArgs args;   // a copy: no store to out can change it, so the loops keep it in registers

  template <bool Whole>
  inline Vec token(int64_t step, int64_t col, int count) const {
    return load_columns<Whole>((const T*)(args.x + step * args.x_stride) + col, count);
  }
  template <bool Whole>
  inline Vec gate(int64_t step, int64_t col, int count) const {
    const G* row = (const G*)(args.gates + step * args.gates_stride);
    return args.gates_shared ? broadcast(to_double(row[0])) : load_columns<Whole>(row + col, count);
  }
  template <bool Whole>
  inline Mask dropped(int64_t step, int64_t col, int count) const {
    const uint8_t* row = args.reset + step * args.reset_stride;
    return args.reset_shared ? (Mask)((row[0] ? -1 : 0) - Mask{}) : load_mask_columns<Whole>(row + col, count);
  }
  template <bool Whole, Store How = Store::kCached>
  inline void write(int64_t step, int64_t col, int count, Vec v) const {
    T* target = (T*)(args.out + step * args.out_stride) + col;
    if constexpr (Whole) store(target, v, How);
    else store_some(target, v, count);
  }

  // One step: the state after it is left in `state`, and what is written is returned.
  template <bool Whole>
  inline Vec advance(int64_t step, int64_t col, int count, Vec& state, Vec gamma) const {
    Vec x = token<Whole>(step, col, count);
    if constexpr (HasReset) x = as_operand(x);
    Vec before = state;
    state = fma(Gated ? gate<Whole>(step, col, count) : gamma, state, x);
    if constexpr (HasReset) {
      const Mask drop = dropped<Whole>(step, col, count);
      state = select(drop, x, state);
      before = select(drop, Vec{}, before);
    }
    return args.exclusive ? before : state;
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
  inline void prefetch(int64_t step, int64_t col) const {
    for (int k = 0; k < N; ++k) {
      __builtin_prefetch(args.x + (step + k) * args.x_stride + col * (int64_t)sizeof(T));
      if (Gated && !args.gates_shared)
        for (int byte = 0; byte < Columns * (int)sizeof(G); byte += kCacheLine)
          __builtin_prefetch(args.gates + (step + k) * args.gates_stride + col * (int64_t)sizeof(G) + byte);
    }
  }

  // N steps of the first `count` columns of a vector.
  template <int N>
  inline void advance_some(int64_t step, int64_t col, int count) const {
    const Vec gamma = Gated ? Vec{} : load_some(args.gamma + col, count);
    Vec state = load_some(args.carry + col, count);
    for (int n = 0; n < N; ++n) {
      const Vec y = advance<false>(step + n, col, count, state, gamma);
      if (args.out) write<false>(step + n, col, count, y);
    }
    store_some(args.carry + col, state, count);
  }

  // N steps of some whole vectors of columns; with kStreamVector their outputs are a cache line.
  template <int N, int Abreast, Store How>
  inline void advance_together(int64_t step, int64_t col) const {
    Vec gamma[Abreast], state[Abreast], y[Abreast];
    for (int k = 0; k < Abreast; ++k) {
      gamma[k] = Gated ? Vec{} : load(args.gamma + col + k * kLanes);
      state[k] = load(args.carry + col + k * kLanes);
    }
    prefetch<N, Abreast * kLanes>(step + steps_ahead(), col);
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < Abreast; ++k) y[k] = advance<true>(step + n, col + k * kLanes, kLanes, state[k], gamma[k]);
      if constexpr (How == Store::kStreamVector) stream_line((T*)(args.out + (step + n) * args.out_stride) + col, y);
      else if (args.out)
        for (int k = 0; k < Abreast; ++k) write<true, How>(step + n, col + k * kLanes, kLanes, y[k]);
    }
    for (int k = 0; k < Abreast; ++k) store(args.carry + col + k * kLanes, state[k]);
  }

  template <int N, Store How>
  inline void advance_all(int64_t step) const {
    constexpr int kVectors = How == Store::kStream16 ? 1 : kAbreast<T>;
    int64_t col = 0;
    auto advance_to = [&](int64_t end) {   // through the cache, to the first whole line or behind the last one
      for (; col + kLanes <= end; col += kLanes) advance_together<N, 1, Store::kCached>(step, col);
      if (col < end) advance_some<N>(step, col, (int)(end - col));
      col = end;
    };
    if constexpr (How == Store::kStreamVector) advance_to(-(uint64_t)args.out % kCacheLine / sizeof(T));
    for (; col + kVectors * kLanes <= args.n_columns; col += kVectors * kLanes) advance_together<N, kVectors, How>(step, col);
    advance_to(args.n_columns);
  }

  template <Store How>
  void walk(int64_t step) const {
    for (; step + kSteps <= args.n_steps; step += kSteps) advance_all<kSteps, How>(step);
    for (; step < args.n_steps; ++step) advance_all<1, How>(step);
  }

  void run() const {
    int64_t step = 0;
    if (args.first && args.n_steps > 0) {
      const int64_t whole = args.n_columns - args.n_columns % kLanes;
      for (int64_t col = 0; col < whole; col += kLanes) start<true>(col, kLanes);
      if (whole < args.n_columns) start<false>(whole, (int)(args.n_columns - whole));
      step = 1;
    }
    switch (how_to_store<T>(args)) {
      case Store::kCached: return walk<Store::kCached>(step);
      case Store::kStream16: return walk<Store::kStream16>(step);
      case Store::kStreamVector: return walk<Store::kStreamVector>(step);
    }
  }

  // (multiplier, value) of every column; the loop is the scan's, with a product beside the state. N vectors of
  // columns go together: one alone would wait for its own multiply-add at every step. What may overflow on the way
  // is bounded from what stands after each run of kRun steps, the largest gate, and, of float64, the largest token.
  template <bool Whole, int N>
  void reduce_columns(int64_t col, int count, Reduced* lanes) const {
    Vec gamma[N], value[N], product[N], smallest[N], largest[N], largest_token[N];
    Vec most_product[N], most_value[N];
    Mask vanished[N];   // a product too small for a number: how far it grows from there is not known
    for (int k = 0; k < N; ++k) {
      gamma[k] = Gated ? Vec{} : load_columns<Whole>(args.gamma + col + k * kLanes, count);
      value[k] = largest[k] = largest_token[k] = most_value[k] = Vec{};
      product[k] = most_product[k] = broadcast(1.0), smallest[k] = broadcast(__builtin_inf()), vanished[k] = Mask{};
    }
    auto advance = [&](int64_t step) __attribute__((always_inline)) {
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
    for (int k = 0; k < N; ++k)
      for (int lane = 0; lane < count; ++lane) {
        Reduced& result = lanes[col + k * kLanes + lane];
        const double power = Gated ? 1.0 : __builtin_pow(gamma[k][lane], (double)args.n_steps);
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
  return args.reset ? walker<T, G, false, true>(args).run() : walker<T, G, false, false>(args).run();
}
template <class T, class G>
void reduce(const ColumnArgs& args, Reduced* lanes) {
  if (args.gates)
    return args.reset ? walker<T, G, true, true>(args).reduce(lanes) : walker<T, G, true, false>(args).reduce(lanes);
  return args.reset ? walker<T, G, false, true>(args).reduce(lanes) : walker<T, G, false, false>(args).reduce(lanes);
}

}  // namespace

ColumnKernels column_kernels(int32_t dtype, int32_t gate_dtype) {
  return with_real_types(dtype, gate_dtype, [](auto x, auto gate) -> ColumnKernels {
    return {scan<decltype(x), decltype(gate)>, reduce<decltype(x), decltype(gate)>};
  });
}

}  // namespace upsweep
